//! The Reconciler on counts: consistent views show no differences, also during ingestion. Each kind
//! of damage is found, classified and repaired, and a second repair changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::array::{BinaryArray, Int64Array};
use batch::{Progress, ReconcileCause, ReconcileReport, ReconcileRequest, RunRequest};
use schemas::source::Source;
use serde_json::json;
use stores::archive::Archive;
use stores::view_scan::{ScanShare, ScannedRows};
use stores::views::{AggregateShape, NewRows};
use tests::stages::{StageCallback, cancel_at, wait_for};
use tests::world::{NOW_MS, World};
use tokio_util::sync::CancellationToken;

/// Plays with consecutive ids from `first` on, and late events, corrections and missing values
/// among them.
pub(super) fn plays(first: u64, count: u64) -> Vec<String> {
    let play = |n: u64| {
        let draw = |below: u64, salt: u64| {
            let mut x = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                ^ salt.wrapping_mul(0xff51_afd7_ed55_8ccd);
            x ^= x >> 33;
            x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
            (x >> 29) % below
        };
        let country = ["SE", "DE", "US"].get(usize::try_from(draw(4, 1)).expect("small"));
        json!({
            "event_id": format!("p{n}"),
            "owner_id": 1 + draw(3, 2),
            "track_id": 10 + draw(5, 3),
            "listener_id": (draw(4, 4) > 0).then(|| 100 + draw(9, 5)),
            "country": country,
            "referrer": (draw(3, 6) == 0).then_some("search"),
            "app_id": (draw(2, 7) == 0).then(|| 7 + draw(2, 8)),
            "kind": if draw(5, 9) == 0 { "download" } else { "play" },
            "amount": if draw(12, 10) == 0 { -1 } else { 1 },
            "at": format!("2026-{:02}-{:02}T{:02}:{:02}:00Z", 1 + draw(3, 11), 1 + draw(4, 12), draw(24, 13), draw(60, 14)),
        })
        .to_string()
    };
    (first..first + count).map(play).collect()
}

pub(super) fn request_for(view: &str) -> ReconcileRequest {
    ReconcileRequest {
        view: view.to_owned(),
        limit: 100,
        ..ReconcileRequest::default()
    }
}

pub(super) fn applying_request(view: &str) -> ReconcileRequest {
    ReconcileRequest {
        apply: true,
        ..request_for(view)
    }
}

pub(super) async fn restore(
    world: &World,
    request: &ReconcileRequest,
) -> batch::Result<ReconcileReport> {
    let stop = CancellationToken::new();
    let intake = world.intake(Source::Plays).await;
    world.batch().restore(request, &intake, (&(), &stop)).await
}

async fn repair(world: &World, view: &str) -> ReconcileReport {
    let result = restore(world, &applying_request(view)).await;
    result.expect("restoring")
}

/// Checks some views that cover most columns.
pub(super) async fn assert_main_views_match(world: &World) {
    assert_views_match(
        world,
        &[
            "plays_detail",
            "plays_owner_day_track",
            "plays_track_day_uniques",
        ],
    )
    .await;
}

/// Compares views and checks that nothing differs.
pub(super) async fn assert_views_match(world: &World, views: &[&str]) {
    for view in views {
        let report = restore(world, &request_for(view)).await.expect("comparing");
        assert_eq!((report.differ, report.ahead), (0, 0), "{report:#?}");
        assert_eq!(report.live_unknown, None, "{report:#?}");
        assert!(report.keys > 0, "{report:#?}");
    }
}

