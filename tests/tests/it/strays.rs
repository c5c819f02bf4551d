//! Records in a partition that their key does not belong to: from producers that divide keys in
//! another way than we do.

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

/// Asks with the blocking client, off the threads that serve.
async fn asked(served: &Served, path: &str) -> serde_json::Value {
    let (client, path) = (served.client.clone(), path.to_owned());
    let asked = tokio::task::spawn_blocking(move || client.json(&path));
    asked.await.expect("an answer")
}

/// An owner's event counts wherever it is, also once a batch run has told in which partitions
/// owners are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_other_partitions_count() {
    let world = World::new().await;
    let home = partition_of(OWNER.to_string().as_bytes(), PARTITIONS);
    world.ingest(&[play("a"), play("b")]).await;
    world.catch_up().await;
    world
        .run(&batch::RunRequest::default())
        .await
        .expect("a run");
    let served = world.serve().await;
    let total = format!("/api/v1/stats/plays/total?owner_id={OWNER}&period=all");
    assert_eq!(asked(&served, &total).await["count"], 2);
    let stray = play("c");
    world
        .append_raw((home + 1) % PARTITIONS, &[stray.as_bytes()])
        .await;
    world.catch_up().await;
    assert_eq!(asked(&served, &total).await["count"], 3);
    let slots = world
        .stores
        .live
        .read_deltas(Source::Plays, PARTITIONS, &[]);
    let strays = slots
        .await
        .expect("live state")
        .partition_states
        .into_iter()
        .flatten();
    assert_eq!(strays.filter_map(|slot| slot.misrouted_epoch).count(), 1);
    world
        .run(&batch::RunRequest::default())
        .await
        .expect("a run");
    let answer = asked(&served, &total).await;
    assert_eq!(answer["count"], 3, "{answer}");
    assert_eq!(answer["provenance"]["source"], "batch");
    served.end().await;
}

/// A notification in another partition is sent to the one where the group's states are kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notifications_of_other_partitions_are_forwarded() {
    let world = World::new().await;
    let effort = json!({
        "id": 1, "segment_id": 3, "athlete_id": 4, "activity_id": 1, "elapsed_time": 60,
        "started_at": "2026-03-01T10:00:00Z",
    });
    world
        .ingest_into(Source::Efforts, &[effort.to_string()])
        .await;
    let group = Group { key: 3, member: 4 };
    let home = group.partition(PARTITIONS);
    let strays = NewRecords {
        partition: (home + 1) % PARTITIONS,
        keys: BinaryArray::from_iter_values(["3", "3"]),
        values: BinaryArray::from_iter_values([
            group.notification(Source::Efforts),
            group.notification(Source::Efforts),
        ]),
        headers: Vec::new(),
    };
    let topic = Source::Efforts.topic();
    let before = world.stores.log.spans(topic).await.expect("the log");
    let appended = world.stores.log.append(topic, &[strays], NOW_MS).await;
    appended.expect("appending");
    world.catch_up_on(Source::Efforts).await;
    let after = world.stores.log.spans(topic).await.expect("the log");
    assert_eq!(after[home as usize].end, before[home as usize].end + 1);
    world.catch_up_on(Source::Efforts).await;
    let served = world.serve().await;
    let board = asked(&served, "/api/v1/boards/segments/3").await;
    assert_eq!(board["total"], 1);
    assert_eq!(board["provenance"]["complete"], true);
    served.end().await;
}
