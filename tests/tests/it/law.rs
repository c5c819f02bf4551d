//! The central property: every answer at any time equals a plain recount of the events up to its
//! position.

use batch::RunRequest;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schemas::source::Source;
use tests::histories::history_seeds;
use tests::interruption::interrupt_randomly;
use tests::play_queries::{PlayGenerator, check_random_query};
use tests::world::{Served, World};
use tokio_util::sync::CancellationToken;

/// Seeds of histories that once gave a wrong answer.
const REGRESSION_SEEDS: [u64; 0] = [];
const HISTORIES: u64 = 4;
const STEPS: usize = 14;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_equals_a_recount() {
    for seed in REGRESSION_SEEDS
        .into_iter()
        .chain(history_seeds(HISTORIES, 1))
    {
        eprintln!("history {seed}");
        Box::pin(check_history(World::new().await, seed)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_on_servers_equals_a_recount() {
    for seed in history_seeds(HISTORIES, 5) {
        eprintln!("history {seed} on servers");
        Box::pin(check_history(World::on_servers().await, seed)).await;
    }
}

async fn check_history(world: World, seed: u64) {
    world.intake(Source::Plays).await;
    world.catch_up().await;
    let served = world.serve().await;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut traffic = PlayGenerator::new(seed);
    for _ in 0..STEPS {
        Box::pin(random_step(&world, &served, &mut rng, &mut traffic)).await;
        check_query(&world, &served, &mut rng).await;
    }
    world.catch_up().await;
    let request = RunRequest::default();
    world.run_after_lease(Source::Plays, &request).await;
    for _ in 0..8 {
        check_query(&world, &served, &mut rng).await;
    }
    served.end().await;
}

async fn random_step(
    world: &World,
    served: &Served,
    rng: &mut SmallRng,
    traffic: &mut PlayGenerator,
) {
    let ask = async |rng: &mut SmallRng| check_query(world, served, rng).await;
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
            let workers = async move {
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
            Box::pin(interrupt_randomly(workers, 40, rng, ask)).await;
        }
        7 if rng.random_bool(0.5) => world.delete_live_state(),
        8 if rng.random_bool(0.7) => {
            let number = rng.random::<u32>();
            let lines =
                traffic.generate_with_prefix(&format!("b{number}-"), rng.random_range(1..40));
            let backfill = world.backfill(&lines);
            interrupt_randomly(backfill, 40, rng, ask).await;
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
            interrupt_randomly(run, 1_500, rng, ask).await;
        }
    }
}

async fn check_query(world: &World, served: &Served, rng: &mut SmallRng) {
    check_random_query(world, &served.client, rng).await;
}
