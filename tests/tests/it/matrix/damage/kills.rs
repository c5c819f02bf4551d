//! Reconciliations that are killed, and two at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;
use serde_json::{Value, json};
use tests::process::{Process, run_ok};

use super::boards;
use super::{OWNER, PAUSE, TRACK, owner_plays, print_result, seed};
use crate::matrix::scene::{Scene, Setting};
use tests::direct_access::Cql;

/// The lease of a killed process expires soon.
const SHORT_LEASE: &str = "cassandra.lease_ms = 3000";
const ROWS: &str = "plays_owner_day_track";
const WAIT_MAX: Duration = Duration::from_secs(60);

/// When a reconciliation is killed.
enum KillTime {
    /// At a random time within this duration.
    Within(Duration),
    /// Soon after a stage has begun.
    InStage(&'static str),
}
use KillTime::{InStage, Within};

/// Kills reconciliations, and returns the stages that they reached.
async fn kill_repeatedly(scene: &mut Scene, args: &[&str], kill_times: &[KillTime]) -> Vec<String> {
    let args = [
        &["restorate", "--apply", "--log-level", "warn,batch=debug"],
        args,
    ]
    .concat();
    let mut stages = Vec::new();
    'kills: for kill_time in kill_times {
        let mut process = loop {
            let mut process = start(scene, &args);
            let (started, share) = (Instant::now(), scene.rng.random::<f64>());
            let is_time = |process: &Process| match *kill_time {
                Within(longest) => started.elapsed() > longest.mul_f64(share),
                InStage(stage) => stages_of(process).iter().any(|started| started == stage),
            };
            while process.is_running() && !is_time(&process) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            if process.is_running() {
                break process;
            }
            let (_, message) = process.finish();
            if !is_busy(&message) {
                // No damage is left.
                break 'kills;
            }
            // The lease of the killed process expires.
            tokio::time::sleep(PAUSE).await;
        };
        let wait = scene.rng.random_range(0..60);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        if process.is_running() {
            stages.push(
                stages_of(&process)
                    .pop()
                    .unwrap_or_else(|| "none".to_owned()),
            );
        }
        process.kill();
    }
    assert!(stages.len() > 1, "{stages:?}");
    stages
}

fn start(scene: &Scene, args: &[&str]) -> Process {
    scene.start_with_setting(SHORT_LEASE, args)
}

fn is_busy(message: &[String; 2]) -> bool {
    message[1].contains("is under way") || message[1].contains("lease")
}

