//! Scheduled reconciliation in processes: `restorate --scheduled` exits with a status for its
//! result, `up` runs due schedules, and a webhook receives alerts.

use std::time::Duration;

use schemas::source::Source;
use serde_json::{Value, json};
use tests::installation::Installation;
use tests::process::{CONFIG, Process, run, run_ok};
use tests::webhook_receiver::WebhookReceiver;
use tests::world::World;

use crate::notices::SECRET;
use crate::restore::{assert_views_match, one_row, plays, scan_view, write_rows};

const VIEW: &str = "plays_owner_day_track";

fn configuration(url: &str) -> String {
    let schedule = |name: &str, policy: &str| {
        format!(
            "[[reconciliation]]\nname = \"{name}\"\nviews = [\"{VIEW}\"]\nexpected = \"archive\"\ninterval_minutes = 1440\n{policy}\n"
        )
    };
    let notices = format!("[notices]\nwebhook_url = \"{url}\"\nwebhook_secret = \"{SECRET}\"\n");
    let report = schedule("nightly", "policy = \"report\"");
    let apply = schedule("daily", "policy = \"apply\"\napply_max = 100");
    report + &apply + &notices
}

/// Runs a command; returns its status and its JSON output.
fn run_json(installation: &Installation, args: &[&str]) -> (Option<i32>, Value) {
    let output = run(installation.data(), args);
    let parsed = serde_json::from_slice(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let value = parsed.unwrap_or_else(|error| panic!("{error}: {output:?} {stderr}"));
    (output.status.code(), value)
}

async fn find_newest(world: &World, schedule: &str) -> Option<Value> {
    let comparisons =
        stores::reconciliations::list(&*world.stores.records, Source::Plays, None, 20).await;
    let mut records = comparisons
        .expect("a history")
        .into_iter()
        .map(|row| row.record);
    records.find(|record| record["schedule"] == schedule)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_run_schedules() {
    let listener = WebhookReceiver::new(&[]);
    let installation = Installation::embedded();
    let data = installation.data();
    std::fs::create_dir_all(data).expect("a folder");
    std::fs::write(data.join(CONFIG), configuration(&listener.url)).expect("a configuration");
    installation.ingest("plays", &plays(0, 60).join("\n"));
    run_ok(data, &["speed", "--until-caught-up"]);
    run_ok(data, &["batch", "run"]);
    let nightly = ["--json", "restorate", "--scheduled", "nightly"];
    let (status, result) = run_json(&installation, &nightly);
    assert_eq!((status, &result[0]["outcome"]), (Some(0), &json!("right")));

    // A changed row is found, reported once, and not repaired.
    let world = installation.world().await;
    let table = world.catalog.job(VIEW).expect("the job").view().to_owned();
    let page = scan_view(&world, &table).await;
    let count = page.counts.value(0) + 5;
    write_rows(&world, &table, &one_row(&page, 0, Some(count))).await;
    for alerts in [1, 0] {
        let (status, result) = run_json(&installation, &nightly);
        assert_eq!(status, Some(3), "{result}");
        let result = &result[0];
        assert_eq!(
            (&result["outcome"], &result["alerts"]),
            (&json!("differs"), &json!(alerts)),
            "{result}"
        );
        assert_eq!(result["reports"][0]["total"], 5, "{result}");
    }
    assert_eq!(scan_view(&world, &table).await.counts.value(0), count);

    // The other schedule is due and repairs the row. The alert is sent at the same time.
    let args = ["up", "--listen", "127.0.0.1:0", "--batch-interval", "1"];
    let process = Process::start(data, &args);
    let posts = listener.wait_for(1);
    let alert = posts[0].json();
    assert!(posts[0].is_signed(SECRET), "{alert}");
    assert_eq!(alert["type"], "reconciliation.alert", "{alert}");
    assert_eq!(
        (&alert["schedule"], &alert["outcome"], &alert["differ"]),
        (&json!("nightly"), &json!("differs"), &json!(1)),
        "{alert}"
    );
    assert_eq!(posts[0].id(), alert["id"].as_str().expect("an id"));
    let mut record = None;
    for _ in 0..240 {
        record = find_newest(&world, "daily").await;
        if record
            .as_ref()
            .is_some_and(|record| record["outcome"] != "applying")
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let record = record.expect("a comparison of the schedule");
    assert_eq!(record["outcome"], "put_right", "{record}");
    let (succeeded, output) = process.end();
    assert!(succeeded, "{output:?}");
    assert_eq!(listener.posts().len(), 1, "a repair causes no alert");
    assert_views_match(&world, &[VIEW]).await;
}
