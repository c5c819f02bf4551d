//! Keys that move from node to node, and nodes whose place is taken.

use std::time::{Duration, Instant};

use stores::redis::RedisOptions;
use stores::{ErrorKind, Result, Server as _};

use super::server::Server;
use super::{add, fence, heal, open, sums};

/// Two nodes, of which the first has all hash slots.
fn cluster() -> (Server, Server) {
    let (one, other) = (
        Server::start(&["--cluster-enabled", "yes"]),
        Server::start(&["--cluster-enabled", "yes"]),
    );
    one.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let port = other.port.to_string();
    one.ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    let ok = |server: &Server| {
        server
            .ask(&["CLUSTER", "INFO"])
            .contains("cluster_state:ok")
    };
    while !ok(&one) || !ok(&other) {
        std::thread::yield_now();
    }
    (one, other)
}

/// Moves keys of a hash slot from one node to the other.
fn migrate(from: &Server, to: &Server, keys: &[String]) {
    let port = to.port.to_string();
    let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    migrate.extend(keys.iter().map(String::as_str));
    assert_eq!(from.ask(&migrate), "OK");
}

/// While they move, some are here and some there: nothing is read or counted then, since what has not come
/// yet can't be told from what is missing. After they have moved they are found, and every micro-batch
/// counts once.
#[tokio::test]
async fn keys_that_move_are_found() -> Result<()> {
    for record_first in [true, false] {
        let (one, other) = cluster();
        let live = open(&RedisOptions {
            nodes: format!("127.0.0.1:{}, 127.0.0.1:{}", other.port, one.port),
            ..one.hasty()
        })
        .await?;
        assert_eq!(live.diagnostics().await?, Vec::<String>::new());
        heal(&live, 0).await?;
        assert_eq!(add(&live, 0, fence(0, 1)).await?, Ok(()));
        let hash_slot = one.ask(&["CLUSTER", "KEYSLOT", "{blue:plays:0}:slot"]);
        let (from, to) = (
            one.ask(&["CLUSTER", "MYID"]),
            other.ask(&["CLUSTER", "MYID"]),
        );
        other.ask(&["CLUSTER", "SETSLOT", &hash_slot, "IMPORTING", &from]);
        one.ask(&["CLUSTER", "SETSLOT", &hash_slot, "MIGRATING", &to]);
        assert_eq!(add(&live, 0, fence(1, 1)).await?, Ok(()), "not moved yet");
        let keys = one.ask(&["CLUSTER", "GETKEYSINSLOT", &hash_slot, "100"]);
        let keys: Vec<String> = keys.lines().map(str::to_owned).collect();
        let is_first = |key: &String| key.ends_with(":slot") == record_first;
        let (first, rest): (Vec<_>, Vec<_>) = keys.into_iter().partition(is_first);
        assert!(!first.is_empty() && !rest.is_empty());
        migrate(&one, &other, &first);
        let reads = sums(&live, 0, "g").await.map(|_| ());
        let adds = add(&live, 0, fence(2, 1)).await.map(|_| ());
        for tried in [reads, adds] {
            let error = tried.expect_err("some keys are here and some there");
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            assert!(error.to_string().contains("moving"), "{error}");
        }
        migrate(&one, &other, &rest);
        for node in [&other, &one] {
            assert_eq!(
                node.ask(&["CLUSTER", "SETSLOT", &hash_slot, "NODE", &to]),
                "OK"
            );
        }
        assert_eq!(sums(&live, 0, "g").await?, (2, 2), "nothing was counted");
        assert_eq!(add(&live, 0, fence(2, 1)).await?, Ok(()), "moved");
        assert_eq!(sums(&live, 0, "g").await?, (3, 3));
        // The other slots have stayed.
        heal(&live, 1).await?;
        assert_eq!(sums(&live, 1, "g").await?, (0, 0));
    }
    Ok(())
}

/// Asks until the answer is as it should be.
fn until(server: &Server, command: &[&str], is_so: impl Fn(&str) -> bool) {
    let begun = Instant::now();
    loop {
        let answer = server.ask(command);
        if is_so(&answer) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{answer}");
        std::thread::yield_now();
    }
}

/// How far a server is with what is replicated.
fn offset(server: &Server, name: &str) -> u64 {
    after(&server.ask(&["INFO", "replication"]), name)
}

/// The number after a name.
fn after(info: &str, name: &str) -> u64 {
    let mut lines = info.lines();
    let number = lines.find_map(|line| line.trim().strip_prefix(name)?.parse().ok());
    number.expect("an offset")
}

/// A master is killed and its replica takes its place; then it comes back and is a replica itself. Calls
/// go to whoever has the keys, and every micro-batch counts once.
#[tokio::test]
async fn a_replica_takes_the_place_of_its_master() -> Result<()> {
    let (mut one, other) = cluster();
    let replica = Server::start(&["--cluster-enabled", "yes"]);
    let (port, id) = (replica.port.to_string(), one.ask(&["CLUSTER", "MYID"]));
    one.ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    until(&replica, &["CLUSTER", "NODES"], |nodes| nodes.contains(&id));
    assert_eq!(replica.ask(&["CLUSTER", "REPLICATE", &id]), "OK");
    until(&replica, &["INFO", "replication"], |info| {
        info.contains("master_link_status:up")
    });
    // The replica is found by the others.
    let live = open(&RedisOptions {
        nodes: format!("127.0.0.1:{}, 127.0.0.1:{}", one.port, other.port),
        call_timeout_ms: 20_000,
        ..one.options()
    })
    .await?;
    heal(&live, 0).await?;
    for offset in 0..3 {
        assert_eq!(add(&live, 0, fence(offset, 1)).await?, Ok(()));
    }
    assert_eq!(one.ask(&["WAIT", "1", "5000"]), "1", "it has all of them");
    // That waits for what the asking connection itself has written, which is nothing: what counts is how far it is.
    let written = offset(&one, "master_repl_offset:");
    until(&replica, &["INFO", "replication"], |info| {
        after(info, "slave_repl_offset:") >= written
    });

    one.kill();
    // Nobody has the keys now: the call is tried until somebody does.
    let take_over = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(replica.ask(&["CLUSTER", "FAILOVER", "TAKEOVER"]), "OK");
    };
    let (added, ()) = tokio::join!(add(&live, 0, fence(3, 1)), take_over);
    assert_eq!(added?, Ok(()));
    assert_eq!(sums(&live, 0, "g").await?, (4, 4));

    one.start_again();
    until(&one, &["ROLE"], |role| role.starts_with("slave"));
    until(&one, &["INFO", "replication"], |info| {
        info.contains("master_link_status:up")
    });
    assert_eq!(add(&live, 0, fence(4, 1)).await?, Ok(()));
    // One that begins with the old master is led to the new one.
    let afresh = open(&one.options()).await?;
    assert_eq!(add(&afresh, 0, fence(5, 1)).await?, Ok(()));
    assert_eq!(sums(&afresh, 0, "g").await?, (6, 6));
    assert_eq!(sums(&live, 0, "g").await?, (6, 6));
    Ok(())
}
