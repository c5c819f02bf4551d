//! The drift of boards: none while nothing is damaged; what is damaged in live state is found by the run that takes it in, named,
//! and gone with it.

use std::collections::BTreeMap;

use arrow::array::BinaryArray;
use batch::{Cause, RunReport, RunRequest};
use jobs::board::GroupState;
use schemas::entities::{Authorization, Entity};
use schemas::key::KeyValue;
use schemas::source::Source;
use serde_json::json;
use stores::live::{Changes, MembersQuery, SlotId, StateQuery, States};
use tests::http::Client;
use tests::world::{NOW_MS, PARTITIONS, World};

const SOURCE: Source = Source::Authorizations;
const APPLICATION: i64 = 7;

async fn connect(world: &World, athletes: std::ops::Range<i64>) {
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

async fn connected(client: &Client) -> u64 {
    let path = format!("/api/v1/applications/{APPLICATION}");
    let answer = client.ask(&path).await;
    answer["connected_athletes"].as_u64().expect("a count")
}

async fn run(world: &World, full: bool) -> RunReport {
    let request = RunRequest {
        full,
        ..RunRequest::default()
    };
    world.run_on(SOURCE, &request).await.expect("a run")
}

/// Says live that an athlete is not connected, in the place of what was counted.
async fn falsify(world: &World, athlete: i64) {
    let mut boards = world.catalog.boards().iter();
    let job = boards.find(|job| job.board() == "applications");
    let job = job.expect("the board");
    let of = |shape: &schemas::key::KeyShape, id| shape.encode_values(&[KeyValue::Int(id)]);
    let key = of(job.key(), APPLICATION).expect("a key");
    let member = of(job.member(), athlete).expect("a member");
    let query = MembersQuery {
        of: StateQuery {
            view: job.view().to_owned(),
            key: key.clone(),
            partition: None,
        },
        members: vec![member.clone()],
    };
    let live = &world.stores.live;
    let answer = live.read_members(SOURCE, 0..PARTITIONS, &[query]).await;
    let answer = answer.expect("states");
    let states = &answer.states[0];
    let partition = states.partitions.value(states.partitions.len() - 1);
    let slot = answer.slots[partition as usize].as_ref().expect("a slot");
    let nothing = GroupState::default().encode();
    let changes = Changes {
        states: vec![States {
            view: job.view().to_owned(),
            keys: BinaryArray::from_iter_values([key]),
            members: BinaryArray::from_iter_values([member]),
            states: BinaryArray::from_iter_values([nothing]),
        }],
        ..Changes::default()
    };
    let id = SlotId {
        source: SOURCE,
        partition,
    };
    let applied = live
        .apply(id, slot.fence(), slot.position, &[job.view()], &changes)
        .await;
    assert_eq!(applied.expect("live state"), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_of_live_states_is_named_embedded() {
    Box::pin(damage(World::new().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_of_live_states_is_named_on_servers() {
    let mut world = World::on_servers().await;
    world.speed_options.board_cache_bytes_max = 0;
    Box::pin(damage(world)).await;
}

async fn damage(world: World) {
    let row = json!({"id": APPLICATION, "name": "a", "owner": "o", "athlete_capacity": 1_000});
    let rows = [row.to_string()];
    world.ingest_into(Source::Applications, &rows).await;
    world.intake(SOURCE).await;
    let served = world.serve().await;
    connect(&world, 1..20).await;
    let report = run(&world, false).await;
    assert_eq!(report.drift.total, Some(0), "{report:?}");
    assert!(!report.drift.is_lower_bound, "{report:?}");
    assert_eq!(connected(&served.client).await, 19);

    // A state that somebody else wrote.
    connect(&world, 20..25).await;
    falsify(&world, 22).await;
    assert_eq!(connected(&served.client).await, 23, "it is served");
    let report = run(&world, false).await;
    let view = &report.drift.views[0];
    assert_eq!((view.total, view.keys), (Some(1), 1), "{report:?}");
    assert_eq!(view.causes, BTreeMap::from([(Cause::Unexplained, 1)]));
    let worst = &report.drift.worst[0];
    assert_eq!(worst.key, "application_id=7 athlete_id=22");
    assert_eq!((worst.batch, worst.live), (1, 0));
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    assert_eq!(connected(&served.client).await, 24);

    // Rows that nobody was told of.
    let unknown = Entity::Authorization(Authorization {
        id: 99,
        application_id: APPLICATION,
        athlete_id: 99,
        created_at_us: NOW_MS * 1_000,
        revoked_at_us: None,
        version: 0,
    });
    let canon = &world.stores.canon;
    canon.apply(&[unknown], NOW_MS).await.expect("applied");
    let pending = canon.pending(SOURCE, i64::MAX, 10).await.expect("pending");
    let ids: Vec<i64> = pending.iter().map(|one| one.id).collect();
    assert_eq!(ids.len(), 1);
    canon.notified(&ids).await.expect("forgotten");
    connect(&world, 25..26).await;
    assert_eq!(connected(&served.client).await, 25, "nobody knows of it");
    let report = run(&world, true).await;
    let view = &report.drift.views[0];
    assert_eq!(
        view.causes,
        BTreeMap::from([(Cause::LostLive, 1)]),
        "{report:?}"
    );
    assert_eq!(report.drift.worst[0].key, "application_id=7 athlete_id=99");
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    assert_eq!(connected(&served.client).await, 26);
    let again = run(&world, true).await;
    assert_eq!(again.drift.total, Some(0), "{again:?}");

    let path = "/api/v1/reconciliations?source=authorizations";
    let told = served.client.ask(path).await;
    let totals = told["reconciliations"].as_array().expect("a list").iter();
    let totals: Vec<_> = totals.filter_map(|one| one["total"].as_u64()).collect();
    assert_eq!(totals, [0, 1, 1, 0], "{told}");
    served.end().await;
}
