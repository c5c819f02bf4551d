//! Files of the archive that many small runs leave: few stay, and they hold what all of them held.

use std::collections::BTreeSet;

use batch::{BatchOptions, EraseRequest, RunRequest};
use schemas::source::Source;
use stores::erasures::{Kind, Person};
use tests::world::{NOW_MS, World};
use tokio_util::sync::CancellationToken;

use super::erasure::erase_all;
use super::restore::{all_is_right, applied, of, plays, restore};

const OF_RUN: u64 = 12;
const MINUTE_MS: i64 = 60_000;
/// How long what was merged stays.
const WAIT_MS: i64 = 5 * MINUTE_MS;
/// One whom the plays have often.
const LISTENER: i64 = 101;

/// An installation whose files hold at most a hundred events or so.
async fn installation() -> World {
    let mut world = World::new().await;
    // All else as it is for everybody: one task, one file of a result, one step of publishing.
    world.batch_options = BatchOptions {
        grace_ms: 0,
        speed_wait_ms: 0,
        archive_rows_max: 120,
        archive_wait_ms: 300,
        archive_merged_wait_ms: WAIT_MS.unsigned_abs(),
        ..BatchOptions::default()
    };
    world
}

/// A run with a few events, a minute after the one before.
async fn run_a_minute_later(world: &World, number: u64) {
    let minutes = i64::try_from(number).expect("few");
    world.clock.set_ms(NOW_MS + minutes * MINUTE_MS);
    world.ingest(&plays(number * OF_RUN, OF_RUN)).await;
    world.catch_up().await;
    let report = world.run(&RunRequest::default()).await.expect("a run");
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
}

async fn files(world: &World, folder: &str) -> Vec<String> {
    let folder = format!("archive/plays/{folder}");
    world.stores.archive.list(&folder).await.expect("files")
}

/// How many single files, manifests of single files and merged files there are.
async fn counts(world: &World) -> (usize, usize, usize) {
    (
        files(world, "data").await.len(),
        files(world, "manifests").await.len(),
        files(world, "merged/data").await.len(),
    )
}

