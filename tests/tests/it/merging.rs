//! Compaction: many small runs leave many files in the archive. Few stay, with all of the events.

use std::collections::BTreeSet;

use batch::{BatchOptions, EraseRequest, RunRequest};
use schemas::source::Source;
use stores::erasures::{Person, PersonKind};
use tests::world::{NOW_MS, World, archive_version};
use tokio_util::sync::CancellationToken;

use super::erasure::erase_all;
use super::restore::{applying_request, assert_main_views_match, plays, request_for, restore};

const EVENTS_PER_RUN: u64 = 12;
const MINUTE_MS: i64 = 60_000;
/// How long replaced files stay.
const REPLACED_FILES_WAIT_MS: i64 = 5 * MINUTE_MS;
/// A listener of many plays.
const LISTENER: i64 = 101;

/// An installation whose files hold about a hundred events at most.
async fn create_world() -> World {
    let mut world = World::new().await;
    // Other limits that affect files are minimal: one task, one result file, one publishing step.
    world.batch_options = BatchOptions {
        grace_ms: 0,
        speed_wait_ms: 0,
        archive_rows_max: 120,
        archive_wait_ms: 300,
        archive_merged_wait_ms: REPLACED_FILES_WAIT_MS.unsigned_abs(),
        ..BatchOptions::default()
    };
    world
}

/// A run with a few events, a minute after the previous one.
async fn run_a_minute_later(world: &World, number: u64) {
    let minutes = i64::try_from(number).expect("few");
    world.clock.set_ms(NOW_MS + minutes * MINUTE_MS);
    world
        .ingest(&plays(number * EVENTS_PER_RUN, EVENTS_PER_RUN))
        .await;
    world.catch_up().await;
    let report = world.run(&RunRequest::default()).await.expect("a run");
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
}

async fn list_files(world: &World) -> Vec<String> {
    let files = world.stores.archive.list("archive/plays/files").await;
    files.expect("files")
}

/// Listed files of at most one run, and compacted ones.
async fn listed_files(world: &World) -> (Vec<String>, Vec<String>) {
    let version = archive_version(&world.stores.archive).await;
    let files = version["files"].as_array().expect("files").iter();
    let (single, compacted): (Vec<_>, Vec<_>) = files.partition(|file| {
        let days = file["days"].as_object().expect("days").values();
        days.map(|day| day["rows"].as_u64().expect("rows"))
            .sum::<u64>()
            <= EVENTS_PER_RUN
    });
    let paths = |files: Vec<&serde_json::Value>| {
        let paths = files.into_iter().map(|file| file["path"].as_str());
        paths.map(|path| path.expect("a path").to_owned()).collect()
    };
    (paths(single), paths(compacted))
}

/// The number of files in the archive, of listed files of one run, and of listed compacted files.
async fn file_counts(world: &World) -> (usize, usize, usize) {
    let (single, compacted) = listed_files(world).await;
    (list_files(world).await.len(), single.len(), compacted.len())
}

