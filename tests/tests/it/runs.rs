//! Batch runs that fail or cannot continue: their errors and their cleanup.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arrow::array::{BinaryArray, Int64Array};
use batch::RunRequest;
use jobs::Catalog;
use schemas::seam::{Cut, Run};
use schemas::source::Source;
use serde_json::{Value, json};
use stores::live::PartitionId;
use stores::views::{AggregateShape, NewRows, PartitionQuery};
use tests::process::{run, run_ok, run_with_input};
use tests::stages::cancel_at;
use tests::world::{NOW_MS, PARTITIONS, World};
use tokio_util::sync::CancellationToken;

fn plays(name: &str, count: usize) -> Vec<String> {
    let play = |n| {
        json!({
            "event_id": format!("{name}{n}"),
            "track_id": 10,
            "owner_id": 1 + n % 7,
            "kind": "play",
            "at": "2026-03-01T10:00:00Z",
        })
        .to_string()
    };
    (0..count).map(play).collect()
}

async fn count_and_run(world: &World, name: &str, count: usize) -> batch::Result<()> {
    world.ingest(&plays(name, count)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.map(drop)
}

async fn fetch_total(world: &World) -> i64 {
    let served = world.serve().await;
    let path = "/api/v1/stats/plays/total?track_id=10&period=all";
    let answer = served.client.fetch_json(path).await;
    served.end().await;
    answer["count"].as_i64().expect("a count")
}

fn delete_databases(folder: &Path, name: &str) {
    for entry in std::fs::read_dir(folder).expect("the data folder") {
        let entry = entry.expect("an entry");
        if entry.file_name().to_string_lossy().contains(name) {
            // Closing connections delete their own files.
            match std::fs::remove_file(entry.path()) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                deleted => deleted.expect("deleting"),
            }
        }
    }
}

/// Returns the sorted paths of all files below a folder.
fn list_files(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let entries = std::fs::read_dir(folder).expect("a folder");
    for entry in entries.map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            paths.extend(list_files(&entry));
        } else {
            paths.push(entry.to_string_lossy().into_owned());
        }
    }
    paths.sort();
    paths
}

/// The log is lost and the archive is not, so the archive contains events of another log. A run
/// detects this before it relies on offsets of the new log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_of_another_log_is_rejected() {
    for (lost, count) in [(".db", 2), (".db", 90), ("log.db", 2), ("log.db", 90)] {
        let folder = tempfile::tempdir().expect("a folder");
        let world = World::open(folder.path()).await;
        count_and_run(&world, "old", 40).await.expect("a run");
        drop(world);
        delete_databases(folder.path(), lost);
        let world = World::open(folder.path()).await;
        world.ingest(&plays("new", count)).await;
        let runs_before = list_runs(&world).await;
        let refused = world.run(&RunRequest::default()).await;
        let refused = refused.expect_err("another log").to_string();
        assert!(refused.contains("written from another log"), "{refused}");
        assert_eq!(list_runs(&world).await, runs_before, "nothing was recorded");
    }
}

async fn list_runs(world: &World) -> Vec<Run> {
    let records = world.stores.views.runs(Source::Plays).await.expect("runs");
    records.runs.iter().cloned().collect()
}

/// Ingests, counts and runs a batch in processes, so that no file stays open.
fn count_and_run_in_processes(data: &Path, lines: &[String]) {
    count_in_processes(data, lines);
    run_ok(data, &["batch", "run"]);
}

fn count_in_processes(data: &Path, lines: &[String]) {
    let lines = lines.join("\n");
    let ingested = run_with_input(data, &["ingest", "plays", "-"], lines.as_bytes());
    assert!(ingested.status.success(), "{ingested:?}");
    run_ok(data, &["speed", "--until-caught-up"]);
}

/// A copy of the files of a data folder whose paths contain a text.
struct FileCopies {
    data: PathBuf,
    path_part: &'static str,
    files: Vec<(String, Vec<u8>)>,
}

impl FileCopies {
    fn read(data: &Path, path_part: &'static str) -> Self {
        let paths = list_files(data)
            .into_iter()
            .filter(|path| path.contains(path_part));
        let bytes = |path: &String| std::fs::read(path).expect("a file");
        Self {
            data: data.to_owned(),
            path_part,
            files: paths
                .map(|path| {
                    let bytes = bytes(&path);
                    (path, bytes)
                })
                .collect(),
        }
    }

