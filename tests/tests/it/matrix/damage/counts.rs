//! Counts: live state that loses keys, duplicate events, and batch rows that other programs change.

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

use super::{OWNER, PAUSE, RUN_CACHE_TIME, owner_plays, print_result, seed};
use crate::matrix::scene::{Scene, Setting};
use tests::direct_access::{Cql, Redis};

/// The view of an owner's total.
const TOTAL_VIEW: &str = "plays_owner_all";
const DETAIL_VIEW: &str = "plays_detail";
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
async fn damaged_live_counts_are_repaired_on_servers() {
    let mut scene = Scene::begin(&Setting::shared_servers(), seed(30)).await;
    let worker = scene.worker();
    scene.world.ingest(&owner_plays(0, 60)).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    scene.world.ingest(&owner_plays(60, 60)).await;
    scene.ingest_plays(60).await;
    scene.settle().await;
    scene.check_owner().await;
    let fields = delete_fields(&mut scene).await;
    let keys = delete_epoch(&mut scene).await;
    assert!(worker.end().0);
    delete_partition_state(&mut scene).await;
    let repeated = repeat_events(&mut scene).await;
    scene.end().await;
    print_result(
        "damage of live counts",
        &format!("{fields} fields and {keys} keys deleted, {repeated} events counted twice"),
    );
}

/// Packed rows without the first row of each view.
fn without_first_rows(mut string: &[u8]) -> Vec<u8> {
    let (mut output, mut seen_views) = (Vec::new(), BTreeSet::new());
    while !string.is_empty() {
        let view = leb128::read(&mut string).expect("a view");
        let mut rows = leb128::read_bytes(&mut string).expect("rows");
        if seen_views.insert(view) {
            leb128::read_bytes(&mut rows).expect("a row");
            leb128::read(&mut rows).expect("a count");
        }
        leb128::write(&mut output, view);
        leb128::write_bytes(&mut output, rows);
    }
    output
}

/// Deletes one live row of the owner in each view.
async fn delete_fields(scene: &mut Scene) -> usize {
    let mut redis = Redis::open().await;
    let namespace = scene.world.namespace().expect("servers").clone();
    let job = scene.world.catalog.job(DETAIL_VIEW).expect("the job");
    let end = [b":", group(job).as_slice()].concat();
    let begin = format!("{{{namespace}:plays:{}}}:p", partition(OWNER));
    let keys = redis.keys(&begin, &end).await;
    assert!(!keys.is_empty(), "the owner has live rows");
    for key in &keys {
        let string: Vec<u8> = redis.run_command("GET", &[key]).await;
        let shortened = without_first_rows(&string);
        assert!(shortened.len() < string.len());
        let reply: String = redis.run_command("SET", &[key, &shortened]).await;
        assert_eq!(reply, "OK");
    }
    assert!(scene.excess_served().await < 0, "the damage is not served");
    let report = scene.expect_causes(DETAIL_VIEW, &["lost_live"]).await;
    assert_eq!(report["differ"], 1, "{report}");
    let difference = &report["differences"][0];
    assert_eq!(difference["key"]["owner_id"], OWNER, "{report}");
    scene
        .expect_causes("plays_owner_quarter", &["lost_live"])
        .await;
    let applied = scene.repair_all(DETAIL_VIEW).await;
    assert!(applied["run"].is_u64(), "{applied}");
    scene.check_owner().await;
    scene.expect_no_difference("plays_owner_quarter").await;
    keys.len()
}

