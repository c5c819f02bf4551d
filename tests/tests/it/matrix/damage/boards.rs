//! Boards: missing or changed heads and nodes, live entries and cached boards that other programs
//! change, and rows that change without a notification.

use std::time::{Duration, Instant};

use jobs::{Board, Job};
use schemas::key::KeyValue;
use schemas::partition::partition_of;
use schemas::source::Source;
use serde_json::{Value, json};
use tests::process::Process;
use tests::servers::run_on_postgres;
use tests::world::PARTITIONS;

use super::{RUN_CACHE_TIME, print_result, seed};
use crate::matrix::scene::{Scene, Setting};
use tests::direct_access::{Cql, Redis};

pub(super) const VIEW: &str = "segment_boards";
/// The damaged segment; no random question is about it.
const SEGMENT: i64 = 90;
const ATHLETES: i64 = 400;
/// How much faster some athletes become.
const FASTER_BY: i64 = 500;
const WAIT_MAX: Duration = Duration::from_secs(120);

fn effort(athlete: i64, time: i64) -> String {
    let id = 1_000_000 + athlete;
    let row = json!({
        "id": id, "segment_id": SEGMENT, "athlete_id": 1_000 + athlete, "activity_id": id,
        "elapsed_time": time, "started_at": "2026-02-01T10:00:00Z",
    });
    row.to_string()
}