    fn restore(&self) {
        for path in list_files(&self.data)
            .iter()
            .filter(|path| path.contains(self.path_part))
        {
            std::fs::remove_file(path).expect("deleting");
        }
        for (path, bytes) in &self.files {
            std::fs::write(path, bytes).expect("a file");
        }
    }
}

fn play_of_amount(name: &str, amount: i64) -> String {
    json!({
        "event_id": name,
        "track_id": 10,
        "owner_id": 1,
        "kind": "play",
        "amount": amount,
        "at": "2026-03-01T10:00:00Z",
    })
    .to_string()
}

/// The log is replaced by a copy that ends before the counted events: no run is recorded at offsets
/// that other records will get.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_beyond_the_log_are_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    count_and_run_in_processes(data, &plays("a", 40));
    let old = FileCopies::read(data, "log.db");
    count_in_processes(data, &plays("b", 40));
    let complete = FileCopies::read(data, "log.db");
    for count in [0, 10, 90] {
        old.restore();
        let lines = plays("c", count).join("\n");
        let ingested = run_with_input(data, &["ingest", "plays", "-"], lines.as_bytes());
        assert!(ingested.status.success(), "{ingested:?}");
        let refused = run(data, &["batch", "run"]);
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && stderr.contains("another log"),
            "{stderr}"
        );
    }
    complete.restore();
    run_ok(data, &["batch", "run"]);
    assert_eq!(fetch_total(&World::open(data).await).await, 80);
}

/// A run deletes a damaged result file and fails; the next run recomputes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_result_is_recomputed() {
    let world = World::new().await;
    count_and_run(&world, "a", 50).await.expect("a run");
    let data = world.path().join("archive/results/plays/data");
    for file in list_files(&data) {
        let mut bytes = std::fs::read(&file).expect("the file");
        bytes[30] ^= 4;
        std::fs::write(&file, bytes).expect("a file");
    }
    let damaged = count_and_run(&world, "b", 50).await;
    let error = damaged.expect_err("a damaged file").to_string();
    assert!(error.contains("has been deleted"), "{error}");
    assert_eq!(fetch_total(&world).await, 100);
    // Each attempt finds at most one damaged result.
    let mut attempts = 1;
    while let Err(error) = world.run(&RunRequest::default()).await {
        attempts += 1;
        assert!(attempts <= world.catalog.jobs().len() + 1, "{error}");
    }
    assert_eq!(fetch_total(&world).await, 100);
}

/// The archive is replaced by a copy: its newest result differs from the tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_from_a_copy_are_not_mistaken_for_the_tables_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    count_and_run_in_processes(data, &[play_of_amount("a", 1)]);
    let copy = FileCopies::read(data, "/archive/");
    count_and_run_in_processes(data, &[play_of_amount("b", 5)]);
    copy.restore();
    count_in_processes(data, &[play_of_amount("c", -5)]);
    let output = run_ok(data, &["batch", "run"]);
    assert!(output.contains("the archive lacks results"), "{output}");
    assert_eq!(fetch_total(&World::open(data).await).await, 1);
}

/// The run records are lost and restart; then a copy of the first ones is restored, whose numbers
/// now belong to other runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_of_other_run_records_are_ignored() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    count_and_run_in_processes(data, &plays("a", 40));
    count_and_run_in_processes(data, &plays("b", 10));
    let copy = FileCopies::read(data, "views.db");
    let later_plays: Vec<String> = plays("c", 50)
        .iter()
        .map(|line| line.replace("2026-03-01", "2026-03-10"))
        .collect();
    count_in_processes(data, &later_plays);
    delete_databases(data, "views.db");
    run_ok(data, &["speed", "--until-caught-up"]);
    run_ok(data, &["batch", "run"]);
    copy.restore();
    run_ok(data, &["speed", "--until-caught-up"]);
    run_ok(data, &["batch", "run"]);
    let world = World::open(data).await;
    assert_eq!(fetch_total(&world).await, 100);
    let served = world.serve().await;
    let day = "/api/v1/stats/plays/total?track_id=10&from=2026-03-10&to=2026-03-11";
    assert_eq!(served.client.fetch_json(day).await["count"], 50);
    served.end().await;
}