/// Deletes all deltas of a partition: of the owner and of all others.
async fn delete_epoch(scene: &mut Scene) -> i64 {
    scene.world.ingest(&owner_plays(120, 40)).await;
    scene.ingest_plays(80).await;
    scene.settle().await;
    let namespace = scene.world.namespace().expect("servers").clone();
    let owner_partition = partition(OWNER);
    let owners: Vec<i64> = (1..6)
        .filter(|owner| partition(*owner) == owner_partition)
        .collect();
    assert!((1..5).contains(&owners.len()), "some others are there");
    let since = scene.answer_counts();
    let keys = delete_keys(&format!("{{{namespace}:plays:{owner_partition}}}:p*"));
    assert!(keys > 5, "{keys}");
    assert!(scene.excess_served().await < 0, "the damage is not served");
    let report = scene.expect_causes(DETAIL_VIEW, &["lost_live"]).await;
    assert!(report["differ"].as_u64() > Some(20), "{report}");
    // Events keep arriving meanwhile.
    scene.world.ingest(&owner_plays(160, 10)).await;
    scene.ingest_plays(20).await;
    scene.repair_all(DETAIL_VIEW).await;
    scene.record_damage(since, &owners);
    scene.check_owner().await;
    scene.compare().await;
    keys
}

/// Deletes all live state of a partition. Without a worker the comparison fails and says why; a
/// worker rebuilds the state.
async fn delete_partition_state(scene: &mut Scene) {
    scene.world.ingest(&owner_plays(170, 40)).await;
    scene.catch_up().await;
    let namespace = scene.world.namespace().expect("servers").clone();
    scene.world.disturb();
    let keys = delete_keys(&format!("{{{namespace}:plays:{}}}:*", partition(OWNER)));
    assert!(keys > 2, "{keys}");
    let compared = scene.reconcile(DETAIL_VIEW, &[]).await;
    assert_eq!(compared.status, 1, "{compared:?}");
    let unknown = compared.report["live_unknown"].as_str().unwrap_or_default();
    assert!(unknown.contains("has no live state"), "{compared:?}");
    assert!(unknown.contains("backstitch speed"), "{compared:?}");
    scene.catch_up().await;
    scene.expect_no_difference(DETAIL_VIEW).await;
    scene.check_owner().await;
    scene.compare().await;
}

