//! Events of the past that never were in the log.

use batch::RunRequest;
use serde_json::{Value, json};
use tests::process::{done, run};
use tests::world::{Served, World};

fn play(event: &str, day: u32) -> String {
    json!({
        "event_id": event, "track_id": 1, "owner_id": 7, "kind": "play",
        "at": format!("2026-02-{day:02}T11:00:00Z"),
    })
    .to_string()
}

/// Asks with the blocking client, off the threads that serve.
async fn total(served: &Served) -> Value {
    let client = served.client.clone();
    let path = "/api/v1/stats/plays/total?owner_id=7&period=all";
    let asked = tokio::task::spawn_blocking(move || client.json(path));
    asked.await.expect("an answer")
}

/// They count from the run on that takes them in, all at once, and once with what the log holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backfilled_events_count_from_their_run_on() {
    let world = World::new().await;
    let served = world.serve().await;
    world.ingest(&[play("a", 1), play("b", 2)]).await;
    world.catch_up().await;
    let run = async |request: RunRequest| world.run(&request).await;
    run(RunRequest::default()).await.expect("a run");
    // One of them is in the log too.
    let old = [play("b", 2), play("c", 2), play("d", 3)];
    world.backfill(&old).await;
    world.ingest(&[play("e", 3)]).await;
    world.catch_up().await;
    let before = total(&served).await;
    assert_eq!(
        (&before["count"], &before["provenance"]["backfills"]),
        (&json!(3), &Value::Null)
    );
    let alone = RunRequest {
        jobs: vec!["plays_detail".to_owned()],
        ..RunRequest::default()
    };
    let refused = run(alone.clone())
        .await
        .expect_err("all views take it in together");
    assert!(
        refused.to_string().contains("batch run` first"),
        "{refused}"
    );
    let report = run(RunRequest::default()).await.expect("a run");
    let drift = report.drift.unknown.expect("a reason");
    assert!(drift.contains("backfill"), "{drift}");
    let after = total(&served).await;
    assert_eq!(
        (&after["count"], &after["provenance"]["backfills"]),
        (&json!(5), &json!(1))
    );
    // What is the same stays as it is from here on.
    run(alone).await.expect("a run of one job");
    world.ingest(&[play("f", 2)]).await;
    world.catch_up().await;
    let report = run(RunRequest::default()).await.expect("a run");
    assert_eq!((report.full, report.drift.total), (false, Some(0)));
    assert_eq!(total(&served).await["count"], 6);
    served.end().await;
}

/// By the command: bad lines become dead letters, a bad file leaves nothing behind.
#[test]
fn the_command_takes_all_or_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let write = |name: &str, lines: &[&str]| {
        let path = folder.path().join(name);
        std::fs::write(&path, lines.join("\n")).expect("a file");
        path.display().to_string()
    };
    let good = write("good.jsonl", &[&play("a", 1), "{", "", &play("b", 2)]);
    let bad = folder.path().join("bad.parquet");
    std::fs::write(&bad, "no Parquet").expect("a file");
    let failed = run(
        &data,
        &["backfill", "plays", &good, &bad.display().to_string()],
    );
    assert_eq!(failed.status.code(), Some(1));
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(
        said.contains("nothing of this backfill counts") && said.contains("bad.parquet"),
        "{said}"
    );
    let refused = run(&data, &["backfill", "efforts", &good]);
    assert_eq!(refused.status.code(), Some(2));
    let report: Value =
        serde_json::from_str(&done(&data, &["backfill", "plays", &good, "--json"])).expect("JSON");
    assert_eq!(
        (
            &report["accepted"],
            &report["rejected"],
            &report["backfill"]
        ),
        (&json!(2), &json!(1), &json!(1))
    );
    done(&data, &["speed", "--until-caught-up"]);
    let run: Value = serde_json::from_str(&done(&data, &["batch", "run", "--json"])).expect("JSON");
    assert!(run.to_string().contains("\"rows_read\":2"), "{run}");
    let files = std::fs::read_dir(data.join("archive/archive/plays/backfill/data"));
    assert_eq!(
        files.expect("a folder").count(),
        1,
        "files of the one that failed are gone"
    );
}