/// Without the table's own result, a run deletes rows that the new result lacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_missing_result_are_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    count_and_run_in_processes(data, &plays("a", 40));
    let archive = data.join("archive/results/plays/views");
    for manifest in list_files(&archive) {
        std::fs::write(manifest, "{").expect("a damaged manifest");
    }
    // A row without events.
    let world = World::open(data).await;
    let views = &world.stores.views;
    let stored = views.results(Source::Plays).await.expect("results");
    let (view, _) = stored
        .iter()
        .find(|(view, _)| view.starts_with("plays_track_all"))
        .expect("the view");
    let results = BTreeMap::from([(view.clone(), "lost".to_owned())]);
    let stamp = views
        .begin_publishing(Source::Plays, 1, &results, NOW_MS)
        .await;
    let extra = NewRows {
        partitions: BinaryArray::from_vec(vec![&AggregateShape::encode_partition_key(0, &[1])]),
        rows: BinaryArray::from_vec(vec![b"extra"]),
        counts: Int64Array::from(vec![7]),
    };
    let stamp_us = stamp.expect("a stamp");
    let written = views
        .publish(Source::Plays, view, 1, stamp_us, &extra)
        .await;
    written.expect("a row");
    let query = PartitionQuery {
        partition: AggregateShape::encode_partition_key(0, &[1]),
        range: (Vec::new(), None),
    };
    let count = async || {
        let rows = views
            .rows(view, std::slice::from_ref(&query))
            .await
            .expect("rows");
        let counts = rows.expect("a table").counts;
        counts.iter().next().expect("a row")
    };
    assert_eq!(count().await, Some(7));
    count_and_run(&world, "b", 10).await.expect("a run");
    assert_eq!(count().await, None);
    assert_eq!(fetch_total(&world).await, 50);
}

/// The run records are replaced by a copy older than the results; then a run is interrupted while
/// it publishes, and repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_continue_from_a_copy_of_the_run_records() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let count = |name: &str| count_and_run_in_processes(data, &plays(name, 40));
    count("a");
    let copy = FileCopies::read(data, "views.db");
    for name in ["b", "c", "d"] {
        count(name);
    }
    copy.restore();
    let world = World::open(data).await;
    world.ingest(&plays("e", 40)).await;
    world.catch_up().await;
    for _ in 0..3 {
        let stop = CancellationToken::new();
        let progress = cancel_at("publish", &stop);
        let batch = world.batch();
        let result = batch
            .run(Source::Plays, &RunRequest::default(), &progress, &stop)
            .await;
        assert!(matches!(result, Err(batch::Error::Stopped)), "{result:?}");
        assert_eq!(fetch_total(&world).await, 200);
    }
    let report = world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!(report.epoch, 2);
    assert_eq!(fetch_total(&world).await, 200);
    count_and_run(&world, "f", 1).await.expect("a run");
    assert_eq!(fetch_total(&world).await, 201);
}

/// After repeated runs of a single job, the next run still knows the published state of all jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_job_runs_keep_the_next_run_incremental() {
    let world = World::new().await;
    let earlier = json!({"event_id": "x", "track_id": 11, "owner_id": 2, "kind": "play", "at": "2026-02-01T10:00:00Z"});
    world.ingest(&[earlier.to_string()]).await;
    count_and_run(&world, "a", 40).await.expect("a run");
    let single_job = RunRequest {
        jobs: vec!["plays_detail".to_owned()],
        ..RunRequest::default()
    };
    for _ in 0..3 {
        world.run(&single_job).await.expect("a run");
    }
    world.ingest(&plays("b", 1)).await;
    world.catch_up().await;
    let report = world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!((report.full, report.rows_read), (false, 41), "{report:?}");
}

