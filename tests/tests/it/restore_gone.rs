//! The Reconciler together with retention and erasure: deleted events cause no differences, and
//! erased people do not come back.

use std::path::PathBuf;
use std::sync::Arc;

use batch::{
    DataKind, EraseRequest, Expected, Receipt, ReconcileCause, ReconcileRequest, Retention,
    RetentionOptions, RunRequest,
};
use bytes::Bytes;
use schemas::source::Source;
use stores::erasures::Person;
use tests::world::World;
use tokio_util::sync::CancellationToken;

use super::restore::{
    applying_request, assert_views_match, one_row, plays, populate, request_for, restore,
    scan_view, write_rows,
};

/// The erased listener.
const ERASED: i64 = 103;
const VIEWS: [&str; 4] = [
    "plays_detail",
    "plays_owner_day_track",
    "plays_owner_all",
    "plays_track_day_uniques",
];

/// Plays of January and February only.
fn old_plays(first: u64, count: u64) -> Vec<String> {
    let mut lines = plays(first, count);
    lines.retain(|line| !line.contains("2026-03"));
    lines
}

/// Runs retention; returns the number of deleted archive files.
async fn delete_old_files(world: &World) -> u64 {
    let options = RetentionOptions {
        archive_days: 2,
        ..RetentionOptions::default()
    };
    let entities = Arc::clone(&world.stores.entities) as _;
    let retention = Retention::new(world.batch(), entities, options);
    let reports = retention.run(&CancellationToken::new()).await;
    let reports = reports.expect("retention").into_iter();
    let mut events = reports.filter(|report| report.kind == DataKind::Events);
    events.next().expect("events").deleted.count
}

const fn listener(id: i64) -> Person {
    let kind = stores::erasures::PersonKind::Listener;
    Person { kind, id }
}

async fn erase(world: &World, keep_log: bool) -> Receipt {
    let request = EraseRequest {
        keep_log,
        ..EraseRequest::default()
    };
    let stop = CancellationToken::new();
    let erased = world
        .eraser()
        .erase(&[listener(ERASED)], &request, &(), &stop)
        .await;
    erased.expect("an erasure").pop().expect("a receipt")
}

/// Starts the erasure of another listener, which ends before its batch run.
async fn begin_to_erase(world: &World, id: i64) {
    let stop = CancellationToken::new();
    stop.cancel();
    let (eraser, request) = (world.eraser(), EraseRequest::default());
    let result = eraser.erase(&[listener(id)], &request, &(), &stop).await;
    result.expect_err("it was stopped");
}

/// Returns the places that still contain the listener.
async fn list_places(world: &World) -> Vec<String> {
    let findings = world
        .eraser()
        .verify(&[listener(ERASED)])
        .await
        .expect("a search");
    let places = findings.into_iter().flat_map(|(_, findings)| findings);
    places.map(|finding| finding.place).collect()
}

async fn list_files(world: &World) -> Vec<String> {
    let archive = &world.stores.archive;
    archive.list("archive/plays/files").await.expect("files")
}

async fn copy_files(world: &World) -> Vec<(String, Bytes)> {
    copy_paths(world, list_files(world).await).await
}

async fn copy_paths(world: &World, paths: Vec<String>) -> Vec<(String, Bytes)> {
    let mut copies = Vec::new();
    for path in paths {
        let bytes = world.stores.archive.get(&path).await.expect("reading");
        copies.push((path, bytes.expect("a file")));
    }
    copies
}

