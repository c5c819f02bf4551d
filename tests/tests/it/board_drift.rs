//! The drift of boards. It is zero without damage. The run that includes damaged live state finds
//! and names the damage, and removes it.

use std::collections::BTreeMap;

use arrow::array::BinaryArray;
use batch::{Cause, RunReport, RunRequest};
use jobs::board::MemberEntries;
use schemas::entities::{Authorization, Entity};
use schemas::key::KeyValue;
use schemas::source::Source;
use serde_json::json;
use stores::live::{Changes, Entries, EntryQuery, MembersQuery, PartitionId};
use tests::http::Client;
use tests::world::{NOW_MS, PARTITIONS, World};

const SOURCE: Source = Source::Authorizations;
const APPLICATION: i64 = 7;

pub(super) async fn connect(world: &World, athletes: std::ops::Range<i64>) {
    let lines = athletes.map(|athlete| {
        let row = json!({
            "id": athlete, "application_id": APPLICATION, "athlete_id": athlete,
            "created_at": "2026-01-01T00:00:00Z",
        });
        row.to_string()
    });
    world.ingest_into(SOURCE, &lines.collect::<Vec<_>>()).await;
    world.catch_up_on(SOURCE).await;
}

pub(super) async fn fetch_connected(client: &Client) -> u64 {
    let path = format!("/api/v1/applications/{APPLICATION}");
    let answer = client.fetch_json(&path).await;
    answer["connected_athletes"].as_u64().expect("a count")
}

async fn run(world: &World, full: bool) -> RunReport {
    let request = RunRequest {
        full,
        ..RunRequest::default()
    };
    world.run_on(SOURCE, &request).await.expect("a run")
}

/// Adds a row to the database without a notification.
pub(super) async fn add_row_without_notification(world: &World, athlete: i64) {
    let row = Entity::Authorization(Authorization {
        id: athlete,
        application_id: APPLICATION,
        athlete_id: athlete,
        created_at_us: NOW_MS * 1_000,
        revoked_at_us: None,
        version: 0,
    });
    let entity_store = &world.stores.entities;
    entity_store.apply(&[row], NOW_MS).await.expect("applied");
    let pending = entity_store
        .pending_notifications(SOURCE, i64::MAX, 10)
        .await
        .expect("pending");
    let ids: Vec<i64> = pending.iter().map(|notification| notification.id).collect();
    assert_eq!(ids.len(), 1);
    entity_store
        .remove_notifications(&ids)
        .await
        .expect("removed notifications");
}

