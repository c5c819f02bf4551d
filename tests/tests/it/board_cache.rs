//! Cached boards with live state on a server: misses are filled, boards that are read stay, and
//! wrong boards are found and dropped.

use std::time::{Duration, Instant};

use jobs::board::FilteredBoard;
use jobs::{Board, Job};
use schemas::key::{KeyShape, KeyValue};
use schemas::seam::Epoch;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::board_cache::{BoardRow, CachedBoardChange, CachedBoardChanges, RegisteredBoard};
use stores::live::{Changes, PartitionId};
use tests::http::Client;
use tests::servers::delete_keys;
use tests::world::{PARTITIONS, World};

use batch::RunRequest;

const ATHLETES: i64 = 40;

pub(crate) fn effort(athlete: i64, time: i64) -> String {
    let row = json!({
        "id": athlete, "segment_id": 7, "athlete_id": athlete, "activity_id": athlete,
        "elapsed_time": time, "started_at": "2026-01-01T00:00:00Z",
    });
    row.to_string()
}

/// All filled cached boards of efforts, each with its partition.
pub(crate) async fn list_filled(world: &World) -> Vec<(PartitionId, RegisteredBoard)> {
    let cache = world.stores.live.board_cache().expect("a cache on servers");
    let mut filled = Vec::new();
    for partition in 0..PARTITIONS {
        let source = Source::Efforts;
        let partition_id = PartitionId { source, partition };
        let boards = cache
            .read_register(partition_id)
            .await
            .expect("a register")
            .boards;
        let boards = boards.into_iter().filter(|board| board.bytes.is_some());
        filled.extend(boards.map(|board| (partition_id, board)));
    }
    filled
}

pub(crate) async fn fetch_athletes(client: &Client, path: &str) -> Vec<i64> {
    let answer: Value = client.fetch_json(path).await;
    let entries = answer["entries"].as_array().expect("entries").iter();
    entries
        .map(|entry| entry["athlete_id"].as_i64().expect("an id"))
        .collect()
}

/// Requests a board until it is cached.
pub(crate) async fn fill(world: &World, client: &Client, path: &str) {
    let before = list_filled(world).await.len();
    for _ in 0..100 {
        fetch_athletes(client, path).await;
        world.catch_up_on(Source::Efforts).await;
        if list_filled(world).await.len() > before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} does not come into the cache");
}

async fn create_world() -> World {
    world_on(World::on_servers().await, ATHLETES).await
}

/// Creates a world with a published board of `athletes` athletes.
pub(crate) async fn world_on(world: World, athletes: i64) -> World {
    let lines: Vec<String> = (1..=athletes).map(|id| effort(id, 100 + id)).collect();
    world.ingest_into(Source::Efforts, &lines).await;
    world.catch_up_on(Source::Efforts).await;
    let request = RunRequest::default();
    world
        .run_on(Source::Efforts, &request)
        .await
        .expect("a run");
    world
}

pub(crate) const OVERALL: &str = "/api/v1/boards/segments/7?limit=5";

/// A cached board follows every change, and gives the same answers as the stores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_requested_board_is_cached_and_updated() {
    let world = create_world().await;
    let served = world.serve().await;
    fill(&world, &served.client, OVERALL).await;
    let lines = [effort(9, 1), effort(41, 2)];
    world.ingest_into(Source::Efforts, &lines).await;
    world.catch_up_on(Source::Efforts).await;
    assert_eq!(
        fetch_athletes(&served.client, OVERALL).await,
        [9, 41, 1, 2, 3]
    );
    let answer = served.client.fetch_json(OVERALL).await;
    assert_eq!(answer["total"], 41);
    assert_eq!(answer["provenance"]["source"], "merged");
    let request = RunRequest::default();
    world
        .run_on(Source::Efforts, &request)
        .await
        .expect("a run");
    // Readers cache run records briefly.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let answer = served.client.fetch_json(OVERALL).await;
    assert_eq!(answer["provenance"]["source"], "batch", "{answer}");
    assert_eq!(list_filled(&world).await.len(), 1);
    served.end().await;
}

