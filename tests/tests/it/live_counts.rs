//! Live counts: readers use them instead of single entries, and only while they are valid.

use schemas::key::KeyValue;
use schemas::source::Source;
use serde_json::json;
use stores::live::{Changes, EntriesSnapshot, EntryQuery, PartitionId};
use stores::live_count::{LiveCountChange, StoredLiveCount};
use tests::http::Client;
use tests::world::{PARTITIONS, World};

use batch::RunRequest;

const SOURCE: Source = Source::Authorizations;
const APPLICATION: i64 = 7;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_count_replaces_entries_embedded() {
    Box::pin(check_live_counts(World::new().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_count_replaces_entries_on_servers() {
    Box::pin(check_live_counts(World::on_servers().await)).await;
}

/// Connects athletes, or revokes their authorizations.
async fn authorize(world: &World, athletes: std::ops::Range<i64>, is_revoked: bool) {
    let lines = athletes.map(|athlete| {
        let revoked = is_revoked.then_some("2026-02-01T00:00:00Z");
        let row = json!({
            "id": athlete, "application_id": APPLICATION, "athlete_id": athlete,
            "created_at": "2026-01-01T00:00:00Z", "revoked_at": revoked,
        });
        row.to_string()
    });
    let lines: Vec<String> = lines.collect();
    world.ingest_into(SOURCE, &lines).await;
    world.catch_up_on(SOURCE).await;
}

fn count_query(world: &World) -> EntryQuery {
    let mut jobs = world.catalog.boards().iter();
    let job = jobs.find(|job| job.board() == "applications");
    let job = job.expect("the board");
    let key = job.key().encode_values(&[KeyValue::Int(APPLICATION)]);
    EntryQuery {
        view: job.view().to_owned(),
        key: key.expect("a key"),
        partition: None,
    }
}

async fn read_counts(world: &World) -> EntriesSnapshot {
    let live = &world.stores.live;
    let read = live
        .read_live_counts(SOURCE, PARTITIONS, &[count_query(world)])
        .await;
    read.expect("entries")
}

/// The stored live count with its partition, if there is one.
async fn stored_count(world: &World) -> Option<(u32, StoredLiveCount)> {
    let answer = read_counts(world).await;
    let counts = answer
        .entries
        .into_iter()
        .flat_map(|entries| entries.live_counts);
    counts.filter(|(_, count)| count.content().is_some()).last()
}

async fn fetch_connected(client: &Client) -> u64 {
    let answer = client
        .fetch_json(&format!("/api/v1/applications/{APPLICATION}"))
        .await;
    answer["connected_athletes"].as_u64().expect("a count")
}

/// Replaces the stored live count by one that is a thousand higher.
async fn falsify_count(world: &World) {
    let (partition, stored) = stored_count(world).await.expect("a live count");
    let states = read_counts(world).await.partition_states;
    let state = states[partition as usize]
        .as_ref()
        .expect("a partition state");
    let mut content = stored.content().expect("a live count").to_vec();
    let count_offset = content.len() - 16;
    let count = content[count_offset..count_offset + 8]
        .try_into()
        .expect("eight bytes");
    let count = u64::from_be_bytes(count) + 1_000;
    content[count_offset..count_offset + 8].copy_from_slice(&count.to_be_bytes());
    let EntryQuery { view, key, .. } = count_query(world);
    let changes = Changes {
        live_counts: vec![LiveCountChange {
            view: view.clone(),
            key,
            expected: Some(stored),
            next: Some(StoredLiveCount::completed(&content)),
        }],
        ..Changes::default()
    };
    let source = SOURCE;
    let id = PartitionId { source, partition };
    let live = &world.stores.live;
    let applied = live
        .apply(id, state.checkpoint(), state.position, &[&view], &changes)
        .await;
    assert_eq!(applied.expect("live state"), Ok(()));
}

async fn check_live_counts(mut world: World) {
    world.speed_options.sum_states = 2;
    let row = json!({"id": APPLICATION, "name": "a", "owner": "o", "athlete_capacity": 1_000});
    world
        .ingest_into(Source::Applications, &[row.to_string()])
        .await;
    world.intake(SOURCE).await;
    let served = world.serve().await;
    // Before the first run there is no version that a live count could refer to.
    authorize(&world, 1..20, false).await;
    assert!(
        stored_count(&world).await.is_some(),
        "there is no live count"
    );
    assert_eq!(fetch_connected(&served.client).await, 19);
    falsify_count(&world).await;
    assert_eq!(
        fetch_connected(&served.client).await,
        1_019,
        "entries were read"
    );
    // A live count is updated incrementally.
    authorize(&world, 1..4, true).await;
    assert_eq!(
        fetch_connected(&served.client).await,
        1_016,
        "entries were read"
    );

    // The stored live count refers to the version before the run.
    let request = RunRequest::default();
    world.run_on(SOURCE, &request).await.expect("a run");
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    assert_eq!(fetch_connected(&served.client).await, 16);
    authorize(&world, 3..8, false).await;
    assert_eq!(fetch_connected(&served.client).await, 17);
    authorize(&world, 10..15, true).await;
    authorize(&world, 20..25, false).await;
    assert_eq!(fetch_connected(&served.client).await, 17);
    falsify_count(&world).await;
    assert_eq!(
        fetch_connected(&served.client).await,
        1_017,
        "entries were read"
    );

    // A new generation has no live count.
    world.delete_live_state();
    world.catch_up_on(SOURCE).await;
    assert_eq!(fetch_connected(&served.client).await, 17);
    served.end().await;
}
