//! Cached boards on a server that is full, or has lost what it wrote last.

use schemas::source::Source;
use stores::board_cache::{
    BoardCache, BoardCacheRead, BoardName, BoardQuery, BoardRegister, BoardRow, BoardSelection,
    CacheLookup, CachedBoardChange, CachedBoardChanges, RegisteredBoard, Revision,
};
use stores::live::Changes;
use tests::world::World;

use super::*;
use crate::board_cache::{OVERALL, athletes, effort, fill, filled, world_on};

fn name(key: u8) -> BoardName {
    BoardName {
        view: VIEW.to_owned(),
        key: vec![key],
        section: vec![0],
    }
}

fn rows(count: usize) -> Vec<BoardRow> {
    let row = |member: usize| BoardRow {
        member: member.to_be_bytes().to_vec(),
        score: Vec::new(),
        payload: vec![b'x'; 100],
        weight: 1,
        epoch: 0,
    };
    (0..count).map(row).collect()
}

/// Puts a board with some rows into the cache.
async fn put(live: &RedisLive, at: Checkpoint, key: u8, count: usize) -> Result<RegisteredBoard> {
    put_rows(live, at, key, &rows(count)).await
}

async fn put_rows(
    live: &RedisLive,
    at: Checkpoint,
    key: u8,
    rows: &[BoardRow],
) -> Result<RegisteredBoard> {
    let revision = live.read_register(slot(0)).await?.revision;
    let begun = live.begin_fill(slot(0), (at, revision), &name(key)).await?;
    let (id, revision) = begun.expect("the slot stands");
    let (name, bytes) = (name(key), None);
    let board = RegisteredBoard { name, id, bytes };
    assert!(live.fill(slot(0), (&board, 1), rows).await?);
    let ended = live.end_fill(slot(0), (at, revision), (&board, 1), 0);
    ended.await?.expect("the slot stands");
    let bytes = live.measure(slot(0), &board, i64::from(key)).await?;
    Ok(RegisteredBoard { bytes, ..board })
}

fn keys(server: &Server, of: &str) -> usize {
    let found = server.ask(&["KEYS", of]);
    found.lines().filter(|line| !line.is_empty()).count()
}

/// A list goes on after a row by the order of bytes, also among equal first numbers and after a row that the board does not have.
#[tokio::test]
async fn rows_after_a_row_are_those_of_a_plain_sort() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    heal(&live, 0).await?;
    let number = |number: i64| (number.cast_unsigned() ^ (1 << 63)).to_be_bytes().to_vec();
    let key = |first: i64, rest: u8, member: u8| {
        let score = [number(first), vec![rest]].concat();
        (score, vec![member])
    };
    let bytes = [0, 1, b'9', 127, 128, 255];
    let mut keys = Vec::new();
    for first in [-(1 << 53), -1, 0, 7, 1 << 53] {
        for rest in bytes {
            keys.extend(bytes.map(|member| key(first, rest, member)));
        }
    }
    // Every other one is on the board.
    let row = |(score, member): &(Vec<u8>, Vec<u8>)| BoardRow {
        member: [score.as_slice(), member].concat(),
        score: score.clone(),
        payload: Vec::new(),
        weight: 1,
        epoch: 0,
    };
    let rows: Vec<BoardRow> = keys.iter().step_by(2).map(row).collect();
    put_rows(&live, fence(0, 1), 1, &rows).await?;
    keys.extend([i64::MIN, i64::MAX, (1 << 53) + 1].map(|first| key(first, 1, 1)));
    let query = |(score, member): &(Vec<u8>, Vec<u8>)| BoardQuery {
        name: name(1),
        partition: 0,
        score_bytes: 9,
        selection: BoardSelection::After {
            score: score.clone(),
            member: [score.as_slice(), member].concat(),
            limit: 3,
        },
    };
    let queries: Vec<BoardQuery> = keys.iter().map(query).collect();
    let answers = live.read_boards(Source::Plays, &queries).await?;
    for ((score, member), answer) in keys.iter().zip(answers) {
        let member = [score.as_slice(), member].concat();
        let CacheLookup::Board(board) = answer.board else {
            panic!("the board is there")
        };
        let is_after = |row: &&BoardRow| (&row.score, &row.member) > (score, &member);
        let expected: Vec<BoardRow> = rows.iter().filter(is_after).cloned().collect();
        let first = rows.len() - expected.len();
        assert_eq!(
            board.first_index, first as u64,
            "after {score:?} {member:?}"
        );
        assert_eq!(
            board.rows,
            expected[..expected.len().min(3)],
            "after {score:?}"
        );
    }
    Ok(())
}

