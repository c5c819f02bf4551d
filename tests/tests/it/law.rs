//! The central law: every answer at every moment is what a plain recount of the events up to its
//! position gives.

use batch::RunRequest;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schemas::source::Source;
use tests::histories::history_seeds;
use tests::interruption::cut_at_any_point;
use tests::questions::{Traffic, ask_and_compare};
use tests::world::{Served, World};
use tokio_util::sync::CancellationToken;

/// Histories that once gave a wrong answer.
const SEEDS_KEPT: [u64; 0] = [];
const HISTORIES: u64 = 4;
const STEPS: usize = 14;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_at_every_moment_is_what_a_recount_gives() {
    for seed in SEEDS_KEPT.into_iter().chain(history_seeds(HISTORIES, 1)) {
        eprintln!("history {seed}");
        Box::pin(history(World::new().await, seed)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_on_servers_is_what_a_recount_gives() {
    for seed in history_seeds(HISTORIES, 5) {
        eprintln!("history {seed} on servers");
        Box::pin(history(World::on_servers().await, seed)).await;
    }
}

async fn history(world: World, seed: u64) {
    world.intake(Source::Plays).await;
    world.catch_up().await;
    let served = world.serve().await;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut traffic = Traffic::new(seed);
    for _ in 0..STEPS {
        Box::pin(step(&world, &served, &mut rng, &mut traffic)).await;
        ask(&world, &served, &mut rng).await;
    }
    world.catch_up().await;
    let request = RunRequest::default();
    world.run_once_free(Source::Plays, &request).await;
    for _ in 0..8 {
        ask(&world, &served, &mut rng).await;
    }
    served.end().await;
}

async fn step(world: &World, served: &Served, rng: &mut SmallRng, traffic: &mut Traffic) {
    let ask = async |rng: &mut SmallRng| ask(world, served, rng).await;
    match rng.random_range(0..12) {
        0..=2 => {
            let lines = traffic.lines(rng.random_range(1..40));
            world.ingest(&lines).await;
        }
        3 => {
            world
                .append_raw(rng.random_range(0..2), &[b"{", b"", b"\xff\xfe"])
                .await
        }
        4..=6 => {
            let speed = world.speed().await;
            let work = async move {
                let stop = CancellationToken::new();
                speed.run(true, stop).await.expect("speed");
            };
            let other = rng.random_bool(0.3).then(|| world.speed());
            let other = match other {
                Some(speed) => Some(speed.await),
                None => None,
            };
            let both = async move {
                let second = async {
                    if let Some(speed) = other {
                        speed
                            .run(true, CancellationToken::new())
                            .await
                            .expect("speed");
                    }
                };
                tokio::join!(work, second);
            };
            Box::pin(cut_at_any_point(both, 40, rng, ask)).await;
        }
        7 if rng.random_bool(0.5) => world.lose_live(),
        8 if rng.random_bool(0.7) => {
            let number = rng.random::<u32>();
            let lines = traffic.apart(&format!("b{number}-"), rng.random_range(1..40));
            let backfill = world.backfill(&lines);
            cut_at_any_point(backfill, 40, rng, ask).await;
            world.settle_backfill(lines).await;
        }
        _ => {
            let full = rng.random_bool(0.2);
            let batch = world.batch();
            let run = async move {
                let request = RunRequest {
                    full,
                    ..RunRequest::default()
                };
                let stop = CancellationToken::new();
                let ended = batch.run(Source::Plays, &request, &(), &stop).await;
                // A run that finds live state behind an abandoned cut may wait for a worker.
                if let Err(error) = ended {
                    assert!(matches!(error, batch::Error::Busy(_)), "{error}");
                }
            };
            cut_at_any_point(run, 1_500, rng, ask).await;
        }
    }
}

async fn ask(world: &World, served: &Served, rng: &mut SmallRng) {
    ask_and_compare(world, &served.client, rng).await;
}
