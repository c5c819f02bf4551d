//! The central property of boards. At rest every answer equals a plain sort of the entity rows. At
//! any time no answer is older than it states. After a run, exactly the nodes that heads reference
//! are stored.

use batch::RunRequest;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jobs::Catalog;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schemas::clock::Clock;
use schemas::source::Source;
use serde_json::json;
use stores::live::PartitionId;
use tests::boards::{BoardHistory, collect_nodes};
use tests::expected_boards::ExpectedEntities;
use tests::histories::history_seeds;
use tests::interruption::interrupt_randomly;
use tests::stages::cancel_at;
use tests::world::{PARTITIONS, Served, World};
use tokio_util::sync::CancellationToken;

/// Seeds of histories that once gave a wrong answer.
const REGRESSION_SEEDS: [u64; 0] = [];
const HISTORIES: u64 = 2;
const STEPS: usize = 14;
const SOURCES: [Source; 2] = [Source::Efforts, Source::Authorizations];
/// Fewer rows than one key has, so that checks sometimes fail.
const CHECK_ROWS_MIN: u64 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boards_equal_a_plain_sort_and_are_never_older_than_stated() {
    for seed in REGRESSION_SEEDS
        .into_iter()
        .chain(history_seeds(HISTORIES, 1))
    {
        eprintln!("history {seed}");
        Box::pin(check_history(World::new().await, seed)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boards_on_servers_equal_a_plain_sort() {
    let mut cached = 0;
    for seed in history_seeds(HISTORIES, 5) {
        eprintln!("history {seed} on servers");
        let mut world = World::on_servers().await;
        let rng = &mut SmallRng::seed_from_u64(seed);
        // Boards are filled in many steps, interleaved with those of the log, and verified all the
        // time.
        world.speed_options.records_max = rng.random_range(1..20);
        world.speed_options.board_fill_rows = rng.random_range(1..6);
        world.speed_options.board_check_interval_ms = 0;
        if rng.random_bool(0.3) {
            world.speed_options.board_cache_bytes_max = 100_000;
        }
        let world = Box::pin(check_history(world, seed)).await;
        cached += count_filled(&world).await;
    }
    assert!(cached > 0, "no board was cached");
}

/// The number of filled boards in the cache.
async fn count_filled(world: &World) -> usize {
    let live = &world.stores.live;
    let cache = live.board_cache().expect("a cache on servers");
    let mut filled = 0;
    for source in SOURCES {
        for partition in 0..PARTITIONS {
            let register = cache.read_register(PartitionId { source, partition }).await;
            let boards = register.expect("a register").boards;
            filled += boards.iter().filter(|board| board.bytes.is_some()).count();
        }
    }
    filled
}

async fn check_history(mut world: World, seed: u64) -> World {
    let mut rng = SmallRng::seed_from_u64(seed);
    world.batch_options.check_rows_min = CHECK_ROWS_MIN;
    // Long enough that runs are interrupted within the grace period.
    world.batch_options.grace_ms = rng.random_range(0..2) * 150;
    let mut ledger = BoardHistory::new(seed);
    for source in SOURCES {
        world.intake(source).await;
    }
    ledger.ingest_applications(&world).await;
    world.speed_options.sum_states = rng.random_range(1..4);
    ledger.ingest(&world).await;
    settle(&world, &mut ledger).await;
    let served = world.serve().await;
    for _ in 0..STEPS {
        if rng.random_bool(0.2) {
            // The day decides whether a replaced version is kept.
            let now_ms = world.clock.now_ms() + rng.random_range(1..30) * 3_600_000;
            world.clock.set_ms(now_ms);
        }
        Box::pin(random_step(&world, &served, &mut rng, &mut ledger)).await;
        ledger
            .check_random_query(&world, &served.client, &mut rng)
            .await;
        if rng.random_bool(0.2) {
            settle(&world, &mut ledger).await;
            for _ in 0..3 {
                ledger.check_at_rest(&served.client, &mut rng).await;
            }
            collect_nodes(&world).await;
        }
    }
    settle(&world, &mut ledger).await;
    for _ in 0..10 {
        ledger.check_at_rest(&served.client, &mut rng).await;
    }
    for source in SOURCES {
        let full = rng.random_bool(0.3);
        let request = RunRequest {
            full,
            force: true,
            ..RunRequest::default()
        };
        let report = world.run_after_lease(source, &request).await;
        // Live state may have been lost, but the remaining state is correct.
        let total = report.drift.total;
        assert!(total.is_none_or(|total| total == 0), "{:?}", report.drift);
    }
    let (named, stored) = collect_nodes(&world).await;
    assert_eq!(named, stored, "garbage is left");
    for _ in 0..20 {
        ledger.check_at_rest(&served.client, &mut rng).await;
    }
    // Where there is a cache, it contains the missed boards by now.
    settle(&world, &mut ledger).await;
    for _ in 0..20 {
        ledger.check_at_rest(&served.client, &mut rng).await;
    }
    served.end().await;
    world
}

/// The rank on an earlier day equals a plain sort of the rows at that day's last run, however often
/// the board was published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_of_an_earlier_day_are_those_of_its_last_run() {
    for seed in history_seeds(HISTORIES, 2) {
        eprintln!("history {seed} of days");
        Box::pin(check_days(World::new().await, 1_000 + seed)).await;
    }
}

async fn check_days(mut world: World, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    world.batch_options.check_rows_min = u64::MAX;
    let mut ledger = BoardHistory::new(seed);
    for source in SOURCES {
        world.intake(source).await;
    }
    let served = world.serve().await;
    let mut last_run: Option<(Date, ExpectedEntities)> = None;
    let mut run_days = Vec::new();
    for _ in 0..6 {
        // On some days no batch runs.
        for _ in 0..rng.random_range(0..4) {
            for _ in 0..rng.random_range(0..5) {
                ledger.ingest(&world).await;
            }
            settle(&world, &mut ledger).await;
            if rng.random_bool(0.7) {
                let request = RunRequest {
                    full: rng.random_bool(0.3),
                    ..RunRequest::default()
                };
                let report = world.run_after_lease(Source::Efforts, &request).await;
                assert_eq!(report.drift.total, Some(0), "{:?}", report.drift);
                last_run = Some((today(&world), ledger.current().clone()));
                run_days.push(today(&world));
            }
        }
        settle(&world, &mut ledger).await;
        let hours = rng.random_range(0..40);
        world.clock.set_ms(world.clock.now_ms() + hours * 3_600_000);
        if let Some((day, truth)) = &last_run
            && *day < today(&world)
        {
            let days = run_days.clone();
            for _ in 0..6 {
                ledger
                    .check_earlier_ranks(&served.client, truth, &days, &mut rng)
                    .await;
            }
            // A new effort today does not change earlier days.
            ledger.ingest(&world).await;
            settle(&world, &mut ledger).await;
            let request = RunRequest::default();
            for _ in 0..rng.random_range(1..3) {
                world.run_after_lease(Source::Efforts, &request).await;
            }
            for _ in 0..6 {
                ledger
                    .check_earlier_ranks(&served.client, truth, &days, &mut rng)
                    .await;
            }
            last_run = Some((today(&world), ledger.current().clone()));
            run_days.push(today(&world));
        }
    }
    served.end().await;
}

/// The day of the world's clock.
fn today(world: &World) -> Date {
    let now = Timestamp::from_millisecond(world.clock.now_ms());
    now.expect("a time").to_zoned(TimeZone::UTC).date()
}

/// Publishes and processes all notifications.
async fn settle(world: &World, ledger: &mut BoardHistory) {
    for source in SOURCES {
        world.catch_up_on(source).await;
    }
    world.mark_live_restored();
    ledger.mark_published(world).await;
}

async fn random_step(
    world: &World,
    served: &Served,
    rng: &mut SmallRng,
    ledger: &mut BoardHistory,
) {
    let source = if rng.random_bool(0.7) {
        Source::Efforts
    } else {
        Source::Authorizations
    };
    match rng.random_range(0..12) {
        0..=2 => ledger.ingest(world).await,
        3 if rng.random_bool(0.3) => ledger.ingest_deletes(world).await,
        3 => ledger.ingest_unpublished(world).await,
        4 => ledger.append_duplicates(world).await,
        5..=7 => {
            let (speed, other) = (world.speed_of(source).await, world.speed_of(source).await);
            let is_only_worker = rng.random_bool(0.7);
            let work = async move {
                let second_worker = async {
                    if !is_only_worker {
                        let ended = other.run(true, CancellationToken::new()).await;
                        ended.expect("speed");
                    }
                };
                let (ended, ()) =
                    tokio::join!(speed.run(true, CancellationToken::new()), second_worker);
                ended.expect("speed");
            };
            let query = async |rng: &mut SmallRng| {
                ledger.check_random_query(world, &served.client, rng).await
            };
            Box::pin(interrupt_randomly(work, 40, rng, query)).await;
        }
        8 if rng.random_bool(0.5) => world.delete_live_state(),
        _ => {
            let batch = world.batch();
            let jobs = world.catalog.boards().iter();
            let jobs = jobs.filter(|job| job.source() == source && rng.random_bool(0.2));
            let request = RunRequest {
                jobs: jobs.map(|job| job.name().to_owned()).collect(),
                full: rng.random_bool(0.3),
                force: rng.random_bool(0.3),
                ..RunRequest::default()
            };
            let run = async move {
                let stop = CancellationToken::new();
                let ended = batch.run(source, &request, &(), &stop).await;
                match ended {
                    // A run that finds live state behind an abandoned cut may wait for a worker.
                    // The check may refuse a result that lost most rows. Single jobs need a
                    // completed run.
                    Ok(_) | Err(batch::Error::Busy(_)) => {}
                    Err(batch::Error::Check { .. }) if !request.force => {}
                    Err(batch::Error::Request(_)) if !request.jobs.is_empty() => {}
                    Err(error) => panic!("{error}"),
                }
            };
            let query = async |rng: &mut SmallRng| {
                ledger.check_random_query(world, &served.client, rng).await
            };
            Box::pin(interrupt_randomly(run, 1_000, rng, query)).await;
        }
    }
}

fn efforts(segment: i64, athletes: std::ops::Range<i64>, is_deleted: bool) -> Vec<String> {
    let effort = |athlete: i64| {
        let row = json!({
            "id": segment * 10_000 + athlete, "segment_id": segment, "athlete_id": athlete,
            "activity_id": 1, "elapsed_time": 100 + athlete, "started_at": "2026-01-01T00:00:00Z",
            "deleted": is_deleted,
        });
        row.to_string()
    };
    athletes.map(effort).collect()
}

async fn ingest_efforts(world: &World, lines: &[String]) {
    let ingested = world.ingest_into(Source::Efforts, lines).await;
    assert_eq!(ingested.accepted, lines.len() as u64);
    world.catch_up_on(Source::Efforts).await;
}

/// Runs the batch over efforts until a stage begins, then stops or kills the run.
async fn run_until(world: &World, stage: &'static str, is_killed: bool) {
    let (reached, stop) = (CancellationToken::new(), CancellationToken::new());
    let progress = cancel_at(stage, &reached);
    let (batch, request) = (world.batch(), RunRequest::default());
    let run = Box::pin(batch.run(Source::Efforts, &request, &progress, &stop));
    if is_killed {
        tokio::select! {
            biased;
            () = reached.cancelled() => {}
            ended = run => drop(ended.expect("a run")),
        }
    } else {
        let stopped = async {
            reached.cancelled().await;
            stop.cancel();
        };
        tokio::join!(run, stopped)
            .0
            .expect("a published notification");
    }
}

/// Replaced rows stay for the grace period. If the run ends within it, the next run deletes them,
/// even if it has nothing to write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_rows_are_deleted_by_a_later_run() {
    for is_killed in [false, true] {
        let mut world = World::new().await;
        world.intake(Source::Efforts).await;
        ingest_efforts(&world, &efforts(1, 1..40, false)).await;
        world
            .run_on(Source::Efforts, &RunRequest::default())
            .await
            .expect("a run");
        let (before, stored) = collect_nodes(&world).await;
        assert_eq!(before, stored);
        ingest_efforts(&world, &efforts(1, 5..9, true)).await;
        world.batch_options.grace_ms = 3_600_000;
        run_until(&world, "drop", is_killed).await;
        let (after, stored) = collect_nodes(&world).await;
        assert_eq!(stored, before.union(&after).cloned().collect());
        assert!(before.intersection(&after).next().is_some(), "none shared");
        assert!(!before.is_subset(&after), "nothing was replaced");
        world.batch_options.grace_ms = 0;
        world
            .run_on(Source::Efforts, &RunRequest::default())
            .await
            .expect("a run");
        assert_eq!(collect_nodes(&world).await, (after.clone(), after));
    }
}

async fn assert_refused(world: &World, request: &RunRequest, reason: &str) {
    let error = world.run_on(Source::Efforts, request).await;
    let error = error.expect_err("its check fails").to_string();
    assert!(error.contains(reason), "{error}");
}

/// The number of athletes on a segment, according to the API.
async fn fetch_athlete_count(world: &World, segment: i64) -> u64 {
    let served = world.serve().await;
    let path = format!("/api/v1/segments/{segment}/counts");
    let answer = served.client.fetch_json(&path).await;
    served.end().await;
    answer["athletes"].as_u64().expect("a count")
}

/// A result that lost most rows is refused after any earlier run, and published with `force`.
/// Readers get correct answers throughout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_lost_most_rows_is_refused() {
    let mut world = World::new().await;
    world.intake(Source::Efforts).await;
    world.batch_options.check_rows_min = 30;
    let (incremental, full) = (
        RunRequest::default(),
        RunRequest {
            full: true,
            ..RunRequest::default()
        },
    );
    let forced = |request: &RunRequest| RunRequest {
        force: true,
        ..request.clone()
    };
    for segment in 1..=4 {
        ingest_efforts(&world, &efforts(segment, 1..11, false)).await;
    }
    world
        .run_on(Source::Efforts, &incremental)
        .await
        .expect("a run");
    // A run of some keys in between.
    ingest_efforts(&world, &efforts(1, 11..12, false)).await;
    world
        .run_on(Source::Efforts, &incremental)
        .await
        .expect("a run");

    // A full run compares with all published rows, including those that the previous run did not
    // touch.
    for segment in 2..=4 {
        ingest_efforts(&world, &efforts(segment, 1..10, true)).await;
    }
    assert_refused(&world, &full, "fewer than half").await;
    assert_eq!(
        (
            fetch_athlete_count(&world, 1).await,
            fetch_athlete_count(&world, 2).await
        ),
        (11, 1)
    );
    // A run of some keys compares with the published rows of these keys.
    assert_refused(&world, &incremental, "fewer than half").await;
    let report = world.run_on(Source::Efforts, &forced(&incremental)).await;
    let warnings = report.expect("a forced run").warnings;
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("fewer than half")),
        "{warnings:?}"
    );
    assert_eq!(
        (
            fetch_athlete_count(&world, 1).await,
            fetch_athlete_count(&world, 2).await
        ),
        (11, 1)
    );

    // The recorded count of all keys decreased with it.
    let few = efforts(2, 1..3, false);
    ingest_efforts(&world, &few).await;
    for request in [&incremental, &full] {
        let report = world.run_on(Source::Efforts, request).await;
        assert_eq!(report.expect("a run").warnings, Vec::<String>::new());
    }
    let (named, stored) = collect_nodes(&world).await;
    assert_eq!(named, stored);
}