/// The archiver writes a file once enough events are available, not for each event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_continuous_archiver_batches_events() {
    let mut world = World::new().await;
    world.batch_options.archive_wait_ms = 3_600_000;
    world.ingest(&plays("a", 10)).await;
    let stop = CancellationToken::new();
    let batch = world.batch();
    let archiving = batch.archive(Source::Plays, false, stop.clone());
    let feeding = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let data = world.path().join("archive/archive");
        let early_files = if data.exists() {
            list_files(&data)
        } else {
            Vec::new()
        };
        world.ingest(&plays("b", 100)).await;
        let checker = world.batch();
        let archived = async || {
            let checked = checker.check_archive(Source::Plays).await;
            checked.expect("the archive").1
        };
        let started = Instant::now();
        while archived().await < 110 {
            assert!(
                started.elapsed() < Duration::from_secs(120),
                "they are not archived"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        stop.cancel();
        early_files
    };
    let (report, early_files) = tokio::join!(archiving, feeding);
    assert_eq!(early_files, [""; 0], "ten events are not enough for a file");
    assert_eq!(report.expect("archiving").events, 110);
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!(fetch_total(&world).await, 110);
}

/// Returns the built-in views, one of which counts twice.
fn wrong_catalog() -> Catalog {
    let folder = tempfile::tempdir().expect("a folder");
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../jobs/views");
    for file in list_files(&built_in) {
        let target = folder
            .path()
            .join(Path::new(&file).strip_prefix(&built_in).expect("below"));
        std::fs::create_dir_all(target.parent().expect("a folder")).expect("a folder");
        let mut text = std::fs::read_to_string(&file).expect("a definition");
        if file.ends_with("plays_owner_day/query.sql") {
            assert!(text.contains("sum("), "{text}");
            text = text.replace("sum(", "2 * sum(");
        }
        std::fs::write(target, text).expect("a definition");
    }
    Catalog::read(folder.path()).expect("definitions")
}

/// A failed check leaves no files, also after several attempts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_fails_its_check_leaves_no_files() {
    let world = World::new().await;
    count_and_run(&world, "a", 60).await.expect("a run");
    let results = world.path().join("archive/results");
    let files_before = list_files(&results);
    world.ingest(&plays("b", 60)).await;
    world.catch_up().await;
    let wrong = world.with_catalog(wrong_catalog());
    for _ in 0..3 {
        let failed = wrong.run(&RunRequest::default()).await;
        let failed = failed.expect_err("a wrong view").to_string();
        assert!(failed.contains("adds up to"), "{failed}");
        assert_eq!(list_files(&results), files_before);
    }
    assert_eq!(fetch_total(&world).await, 120);
    let served = world.serve().await;
    let runs = served.client.fetch_json("/api/v1/batch/runs").await;
    let newest = &runs["runs"][0];
    let reason = newest["reason"].as_str().expect("a reason");
    assert!(reason.contains("adds up to"), "{newest}");
    let to_do = newest["to_do"].as_str().expect("what to do");
    assert!(to_do.contains("batch run"), "{newest}");
    // A single job cannot be added to the run before the failed ones, and fails at once.
    let single_job = RunRequest {
        jobs: vec!["plays_detail".to_owned()],
        ..RunRequest::default()
    };
    let refused = world
        .run(&single_job)
        .await
        .expect_err("a run failed")
        .to_string();
    assert!(refused.contains("run 4 failed its check"), "{refused}");
    let report = world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!(report.epoch, 5);
    assert_eq!(fetch_total(&world).await, 120);
    let runs = served.client.fetch_json("/api/v1/batch/runs").await;
    let reason_and_action = |index: usize| {
        (
            &runs["runs"][index]["reason"],
            &runs["runs"][index]["to_do"],
        )
    };
    assert_eq!(reason_and_action(0), (&Value::Null, &Value::Null));
    assert!(
        reason_and_action(1).0.is_string() && reason_and_action(1).1.is_null(),
        "a later run covers it: {runs}"
    );
    served.end().await;
}

/// The archiver deletes unlisted files that a killed one left, but only below the next file number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leftovers_of_a_killed_archiver_are_deleted() {
    let world = World::new().await;
    count_and_run(&world, "a", 60).await.expect("a run");
    let data = world.path().join("archive/archive/plays/files");
    let files_before = list_files(&data);
    for seq in [0, 999] {
        std::fs::write(data.join(format!("{seq:010}-x.parquet")), b"?").expect("a file");
    }
    count_and_run(&world, "b", 1).await.expect("a run");
    let files_after = list_files(&data);
    assert!(
        files_before.iter().all(|file| files_after.contains(file)),
        "{files_after:?}"
    );
    assert!(
        !files_after
            .iter()
            .any(|file| file.ends_with("0000000000-x.parquet"))
    );
    let is_retained = files_after
        .iter()
        .any(|file| file.ends_with("0000000999-x.parquet"));
    assert!(is_retained, "another archiver may be about to list it");
}

