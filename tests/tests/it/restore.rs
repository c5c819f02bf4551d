//! The Restorator: what is right differs nowhere, whatever moves meanwhile; each kind of damage is found, named
//! and put right, and putting it right once more changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::array::{BinaryArray, Int64Array};
use batch::{Progress, RestoreCause, RestoreReport, RestoreRequest, RunRequest};
use schemas::source::Source;
use serde_json::json;
use stores::archive::Archive;
use stores::view_scan::{ScanShare, ScannedRows};
use stores::views::{AggregateShape, NewRows};
use tests::stages::{OnStage, cancel_at, wait_for};
use tests::world::{NOW_MS, World};
use tokio_util::sync::CancellationToken;

/// Plays that are as mixed as real ones: late ones, corrections, missing values; each with its own id from `first` on.
pub(super) fn plays(first: u64, count: u64) -> Vec<String> {
    let play = |n: u64| {
        let draw = |of: u64, salt: u64| {
            let mut x = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                ^ salt.wrapping_mul(0xff51_afd7_ed55_8ccd);
            x ^= x >> 33;
            x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
            (x >> 29) % of
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

pub(super) fn of(view: &str) -> RestoreRequest {
    RestoreRequest {
        view: view.to_owned(),
        limit: 100,
        ..RestoreRequest::default()
    }
}

pub(super) fn applied(view: &str) -> RestoreRequest {
    RestoreRequest {
        apply: true,
        ..of(view)
    }
}

pub(super) async fn restore(
    world: &World,
    request: &RestoreRequest,
) -> batch::Result<RestoreReport> {
    let stop = CancellationToken::new();
    let intake = world.intake(Source::Plays).await;
    world.batch().restore(request, &intake, (&(), &stop)).await
}

/// Nothing differs in some views that see most.
pub(super) async fn all_is_right(world: &World) {
    these_are_right(
        world,
        &[
            "plays_detail",
            "plays_owner_day_track",
            "plays_track_day_uniques",
        ],
    )
    .await;
}

pub(super) async fn these_are_right(world: &World, views: &[&str]) {
    for view in views {
        let report = restore(world, &of(view)).await.expect("comparing");
        assert_eq!((report.differ, report.ahead), (0, 0), "{report:#?}");
        assert_eq!(report.live_unknown, None, "{report:#?}");
        assert!(report.keys > 0, "{report:#?}");
    }
}

pub(super) async fn lived_in(world: &World) {
    world.ingest(&plays(0, 120)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    // Within the window, so it counts once everywhere.
    world.ingest(&plays(100, 60)).await;
    world.catch_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_right_differs_nowhere() {
    let world = World::new().await;
    let none = restore(&world, &of("plays_owner_day")).await;
    let none = none.expect_err("nothing to compare").to_string();
    assert!(
        none.contains("backstitch ingest") || none.contains("batch run"),
        "{none}"
    );
    lived_in(&world).await;
    let views: Vec<&str> = world.catalog.jobs().iter().map(|job| job.name()).collect();
    these_are_right(&world, &views).await;
    // And after a run that changes some, with nothing live.
    world.run(&RunRequest::default()).await.expect("a run");
    all_is_right(&world).await;
}

/// Lets events come while live state is read, a few times.
#[derive(Debug)]
pub(super) struct Moving {
    pub(super) world: Arc<World>,
    pub(super) is_live: AtomicBool,
    pub(super) first: u64,
    pub(super) moved: AtomicU64,
}

impl Progress for Moving {
    fn stage(&self, name: &str, _: u64) {
        self.is_live.store(name == "live", Ordering::Relaxed);
    }

    fn advance(&self, _: u64) {
        if !self.is_live.load(Ordering::Relaxed) || self.moved.load(Ordering::Relaxed) == 5 {
            return;
        }
        let moved = self.moved.fetch_add(1, Ordering::Relaxed);
        let more = async {
            // Some of them come twice.
            self.world.ingest(&plays(self.first + 7 * moved, 11)).await;
            self.world.catch_up().await;
        };
        wait_for(more);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_moves_while_it_is_compared_is_right_too() {
    let world = Arc::new(World::new().await);
    lived_in(&world).await;
    for (first, view) in [
        (1_000, "plays_detail"),
        (2_000, "plays_track_month"),
        (3_000, "plays_owner_day_uniques"),
    ] {
        let moving = Moving {
            world: Arc::clone(&world),
            is_live: AtomicBool::new(false),
            first,
            moved: AtomicU64::new(0),
        };
        let stop = CancellationToken::new();
        let batch = world.batch();
        let intake = world.intake(Source::Plays).await;
        let report = batch.restore(&of(view), &intake, (&moving, &stop)).await;
        let report = report.expect("comparing");
        assert_eq!(
            (report.differ, &report.live_unknown),
            (0, &None),
            "{report:#?}"
        );
        assert_eq!(moving.moved.load(Ordering::Relaxed), 5, "it moved");
    }
}

pub(super) async fn rows_of(world: &World, table: &str) -> ScannedRows {
    let views = &world.stores.views;
    let page = views.scan_rows(table, ScanShare::ALL, None, 10_000).await;
    page.expect("rows").expect("a table")
}

/// Somebody writes rows by hand.
pub(super) async fn write(world: &World, table: &str, rows: &NewRows) {
    use std::collections::BTreeMap;
    let views = &world.stores.views;
    let epoch = views.runs(Source::Plays).await.expect("runs").runs.newest();
    let stamp = views
        .begin_publishing(Source::Plays, epoch, &BTreeMap::new(), NOW_MS)
        .await
        .expect("a stamp");
    let written = views
        .publish(Source::Plays, table, epoch, stamp, rows)
        .await;
    written.expect("writing");
}

pub(super) fn one_row(page: &ScannedRows, row: usize, count: Option<i64>) -> NewRows {
    NewRows {
        partitions: BinaryArray::from_iter_values([page.partitions.value(row)]),
        rows: BinaryArray::from_iter_values([page.rows.value(row)]),
        counts: Int64Array::from(vec![count]),
    }
}

async fn rows_are_restored(world: &World) {
    lived_in(world).await;
    let view = "plays_owner_day_track";
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    let page = rows_of(world, &table).await;
    let was = page.counts.value(0);
    for (count, cause) in [
        (Some(was + 5), RestoreCause::ChangedRow),
        (None, RestoreCause::MissingRow),
    ] {
        write(world, &table, &one_row(&page, 0, count)).await;
        let report = restore(world, &of(view)).await.expect("comparing");
        assert_eq!(report.differ, 1, "{report:#?}");
        let one = &report.differences[0];
        assert_eq!((one.cause, one.stored), (cause, count), "{report:#?}");
        assert_eq!(one.difference, was - count.unwrap_or(0), "{report:#?}");
        assert!(
            one.bucket.is_some() && one.key.contains_key("owner_id"),
            "{one:?}"
        );
        // An incremental run does not look at it, and neither does a full one: what it computes is what it published.
        let report = restore(world, &applied(view)).await.expect("restoring");
        let done = report.applied.as_ref().expect("it was applied");
        assert_eq!(
            (report.differ, done.rows, done.run),
            (1, 1, None),
            "{report:#?}"
        );
        let recorded = world.batch().restorations(Source::Plays).await;
        let recorded = recorded.expect("a list");
        let last = recorded.last().expect("one");
        assert_eq!(Some(last.restoration.number), done.restoration);
        let is_done = last.done_until.is_some();
        assert_eq!((last.restoration.changes, is_done), (1, true));
        let again = restore(world, &applied(view)).await.expect("restoring");
        let done = again.applied.as_ref().expect("it was applied");
        assert_eq!(
            (again.differ, done.rows, done.restoration),
            (0, 0, None),
            "{again:#?}"
        );
    }
    // A row that no event gives: another day of the same owner.
    let job = Arc::clone(world.catalog.job(view).expect("the job"));
    let mut values = job.row().decode_values(page.rows.value(0)).expect("a key");
    values[0] = schemas::key::KeyValue::Time(1_772_236_800);
    let invented = job.row().encode_values(&values).expect("a key");
    let group = page.partitions.value(0)[8..].to_vec();
    let part = AggregateShape::partition_key(job.table_partition().floor(1_772_236_800), &group);
    let rows = NewRows {
        partitions: BinaryArray::from_iter_values([part]),
        rows: BinaryArray::from_iter_values([invented]),
        counts: Int64Array::from(vec![9]),
    };
    write(world, &table, &rows).await;
    let report = restore(world, &applied(view)).await.expect("restoring");
    let one = &report.differences[0];
    assert_eq!(
        (one.cause, one.difference),
        (RestoreCause::ExtraRow, -9),
        "{report:#?}"
    );
    all_is_right(world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_somebody_changed_are_restored() {
    rows_are_restored(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_somebody_changed_are_restored_on_servers() {
    rows_are_restored(&World::on_servers().await).await;
}

/// The Reconciler names and deletes rows that are where none can be, and leaves the others. `counts_of` gives the counts
/// to try at the place with a number: on servers one at each, since a comparison takes seconds there.
async fn strays_are_deleted(world: &World, counts_of: fn(usize) -> Vec<Option<i64>>) {
    lived_in(world).await;
    let view = "plays_owner_day_track";
    let job = Arc::clone(world.catalog.job(view).expect("the job"));
    let table = job.view().to_owned();
    let page = rows_of(world, &table).await;
    let (part, row) = (page.partitions.value(0), page.rows.value(0));
    let (time, group) = AggregateShape::split_partition_key(part).expect("a partition");
    let elsewhere = AggregateShape::partition_key(time + 40 * 86_400, group);
    let cut = &row[..row.len() - 1];
    let places: [(&[u8], &[u8], RestoreCause); 5] = [
        (&elsewhere, row, RestoreCause::MisplacedRow),
        (part, cut, RestoreCause::UnreadableRow),
        (part, b"", RestoreCause::UnreadableRow),
        (&part[..part.len() - 1], row, RestoreCause::UnreadableRow),
        (b"x", row, RestoreCause::UnreadableRow),
    ];
    let mut owner = of(view);
    owner
        .keys
        .insert("owner_id".to_owned(), vec!["4711".to_owned()]);
    for (place, (part, row, cause)) in places.into_iter().enumerate() {
        for count in counts_of(place) {
            let rows = NewRows {
                partitions: BinaryArray::from_iter_values([part]),
                rows: BinaryArray::from_iter_values([row]),
                counts: Int64Array::from(vec![count]),
            };
            write(world, &table, &rows).await;
            let report = restore(world, &of(view)).await.expect("comparing");
            assert_eq!(report.differ, 1, "{report:#?}");
            let one = &report.differences[0];
            let counted = count.unwrap_or(0);
            assert_eq!(
                (one.cause, one.stored, one.difference),
                (cause, Some(counted), -counted),
                "{report:#?}"
            );
            let is_readable = cause == RestoreCause::MisplacedRow;
            assert_eq!(one.key.contains_key("partition"), is_readable, "{one:?}");
            assert_eq!(one.key.contains_key("part"), !is_readable, "{one:?}");
            // What can't be read may be of any key.
            let other = restore(world, &owner).await.expect("comparing");
            assert_eq!(other.differ, u64::from(!is_readable), "{other:#?}");

            let report = restore(world, &applied(view)).await.expect("restoring");
            let done = report.applied.as_ref().expect("it was applied");
            assert_eq!(
                (report.differ, done.rows, done.deleted),
                (1, 0, 1),
                "{report:#?}"
            );
            let again = restore(world, &applied(view)).await.expect("restoring");
            let done = again.applied.as_ref().expect("it was applied");
            assert_eq!(
                (again.differ, done.deleted, done.restoration),
                (0, 0, None),
                "{again:#?}"
            );
            assert_eq!(rows_of(world, &table).await.counts, page.counts);
        }
    }
    all_is_right(world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_where_none_can_be_are_deleted() {
    strays_are_deleted(&World::new().await, |_| vec![Some(7), None]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_where_none_can_be_are_deleted_on_servers() {
    let one = |place: usize| vec![place.is_multiple_of(2).then_some(7)];
    strays_are_deleted(&World::on_servers().await, one).await;
}

/// A right row that somebody moved is missing where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_somebody_moved_is_two() {
    let world = World::new().await;
    lived_in(&world).await;
    let view = "plays_owner_day_track";
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    let page = rows_of(&world, &table).await;
    let (time, group) =
        AggregateShape::split_partition_key(page.partitions.value(0)).expect("a partition");
    let elsewhere = AggregateShape::partition_key(time + 40 * 86_400, group);
    let moved = NewRows {
        partitions: BinaryArray::from_iter_values([elsewhere]),
        ..one_row(&page, 0, Some(page.counts.value(0)))
    };
    write(&world, &table, &moved).await;
    write(&world, &table, &one_row(&page, 0, None)).await;
    let report = restore(&world, &applied(view)).await.expect("restoring");
    let causes: Vec<RestoreCause> = report.causes.keys().copied().collect();
    assert_eq!(
        causes,
        [RestoreCause::MissingRow, RestoreCause::MisplacedRow],
        "{report:#?}"
    );
    let done = report.applied.expect("it was applied");
    assert_eq!((done.rows, done.deleted), (1, 1));
    these_are_right(&world, &[view]).await;
}

async fn live_is_restored(world: &World) {
    lived_in(world).await;
    let view = "plays_detail";
    for more in [-1_000, 7] {
        world
            .ingest(&plays(
                5_000 + u64::try_from(more + 1_000).expect("positive"),
                9,
            ))
            .await;
        world.catch_up().await;
        crate::drift::falsify_one(world, view, more).await;
        let report = restore(world, &of(view)).await.expect("comparing");
        assert_eq!(
            (report.differ, report.differences[0].difference),
            (1, -more),
            "{report:#?}"
        );
        let cause = report.differences[0].cause;
        let causes = [RestoreCause::LostLive, RestoreCause::Unexplained];
        assert!(causes.contains(&cause), "{report:#?}");
        let report = restore(world, &applied(view)).await.expect("restoring");
        let done = report.applied.expect("it was applied");
        assert!(done.run.is_some() && done.rows == 0, "{done:?}");
        all_is_right(world).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_state_that_somebody_changed_is_restored() {
    live_is_restored(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_state_that_somebody_changed_is_restored_on_servers() {
    live_is_restored(&World::on_servers().await).await;
}

/// An event that comes again after the window is counted twice until the next run, and told as that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_after_the_window_is_named() {
    let world = World::new().await;
    lived_in(&world).await;
    world.clock.set_ms(NOW_MS + 2 * 3_600_000);
    world.ingest(&plays(3, 1)).await;
    world.catch_up().await;
    let report = restore(&world, &of("plays_owner_day"))
        .await
        .expect("comparing");
    assert_eq!(report.differ, 1, "{report:#?}");
    assert_eq!(
        report.differences[0].cause,
        RestoreCause::Duplicate,
        "{report:#?}"
    );
    restore(&world, &applied("plays_owner_day"))
        .await
        .expect("restoring");
    all_is_right(&world).await;
}

/// A row is restored whatever a run left behind that died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_restored_after_runs_that_died() {
    let world = World::new().await;
    lived_in(&world).await;
    let view = "plays_owner_day_track";
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    for (number, stage) in (0..).zip(["seal", "archive", "compute"]) {
        let page = rows_of(&world, &table).await;
        let count = page.counts.value(0) + 5;
        write(&world, &table, &one_row(&page, 0, Some(count))).await;
        world.ingest(&plays(3_000 + 20 * number, 20)).await;
        let stop = CancellationToken::new();
        let cutting = cancel_at(stage, &stop);
        let (batch, request) = (world.batch(), RunRequest::default());
        let cut = batch.run(Source::Plays, &request, &cutting, &stop).await;
        cut.expect_err("it was cut off");
        let report = restore(&world, &applied(view)).await.expect("restoring");
        assert!(report.applied.is_some(), "{report:#?}");
        these_are_right(&world, &[view]).await;
    }
}

async fn files_of(archive: &Archive) -> Vec<String> {
    let files = archive.list("archive/plays/files").await.expect("files");
    assert!(files.len() > 2, "{files:?}");
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_the_archive_are_made_anew_from_the_log() {
    let world = World::new().await;
    lived_in(&world).await;
    let archive = &world.stores.archive;
    let files = files_of(archive).await;
    let (missing, damaged) = (&files[0], &files[1]);
    let before = archive
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
        let error = restore(&world, &of("plays_detail"))
            .await
            .expect_err("a file is wrong");
        assert!(error.to_string().contains(path.as_str()), "{error}");
        if path == missing {
            archive.put(missing, before.clone()).await.expect("writing");
        }
    }
    archive.delete(missing).await.expect("deleting");
    let report = restore(&world, &applied("plays_detail"))
        .await
        .expect("restoring");
    let mut files = report.applied.expect("it was applied").files;
    files.sort_unstable();
    assert_eq!(files, [missing.clone(), damaged.clone()]);
    all_is_right(&world).await;
    let full = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    world.run(&full).await.expect("a full run");
    all_is_right(&world).await;
}

/// Also a file in which a partition has no record: where it ends, the file before says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_one_partition_is_made_anew() {
    let world = World::new().await;
    lived_in(&world).await;
    world.run(&RunRequest::default()).await.expect("a run");
    let archive = &world.stores.archive;
    let before = files_of(archive).await;
    let of_one = plays(7_000, 30).into_iter();
    let of_one: Vec<String> = of_one
        .filter(|line| line.contains("\"owner_id\":1,"))
        .collect();
    assert!(!of_one.is_empty());
    world.ingest(&of_one).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    let mut new = files_of(archive).await;
    new.retain(|path| !before.contains(path));
    for path in &new {
        archive.delete(path).await.expect("deleting");
    }
    let report = restore(&world, &applied("plays_owner_day")).await;
    let applied = report.expect("restoring").applied;
    assert_eq!(applied.expect("it was applied").files, new);
    these_are_right(&world, &["plays_owner_day"]).await;
}

/// A run that died in the middle of a load: what it wrote is passed over and said, and applying finishes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_loaded_run_is_finished() {
    let world = Arc::new(World::new().await);
    lived_in(&world).await;
    let stop = CancellationToken::new();
    let cutting = cancel_at("publish", &stop);
    let (batch, request) = (world.batch(), RunRequest::default());
    let cut = batch.run(Source::Plays, &request, &cutting, &stop).await;
    cut.expect_err("it was cut off");
    let report = restore(&world, &of("plays_detail"))
        .await
        .expect("comparing");
    assert!(
        report.warnings[0].contains("is not complete"),
        "{report:#?}"
    );
    assert_eq!(report.differ, 0, "{report:#?}");
    let report = restore(&world, &applied("plays_detail"))
        .await
        .expect("restoring");
    assert_eq!(
        (report.epoch, report.ahead, report.differ),
        (2, 0, 0),
        "{report:#?}"
    );
    assert_eq!(report.warnings, Vec::<String>::new());
    all_is_right(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_time_are_chosen() {
    let world = World::new().await;
    lived_in(&world).await;
    let all = restore(&world, &of("plays_owner_day"))
        .await
        .expect("comparing");
    let mut parts = 0;
    for owner in ["1", "2", "3"] {
        let mut request = of("plays_owner_day");
        request
            .keys
            .insert("owner_id".to_owned(), vec![owner.to_owned()]);
        parts += restore(&world, &request).await.expect("comparing").keys;
    }
    assert_eq!(parts, all.keys);
    let february = 1_769_904_000;
    let (early, late) = (
        RestoreRequest {
            to: Some(february),
            ..of("plays_owner_day")
        },
        RestoreRequest {
            from: Some(february),
            ..of("plays_owner_day")
        },
    );
    let early = restore(&world, &early).await.expect("comparing");
    let late = restore(&world, &late).await.expect("comparing");
    assert_eq!((early.differ, late.differ), (0, 0));
    assert_eq!(early.keys + late.keys, all.keys);
    assert!(early.keys > 0 && late.keys > 0);
    let sampled = RestoreRequest {
        sample: Some(0.5),
        ..of("plays_detail")
    };
    let detail = restore(&world, &of("plays_detail"))
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
async fn wrong_requests_are_named() {
    let world = World::new().await;
    lived_in(&world).await;
    let wrong = |change: &dyn Fn(&mut RestoreRequest), view: &str| {
        let mut request = of(view);
        change(&mut request);
        request
    };
    for (request, text) in [
        (wrong(&|_| {}, "nothing"), "plays_owner_day"),
        (wrong(&|r| r.from = Some(0), "plays_owner_all"), "all time"),
        (
            wrong(&|r| r.sample = Some(0.0), "plays_owner_day"),
            "above 0",
        ),
        (
            wrong(
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
            wrong(
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

/// Two at once: one works, the other is told who does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_at_once_one_is_told_who_works() {
    let world = Arc::new(World::new().await);
    lived_in(&world).await;
    let refused = AtomicU64::new(0);
    // Another one is asked for while this one is at work.
    let progress = OnStage(|name: &str| {
        if name == "rows" {
            let error = wait_for(restore(&world, &of("plays_owner_day")));
            assert!(matches!(error, Err(batch::Error::Busy(_))), "{error:?}");
            refused.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (batch, intake) = (world.batch(), world.intake(Source::Plays).await);
    let stop = CancellationToken::new();
    let request = applied("plays_detail");
    let done = batch.restore(&request, &intake, (&progress, &stop)).await;
    done.expect("one works");
    assert_eq!(refused.load(Ordering::Relaxed), 1);
    all_is_right(&world).await;
}
