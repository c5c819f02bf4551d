//! The central law for boards: at rest every answer is a plain sort of the canonical rows, and at
//! every moment no answer is older than it says.

use std::time::Duration;

use batch::RunRequest;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schemas::source::Source;
use tests::boards::Ledger;
use tests::world::{Served, World};
use tokio_util::sync::CancellationToken;

/// Histories that once gave a wrong answer.
const SEEDS_KEPT: [u64; 0] = [];
const HISTORIES: u64 = 5;
const STEPS: usize = 14;
const SOURCES: [Source; 2] = [Source::Efforts, Source::Authorizations];

/// How many histories to try: `BACKSTITCH_TEST_HISTORIES` tries more than usual.
fn histories() -> u64 {
    let set = std::env::var("BACKSTITCH_TEST_HISTORIES").ok();
    set.and_then(|n| n.parse().ok()).unwrap_or(HISTORIES)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boards_are_a_plain_sort_and_never_older_than_they_say() {
    for seed in SEEDS_KEPT.into_iter().chain(0..histories()) {
        eprintln!("history {seed}");
        Box::pin(history(seed)).await;
    }
}

async fn history(seed: u64) {
    let world = World::new().await;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut ledger = Ledger::new(seed);
    for source in SOURCES {
        world.intake(source).await;
    }
    ledger.ingest(&world).await;
    settle(&world, &mut ledger).await;
    let served = world.serve().await;
    for _ in 0..STEPS {
        Box::pin(step(&world, &served, &mut rng, &mut ledger)).await;
        ledger.ask(&world, &served.client, &mut rng).await;
        if rng.random_bool(0.2) {
            settle(&world, &mut ledger).await;
            for _ in 0..3 {
                ledger.ask_at_rest(&served.client, &mut rng).await;
            }
        }
    }
    settle(&world, &mut ledger).await;
    for _ in 0..10 {
        ledger.ask_at_rest(&served.client, &mut rng).await;
    }
    for source in SOURCES {
        let full = rng.random_bool(0.3);
        let request = RunRequest {
            full,
            ..RunRequest::default()
        };
        world.run_on(source, &request).await.expect("a run");
    }
    for _ in 0..20 {
        ledger.ask_at_rest(&served.client, &mut rng).await;
    }
    served.end().await;
}

/// Everything is told and counted.
async fn settle(world: &World, ledger: &mut Ledger) {
    for source in SOURCES {
        world.catch_up_on(source).await;
    }
    world.live_is_back();
    ledger.all_told(world).await;
}

async fn step(world: &World, served: &Served, rng: &mut SmallRng, ledger: &mut Ledger) {
    let source = if rng.random_bool(0.7) {
        Source::Efforts
    } else {
        Source::Authorizations
    };
    match rng.random_range(0..12) {
        0..=2 => ledger.ingest(world).await,
        3 => ledger.ingest_untold(world).await,
        4 => ledger.repeat(world).await,
        5..=7 => {
            let (speed, other) = (world.speed_of(source).await, world.speed_of(source).await);
            let is_alone = rng.random_bool(0.7);
            let work = async move {
                let both = async {
                    if !is_alone {
                        let ended = other.run(true, CancellationToken::new()).await;
                        ended.expect("speed");
                    }
                };
                let (ended, ()) = tokio::join!(speed.run(true, CancellationToken::new()), both);
                ended.expect("speed");
            };
            Box::pin(cut_at_any_point(work, 40, (world, served), rng, ledger)).await;
        }
        8 if rng.random_bool(0.5) => world.lose_live(),
        _ => {
            let batch = world.batch();
            let full = rng.random_bool(0.3);
            let run = async move {
                let request = RunRequest {
                    full,
                    ..RunRequest::default()
                };
                let stop = CancellationToken::new();
                let ended = batch.run(source, &request, &(), &stop).await;
                // A run that finds live state behind an abandoned cut may wait for a worker.
                if let Err(error) = ended {
                    assert!(matches!(error, batch::Error::Busy(_)), "{error}");
                }
            };
            Box::pin(cut_at_any_point(run, 1_000, (world, served), rng, ledger)).await;
        }
    }
}

/// Runs work beside questions; half of the time it is cut off somewhere.
async fn cut_at_any_point(
    work: impl Future<Output = ()> + Send + 'static,
    wait_ms_max: u64,
    (world, served): (&World, &Served),
    rng: &mut SmallRng,
    ledger: &Ledger,
) {
    #[expect(clippy::disallowed_methods, reason = "it is awaited or aborted below")]
    let mut task = tokio::spawn(work);
    let cut = rng.random_bool(0.5);
    let wait = Duration::from_millis(rng.random_range(0..wait_ms_max));
    let deadline = tokio::time::Instant::now() + wait;
    loop {
        tokio::select! {
            ended = &mut task => {
                ended.expect("the work");
                return;
            }
            () = tokio::time::sleep_until(deadline), if cut => {
                task.abort();
                drop(task.await);
                return;
            }
            () = ledger.ask(world, &served.client, rng) => {}
        }
    }
}
