//! Files of an older version are brought to this one; and processes of that version, which may have the file
//! open still, end sums that they do not know.

use arrow::array::BinaryArray;
use schemas::seam::NewLife;
use schemas::source::Source;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::*;
use crate::kept_sum::{KeptSum, SumChange};
use crate::live::{LiveRead, StateQuery, States};

const VIEW: &str = "boards@1";
const SLOT: SlotId = SlotId {
    source: Source::Authorizations,
    partition: 0,
};

async fn on_file(folder: &Path, statements: &'static str) {
    let path = folder.join("live.db");
    let options = SqliteConnectOptions::new().filename(path);
    let mut file = options.connect().await.expect("the file");
    let done = sqlx::raw_sql(statements).execute(&mut file).await;
    done.expect("statements");
    file.close().await.expect("closing");
}

/// Puts a state of a member under a key, and a sum, and answers which sum is kept.
async fn put(
    live: &SqliteLive,
    next_offset: i64,
    (believed, next): (Option<&KeptSum>, Option<&KeptSum>),
) -> Option<KeptSum> {
    let one = |bytes: &[u8]| BinaryArray::from_iter_values([bytes]);
    let changes = Changes {
        states: vec![States {
            view: VIEW.to_owned(),
            keys: one(b"k"),
            members: one(b"a"),
            states: one(b"1"),
        }],
        sums: vec![SumChange {
            view: VIEW.to_owned(),
            key: b"k".to_vec(),
            believed: believed.cloned(),
            next: next.cloned(),
        }],
        ..Changes::default()
    };
    let fence = Fence {
        generation: 1,
        next_offset: next_offset - 1,
        epoch: 1,
    };
    let cut = Cut {
        next_offset,
        last: None,
    };
    let applied = live.apply(SLOT, fence, cut, &[VIEW], &changes).await;
    assert_eq!(applied.expect("live state"), Ok(()));
    kept(live).await
}

async fn kept(live: &SqliteLive) -> Option<KeptSum> {
    let query = StateQuery {
        view: VIEW.to_owned(),
        key: b"k".to_vec(),
        partition: None,
    };
    let answer = live.read_sums(SLOT.source, 1, &[query]).await;
    let states = answer.expect("states").states.remove(0);
    states.sums.into_iter().next().map(|(_, sum)| sum)
}

#[tokio::test]
async fn an_older_file_gets_sums_and_older_processes_end_them() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join(super::super::db::LOCKS)).expect("a folder");
    let live = SqliteLive::open(folder.path()).await.expect("a new file");
    let life = NewLife {
        newest: 0,
        cut: Cut::start(),
        log_end: 0,
        hint: 1,
    };
    let healed = live.heal(SLOT, None, &life).await.expect("live state");
    assert_eq!(healed, Ok(()));
    assert_eq!(put(&live, 1, (None, None)).await, None);
    drop(live);
    // As it was before there were sums.
    on_file(
        folder.path(),
        "DROP TRIGGER sums_end_where_states_come; DROP TRIGGER sums_end_where_states_change;
         DROP TABLE sums; PRAGMA user_version = 3;",
    )
    .await;

    let live = SqliteLive::open(folder.path()).await.expect("opening");
    let (begun, made) = (KeptSum::begun(), KeptSum::made(b"1"));
    let kept_now = put(&live, 2, (None, Some(&begun))).await;
    assert_eq!(kept_now.as_ref(), Some(&begun));
    let kept_now = put(&live, 3, (Some(&begun), Some(&made))).await;
    assert_eq!(kept_now.as_ref(), Some(&made));
    on_file(
        folder.path(),
        "INSERT INTO states (place, key, member, state) SELECT id, x'6b', x'61', x'32' FROM places
         WHERE true ON CONFLICT DO UPDATE SET state = excluded.state;",
    )
    .await;
    assert_eq!(kept(&live).await, None, "a state was changed");
    put(&live, 4, (None, Some(&made))).await;
    on_file(
        folder.path(),
        "INSERT INTO states (place, key, member, state) SELECT id, x'6b', x'62', x'32' FROM places
         WHERE true ON CONFLICT DO UPDATE SET state = excluded.state;",
    )
    .await;
    assert_eq!(kept(&live).await, None, "a state has come");
}
