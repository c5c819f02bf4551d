//! Boards: heads and nodes that are gone or changed, live states and cached boards that somebody changes, and rows of
//! the database that change with nobody told.

use std::time::{Duration, Instant};

use jobs::{Board, Job};
use schemas::key::KeyValue;
use schemas::partition::partition_of;
use schemas::source::Source;
use serde_json::{Value, json};
use tests::process::Process;
use tests::servers::run_on_postgres;
use tests::world::PARTITIONS;

use super::{RUNS_SEEN, seed, tell};
use crate::matrix::scene::{Scene, Setting};
use tests::hand::{Cql, Redis};

pub(super) const VIEW: &str = "segment_boards";
/// What is damaged is of a segment of which no random question is asked.
const SEGMENT: i64 = 90;
const ATHLETES: i64 = 400;
/// By so much some athletes are faster than at first.
const FASTER: i64 = 500;
const LONG: Duration = Duration::from_secs(120);

fn effort(athlete: i64, time: i64) -> String {
    let id = 1_000_000 + athlete;
    let row = json!({
        "id": id, "segment_id": SEGMENT, "athlete_id": 1_000 + athlete, "activity_id": id,
        "elapsed_time": time, "started_at": "2026-02-01T10:00:00Z",
    });
    row.to_string()
}

async fn efforts(scene: &mut Scene, athletes: std::ops::Range<i64>, faster: i64) {
    let rows: Vec<String> = athletes.map(|id| effort(id, 1_000 + id - faster)).collect();
    scene.world.ingest_into(Source::Efforts, &rows).await;
    scene.settle().await;
}

fn job(scene: &Scene) -> &Job<Board> {
    let mut boards = scene.world.catalog.boards().iter();
    boards.find(|job| job.name() == VIEW).expect("the boards")
}

fn key(scene: &Scene) -> Vec<u8> {
    let key = job(scene).key().encode_values(&[KeyValue::Int(SEGMENT)]);
    key.expect("a key")
}

fn member(scene: &Scene, athlete: i64) -> Vec<u8> {
    let id = [KeyValue::Int(1_000 + athlete)];
    job(scene).member().encode_values(&id).expect("a member")
}

/// What the slot's keys begin with.
fn begin(scene: &Scene) -> String {
    let at = partition_of(SEGMENT.to_string().as_bytes(), PARTITIONS);
    let namespace = scene.world.namespace().expect("servers");
    format!("{{{namespace}:efforts:{at}}}:")
}

/// The first athletes that are served, without whom nothing is said.
pub(super) async fn first(scene: &Scene) -> Vec<i64> {
    let path = format!("/api/v1/boards/segments/{SEGMENT}?limit=3");
    let answer = scene.server.client.ask(&path).await;
    let entries = answer["entries"].as_array().expect("entries").iter();
    entries
        .map(|entry| entry["athlete_id"].as_i64().expect("an id") - 1_000)
        .collect()
}

/// What the boards are said to be made of adds up to what is served.
pub(super) async fn is_explained(scene: &Scene) {
    let client = &scene.server.client;
    let path = format!("/api/v1/boards/segments/{SEGMENT}?limit=1");
    let served = client.ask(&path).await;
    let path = format!("/api/v1/explain?segment_id={SEGMENT}&athlete_id=1001");
    let told = client.ask(&path).await;
    let of = |part: &Value, name: &str| part[name].as_i64().expect("a number");
    let total = &told["total"];
    assert_eq!(served["total"], total["count"], "{served} {told}");
    let sum = |part: &Value| of(part, "edition") - of(part, "taken_away") + of(part, "live");
    assert_eq!(sum(total), of(total, "count"), "{told}");
    if told["place"].is_object() {
        assert_eq!(
            sum(&told["place"]) + 1,
            of(&told["place"], "rank"),
            "{told}"
        );
    }
}

/// Other segments are right whatever is damaged.
async fn others_are_right(scene: &mut Scene) {
    for _ in 0..3 {
        let (client, rng) = (&scene.server.client, &mut scene.rng);
        scene.ledger.ask_at_rest(client, rng).await;
    }
}

