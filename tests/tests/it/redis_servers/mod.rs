//! Failures specific to Redis: eviction, full memory, lost connections, failover, wrong key types.

mod boards;
mod cluster;
mod installation;
pub(crate) mod server;
mod tls;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow::array::BinaryArray;
use schemas::seam::{Checkpoint, CheckpointMismatch, Cut};
use schemas::source::Source;
use stores::live::{Changes, DeltaQuery, Deltas, LiveRead, LiveWrite};
use stores::namespace::Namespace;
use stores::redis::{RedisLive, RedisOptions};
use stores::{ErrorKind, Result, Server as _};
use tests::conformance::{VIEW, binary, new_generation, state_id};
use tests::servers;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use server::Server;

fn namespace() -> Namespace {
    "blue".parse().expect("a namespace")
}

async fn open(options: &RedisOptions) -> Result<RedisLive> {
    RedisLive::open(options, &namespace()).await
}

const fn cut(next_offset: i64) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}

const fn checkpoint(next_offset: i64, epoch: u64) -> Checkpoint {
    Checkpoint {
        generation: 1,
        next_offset,
        epoch,
    }
}

async fn rebuild(live: &RedisLive, partition: u32) -> Result<()> {
    let outcome = live
        .rebuild(state_id(partition), None, &new_generation(0, 0, 1))
        .await?;
    assert_eq!(outcome, Ok(()), "there was no partition state");
    Ok(())
}

fn rows(group: &str, rows: impl IntoIterator<Item = (String, i64)>) -> Vec<Deltas> {
    let (rows, counts): (Vec<String>, Vec<i64>) = rows.into_iter().unzip();
    vec![Deltas {
        view: VIEW.to_owned(),
        grouped_by: "g".to_owned(),
        groups: binary(rows.iter().map(|_| group)),
        rows: binary(&rows),
        counts: counts.into(),
    }]
}

/// Adds one to a row.
async fn add(
    live: &RedisLive,
    partition: u32,
    expected: Checkpoint,
) -> Result<std::result::Result<(), CheckpointMismatch>> {
    let deltas = rows("g", [("r".to_owned(), 1)]);
    let next = cut(expected.next_offset + 1);
    live.apply(state_id(partition), expected, next, &[VIEW], &deltas.into())
        .await
}

/// Returns the next offset of a partition state and the total of a group's rows; zeros if the state
/// is missing.
async fn read_totals(live: &RedisLive, partition: u32, group: &str) -> Result<(i64, i64)> {
    let query = DeltaQuery {
        view: VIEW.to_owned(),
        group: group.into(),
        ranges: vec![(Vec::new(), None)],
        partition: Some(partition),
    };
    let snapshot = live
        .read_deltas(Source::Plays, partition + 1, &[query])
        .await?;
    let state = snapshot.partition_states[partition as usize].as_ref();
    let next = state.map_or(0, |state| state.position.next_offset);
    Ok((next, snapshot.deltas[0].counts.values().iter().sum()))
}

#[tokio::test]
async fn scripts_are_loaded_again_after_a_flush() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    rebuild(&live, 0).await?;
    for next in 0..3 {
        assert_eq!(server.run(&["SCRIPT", "FLUSH"]), "OK");
        assert_eq!(add(&live, 0, checkpoint(next, 1)).await?, Ok(()));
        assert_eq!(server.run(&["SCRIPT", "FLUSH"]), "OK");
        assert_eq!(read_totals(&live, 0, "g").await?, (next + 1, next + 1));
    }
    Ok(())
}