/// Ingests and counts plays, with a batch run in between.
pub(super) async fn populate(world: &World) {
    world.ingest(&plays(0, 120)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    // Repeats events within the deduplication window: each counts once.
    world.ingest(&plays(100, 60)).await;
    world.catch_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consistent_views_have_no_differences() {
    let world = World::new().await;
    let error = restore(&world, &request_for("plays_owner_day")).await;
    let error = error.expect_err("nothing to compare").to_string();
    assert!(
        error.contains("backstitch ingest") || error.contains("batch run"),
        "{error}"
    );
    populate(&world).await;
    let views: Vec<&str> = world.catalog.jobs().iter().map(|job| job.name()).collect();
    assert_views_match(&world, &views).await;
    // Also after a run that changes some rows, without live counts.
    world.run(&RunRequest::default()).await.expect("a run");
    assert_main_views_match(&world).await;
}

/// Ingests events during the scan of live state, at most five times.
#[derive(Debug)]
pub(super) struct IngestDuringScan {
    pub(super) world: Arc<World>,
    pub(super) is_live_stage: AtomicBool,
    pub(super) first_id: u64,
    pub(super) rounds: AtomicU64,
}

impl Progress for IngestDuringScan {
    fn stage(&self, name: &str, _: u64) {
        self.is_live_stage.store(name == "live", Ordering::Relaxed);
    }

    fn advance(&self, _: u64) {
        if !self.is_live_stage.load(Ordering::Relaxed) || self.rounds.load(Ordering::Relaxed) == 5 {
            return;
        }
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        let ingest = async {
            // The ranges overlap, so some events repeat.
            self.world
                .ingest(&plays(self.first_id + 7 * round, 11))
                .await;
            self.world.catch_up().await;
        };
        wait_for(ingest);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_during_a_comparison_cause_no_differences() {
    let world = Arc::new(World::new().await);
    populate(&world).await;
    for (first_id, view) in [
        (1_000, "plays_detail"),
        (2_000, "plays_track_month"),
        (3_000, "plays_owner_day_uniques"),
    ] {
        let ingesting = IngestDuringScan {
            world: Arc::clone(&world),
            is_live_stage: AtomicBool::new(false),
            first_id,
            rounds: AtomicU64::new(0),
        };
        let stop = CancellationToken::new();
        let batch = world.batch();
        let intake = world.intake(Source::Plays).await;
        let report = batch
            .restore(&request_for(view), &intake, (&ingesting, &stop))
            .await;
        let report = report.expect("comparing");
        assert_eq!(
            (report.differ, &report.live_unknown),
            (0, &None),
            "{report:#?}"
        );
        assert_eq!(ingesting.rounds.load(Ordering::Relaxed), 5);
    }
}

/// Scans up to 10,000 rows of a view's table.
pub(super) async fn scan_view(world: &World, table: &str) -> ScannedRows {
    let views = &world.stores.views;
    let page = views.scan_rows(table, ScanShare::ALL, None, 10_000).await;
    page.expect("rows").expect("a table")
}

/// Writes rows past the batch layer.
pub(super) async fn write_rows(world: &World, table: &str, rows: &NewRows) {
    use std::collections::BTreeMap;
    let views = &world.stores.views;
    let epoch = views
        .runs(Source::Plays)
        .await
        .expect("runs")
        .runs
        .newest_complete();
    let stamp = views
        .begin_publishing(Source::Plays, epoch, &BTreeMap::new(), NOW_MS)
        .await
        .expect("a stamp");
    let written = views
        .publish(Source::Plays, table, epoch, stamp, rows)
        .await;
    written.expect("writing");
}

/// One row of a page with another count.
pub(super) fn one_row(page: &ScannedRows, row: usize, count: Option<i64>) -> NewRows {
    new_row(page.partitions.value(row), page.rows.value(row), count)
}

fn new_row(partition: &[u8], row: &[u8], count: Option<i64>) -> NewRows {
    NewRows {
        partitions: BinaryArray::from_iter_values([partition]),
        rows: BinaryArray::from_iter_values([row]),
        counts: Int64Array::from(vec![count]),
    }
}

async fn repair_rows(world: &World) {
    populate(world).await;
    let view = "plays_owner_day_track";
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    let page = scan_view(world, &table).await;
    let original = page.counts.value(0);
    for (count, cause) in [
        (Some(original + 5), ReconcileCause::ChangedRow),
        (None, ReconcileCause::MissingRow),
    ] {
        write_rows(world, &table, &one_row(&page, 0, count)).await;
        let report = restore(world, &request_for(view)).await.expect("comparing");
        assert_eq!(report.differ, 1, "{report:#?}");
        let difference = &report.differences[0];
        assert_eq!(
            (difference.cause, difference.stored),
            (cause, count),
            "{report:#?}"
        );
        assert_eq!(
            difference.difference,
            original - count.unwrap_or(0),
            "{report:#?}"
        );
        assert!(
            difference.bucket.is_some() && difference.key.contains_key("owner_id"),
            "{difference:?}"
        );
        // Neither an incremental nor a full run would rewrite the row, since its result did not
        // change.
        let report = repair(world, view).await;
        let applied = report.applied.as_ref().expect("it was applied");
        assert_eq!(
            (report.differ, applied.rows, applied.run),
            (1, 1, None),
            "{report:#?}"
        );
        let restorations = world.batch().restorations(Source::Plays).await;
        let restorations = restorations.expect("a list");
        let newest = restorations.last().expect("one");
        assert_eq!(Some(newest.restoration.number), applied.restoration);
        let is_done = newest.done_until.is_some();
        assert_eq!((newest.restoration.changes, is_done), (1, true));
        let second = repair(world, view).await;
        let applied = second.applied.as_ref().expect("it was applied");
        assert_eq!(
            (second.differ, applied.rows, applied.restoration),
            (0, 0, None),
            "{second:#?}"
        );
    }
    // A row without events: another day of the same owner.
    let job = Arc::clone(world.catalog.job(view).expect("the job"));
    let mut values = job.row().decode_values(page.rows.value(0)).expect("a key");
    values[0] = schemas::key::KeyValue::Time(1_772_236_800);
    let invented = job.row().encode_values(&values).expect("a key");
    let group = page.partitions.value(0)[8..].to_vec();
    let partition =
        AggregateShape::encode_partition_key(job.table_partition().floor(1_772_236_800), &group);
    write_rows(world, &table, &new_row(&partition, &invented, Some(9))).await;
    let report = repair(world, view).await;
    let difference = &report.differences[0];
    assert_eq!(
        (difference.cause, difference.difference),
        (ReconcileCause::ExtraRow, -9),
        "{report:#?}"
    );
    assert_main_views_match(world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_rows_are_repaired() {
    repair_rows(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_rows_are_repaired_on_servers() {
    repair_rows(&World::on_servers().await).await;
}

/// The Reconciler deletes only misplaced and unreadable rows. `counts_of` returns the counts to
/// test for a case: on servers a single count, since a comparison takes seconds there.
async fn delete_invalid_rows(world: &World, counts_of: fn(usize) -> Vec<Option<i64>>) {
    populate(world).await;
    let view = "plays_owner_day_track";
    let job = Arc::clone(world.catalog.job(view).expect("the job"));
    let table = job.view().to_owned();
    let page = scan_view(world, &table).await;
    let (partition, row) = (page.partitions.value(0), page.rows.value(0));
    let (time, group) = AggregateShape::split_partition_key(partition).expect("a partition");
    let elsewhere = AggregateShape::encode_partition_key(time + 40 * 86_400, group);
    let truncated = &row[..row.len() - 1];
    let cases: [(&[u8], &[u8], ReconcileCause); 5] = [
        (&elsewhere, row, ReconcileCause::MisplacedRow),
        (partition, truncated, ReconcileCause::UnreadableRow),
        (partition, b"", ReconcileCause::UnreadableRow),
        (
            &partition[..partition.len() - 1],
            row,
            ReconcileCause::UnreadableRow,
        ),
        (b"x", row, ReconcileCause::UnreadableRow),
    ];
    let mut owner = request_for(view);
    owner
        .keys
        .insert("owner_id".to_owned(), vec!["4711".to_owned()]);
    for (case, (partition, row, cause)) in cases.into_iter().enumerate() {
        for count in counts_of(case) {
            write_rows(world, &table, &new_row(partition, row, count)).await;
            let report = restore(world, &request_for(view)).await.expect("comparing");
            assert_eq!(report.differ, 1, "{report:#?}");
            let difference = &report.differences[0];
            let counted = count.unwrap_or(0);
            assert_eq!(
                (difference.cause, difference.stored, difference.difference),
                (cause, Some(counted), -counted),
                "{report:#?}"
            );
            let is_readable = cause == ReconcileCause::MisplacedRow;
            let has_key = |name: &str| difference.key.contains_key(name);
            assert_eq!(has_key("partition"), is_readable, "{difference:?}");
            assert_eq!(has_key("part"), !is_readable, "{difference:?}");
            // An unreadable row may belong to any key.
            let filtered = restore(world, &owner).await.expect("comparing");
            assert_eq!(filtered.differ, u64::from(!is_readable), "{filtered:#?}");

            let report = repair(world, view).await;
            let applied = report.applied.as_ref().expect("it was applied");
            assert_eq!(
                (report.differ, applied.rows, applied.deleted),
                (1, 0, 1),
                "{report:#?}"
            );
            let second = repair(world, view).await;
            let applied = second.applied.as_ref().expect("it was applied");
            assert_eq!(
                (second.differ, applied.deleted, applied.restoration),
                (0, 0, None),
                "{second:#?}"
            );
            assert_eq!(scan_view(world, &table).await.counts, page.counts);
        }
    }
    assert_main_views_match(world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misplaced_and_unreadable_rows_are_deleted() {
    delete_invalid_rows(&World::new().await, |_| vec![Some(7), None]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misplaced_and_unreadable_rows_are_deleted_on_servers() {
    let counts_of = |case: usize| vec![case.is_multiple_of(2).then_some(7)];
    delete_invalid_rows(&World::on_servers().await, counts_of).await;
}

/// A row that was moved to another partition is missing from its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_row_is_two_differences() {
    let world = World::new().await;
    populate(&world).await;
    let view = "plays_owner_day_track";
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    let page = scan_view(&world, &table).await;
    let (time, group) =
        AggregateShape::split_partition_key(page.partitions.value(0)).expect("a partition");
    let elsewhere = AggregateShape::encode_partition_key(time + 40 * 86_400, group);
    let moved = NewRows {
        partitions: BinaryArray::from_iter_values([elsewhere]),
        ..one_row(&page, 0, Some(page.counts.value(0)))
    };
    write_rows(&world, &table, &moved).await;
    write_rows(&world, &table, &one_row(&page, 0, None)).await;
    let report = repair(&world, view).await;
    let causes: Vec<ReconcileCause> = report.causes.keys().copied().collect();
    assert_eq!(
        causes,
        [ReconcileCause::MissingRow, ReconcileCause::MisplacedRow],
        "{report:#?}"
    );
    let applied = report.applied.expect("it was applied");
    assert_eq!((applied.rows, applied.deleted), (1, 1));
    assert_views_match(&world, &[view]).await;
}

async fn repair_live_state(world: &World) {
    populate(world).await;
    let view = "plays_detail";
    for change in [-1_000, 7] {
        world
            .ingest(&plays(
                5_000 + u64::try_from(change + 1_000).expect("positive"),
                9,
            ))
            .await;
        world.catch_up().await;
        crate::drift::add_to_live_row(world, view, change).await;
        let report = restore(world, &request_for(view)).await.expect("comparing");
        assert_eq!(
            (report.differ, report.differences[0].difference),
            (1, -change),
            "{report:#?}"
        );
        let cause = report.differences[0].cause;
        let causes = [ReconcileCause::LostLive, ReconcileCause::Unexplained];
        assert!(causes.contains(&cause), "{report:#?}");
        let report = repair(world, view).await;
        let applied = report.applied.expect("it was applied");
        assert!(applied.run.is_some() && applied.rows == 0, "{applied:?}");
        assert_main_views_match(world).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_live_state_is_repaired() {
    repair_live_state(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_live_state_is_repaired_on_servers() {
    repair_live_state(&World::on_servers().await).await;
}

/// An event repeated after the deduplication window counts twice until the next run, and is
/// reported as a duplicate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_after_the_window_is_reported() {
    let world = World::new().await;
    populate(&world).await;
    world.clock.set_ms(NOW_MS + 2 * 3_600_000);
    world.ingest(&plays(3, 1)).await;
    world.catch_up().await;
    let report = restore(&world, &request_for("plays_owner_day"))
        .await
        .expect("comparing");
    assert_eq!(report.differ, 1, "{report:#?}");
    assert_eq!(
        report.differences[0].cause,
        ReconcileCause::Duplicate,
        "{report:#?}"
    );
    repair(&world, "plays_owner_day").await;
    assert_main_views_match(&world).await;
}

/// Leftovers of interrupted runs do not prevent a repair.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_repaired_after_interrupted_runs() {
    let world = World::new().await;
    populate(&world).await;
    let view = "plays_owner_day_track";
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    for (number, stage) in (0..).zip(["seal", "archive", "compute"]) {
        let page = scan_view(&world, &table).await;
        let count = page.counts.value(0) + 5;
        write_rows(&world, &table, &one_row(&page, 0, Some(count))).await;
        world.ingest(&plays(3_000 + 20 * number, 20)).await;
        let stop = CancellationToken::new();
        let progress = cancel_at(stage, &stop);
        let (batch, request) = (world.batch(), RunRequest::default());
        let result = batch.run(Source::Plays, &request, &progress, &stop).await;
        result.expect_err("it was interrupted");
        let report = repair(&world, view).await;
        assert!(report.applied.is_some(), "{report:#?}");
        assert_views_match(&world, &[view]).await;
    }
}

async fn list_files(archive: &Archive) -> Vec<String> {
    let files = archive.list("archive/plays/files").await.expect("files");
    assert!(files.len() > 2, "{files:?}");
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archive_files_are_rebuilt_from_the_log() {
    let world = World::new().await;
    populate(&world).await;
    let archive = &world.stores.archive;
    let files = list_files(archive).await;
    let (missing, damaged) = (&files[0], &files[1]);
    let original = archive
        .get(missing)
        .await
        .expect("reading")
        .expect("a file");
    archive.delete(missing).await.expect("deleting");
    let mut bytes = archive
        .get(damaged)
        .await
        .expect("reading")
        .expect("a file")
        .to_vec();
    bytes[100] ^= 1;
    archive.put(damaged, bytes.into()).await.expect("writing");
    for path in [missing, damaged] {
        let error = restore(&world, &request_for("plays_detail"))
            .await
            .expect_err("a file is wrong");
        assert!(error.to_string().contains(path.as_str()), "{error}");
        if path == missing {
            archive
                .put(missing, original.clone())
                .await
                .expect("writing");
        }
    }
    archive.delete(missing).await.expect("deleting");
    let report = repair(&world, "plays_detail").await;
    let mut files = report.applied.expect("it was applied").files;
    files.sort_unstable();
    assert_eq!(files, [missing.clone(), damaged.clone()]);
    assert_main_views_match(&world).await;
    let full = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    world.run(&full).await.expect("a full run");
    assert_main_views_match(&world).await;
}

/// Also rebuilds a file without records of a partition, whose end is in the file before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_one_partition_is_rebuilt() {
    let world = World::new().await;
    populate(&world).await;
    world.run(&RunRequest::default()).await.expect("a run");
    let archive = &world.stores.archive;
    let old_files = list_files(archive).await;
    let lines = plays(7_000, 30).into_iter();
    let lines: Vec<String> = lines
        .filter(|line| line.contains("\"owner_id\":1,"))
        .collect();
    assert!(!lines.is_empty());
    world.ingest(&lines).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    let mut new_files = list_files(archive).await;
    new_files.retain(|path| !old_files.contains(path));
    for path in &new_files {
        archive.delete(path).await.expect("deleting");
    }
    let report = restore(&world, &applying_request("plays_owner_day")).await;
    let applied = report.expect("restoring").applied;
    assert_eq!(applied.expect("it was applied").files, new_files);
    assert_views_match(&world, &["plays_owner_day"]).await;
}

/// A comparison ignores the rows of a run that was interrupted while publishing, and warns.
/// Applying completes the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_published_run_is_completed() {
    let world = Arc::new(World::new().await);
    populate(&world).await;
    let stop = CancellationToken::new();
    let progress = cancel_at("publish", &stop);
    let (batch, request) = (world.batch(), RunRequest::default());
    let result = batch.run(Source::Plays, &request, &progress, &stop).await;
    result.expect_err("it was interrupted");
    let report = restore(&world, &request_for("plays_detail"))
        .await
        .expect("comparing");
    assert!(
        report.warnings[0].contains("is not complete"),
        "{report:#?}"
    );
    assert_eq!(report.differ, 0, "{report:#?}");
    let report = repair(&world, "plays_detail").await;
    assert_eq!(
        (report.epoch, report.ahead, report.differ),
        (2, 0, 0),
        "{report:#?}"
    );
    assert_eq!(report.warnings, Vec::<String>::new());
    assert_main_views_match(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_times_select_rows() {
    let world = World::new().await;
    populate(&world).await;
    let unfiltered = restore(&world, &request_for("plays_owner_day"))
        .await
        .expect("comparing");
    let mut keys = 0;
    for owner in ["1", "2", "3"] {
        let mut request = request_for("plays_owner_day");
        request
            .keys
            .insert("owner_id".to_owned(), vec![owner.to_owned()]);
        keys += restore(&world, &request).await.expect("comparing").keys;
    }
    assert_eq!(keys, unfiltered.keys);
    let february = 1_769_904_000;
    let (early, late) = (
        ReconcileRequest {
            to: Some(february),
            ..request_for("plays_owner_day")
        },
        ReconcileRequest {
            from: Some(february),
            ..request_for("plays_owner_day")
        },
    );
    let early = restore(&world, &early).await.expect("comparing");
    let late = restore(&world, &late).await.expect("comparing");
    assert_eq!((early.differ, late.differ), (0, 0));
    assert_eq!(early.keys + late.keys, unfiltered.keys);
    assert!(early.keys > 0 && late.keys > 0);
    let sampled = ReconcileRequest {
        sample: Some(0.5),
        ..request_for("plays_detail")
    };
    let detail = restore(&world, &request_for("plays_detail"))
        .await
        .expect("comparing");
    let sampled = restore(&world, &sampled).await.expect("comparing");
    assert_eq!(sampled.differ, 0);
    assert!(
        sampled.keys > 0 && sampled.keys < detail.keys,
        "{sampled:#?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_requests_are_rejected() {
    let world = World::new().await;
    populate(&world).await;
    let changed = |change: &dyn Fn(&mut ReconcileRequest), view: &str| {
        let mut request = request_for(view);
        change(&mut request);
        request
    };
    for (request, text) in [
        (changed(&|_| {}, "nothing"), "plays_owner_day"),
        (
            changed(&|r| r.from = Some(0), "plays_owner_all"),
            "all time",
        ),
        (
            changed(&|r| r.sample = Some(0.0), "plays_owner_day"),
            "above 0",
        ),
        (
            changed(
                &|r| {
                    drop(
                        r.keys
                            .insert("listener_id".to_owned(), vec!["1".to_owned()]),
                    )
                },
                "plays_owner_day",
            ),
            "no column with this name",
        ),
        (
            changed(
                &|r| drop(r.keys.insert("owner_id".to_owned(), vec!["x".to_owned()])),
                "plays_owner_day",
            ),
            "expected an integer",
        ),
    ] {
        let error = restore(&world, &request).await.expect_err(text).to_string();
        assert!(error.contains(text), "{error}");
    }
}

/// A second repair during the first fails as busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_concurrent_repair_is_rejected() {
    let world = Arc::new(World::new().await);
    populate(&world).await;
    let refused = AtomicU64::new(0);
    // Starts another repair during this one.
    let progress = StageCallback(|name: &str| {
        if name == "rows" {
            let error = wait_for(restore(&world, &request_for("plays_owner_day")));
            assert!(matches!(error, Err(batch::Error::Busy(_))), "{error:?}");
            refused.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (batch, intake) = (world.batch(), world.intake(Source::Plays).await);
    let stop = CancellationToken::new();
    let request = applying_request("plays_detail");
    let result = batch.restore(&request, &intake, (&progress, &stop)).await;
    result.expect("the first repair");
    assert_eq!(refused.load(Ordering::Relaxed), 1);
    assert_main_views_match(&world).await;
}
