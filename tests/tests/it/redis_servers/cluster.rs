//! Hash slots that migrate between cluster nodes, and failover to a replica.

use std::time::{Duration, Instant};

use stores::redis::RedisOptions;
use stores::{ErrorKind, Result, Server as _};

use super::server::Server;
use super::{add, checkpoint, open, read_totals, rebuild};

/// Two nodes, of which the first has all hash slots.
fn cluster() -> (Server, Server) {
    let (first_node, second_node) = (
        Server::start(&["--cluster-enabled", "yes"]),
        Server::start(&["--cluster-enabled", "yes"]),
    );
    first_node.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let port = second_node.port.to_string();
    first_node.run(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    let is_ok = |server: &Server| {
        server
            .run(&["CLUSTER", "INFO"])
            .contains("cluster_state:ok")
    };
    while !is_ok(&first_node) || !is_ok(&second_node) {
        std::thread::yield_now();
    }
    (first_node, second_node)
}

/// Moves keys of a hash slot from one node to the other.
fn migrate(source: &Server, target: &Server, keys: &[String]) {
    let port = target.port.to_string();
    let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    migrate.extend(keys.iter().map(String::as_str));
    assert_eq!(source.run(&migrate), "OK");
}

/// During a migration the keys are on two nodes. Reads and writes fail then, since a key that has
/// not arrived looks like a missing one. After the migration every micro-batch has counted once.
#[tokio::test]
async fn migrated_keys_are_found() -> Result<()> {
    for record_first in [true, false] {
        let (first_node, second_node) = cluster();
        let live = open(&RedisOptions {
            nodes: format!(
                "127.0.0.1:{}, 127.0.0.1:{}",
                second_node.port, first_node.port
            ),
            ..first_node.short_timeouts()
        })
        .await?;
        assert_eq!(live.diagnostics().await?, Vec::<String>::new());
        rebuild(&live, 0).await?;
        assert_eq!(add(&live, 0, checkpoint(0, 1)).await?, Ok(()));
        let hash_slot = first_node.run(&["CLUSTER", "KEYSLOT", "{blue:plays:0}:slot"]);
        let (first_id, second_id) = (
            first_node.run(&["CLUSTER", "MYID"]),
            second_node.run(&["CLUSTER", "MYID"]),
        );
        second_node.run(&["CLUSTER", "SETSLOT", &hash_slot, "IMPORTING", &first_id]);
        first_node.run(&["CLUSTER", "SETSLOT", &hash_slot, "MIGRATING", &second_id]);
        assert_eq!(
            add(&live, 0, checkpoint(1, 1)).await?,
            Ok(()),
            "not moved yet"
        );
        let keys = first_node.run(&["CLUSTER", "GETKEYSINSLOT", &hash_slot, "100"]);
        let keys: Vec<String> = keys.lines().map(str::to_owned).collect();
        let is_first = |key: &String| key.ends_with(":slot") == record_first;
        let (early_keys, late_keys): (Vec<_>, Vec<_>) = keys.into_iter().partition(is_first);
        assert!(!early_keys.is_empty() && !late_keys.is_empty());
        migrate(&first_node, &second_node, &early_keys);
        let reads = read_totals(&live, 0, "g").await.map(|_| ());
        let adds = add(&live, 0, checkpoint(2, 1)).await.map(|_| ());
        for outcome in [reads, adds] {
            let error = outcome.expect_err("the keys are on two nodes");
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            assert!(error.to_string().contains("moving"), "{error}");
        }
        migrate(&first_node, &second_node, &late_keys);
        for node in [&second_node, &first_node] {
            assert_eq!(
                node.run(&["CLUSTER", "SETSLOT", &hash_slot, "NODE", &second_id]),
                "OK"
            );
        }
        assert_eq!(
            read_totals(&live, 0, "g").await?,
            (2, 2),
            "nothing was counted"
        );
        assert_eq!(add(&live, 0, checkpoint(2, 1)).await?, Ok(()), "moved");
        assert_eq!(read_totals(&live, 0, "g").await?, (3, 3));
        // The other partition states were not moved.
        rebuild(&live, 1).await?;
        assert_eq!(read_totals(&live, 1, "g").await?, (0, 0));
    }
    Ok(())
}

/// Repeats a command until its reply matches.
fn wait_until(server: &Server, command: &[&str], matches: impl Fn(&str) -> bool) {
    let begun = Instant::now();
    loop {
        let reply = server.run(command);
        if matches(&reply) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{reply}");
        std::thread::yield_now();
    }
}

/// Returns a replication offset of a server.
fn read_offset(server: &Server, name: &str) -> u64 {
    parse_offset(&server.run(&["INFO", "replication"]), name)
}

/// Returns the number after a name.
fn parse_offset(info: &str, name: &str) -> u64 {
    let mut lines = info.lines();
    let number = lines.find_map(|line| line.trim().strip_prefix(name)?.parse().ok());
    number.expect("an offset")
}

/// A primary is killed, its replica takes over, and the old primary returns as a replica. Calls
/// reach the node that has the keys, and every micro-batch counts once.
#[tokio::test]
async fn a_replica_takes_over_from_its_primary() -> Result<()> {
    let (mut first_node, second_node) = cluster();
    let replica = Server::start(&["--cluster-enabled", "yes"]);
    let (port, id) = (
        replica.port.to_string(),
        first_node.run(&["CLUSTER", "MYID"]),
    );
    first_node.run(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    wait_until(&replica, &["CLUSTER", "NODES"], |nodes| nodes.contains(&id));
    assert_eq!(replica.run(&["CLUSTER", "REPLICATE", &id]), "OK");
    wait_until(&replica, &["INFO", "replication"], |info| {
        info.contains("master_link_status:up")
    });
    // The client learns of the replica from the other nodes.
    let live = open(&RedisOptions {
        nodes: format!(
            "127.0.0.1:{}, 127.0.0.1:{}",
            first_node.port, second_node.port
        ),
        call_timeout_ms: 20_000,
        ..first_node.options()
    })
    .await?;
    rebuild(&live, 0).await?;
    for offset in 0..3 {
        assert_eq!(add(&live, 0, checkpoint(offset, 1)).await?, Ok(()));
    }
    assert_eq!(
        first_node.run(&["WAIT", "1", "5000"]),
        "1",
        "the replica has all writes"
    );
    // WAIT covers only writes of its own connection, which are none: compare the offsets, too.
    let written = read_offset(&first_node, "master_repl_offset:");
    wait_until(&replica, &["INFO", "replication"], |info| {
        parse_offset(info, "slave_repl_offset:") >= written
    });

    first_node.kill();
    // No node serves the keys now: the call is retried until the replica takes over.
    let take_over = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(replica.run(&["CLUSTER", "FAILOVER", "TAKEOVER"]), "OK");
    };
    let (added, ()) = tokio::join!(add(&live, 0, checkpoint(3, 1)), take_over);
    assert_eq!(added?, Ok(()));
    assert_eq!(read_totals(&live, 0, "g").await?, (4, 4));

    first_node.restart();
    wait_until(&first_node, &["ROLE"], |role| role.starts_with("slave"));
    wait_until(&first_node, &["INFO", "replication"], |info| {
        info.contains("master_link_status:up")
    });
    assert_eq!(add(&live, 0, checkpoint(4, 1)).await?, Ok(()));
    // A client that connects to the old primary is redirected to the new one.
    let redirected = open(&first_node.options()).await?;
    assert_eq!(add(&redirected, 0, checkpoint(5, 1)).await?, Ok(()));
    assert_eq!(read_totals(&redirected, 0, "g").await?, (6, 6));
    assert_eq!(read_totals(&live, 0, "g").await?, (6, 6));
    Ok(())
}