/// Every event is once in what is computed from the files alone.
async fn everything_is_there(world: &World, runs: u64) {
    let request = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    let report = world.run(&request).await.expect("a run");
    assert_eq!((report.rows_read, report.duplicates), (runs * OF_RUN, 0));
    assert_eq!(report.rows_written, 0, "{report:#?}");
    all_is_right(world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_leave_few_files_and_every_event() {
    let world = installation().await;
    let (mut most, mut merged) = (0, BTreeSet::new());
    for number in 0..26 {
        run_a_minute_later(&world, number).await;
        let (data, manifests, _) = counts(&world).await;
        most = most.max(data).max(manifests);
        merged.extend(files(&world, "merged/data").await);
    }
    assert!(merged.len() > 2, "merged, and merged again: {merged:?}");
    assert!((10..26).contains(&most), "{most} files at some time");
    everything_is_there(&world, 26).await;
    // What others stand for goes with a run that comes later.
    world.clock.set_ms(NOW_MS + 100 * MINUTE_MS);
    world.run(&RunRequest::default()).await.expect("a run");
    let (data, manifests, merged) = counts(&world).await;
    assert!(data <= 12 && manifests <= 12 && (1..6).contains(&merged));
    assert_eq!(files(&world, "merged/records").await.len(), 1);
    everything_is_there(&world, 26).await;
    let stored = world.batch().check_archive(Source::Plays).await;
    assert_eq!(stored.expect("an archive"), (data + merged, 26 * OF_RUN));

    // An event that lies in a merged file comes once more, and is known.
    world.ingest(&plays(5, 3)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    all_is_right(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_back_or_was_left_counts_once() {
    let world = installation().await;
    let archive = &world.stores.archive;
    for number in 0..9 {
        run_a_minute_later(&world, number).await;
    }
    let mut copy = Vec::new();
    for path in archive.list("archive/plays").await.expect("listing") {
        let bytes = archive.get(&path).await.expect("reading").expect("a file");
        copy.push((path, bytes));
    }
    assert_eq!(counts(&world).await, (9, 9, 0));
    for number in 9..20 {
        run_a_minute_later(&world, number).await;
    }
    let (single, _, merged) = counts(&world).await;
    assert!(single < 20 && merged > 0, "{single}, {merged}");
    // Files of before come back from a copy, with their manifests; and somebody died who was merging.
    for (path, bytes) in copy {
        archive.put(&path, bytes).await.expect("writing");
    }
    let records = files(&world, "merged/records").await;
    let newest = records.last().expect("a record");
    let number = newest.rsplit('/').next().expect("a name");
    let number: u64 = number.trim_end_matches(".json").parse().expect("a number");
    let left = format!("archive/plays/merged/data/{:010}-left.parquet", number + 1);
    archive.put(&left, "left".into()).await.expect("writing");
    everything_is_there(&world, 20).await;
    for number in 20..28 {
        run_a_minute_later(&world, number).await;
    }
    world.clock.set_ms(NOW_MS + 100 * MINUTE_MS);
    everything_is_there(&world, 28).await;
    let (single, manifests, _) = counts(&world).await;
    assert!(single <= 12 && manifests <= 12, "{single}, {manifests}");
    let left_over = files(&world, "merged/data").await;
    assert!(!left_over.contains(&left), "{left_over:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merged_file_that_is_lost_is_made_anew() {
    let world = installation().await;
    for number in 0..12 {
        run_a_minute_later(&world, number).await;
    }
    let merged = files(&world, "merged/data").await;
    let lost = merged.first().expect("a merged file");
    let archive = &world.stores.archive;
    archive.delete(lost).await.expect("deleting");
    let (before, _, _) = counts(&world).await;
    // What it stands for is not deleted without it.
    world.clock.set_ms(NOW_MS + 100 * MINUTE_MS);
    let report = world.run(&RunRequest::default()).await.expect("a run");
    let warnings = report.warnings.concat();
    assert!(warnings.contains(lost), "{warnings}");
    assert_eq!(counts(&world).await.0, before);
    let error = restore(&world, &of("plays_detail")).await;
    let error = error.expect_err("a file is missing").to_string();
    assert!(error.contains(lost), "{error}");
    let made = restore(&world, &applied("plays_detail")).await;
    made.expect("made anew");
    everything_is_there(&world, 12).await;
    assert!(counts(&world).await.0 < before, "now they went");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_erased_is_in_no_file_that_waits() {
    let world = installation().await;
    for number in 0..12 {
        run_a_minute_later(&world, number).await;
    }
    assert!(counts(&world).await.2 > 0, "files were merged");
    let person = Person {
        kind: Kind::Listener,
        id: LISTENER,
    };
    let receipts = erase_all(&world, &[person], &EraseRequest::default()).await;
    assert!(
        receipts.iter().all(batch::Receipt::is_clean),
        "{receipts:#?}"
    );
    // A file that was written before is merged with others, and none of them has anybody of the erased.
    for number in 12..24 {
        run_a_minute_later(&world, number).await;
    }
    all_is_right(&world).await;
    let found = world.eraser().verify(&[person]).await.expect("a search");
    let found: Vec<_> = found.into_iter().flat_map(|(_, found)| found).collect();
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archiver_that_follows_goes_on_over_merged_files() {
    let world = installation().await;
    let stop = CancellationToken::new();
    let (batch, until) = (world.batch(), stop.clone());
    let archiving = batch.archive(Source::Plays, false, until);
    let running = async {
        for number in 0..20 {
            run_a_minute_later(&world, number).await;
        }
        // The archiver still believes in what it read at the beginning.
        world.clock.set_ms(NOW_MS + 100 * MINUTE_MS);
        world.run(&RunRequest::default()).await.expect("a run");
        let (_, manifests, merged) = counts(&world).await;
        assert!(manifests < 20 && merged > 0, "{manifests}, {merged}");
        world.ingest(&plays(20 * OF_RUN, OF_RUN)).await;
        let before = files(&world, "data").await;
        let begun = std::time::Instant::now();
        while files(&world, "data").await == before {
            assert!(begun.elapsed().as_secs() < 60, "nothing is archived");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        stop.cancel();
    };
    let (report, ()) = tokio::join!(archiving, running);
    report.expect("archiving");
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    everything_is_there(&world, 21).await;
}
