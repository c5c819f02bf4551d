//! Misrouted records, from producers that partition keys differently.

use arrow::array::BinaryArray;
use schemas::entities::Group;
use schemas::partition::partition_of;
use schemas::source::Source;
use serde_json::json;
use stores::log::NewRecords;
use tests::plays;
use tests::world::{NOW_MS, PARTITIONS, Served, World};

const OWNER: i64 = 7;

fn play(event: &str) -> String {
    plays::play(event, json!({"owner_id": OWNER}))
}

/// Sends a request with the blocking client, on another thread than the server's.
async fn fetch_json(served: &Served, path: &str) -> serde_json::Value {
    let (client, path) = (served.client.clone(), path.to_owned());
    let response = tokio::task::spawn_blocking(move || client.get_json(&path));
    response.await.expect("an answer")
}

/// Events of an owner count in any partition, also after a batch run has recorded the owners by
/// partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misrouted_events_count() {
    let world = World::new().await;
    let owner_partition = partition_of(OWNER.to_string().as_bytes(), PARTITIONS);
    world.ingest(&[play("a"), play("b")]).await;
    world.catch_up().await;
    world
        .run(&batch::RunRequest::default())
        .await
        .expect("a run");
    let served = world.serve().await;
    let path = format!("/api/v1/stats/plays/total?owner_id={OWNER}&period=all");
    assert_eq!(fetch_json(&served, &path).await["count"], 2);
    let misrouted = play("c");
    world
        .append_raw((owner_partition + 1) % PARTITIONS, &[misrouted.as_bytes()])
        .await;
    world.catch_up().await;
    assert_eq!(fetch_json(&served, &path).await["count"], 3);
    let snapshot = world
        .stores
        .live
        .read_deltas(Source::Plays, PARTITIONS, &[]);
    let states = snapshot
        .await
        .expect("live state")
        .partition_states
        .into_iter()
        .flatten();
    assert_eq!(states.filter_map(|state| state.misrouted_epoch).count(), 1);
    world
        .run(&batch::RunRequest::default())
        .await
        .expect("a run");
    let answer = fetch_json(&served, &path).await;
    assert_eq!(answer["count"], 3, "{answer}");
    assert_eq!(answer["provenance"]["source"], "batch");
    served.end().await;
}

/// A misrouted notification is forwarded to the partition of its group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misrouted_notifications_are_forwarded() {
    let world = World::new().await;
    let effort = json!({
        "id": 1, "segment_id": 3, "athlete_id": 4, "activity_id": 1, "elapsed_time": 60,
        "started_at": "2026-03-01T10:00:00Z",
    });
    world
        .ingest_into(Source::Efforts, &[effort.to_string()])
        .await;
    let group = Group { key: 3, member: 4 };
    let group_partition = group.partition(PARTITIONS);
    let misrouted = NewRecords {
        partition: (group_partition + 1) % PARTITIONS,
        keys: BinaryArray::from_iter_values(["3", "3"]),
        values: BinaryArray::from_iter_values([
            group.notification(Source::Efforts),
            group.notification(Source::Efforts),
        ]),
        headers: Vec::new(),
    };
    let topic = Source::Efforts.topic();
    let spans_before = world.stores.log.spans(topic).await.expect("the log");
    let appended = world.stores.log.append(topic, &[misrouted], NOW_MS).await;
    appended.expect("appending");
    world.catch_up_on(Source::Efforts).await;
    let spans_after = world.stores.log.spans(topic).await.expect("the log");
    assert_eq!(
        spans_after[group_partition as usize].end,
        spans_before[group_partition as usize].end + 1
    );
    world.catch_up_on(Source::Efforts).await;
    let served = world.serve().await;
    let board = fetch_json(&served, "/api/v1/boards/segments/3").await;
    assert_eq!(board["total"], 1);
    assert_eq!(board["provenance"]["complete"], true);
    served.end().await;
}
