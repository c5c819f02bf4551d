//! A log that deletes records once a batch run covers them: the archive is sufficient.

use std::collections::BTreeMap;

use batch::RunRequest;
use schemas::seam::RunState;
use schemas::source::Source;
use serde_json::{Value, json};
use tests::servers;
use tests::world::{Served, World};

fn play(number: i64) -> (i64, i64, String) {
    let (owner, amount) = (number % 5, 1 + number % 3);
    let minutes = number * 7 % 2_880;
    let at = format!(
        "2026-03-{:02}T{:02}:{:02}:00Z",
        1 + minutes / 1_440,
        minutes / 60 % 24,
        minutes % 60
    );
    let line = json!({"event_id": format!("e{number}"), "track_id": number % 7, "owner_id": owner,
        "listener_id": number % 11, "kind": "play", "at": at, "amount": amount});
    (owner, amount, line.to_string())
}

/// Returns lines, and adds their amounts to the totals by owner.
fn lines(numbers: std::ops::Range<i64>, truth: &mut BTreeMap<i64, i64>) -> Vec<String> {
    numbers
        .map(play)
        .map(|(owner, amount, line)| {
            *truth.entry(owner).or_default() += amount;
            line
        })
        .collect()
}

async fn check_totals(served: &Served, truth: &BTreeMap<i64, i64>) {
    for (owner, expected) in truth {
        let path = format!("/api/v1/stats/plays/total?owner_id={owner}");
        let total = served.client.fetch_json(&path).await;
        assert_eq!(total["count"], *expected, "{total}");
        let path = format!("/api/v1/stats/plays/series?owner_id={owner}&tz=Asia/Kolkata");
        let series = served.client.fetch_json(&path).await;
        let points = series["points"].as_array().expect("points").iter();
        let counts = points.map(|point: &Value| point["count"].as_i64().expect("a count"));
        assert_eq!(counts.sum::<i64>(), *expected, "{series}");
    }
}

/// Deletes the records that the newest complete run covers from the log.
async fn delete_covered_records(world: &World) {
    let runs = world.stores.views.runs(Source::Plays).await.expect("runs");
    let mut newest = runs
        .runs
        .iter()
        .filter(|run| run.state == RunState::Complete);
    let cuts = newest.next_back().expect("a run").cuts.iter();
    let cuts: Vec<i64> = cuts.map(|cut| cut.next_offset).collect();
    let namespace = world.namespace().expect("servers");
    servers::delete_records(&namespace.topic(Source::Plays.topic()), &cuts).await;
    let spans = world.stores.log.spans(Source::Plays.topic()).await;
    let starts: Vec<i64> = spans
        .expect("the log")
        .iter()
        .map(|span| span.start)
        .collect();
    assert_eq!(starts, cuts, "the records are gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn covered_records_may_be_deleted_on_servers() {
    let world = World::on_servers().await;
    let mut truth = BTreeMap::new();
    world.ingest(&lines(0..200, &mut truth)).await;
    world.catch_up().await;
    let served = world.serve().await;
    world.run(&RunRequest::default()).await.expect("a run");
    delete_covered_records(&world).await;
    check_totals(&served, &truth).await;
    world.ingest(&lines(200..300, &mut truth)).await;
    world.catch_up().await;
    check_totals(&served, &truth).await;
    // A new generation of live state begins at the cuts, where the log now starts.
    world.delete_live_state();
    world.catch_up().await;
    check_totals(&served, &truth).await;
    for full in [false, true] {
        let request = RunRequest {
            full,
            ..RunRequest::default()
        };
        world.run(&request).await.expect("a run");
        delete_covered_records(&world).await;
        check_totals(&served, &truth).await;
    }
    world.delete_live_state();
    world.catch_up().await;
    check_totals(&served, &truth).await;
    served.end().await;
}
