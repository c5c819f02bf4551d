//! The Restorator, retention and erasure together: what was let go or erased differs nowhere, is found nowhere, and comes
//! back with nothing.

use std::path::PathBuf;
use std::sync::Arc;

use batch::{
    DataKind, EraseRequest, Expected, Receipt, RestoreCause, RestoreRequest, Retention,
    RetentionOptions, RunRequest,
};
use bytes::Bytes;
use schemas::source::Source;
use stores::erasures::Person;
use tests::world::World;
use tokio_util::sync::CancellationToken;

use super::restore::{
    applied, lived_in, of, one_row, plays, restore, rows_of, these_are_right, write,
};

/// A listener of these plays.
const GONE: i64 = 103;
const VIEWS: [&str; 4] = [
    "plays_detail",
    "plays_owner_day_track",
    "plays_owner_all",
    "plays_track_day_uniques",
];

/// Plays of January and February only.
fn old(first: u64, count: u64) -> Vec<String> {
    let mut lines = plays(first, count);
    lines.retain(|line| !line.contains("2026-03"));
    lines
}

/// How many files of events went.
async fn let_go(world: &World) -> u64 {
    let options = RetentionOptions {
        archive_days: 2,
        ..RetentionOptions::default()
    };
    let canon = Arc::clone(&world.stores.entities) as _;
    let retention = Retention::new(world.batch(), canon, options);
    let done = retention.run(&CancellationToken::new()).await;
    let done = done.expect("retention").into_iter();
    let mut events = done.filter(|one| one.kind == DataKind::Events);
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
        .erase(&[listener(GONE)], &request, &(), &stop)
        .await;
    erased.expect("an erasure").pop().expect("a receipt")
}

/// Somebody else is to be erased, and it ends before its run.
async fn begin_to_erase(world: &World, id: i64) {
    let stop = CancellationToken::new();
    stop.cancel();
    let (eraser, request) = (world.eraser(), EraseRequest::default());
    let cut = eraser.erase(&[listener(id)], &request, &(), &stop).await;
    cut.expect_err("it was stopped");
}

/// Where the listener is found now.
async fn places(world: &World) -> Vec<String> {
    let found = world
        .eraser()
        .verify(&[listener(GONE)])
        .await
        .expect("a search");
    let places = found.into_iter().flat_map(|(_, found)| found);
    places.map(|one| one.place).collect()
}

async fn files(world: &World) -> Vec<String> {
    let archive = &world.stores.archive;
    archive.list("archive/plays/files").await.expect("files")
}

async fn copied(world: &World) -> Vec<(String, Bytes)> {
    copies(world, files(world).await).await
}

async fn copies(world: &World, paths: Vec<String>) -> Vec<(String, Bytes)> {
    let mut copies = Vec::new();
    for path in paths {
        let bytes = world.stores.archive.get(&path).await.expect("reading");
        copies.push((path, bytes.expect("a file")));
    }
    copies
}

