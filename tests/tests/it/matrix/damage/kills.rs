//! Restorators that are killed, and two at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;
use serde_json::{Value, json};
use tests::process::{Process, done};

use super::boards;
use super::{OWNER, PAUSE, TRACK, own_plays, seed, tell};
use crate::matrix::scene::{Scene, Setting};
use tests::hand::Cql;

/// A lease of one that was killed ends soon.
const SOON: &str = "cassandra.lease_ms = 3000";
const ROWS: &str = "plays_owner_day_track";
const LONG: Duration = Duration::from_secs(60);

/// When a restoration is killed.
enum Moment {
    /// At any time before so much has passed.
    Within(Duration),
    /// Soon after a stage has begun.
    In(&'static str),
}
use Moment::{In, Within};

/// Kills restorations, and answers how far they had come.
async fn killed(scene: &mut Scene, args: &[&str], moments: &[Moment]) -> Vec<String> {
    let args = [
        &["restorate", "--apply", "--log-level", "warn,batch=debug"],
        args,
    ]
    .concat();
    let mut killed = Vec::new();
    'moments: for moment in moments {
        let mut process = loop {
            let mut process = start(scene, &args);
            let (begun, share) = (Instant::now(), scene.rng.random::<f64>());
            let is_time = |process: &Process| match *moment {
                Within(most) => begun.elapsed() > most.mul_f64(share),
                In(stage) => stages_of(process).iter().any(|begun| begun == stage),
            };
            while process.is_running() && !is_time(&process) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            if process.is_running() {
                break process;
            }
            let (_, said) = process.finish();
            if !is_busy(&said) {
                // There is nothing left of it.
                break 'moments;
            }
            // The lease of the one before ends by itself.
            tokio::time::sleep(PAUSE).await;
        };
        let wait = scene.rng.random_range(0..60);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        if process.is_running() {
            killed.push(
                stages_of(&process)
                    .pop()
                    .unwrap_or_else(|| "none".to_owned()),
            );
        }
        process.kill();
    }
    assert!(killed.len() > 1, "{killed:?}");
    killed
}

fn start(scene: &Scene, args: &[&str]) -> Process {
    scene.start_told(SOON, args)
}

fn is_busy(said: &[String; 2]) -> bool {
    said[1].contains("is under way") || said[1].contains("lease")
}

