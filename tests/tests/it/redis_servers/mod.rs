//! What Redis alone can do wrong.

mod boards;
mod cluster;
pub(crate) mod server;
mod tls;
mod whole;

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
use tests::conformance::{VIEW, binary, life, slot};
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

const fn fence(next_offset: i64, epoch: u64) -> Checkpoint {
    Checkpoint {
        generation: 1,
        next_offset,
        epoch,
    }
}

async fn heal(live: &RedisLive, partition: u32) -> Result<()> {
    let done = live.rebuild(slot(partition), None, &life(0, 0, 1)).await?;
    assert_eq!(done, Ok(()), "there was no slot");
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
    believed: Checkpoint,
) -> Result<std::result::Result<(), CheckpointMismatch>> {
    let one = rows("g", [("r".to_owned(), 1)]);
    let next = cut(believed.next_offset + 1);
    live.apply(slot(partition), believed, next, &[VIEW], &one.into())
        .await
}

/// Where a slot stands, and the sum of a group's rows; 0 and 0 where it is missing.
async fn sums(live: &RedisLive, partition: u32, group: &str) -> Result<(i64, i64)> {
    let query = DeltaQuery {
        view: VIEW.to_owned(),
        group: group.into(),
        ranges: vec![(Vec::new(), None)],
        partition: Some(partition),
    };
    let answer = live
        .read_deltas(Source::Plays, partition + 1, &[query])
        .await?;
    let stands = answer.partition_states[partition as usize].as_ref();
    let next = stands.map_or(0, |slot| slot.position.next_offset);
    Ok((next, answer.deltas[0].counts.values().iter().sum()))
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    heal(&live, 0).await?;
    for next in 0..3 {
        assert_eq!(server.ask(&["SCRIPT", "FLUSH"]), "OK");
        assert_eq!(add(&live, 0, fence(next, 1)).await?, Ok(()));
        assert_eq!(server.ask(&["SCRIPT", "FLUSH"]), "OK");
        assert_eq!(sums(&live, 0, "g").await?, (next + 1, next + 1));
    }
    Ok(())
}