/// The board that another one replaces leaves nothing behind.
#[tokio::test]
async fn a_board_in_the_place_of_another_leaves_none_of_it() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    heal(&live, 0).await?;
    put(&live, fence(0, 1), 1, 3).await?;
    assert_eq!(keys(&server, "*:b:*"), 3);
    let second = put(&live, fence(0, 1), 1, 3).await?;
    assert_eq!(keys(&server, "*:b:*"), 3);
    let BoardRegister {
        boards,
        stale_boards,
        ..
    } = live.read_register(slot(0)).await?;
    assert_eq!((boards, stale_boards), (vec![second], vec![]));
    Ok(())
}

/// Whoever goes on from what the server still had names nothing as those did whose writes are lost.
#[tokio::test]
async fn lost_changes_of_the_register_are_not_taken_for_others() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    heal(&live, 0).await?;
    let key = server.ask(&["KEYS", "*:slot"]);
    server.ask(&["COPY", &key, "aside"]);
    let (at, none) = (fence(0, 1), Revision::default());
    let lost = live.begin_fill(slot(0), (at, none), &name(1)).await?;
    let (lost, lost_revision) = lost.expect("the slot stands");
    server.ask(&["COPY", "aside", &key, "REPLACE"]);
    server.ask(&["DEL", &key.replace(":slot", ":boards")]);

    let other = open(&server.options()).await?;
    let kept = other.begin_fill(slot(0), (at, none), &name(2)).await?;
    let (kept, kept_revision) = kept.expect("the slot stands");
    assert_ne!((&lost, lost_revision), (&kept, kept_revision));
    let (name, bytes) = (name(1), None);
    let (id, believed) = (lost, (at, lost_revision));
    let lost = RegisteredBoard { name, id, bytes };
    assert!(!live.fill(slot(0), (&lost, 1), &rows(1)).await?);
    let ended = live.end_fill(slot(0), believed, (&lost, 0), 0).await?;
    assert!(ended.is_err(), "{ended:?}");
    let dropped = live.remove_boards(slot(0), believed, &[lost]).await?;
    assert!(dropped.is_err(), "{dropped:?}");
    let register = live.read_register(slot(0)).await?;
    assert_eq!(register.revision, kept_revision);
    assert_eq!(register.boards[0].id, kept);
    Ok(())
}

/// A server that took over has the record, but not the last step of a filling, which the record does not name.
#[tokio::test]
async fn a_filling_whose_last_step_is_lost_is_refused_at_once() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    heal(&live, 0).await?;
    let (at, none) = (fence(0, 1), Revision::default());
    let begun = live.begin_fill(slot(0), (at, none), &name(1)).await?;
    let (id, revision) = begun.expect("the slot stands");
    let register = server.ask(&["KEYS", "*:boards"]);
    server.ask(&["COPY", &register, "aside"]);
    let (name, bytes) = (name(1), None);
    let board = RegisteredBoard { name, id, bytes };
    assert!(live.fill(slot(0), (&board, 1), &rows(1)).await?);
    server.ask(&["COPY", "aside", &register, "REPLACE"]);

    let calls = calls_of_scripts(&server);
    let ended = live.end_fill(slot(0), (at, revision), (&board, 1), 0);
    assert_eq!(ended.await?, Err(CheckpointMismatch { actual: Some(at) }));
    assert_eq!(calls_of_scripts(&server) - calls, 1);
    // Nothing was changed, and the board can go.
    assert_eq!(live.read_register(slot(0)).await?.revision, revision);
    let dropped = live
        .remove_boards(slot(0), (at, revision), &[board])
        .await?;
    dropped.expect("the slot stands");
    assert_eq!(live.read_register(slot(0)).await?.boards, []);
    Ok(())
}

