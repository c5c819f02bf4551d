//! Cached boards on a server whose memory is full or whose last writes are lost.

use schemas::source::Source;
use stores::board_cache::{
    BoardCache, BoardCacheRead, BoardName, BoardQuery, BoardRegister, BoardRow, BoardSelection,
    CacheLookup, CachedBoardChange, CachedBoardChanges, RegisteredBoard, Revision,
};
use stores::live::Changes;
use tests::world::World;

use super::*;
use crate::board_cache::{OVERALL, effort, fetch_athletes, fill, list_filled, world_on};

fn name(key: u8) -> BoardName {
    BoardName {
        view: VIEW.to_owned(),
        key: vec![key],
        filtered_board: vec![0],
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
async fn put(
    live: &RedisLive,
    checkpoint: Checkpoint,
    key: u8,
    count: usize,
) -> Result<RegisteredBoard> {
    put_rows(live, checkpoint, key, &rows(count)).await
}

async fn put_rows(
    live: &RedisLive,
    checkpoint: Checkpoint,
    key: u8,
    rows: &[BoardRow],
) -> Result<RegisteredBoard> {
    let revision = live.read_register(state_id(0)).await?.revision;
    let begun = live
        .begin_fill(state_id(0), (checkpoint, revision), &name(key))
        .await?;
    let (id, revision) = begun.expect("a matching checkpoint");
    let (name, bytes) = (name(key), None);
    let board = RegisteredBoard { name, id, bytes };
    assert!(live.fill(state_id(0), (&board, 1), rows).await?);
    let ended = live.end_fill(state_id(0), (checkpoint, revision), (&board, 1), 0);
    ended.await?.expect("a matching checkpoint");
    let bytes = live.measure(state_id(0), &board, i64::from(key)).await?;
    Ok(RegisteredBoard { bytes, ..board })
}

fn key_count(server: &Server, pattern: &str) -> usize {
    let keys = server.run(&["KEYS", pattern]);
    keys.lines().filter(|line| !line.is_empty()).count()
}

/// A page starts after a row in byte order, also among rows with the same first number, and after a
/// row that the board does not contain.
#[tokio::test]
async fn pages_match_a_plain_sort() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    rebuild(&live, 0).await?;
    let number = |number: i64| (number.cast_unsigned() ^ (1 << 63)).to_be_bytes().to_vec();
    let key = |first: i64, suffix: u8, member: u8| {
        let score = [number(first), vec![suffix]].concat();
        (score, vec![member])
    };
    let bytes = [0, 1, b'9', 127, 128, 255];
    let mut keys = Vec::new();
    for first in [-(1 << 53), -1, 0, 7, 1 << 53] {
        for suffix in bytes {
            keys.extend(bytes.map(|member| key(first, suffix, member)));
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
    put_rows(&live, checkpoint(0, 1), 1, &rows).await?;
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
    let results = live.read_boards(Source::Plays, &queries).await?;
    for ((score, member), result) in keys.iter().zip(results) {
        let member = [score.as_slice(), member].concat();
        let CacheLookup::Board(board) = result.board else {
            panic!("the board is missing")
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

/// A replaced board leaves no keys behind.
#[tokio::test]
async fn replacing_a_board_deletes_its_keys() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    rebuild(&live, 0).await?;
    put(&live, checkpoint(0, 1), 1, 3).await?;
    assert_eq!(key_count(&server, "*:b:*"), 3);
    let second = put(&live, checkpoint(0, 1), 1, 3).await?;
    assert_eq!(key_count(&server, "*:b:*"), 3);
    let BoardRegister {
        boards,
        stale_boards,
        ..
    } = live.read_register(state_id(0)).await?;
    assert_eq!((boards, stale_boards), (vec![second], vec![]));
    Ok(())
}

/// Identifiers and revisions of lost writes are not reused after the server falls back to older
/// data.
#[tokio::test]
async fn lost_register_changes_are_not_mistaken_for_others() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    rebuild(&live, 0).await?;
    let key = server.run(&["KEYS", "*:slot"]);
    server.run(&["COPY", &key, "aside"]);
    let (start, none) = (checkpoint(0, 1), Revision::default());
    let lost = live
        .begin_fill(state_id(0), (start, none), &name(1))
        .await?;
    let (lost, lost_revision) = lost.expect("a matching checkpoint");
    server.run(&["COPY", "aside", &key, "REPLACE"]);
    server.run(&["DEL", &key.replace(":slot", ":boards")]);

    let other_client = open(&server.options()).await?;
    let current = other_client
        .begin_fill(state_id(0), (start, none), &name(2))
        .await?;
    let (current, current_revision) = current.expect("a matching checkpoint");
    assert_ne!((&lost, lost_revision), (&current, current_revision));
    let (name, bytes) = (name(1), None);
    let (id, expected) = (lost, (start, lost_revision));
    let lost = RegisteredBoard { name, id, bytes };
    assert!(!live.fill(state_id(0), (&lost, 1), &rows(1)).await?);
    let ended = live.end_fill(state_id(0), expected, (&lost, 0), 0).await?;
    assert!(ended.is_err(), "{ended:?}");
    let dropped = live.remove_boards(state_id(0), expected, &[lost]).await?;
    assert!(dropped.is_err(), "{dropped:?}");
    let register = live.read_register(state_id(0)).await?;
    assert_eq!(register.revision, current_revision);
    assert_eq!(register.boards[0].id, current);
    Ok(())
}

/// After a failover the server may have the partition state but not the last step of a filling.
#[tokio::test]
async fn a_filling_with_a_lost_step_is_rejected_at_once() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    rebuild(&live, 0).await?;
    let (start, none) = (checkpoint(0, 1), Revision::default());
    let begun = live
        .begin_fill(state_id(0), (start, none), &name(1))
        .await?;
    let (id, revision) = begun.expect("a matching checkpoint");
    let register = server.run(&["KEYS", "*:boards"]);
    server.run(&["COPY", &register, "aside"]);
    let (name, bytes) = (name(1), None);
    let board = RegisteredBoard { name, id, bytes };
    assert!(live.fill(state_id(0), (&board, 1), &rows(1)).await?);
    server.run(&["COPY", "aside", &register, "REPLACE"]);

    let calls = evalsha_count(&server);
    let ended = live.end_fill(state_id(0), (start, revision), (&board, 1), 0);
    assert_eq!(
        ended.await?,
        Err(CheckpointMismatch {
            actual: Some(start)
        })
    );
    assert_eq!(evalsha_count(&server) - calls, 1);
    // Nothing was changed, and the board can be removed.
    assert_eq!(live.read_register(state_id(0)).await?.revision, revision);
    let dropped = live
        .remove_boards(state_id(0), (start, revision), &[board])
        .await?;
    dropped.expect("a matching checkpoint");
    assert_eq!(live.read_register(state_id(0)).await?.boards, []);
    Ok(())
}

/// Returns how often the server ran a script by its hash, including unknown hashes.
fn evalsha_count(server: &Server) -> usize {
    let stats = server.run(&["INFO", "commandstats"]);
    let line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = line.and_then(|line| line.split([':', '=', ',']).nth(2));
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Uses of removed boards are not recorded, and recorded ones are ignored.
#[tokio::test]
async fn only_registered_boards_are_recorded_as_used() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    rebuild(&live, 0).await?;
    let boards = [
        put(&live, checkpoint(0, 1), 1, 1).await?,
        put(&live, checkpoint(0, 1), 2, 1).await?,
        put(&live, checkpoint(0, 1), 3, 1).await?,
    ];
    assert_eq!(live.least_used(state_id(0), 2).await?, [name(1), name(2)]);
    live.record_use(state_id(0), &name(1), 10).await?;
    // An earlier use that is recorded late.
    live.record_use(state_id(0), &name(1), 4).await?;
    assert_eq!(
        live.least_used(state_id(0), 9).await?,
        [name(2), name(3), name(1)]
    );
    let revision = live.read_register(state_id(0)).await?.revision;
    let removed = live.remove_boards(state_id(0), (checkpoint(0, 1), revision), &boards[1..2]);
    removed.await?.expect("a matching checkpoint");
    live.record_use(state_id(0), &name(2), 11).await?;
    let used = server.run(&["KEYS", "*:boards:used"]);
    assert_eq!(server.run(&["ZCARD", &used]), "2");
    for stale in ["one", "two", "three"] {
        server.run(&["ZADD", &used, "1", stale]);
    }
    assert_eq!(live.least_used(state_id(0), 1).await?, [name(3)]);
    assert_eq!(live.least_used(state_id(0), 2).await?, [name(3), name(1)]);
    assert_eq!(server.run(&["ZCARD", &used]), "2");
    Ok(())
}

/// A full server is reported at once, and calls that free memory succeed.
#[tokio::test]
async fn boards_can_be_removed_when_memory_is_full() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    rebuild(&live, 0).await?;
    let board = put(&live, checkpoint(0, 1), 1, 100).await?;
    server.run(&["CONFIG", "SET", "maxmemory", "1000"]);
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
    let full = live.apply(state_id(0), checkpoint(0, 1), cut(1), &[VIEW], &changes);
    let full = full.await.expect_err("no memory");
    assert!(matches!(full, stores::Error::Full { .. }), "{full}");
    assert!(begun.elapsed() < Duration::from_secs(10), "it waited");
    live.record_use(state_id(0), &name(1), 9).await?;
    assert_eq!(live.least_used(state_id(0), 9).await?, [name(1)]);
    assert!(live.measure(state_id(0), &board, 9).await?.is_some());
    let revision = live.read_register(state_id(0)).await?.revision;
    let removed = [board];
    let removed = live.remove_boards(state_id(0), (checkpoint(0, 1), revision), &removed);
    removed.await?.expect("a matching checkpoint");
    assert_eq!(key_count(&server, "*:b*"), 0);
    Ok(())
}

/// Returns the memory that a server uses, in bytes.
fn used_memory(server: &Server) -> u64 {
    let info = server.run(&["INFO", "memory"]);
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.trim().parse().ok())
        .expect("its memory")
}

/// A worker on a full server removes cached boards to continue counting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_boards_make_room_for_counts() {
    let server = Server::start(&[]);
    let mut world = World::on_servers().await;
    let live = open(&server.options()).await.expect("the server");
    world.stores.live = Arc::new(live);
    // Enough rows to use more memory than the connections.
    world.speed_options = speed::SpeedOptions {
        poll_interval_ms: 1,
        look_interval_ms: 5,
        run_wait_ms: 200,
        ..speed::SpeedOptions::default()
    };
    let world = world_on(world, 5_000).await;
    let served = world.serve().await;
    fill(&world, &served.client, OVERALL).await;
    let (_, board) = list_filled(&world).await.remove(0);
    let bytes = board.bytes.expect("its memory");
    assert!(bytes > 1_000_000, "{bytes}");
    let max = (used_memory(&server) - bytes / 2).to_string();
    server.run(&["CONFIG", "SET", "maxmemory", &max]);
    world.ingest_into(Source::Efforts, &[effort(9, 1)]).await;
    let begun = Instant::now();
    world.catch_up_on(Source::Efforts).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "it waited");
    assert_eq!(list_filled(&world).await.len(), 0);
    assert_eq!(
        fetch_athletes(&served.client, OVERALL).await,
        [9, 1, 2, 3, 4]
    );
    served.end().await;
}