/// Each event occurs once in the results of the files alone.
async fn check_every_event(world: &World, runs: u64) {
    let request = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    let report = world.run(&request).await.expect("a run");
    assert_eq!(
        (report.rows_read, report.duplicates),
        (runs * EVENTS_PER_RUN, 0)
    );
    assert_eq!(report.rows_written, 0, "{report:#?}");
    assert_main_views_match(world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_leaves_few_files_and_every_event() {
    let world = create_world().await;
    let (mut files_max, mut merged) = (0, BTreeSet::new());
    for number in 0..26 {
        run_a_minute_later(&world, number).await;
        files_max = files_max.max(list_files(&world).await.len());
        merged.extend(listed_files(&world).await.1);
    }
    assert!(merged.len() > 2, "compacted once only: {merged:?}");
    assert!(
        (10..26).contains(&files_max),
        "at most {files_max} files at a time"
    );
    check_every_event(&world, 26).await;
    // A later run deletes the replaced files.
    world.clock.set_ms(NOW_MS + 100 * MINUTE_MS);
    world.run(&RunRequest::default()).await.expect("a run");
    let (all_files, single, merged) = file_counts(&world).await;
    assert!(
        single <= 12 && (1..6).contains(&merged),
        "{single}, {merged}"
    );
    assert_eq!(all_files, single + merged);
    check_every_event(&world, 26).await;
    let stored = world.batch().check_archive(Source::Plays).await;
    assert_eq!(
        stored.expect("an archive"),
        (all_files, 26 * EVENTS_PER_RUN)
    );

    // A repeated event that is in a compacted file is a duplicate.
    world.ingest(&plays(5, 3)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    assert_main_views_match(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_and_leftover_files_count_once() {
    let world = create_world().await;
    let archive = &world.stores.archive;
    for number in 0..9 {
        run_a_minute_later(&world, number).await;
    }
    let mut copies = Vec::new();
    for path in archive.list("archive/plays").await.expect("listing") {
        let bytes = archive.get(&path).await.expect("reading").expect("a file");
        copies.push((path, bytes));
    }
    assert_eq!(file_counts(&world).await, (9, 9, 0));
    for number in 9..20 {
        run_a_minute_later(&world, number).await;
    }
    let (_, single, merged) = file_counts(&world).await;
    assert!(single < 20 && merged > 0, "{single}, {merged}");
    // Older versions and their files are restored from a copy beside the newer ones, and a writer
    // has died.
    for (path, bytes) in copies {
        archive.put(&path, bytes).await.expect("writing");
    }
    let version = archive_version(archive).await;
    let number = version["number"].as_u64().expect("a number");
    let leftover = format!("archive/plays/files/{:010}-left.parquet", number + 1);
    archive
        .put(&leftover, "left".into())
        .await
        .expect("writing");
    check_every_event(&world, 20).await;
    for number in 20..28 {
        run_a_minute_later(&world, number).await;
    }
    world.clock.set_ms(NOW_MS + 100 * MINUTE_MS);
    check_every_event(&world, 28).await;
    let (all_files, single, merged) = file_counts(&world).await;
    assert!(
        single <= 12 && all_files == single + merged,
        "{all_files}, {single}"
    );
    assert!(!list_files(&world).await.contains(&leftover));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_compacted_file_is_rebuilt() {
    let world = create_world().await;
    for number in 0..12 {
        run_a_minute_later(&world, number).await;
    }
    let (_, merged) = listed_files(&world).await;
    let lost_path = merged.first().expect("a compacted file");
    let archive = &world.stores.archive;
    archive.delete(lost_path).await.expect("deleting");
    let (file_count, _, _) = file_counts(&world).await;
    // The replaced files are not deleted without the compacted one.
    world.clock.set_ms(NOW_MS + 100 * MINUTE_MS);
    let report = world.run(&RunRequest::default()).await.expect("a run");
    let warnings = report.warnings.concat();
    assert!(warnings.contains(lost_path), "{warnings}");
    assert_eq!(file_counts(&world).await.0, file_count);
    let error = restore(&world, &request_for("plays_detail")).await;
    let error = error.expect_err("a missing file").to_string();
    assert!(error.contains(lost_path), "{error}");
    let report = restore(&world, &applying_request("plays_detail")).await;
    report.expect("a rebuilt file");
    check_every_event(&world, 12).await;
    assert!(
        file_counts(&world).await.0 < file_count,
        "the replaced files were not deleted"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_replaced_file_contains_an_erased_person() {
    let world = create_world().await;
    for number in 0..12 {
        run_a_minute_later(&world, number).await;
    }
    assert!(file_counts(&world).await.2 > 0, "no files were compacted");
    let person = Person {
        kind: PersonKind::Listener,
        id: LISTENER,
    };
    let receipts = erase_all(&world, &[person], &EraseRequest::default()).await;
    assert!(
        receipts.iter().all(batch::Receipt::is_clean),
        "{receipts:#?}"
    );
    // An existing file is compacted with others, and none of them contains an erased person.
    for number in 12..24 {
        run_a_minute_later(&world, number).await;
    }
    assert_main_views_match(&world).await;
    let findings = world.eraser().verify(&[person]).await.expect("a search");
    let findings: Vec<_> = findings
        .into_iter()
        .flat_map(|(_, findings)| findings)
        .collect();
    assert!(findings.is_empty(), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archiver_with_an_old_listing_handles_compacted_files() {
    let world = create_world().await;
    let stop = CancellationToken::new();
    let (batch, archiver_stop) = (world.batch(), stop.clone());
    let archiving = batch.archive(Source::Plays, false, archiver_stop);
    let running = async {
        for number in 0..20 {
            run_a_minute_later(&world, number).await;
        }
        // The archiver still uses its initial listing.
        world.clock.set_ms(NOW_MS + 100 * MINUTE_MS);
        world.run(&RunRequest::default()).await.expect("a run");
        let (_, single, merged) = file_counts(&world).await;
        assert!(single < 20 && merged > 0, "{single}, {merged}");
        world
            .ingest(&plays(20 * EVENTS_PER_RUN, EVENTS_PER_RUN))
            .await;
        let files_before = list_files(&world).await;
        let started = std::time::Instant::now();
        while list_files(&world).await == files_before {
            assert!(started.elapsed().as_secs() < 60, "no record was archived");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        stop.cancel();
    };
    let (report, ()) = tokio::join!(archiving, running);
    report.expect("archiving");
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    check_every_event(&world, 21).await;
}
