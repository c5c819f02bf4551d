//! Cached boards where live state is on a server: what is missed is filled, what is read stays, what is
//! wrong is found and dropped.

use jobs::board::Section;
use schemas::key::KeyValue;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::board_cache::{BoardChange, BoardChanges, BoardRow, Registered};
use stores::live::{Changes, SlotId};
use tests::http::Client;
use tests::world::{PARTITIONS, World};

use batch::RunRequest;

const ATHLETES: i64 = 40;

fn effort(athlete: i64, time: i64) -> String {
    let row = json!({
        "id": athlete, "segment_id": 7, "athlete_id": athlete, "activity_id": athlete,
        "elapsed_time": time, "started_at": "2026-01-01T00:00:00Z",
    });
    row.to_string()
}

/// All cached boards of efforts that are filled, each with its slot.
async fn filled(world: &World) -> Vec<(SlotId, Registered)> {
    let cache = world.stores.live.board_cache().expect("a cache on servers");
    let mut filled = Vec::new();
    for partition in 0..PARTITIONS {
        let source = Source::Efforts;
        let slot = SlotId { source, partition };
        let boards = cache.register(slot).await.expect("a register").boards;
        let boards = boards.into_iter().filter(|board| board.bytes.is_some());
        filled.extend(boards.map(|board| (slot, board)));
    }
    filled
}

async fn athletes(client: &Client, path: &str) -> Vec<i64> {
    let answer: Value = client.ask(path).await;
    let entries = answer["entries"].as_array().expect("entries").iter();
    entries
        .map(|entry| entry["athlete_id"].as_i64().expect("an id"))
        .collect()
}

/// Asks for a board until it is in the cache.
async fn fill(world: &World, client: &Client, path: &str) {
    let before = filled(world).await.len();
    for _ in 0..100 {
        athletes(client, path).await;
        world.catch_up_on(Source::Efforts).await;
        if filled(world).await.len() > before {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{path} does not come into the cache");
}

async fn world() -> World {
    let world = World::on_servers().await;
    let lines: Vec<String> = (1..=ATHLETES).map(|id| effort(id, 100 + id)).collect();
    world.ingest_into(Source::Efforts, &lines).await;
    world.catch_up_on(Source::Efforts).await;
    let request = RunRequest::default();
    world
        .run_on(Source::Efforts, &request)
        .await
        .expect("a run");
    world
}

const OVERALL: &str = "/api/v1/boards/segments/7?limit=5";

/// A cached board follows every change, and what a reader is told is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_board_in_demand_is_cached_and_kept() {
    let world = world().await;
    let served = world.serve().await;
    fill(&world, &served.client, OVERALL).await;
    let lines = [effort(9, 1), effort(41, 2)];
    world.ingest_into(Source::Efforts, &lines).await;
    world.catch_up_on(Source::Efforts).await;
    assert_eq!(athletes(&served.client, OVERALL).await, [9, 41, 1, 2, 3]);
    let answer = served.client.ask(OVERALL).await;
    assert_eq!(answer["total"], 41);
    assert_eq!(answer["provenance"]["source"], "merged");
    let request = RunRequest::default();
    world
        .run_on(Source::Efforts, &request)
        .await
        .expect("a run");
    // Run records of a moment ago may be used.
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    let answer = served.client.ask(OVERALL).await;
    assert_eq!(answer["provenance"]["source"], "batch", "{answer}");
    assert_eq!(filled(&world).await.len(), 1);
    served.end().await;
}

/// Boards that were not read lately make room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boards_that_take_too_much_memory_go() {
    let mut world = world().await;
    let served = world.serve().await;
    fill(&world, &served.client, OVERALL).await;
    let bytes = filled(&world).await[0].1.bytes.expect("its memory");
    // Room for two of them in each partition.
    world.speed_options.board_cache_bytes_max = u64::from(PARTITIONS) * bytes * 5 / 2;
    for year in 2021..2027 {
        let path = format!("{OVERALL}&window=year&date={year}-01-01");
        let of_year = athletes(&served.client, &path).await;
        assert_eq!(of_year.len(), if year == 2026 { 5 } else { 0 });
        fill_or_not(&world, &served.client, &path).await;
    }
    let left: u64 = filled(&world)
        .await
        .iter()
        .filter_map(|(_, board)| board.bytes)
        .sum();
    assert!(left <= bytes * 5 / 2, "{left} of {bytes}");
    served.end().await;
}

async fn fill_or_not(world: &World, client: &Client, path: &str) {
    for _ in 0..4 {
        athletes(client, path).await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        world.catch_up_on(Source::Efforts).await;
    }
}

/// A row that is not what it should be is noticed by the worker, and the board goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_row_is_found_and_the_board_dropped() {
    let mut world = world().await;
    let served = world.serve().await;
    fill(&world, &served.client, OVERALL).await;
    let (slot, board) = filled(&world).await.remove(0);
    let section = Section::decode(&board.name.section).expect("a section");
    assert_eq!(section.tests, []);
    let live = &world.stores.live;
    let seen = live
        .read(slot.source, PARTITIONS, &[])
        .await
        .expect("slots")
        .slots;
    let seen = seen[slot.partition as usize].clone().expect("a slot");
    let job = world
        .catalog
        .boards()
        .iter()
        .find(|job| job.board() == "segments");
    let job = job.expect("the board");
    let encoded = |shape: &schemas::key::KeyShape, value: i64| {
        let values = shape.0.iter().map(|column| match column.nullable {
            true => KeyValue::Null,
            false => KeyValue::Int(value),
        });
        shape
            .encode_values(&values.collect::<Vec<_>>())
            .expect("bytes")
    };
    let member = encoded(job.member(), 3);
    let row = BoardRow {
        member: member.clone(),
        score: encoded(job.score(), 1),
        payload: encoded(job.payload(), 0),
        weight: 1,
        epoch: seen.epoch,
    };
    let changes = Changes {
        boards: BoardChanges {
            boards: vec![BoardChange {
                id: board.id.clone(),
                rows: vec![(member, Some(row))],
            }],
            ..BoardChanges::default()
        },
        ..Changes::default()
    };
    let views = [job.view()];
    let applied = live
        .apply(slot, seen.fence(), seen.position, &views, &changes)
        .await;
    applied.expect("a server").expect("the fence");
    assert_eq!(
        athletes(&served.client, OVERALL).await[0],
        3,
        "it is wrong now"
    );
    world.speed_options.board_check_interval_ms = 0;
    for _ in 0..20 {
        // The worker looks while it has work.
        world.ingest_into(Source::Efforts, &[effort(40, 140)]).await;
        world.catch_up_on(Source::Efforts).await;
    }
    let names: Vec<_> = filled(&world).await;
    assert!(
        names.iter().all(|(_, other)| other.id != board.id),
        "{names:?}"
    );
    assert_eq!(athletes(&served.client, OVERALL).await, [1, 2, 3, 4, 5]);
    served.end().await;
}