pub(super) async fn lived_in(scene: &mut Scene) -> Process {
    // What is in Redis would answer in the place of what is damaged.
    let worker = scene.start_told(
        "speed.board_cache_bytes_max = 0",
        &["speed", "--log-level", "info"],
    );
    efforts(scene, 0..ATHLETES, 0).await;
    scene.run_batch(&[]).await;
    efforts(scene, 0..20, FASTER).await;
    worker
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_of_boards_is_put_right_on_servers() {
    let mut scene = Scene::begin(&Setting::patient(), seed(32)).await;
    let worker = lived_in(&mut scene).await;
    let mut faster = FASTER;
    let nodes = batch_rows_are_damaged(&mut scene, &mut faster).await;
    live_states_are_damaged(&mut scene, &mut faster).await;
    rows_change_and_nobody_is_told(&mut scene).await;
    assert!(worker.end().0);
    a_cached_board_is_damaged(&mut scene).await;
    scene.end().await;
    tell(
        "damage of boards",
        &format!("of {nodes} nodes one deleted, one changed"),
    );
}

/// Puts the boards right, and looks at what is served. Some athletes are faster after it than ever before, so that live
/// states say something else than batch rows.
async fn put_right(scene: &mut Scene, faster: &mut i64) {
    others_are_right(scene).await;
    let applied = scene.puts_right(VIEW).await;
    assert!(applied["run"].is_u64(), "{applied}");
    assert_eq!(first(scene).await, [0, 1, 2]);
    is_explained(scene).await;
    *faster += 10;
    efforts(scene, 0..20, *faster).await;
}

async fn batch_rows_are_damaged(scene: &mut Scene, faster: &mut i64) -> usize {
    let cql = Cql::of(scene.world.namespace().expect("servers")).await;
    let (id, key) = (cql.id(job(scene).view()).await, key(scene));
    let all = format!("SELECT key, shard, name, stamp_us, bytes FROM nodes_{id}");
    let nodes = async || {
        let found = cql
            .read::<(Vec<u8>, i32, Vec<u8>, i64, Vec<u8>)>(&all, ())
            .await;
        let own = found.into_iter().filter(|(of, ..)| *of == key);
        own.collect::<Vec<_>>()
    };
    let found_nodes = nodes().await.len();
    assert!(found_nodes > 1, "{found_nodes} nodes");
    // All nodes of the key are gone; then the bytes of all are others.
    for is_deleted in [true, false] {
        for (key, shard, name, stamp_us, mut bytes) in nodes().await {
            let place = "WHERE key = ? AND shard = ? AND name = ? AND stamp_us = ?";
            if is_deleted {
                let text = format!("DELETE FROM nodes_{id} {place}");
                cql.run(&text, (key, shard, name, stamp_us)).await;
            } else {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                let text = format!("UPDATE nodes_{id} SET bytes = ? {place}");
                cql.run(&text, (bytes, key, shard, name, stamp_us)).await;
            }
        }
        let found = scene.finds(VIEW, &["damaged"]).await;
        assert_eq!(
            found["differences"][0]["key"]["segment_id"], SEGMENT,
            "{found}"
        );
        put_right(scene, faster).await;
    }
    let heads = format!("SELECT bucket, key, root FROM heads_{id}");
    let heads = cql
        .read::<(i32, Option<Vec<u8>>, Option<Vec<u8>>)>(&heads, ())
        .await;
    let (own, others): (Vec<_>, Vec<_>) = heads
        .into_iter()
        .partition(|(_, of, _)| of.as_ref() == Some(&key));
    let (bucket, ..) = own.into_iter().next().expect("a head");
    let place = (bucket, &key);
    cql.run(
        &format!("DELETE FROM heads_{id} WHERE bucket = ? AND key = ?"),
        place,
    )
    .await;
    is_explained(scene).await;
    scene.finds(VIEW, &["missing_row"]).await;
    put_right(scene, faster).await;
    let change = format!("UPDATE heads_{id} SET root = 0x00 WHERE bucket = ? AND key = ?");
    cql.run(&change, place).await;
    scene.finds(VIEW, &["damaged"]).await;
    put_right(scene, faster).await;
    // Another board's root is one that can be read.
    let other = others.into_iter().find_map(|(_, _, root)| root);
    let other = other.expect("another head");
    let change = format!("UPDATE heads_{id} SET root = ? WHERE bucket = ? AND key = ?");
    cql.run(&change, (other, bucket, &key)).await;
    let found = scene.restorate(VIEW, &[]).await;
    assert_eq!(found.status, 3, "{found:?}");
    tell("a head of another key", &found.report["causes"].to_string());
    put_right(scene, faster).await;
    found_nodes
}

async fn live_states_are_damaged(scene: &mut Scene, faster: &mut i64) {
    let mut redis = Redis::open().await;
    let end = [b":", key(scene).as_slice()].concat();
    let (one, other) = (member(scene, 1), member(scene, 10));
    let mut states = Vec::new();
    for place in redis.keys(&format!("{}s", begin(scene)), &end).await {
        let state: Option<Vec<u8>> = redis.ask("HGET", &[&place, &one]).await;
        states.extend(state.is_some().then_some(place));
    }
    let state = states.last().expect("a state").clone();
    let deleted: u64 = redis.ask("HDEL", &[&state, &one]).await;
    assert_eq!(deleted, 1);
    is_explained(scene).await;
    scene.finds(VIEW, &["lost_live"]).await;
    put_right(scene, faster).await;
    // Somebody has the states of somebody slower.
    let mut changed = 0;
    for of in redis.keys(&format!("{}s", begin(scene)), &end).await {
        let found: Option<Vec<u8>> = redis.ask("HGET", &[&of, &other]).await;
        if let Some(state) = found {
            let _: u64 = redis.ask("HSET", &[&of, &one, &state]).await;
            changed += 1;
        }
    }
    assert!(changed > 0, "no state");
    assert_eq!(first(scene).await, [0, 2, 3], "it is served");
    is_explained(scene).await;
    let found = scene.finds(VIEW, &["changed_live"]).await;
    assert_eq!(
        found["differences"][0]["key"]["athlete_id"], 1_001,
        "{found}"
    );
    put_right(scene, faster).await;
}

/// With triggers switched off: an effort becomes better, one is deleted, one is added.
pub(super) fn change_untold(scene: &Scene) {
    let schema = scene
        .world
        .namespace()
        .expect("servers")
        .identifier("backstitch");
    let changed = run_on_postgres(&format!(
        "SET search_path TO {schema};
         ALTER TABLE efforts DISABLE TRIGGER USER;
         UPDATE efforts SET elapsed_time_s = 3 WHERE id = 1000050;
         UPDATE efforts SET is_deleted = true WHERE id = 1000060;
         INSERT INTO efforts (id, segment_id, athlete_id, activity_id, elapsed_time_s, started_at_us)
             VALUES (2000000, {SEGMENT}, 1999, 1, 4, 1770000000000000);
         ALTER TABLE efforts ENABLE TRIGGER USER;"
    ));
    changed.expect("a change");
}

async fn rows_change_and_nobody_is_told(scene: &mut Scene) {
    change_untold(scene);
    let found = scene.finds(VIEW, &["not_told"]).await;
    let mut athletes: Vec<i64> = found["differences"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["key"]["athlete_id"].as_i64())
        .collect();
    athletes.sort_unstable();
    athletes.dedup();
    assert_eq!(athletes, [1_050, 1_060, 1_999], "{found}");
    others_are_right(scene).await;
    let applied = scene.puts_right(VIEW).await;
    assert_eq!(applied["notifications"], 3, "{applied}");
    assert_eq!(first(scene).await, [50, 999, 0]);
    is_explained(scene).await;
}

/// The worker compares boards in Redis with what they are copies of, and drops those that are others.
async fn a_cached_board_is_damaged(scene: &mut Scene) {
    let often = "speed.board_check_interval_ms = 100";
    let worker = scene.start_told(often, &["speed", "--log-level", "info"]);
    let mut redis = Redis::open().await;
    let rows = cached(scene, &mut redis, &[]).await;
    // Each athlete's row is that of another one: shown is what another one has. It is every row, since some are compared
    // at a time, of one board after the other.
    let all: Vec<(Vec<u8>, Vec<u8>)> = redis.ask("HGETALL", &[&rows]).await;
    assert!(all.len() > 100, "{} rows", all.len());
    let others = all.iter().cycle().skip(1);
    for ((member, row), (_, other)) in all.iter().zip(others) {
        assert_ne!(row, other);
        let _: u64 = redis.ask("HSET", &[&rows, member, other]).await;
    }
    let begun = Instant::now();
    while !worker.said()[1].contains("differs from its source") {
        assert!(
            begun.elapsed() < LONG,
            "it is not found: {:?}",
            worker.said()
        );
        // It looks while it has work.
        efforts(scene, 300..301, 0).await;
    }
    tokio::time::sleep(RUNS_SEEN).await;
    assert_eq!(first(scene).await, [50, 999, 0]);
    others_are_right(scene).await;
    let again = cached(scene, &mut redis, &rows).await;
    assert_ne!(again, rows);
    assert_eq!(first(scene).await, [50, 999, 0]);
    is_explained(scene).await;
    scene.is_right(VIEW).await;
    assert!(worker.end().0);
}

/// The rows of the segment's board once it is in Redis, under another key than `not`.
async fn cached(scene: &mut Scene, redis: &mut Redis, not: &[u8]) -> Vec<u8> {
    let begun = Instant::now();
    let begin = format!("{}b:", begin(scene));
    loop {
        first(scene).await;
        for rows in redis.keys(&begin, b":h").await {
            let is_own: bool = redis.ask("HEXISTS", &[&rows, &member(scene, 50)]).await;
            let sums = [&rows[..rows.len() - 1], b"m"].concat();
            let is_filled: bool = redis.ask("EXISTS", &[&sums]).await;
            if rows != not && is_own && is_filled {
                return rows;
            }
        }
        assert!(begun.elapsed() < LONG, "it does not come into the cache");
        efforts(scene, 301..302, 0).await;
    }
}