/// A flipped bit in an archive file never changes a published number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archive_damage_is_detected() {
    let world = World::new().await;
    count_and_run(&world, "a", 50).await.expect("a run");
    let data = world.path().join("archive/archive/plays/files");
    let file = list_files(&data).into_iter().next().expect("a file");
    let original = std::fs::read(&file).expect("the file");
    let full = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    let mut detected = 0;
    for eighth in 0..8 {
        let mut damaged = original.clone();
        let index = 4 + eighth * (original.len() - 8) / 8;
        damaged[index] ^= 1 << eighth;
        std::fs::write(&file, &damaged).expect("a file");
        if let Err(error) = world.run(&full).await {
            let text = error.to_string();
            assert!(
                text.contains(".parquet") && text.contains("Restore"),
                "{text}"
            );
            detected += 1;
        }
        assert_eq!(fetch_total(&world).await, 50);
    }
    assert!(detected >= 4, "only {detected} of 8 flips were detected");
    std::fs::write(&file, &original).expect("a file");
    world.run(&full).await.expect("a run");
    assert_eq!(fetch_total(&world).await, 50);
}

/// Ends the epoch in every partition and proposes a run with cuts that are `extra` records
/// further.
async fn propose(world: &World, extra: i64) {
    let mut cuts = Vec::new();
    for partition in 0..PARTITIONS {
        let partition_id = PartitionId {
            source: Source::Plays,
            partition,
        };
        let cut: Cut = world
            .stores
            .live
            .end_epoch(partition_id, 1)
            .await
            .expect("the end of an epoch")
            .expect("a cut");
        let next_offset = cut.next_offset + extra;
        cuts.push(Cut { next_offset, ..cut });
    }
    let views = &world.stores.views;
    let proposed = views.propose(Source::Plays, 1, &cuts, "t", NOW_MS).await;
    proposed.expect("a proposal");
}

/// Records below the cut of a sealed run are lost: the speed layer fails instead of waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_ends_before_a_sealed_cut_is_an_error() {
    let world = World::new().await;
    world.ingest(&plays("a", 20)).await;
    world.catch_up().await;
    propose(&world, 5).await;
    world
        .stores
        .views
        .seal(Source::Plays, 1, "t")
        .await
        .expect("sealed");
    world.delete_live_state();
    let speed = world.speed().await;
    let stopped = speed.run(true, CancellationToken::new()).await;
    let stopped = stopped.expect_err("records are gone").to_string();
    assert!(stopped.contains("records were lost"), "{stopped}");
}

/// A run was interrupted after it proposed cuts that live state no longer has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_an_abandoned_run_ends() {
    let world = World::new().await;
    world.ingest(&plays("a", 20)).await;
    world.catch_up().await;
    propose(&world, 0).await;
    world.delete_live_state();
    // Live state starts a new generation without the end of the epoch, and advances before the
    // worker reads the run.
    for partition in 0..PARTITIONS {
        let partition_id = PartitionId {
            source: Source::Plays,
            partition,
        };
        let start = schemas::seam::Runs::default().generation_start(0, 0, 1);
        let live = &world.stores.live;
        live.rebuild(partition_id, None, &start)
            .await
            .expect("a store")
            .expect("rebuilt");
        let rebuilt = schemas::seam::PartitionState::new_generation(1, &start);
        let later = Cut {
            next_offset: 100,
            last: None,
        };
        let applied = live
            .apply(
                partition_id,
                rebuilt.checkpoint(),
                later,
                &[],
                &stores::live::Changes::default(),
            )
            .await;
        applied.expect("a store").expect("applied");
    }
    let started = Instant::now();
    let speed = world.speed().await;
    let stopped = speed.run(true, CancellationToken::new()).await;
    let stopped = stopped.expect_err("an unfinished run").to_string();
    assert!(stopped.contains("backstitch batch run"), "{stopped}");
    assert!(started.elapsed().as_secs() < 60);
}