/// Replaces the live state of an athlete on a key by an empty one.
pub(super) async fn replace_live_state(world: &World, board: &str, key: i64, athlete: i64) {
    let mut boards = world.catalog.boards().iter();
    let job = boards.find(|job| job.board() == board);
    let job = job.expect("the board");
    let source = job.source();
    let encode = |shape: &schemas::key::KeyShape, id| shape.encode_values(&[KeyValue::Int(id)]);
    let key = encode(job.key(), key).expect("a key");
    let member = encode(job.member(), athlete).expect("a member");
    let query = MembersQuery {
        query: EntryQuery {
            view: job.view().to_owned(),
            key: key.clone(),
            partition: None,
        },
        members: vec![member.clone()],
    };
    let live = &world.stores.live;
    let answer = live.read_members(source, 0..PARTITIONS, &[query]).await;
    let answer = answer.expect("states");
    let states = &answer.entries[0];
    let partition = states.partitions.value(states.partitions.len() - 1);
    let state = answer.partition_states[partition as usize]
        .as_ref()
        .expect("a partition state");
    let nothing = MemberEntries::default().encode();
    let changes = Changes {
        entries: vec![Entries {
            view: job.view().to_owned(),
            keys: BinaryArray::from_iter_values([key]),
            members: BinaryArray::from_iter_values([member]),
            entries: BinaryArray::from_iter_values([nothing]),
        }],
        ..Changes::default()
    };
    let id = PartitionId { source, partition };
    let applied = live
        .apply(
            id,
            state.checkpoint(),
            state.position,
            &[job.view()],
            &changes,
        )
        .await;
    assert_eq!(applied.expect("live state"), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_live_entries_are_reported_embedded() {
    Box::pin(check_damage(World::new().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_live_entries_are_reported_on_servers() {
    let mut world = World::on_servers().await;
    world.speed_options.board_cache_bytes_max = 0;
    Box::pin(check_damage(world)).await;
}

async fn check_damage(world: World) {
    let row = json!({"id": APPLICATION, "name": "a", "owner": "o", "athlete_capacity": 1_000});
    let rows = [row.to_string()];
    world.ingest_into(Source::Applications, &rows).await;
    world.intake(SOURCE).await;
    let served = world.serve().await;
    // Rows from before the first run had no notifications and are not drift.
    add_row_without_notification(&world, 98).await;
    connect(&world, 1..20).await;
    assert_eq!(fetch_connected(&served.client).await, 19);
    let report = run(&world, false).await;
    assert_eq!(report.drift.total, Some(0), "{report:?}");
    assert!(!report.drift.is_lower_bound, "{report:?}");
    settle().await;
    assert_eq!(fetch_connected(&served.client).await, 20);

    // A state that another program wrote.
    connect(&world, 20..25).await;
    replace_live_state(&world, "applications", APPLICATION, 22).await;
    assert_eq!(
        fetch_connected(&served.client).await,
        24,
        "the damage is not served"
    );
    let report = run(&world, false).await;
    let view = &report.drift.views[0];
    assert_eq!((view.total, view.keys), (Some(1), 1), "{report:?}");
    assert_eq!(view.causes, BTreeMap::from([(Cause::Unexplained, 1)]));
    let worst = &report.drift.worst[0];
    assert_eq!(worst.key, "application_id=7 athlete_id=22");
    assert_eq!((worst.batch, worst.live), (1, 0));
    settle().await;
    assert_eq!(fetch_connected(&served.client).await, 25);

    // A row without a notification.
    add_row_without_notification(&world, 99).await;
    connect(&world, 25..26).await;
    assert_eq!(
        fetch_connected(&served.client).await,
        26,
        "the row without a notification was counted"
    );
    let report = run(&world, true).await;
    let view = &report.drift.views[0];
    assert_eq!(
        view.causes,
        BTreeMap::from([(Cause::LostLive, 1)]),
        "{report:?}"
    );
    assert_eq!(report.drift.worst[0].key, "application_id=7 athlete_id=99");
    settle().await;
    assert_eq!(fetch_connected(&served.client).await, 27);
    let last_report = run(&world, true).await;
    assert_eq!(last_report.drift.total, Some(0), "{last_report:?}");

    let path = "/api/v1/reconciliations?source=authorizations";
    let explanation = served.client.fetch_json(path).await;
    let totals = explanation["reconciliations"]
        .as_array()
        .expect("a list")
        .iter();
    let totals: Vec<_> = totals.filter_map(|row| row["total"].as_u64()).collect();
    assert_eq!(totals, [0, 1, 1, 0], "{explanation}");
    served.end().await;
}

/// Waits until run records are read again.
async fn settle() {
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
}

/// On boards with scores a member differs as a whole, and the report names the board.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_scores_are_reported() {
    let world = World::new().await;
    let effort = |id: i64, athlete: i64, seconds: i64| {
        let row = json!({
            "id": id, "segment_id": 5, "athlete_id": athlete, "activity_id": id,
            "elapsed_time": seconds, "started_at": "2026-02-01T10:00:00Z",
        });
        row.to_string()
    };
    let source = Source::Efforts;
    let efforts: Vec<String> = (1..40).map(|n| effort(n, n, 100 + n)).collect();
    world.ingest_into(source, &efforts).await;
    world.catch_up_on(source).await;
    let request = RunRequest::default();
    let report = world.run_on(source, &request).await.expect("a run");
    assert_eq!(report.drift.total, Some(0), "{report:?}");
    world
        .ingest_into(source, &[effort(103, 3, 7), effort(104, 4, 8)])
        .await;
    world.catch_up_on(source).await;
    replace_live_state(&world, "segments", 5, 3).await;
    let report = world.run_on(source, &request).await.expect("a run");
    assert_eq!(report.drift.total, Some(1), "{report:?}");
    let worst = &report.drift.worst[0];
    assert_eq!(
        (&*worst.job, worst.cause),
        ("segment_boards", Cause::Unexplained)
    );
    assert!(
        worst.key.starts_with("segment_id=5 athlete_id=3 division="),
        "{worst:?}"
    );
    assert!(worst.batch > 1 && worst.live == 0, "{worst:?}");
}