async fn ingest_efforts(scene: &mut Scene, athletes: std::ops::Range<i64>, faster: i64) {
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

/// The prefix of the partition state's keys.
fn key_prefix(scene: &Scene) -> String {
    let partition = partition_of(SEGMENT.to_string().as_bytes(), PARTITIONS);
    let namespace = scene.world.namespace().expect("servers");
    format!("{{{namespace}:efforts:{partition}}}:")
}

/// The first athletes on the served board.
pub(super) async fn first_athletes(scene: &Scene) -> Vec<i64> {
    let path = format!("/api/v1/boards/segments/{SEGMENT}?limit=3");
    let answer = scene.server.client.fetch_json(&path).await;
    let entries = answer["entries"].as_array().expect("entries").iter();
    entries
        .map(|entry| entry["athlete_id"].as_i64().expect("an id") - 1_000)
        .collect()
}

/// The explanation of the boards adds up to the served values.
pub(super) async fn check_explanation(scene: &Scene) {
    let client = &scene.server.client;
    let path = format!("/api/v1/boards/segments/{SEGMENT}?limit=1");
    let served = client.fetch_json(&path).await;
    let path = format!("/api/v1/explain?segment_id={SEGMENT}&athlete_id=1001");
    let explanation = client.fetch_json(&path).await;
    let number = |part: &Value, name: &str| part[name].as_i64().expect("a number");
    let total = &explanation["total"];
    assert_eq!(served["total"], total["count"], "{served} {explanation}");
    let sum =
        |part: &Value| number(part, "edition") - number(part, "taken_away") + number(part, "live");
    assert_eq!(sum(total), number(total, "count"), "{explanation}");
    if explanation["place"].is_object() {
        assert_eq!(
            sum(&explanation["place"]) + 1,
            number(&explanation["place"], "rank"),
            "{explanation}"
        );
    }
}

/// Other segments are correct despite the damage.
async fn check_others(scene: &mut Scene) {
    for _ in 0..3 {
        let (client, rng) = (&scene.server.client, &mut scene.rng);
        scene.board_history.check_at_rest(client, rng).await;
    }
}

pub(super) async fn start_with_boards(scene: &mut Scene) -> Process {
    // A cached board in Redis would answer instead of the damaged one.
    let worker = scene.start_with_setting(
        "speed.board_cache_bytes_max = 0",
        &["speed", "--log-level", "info"],
    );
    ingest_efforts(scene, 0..ATHLETES, 0).await;
    scene.run_batch(&[]).await;
    ingest_efforts(scene, 0..20, FASTER_BY).await;
    worker
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_boards_are_repaired_on_servers() {
    let mut scene = Scene::begin(&Setting::shared_servers(), seed(32)).await;
    let worker = start_with_boards(&mut scene).await;
    let mut faster = FASTER_BY;
    let nodes = damage_batch_rows(&mut scene, &mut faster).await;
    damage_live_entries(&mut scene, &mut faster).await;
    rows_change_without_notifications(&mut scene).await;
    assert!(worker.end().0);
    damage_cached_board(&mut scene).await;
    scene.end().await;
    print_result(
        "damage of boards",
        &format!("of {nodes} nodes one deleted, one changed"),
    );
}

/// Repairs the boards, and checks the served values. Then some athletes become faster than ever
/// before, so that live entries differ from batch rows.
async fn repair_and_check(scene: &mut Scene, faster: &mut i64) {
    check_others(scene).await;
    let applied = scene.repair_all(VIEW).await;
    assert!(applied["run"].is_u64(), "{applied}");
    assert_eq!(first_athletes(scene).await, [0, 1, 2]);
    check_explanation(scene).await;
    *faster += 10;
    ingest_efforts(scene, 0..20, *faster).await;
}

async fn damage_batch_rows(scene: &mut Scene, faster: &mut i64) -> usize {
    let cql = Cql::connect(scene.world.namespace().expect("servers")).await;
    let (id, key) = (cql.id(job(scene).view()).await, key(scene));
    let query = format!("SELECT key, shard, name, stamp_us, bytes FROM nodes_{id}");
    let nodes = async || {
        let rows = cql
            .read::<(Vec<u8>, i32, Vec<u8>, i64, Vec<u8>)>(&query, ())
            .await;
        let of_key = rows.into_iter().filter(|(found_key, ..)| *found_key == key);
        of_key.collect::<Vec<_>>()
    };
    let node_count = nodes().await.len();
    assert!(node_count > 1, "{node_count} nodes");
    // First all nodes of the key are deleted; then the bytes of all are changed.
    for is_deleted in [true, false] {
        for (key, shard, name, stamp_us, mut bytes) in nodes().await {
            let condition = "WHERE key = ? AND shard = ? AND name = ? AND stamp_us = ?";
            if is_deleted {
                let text = format!("DELETE FROM nodes_{id} {condition}");
                cql.run(&text, (key, shard, name, stamp_us)).await;
            } else {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                let text = format!("UPDATE nodes_{id} SET bytes = ? {condition}");
                cql.run(&text, (bytes, key, shard, name, stamp_us)).await;
            }
        }
        let report = scene.expect_causes(VIEW, &["damaged"]).await;
        assert_eq!(
            report["differences"][0]["key"]["segment_id"], SEGMENT,
            "{report}"
        );
        repair_and_check(scene, faster).await;
    }
    let heads = format!("SELECT bucket, key, root FROM heads_{id}");
    let heads = cql
        .read::<(i32, Option<Vec<u8>>, Option<Vec<u8>>)>(&heads, ())
        .await;
    let (of_key, others): (Vec<_>, Vec<_>) = heads
        .into_iter()
        .partition(|(_, number, _)| number.as_ref() == Some(&key));
    let (bucket, ..) = of_key.into_iter().next().expect("a head");
    let head_key = (bucket, &key);
    cql.run(
        &format!("DELETE FROM heads_{id} WHERE bucket = ? AND key = ?"),
        head_key,
    )
    .await;
    check_explanation(scene).await;
    scene.expect_causes(VIEW, &["missing_row"]).await;
    repair_and_check(scene, faster).await;
    let change = format!("UPDATE heads_{id} SET root = 0x00 WHERE bucket = ? AND key = ?");
    cql.run(&change, head_key).await;
    scene.expect_causes(VIEW, &["damaged"]).await;
    repair_and_check(scene, faster).await;
    // The root of another board is readable.
    let other_root = others.into_iter().find_map(|(_, _, root)| root);
    let other_root = other_root.expect("another head");
    let change = format!("UPDATE heads_{id} SET root = ? WHERE bucket = ? AND key = ?");
    cql.run(&change, (other_root, bucket, &key)).await;
    let comparison = scene.reconcile(VIEW, &[]).await;
    assert_eq!(comparison.status, 3, "{comparison:?}");
    print_result(
        "a head of another key",
        &comparison.report["causes"].to_string(),
    );
    repair_and_check(scene, faster).await;
    node_count
}

async fn damage_live_entries(scene: &mut Scene, faster: &mut i64) {
    let mut redis = Redis::open().await;
    let end = [b":", key(scene).as_slice()].concat();
    let (first_member, other_member) = (member(scene, 1), member(scene, 10));
    let mut hashes = Vec::new();
    for hash in redis.keys(&format!("{}s", key_prefix(scene)), &end).await {
        let entry: Option<Vec<u8>> = redis.run_command("HGET", &[&hash, &first_member]).await;
        hashes.extend(entry.is_some().then_some(hash));
    }
    let hash = hashes.last().expect("a state").clone();
    let deleted: u64 = redis.run_command("HDEL", &[&hash, &first_member]).await;
    assert_eq!(deleted, 1);
    check_explanation(scene).await;
    scene.expect_causes(VIEW, &["lost_live"]).await;
    repair_and_check(scene, faster).await;
    // Athletes get the live entries of slower athletes.
    let mut changed = 0;
    for hash in redis.keys(&format!("{}s", key_prefix(scene)), &end).await {
        let stored: Option<Vec<u8>> = redis.run_command("HGET", &[&hash, &other_member]).await;
        if let Some(entry) = stored {
            let _: u64 = redis
                .run_command("HSET", &[&hash, &first_member, &entry])
                .await;
            changed += 1;
        }
    }
    assert!(changed > 0, "no entry was changed");
    assert_eq!(
        first_athletes(scene).await,
        [0, 2, 3],
        "the damage is not served"
    );
    check_explanation(scene).await;
    let report = scene.expect_causes(VIEW, &["changed_live"]).await;
    assert_eq!(
        report["differences"][0]["key"]["athlete_id"], 1_001,
        "{report}"
    );
    repair_and_check(scene, faster).await;
}

/// With triggers disabled: an effort becomes faster, one is deleted, one is added.
pub(super) fn change_without_notifications(scene: &Scene) {
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

async fn rows_change_without_notifications(scene: &mut Scene) {
    change_without_notifications(scene);
    let report = scene.expect_causes(VIEW, &["not_told"]).await;
    let mut athletes: Vec<i64> = report["differences"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|difference| difference["key"]["athlete_id"].as_i64())
        .collect();
    athletes.sort_unstable();
    athletes.dedup();
    assert_eq!(athletes, [1_050, 1_060, 1_999], "{report}");
    check_others(scene).await;
    let applied = scene.repair_all(VIEW).await;
    assert_eq!(applied["notifications"], 3, "{applied}");
    assert_eq!(first_athletes(scene).await, [50, 999, 0]);
    check_explanation(scene).await;
}

/// The worker compares boards in Redis with their originals, and drops those that differ.
async fn damage_cached_board(scene: &mut Scene) {
    let setting = "speed.board_check_interval_ms = 100";
    let worker = scene.start_with_setting(setting, &["speed", "--log-level", "info"]);
    let mut redis = Redis::open().await;
    let rows = wait_cached(scene, &mut redis, &[]).await;
    // Each athlete's row becomes another athlete's. All rows change, since the worker compares a
    // few rows of one board at a time.
    let all_rows: Vec<(Vec<u8>, Vec<u8>)> = redis.run_command("HGETALL", &[&rows]).await;
    assert!(all_rows.len() > 100, "{} rows", all_rows.len());
    let others = all_rows.iter().cycle().skip(1);
    for ((member, row), (_, other_row)) in all_rows.iter().zip(others) {
        assert_ne!(row, other_row);
        let _: u64 = redis.run_command("HSET", &[&rows, member, other_row]).await;
    }
    let started = Instant::now();
    while !worker.outputs()[1].contains("differs from its source") {
        assert!(
            started.elapsed() < WAIT_MAX,
            "it is not found: {:?}",
            worker.outputs()
        );
        // The worker verifies boards while it has work.
        ingest_efforts(scene, 300..301, 0).await;
    }
    tokio::time::sleep(RUN_CACHE_TIME).await;
    assert_eq!(first_athletes(scene).await, [50, 999, 0]);
    check_others(scene).await;
    let recached = wait_cached(scene, &mut redis, &rows).await;
    assert_ne!(recached, rows);
    assert_eq!(first_athletes(scene).await, [50, 999, 0]);
    check_explanation(scene).await;
    scene.expect_no_difference(VIEW).await;
    assert!(worker.end().0);
}

/// Waits until the segment's board is in Redis under another key than `not`; returns the key of its
/// rows.
async fn wait_cached(scene: &mut Scene, redis: &mut Redis, previous: &[u8]) -> Vec<u8> {
    let started = Instant::now();
    let key_prefix = format!("{}b:", key_prefix(scene));
    loop {
        first_athletes(scene).await;
        for rows in redis.keys(&key_prefix, b":h").await {
            let has_athlete: bool = redis
                .run_command("HEXISTS", &[&rows, &member(scene, 50)])
                .await;
            let sums = [&rows[..rows.len() - 1], b"m"].concat();
            let is_filled: bool = redis.run_command("EXISTS", &[&sums]).await;
            if rows != previous && has_athlete && is_filled {
                return rows;
            }
        }
        assert!(started.elapsed() < WAIT_MAX, "the board is not cached");
        ingest_efforts(scene, 301..302, 0).await;
    }
}