/// How many scripts the server has run by their hash, whether it knew them or not.
fn calls_of_scripts(server: &Server) -> usize {
    let stats = server.ask(&["INFO", "commandstats"]);
    let of_scripts = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = of_scripts.and_then(|line| line.split([':', '=', ',']).nth(2));
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// A note that comes after a board has gone is none, and one that is there nevertheless is passed over.
#[tokio::test]
async fn only_boards_of_the_register_are_noted_as_read() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    heal(&live, 0).await?;
    let boards = [
        put(&live, fence(0, 1), 1, 1).await?,
        put(&live, fence(0, 1), 2, 1).await?,
        put(&live, fence(0, 1), 3, 1).await?,
    ];
    assert_eq!(live.least_used(slot(0), 2).await?, [name(1), name(2)]);
    live.record_use(slot(0), &name(1), 10).await?;
    // An earlier note that comes late.
    live.record_use(slot(0), &name(1), 4).await?;
    assert_eq!(
        live.least_used(slot(0), 9).await?,
        [name(2), name(3), name(1)]
    );
    let revision = live.read_register(slot(0)).await?.revision;
    let gone = live.remove_boards(slot(0), (fence(0, 1), revision), &boards[1..2]);
    gone.await?.expect("the slot stands");
    live.record_use(slot(0), &name(2), 11).await?;
    let used = server.ask(&["KEYS", "*:boards:used"]);
    assert_eq!(server.ask(&["ZCARD", &used]), "2");
    for stale in ["one", "two", "three"] {
        server.ask(&["ZADD", &used, "1", stale]);
    }
    assert_eq!(live.least_used(slot(0), 1).await?, [name(3)]);
    assert_eq!(live.least_used(slot(0), 2).await?, [name(3), name(1)]);
    assert_eq!(server.ask(&["ZCARD", &used]), "2");
    Ok(())
}

/// It is told at once, and everything goes through that gives memory back.
#[tokio::test]
async fn boards_can_go_when_memory_is_full() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    heal(&live, 0).await?;
    let board = put(&live, fence(0, 1), 1, 100).await?;
    server.ask(&["CONFIG", "SET", "maxmemory", "1000"]);
    let changes = Changes {
        boards: CachedBoardChanges {
            boards: vec![CachedBoardChange {
                id: board.id.clone(),
                rows: vec![(vec![1], None)],
            }],
            ..CachedBoardChanges::default()
        },
        ..Changes::default()
    };
    let begun = Instant::now();
    let full = live.apply(slot(0), fence(0, 1), cut(1), &[VIEW], &changes);
    let full = full.await.expect_err("no memory");
    assert!(matches!(full, stores::Error::Full { .. }), "{full}");
    assert!(begun.elapsed() < Duration::from_secs(10), "it waited");
    live.record_use(slot(0), &name(1), 9).await?;
    assert_eq!(live.least_used(slot(0), 9).await?, [name(1)]);
    assert!(live.measure(slot(0), &board, 9).await?.is_some());
    let revision = live.read_register(slot(0)).await?.revision;
    let gone = [board];
    let gone = live.remove_boards(slot(0), (fence(0, 1), revision), &gone);
    gone.await?.expect("the slot stands");
    assert_eq!(keys(&server, "*:b*"), 0);
    Ok(())
}

/// The memory that a server uses.
fn used(server: &Server) -> u64 {
    let info = server.ask(&["INFO", "memory"]);
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.trim().parse().ok())
        .expect("its memory")
}

/// A worker goes on counting where a full server holds cached boards: they make room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_boards_make_room_for_counts() {
    let server = Server::start(&[]);
    let mut world = World::on_servers().await;
    let live = open(&server.options()).await.expect("the server");
    world.stores.live = Arc::new(live);
    // Rows enough that their memory is more than what connections take.
    world.speed_options = speed::SpeedOptions {
        poll_interval_ms: 1,
        look_interval_ms: 5,
        run_wait_ms: 200,
        ..speed::SpeedOptions::default()
    };
    let world = world_on(world, 5_000).await;
    let served = world.serve().await;
    fill(&world, &served.client, OVERALL).await;
    let (_, board) = filled(&world).await.remove(0);
    let bytes = board.bytes.expect("its memory");
    assert!(bytes > 1_000_000, "{bytes}");
    let max = (used(&server) - bytes / 2).to_string();
    server.ask(&["CONFIG", "SET", "maxmemory", &max]);
    world.ingest_into(Source::Efforts, &[effort(9, 1)]).await;
    let begun = Instant::now();
    world.catch_up_on(Source::Efforts).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "it waited");
    assert_eq!(filled(&world).await.len(), 0);
    assert_eq!(athletes(&served.client, OVERALL).await, [9, 1, 2, 3, 4]);
    served.end().await;
}
