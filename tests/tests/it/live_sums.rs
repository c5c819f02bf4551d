//! Sums of live states: readers go by them in the place of the states, and by none that is not theirs.

use schemas::key::KeyValue;
use schemas::source::Source;
use serde_json::json;
use stores::live::{Changes, PartitionId, StateQuery, StatesSnapshot};
use stores::live_count::{LiveCountChange, StoredLiveCount};
use tests::http::Client;
use tests::world::{PARTITIONS, World};

use batch::RunRequest;

const SOURCE: Source = Source::Authorizations;
const APPLICATION: i64 = 7;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sum_answers_for_states_embedded() {
    Box::pin(answers(World::new().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sum_answers_for_states_on_servers() {
    Box::pin(answers(World::on_servers().await)).await;
}

/// Connects some athletes, and takes others away.
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

fn query(world: &World) -> StateQuery {
    let mut jobs = world.catalog.boards().iter();
    let job = jobs.find(|job| job.board() == "applications");
    let job = job.expect("the board");
    let key = job.key().encode_values(&[KeyValue::Int(APPLICATION)]);
    StateQuery {
        view: job.view().to_owned(),
        key: key.expect("a key"),
        partition: None,
    }
}

async fn read(world: &World) -> StatesSnapshot {
    let live = &world.stores.live;
    let read = live
        .read_live_counts(SOURCE, PARTITIONS, &[query(world)])
        .await;
    read.expect("states")
}

/// The sum that is kept, with the partition, if it is made.
async fn kept(world: &World) -> Option<(u32, StoredLiveCount)> {
    let answer = read(world).await;
    let sums = answer
        .states
        .into_iter()
        .flat_map(|states| states.live_counts);
    sums.filter(|(_, sum)| sum.content().is_some()).last()
}

async fn connected(client: &Client) -> u64 {
    let answer = client
        .ask(&format!("/api/v1/applications/{APPLICATION}"))
        .await;
    answer["connected_athletes"].as_u64().expect("a count")
}

/// Puts a sum that is a thousand more than what is kept in its place.
async fn falsify(world: &World) {
    let (partition, believed) = kept(world).await.expect("a sum");
    let slots = read(world).await.partition_states;
    let slot = slots[partition as usize].as_ref().expect("a slot");
    let mut content = believed.content().expect("a sum").to_vec();
    let at = content.len() - 16;
    let count = content[at..at + 8].try_into().expect("eight bytes");
    let count = u64::from_be_bytes(count) + 1_000;
    content[at..at + 8].copy_from_slice(&count.to_be_bytes());
    let StateQuery { view, key, .. } = query(world);
    let changes = Changes {
        live_counts: vec![LiveCountChange {
            view: view.clone(),
            key,
            believed: Some(believed),
            next: Some(StoredLiveCount::completed(&content)),
        }],
        ..Changes::default()
    };
    let source = SOURCE;
    let id = PartitionId { source, partition };
    let live = &world.stores.live;
    let applied = live
        .apply(id, slot.checkpoint(), slot.position, &[&view], &changes)
        .await;
    assert_eq!(applied.expect("live state"), Ok(()));
}

async fn answers(mut world: World) {
    world.speed_options.sum_states = 2;
    let row = json!({"id": APPLICATION, "name": "a", "owner": "o", "athlete_capacity": 1_000});
    world
        .ingest_into(Source::Applications, &[row.to_string()])
        .await;
    world.intake(SOURCE).await;
    let served = world.serve().await;
    // Before any run there is no edition that it could be against.
    authorize(&world, 1..20, false).await;
    assert!(kept(&world).await.is_some(), "no sum is kept");
    assert_eq!(connected(&served.client).await, 19);
    falsify(&world).await;
    assert_eq!(connected(&served.client).await, 1_019, "states were read");
    // A sum is moved on.
    authorize(&world, 1..4, true).await;
    assert_eq!(connected(&served.client).await, 1_016, "states were read");

    // It is against what was there before the run.
    let request = RunRequest::default();
    world.run_on(SOURCE, &request).await.expect("a run");
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    assert_eq!(connected(&served.client).await, 16);
    authorize(&world, 3..8, false).await;
    assert_eq!(connected(&served.client).await, 17);
    authorize(&world, 10..15, true).await;
    authorize(&world, 20..25, false).await;
    assert_eq!(connected(&served.client).await, 17);
    falsify(&world).await;
    assert_eq!(connected(&served.client).await, 1_017, "states were read");

    // A new life has none of it.
    world.lose_live();
    world.catch_up_on(SOURCE).await;
    assert_eq!(connected(&served.client).await, 17);
    served.end().await;
}