fn stages_of(process: &Process) -> Vec<String> {
    let said = process.said()[1].clone();
    let begun = said.lines().filter(|line| line.contains("begins stage="));
    let name = |line: &str| line.split('"').nth(1).map(str::to_owned);
    begun.filter_map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restorator_is_killed_at_any_moment_on_servers() {
    let mut scene = Scene::begin(&Setting::patient(), seed(34)).await;
    let worker = scene.worker();
    scene.world.ingest(&own_plays(0, 120)).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    scene.world.ingest(&own_plays(120, 20)).await;
    scene.settle().await;
    let rows = of_rows(&mut scene).await;
    let corrections = of_corrections(&mut scene).await;
    assert!(worker.end().0);
    scene.end().await;
    tell(
        "a Restorator killed at any moment",
        &format!("rows in {rows:?}, corrections in {corrections:?}"),
    );
}

/// All rows of the owner are changed by hand.
async fn of_rows(scene: &mut Scene) -> Vec<String> {
    let cql = Cql::of(scene.world.namespace().expect("servers")).await;
    let job = Arc::clone(scene.world.catalog.job(ROWS).expect("the job"));
    let table = format!("rows_{}", cql.id(job.view()).await);
    let owner = job
        .group()
        .encode_values(&[schemas::key::KeyValue::Int(OWNER)]);
    let owner = owner.expect("a group");
    let all = format!("SELECT part, row, count FROM {table}");
    let all = cql.read::<(Vec<u8>, Vec<u8>, i64)>(&all, ()).await;
    let own: Vec<_> = all
        .into_iter()
        .filter(|(part, ..)| part[8..] == owner)
        .collect();
    assert!(own.len() > 4, "{own:?}");
    for (part, row, count) in &own {
        let text = format!("UPDATE {table} SET count = ? WHERE part = ? AND row = ?");
        cql.run(&text, (count + 11, part, row)).await;
    }
    let begun = Instant::now();
    let found = scene.finds(ROWS, &["changed_row"]).await;
    let any = Within(begun.elapsed() / 2);
    assert_eq!(found["differ"], own.len(), "{found}");
    let args = ["--view", ROWS, "--expected", "archive"];
    let killed = killed(
        scene,
        &args,
        &[any, In("live"), In("events"), In("rewrite")],
    )
    .await;
    scene.restorate(ROWS, &["--apply"]).await;
    scene.is_right(ROWS).await;
    scene.owner_is_right().await;
    killed
}

/// A file says of the owner's tracks on many days what never was in the log.
async fn of_corrections(scene: &mut Scene) -> Vec<String> {
    let mut lines = vec!["owner_id,bucket,track_id,kind,expected".to_owned()];
    let days = 1..29;
    lines.extend(days.map(|day| format!("{OWNER},2026-01-{day:02},{TRACK},play,{day}")));
    let claimed: i64 = (1..29).sum();
    let path = scene.place.folder().join("claims.csv");
    std::fs::write(&path, lines.join("\n")).expect("a file");
    let path = path.to_string_lossy().into_owned();
    let before = total(scene).await;
    let args = ["--view", ROWS, "--expected", path.as_str()];
    let killed = killed(scene, &args, &[In("compare"), In("correct"), In("correct")]).await;
    let begun = Instant::now();
    // What was recorded is gone on with; as long as it is not counted nothing more is.
    loop {
        let more = ["--expected", path.as_str(), "--apply"];
        let told = scene.restorate(ROWS, &more).await;
        scene.settle().await;
        if told.status == 0 && told.report["differ"] == 0 {
            break;
        }
        assert!(begun.elapsed() < LONG, "{told:?}");
    }
    let again = scene
        .restorate(ROWS, &["--expected", path.as_str(), "--apply"])
        .await;
    let applied = &again.report["applied"];
    assert_eq!(
        (&applied["corrections"], &applied["restoration"]),
        (&json!(0), &Value::Null)
    );
    assert_eq!(total(scene).await, before + claimed);
    let recorded = done(scene.place.data(), &["--json", "restorate", "list"]);
    let recorded: Value = serde_json::from_str(&recorded).expect("a list");
    let all = recorded.as_array().expect("a list").iter();
    let corrections = all.filter(|one| one["kind"] == "corrections");
    let changes: u64 = corrections.filter_map(|one| one["changes"].as_u64()).sum();
    assert_eq!(changes, 28, "{recorded}");
    scene.is_right(ROWS).await;
    scene.owner_is_right().await;
    killed
}

/// Rows of boards that nobody was told of; who is killed may have told, and may be in the middle of a run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restorator_of_boards_is_killed_at_any_moment_on_servers() {
    let mut scene = Scene::begin(&Setting::patient(), seed(36)).await;
    let worker = boards::lived_in(&mut scene).await;
    boards::change_untold(&scene);
    let begun = Instant::now();
    scene.finds(boards::VIEW, &["not_told"]).await;
    let any = Within(begun.elapsed() / 2);
    let args = ["--view", boards::VIEW, "--expected", "canonical"];
    let moments = [any, In("seal"), In("compute"), In("publish")];
    let killed = killed(&mut scene, &args, &moments).await;
    let begun = Instant::now();
    loop {
        scene.settle().await;
        let told = scene.restorate(boards::VIEW, &["--apply"]).await;
        scene.settle().await;
        if told.status == 0 && told.report["differ"] == 0 {
            break;
        }
        assert!(begun.elapsed() < LONG, "{told:?}");
    }
    scene.is_right(boards::VIEW).await;
    assert_eq!(boards::first(&scene).await, [50, 999, 0]);
    boards::is_explained(&scene).await;
    assert!(worker.end().0);
    scene.end().await;
    let happened = format!("{killed:?}");
    tell("a Restorator of boards killed at any moment", &happened);
}

async fn total(scene: &Scene) -> i64 {
    tokio::time::sleep(super::RUNS_SEEN).await;
    let path = format!("/api/v1/stats/plays/total?owner_id={OWNER}");
    let answer = scene.server.client.ask(&path).await;
    answer["count"].as_i64().expect("a count")
}

/// Two restorations of the same damage: one works, the other is told, and nothing is put right twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_restorators_at_once_on_servers() {
    let mut scene = Scene::begin(&Setting::patient(), seed(35)).await;
    let worker = scene.worker();
    scene.world.ingest(&own_plays(0, 60)).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    let before = total(&scene).await;
    let (mut refused, mut claimed) = (0, 0);
    for round in 1..5 {
        let path = scene.place.folder().join(format!("{round}.csv"));
        let header = "owner_id,bucket,track_id,kind,expected";
        let line = format!("{OWNER},2026-01-{round:02},{TRACK},play,40");
        std::fs::write(&path, format!("{header}\n{line}")).expect("a file");
        let path = path.to_string_lossy().into_owned();
        let args = ["restorate", "--view", ROWS, "--expected", &path, "--apply"];
        for both in [(); 2].map(|()| scene.start(&args)) {
            let (succeeded, said) = both.finish();
            assert!(
                succeeded || is_busy(&said) || said[0].contains("put right"),
                "{said:?}"
            );
            refused += usize::from(is_busy(&said));
        }
        claimed += 40;
        scene.settle().await;
        let told = scene.restorate(ROWS, &args[3..]).await;
        assert_eq!(
            (told.status, &told.report["differ"]),
            (0, &json!(0)),
            "{told:?}"
        );
        assert_eq!(total(&scene).await, before + claimed);
        if refused > 0 && round > 1 {
            break;
        }
    }
    assert!(worker.end().0);
    scene.end().await;
    tell("two Restorators at once", &format!("{refused} refused"));
    assert!(refused > 0, "they never met");
}