fn stages_of(process: &Process) -> Vec<String> {
    let message = process.outputs()[1].clone();
    let started = message
        .lines()
        .filter(|line| line.contains("stage started stage="));
    let name = |line: &str| line.split('"').nth(1).map(str::to_owned);
    started.filter_map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconciliation_is_killed_at_any_time_on_servers() {
    let mut scene = Scene::begin(&Setting::shared_servers(), seed(34)).await;
    let worker = scene.worker();
    scene.world.ingest(&owner_plays(0, 120)).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    scene.world.ingest(&owner_plays(120, 20)).await;
    scene.settle().await;
    let rows = kill_row_repairs(&mut scene).await;
    let corrections = kill_corrections(&mut scene).await;
    assert!(worker.end().0);
    scene.end().await;
    print_result(
        "a reconciliation killed at any time",
        &format!("rows in {rows:?}, corrections in {corrections:?}"),
    );
}

/// All rows of the owner are changed by hand.
async fn kill_row_repairs(scene: &mut Scene) -> Vec<String> {
    let cql = Cql::connect(scene.world.namespace().expect("servers")).await;
    let job = Arc::clone(scene.world.catalog.job(ROWS).expect("the job"));
    let table = format!("rows_{}", cql.id(job.view()).await);
    let owner = job
        .group()
        .encode_values(&[schemas::key::KeyValue::Int(OWNER)]);
    let owner = owner.expect("a group");
    let rows = format!("SELECT part, row, count FROM {table}");
    let rows = cql.read::<(Vec<u8>, Vec<u8>, i64)>(&rows, ()).await;
    let owner_rows: Vec<_> = rows
        .into_iter()
        .filter(|(part, ..)| part[8..] == owner)
        .collect();
    assert!(owner_rows.len() > 4, "{owner_rows:?}");
    for (part, row, count) in &owner_rows {
        let text = format!("UPDATE {table} SET count = ? WHERE part = ? AND row = ?");
        cql.run(&text, (count + 11, part, row)).await;
    }
    let started = Instant::now();
    let report = scene.expect_causes(ROWS, &["changed_row"]).await;
    let any_time = Within(started.elapsed() / 2);
    assert_eq!(report["differ"], owner_rows.len(), "{report}");
    let args = ["--view", ROWS, "--expected", "archive"];
    let stages = kill_repeatedly(
        scene,
        &args,
        &[
            any_time,
            InStage("live"),
            InStage("events"),
            InStage("rewrite"),
        ],
    )
    .await;
    scene.reconcile(ROWS, &["--apply"]).await;
    scene.expect_no_difference(ROWS).await;
    scene.check_owner().await;
    stages
}

/// A file of expected counts contains tracks and days that were never in the log.
async fn kill_corrections(scene: &mut Scene) -> Vec<String> {
    let mut lines = vec!["owner_id,bucket,track_id,kind,expected".to_owned()];
    let days = 1..29;
    lines.extend(days.map(|day| format!("{OWNER},2026-01-{day:02},{TRACK},play,{day}")));
    let added: i64 = (1..29).sum();
    let path = scene.installation.folder().join("claims.csv");
    std::fs::write(&path, lines.join("\n")).expect("a file");
    let path = path.to_string_lossy().into_owned();
    let total_before = read_total(scene).await;
    let args = ["--view", ROWS, "--expected", path.as_str()];
    let stages = kill_repeatedly(
        scene,
        &args,
        &[InStage("compare"), InStage("correct"), InStage("correct")],
    )
    .await;
    let started = Instant::now();
    // Recorded corrections are completed first; no further ones are made until they are counted.
    loop {
        let args = ["--expected", path.as_str(), "--apply"];
        let compared = scene.reconcile(ROWS, &args).await;
        scene.settle().await;
        if compared.status == 0 && compared.report["differ"] == 0 {
            break;
        }
        assert!(started.elapsed() < WAIT_MAX, "{compared:?}");
    }
    let repeated = scene
        .reconcile(ROWS, &["--expected", path.as_str(), "--apply"])
        .await;
    let applied = &repeated.report["applied"];
    assert_eq!(
        (&applied["corrections"], &applied["restoration"]),
        (&json!(0), &Value::Null)
    );
    assert_eq!(read_total(scene).await, total_before + added);
    let recorded = run_ok(scene.installation.data(), &["--json", "restorate", "list"]);
    let recorded: Value = serde_json::from_str(&recorded).expect("a list");
    let reconciliations = recorded.as_array().expect("a list").iter();
    let corrections =
        reconciliations.filter(|reconciliation| reconciliation["kind"] == "corrections");
    let changes: u64 = corrections
        .filter_map(|reconciliation| reconciliation["changes"].as_u64())
        .sum();
    assert_eq!(changes, 28, "{recorded}");
    scene.expect_no_difference(ROWS).await;
    scene.check_owner().await;
    stages
}

/// Board rows without notifications. The killed process may have published some of them, or may be
/// in the middle of a run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconciliation_of_boards_is_killed_at_any_time_on_servers() {
    let mut scene = Scene::begin(&Setting::shared_servers(), seed(36)).await;
    let worker = boards::start_with_boards(&mut scene).await;
    boards::change_without_notifications(&scene);
    let started = Instant::now();
    scene.expect_causes(boards::VIEW, &["not_told"]).await;
    let any_time = Within(started.elapsed() / 2);
    let args = ["--view", boards::VIEW, "--expected", "canonical"];
    let kill_times = [
        any_time,
        InStage("seal"),
        InStage("compute"),
        InStage("publish"),
    ];
    let stages = kill_repeatedly(&mut scene, &args, &kill_times).await;
    let started = Instant::now();
    loop {
        scene.settle().await;
        let compared = scene.reconcile(boards::VIEW, &["--apply"]).await;
        scene.settle().await;
        if compared.status == 0 && compared.report["differ"] == 0 {
            break;
        }
        assert!(started.elapsed() < WAIT_MAX, "{compared:?}");
    }
    scene.expect_no_difference(boards::VIEW).await;
    assert_eq!(boards::first_athletes(&scene).await, [50, 999, 0]);
    boards::check_explanation(&scene).await;
    assert!(worker.end().0);
    scene.end().await;
    let happened = format!("{stages:?}");
    print_result("a reconciliation of boards killed at any time", &happened);
}

async fn read_total(scene: &Scene) -> i64 {
    tokio::time::sleep(super::RUN_CACHE_TIME).await;
    let path = format!("/api/v1/stats/plays/total?owner_id={OWNER}");
    let answer = scene.server.client.fetch_json(&path).await;
    answer["count"].as_i64().expect("a count")
}

/// Two reconciliations of the same damage: one works, the other is refused, and nothing is repaired
/// twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_concurrent_reconciliations_on_servers() {
    let mut scene = Scene::begin(&Setting::shared_servers(), seed(35)).await;
    let worker = scene.worker();
    scene.world.ingest(&owner_plays(0, 60)).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    let total_before = read_total(&scene).await;
    let (mut refused, mut added) = (0, 0);
    for round in 1..5 {
        let path = scene.installation.folder().join(format!("{round}.csv"));
        let header = "owner_id,bucket,track_id,kind,expected";
        let line = format!("{OWNER},2026-01-{round:02},{TRACK},play,40");
        std::fs::write(&path, format!("{header}\n{line}")).expect("a file");
        let path = path.to_string_lossy().into_owned();
        let args = ["restorate", "--view", ROWS, "--expected", &path, "--apply"];
        for process in [(); 2].map(|()| scene.start(&args)) {
            let (succeeded, message) = process.finish();
            assert!(succeeded || is_busy(&message), "{message:?}");
            refused += usize::from(is_busy(&message));
        }
        added += 40;
        scene.settle().await;
        let compared = scene.reconcile(ROWS, &args[3..]).await;
        assert_eq!(
            (compared.status, &compared.report["differ"]),
            (0, &json!(0)),
            "{compared:?}"
        );
        assert_eq!(read_total(&scene).await, total_before + added);
        if refused > 0 && round > 1 {
            break;
        }
    }
    assert!(worker.end().0);
    scene.end().await;
    print_result(
        "two concurrent reconciliations",
        &format!("{refused} refused"),
    );
    assert!(refused > 0, "no reconciliation was refused");
}