/// The owner's events arrive again, and the worker's duplicate window contains none of them.
async fn repeat_events(scene: &mut Scene) -> i64 {
    scene.world.ingest(&owner_plays(200, 20)).await;
    scene.catch_up().await;
    tokio::time::sleep(PAUSE).await;
    scene.world.ingest(&owner_plays(190, 25)).await;
    let speed = ["speed", "--until-caught-up"];
    let worker = scene.start_with_setting("speed.dedup_window_ms = 1", &speed);
    assert!(worker.wait(), "it counts");
    let excess = scene.excess_served().await;
    assert!(excess > 0, "the damage is not served");
    scene.expect_causes(DETAIL_VIEW, &["duplicate"]).await;
    let applied = scene.repair_all(DETAIL_VIEW).await;
    assert!(applied["run"].is_u64(), "{applied}");
    scene.check_owner().await;
    excess
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
    async fn find(cql: &Cql, job: &Job) -> Self {
        let table = format!("rows_{}", cql.id(job.view()).await);
        let text = format!("SELECT part, row, count, epoch FROM {table}");
        let rows = cql.read::<(Vec<u8>, Vec<u8>, i64, i64)>(&text, ()).await;
        let group = group(job);
        // Markers have a negative epoch.
        let is_owner_row =
            |(part, _, _, epoch): &(Vec<u8>, Vec<u8>, i64, i64)| part[8..] == group && *epoch >= 0;
        let owner_row = rows.into_iter().find(is_owner_row);
        let (part, row, count, epoch) = owner_row.expect("a row of the owner");
        Self {
            table,
            part,
            row,
            count,
            epoch,
        }
    }

    /// Runs a statement that ends in the row's key; returns the value that the row should have.
    async fn run(&self, cql: &Cql, statement: &str) -> i64 {
        let text = statement.replace("TABLE", &self.table);
        let text = format!("{text} WHERE part = ? AND row = ?");
        cql.run(&text, (&self.part, &self.row)).await;
        self.count
    }

    /// Adds a row of the same partition that has no events.
    async fn add(&self, cql: &Cql, row: &[u8], epoch: Option<i64>) -> i64 {
        let table = &self.table;
        let text = format!("INSERT INTO {table} (part, row, count, epoch) VALUES (?, ?, 7, ?)");
        cql.run(&text, (&self.part, row, epoch)).await;
        0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_batch_rows_are_repaired_on_servers() {
    let mut scene = Scene::begin(&Setting::shared_servers(), seed(31)).await;
    let worker = scene.worker();
    scene.world.ingest(&owner_plays(0, 60)).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    scene.world.ingest(&owner_plays(60, 30)).await;
    scene.settle().await;
    let cql = Cql::connect(scene.world.namespace().expect("servers")).await;
    let job = Arc::clone(scene.world.catalog.job(TOTAL_VIEW).expect("the job"));
    let owner_row = Row::find(&cql, &job).await;
    let download = [KeyValue::Text("download".to_owned())];
    let download_row = job.row().encode_values(&download).expect("a row");
    for (statement, cause) in [
        ("UPDATE TABLE SET count = 1000", "changed_row"),
        ("UPDATE TABLE SET count = -5", "changed_row"),
        ("DELETE FROM TABLE", "missing_row"),
        ("DELETE count FROM TABLE", "missing_row"),
        ("DELETE epoch FROM TABLE", ""),
        ("UPDATE TABLE SET count = 4", "changed_row"),
        ("ADD WITH AN EPOCH", "extra_row"),
        ("ADD WITHOUT", "extra_row"),
        // Last: any later write has an earlier timestamp.
        (late_timestamp().as_str(), "changed_row"),
    ] {
        let expected = match statement {
            "ADD WITH AN EPOCH" => {
                owner_row
                    .add(&cql, &download_row, Some(owner_row.epoch))
                    .await
            }
            "ADD WITHOUT" => owner_row.add(&cql, &download_row, None).await,
            _ => owner_row.run(&cql, statement).await,
        };
        check_damage(&mut scene, statement, cause, expected).await;
        if cause.is_empty() {
            continue;
        }
        let reread = Row::find(&cql, &job).await;
        assert_eq!(
            (reread.count, reread.epoch),
            (owner_row.count, owner_row.epoch),
            "{statement}"
        );
    }
    scene.compare().await;
    assert!(worker.end().0);
    scene.check_owner().await;
    scene.end().await;
    print_result("damage of batch rows", "9 times");
}

/// A timestamp long after all others.
fn late_timestamp() -> String {
    format!("UPDATE TABLE USING TIMESTAMP {LATE_US} SET count = 77")
}

/// A damaged row is served, found, named and repaired.
async fn check_damage(scene: &mut Scene, statement: &str, cause: &str, expected: i64) {
    tokio::time::sleep(RUN_CACHE_TIME).await;
    if cause.is_empty() {
        // The number is correct; only its provenance is missing.
        scene.expect_no_difference(TOTAL_VIEW).await;
        return;
    }
    // A server that has not read the row before, and may cache it.
    let other_server = Server::start(scene.installation.data(), &[]);
    assert_ne!(
        scene.excess_from(&other_server.client).await,
        0,
        "{statement}: the damage is not served"
    );
    let report = scene.expect_causes(TOTAL_VIEW, &[cause]).await;
    let difference = &report["differences"][0];
    assert_eq!(
        (&report["differ"], &difference["key"]["owner_id"]),
        (&json!(1), &json!(OWNER)),
        "{statement}: {report}"
    );
    let events = difference["expected"].as_i64().expect("a count")
        - difference["live"].as_i64().expect("a count");
    assert_eq!(events, expected, "{statement}: {report}");
    let applied = scene.repair_all(TOTAL_VIEW).await;
    assert_eq!(
        (&applied["rows"], &applied["run"]),
        (&json!(1), &Value::Null),
        "{statement}: {applied}"
    );
    assert_eq!(
        scene.excess_from(&other_server.client).await,
        0,
        "{statement}"
    );
    scene.check_owner().await;
}