/// A run, and then the events of old days go.
async fn without_old_events(world: &World) {
    world.ingest(&old(0, 150)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    assert!(let_go(world).await > 0);
    assert_eq!(files(world).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_of_which_events_went_are_compared_with_their_result() {
    let world = World::new().await;
    without_old_events(&world).await;
    these_are_right(&world, &VIEWS).await;
    let told = restore(&world, &of("plays_owner_all"))
        .await
        .expect("comparing");
    let told = told.warnings.join(" ");
    assert!(
        told.contains("retention.archive_days") && told.contains("2026-01-01"),
        "{told}"
    );
    // Late ones for the same days, some that repeat what is gone, and new ones.
    world.ingest(&plays(300, 40)).await;
    world.ingest(&old(0, 20)).await;
    world.catch_up().await;
    these_are_right(&world, &VIEWS).await;
    world.run(&RunRequest::default()).await.expect("a run");
    these_are_right(&world, &VIEWS).await;

    let view = "plays_owner_day_track";
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    let page = rows_of(&world, &table).await;
    for row in [0, page.counts.len() - 1] {
        let count = page.counts.value(row) + 5;
        write(&world, &table, &one_row(&page, row, Some(count))).await;
    }
    let report = restore(&world, &applied(view)).await.expect("restoring");
    assert_eq!(report.differ, 2, "{report:#?}");
    let mut causes = report.differences.iter().map(|one| one.cause);
    assert!(
        causes.all(|cause| cause == RestoreCause::ChangedRow),
        "{report:#?}"
    );
    assert_eq!(rows_of(&world, &table).await.counts, page.counts);
    these_are_right(&world, &VIEWS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_is_erased_from_days_of_which_events_went() {
    let world = World::new().await;
    world.ingest(&old(0, 150)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    let copies = copied(&world).await;
    assert!(let_go(&world).await > 0);
    world.ingest(&plays(300, 40)).await;
    world.catch_up().await;
    let served = world.serve().await;
    let total = "/api/v1/stats/plays/total?owner_id=1";
    let before = served.client.ask(total).await["count"].clone();
    begin_to_erase(&world, GONE + 1).await;
    let receipt = erase(&world, false).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    assert_eq!(served.client.ask(total).await["count"], before);
    these_are_right(&world, &VIEWS).await;
    // Files of the log's later stretch go as well, those that stand in the place of others among them; but not while
    // an erasure is to take them out of results.
    world.ingest(&old(500, 60)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    begin_to_erase(&world, GONE + 2).await;
    assert_eq!(let_go(&world).await, 0);
    let waits = restore(&world, &of("plays_detail"))
        .await
        .expect_err("it waits");
    assert!(waits.to_string().contains("finish the erasure"), "{waits}");
    assert!(erase(&world, false).await.is_clean());
    assert!(let_go(&world).await > 0);
    these_are_right(&world, &VIEWS).await;
    // What comes back from a copy comes without the listener, and gives the same rows.
    for (path, bytes) in copies {
        world
            .stores
            .archive
            .put(&path, bytes)
            .await
            .expect("putting back");
    }
    world.run(&RunRequest::default()).await.expect("a run");
    these_are_right(&world, &VIEWS).await;
    assert_eq!(places(&world).await, Vec::<String>::new());
    served.end().await;
}

/// A file of what is expected of the listener's plays.
fn claim(world: &World) -> RestoreRequest {
    let path: PathBuf = world.path().join("claims.csv");
    let lines = format!(
        "track_id,bucket,owner_id,listener_id,kind,expected\n12,2026-02-20,1,{GONE},play,40\n"
    );
    std::fs::write(&path, lines).expect("writing a file");
    RestoreRequest {
        expected: Expected::File(path),
        ..applied("plays_track_day_listener")
    }
}

/// Corrections, and keys of rows that were written anew, name listeners; what records them does so no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_restorations_name_nobody_who_was_erased() {
    let world = World::new().await;
    lived_in(&world).await;
    let view = "plays_track_day_listener";
    let report = restore(&world, &claim(&world)).await.expect("correcting");
    assert_eq!(report.applied.expect("it was applied").corrections, 1);
    world.catch_up().await;
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    let page = rows_of(&world, &table).await;
    for row in 0..page.counts.len() {
        write(&world, &table, &one_row(&page, row, Some(99))).await;
    }
    let report = restore(&world, &applied(view)).await.expect("restoring");
    assert!(report.applied.expect("it was applied").rows > 0);
    assert!(places(&world).await.contains(&"restorations".to_owned()));

    let receipt = erase(&world, false).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    assert_eq!(places(&world).await, Vec::<String>::new());
    // The file still names the listener: nothing is made of that.
    let report = restore(&world, &claim(&world)).await.expect("comparing");
    assert_eq!((report.keys, report.differ), (0, 0), "{report:#?}");
    assert!(
        report.warnings.iter().any(|told| told.contains("erased")),
        "{report:#?}"
    );
    these_are_right(&world, &VIEWS).await;
    let served = world.serve().await;
    let total = "/api/v1/stats/plays/total?owner_id=1";
    let before = served.client.ask(total).await["count"].as_i64();
    let intake = world.intake(Source::Plays).await;
    let (stop, batch) = (CancellationToken::new(), world.batch());
    let undone =
        batch.undo_restoration((Source::Plays, 1), ("ada", "again"), &intake, (&(), &stop));
    assert_eq!(undone.await.expect("undoing").undoes, Some(1));
    world.catch_up().await;
    let after = served.client.ask(total).await["count"].as_i64();
    assert_eq!(after, before.map(|count| count - 40));
    served.end().await;
    assert_eq!(places(&world).await, Vec::<String>::new());
}

/// The history of comparisons names the listeners whose rows differed; once somebody is erased, it does so no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_names_nobody_who_was_erased() {
    let world = World::new().await;
    lived_in(&world).await;
    let view = "plays_track_day_listener";
    let table = world.catalog.job(view).expect("the job").view().to_owned();
    let page = rows_of(&world, &table).await;
    for row in 0..page.counts.len() {
        write(&world, &table, &one_row(&page, row, Some(99))).await;
    }
    let mut request = of(view);
    let ids = [GONE.to_string(), "104".to_owned()];
    request.keys.insert("listener_id".to_owned(), ids.to_vec());
    let report = restore(&world, &request).await.expect("comparing");
    assert!(report.differ > 1, "{report:#?}");
    let named = async |id: i64| {
        let records = &*world.stores.records;
        let all = stores::reconciliations::list(records, Source::Plays, None, 10).await;
        let newest = all.expect("a history").remove(0).record;
        let worst = newest["worst"].as_array().expect("a list").iter();
        let of_id = worst.filter(|one| one["key"]["listener_id"] == id);
        (of_id.count(), newest["differ"].as_u64())
    };
    let before = named(GONE).await;
    let other = named(104).await;
    assert!(before.0 > 0 && other.0 > 0, "{before:?} {other:?}");
    assert!(places(&world).await.contains(&"comparisons".to_owned()));
    let receipt = erase(&world, false).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    assert_eq!(places(&world).await, Vec::<String>::new());
    assert_eq!(named(GONE).await, (0, before.1));
    assert_eq!(named(104).await, other, "others stay");
}

/// A file that is made anew from the log is made without the listener, whom the log still names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_made_anew_bring_nobody_back() {
    let world = World::new().await;
    lived_in(&world).await;
    let receipt = erase(&world, true).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    let archive = &world.stores.archive;
    let whole = files(&world).await;
    for path in &whole {
        archive.delete(path).await.expect("deleting");
    }
    let view = "plays_owner_day_track";
    let error = restore(&world, &of(view))
        .await
        .expect_err("files are missing");
    assert!(
        whole.iter().any(|path| error.to_string().contains(path)),
        "{error}"
    );
    restore(&world, &applied(view)).await.expect("restoring");
    assert_eq!(files(&world).await, whole);
    assert_eq!(places(&world).await, ["log"]);
    these_are_right(&world, &VIEWS).await;

    // Once the log is gone, too, it is said what is to be done.
    assert!(erase(&world, false).await.is_clean());
    archive.delete(&whole[0]).await.expect("deleting");
    let error = restore(&world, &applied(view))
        .await
        .expect_err("nothing gives it");
    let text = error.to_string();
    assert!(
        text.contains(&whole[0]) && text.contains("Restore the file"),
        "{text}"
    );
}

/// A copy of the archive from before an erasure names who was erased: nothing is compared with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_archive_brings_nobody_back() {
    let world = World::new().await;
    lived_in(&world).await;
    world.run(&RunRequest::default()).await.expect("a run");
    let archive = &world.stores.archive;
    let paths = archive.list("archive/plays").await.expect("listing");
    let before = copies(&world, paths).await;
    assert!(erase(&world, false).await.is_clean());
    for path in archive.list("archive/plays").await.expect("listing") {
        archive.delete(&path).await.expect("deleting");
    }
    for (path, bytes) in before {
        archive.put(&path, bytes).await.expect("putting back");
    }
    let view = "plays_track_day_listener";
    for request in [of(view), applied(view)] {
        let error = restore(&world, &request).await.expect_err("an older copy");
        assert!(
            error
                .to_string()
                .contains("may name people who were erased"),
            "{error}"
        );
    }
    world.run(&RunRequest::default()).await.expect("a run");
    these_are_right(&world, &VIEWS).await;
    assert_eq!(places(&world).await, Vec::<String>::new());
}
