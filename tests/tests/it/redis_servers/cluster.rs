//! Keys that move from node to node.

use stores::Result;
use stores::redis::RedisOptions;

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

/// While they move, and after they have, they are found; every micro-batch counts once.
#[tokio::test]
async fn keys_that_move_are_found() -> Result<()> {
    let (one, other) = cluster();
    let live = open(&RedisOptions {
        nodes: format!("127.0.0.1:{}, 127.0.0.1:{}", other.port, one.port),
        ..one.options()
    })
    .await?;
    assert_eq!(live.flaws().await?, Vec::<String>::new());
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
    let port = other.port.to_string();
    let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    migrate.extend(keys.lines());
    assert_eq!(one.ask(&migrate), "OK");
    assert_eq!(
        add(&live, 0, fence(2, 1)).await?,
        Ok(()),
        "asked for elsewhere"
    );
    assert_eq!(sums(&live, 0, "g").await?, (3, 3));
    for node in [&other, &one] {
        assert_eq!(
            node.ask(&["CLUSTER", "SETSLOT", &hash_slot, "NODE", &to]),
            "OK"
        );
    }
    assert_eq!(add(&live, 0, fence(3, 1)).await?, Ok(()), "moved");
    assert_eq!(sums(&live, 0, "g").await?, (4, 4));
    // The other slots have stayed.
    heal(&live, 1).await?;
    assert_eq!(sums(&live, 1, "g").await?, (0, 0));
    Ok(())
}
