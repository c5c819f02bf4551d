//! Backfills of past events that were never in the log.

use std::sync::Arc;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use batch::{Backfill, RunRequest};
use schemas::plays::{BEFORE_THE_LOG, Decoder, Line};
use schemas::source::Source;
use serde_json::{Value, json};
use stores::lease::{LeaseGuard, Leases};
use tests::plays;
use tests::process::{run, run_ok};
use tests::world::{NOW_MS, Served, World};
use tokio_util::sync::CancellationToken;

fn play(event: &str, day: u32) -> String {
    let at = format!("2026-02-{day:02}T11:00:00Z");
    plays::play(event, json!({"owner_id": 7, "at": at}))
}

/// Sends a request with the blocking client, off the threads that serve.
async fn fetch_total(served: &Served) -> Value {
    let client = served.client.clone();
    let path = "/api/v1/stats/plays/total?owner_id=7&period=all";
    let answer = tokio::task::spawn_blocking(move || client.get_json(path));
    answer.await.expect("an answer")
}

/// Backfilled events count from the run that includes them. They appear all at once, and events
/// that are also in the log count once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backfilled_events_count_from_the_next_run() {
    let world = World::new().await;
    let served = world.serve().await;
    world.ingest(&[play("a", 1), play("b", 2)]).await;
    world.catch_up().await;
    let run = async |request: RunRequest| world.run(&request).await;
    run(RunRequest::default()).await.expect("a run");
    // One of the events is also in the log.
    let old = [play("b", 2), play("c", 2), play("d", 3)];
    world.backfill(&old).await;
    world.ingest(&[play("e", 3)]).await;
    world.catch_up().await;
    let before = fetch_total(&served).await;
    assert_eq!(
        (&before["count"], &before["provenance"]["backfills"]),
        (&json!(3), &Value::Null)
    );
    let single_job = RunRequest {
        jobs: vec!["plays_detail".to_owned()],
        ..RunRequest::default()
    };
    let refused = run(single_job.clone())
        .await
        .expect_err("deltas of all views");
    assert!(
        refused.to_string().contains("batch run` first"),
        "{refused}"
    );
    let report = run(RunRequest::default()).await.expect("a run");
    let drift = report.drift.unknown.expect("a reason");
    assert!(drift.contains("backfill"), "{drift}");
    let after = fetch_total(&served).await;
    assert_eq!(
        (&after["count"], &after["provenance"]["backfills"]),
        (&json!(5), &json!(1))
    );
    // From here on, runs are incremental again, also those of a single job.
    run(single_job).await.expect("a run of one job");
    world.ingest(&[play("f", 2)]).await;
    world.catch_up().await;
    let report = run(RunRequest::default()).await.expect("a run");
    assert_eq!((report.full, report.drift.total), (false, Some(0)));
    assert_eq!(fetch_total(&served).await["count"], 6);
    served.end().await;
}

/// The command writes dead letters for bad lines, and leaves no files after a bad file.
#[test]
fn the_command_ingests_all_files_or_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let write = |name: &str, lines: &[&str]| {
        let path = folder.path().join(name);
        std::fs::write(&path, lines.join("\n")).expect("a file");
        path.display().to_string()
    };
    let good = write("good.jsonl", &[&play("a", 1), "{", "", &play("b", 2)]);
    let bad = folder.path().join("bad.parquet");
    std::fs::write(&bad, "no Parquet").expect("a file");
    let failed = run(
        &data,
        &["backfill", "plays", &good, &bad.display().to_string()],
    );
    assert_eq!(failed.status.code(), Some(1));
    let message = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(
        message.contains("no event of this backfill counts") && message.contains("bad.parquet"),
        "{message}"
    );
    let refused = run(&data, &["backfill", "efforts", &good]);
    assert_eq!(refused.status.code(), Some(2));
    let report: Value =
        serde_json::from_str(&run_ok(&data, &["backfill", "plays", &good, "--json"]))
            .expect("JSON");
    assert_eq!(
        (
            &report["accepted"],
            &report["rejected"],
            &report["backfill"]
        ),
        (&json!(2), &json!(1), &json!(1))
    );
    run_ok(&data, &["speed", "--until-caught-up"]);
    let run: Value =
        serde_json::from_str(&run_ok(&data, &["batch", "run", "--json"])).expect("JSON");
    assert!(run.to_string().contains("\"rows_read\":2"), "{run}");
    let files = std::fs::read_dir(data.join("archive/archive/plays/files"));
    assert_eq!(
        files.expect("a folder").count(),
        1,
        "files of the one that failed are gone"
    );
}

/// A lease store that grants every lease, as after the holder lost it or is about to lose it.
#[derive(Debug, Clone, Default)]
struct GrantAllLeases(CancellationToken);

#[async_trait]
impl Leases for GrantAllLeases {
    async fn acquire(
        &self,
        _: &str,
        _: &str,
    ) -> stores::Result<Result<Box<dyn LeaseGuard>, String>> {
        Ok(Ok(Box::new(self.clone())))
    }

    async fn holder(&self, _: &str) -> stores::Result<Option<String>> {
        Ok(None)
    }
}

