//! A complete installation with live state in Redis.

use std::sync::Arc;

use batch::RunRequest;
use serde_json::json;
use tests::world::{Served, World};

use super::open;
use super::server::Server;

fn plays(from: usize, to: usize) -> Vec<String> {
    (from..to)
        .map(|id| {
            json!({"event_id": format!("e{id}"), "track_id": id % 5, "owner_id": 1, "kind": "play",
                "at": "2026-03-05T11:00:00Z"})
            .to_string()
        })
        .collect()
}

async fn total(served: &Served) -> (i64, String) {
    let answer = served
        .client
        .fetch_json("/api/v1/stats/plays/total?owner_id=1");
    let answer = answer.await;
    let source = answer["provenance"]["source"].as_str();
    (
        answer["count"].as_i64().expect("a count"),
        source.expect("a source").to_owned(),
    )
}

/// Counts live, from batch rows, and from both; prunes old epochs; recounts after data loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_after_runs_and_data_loss() {
    let server = Server::start(&[]);
    let mut world = World::new().await;
    world.stores.live = Arc::new(open(&server.options()).await.expect("Redis"));
    world.ingest(&plays(0, 60)).await;
    world.catch_up().await;
    let served = world.serve().await;
    assert_eq!(total(&served).await, (60, "realtime".to_owned()));
    let report = world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!(report.drift.total, Some(0));
    assert_eq!(total(&served).await, (60, "batch".to_owned()));
    assert_eq!(
        server.run(&["KEYS", "*}:[dp]*"]),
        "",
        "the pruned epoch is deleted"
    );
    world.ingest(&plays(50, 100)).await;
    world.catch_up().await;
    assert_eq!(total(&served).await, (100, "merged".to_owned()));
    assert_eq!(server.run(&["FLUSHALL"]), "OK");
    world.catch_up().await;
    assert_eq!(total(&served).await, (100, "merged".to_owned()));
    served.end().await;
}
