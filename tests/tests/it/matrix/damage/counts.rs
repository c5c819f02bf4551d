//! Counts: live state that loses keys, events that come twice, and batch rows that somebody changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use jobs::Job;
use schemas::key::KeyValue;
use schemas::leb128;
use schemas::partition::partition_of;
use serde_json::{Value, json};
use tests::process::Server;
use tests::servers::delete_keys;
use tests::world::PARTITIONS;

use super::{OWNER, PAUSE, RUNS_SEEN, own_plays, seed, tell};
use crate::matrix::scene::{Scene, Setting};
use tests::hand::{Cql, Redis};

/// Sees the total of an owner.
const ALL: &str = "plays_owner_all";
const DETAIL: &str = "plays_detail";
/// 2100-01-01T00:00:00Z, in microseconds.
const LATE_US: i64 = 4_102_444_800_000_000;

fn partition(owner: i64) -> u32 {
    partition_of(owner.to_string().as_bytes(), PARTITIONS)
}

fn group(job: &Job) -> Vec<u8> {
    let owner = [KeyValue::Int(OWNER)];
    job.group().encode_values(&owner).expect("a group")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_of_live_counts_is_put_right_on_servers() {
    let mut scene = Scene::begin(&Setting::patient(), seed(30)).await;
    let worker = scene.worker();
    scene.world.ingest(&own_plays(0, 60)).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    scene.world.ingest(&own_plays(60, 60)).await;
    scene.take_plays(60).await;
    scene.settle().await;
    scene.owner_is_right().await;
    let fields = fields_are_deleted(&mut scene).await;
    let keys = an_epoch_is_deleted(&mut scene).await;
    assert!(worker.end().0);
    a_slot_is_deleted(&mut scene).await;
    let repeated = events_come_twice(&mut scene).await;
    scene.end().await;
    tell(
        "damage of live counts",
        &format!("{fields} fields and {keys} keys deleted, {repeated} events counted twice"),
    );
}

/// A string of packed rows without the first row of each view.
fn without_first_rows(mut string: &[u8]) -> Vec<u8> {
    let (mut left, mut seen) = (Vec::new(), BTreeSet::new());
    while !string.is_empty() {
        let view = leb128::read(&mut string).expect("a view");
        let mut rows = leb128::read_bytes(&mut string).expect("rows");
        if seen.insert(view) {
            leb128::read_bytes(&mut rows).expect("a row");
            leb128::read(&mut rows).expect("a count");
        }
        leb128::write(&mut left, view);
        leb128::write_bytes(&mut left, rows);
    }
    left
}

/// One row of the owner in the live state of each view.
async fn fields_are_deleted(scene: &mut Scene) -> usize {
    let mut redis = Redis::open().await;
    let namespace = scene.world.namespace().expect("servers").clone();
    let job = scene.world.catalog.job(DETAIL).expect("the job");
    let end = [b":", group(job).as_slice()].concat();
    let begin = format!("{{{namespace}:plays:{}}}:p", partition(OWNER));
    let keys = redis.keys(&begin, &end).await;
    assert!(!keys.is_empty(), "the owner has live rows");
    for key in &keys {
        let string: Vec<u8> = redis.ask("GET", &[key]).await;
        let left = without_first_rows(&string);
        assert!(left.len() < string.len());
        let done: String = redis.ask("SET", &[key, &left]).await;
        assert_eq!(done, "OK");
    }
    assert!(scene.served_too_much().await < 0, "it is served");
    let found = scene.finds(DETAIL, &["lost_live"]).await;
    assert_eq!(found["differ"], 1, "{found}");
    let one = &found["differences"][0];
    assert_eq!(one["key"]["owner_id"], OWNER, "{found}");
    scene.finds("plays_owner_quarter", &["lost_live"]).await;
    let applied = scene.puts_right(DETAIL).await;
    assert!(applied["run"].is_u64(), "{applied}");
    scene.owner_is_right().await;
    scene.is_right("plays_owner_quarter").await;
    keys.len()
}

/// All live parts of a partition: of the owner, and of whoever else is there.
async fn an_epoch_is_deleted(scene: &mut Scene) -> i64 {
    scene.world.ingest(&own_plays(120, 40)).await;
    scene.take_plays(80).await;
    scene.settle().await;
    let namespace = scene.world.namespace().expect("servers").clone();
    let at = partition(OWNER);
    let owners: Vec<i64> = (1..6).filter(|owner| partition(*owner) == at).collect();
    assert!((1..5).contains(&owners.len()), "some others are there");
    let since = scene.heard();
    let keys = delete_keys(&format!("{{{namespace}:plays:{at}}}:p*"));
    assert!(keys > 5, "{keys}");
    assert!(scene.served_too_much().await < 0, "it is served");
    let found = scene.finds(DETAIL, &["lost_live"]).await;
    assert!(found["differ"].as_u64() > Some(20), "{found}");
    // Events go on coming meanwhile.
    scene.world.ingest(&own_plays(160, 10)).await;
    scene.take_plays(20).await;
    scene.puts_right(DETAIL).await;
    scene.was_damaged(since, &owners);
    scene.owner_is_right().await;
    scene.compare().await;
    keys
}

/// All that is live of a partition. Without a worker nothing can be compared, and that is said; a worker heals.
async fn a_slot_is_deleted(scene: &mut Scene) {
    scene.world.ingest(&own_plays(170, 40)).await;
    scene.catch_up().await;
    let namespace = scene.world.namespace().expect("servers").clone();
    scene.world.disturb();
    let keys = delete_keys(&format!("{{{namespace}:plays:{}}}:*", partition(OWNER)));
    assert!(keys > 2, "{keys}");
    let told = scene.restorate(DETAIL, &[]).await;
    assert_eq!(told.status, 1, "{told:?}");
    let unknown = told.report["live_unknown"].as_str().unwrap_or_default();
    assert!(unknown.contains("has no live state"), "{told:?}");
    assert!(unknown.contains("backstitch speed"), "{told:?}");
    scene.catch_up().await;
    scene.is_right(DETAIL).await;
    scene.owner_is_right().await;
    scene.compare().await;
}

/// Events of the owner come again, and their worker remembers none of them.
async fn events_come_twice(scene: &mut Scene) -> i64 {
    scene.world.ingest(&own_plays(200, 20)).await;
    scene.catch_up().await;
    tokio::time::sleep(PAUSE).await;
    scene.world.ingest(&own_plays(190, 25)).await;
    let speed = ["speed", "--until-caught-up"];
    let forgetful = scene.start_told("speed.dedup_window_ms = 1", &speed);
    assert!(forgetful.wait(), "it counts");
    let more = scene.served_too_much().await;
    assert!(more > 0, "it is served");
    scene.finds(DETAIL, &["duplicate"]).await;
    let applied = scene.puts_right(DETAIL).await;
    assert!(applied["run"].is_u64(), "{applied}");
    scene.owner_is_right().await;
    more
}

/// A row of the owner in a table.
struct Row {
    table: String,
    part: Vec<u8>,
    row: Vec<u8>,
    count: i64,
    epoch: i64,
}

impl Row {
    async fn of(cql: &Cql, job: &Job) -> Self {
        let table = format!("rows_{}", cql.id(job.view()).await);
        let text = format!("SELECT part, row, count, epoch FROM {table}");
        let all = cql.read::<(Vec<u8>, Vec<u8>, i64, i64)>(&text, ()).await;
        let group = group(job);
        // Markers have a negative epoch.
        let is_own =
            |(part, _, _, epoch): &(Vec<u8>, Vec<u8>, i64, i64)| part[8..] == group && *epoch >= 0;
        let own = all.into_iter().find(is_own);
        let (part, row, count, epoch) = own.expect("a row of the owner");
        Self {
            table,
            part,
            row,
            count,
            epoch,
        }
    }

    /// Runs a statement that ends in the row's key; answers what the row should hold.
    async fn run(&self, cql: &Cql, statement: &str) -> i64 {
        let text = statement.replace("TABLE", &self.table);
        let text = format!("{text} WHERE part = ? AND row = ?");
        cql.run(&text, (&self.part, &self.row)).await;
        self.count
    }

    /// Adds a row of the same partition that no event gives.
    async fn add(&self, cql: &Cql, row: &[u8], epoch: Option<i64>) -> i64 {
        let table = &self.table;
        let text = format!("INSERT INTO {table} (part, row, count, epoch) VALUES (?, ?, 7, ?)");
        cql.run(&text, (&self.part, row, epoch)).await;
        0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_of_batch_rows_is_put_right_on_servers() {
    let mut scene = Scene::begin(&Setting::patient(), seed(31)).await;
    let worker = scene.worker();
    scene.world.ingest(&own_plays(0, 60)).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    scene.world.ingest(&own_plays(60, 30)).await;
    scene.settle().await;
    let cql = Cql::of(scene.world.namespace().expect("servers")).await;
    let job = Arc::clone(scene.world.catalog.job(ALL).expect("the job"));
    let own = Row::of(&cql, &job).await;
    let download = [KeyValue::Text("download".to_owned())];
    let other = job.row().encode_values(&download).expect("a row");
    for (what, cause) in [
        ("UPDATE TABLE SET count = 1000", "changed_row"),
        ("UPDATE TABLE SET count = -5", "changed_row"),
        ("DELETE FROM TABLE", "missing_row"),
        ("DELETE count FROM TABLE", "missing_row"),
        ("DELETE epoch FROM TABLE", ""),
        ("UPDATE TABLE SET count = 4", "changed_row"),
        ("ADD WITH AN EPOCH", "extra_row"),
        ("ADD WITHOUT", "extra_row"),
        // Last: whatever somebody writes after it comes too early.
        (late().as_str(), "changed_row"),
    ] {
        let expected = match what {
            "ADD WITH AN EPOCH" => own.add(&cql, &other, Some(own.epoch)).await,
            "ADD WITHOUT" => own.add(&cql, &other, None).await,
            _ => own.run(&cql, what).await,
        };
        damaged(&mut scene, (what, cause), expected).await;
        if cause.is_empty() {
            continue;
        }
        let again = Row::of(&cql, &job).await;
        assert_eq!((again.count, again.epoch), (own.count, own.epoch), "{what}");
    }
    scene.compare().await;
    assert!(worker.end().0);
    scene.owner_is_right().await;
    scene.end().await;
    tell("damage of batch rows", "9 times");
}

/// Written as of a time that comes long after all others.
fn late() -> String {
    format!("UPDATE TABLE USING TIMESTAMP {LATE_US} SET count = 77")
}

/// One row is damaged: it is served, found, named and put right.
async fn damaged(scene: &mut Scene, (what, cause): (&str, &str), expected: i64) {
    tokio::time::sleep(RUNS_SEEN).await;
    if cause.is_empty() {
        // The number is right, and only where it comes from is gone.
        scene.is_right(ALL).await;
        return;
    }
    // One that has not read it before, and may keep what it reads.
    let other = Server::start(scene.place.data(), &[]);
    assert_ne!(
        scene.too_much_from(&other.client).await,
        0,
        "{what}: it is served"
    );
    let found = scene.finds(ALL, &[cause]).await;
    let one = &found["differences"][0];
    assert_eq!(
        (&found["differ"], &one["key"]["owner_id"]),
        (&json!(1), &json!(OWNER)),
        "{what}: {found}"
    );
    let events =
        one["expected"].as_i64().expect("a count") - one["live"].as_i64().expect("a count");
    assert_eq!(events, expected, "{what}: {found}");
    let applied = scene.puts_right(ALL).await;
    assert_eq!(
        (&applied["rows"], &applied["run"]),
        (&json!(1), &Value::Null),
        "{what}: {applied}"
    );
    assert_eq!(scene.too_much_from(&other.client).await, 0, "{what}");
    scene.owner_is_right().await;
}