#[async_trait]
impl LeaseGuard for GrantAllLeases {
    fn lost(&self) -> CancellationToken {
        self.0.clone()
    }
}

fn decode_events(lines: &[String]) -> RecordBatch {
    let places = lines.iter().map(|line| Line {
        offset: BEFORE_THE_LOG,
        logged_at_ms: NOW_MS,
        bytes: line.as_bytes(),
    });
    Decoder::new(0).decode(places).expect("events").events
}

/// Creates `count` plays with this name prefix.
fn numbered_plays(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| play(&format!("{name}{n}"), 1)).collect()
}

async fn start_backfill(world: &World, lines: &[String]) -> Backfill {
    let backfill = world.batch().backfill(Source::Plays).await;
    let mut backfill = backfill.expect("a backfill");
    backfill
        .add(decode_events(lines))
        .await
        .expect("writing events");
    backfill
}

async fn count_data_files(world: &World) -> usize {
    let data = world.stores.archive.list("archive/plays/files");
    data.await.expect("the archive").len()
}

/// Two backfills both hold the lease. The first to finish counts with all its events. The other one
/// fails and leaves no files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_of_two_backfills_to_finish_counts() {
    for is_first_overtaken in [true, false] {
        let mut world = World::new().await;
        world.stores.leases = Arc::new(GrantAllLeases::default());
        world.intake(Source::Plays).await;
        world.catch_up().await;
        let first = start_backfill(&world, &numbered_plays("a", 130)).await;
        let second = start_backfill(&world, &numbered_plays("b", 70)).await;
        assert_eq!(
            count_data_files(&world).await,
            2,
            "a file of each is written"
        );
        let (finishing, overtaken, count) = if is_first_overtaken {
            (second, first, 70)
        } else {
            (first, second, 130)
        };
        let report = finishing.finish().await.expect("a backfill");
        assert_eq!((report.backfill, report.events), (1, count));
        let refused = overtaken.finish().await.expect_err("a late request");
        let refused = refused.to_string();
        assert!(refused.contains("No event of"), "{refused}");
        assert_eq!(count_data_files(&world).await as u64, report.files);
        world.run(&RunRequest::default()).await.expect("a run");
        let served = world.serve().await;
        assert_eq!(fetch_total(&served).await["count"], count);
        served.end().await;
        // The next backfill works as usual.
        let report = start_backfill(&world, &numbered_plays("c", 3))
            .await
            .finish()
            .await;
        assert_eq!(report.expect("a backfill").backfill, 2);
    }
}

/// A killed backfill leaves files until the next one finishes; a cancelled one leaves none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_killed_backfill_are_deleted_by_the_next() {
    let world = World::new().await;
    drop(start_backfill(&world, &numbered_plays("a", 70)).await);
    let second = start_backfill(&world, &numbered_plays("b", 70)).await;
    assert_eq!(
        count_data_files(&world).await,
        2,
        "the first one may still be running"
    );
    second.abandon().await;
    assert_eq!(count_data_files(&world).await, 1);
    let report = start_backfill(&world, &numbered_plays("c", 7))
        .await
        .finish()
        .await;
    assert_eq!(report.expect("a backfill").backfill, 1);
    assert_eq!(count_data_files(&world).await, 1);
}

/// A backfill that loses its lease stops, and leaves no events or files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backfill_without_its_lease_stops() {
    let mut world = World::new().await;
    let lease = GrantAllLeases::default();
    world.stores.leases = Arc::new(lease.clone());
    let mut backfill = start_backfill(&world, &numbered_plays("a", 70)).await;
    assert_eq!(count_data_files(&world).await, 1);
    lease.0.cancel();
    let refused = backfill.add(decode_events(&numbered_plays("b", 1))).await;
    let refused = refused.expect_err("a lost lease").to_string();
    assert!(refused.contains("lease of a backfill"), "{refused}");
    let refused = backfill.finish().await.expect_err("a lost lease");
    assert!(refused.to_string().contains("it was lost"), "{refused}");
    let files = world.stores.archive.list("archive/plays/files").await;
    assert_eq!(files.expect("the archive"), Vec::<String>::new());
}

/// The lease is free as soon as a backfill ends, with success or failure. Until then, other
/// backfills fail with an error that names the holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_is_free_after_a_backfill_on_servers() {
    let world = World::on_servers().await;
    let report = start_backfill(&world, &numbered_plays("a", 3))
        .await
        .finish()
        .await;
    assert_eq!(report.expect("a backfill").backfill, 1);
    let second = start_backfill(&world, &numbered_plays("b", 3)).await;
    let busy = world.batch().backfill(Source::Plays).await;
    let busy = busy.expect_err("another running one").to_string();
    let holder = format!("for plays: process {} (since ", std::process::id());
    assert!(
        busy.starts_with("a backfill is under way") && busy.contains(&holder),
        "{busy}"
    );
    second.abandon().await;
    let report = start_backfill(&world, &numbered_plays("c", 3))
        .await
        .finish()
        .await;
    assert_eq!(report.expect("a backfill").backfill, 2);
}