/// Boards that were not read lately are evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boards_beyond_the_memory_limit_are_evicted() {
    let mut world = create_world().await;
    let served = world.serve().await;
    fill(&world, &served.client, OVERALL).await;
    let bytes = list_filled(&world).await[0].1.bytes.expect("its memory");
    // Memory for two boards in each partition.
    world.speed_options.board_cache_bytes_max = u64::from(PARTITIONS) * bytes * 5 / 2;
    for year in 2021..2027 {
        let path = format!("{OVERALL}&window=year&date={year}-01-01");
        let athletes_of_year = fetch_athletes(&served.client, &path).await;
        assert_eq!(athletes_of_year.len(), if year == 2026 { 5 } else { 0 });
        request_board(&world, &served.client, &path).await;
    }
    let cached_bytes: u64 = list_filled(&world)
        .await
        .iter()
        .filter_map(|(_, board)| board.bytes)
        .sum();
    assert!(cached_bytes <= bytes * 5 / 2, "{cached_bytes} of {bytes}");
    served.end().await;
}

async fn request_board(world: &World, client: &Client, path: &str) {
    for _ in 0..4 {
        fetch_athletes(client, path).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        world.catch_up_on(Source::Efforts).await;
    }
}

/// A row for a member that is better than all others.
fn best_row(job: &Job<Board>, member: i64, epoch: Epoch) -> (Vec<u8>, Option<BoardRow>) {
    let encoded = |shape: &KeyShape, value: i64| {
        let values = shape.0.iter().map(|column| match column.nullable {
            true => KeyValue::Null,
            false => KeyValue::Int(value),
        });
        let values: Vec<KeyValue> = values.collect();
        shape.encode_values(&values).expect("bytes")
    };
    let member = encoded(job.member(), member);
    let row = BoardRow {
        member: member.clone(),
        score: encoded(job.score(), 1),
        payload: encoded(job.payload(), 0),
        weight: 1,
        epoch,
    };
    (member, Some(row))
}

/// Athletes of the segment with their ranks.
async fn fetch_ranks(client: &Client, athletes: &[i64]) -> Vec<(i64, i64)> {
    let body = json!({"segments": [7], "athletes": athletes}).to_string();
    let client = client.clone();
    let path = "/api/v1/boards/segments/ranks";
    let answer = tokio::task::spawn_blocking(move || client.post(path, body.as_bytes())).await;
    let (status, body) = answer.expect("an answer");
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).expect("JSON");
    let number = |row: &Value, name: &str| row[name].as_i64().expect("a number");
    let rows = answer["rows"].as_array().expect("rows").iter();
    rows.map(|row| (number(row, "athlete_id"), number(row, "rank")))
        .collect()
}

/// The worker notices a wrong row and drops the board.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_row_drops_the_board() {
    let mut world = create_world().await;
    let served = world.serve().await;
    fill(&world, &served.client, OVERALL).await;
    let (partition_id, board) = list_filled(&world).await.remove(0);
    let filtered = FilteredBoard::decode(&board.name.filtered_board).expect("a filtered board");
    assert_eq!(filtered.filters, []);
    let live = &world.stores.live;
    let partition_states = live
        .read_deltas(partition_id.source, PARTITIONS, &[])
        .await
        .expect("live state")
        .partition_states;
    let state = partition_states[partition_id.partition as usize]
        .clone()
        .expect("a partition state");
    let mut jobs = world.catalog.boards().iter();
    let job = jobs.find(|job| job.board() == "segments");
    let job = job.expect("the board");
    // A wrong entry of a member, and an entry of an unknown member.
    let rows = [3, 99].map(|id| best_row(job, id, state.epoch));
    let changes = Changes {
        boards: CachedBoardChanges {
            boards: vec![CachedBoardChange {
                id: board.id.clone(),
                rows: rows.to_vec(),
            }],
            ..CachedBoardChanges::default()
        },
        ..Changes::default()
    };
    let views = [job.view()];
    let applied = live
        .apply(
            partition_id,
            state.checkpoint(),
            state.position,
            &views,
            &changes,
        )
        .await;
    applied.expect("a server").expect("the current checkpoint");
    assert_eq!(
        fetch_athletes(&served.client, OVERALL).await[0],
        3,
        "it is wrong now"
    );
    // Ranks and counts come from the cache, too.
    let counts = served.client.fetch_json("/api/v1/segments/7/counts").await;
    assert_eq!(counts["athletes"], 41, "{counts}");
    assert_eq!(
        fetch_ranks(&served.client, &[5, 3, 98]).await,
        [(3, 1), (5, 6)]
    );
    world.speed_options.board_check_interval_ms = 0;
    for _ in 0..20 {
        // The worker verifies boards while it has work.
        world.ingest_into(Source::Efforts, &[effort(40, 140)]).await;
        world.catch_up_on(Source::Efforts).await;
    }
    let names: Vec<_> = list_filled(&world).await;
    assert!(
        names.iter().all(|(_, cached)| cached.id != board.id),
        "{names:?}"
    );
    assert_eq!(
        fetch_athletes(&served.client, OVERALL).await,
        [1, 2, 3, 4, 5]
    );
    assert_eq!(
        fetch_ranks(&served.client, &[5, 3, 98]).await,
        [(3, 3), (5, 5)]
    );
    served.end().await;
}