/// Counts and archives old events, then deletes their files.
async fn archive_and_delete_old_events(world: &World) {
    world.ingest(&old_plays(0, 150)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    assert!(delete_old_files(world).await > 0);
    assert_eq!(list_files(world).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_without_events_are_compared_with_their_results() {
    let world = World::new().await;
    archive_and_delete_old_events(&world).await;
    assert_views_match(&world, &VIEWS).await;
    let report = restore(&world, &request_for("plays_owner_all"))
        .await
        .expect("comparing");
    let warnings = report.warnings.join(" ");
    assert!(
        warnings.contains("retention.archive_days") && warnings.contains("2026-01-01"),
        "{warnings}"
    );
    // Late events for the same days, repeats of deleted events, and new events.
    world.ingest(&plays(300, 40)).await;
    world.ingest(&old_plays(0, 20)).await;
    world.catch_up().await;
    assert_views_match(&world, &VIEWS).await;
    world.run(&RunRequest::default()).await.expect("a run");
    assert_views_match(&world, &VIEWS).await;

    let view = "plays_owner_day_track";
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    let page = scan_view(&world, &table).await;
    for row in [0, page.counts.len() - 1] {
        let count = page.counts.value(row) + 5;
        write_rows(&world, &table, &one_row(&page, row, Some(count))).await;
    }
    let report = restore(&world, &applying_request(view))
        .await
        .expect("restoring");
    assert_eq!(report.differ, 2, "{report:#?}");
    let mut causes = report.differences.iter().map(|difference| difference.cause);
    assert!(
        causes.all(|cause| cause == ReconcileCause::ChangedRow),
        "{report:#?}"
    );
    assert_eq!(scan_view(&world, &table).await.counts, page.counts);
    assert_views_match(&world, &VIEWS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn erasure_covers_days_without_events() {
    let world = World::new().await;
    world.ingest(&old_plays(0, 150)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    let copies = copy_files(&world).await;
    assert!(delete_old_files(&world).await > 0);
    world.ingest(&plays(300, 40)).await;
    world.catch_up().await;
    let served = world.serve().await;
    let path = "/api/v1/stats/plays/total?owner_id=1";
    let total_before = served.client.fetch_json(path).await["count"].clone();
    begin_to_erase(&world, ERASED + 1).await;
    let receipt = erase(&world, false).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    assert_eq!(served.client.fetch_json(path).await["count"], total_before);
    assert_views_match(&world, &VIEWS).await;
    // Retention also deletes later files, including those that replaced others, but not while an
    // erasure still needs them to correct results.
    world.ingest(&old_plays(500, 60)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    begin_to_erase(&world, ERASED + 2).await;
    assert_eq!(delete_old_files(&world).await, 0);
    let refused = restore(&world, &request_for("plays_detail"))
        .await
        .expect_err("an unfinished erasure");
    assert!(
        refused.to_string().contains("finish the erasure"),
        "{refused}"
    );
    assert!(erase(&world, false).await.is_clean());
    assert!(delete_old_files(&world).await > 0);
    assert_views_match(&world, &VIEWS).await;
    // Files restored from a copy are redacted, and give the same rows.
    for (path, bytes) in copies {
        world
            .stores
            .archive
            .put(&path, bytes)
            .await
            .expect("restoring a copy");
    }
    world.run(&RunRequest::default()).await.expect("a run");
    assert_views_match(&world, &VIEWS).await;
    assert_eq!(list_places(&world).await, Vec::<String>::new());
    served.end().await;
}

/// A request with a file of expected plays of the listener.
fn claim_request(world: &World) -> ReconcileRequest {
    let path: PathBuf = world.path().join("claims.csv");
    let lines = format!(
        "track_id,bucket,owner_id,listener_id,kind,expected\n12,2026-02-20,1,{ERASED},play,40\n"
    );
    std::fs::write(&path, lines).expect("writing a file");
    ReconcileRequest {
        expected: Expected::File(path),
        ..applying_request("plays_track_day_listener")
    }
}

/// Erasure also covers the records of corrections and of rewritten rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restoration_records_are_redacted() {
    let world = World::new().await;
    populate(&world).await;
    let view = "plays_track_day_listener";
    let report = restore(&world, &claim_request(&world))
        .await
        .expect("correcting");
    assert_eq!(report.applied.expect("it was applied").corrections, 1);
    world.catch_up().await;
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    let page = scan_view(&world, &table).await;
    for row in 0..page.counts.len() {
        write_rows(&world, &table, &one_row(&page, row, Some(99))).await;
    }
    let report = restore(&world, &applying_request(view))
        .await
        .expect("restoring");
    assert!(report.applied.expect("it was applied").rows > 0);
    assert!(
        list_places(&world)
            .await
            .contains(&"restorations".to_owned())
    );

    let receipt = erase(&world, false).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    assert_eq!(list_places(&world).await, Vec::<String>::new());
    // The file still names the listener, whose line is ignored.
    let report = restore(&world, &claim_request(&world))
        .await
        .expect("comparing");
    assert_eq!((report.keys, report.differ), (0, 0), "{report:#?}");
    assert!(
        report
            .warnings
            .iter()
            .any(|warning| warning.contains("erased")),
        "{report:#?}"
    );
    assert_views_match(&world, &VIEWS).await;
    let served = world.serve().await;
    let path = "/api/v1/stats/plays/total?owner_id=1";
    let total_before = served.client.fetch_json(path).await["count"].as_i64();
    let intake = world.intake(Source::Plays).await;
    let (stop, batch) = (CancellationToken::new(), world.batch());
    let undone =
        batch.undo_restoration((Source::Plays, 1), ("ada", "again"), &intake, (&(), &stop));
    assert_eq!(undone.await.expect("undoing").undoes, Some(1));
    world.catch_up().await;
    let total_after = served.client.fetch_json(path).await["count"].as_i64();
    assert_eq!(total_after, total_before.map(|count| count - 40));
    served.end().await;
    assert_eq!(list_places(&world).await, Vec::<String>::new());
}

/// Erasure also covers the history of comparisons, which contains keys of differing rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_comparison_history_is_redacted() {
    let world = World::new().await;
    populate(&world).await;
    let view = "plays_track_day_listener";
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    let page = scan_view(&world, &table).await;
    for row in 0..page.counts.len() {
        write_rows(&world, &table, &one_row(&page, row, Some(99))).await;
    }
    let mut request = request_for(view);
    let ids = [ERASED.to_string(), "104".to_owned()];
    request.keys.insert("listener_id".to_owned(), ids.to_vec());
    let report = restore(&world, &request).await.expect("comparing");
    assert!(report.differ > 1, "{report:#?}");
    let count_differences = async |id: i64| {
        let records = &*world.stores.records;
        let comparisons = stores::reconciliations::list(records, Source::Plays, None, 10).await;
        let newest = comparisons.expect("a history").remove(0).record;
        let worst = newest["worst"].as_array().expect("a list").iter();
        let matching = worst.filter(|difference| difference["key"]["listener_id"] == id);
        (matching.count(), newest["differ"].as_u64())
    };
    let erased = count_differences(ERASED).await;
    let other = count_differences(104).await;
    assert!(erased.0 > 0 && other.0 > 0, "{erased:?} {other:?}");
    assert!(
        list_places(&world)
            .await
            .contains(&"comparisons".to_owned())
    );
    let receipt = erase(&world, false).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    assert_eq!(list_places(&world).await, Vec::<String>::new());
    assert_eq!(count_differences(ERASED).await, (0, erased.1));
    assert_eq!(count_differences(104).await, other, "other listeners stay");
}

/// The log still contains the erased listener; an archive file rebuilt from it does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuilt_files_are_redacted() {
    let world = World::new().await;
    populate(&world).await;
    let receipt = erase(&world, true).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    let archive = &world.stores.archive;
    let paths = list_files(&world).await;
    for path in &paths {
        archive.delete(path).await.expect("deleting");
    }
    let view = "plays_owner_day_track";
    let error = restore(&world, &request_for(view))
        .await
        .expect_err("files are missing");
    assert!(
        paths.iter().any(|path| error.to_string().contains(path)),
        "{error}"
    );
    restore(&world, &applying_request(view))
        .await
        .expect("restoring");
    assert_eq!(list_files(&world).await, paths);
    assert_eq!(list_places(&world).await, ["log"]);
    assert_views_match(&world, &VIEWS).await;

    // Without the log the error says how to restore the file.
    assert!(erase(&world, false).await.is_clean());
    archive.delete(&paths[0]).await.expect("deleting");
    let error = restore(&world, &applying_request(view))
        .await
        .expect_err("a lost file");
    let text = error.to_string();
    assert!(
        text.contains(&paths[0]) && text.contains("Restore the file"),
        "{text}"
    );
}

/// An archive copy from before an erasure contains the erased person, so no comparison uses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_archive_copy_is_rejected_until_redacted() {
    let world = World::new().await;
    populate(&world).await;
    world.run(&RunRequest::default()).await.expect("a run");
    let archive = &world.stores.archive;
    let paths = archive.list("archive/plays").await.expect("listing");
    let copies = copy_paths(&world, paths).await;
    assert!(erase(&world, false).await.is_clean());
    for path in archive.list("archive/plays").await.expect("listing") {
        archive.delete(&path).await.expect("deleting");
    }
    for (path, bytes) in copies {
        archive.put(&path, bytes).await.expect("restoring a copy");
    }
    let view = "plays_track_day_listener";
    for request in [request_for(view), applying_request(view)] {
        let error = restore(&world, &request).await.expect_err("an older copy");
        assert!(
            error
                .to_string()
                .contains("may name people who were erased"),
            "{error}"
        );
    }
    world.run(&RunRequest::default()).await.expect("a run");
    assert_views_match(&world, &VIEWS).await;
    assert_eq!(list_places(&world).await, Vec::<String>::new());
}
