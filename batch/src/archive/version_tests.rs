//! Random histories of overlapping writers with garbage collection between their steps, compared
//! with a model of the list.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use schemas::seam::Cut;

use super::super::garbage::{GarbageScope, collect_garbage};
use super::*;

const SOURCE: Source = Source::Plays;
const SEEDS: u64 = 12;
const STEPS: usize = 120;
const WRITERS: usize = 4;

/// A writer that has read the newest version and has not committed yet.
struct Writer {
    base: Version,
    next: Version,
    written: String,
}

fn entry(from: i64, to: i64, path: &str) -> FileEntry {
    FileEntry {
        from: vec![from],
        to: vec![Cut {
            next_offset: to,
            last: None,
        }],
        path: Some(path.to_owned()),
        ..FileEntry::default()
    }
}

async fn put(archive: &Archive, path: &str) {
    archive.put(path, "events".into()).await.expect("writing");
}

/// Starts an append, a compaction, a redaction or a backfill on the newest version.
async fn begin(archive: &Archive, rng: &mut StdRng, now_ms: i64) -> Writer {
    let base = Version::read_newest(archive, SOURCE)
        .await
        .expect("a version");
    let mut next = base.next(now_ms);
    let written = next.new_file_path(SOURCE);
    put(archive, &written).await;
    let (log_start, logged) = (next.log_start_index(), next.log_files().len());
    match rng.random_range(0..4) {
        0 if logged >= 2 => {
            let first = log_start + rng.random_range(0..logged - 1);
            let inputs = next.files.splice(first..first + 2, []).collect::<Vec<_>>();
            let compacted = FileEntry {
                from: inputs[0].from.clone(),
                ..entry(0, inputs[1].to[0].next_offset, &written)
            };
            next.files.insert(first, compacted);
            for path in inputs.into_iter().filter_map(|file| file.path) {
                next.retire(path);
            }
        }
        1 if !next.files.is_empty() => {
            let index = rng.random_range(0..next.files.len());
            let replaced = next.files[index].path.replace(written.clone());
            next.retire(replaced.expect("a path"));
        }
        2 => {
            next.backfills += 1;
            let backfill = FileEntry {
                path: Some(written.clone()),
                ..FileEntry::default()
            };
            next.files.insert(log_start, backfill);
        }
        _ => {
            let from = next.end().first().map_or(0, |cut| cut.next_offset);
            let to = from + rng.random_range(1..9);
            next.files.push(entry(from, to, &written));
        }
    }
    Writer {
        base,
        next,
        written,
    }
}

/// Checks that every listed file exists. After a full collection, all other files must have later
/// numbers.
async fn check(archive: &Archive, expected: &Version, open: &[Writer], collected_at: Option<u64>) {
    let newest = Version::read_newest(archive, SOURCE)
        .await
        .expect("a version");
    assert_eq!(newest.files, expected.files);
    let listed: BTreeSet<String> = newest
        .listed_paths()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let present = list_parquet_paths(archive, SOURCE).await.expect("files");
    assert!(present.is_superset(&listed), "{listed:?} {present:?}");
    if let Some(number) = collected_at {
        let may_commit = open.iter().filter(|writer| writer.next.number > number);
        let allowed: BTreeSet<String> = may_commit.map(|writer| writer.written.clone()).collect();
        let garbage: Vec<_> = present.difference(&listed).collect();
        assert!(
            garbage.iter().all(|path| allowed.contains(*path)),
            "{garbage:?}"
        );
    }
}