/// Deleting keys of a board evicts it from the cache, and makes no answer wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_board_with_deleted_keys_is_filled_again() {
    let world = create_world().await;
    let served = world.serve().await;
    fill(&world, &served.client, OVERALL).await;
    let (_, board) = list_filled(&world).await.remove(0);
    let mut current = board;
    for (keys, count, time) in [("?", 3, 90), ("m", 1, 89), ("z", 1, 88), ("h", 1, 87)] {
        let deleted = delete_board_keys(&world, &current, keys);
        assert_eq!(deleted, count, "the keys of {current:?}");
        current = fill_again(&world, &served.client, &current, time).await;
    }
    assert_eq!(
        fetch_athletes(&served.client, OVERALL).await,
        [40, 1, 2, 3, 4]
    );
    served.end().await;
}

/// Deletes the keys of a board that match a pattern, and returns their number.
fn delete_board_keys(world: &World, board: &RegisteredBoard, keys: &str) -> i64 {
    let namespace = world.namespace().expect("servers");
    delete_keys(&format!("{{{namespace}:*b:{}:{keys}", board.id))
}

/// Fills a board with deleted keys again, and returns the new board.
async fn fill_again(
    world: &World,
    client: &Client,
    board: &RegisteredBoard,
    time: i64,
) -> RegisteredBoard {
    // An athlete's time changes before the worker notices the missing keys.
    let line = effort(40, time);
    world.ingest_into(Source::Efforts, &[line]).await;
    world.catch_up_on(Source::Efforts).await;
    let started = Instant::now();
    loop {
        let athletes = fetch_athletes(client, OVERALL).await;
        assert_eq!(athletes, [40, 1, 2, 3, 4], "with deleted keys");
        world.catch_up_on(Source::Efforts).await;
        let mut boards = list_filled(world).await.into_iter();
        let refilled =
            boards.find(|(_, cached)| cached.name == board.name && cached.id != board.id);
        if let Some((_, refilled)) = refilled {
            return refilled;
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "the board is not filled"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A run may publish changes that the speed layer has not processed; this is no reason to drop a
/// board.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_batch_rows_drop_no_board() {
    let mut world = create_world().await;
    let served = world.serve().await;
    fill(&world, &served.client, OVERALL).await;
    let (_, board) = list_filled(&world).await.remove(0);
    // A run rebuilds the keys whose notifications precede its cut.
    world.ingest_into(Source::Efforts, &[effort(30, 99)]).await;
    world.catch_up_on(Source::Efforts).await;
    world.speed_options.board_check_interval_ms = 0;
    world.speed_options.records_max = 1;
    let lines: Vec<String> = (1..=8).map(|id| effort(id, 50 + id)).collect();
    world.ingest_into(Source::Efforts, &lines).await;
    let request = RunRequest::default();
    let run = world.run_on(Source::Efforts, &request).await;
    run.expect("a run");
    world.catch_up_on(Source::Efforts).await;
    let boards = list_filled(&world).await;
    assert_eq!(boards[0].1.id, board.id);
    assert_eq!(
        fetch_athletes(&served.client, OVERALL).await,
        [1, 2, 3, 4, 5]
    );
    served.end().await;
}