/// At open, and with the next connection if it became one later.
#[tokio::test]
async fn a_server_that_evicts_is_refused() -> Result<()> {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let refused = open(&server.options()).await.expect_err("it evicts");
    assert_eq!(refused.kind(), ErrorKind::Fatal);
    assert!(refused.to_string().contains("noeviction"), "{refused}");
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let live = open(&server.options()).await?;
    assert_eq!(live.diagnostics().await?, Vec::<String>::new());
    heal(&live, 0).await?;

    server.ask(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    let diagnostics = live.diagnostics().await?;
    assert!(diagnostics[0].contains("volatile-ttl"), "{diagnostics:?}");
    server.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    let refused = add(&live, 0, fence(0, 1)).await.expect_err("it evicts");
    assert_eq!(refused.kind(), ErrorKind::Fatal, "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_server_without_a_file_is_warned_of() -> Result<()> {
    let server = Server::start(&["--appendonly", "no"]);
    let diagnostics = open(&server.options()).await?.diagnostics().await?;
    assert!(diagnostics[0].contains("appendonly yes"), "{diagnostics:?}");
    Ok(())
}

#[tokio::test]
async fn a_replica_is_refused() -> Result<()> {
    let (master, replica) = (Server::start(&[]), Server::start(&[]));
    let live = open(&replica.hasty()).await?;
    heal(&live, 0).await?;
    let port = master.port.to_string();
    replica.ask(&["REPLICAOF", "127.0.0.1", &port]);
    let refused = open(&replica.options()).await.expect_err("a replica");
    assert_eq!(refused.kind(), ErrorKind::Fatal);
    assert!(refused.to_string().contains("replica"), "{refused}");
    let refused = add(&live, 0, fence(0, 1)).await;
    let refused = refused.expect_err("a connection that was there before");
    // It may be that the address does not lead to the new master yet.
    assert_eq!(refused.kind(), ErrorKind::Retry, "{refused}");
    assert!(refused.to_string().contains("replica"), "{refused}");
    replica.ask(&["REPLICAOF", "NO", "ONE"]);
    // What it had was replaced by what the other one had.
    assert_eq!(sums(&live, 0, "g").await?, (0, 0));
    Ok(())
}

/// Also under a connection that lasts, and if the policy was set back meanwhile.
#[tokio::test]
async fn a_server_that_has_evicted_is_not_trusted() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    heal(&live, 0).await?;
    assert_eq!(add(&live, 0, fence(0, 1)).await?, Ok(()));
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    server.ask(&["CONFIG", "SET", "maxmemory", "1000"]);
    server.ask(&["SET", "something", "else"]);
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let info = server.ask(&["INFO", "stats"]);
    assert!(!info.contains("evicted_keys:0"), "{info}");
    let begun = Instant::now();
    let refused = loop {
        match sums(&live, 0, "g").await {
            Err(refused) => break refused,
            Ok(_) => assert!(begun.elapsed() < Duration::from_secs(30), "it is trusted"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(refused.kind(), ErrorKind::Fatal, "{refused}");
    assert!(refused.to_string().contains("taken"), "{refused}");
    Ok(())
}

/// Whoever writes a password into an address does not find it in messages.
#[tokio::test]
async fn addresses_with_passwords_are_refused_and_not_shown() {
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

/// Then nothing is there of a micro-batch, and what frees memory goes through.
#[tokio::test]
async fn full_memory_changes_nothing() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    heal(&live, 0).await?;
    assert_eq!(add(&live, 0, fence(0, 1)).await?, Ok(()));
    server.ask(&["CONFIG", "SET", "maxmemory", "1000"]);
    let full = add(&live, 0, fence(1, 1)).await.expect_err("no memory");
    assert_eq!(full.kind(), ErrorKind::Retry, "{full}");
    assert!(full.to_string().contains("memory"), "{full}");
    assert_eq!(sums(&live, 0, "g").await?, (1, 1));
    assert_eq!(live.end_epoch(slot(0), 1).await?, Ok(cut(1)));
    assert!(live.prune_through(slot(0), 1, cut(1)).await?);
    assert_eq!(live.collect_garbage(slot(0), 9).await?, 1);
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(add(&live, 0, fence(1, 2)).await?, Ok(()));
    assert_eq!(sums(&live, 0, "g").await?, (2, 1));
    Ok(())
}

/// A key that somebody else wrote stops the micro-batch before its first write, or what it wrote is taken away again;
/// with a count that may be packed, and with one that may not.
#[tokio::test]
async fn wrong_types_change_nothing() -> Result<()> {
    for (count, groups) in [(1, "*}:p*:g"), (1 << 40, "*}:d*:g")] {
        let server = Server::start(&[]);
        let live = open(&server.options()).await?;
        heal(&live, 0).await?;
        let one = Changes::from(rows("g", [("r".to_owned(), count)]));
        let apply = live.apply(slot(0), fence(0, 1), cut(1), &[VIEW], &one);
        assert_eq!(apply.await?, Ok(()));
        let group = server.ask(&["KEYS", groups]);
        let index = group.strip_suffix(":g").expect("a group").to_owned();
        let record = server.ask(&["KEYS", "*:slot"]);
        let three = {
            let mut deltas = rows("a", [("r".to_owned(), count)]);
            deltas[0].groups = binary(["a", "f", "g"]);
            deltas[0].rows = binary(["r", "r", "r"]);
            deltas[0].counts = vec![count, count, count].into();
            Changes::from(deltas)
        };
        let mut spoil: Vec<(&str, Vec<&str>)> = vec![
            (&index, vec!["SET", &index, "1"]),
            (&record, vec!["LPUSH", &record, "1"]),
            (&group, vec!["LPUSH", &group, "1"]),
        ];
        if count > 1 {
            spoil.push((&group, vec!["HSET", &group, "r", "1e3"]));
        }
        for (key, command) in spoil {
            server.ask(&["RENAME", key, "aside"]);
            server.ask(&command);
            let apply = live.apply(slot(0), fence(1, 1), cut(2), &[VIEW], &three);
            let refused = apply.await.expect_err("a wrong type");
            assert_eq!(refused.kind(), ErrorKind::Fatal, "{refused}");
            server.ask(&["RENAME", "aside", key]);
            assert_eq!(sums(&live, 0, "g").await?, (1, count), "{command:?}");
            for untouched in ["a", "f"] {
                let (next, sum) = sums(&live, 0, untouched).await?;
                assert_eq!((next, sum), (1, 0), "{command:?}");
                let key = format!("{index}:{untouched}");
                assert_eq!(server.ask(&["EXISTS", &key]), "0", "{command:?}");
            }
            assert_eq!(server.ask(&["ZCARD", &index]), "1", "{command:?}");
        }
        let apply = live.apply(slot(0), fence(1, 1), cut(2), &[VIEW], &three);
        assert_eq!(apply.await?, Ok(()));
        assert_eq!(sums(&live, 0, "a").await?, (2, count));
        assert_eq!(sums(&live, 0, "g").await?, (2, 2 * count));
    }
    Ok(())
}

/// Rows of a round in one group.
const ROWS: i64 = 20;

/// What a round adds: the same rows of one group, one row of another, and of a third one rows that no other round has.
fn grown(view: &str, round: i64) -> Deltas {
    let of = |name: &str| {
        let name = name.to_owned();
        (0..ROWS).map(move |row| (format!("{name} row of some length {row:02}"), 1))
    };
    let deltas = [
        rows("g", of("a")),
        rows("small", [("r".to_owned(), 1)]),
        rows("wide", of(&format!("round {round:03}"))),
    ];
    let deltas: Vec<Deltas> = deltas.into_iter().flatten().collect();
    let all = |of: fn(&Deltas) -> &BinaryArray| {
        let all = deltas.iter().flat_map(|deltas| of(deltas).iter().flatten());
        BinaryArray::from_iter_values(all.collect::<Vec<_>>())
    };
    Deltas {
        view: view.to_owned(),
        groups: all(|deltas| &deltas.groups),
        rows: all(|deltas| &deltas.rows),
        counts: deltas.iter().flat_map(|deltas| &deltas.counts).collect(),
        ..deltas[0].clone()
    }
}

/// What a group that grows has in its string becomes chunks of each view, also where a process writes that did not see it
/// grow: what is read and scanned is the sum of both, each row once. Many chunks of the same rows are put together.
#[tokio::test]
async fn groups_that_grow_lose_nothing() -> Result<()> {
    const ROUNDS: i64 = 320;
    const OTHER_VIEW: &str = "other@1";
    let server = Server::start(&[]);
    let (one, other) = (
        open(&server.options()).await?,
        open(&server.options()).await?,
    );
    heal(&one, 0).await?;
    for round in 0..ROUNDS {
        let changes = Changes::from(vec![grown(VIEW, round), grown(OTHER_VIEW, round)]);
        let live = if round % 4 == 3 { &other } else { &one };
        let views = [VIEW, OTHER_VIEW];
        let apply = live.apply(slot(0), fence(round, 1), cut(round + 1), &views, &changes);
        assert_eq!(apply.await?, Ok(()));
        assert_eq!(sums(&one, 0, "g").await?, (round + 1, (round + 1) * ROWS));
    }
    let number = |command: &[&str]| server.ask(command).parse::<i64>().expect("a number");
    let strings = server.ask(&["KEYS", "*}:p*:*"]);
    for string in strings.lines() {
        assert!(number(&["STRLEN", string]) < 8_000, "{string} is small");
    }
    assert_eq!(server.ask(&["KEYS", "*}:d*:*"]), "", "no row has a field");
    for (group, chunks) in [("g", 1..40), ("wide", 40..200)] {
        let hashes = server.ask(&["KEYS", &format!("*}}:c*:{group}")]);
        assert_eq!(hashes.lines().count(), 2, "one of each view: {hashes}");
        for hash in hashes.lines() {
            let held = number(&["HLEN", hash]);
            assert!(chunks.contains(&held), "{held} chunks of {group}");
        }
    }
    for view in [VIEW, OTHER_VIEW] {
        for live in [&one, &other] {
            let query = DeltaQuery {
                view: view.to_owned(),
                group: b"g".to_vec(),
                ranges: vec![(Vec::new(), None)],
                partition: None,
            };
            let answer = live.read_deltas(Source::Plays, 1, &[query]).await?;
            let counts = &answer.deltas[0].counts;
            assert_eq!(counts.values(), &vec![ROUNDS; 20][..]);
            let all = live
                .collect_deltas(slot(0), view, (0, 9), None, 1_000_000)
                .await?;
            let (few, many) = all.counts.values().split_at(21);
            assert_eq!(few, &vec![ROUNDS; 21][..]);
            assert_eq!(many, &vec![1; 20 * 320][..]);
            // A row a page: the order is the same, and none is left out.
            let mut after = None;
            for row in 0..40 {
                let page = live.scan_deltas(slot(0), view, (0, 9), after, 1).await?;
                assert_eq!(page.deltas.rows.value(0), all.rows.value(row), "row {row}");
                after = page.next;
            }
        }
    }
    assert_eq!(sums(&one, 0, "wide").await?, (ROUNDS, ROUNDS * ROWS));
    assert_eq!(one.end_epoch(slot(0), 1).await?, Ok(cut(ROUNDS)));
    assert!(one.prune_through(slot(0), 1, cut(ROUNDS)).await?);
    while one.collect_garbage(slot(0), 7).await? > 0 {}
    assert_eq!(server.ask(&["KEYS", "*"]).lines().count(), 1, "the record");
    Ok(())
}

/// Calls end in time, the connection is given up, and what comes late counts once.
#[tokio::test]
async fn a_server_that_hangs_is_waited_for_in_vain() -> Result<()> {
    let server = Server::start(&[]);
    let live = open(&server.hasty()).await?;
    heal(&live, 0).await?;
    assert_eq!(add(&live, 0, fence(0, 1)).await?, Ok(()));
    server.signal("-STOP");
    let begun = Instant::now();
    let hung = add(&live, 0, fence(1, 1)).await.expect_err("no answer");
    assert_eq!(hung.kind(), ErrorKind::Retry);
    assert!(
        hung.to_string().contains(&server.port.to_string()),
        "{hung}"
    );
    let hung = sums(&live, 0, "g").await.expect_err("no answer");
    assert_eq!(hung.kind(), ErrorKind::Retry);
    assert!(begun.elapsed() < Duration::from_secs(20), "in time");
    server.signal("-CONT");
    // The server now meets what was sent to it before.
    let (mut next, sum) = sums(&live, 0, "g").await?;
    assert_eq!(next, sum);
    while next < 5 {
        match add(&live, 0, fence(next, 1)).await? {
            Ok(()) => next += 1,
            Err(moved) => next = moved.actual.expect("a slot").next_offset,
        }
    }
    assert_eq!(sums(&live, 0, "g").await?, (5, 5));
    Ok(())
}

#[tokio::test]
async fn a_server_that_was_killed_is_found_again() -> Result<()> {
    let mut server = Server::start(&[]);
    let live = open(&server.hasty()).await?;
    heal(&live, 0).await?;
    assert_eq!(add(&live, 0, fence(0, 1)).await?, Ok(()));
    server.kill();
    let gone = sums(&live, 0, "g").await.expect_err("nobody is there");
    assert_eq!(gone.kind(), ErrorKind::Retry);
    let gone = open(&server.hasty()).await.expect_err("nobody is there");
    assert_eq!(gone.kind(), ErrorKind::Retry);
    server.start_again();
    assert_eq!(sums(&live, 0, "g").await?, (1, 1));
    assert_eq!(add(&live, 0, fence(1, 1)).await?, Ok(()));
    // All is lost: the slot is missing, which is no error.
    assert_eq!(server.ask(&["FLUSHALL"]), "OK");
    assert_eq!(
        add(&live, 0, fence(2, 1)).await?,
        Err(CheckpointMismatch { actual: None })
    );
    heal(&live, 0).await?;
    assert_eq!(add(&live, 0, fence(0, 1)).await?, Ok(()));
    assert_eq!(sums(&live, 0, "g").await?, (1, 1));
    Ok(())
}

/// Connections are lost all the time; every micro-batch counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connections_lose_and_double_nothing() -> Result<()> {
    const STEPS: i64 = 150;
    let server = Server::start(&[]);
    let live = open(&server.options()).await?;
    heal(&live, 0).await?;
    let done = AtomicBool::new(false);
    let work = async {
        let mut next = 0;
        while next < STEPS {
            match add(&live, 0, fence(next, 1)).await {
                Ok(Ok(())) => next += 1,
                Ok(Err(moved)) => next = moved.actual.expect("a slot").next_offset,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
            }
            if next % 7 == 0 {
                match sums(&live, 0, "g").await {
                    Ok((stands, sum)) => assert_eq!(stands, sum),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        Ok(())
    };
    let faults = async {
        while !done.load(Ordering::Relaxed) {
            server.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
            server.ask(&["SCRIPT", "FLUSH"]);
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
        Ok(())
    };
    tokio::try_join!(work, faults)?;
    assert_eq!(sums(&live, 0, "g").await?, (STEPS, STEPS));
    Ok(())
}

/// Hands bytes on to a server, but not the answer to the next script that writes.
async fn forgetful(mut inside: TcpStream, port: u16, forgets: Arc<AtomicBool>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    let (mut sent, mut came) = (vec![0; 65_536], vec![0; 65_536]);
    let mut swallow = false;
    loop {
        tokio::select! {
            Ok(n) = inside.read(&mut sent) => {
                // A micro-batch names its view.
                let text = String::from_utf8_lossy(&sent[..n]);
                swallow |= text.contains("replay_until") && forgets.swap(false, Ordering::Relaxed);
                if n == 0 || server.write_all(&sent[..n]).await.is_err() {
                    return;
                }
            }
            Ok(n) = server.read(&mut came) => {
                if n == 0 || swallow || inside.write_all(&came[..n]).await.is_err() {
                    return;
                }
            }
            else => return,
        }
    }
}

/// A call whose answer was lost finds out that it went through, and says so.
#[tokio::test]
async fn a_lost_answer_is_found_out() -> Result<()> {
    let server = Server::start(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let through = listener.local_addr().expect("its address");
    let forgets = Arc::new(AtomicBool::new(false));
    let mut proxy = JoinSet::new();
    let (port, mine) = (server.port, Arc::clone(&forgets));
    proxy.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((inside, _)) = listener.accept().await {
            connections.spawn(forgetful(inside, port, Arc::clone(&mine)));
        }
    });
    let live = open(&RedisOptions {
        nodes: through.to_string(),
        ..server.options()
    })
    .await?;
    heal(&live, 0).await?;
    for next in 0..3 {
        forgets.store(true, Ordering::Relaxed);
        assert_eq!(add(&live, 0, fence(next, 1)).await?, Ok(()));
        assert!(!forgets.load(Ordering::Relaxed), "an answer was lost");
        assert_eq!(sums(&live, 0, "g").await?, (next + 1, next + 1));
    }
    forgets.store(true, Ordering::Relaxed);
    assert_eq!(live.end_epoch(slot(0), 1).await?, Ok(cut(3)));
    forgets.store(true, Ordering::Relaxed);
    assert!(live.prune_through(slot(0), 1, cut(3)).await?);
    assert!(!forgets.load(Ordering::Relaxed), "an answer was lost");
    Ok(())
}

/// The commands that scripts call, in small letters.
fn calls_of_scripts() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stores/src/redis");
    let mut calls = BTreeSet::new();
    for file in std::fs::read_dir(folder).expect("the scripts").flatten() {
        let path = file.path();
        if path.extension().is_some_and(|ending| ending == "lua") {
            let text = std::fs::read_to_string(&path).expect("a script");
            let after = text.split("redis.call('").skip(1);
            let after = after.chain(text.split("redis.pcall('").skip(1));
            calls.extend(after.filter_map(|rest| Some(rest.split_once('\'')?.0.to_lowercase())));
        }
    }
    assert!(calls.len() > 10, "{calls:?}");
    calls
}

/// The rights that the documentation lists are enough, and without them it says what is missing.
#[tokio::test]
async fn the_least_rights_are_enough() -> Result<()> {
    let server = Server::start(&[]);
    let docs = include_str!("../../../../stores/src/redis/mod.rs");
    let line = docs.split("ACL SETUSER ").nth(1).expect("a line");
    let line = line.split("```").next().expect("its end");
    let rights = line.replace("//!", "").replace("PASSWORD", "sesame");
    let rights: Vec<&str> = rights.split_whitespace().collect();
    for call in calls_of_scripts() {
        let names = |right: &str| right.split('|').next() == Some(&*format!("+{call}"));
        assert!(
            rights.iter().any(|right| names(right)),
            "{call} of a script"
        );
    }
    assert_eq!(
        server.ask(&[&["ACL", "SETUSER"], &rights[..]].concat()),
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
    heal(&live, 0).await?;
    assert_eq!(add(&live, 0, fence(0, 1)).await?, Ok(()));
    assert_eq!(add(&live, 0, fence(1, 1)).await?, Ok(()));
    assert_eq!(sums(&live, 0, "g").await?, (2, 2));
    large_groups(&live).await?;

    let stranger = RedisLive::open(&options, &"green".parse().expect("a namespace")).await?;
    let refused = sums(&stranger, 0, "g").await.expect_err("another's keys");
    assert_eq!(refused.kind(), ErrorKind::Fatal);
    assert!(refused.to_string().contains("rights"), "{refused}");
    server.ask(&["ACL", "SETUSER", "backstitch", "-append"]);
    let refused = add(&live, 0, fence(2, 1)).await.expect_err("no right to");
    assert_eq!(refused.kind(), ErrorKind::Fatal, "{refused}");
    let diagnostics = live.diagnostics().await?;
    assert!(
        diagnostics.iter().any(|flaw| flaw.contains("rights")),
        "{diagnostics:?}"
    );
    let wrong = RedisOptions {
        password: "simsalabim".to_owned().into(),
        ..options
    };
    let refused = open(&wrong).await.expect_err("a wrong password");
    assert_eq!(refused.kind(), ErrorKind::Fatal);
    let text = refused.to_string();
    assert!(
        text.contains("password") && !text.contains("simsalabim"),
        "{text}"
    );
    Ok(())
}

/// A group may have more rows than are read, scanned or deleted at once.
#[tokio::test]
async fn large_groups_are_scanned_and_deleted() -> Result<()> {
    let options = RedisOptions {
        nodes: servers::redis(),
        ..RedisOptions::default()
    };
    let live = RedisLive::open(&options, &servers::namespace()).await?;
    large_groups(&live).await
}

/// With counts that are packed and lie in chunks, and with such that each row has a field for.
async fn large_groups(live: &RedisLive) -> Result<()> {
    large_group(live, 1, (1, [51, 51, 51])).await?;
    large_group(live, 2, (1 << 40, [5_001, 20_999, 26_000])).await
}

/// Parts of a group that are deleted: so many, then the others of the epoch, then those of the next one.
async fn large_group(
    live: &RedisLive,
    partition: u32,
    (unit, deleted): (i64, [usize; 3]),
) -> Result<()> {
    const ROWS: i64 = 26_000;
    heal(live, partition).await?;
    for (batch, epoch) in [(0, 1), (1, 1), (2, 2)] {
        let all = (0..ROWS).map(|row| (format!("{row:06}"), unit * (1 + batch)));
        let one = Changes::from(rows("large", all));
        let (believed, next) = (fence(batch, epoch), cut(batch + 1));
        let done = live.apply(slot(partition), believed, next, &[VIEW], &one);
        assert_eq!(done.await?, Ok(()));
        if batch == 1 {
            assert_eq!(live.end_epoch(slot(partition), 1).await?, Ok(cut(2)));
        }
    }
    let (mut after, mut found) = (None, 0);
    loop {
        let page = live
            .collect_deltas(slot(partition), VIEW, (1, 2), after, 5_000)
            .await?;
        assert!(page.counts.values().iter().all(|count| *count == 6 * unit));
        found += page.counts.len();
        let Some(last) = page.counts.len().checked_sub(1) else {
            break;
        };
        let row = page.rows.value(last);
        assert_eq!(row, format!("{:06}", found - 1).as_bytes());
        after = Some((b"large".to_vec(), row.to_vec()));
    }
    assert_eq!(found, 26_000);
    assert_eq!(sums(live, partition, "large").await?, (3, 6 * ROWS * unit));
    assert!(live.prune_through(slot(partition), 1, cut(2)).await?);
    let [first, others, last] = deleted;
    assert_eq!(live.collect_garbage(slot(partition), first).await?, first);
    let deleted = live.collect_garbage(slot(partition), 100_000).await?;
    assert_eq!(deleted, others);
    assert_eq!(sums(live, partition, "large").await?, (3, 3 * ROWS * unit));
    let healed = live
        .rebuild(slot(partition), Some(fence(3, 2)), &life(2, 3, 9))
        .await?;
    assert_eq!(healed, Ok(()));
    assert_eq!(live.collect_garbage(slot(partition), 100_000).await?, last);
    Ok(())
}