async fn history(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let archive = Archive::local(folder.path()).expect("an archive");
    let (mut open, mut expected, mut commits): (Vec<Writer>, _, _) =
        (Vec::new(), Version::default(), 0);
    for now_ms in 0..i64::try_from(STEPS).expect("few") {
        let mut collected_at = None;
        match rng.random_range(0..5) {
            0 => {
                let before_ms = now_ms - 5;
                let recent = GarbageScope {
                    before_ms,
                    includes_unredacted: rng.random(),
                };
                let scope =
                    [GarbageScope::DEAD_ONLY, recent, GarbageScope::ALL][rng.random_range(0..3)];
                let newest = Version::read_newest(&archive, SOURCE)
                    .await
                    .expect("a version");
                let collected = collect_garbage(&archive, SOURCE, scope, now_ms).await;
                collected.expect("collecting");
                collected_at = (scope.before_ms == i64::MAX).then_some(newest.number);
            }
            1 | 2 if open.len() < WRITERS => open.push(begin(&archive, &mut rng, now_ms).await),
            _ if !open.is_empty() => {
                let writer = open.swap_remove(rng.random_range(0..open.len()));
                let committed = writer.base.commit(&archive, SOURCE, &writer.next).await;
                if committed.expect("committing") {
                    expected = writer.next;
                    commits += 1;
                } else {
                    let written = [writer.written];
                    let discarded = Version::discard(&archive, SOURCE, written).await;
                    discarded.expect("discarding");
                }
            }
            _ => {}
        }
        // A collection may commit a version with the same files.
        check(&archive, &expected, &open, collected_at).await;
    }
    assert!(commits > 10, "{commits}");
}

#[tokio::test]
async fn overlapping_writers_lose_no_file_and_leave_no_garbage() {
    for seed in 0..SEEDS {
        history(seed).await;
    }
}

#[tokio::test]
async fn rejects_a_commit_if_the_base_version_was_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let archive = Archive::local(folder.path()).expect("an archive");
    let empty = Version::read_newest(&archive, SOURCE).await.expect("none");
    let first = empty.next(1);
    assert!(
        empty
            .commit(&archive, SOURCE, &first)
            .await
            .expect("created")
    );
    let second = first.next(2);
    assert!(
        first
            .commit(&archive, SOURCE, &second)
            .await
            .expect("created")
    );
    // Two writers use the same number; the number of another one was deleted long ago.
    assert!(
        !first
            .commit(&archive, SOURCE, &first.next(3))
            .await
            .expect("taken")
    );
    collect_garbage(&archive, SOURCE, GarbageScope::ALL, 3)
        .await
        .expect("collecting");
    assert!(!first.commit(&archive, SOURCE, &second).await.expect("gone"));
    assert!(
        !empty
            .commit(&archive, SOURCE, &first)
            .await
            .expect("too late")
    );
    assert_eq!(
        Version::read_newest(&archive, SOURCE).await.expect("it"),
        second
    );
    // The archive was restored from a copy, so the version differs.
    let path = second.path(SOURCE);
    archive
        .put(&path, to_bytes(&first.next(9)).expect("bytes"))
        .await
        .expect("restored");
    assert!(
        !second
            .commit(&archive, SOURCE, &second.next(4))
            .await
            .expect("another")
    );
}

#[tokio::test]
async fn keeps_retired_files_while_a_listed_file_is_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let archive = Archive::local(folder.path()).expect("an archive");
    let empty = Version::read_newest(&archive, SOURCE).await.expect("none");
    let mut first = empty.next(1);
    let old = first.new_file_path(SOURCE);
    put(&archive, &old).await;
    first.files.push(entry(0, 5, &old));
    assert!(
        empty
            .commit(&archive, SOURCE, &first)
            .await
            .expect("created")
    );
    let mut second = first.next(2);
    let new = second.new_file_path(SOURCE);
    second.files[0].path = Some(new.clone());
    second.retire(old.clone());
    assert!(
        first
            .commit(&archive, SOURCE, &second)
            .await
            .expect("created")
    );
    let outcome = collect_garbage(&archive, SOURCE, GarbageScope::ALL, 3).await;
    let error = outcome.expect_err("a listed file is missing").to_string();
    assert!(error.contains(&new), "{error}");
    assert!(archive.get(&old).await.expect("reading").is_some());
    put(&archive, &new).await;
    collect_garbage(&archive, SOURCE, GarbageScope::ALL, 3)
        .await
        .expect("collecting");
    assert!(archive.get(&old).await.expect("reading").is_none());
}