/// A view that returns no rows although many were published is refused at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_without_rows_of_many_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let view = folder.path().join("nothing");
    std::fs::create_dir(&view).expect("a folder");
    let definition = "kind = \"board\"\nboard = \"nothing\"\nsource = \"efforts\"\n\
                      layers = \"batch\"\nkey = \"segment_id\"\nmember = \"athlete_id\"\n";
    std::fs::write(view.join("job.toml"), definition).expect("a definition");
    let query = "SELECT segment_id, athlete_id FROM efforts WHERE elapsed_time < 0";
    std::fs::write(view.join("query.sql"), query).expect("a query");
    let catalog = Catalog::read(folder.path()).expect("the views");
    let old = World::new().await;
    let mut world = old.with_catalog(catalog);
    world.intake(Source::Efforts).await;
    world.batch_options.check_rows_min = 10;
    // Deleted rows are not expected.
    ingest_efforts(&world, &efforts(1, 1..10, false)).await;
    ingest_efforts(&world, &efforts(1, 20..60, true)).await;
    let request = RunRequest::default();
    world
        .run_on(Source::Efforts, &request)
        .await
        .expect("a run");
    ingest_efforts(&world, &efforts(1, 10..11, false)).await;
    assert_refused(&world, &request, "has no row").await;
}