/// The policy is checked at open and on each new connection.
#[tokio::test]
async fn an_evicting_server_is_rejected() -> Result<()> {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let refused = open(&server.options()).await.expect_err("it evicts");
    assert_eq!(refused.kind(), ErrorKind::Fatal);
    assert!(refused.to_string().contains("noeviction"), "{refused}");
    server.run(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let live = open(&server.options()).await?;
    assert_eq!(live.diagnostics().await?, Vec::<String>::new());
    rebuild(&live, 0).await?;

    server.run(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    let diagnostics = live.diagnostics().await?;
    assert!(diagnostics[0].contains("volatile-ttl"), "{diagnostics:?}");
    server.run(&["CLIENT", "KILL", "TYPE", "normal"]);
    let refused = add(&live, 0, checkpoint(0, 1))
        .await
        .expect_err("it evicts");
    assert_eq!(refused.kind(), ErrorKind::Fatal, "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_missing_append_only_file_causes_a_warning() -> Result<()> {
    let server = Server::start(&["--appendonly", "no"]);
    let diagnostics = open(&server.options()).await?.diagnostics().await?;
    assert!(diagnostics[0].contains("appendonly yes"), "{diagnostics:?}");
    Ok(())
}

#[tokio::test]
async fn a_replica_is_rejected() -> Result<()> {
    let (master, replica) = (Server::start(&[]), Server::start(&[]));
    let live = open(&replica.short_timeouts()).await?;
    rebuild(&live, 0).await?;
    let port = master.port.to_string();
    replica.run(&["REPLICAOF", "127.0.0.1", &port]);
    let refused = open(&replica.options()).await.expect_err("a replica");
    assert_eq!(refused.kind(), ErrorKind::Fatal);
    assert!(refused.to_string().contains("replica"), "{refused}");
    let refused = add(&live, 0, checkpoint(0, 1)).await;
    let refused = refused.expect_err("a connection to a replica");
    // The address may not lead to the new primary yet, so the error is retryable.
    assert_eq!(refused.kind(), ErrorKind::Retry, "{refused}");
    assert!(refused.to_string().contains("replica"), "{refused}");
    replica.run(&["REPLICAOF", "NO", "ONE"]);
    // Replication replaced its data with the primary's.
    assert_eq!(read_totals(&live, 0, "g").await?, (0, 0));
    Ok(())
}

/// The count of evicted keys is checked on open connections, too, independent of the current
/// policy.
#[tokio::test]
async fn evictions_are_detected() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    rebuild(&live, 0).await?;
    assert_eq!(add(&live, 0, checkpoint(0, 1)).await?, Ok(()));
    server.run(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    server.run(&["CONFIG", "SET", "maxmemory", "1000"]);
    server.run(&["SET", "something", "else"]);
    server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    server.run(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let info = server.run(&["INFO", "stats"]);
    assert!(!info.contains("evicted_keys:0"), "{info}");
    let begun = Instant::now();
    let refused = loop {
        match read_totals(&live, 0, "g").await {
            Err(refused) => break refused,
            Ok(_) => assert!(
                begun.elapsed() < Duration::from_secs(30),
                "the eviction was not detected"
            ),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(refused.kind(), ErrorKind::Fatal, "{refused}");
    assert!(refused.to_string().contains("evicted"), "{refused}");
    Ok(())
}

/// Error messages omit a password that is part of an address.
#[tokio::test]
async fn addresses_with_passwords_are_rejected_and_redacted() {
    for nodes in [
        "redis://:hunter2@cache:6379",
        "user:hunter2@cache",
        "a:1,redis://b",
    ] {
        let options = RedisOptions {
            nodes: nodes.to_owned(),
            ..RedisOptions::default()
        };
        let refused = open(&options).await.expect_err("no node").to_string();
        assert!(refused.contains("host:port"), "{refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}

/// A micro-batch writes nothing when memory is full; calls that free memory succeed.
#[tokio::test]
async fn full_memory_changes_nothing() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    rebuild(&live, 0).await?;
    assert_eq!(add(&live, 0, checkpoint(0, 1)).await?, Ok(()));
    server.run(&["CONFIG", "SET", "maxmemory", "1000"]);
    let error = add(&live, 0, checkpoint(1, 1))
        .await
        .expect_err("no memory");
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(error.to_string().contains("memory"), "{error}");
    assert_eq!(read_totals(&live, 0, "g").await?, (1, 1));
    assert_eq!(live.end_epoch(state_id(0), 1).await?, Ok(cut(1)));
    assert!(live.prune_through(state_id(0), 1, cut(1)).await?);
    assert_eq!(live.collect_garbage(state_id(0), 9).await?, 1);
    server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(add(&live, 0, checkpoint(1, 2)).await?, Ok(()));
    assert_eq!(read_totals(&live, 0, "g").await?, (2, 1));
    Ok(())
}

/// A key with a wrong type fails the micro-batch before its first write, or its writes are
/// reverted. Covers counts in the packed and in the plain encoding.
#[tokio::test]
async fn wrong_types_change_nothing() -> Result<()> {
    for (count, groups) in [(1, "*}:p*:g"), (1 << 40, "*}:d*:g")] {
        let server = Server::start(&[]);
        let live = open(&server.options()).await?;
        rebuild(&live, 0).await?;
        let changes = Changes::from(rows("g", [("r".to_owned(), count)]));
        let apply = live.apply(state_id(0), checkpoint(0, 1), cut(1), &[VIEW], &changes);
        assert_eq!(apply.await?, Ok(()));
        let group = server.run(&["KEYS", groups]);
        let index = group.strip_suffix(":g").expect("a group").to_owned();
        let record = server.run(&["KEYS", "*:slot"]);
        let three_groups = {
            let mut deltas = rows("a", [("r".to_owned(), count)]);
            deltas[0].groups = binary(["a", "f", "g"]);
            deltas[0].rows = binary(["r", "r", "r"]);
            deltas[0].counts = vec![count, count, count].into();
            Changes::from(deltas)
        };
        let mut damages: Vec<(&str, Vec<&str>)> = vec![
            (&index, vec!["SET", &index, "1"]),
            (&record, vec!["LPUSH", &record, "1"]),
            (&group, vec!["LPUSH", &group, "1"]),
        ];
        if count > 1 {
            damages.push((&group, vec!["HSET", &group, "r", "1e3"]));
        }
        for (key, command) in damages {
            server.run(&["RENAME", key, "aside"]);
            server.run(&command);
            let apply = live.apply(
                state_id(0),
                checkpoint(1, 1),
                cut(2),
                &[VIEW],
                &three_groups,
            );
            let refused = apply.await.expect_err("a wrong type");
            assert_eq!(refused.kind(), ErrorKind::Fatal, "{refused}");
            server.run(&["RENAME", "aside", key]);
            assert_eq!(read_totals(&live, 0, "g").await?, (1, count), "{command:?}");
            for untouched in ["a", "f"] {
                let (next, sum) = read_totals(&live, 0, untouched).await?;
                assert_eq!((next, sum), (1, 0), "{command:?}");
                let key = format!("{index}:{untouched}");
                assert_eq!(server.run(&["EXISTS", &key]), "0", "{command:?}");
            }
            assert_eq!(server.run(&["ZCARD", &index]), "1", "{command:?}");
        }
        let apply = live.apply(
            state_id(0),
            checkpoint(1, 1),
            cut(2),
            &[VIEW],
            &three_groups,
        );
        assert_eq!(apply.await?, Ok(()));
        assert_eq!(read_totals(&live, 0, "a").await?, (2, count));
        assert_eq!(read_totals(&live, 0, "g").await?, (2, 2 * count));
    }
    Ok(())
}

/// Rows of a round in one group.
const ROWS: i64 = 20;
/// Number of rounds.
const ROUNDS: i64 = 320;

/// Returns the deltas of a round: fixed rows of the group `g`, one row of `small`, and rows of
/// `wide` that occur in no other round.
fn deltas_of_round(view: &str, round: i64) -> Deltas {
    let rows_named = |name: &str| {
        let name = name.to_owned();
        (0..ROWS).map(move |row| (format!("{name} row of some length {row:02}"), 1))
    };
    let deltas = [
        rows("g", rows_named("a")),
        rows("small", [("r".to_owned(), 1)]),
        rows("wide", rows_named(&format!("round {round:03}"))),
    ];
    let deltas: Vec<Deltas> = deltas.into_iter().flatten().collect();
    let join_columns = |column: fn(&Deltas) -> &BinaryArray| {
        let values = deltas
            .iter()
            .flat_map(|deltas| column(deltas).iter().flatten());
        BinaryArray::from_iter_values(values.collect::<Vec<_>>())
    };
    Deltas {
        view: view.to_owned(),
        groups: join_columns(|deltas| &deltas.groups),
        rows: join_columns(|deltas| &deltas.rows),
        counts: deltas.iter().flat_map(|deltas| &deltas.counts).collect(),
        ..deltas[0].clone()
    }
}

/// Checks that reads and scans of a view return each row of all rounds once, with its total.
async fn assert_all_counts(live: &RedisLive, view: &str) -> Result<()> {
    let query = DeltaQuery {
        view: view.to_owned(),
        group: b"g".to_vec(),
        ranges: vec![(Vec::new(), None)],
        partition: None,
    };
    let snapshot = live.read_deltas(Source::Plays, 1, &[query]).await?;
    let counts = &snapshot.deltas[0].counts;
    assert_eq!(counts.values(), &vec![ROUNDS; 20][..]);
    let all_rows = live
        .collect_deltas(state_id(0), view, (0, 9), None, 1_000_000)
        .await?;
    let (summed, single) = all_rows.counts.values().split_at(21);
    assert_eq!(summed, &vec![ROUNDS; 21][..]);
    assert_eq!(single, &vec![1; 20 * 320][..]);
    // Pages of one row: same order, no gaps.
    let mut after = None;
    for row in 0..40 {
        let page = live
            .scan_deltas(state_id(0), view, (0, 9), after, 1)
            .await?;
        assert_eq!(
            page.deltas.rows.value(0),
            all_rows.rows.value(row),
            "row {row}"
        );
        after = page.next;
    }
    Ok(())
}

/// The packed string of a growing group is converted to chunks per view, also when the writing
/// process did not observe the growth. Reads and scans return each row once, summed over string and
/// chunks. Chunks with the same rows are merged.
#[tokio::test]
async fn growing_groups_keep_all_counts() -> Result<()> {
    const OTHER_VIEW: &str = "other@1";
    let server = Server::start(&[]);
    let (first_client, second_client) = (
        open(&server.options()).await?,
        open(&server.options()).await?,
    );
    rebuild(&first_client, 0).await?;
    for round in 0..ROUNDS {
        let changes = Changes::from(vec![
            deltas_of_round(VIEW, round),
            deltas_of_round(OTHER_VIEW, round),
        ]);
        let live = if round % 4 == 3 {
            &second_client
        } else {
            &first_client
        };
        let views = [VIEW, OTHER_VIEW];
        let (current, next) = (checkpoint(round, 1), cut(round + 1));
        let apply = live.apply(state_id(0), current, next, &views, &changes);
        assert_eq!(apply.await?, Ok(()));
        assert_eq!(
            read_totals(&first_client, 0, "g").await?,
            (round + 1, (round + 1) * ROWS)
        );
    }
    let number = |command: &[&str]| server.run(command).parse::<i64>().expect("a number");
    let strings = server.run(&["KEYS", "*}:p*:*"]);
    for string in strings.lines() {
        assert!(number(&["STRLEN", string]) < 8_000, "{string} is small");
    }
    assert_eq!(server.run(&["KEYS", "*}:d*:*"]), "", "no row has a field");
    for (group, chunks) in [("g", 1..40), ("wide", 40..200)] {
        let hashes = server.run(&["KEYS", &format!("*}}:c*:{group}")]);
        assert_eq!(hashes.lines().count(), 2, "one of each view: {hashes}");
        for hash in hashes.lines() {
            let count = number(&["HLEN", hash]);
            assert!(chunks.contains(&count), "{count} chunks of {group}");
        }
    }
    for view in [VIEW, OTHER_VIEW] {
        for live in [&first_client, &second_client] {
            assert_all_counts(live, view).await?;
        }
    }
    assert_eq!(
        read_totals(&first_client, 0, "wide").await?,
        (ROUNDS, ROUNDS * ROWS)
    );
    assert_eq!(
        first_client.end_epoch(state_id(0), 1).await?,
        Ok(cut(ROUNDS))
    );
    assert!(
        first_client
            .prune_through(state_id(0), 1, cut(ROUNDS))
            .await?
    );
    while first_client.collect_garbage(state_id(0), 7).await? > 0 {}
    assert_eq!(server.run(&["KEYS", "*"]).lines().count(), 1, "the record");
    Ok(())
}

/// Calls to a hanging server time out and the connection is dropped. A request that the server
/// executes late counts once.
#[tokio::test]
async fn calls_to_a_hanging_server_time_out() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.short_timeouts()).await?;
    rebuild(&live, 0).await?;
    assert_eq!(add(&live, 0, checkpoint(0, 1)).await?, Ok(()));
    server.signal("-STOP");
    let begun = Instant::now();
    let error = add(&live, 0, checkpoint(1, 1))
        .await
        .expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(
        error.to_string().contains(&server.port.to_string()),
        "{error}"
    );
    let error = read_totals(&live, 0, "g").await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(begun.elapsed() < Duration::from_secs(20), "in time");
    server.signal("-CONT");
    // The server now executes the requests that it received while it was stopped.
    let (mut next, sum) = read_totals(&live, 0, "g").await?;
    assert_eq!(next, sum);
    while next < 5 {
        match add(&live, 0, checkpoint(next, 1)).await? {
            Ok(()) => next += 1,
            Err(mismatch) => next = mismatch.actual.expect("a state").next_offset,
        }
    }
    assert_eq!(read_totals(&live, 0, "g").await?, (5, 5));
    Ok(())
}

#[tokio::test]
async fn reconnects_after_a_server_restart() -> Result<()> {
    let mut server = Server::start(&[]);
    let live = open(&server.short_timeouts()).await?;
    rebuild(&live, 0).await?;
    assert_eq!(add(&live, 0, checkpoint(0, 1)).await?, Ok(()));
    server.kill();
    let error = read_totals(&live, 0, "g")
        .await
        .expect_err("the server is down");
    assert_eq!(error.kind(), ErrorKind::Retry);
    let error = open(&server.short_timeouts())
        .await
        .expect_err("the server is down");
    assert_eq!(error.kind(), ErrorKind::Retry);
    server.restart();
    assert_eq!(read_totals(&live, 0, "g").await?, (1, 1));
    assert_eq!(add(&live, 0, checkpoint(1, 1)).await?, Ok(()));
    // All data is lost: a missing partition state is a mismatch, not an error.
    assert_eq!(server.run(&["FLUSHALL"]), "OK");
    assert_eq!(
        add(&live, 0, checkpoint(2, 1)).await?,
        Err(CheckpointMismatch { actual: None })
    );
    rebuild(&live, 0).await?;
    assert_eq!(add(&live, 0, checkpoint(0, 1)).await?, Ok(()));
    assert_eq!(read_totals(&live, 0, "g").await?, (1, 1));
    Ok(())
}

/// Every micro-batch counts once while connections are closed continuously.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connections_neither_lose_nor_duplicate_counts() -> Result<()> {
    const STEPS: i64 = 150;
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    rebuild(&live, 0).await?;
    let done = AtomicBool::new(false);
    let work = async {
        let mut next = 0;
        while next < STEPS {
            match add(&live, 0, checkpoint(next, 1)).await {
                Ok(Ok(())) => next += 1,
                Ok(Err(mismatch)) => next = mismatch.actual.expect("a state").next_offset,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
            }
            if next % 7 == 0 {
                match read_totals(&live, 0, "g").await {
                    Ok((next, total)) => assert_eq!(next, total),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        Ok(())
    };
    let faults = async {
        while !done.load(Ordering::Relaxed) {
            server.run(&["CLIENT", "KILL", "TYPE", "normal"]);
            server.run(&["SCRIPT", "FLUSH"]);
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
        Ok(())
    };
    tokio::try_join!(work, faults)?;
    assert_eq!(read_totals(&live, 0, "g").await?, (STEPS, STEPS));
    Ok(())
}

/// Proxies bytes to a server. Drops the reply to the next micro-batch while `drops_reply` is set.
async fn proxy_dropping_reply(mut client: TcpStream, port: u16, drops_reply: Arc<AtomicBool>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    let (mut request, mut reply) = (vec![0; 65_536], vec![0; 65_536]);
    let mut drops = false;
    loop {
        tokio::select! {
            Ok(n) = client.read(&mut request) => {
                // Only scripts that write partition states contain this field.
                let text = String::from_utf8_lossy(&request[..n]);
                drops |=
                    text.contains("replay_until") && drops_reply.swap(false, Ordering::Relaxed);
                if n == 0 || server.write_all(&request[..n]).await.is_err() {
                    return;
                }
            }
            Ok(n) = server.read(&mut reply) => {
                if n == 0 || drops || client.write_all(&reply[..n]).await.is_err() {
                    return;
                }
            }
            else => return,
        }
    }
}

/// A call whose reply is lost detects that it was applied and succeeds.
#[tokio::test]
async fn a_lost_reply_is_detected() -> Result<()> {
    let server = Server::start(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let proxy_address = listener.local_addr().expect("its address");
    let drops_reply = Arc::new(AtomicBool::new(false));
    let mut proxy = JoinSet::new();
    let (port, drops) = (server.port, Arc::clone(&drops_reply));
    proxy.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            connections.spawn(proxy_dropping_reply(client, port, Arc::clone(&drops)));
        }
    });
    let live = open(&RedisOptions {
        nodes: proxy_address.to_string(),
        ..server.options()
    })
    .await?;
    rebuild(&live, 0).await?;
    for next in 0..3 {
        drops_reply.store(true, Ordering::Relaxed);
        assert_eq!(add(&live, 0, checkpoint(next, 1)).await?, Ok(()));
        assert!(!drops_reply.load(Ordering::Relaxed), "no reply was lost");
        assert_eq!(read_totals(&live, 0, "g").await?, (next + 1, next + 1));
    }
    drops_reply.store(true, Ordering::Relaxed);
    assert_eq!(live.end_epoch(state_id(0), 1).await?, Ok(cut(3)));
    drops_reply.store(true, Ordering::Relaxed);
    assert!(live.prune_through(state_id(0), 1, cut(3)).await?);
    assert!(!drops_reply.load(Ordering::Relaxed), "no reply was lost");
    Ok(())
}

/// Returns the commands that the Lua scripts call, in lower case.
fn script_commands() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stores/src/redis");
    let mut calls = BTreeSet::new();
    for file in std::fs::read_dir(folder).expect("the scripts").flatten() {
        let path = file.path();
        if path.extension().is_some_and(|ending| ending == "lua") {
            let text = std::fs::read_to_string(&path).expect("a script");
            let parts = text.split("redis.call('").skip(1);
            let parts = parts.chain(text.split("redis.pcall('").skip(1));
            calls.extend(parts.filter_map(|part| Some(part.split_once('\'')?.0.to_lowercase())));
        }
    }
    assert!(calls.len() > 10, "{calls:?}");
    calls
}

/// The documented ACL rights are sufficient. A missing right fails with a message about rights.
#[tokio::test]
async fn documented_rights_are_sufficient() -> Result<()> {
    let server = Server::start(&[]);
    let docs = include_str!("../../../../docs/internals/live-state.md");
    let line = docs.split("ACL SETUSER ").nth(1).expect("a line");
    let line = line.split("```").next().expect("its end");
    let rights = line.replace("PASSWORD", "sesame");
    let rights: Vec<&str> = rights.split_whitespace().collect();
    for call in script_commands() {
        let names = |right: &str| right.split('|').next() == Some(&*format!("+{call}"));
        assert!(
            rights.iter().any(|right| names(right)),
            "{call} of a script"
        );
    }
    assert_eq!(
        server.run(&[&["ACL", "SETUSER"], &rights[..]].concat()),
        "OK"
    );
    let options = RedisOptions {
        user: "backstitch".to_owned(),
        password: "sesame".to_owned().into(),
        database: 1,
        nodes: server.options().nodes,
        ..RedisOptions::default()
    };
    let live = open(&options).await?;
    assert_eq!(live.diagnostics().await?, Vec::<String>::new());
    rebuild(&live, 0).await?;
    assert_eq!(add(&live, 0, checkpoint(0, 1)).await?, Ok(()));
    assert_eq!(add(&live, 0, checkpoint(1, 1)).await?, Ok(()));
    assert_eq!(read_totals(&live, 0, "g").await?, (2, 2));
    large_groups(&live).await?;

    let other_namespace = RedisLive::open(&options, &"green".parse().expect("a namespace")).await?;
    let refused = read_totals(&other_namespace, 0, "g")
        .await
        .expect_err("keys of another namespace");
    assert_eq!(refused.kind(), ErrorKind::Fatal);
    assert!(refused.to_string().contains("rights"), "{refused}");
    server.run(&["ACL", "SETUSER", "backstitch", "-append"]);
    let refused = add(&live, 0, checkpoint(2, 1))
        .await
        .expect_err("no right to");
    assert_eq!(refused.kind(), ErrorKind::Fatal, "{refused}");
    let diagnostics = live.diagnostics().await?;
    assert!(
        diagnostics.iter().any(|text| text.contains("rights")),
        "{diagnostics:?}"
    );
    let wrong_password = RedisOptions {
        password: "simsalabim".to_owned().into(),
        ..options
    };
    let refused = open(&wrong_password).await.expect_err("a wrong password");
    assert_eq!(refused.kind(), ErrorKind::Fatal);
    let text = refused.to_string();
    assert!(
        text.contains("password") && !text.contains("simsalabim"),
        "{text}"
    );
    Ok(())
}

/// A group may have more rows than one read, scan or deletion handles.
#[tokio::test]
async fn large_groups_are_scanned_and_deleted() -> Result<()> {
    let options = RedisOptions {
        nodes: servers::redis(),
        ..RedisOptions::default()
    };
    let live = RedisLive::open(&options, &servers::namespace()).await?;
    large_groups(&live).await
}

/// Tests packed counts in chunks, and counts with a field per row.
async fn large_groups(live: &RedisLive) -> Result<()> {
    large_group(live, 1, 1, [51, 51, 51]).await?;
    large_group(live, 2, 1 << 40, [5_001, 20_999, 26_000]).await
}

/// `deleted` is the number of keys or fields that each garbage collection deletes: a first part of
/// the pruned epoch, its rest, and the next epoch.
async fn large_group(
    live: &RedisLive,
    partition: u32,
    unit: i64,
    deleted: [usize; 3],
) -> Result<()> {
    const ROWS: i64 = 26_000;
    rebuild(live, partition).await?;
    for (batch, epoch) in [(0, 1), (1, 1), (2, 2)] {
        let deltas = (0..ROWS).map(|row| (format!("{row:06}"), unit * (1 + batch)));
        let changes = Changes::from(rows("large", deltas));
        let (current, next) = (checkpoint(batch, epoch), cut(batch + 1));
        let outcome = live.apply(state_id(partition), current, next, &[VIEW], &changes);
        assert_eq!(outcome.await?, Ok(()));
        if batch == 1 {
            assert_eq!(live.end_epoch(state_id(partition), 1).await?, Ok(cut(2)));
        }
    }
    let (mut after, mut row_count) = (None, 0);
    loop {
        let page = live
            .collect_deltas(state_id(partition), VIEW, (1, 2), after, 5_000)
            .await?;
        assert!(page.counts.values().iter().all(|count| *count == 6 * unit));
        row_count += page.counts.len();
        let Some(last) = page.counts.len().checked_sub(1) else {
            break;
        };
        let row = page.rows.value(last);
        assert_eq!(row, format!("{:06}", row_count - 1).as_bytes());
        after = Some((b"large".to_vec(), row.to_vec()));
    }
    assert_eq!(row_count, 26_000);
    assert_eq!(
        read_totals(live, partition, "large").await?,
        (3, 6 * ROWS * unit)
    );
    assert!(live.prune_through(state_id(partition), 1, cut(2)).await?);
    let [first, others, last] = deleted;
    assert_eq!(
        live.collect_garbage(state_id(partition), first).await?,
        first
    );
    let deleted = live.collect_garbage(state_id(partition), 100_000).await?;
    assert_eq!(deleted, others);
    assert_eq!(
        read_totals(live, partition, "large").await?,
        (3, 3 * ROWS * unit)
    );
    let rebuilt = live
        .rebuild(
            state_id(partition),
            Some(checkpoint(3, 2)),
            &new_generation(2, 3, 9),
        )
        .await?;
    assert_eq!(rebuilt, Ok(()));
    assert_eq!(
        live.collect_garbage(state_id(partition), 100_000).await?,
        last
    );
    Ok(())
}
