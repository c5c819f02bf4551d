//! Tests of upgrades of older files, and of processes of that version that still have the file
//! open. They must invalidate live counts that they do not know.

use arrow::array::BinaryArray;
use schemas::seam::GenerationStart;
use schemas::source::Source;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::*;
use crate::live::{Entries, EntryQuery, LiveRead};
use crate::live_count::{LiveCountChange, StoredLiveCount};

const VIEW: &str = "boards@1";
const PARTITION: PartitionId = PartitionId {
    source: Source::Authorizations,
    partition: 0,
};

async fn run_on_file(folder: &Path, statements: &'static str) {
    let path = folder.join("live.db");
    let options = SqliteConnectOptions::new().filename(path);
    let mut file = options.connect().await.expect("the file");
    let result = sqlx::raw_sql(statements).execute(&mut file).await;
    result.expect("statements");
    file.close().await.expect("closing");
}

/// Writes an entry and a live count, and returns the stored live count.
async fn put_entry(
    live: &SqliteLive,
    next_offset: i64,
    expected: Option<&StoredLiveCount>,
    next: Option<&StoredLiveCount>,
) -> Option<StoredLiveCount> {
    let array = |bytes: &[u8]| BinaryArray::from_iter_values([bytes]);
    let changes = Changes {
        entries: vec![Entries {
            view: VIEW.to_owned(),
            keys: array(b"k"),
            members: array(b"a"),
            entries: array(b"1"),
        }],
        live_counts: vec![LiveCountChange {
            view: VIEW.to_owned(),
            key: b"k".to_vec(),
            expected: expected.cloned(),
            next: next.cloned(),
        }],
        ..Changes::default()
    };
    let fence = Checkpoint {
        generation: 1,
        next_offset: next_offset - 1,
        epoch: 1,
    };
    let cut = Cut {
        next_offset,
        last: None,
    };
    let applied = live.apply(PARTITION, fence, cut, &[VIEW], &changes).await;
    assert_eq!(applied.expect("live state"), Ok(()));
    stored_count(live).await
}

async fn stored_count(live: &SqliteLive) -> Option<StoredLiveCount> {
    let query = EntryQuery {
        view: VIEW.to_owned(),
        key: b"k".to_vec(),
        partition: None,
    };
    let snapshot = live.read_live_counts(PARTITION.source, 1, &[query]).await;
    let entries = snapshot.expect("entries").entries.remove(0);
    entries.live_counts.into_iter().next().map(|(_, sum)| sum)
}

#[tokio::test]
async fn upgrades_add_live_counts_and_older_processes_invalidate_them() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join(super::super::db::LOCKS)).expect("a folder");
    let live = SqliteLive::open(folder.path()).await.expect("a new file");
    let start = GenerationStart {
        newest: 0,
        cut: Cut::start(),
        log_end: 0,
        generation_min: 1,
    };
    let rebuilt = live
        .rebuild(PARTITION, None, &start)
        .await
        .expect("live state");
    assert_eq!(rebuilt, Ok(()));
    assert_eq!(put_entry(&live, 1, None, None).await, None);
    drop(live);
    // Restores the tables from before live counts.
    run_on_file(
        folder.path(),
        "DROP TRIGGER sums_end_where_states_come; DROP TRIGGER sums_end_where_states_change;
         DROP TABLE sums; PRAGMA user_version = 3;",
    )
    .await;

    let live = SqliteLive::open(folder.path()).await.expect("opening");
    let (pending, finished) = (StoredLiveCount::started(), StoredLiveCount::completed(b"1"));
    let count = put_entry(&live, 2, None, Some(&pending)).await;
    assert_eq!(count.as_ref(), Some(&pending));
    let count = put_entry(&live, 3, Some(&pending), Some(&finished)).await;
    assert_eq!(count.as_ref(), Some(&finished));
    run_on_file(
        folder.path(),
        "INSERT INTO states (place, key, member, state) SELECT id, x'6b', x'61', x'32' FROM places
         WHERE true ON CONFLICT DO UPDATE SET state = excluded.state;",
    )
    .await;
    assert_eq!(stored_count(&live).await, None, "an entry was changed");
    put_entry(&live, 4, None, Some(&finished)).await;
    run_on_file(
        folder.path(),
        "INSERT INTO states (place, key, member, state) SELECT id, x'6b', x'62', x'32' FROM places
         WHERE true ON CONFLICT DO UPDATE SET state = excluded.state;",
    )
    .await;
    assert_eq!(stored_count(&live).await, None, "an entry was added");
}
