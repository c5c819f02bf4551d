//! Scheduled reconciliation, the history of comparisons, expected counts from HTTP services and
//! queries, and corrections in explanations.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use batch::{
    Address, Expected, Policy, ReconcileOutcome, ReconcileRequest, Reconciled, RunRequest,
    Scheduled, ScheduledView, When,
};
use schemas::source::Source;
use serde_json::{Value, json};
use stores::Secret;
use stores::alerts::RECONCILIATION_ALERTS;
use stores::reconciliations;
use tests::stages::cancel_at;
use tests::topic::messages;
use tests::world::World;
use tokio_util::sync::CancellationToken;

use crate::restore::{
    applying_request, assert_views_match, one_row, populate, request_for, restore, scan_view,
    write_rows,
};

pub(crate) const VIEW: &str = "plays_owner_day_track";
const HOUR_MS: u64 = 3_600_000;

pub(crate) async fn scheduled(world: &World, policy: Policy, apply_max: Option<u64>) -> Scheduled {
    Scheduled {
        name: "nightly".to_owned(),
        every_ms: HOUR_MS,
        last_days: None,
        views: vec![ScheduledView {
            request: ReconcileRequest {
                apply: policy == Policy::Apply,
                apply_max,
                by: "schedule nightly".to_owned(),
                ..request_for(VIEW)
            },
            intake: Arc::new(world.intake(Source::Plays).await),
        }],
    }
}

pub(crate) async fn reconcile(world: &World, schedule: &Scheduled, when: When) -> Reconciled {
    let stop = CancellationToken::new();
    let result = world.batch().reconcile(schedule, when, (&(), &stop)).await;
    result.expect("a reconciliation")
}

pub(crate) fn outcome_and_alerts(result: &Reconciled) -> (ReconcileOutcome, u64) {
    match result {
        Reconciled::Done {
            outcome, alerts, ..
        } => (*outcome, *alerts),
        other => panic!("{other:?}"),
    }
}

/// Adds to the count of a stored row.
pub(crate) async fn damage(world: &World, change: i64) {
    let table = world.catalog.job(VIEW).expect("the job").view().to_owned();
    let page = scan_view(world, &table).await;
    let count = page.counts.value(0) + change;
    write_rows(world, &table, &one_row(&page, 0, Some(count))).await;
}

pub(crate) async fn history(world: &World) -> Vec<Value> {
    let records = &*world.stores.records;
    let comparisons = reconciliations::list(records, Source::Plays, None, 100).await;
    comparisons
        .expect("a history")
        .into_iter()
        .map(|comparison| comparison.record)
        .collect()
}

async fn follow_policies(world: &World) {
    populate(world).await;
    let report = scheduled(world, Policy::Report, None).await;
    let first = reconcile(world, &report, When::Due).await;
    assert_eq!(outcome_and_alerts(&first), (ReconcileOutcome::Right, 0));
    let second = reconcile(world, &report, When::Due).await;
    assert!(matches!(second, Reconciled::NotDue { .. }), "{second:?}");

    damage(world, 5).await;
    let result = reconcile(world, &report, When::Now).await;
    assert_eq!(outcome_and_alerts(&result), (ReconcileOutcome::Differs, 1));
    let repeated = reconcile(world, &report, When::Now).await;
    assert_eq!(
        outcome_and_alerts(&repeated),
        (ReconcileOutcome::Differs, 0),
        "the same differences cause no second alert"
    );
    let newest = &history(world).await[0];
    assert_eq!(newest["outcome"], "differs");
    assert_eq!(
        (&newest["total"], &newest["applied"]),
        (&json!(5), &Value::Null)
    );
    assert_eq!(newest["worst"].as_array().expect("a list").len(), 1);

    let too_strict = scheduled(world, Policy::Apply, Some(4)).await;
    let result = reconcile(world, &too_strict, When::Now).await;
    assert_eq!(outcome_and_alerts(&result), (ReconcileOutcome::HeldBack, 1));
    let permissive = scheduled(world, Policy::Apply, Some(5)).await;
    let result = reconcile(world, &permissive, When::Now).await;
    assert_eq!(outcome_and_alerts(&result), (ReconcileOutcome::PutRight, 0));
    assert_views_match(world, &[VIEW]).await;
    let newest = &history(world).await[1];
    assert_eq!(newest["outcome"], "put_right");
    assert_eq!(newest["restoration"], 1);
    assert_eq!(newest["schedule"], "nightly");

    // The speed layer publishes each pending alert once.
    world.catch_up().await;
    world.catch_up().await;
    let alerts = messages(&*world.stores.log, RECONCILIATION_ALERTS).await;
    let alerts = alerts.expect("a topic").into_iter().flatten();
    let mut alerts: Vec<Value> = alerts.map(|(_, alert)| alert).collect();
    alerts.sort_by_key(|alert| alert["id"].to_string());
    let outcomes: Vec<&Value> = alerts.iter().map(|alert| &alert["outcome"]).collect();
    assert_eq!(outcomes, ["differs", "held_back"], "{alerts:?}");
    assert!(
        alerts
            .iter()
            .all(|alert| alert["type"] == "reconciliation.alert")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_followed_embedded() {
    follow_policies(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_followed_on_servers() {
    let world = World::on_servers().await;
    follow_policies(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_schedulers_compare_once() {
    let world = World::new().await;
    populate(&world).await;
    let schedule = scheduled(&world, Policy::Report, None).await;
    let leases = &world.stores.leases;
    let lease = leases.acquire("reconcile-nightly", "the test").await;
    let lease = lease.expect("an answer").expect("the lease");
    let passed = reconcile(&world, &schedule, When::Now).await;
    assert!(matches!(passed, Reconciled::Passed { .. }), "{passed:?}");
    lease.release().await;
    let (first, second) = tokio::join!(
        reconcile(&world, &schedule, When::Due),
        reconcile(&world, &schedule, When::Due)
    );
    let is_done = |result: &Reconciled| matches!(result, Reconciled::Done { .. });
    assert!(is_done(&first) != is_done(&second), "{first:?} {second:?}");
    assert_eq!(history(&world).await.len(), 1);
}

/// The next comparison marks an interrupted restoration as cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_restoration_is_recorded() {
    let world = World::new().await;
    populate(&world).await;
    damage(&world, 5).await;
    restore(&world, &applying_request(VIEW))
        .await
        .expect("restoring");
    let records = &*world.stores.records;
    let comparisons = reconciliations::list(records, Source::Plays, None, 1).await;
    let newest = comparisons.expect("a history").remove(0);
    assert_eq!(newest.record["outcome"], "put_right");
    // The state that a killed process leaves.
    let mut record = newest.record.clone();
    record["outcome"] = "applying".into();
    record["applied"] = Value::Null;
    reconciliations::replace(records, Source::Plays, newest.number, &record)
        .await
        .expect("replacing");
    assert_views_match(&world, &[VIEW]).await;
    let comparisons = history(&world).await;
    assert_eq!(
        (&comparisons[0]["outcome"], &comparisons[1]["outcome"]),
        (&json!("right"), &json!("cut_off"))
    );
    assert_eq!(comparisons[1]["restoration"], 1);
}

/// An error in the run of a restoration names the rows that were rewritten before, as does the
/// history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_names_the_rows_repaired_before() {
    let world = World::new().await;
    populate(&world).await;
    damage(&world, 5).await;
    crate::drift::add_to_live_row(&world, VIEW, 3).await;
    let stop = CancellationToken::new();
    // The run that repairs live state begins with this stage.
    let progress = cancel_at("seal", &stop);
    let intake = world.intake(Source::Plays).await;
    let batch = world.batch();
    let request = applying_request(VIEW);
    let result = batch.restore(&request, &intake, (&progress, &stop)).await;
    let error = result.expect_err("it was interrupted").to_string();
    assert!(
        error.contains("1 row was rewritten") && error.contains("restoration 1"),
        "{error}"
    );
    let newest = &history(&world).await[0];
    assert_eq!(
        (&newest["outcome"], &newest["restoration"]),
        (&json!("cut_off"), &json!(1)),
        "{newest}"
    );
    assert_eq!(newest["applied"]["rows"], 1, "{newest}");
    assert_eq!(newest["error"], error.as_str(), "{newest}");
    restore(&world, &applying_request(VIEW))
        .await
        .expect("restoring");
    assert_views_match(&world, &[VIEW]).await;
}

/// The record of a killed rewrite stays until the next comparison marks it as cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_rewrite_is_marked_as_cut_off() {
    let world = World::new().await;
    populate(&world).await;
    damage(&world, 5).await;
    restore(&world, &applying_request(VIEW))
        .await
        .expect("restoring");
    damage(&world, 6).await;
    restore(&world, &applying_request(VIEW))
        .await
        .expect("restoring");
    // The state that a killed process leaves.
    let archive = &world.stores.archive;
    let paths = archive.list("restorations/plays").await.expect("a list");
    let ended = paths.iter().find(|path| path.ends_with("2.ended.json"));
    archive.delete(ended.expect("an end")).await.expect("gone");
    let ends = async || {
        let restorations = world.batch().restorations(Source::Plays).await;
        let restorations = restorations.expect("a list").into_iter();
        let ends = restorations.map(|restoration| {
            (
                restoration.done_until.is_some(),
                restoration.cut_off_at_ms.is_some(),
            )
        });
        ends.collect::<Vec<_>>()
    };
    assert_eq!(ends().await, [(true, false), (false, false)]);
    assert_views_match(&world, &[VIEW]).await;
    assert_eq!(ends().await, [(true, false), (false, true)]);
    // The mark stays, and the next restoration has the next number.
    damage(&world, 7).await;
    restore(&world, &applying_request(VIEW))
        .await
        .expect("restoring");
    assert_eq!(ends().await, [(true, false), (false, true), (true, false)]);
}

/// A failed comparison redacts keys of people in the alert and in the history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_are_redacted() {
    let world = World::new().await;
    populate(&world).await;
    let path = world.path().join("claims.csv");
    let line = "12,2026-02-20,1,103,play,40";
    let head = "track_id,bucket,owner_id,listener_id,kind,expected";
    std::fs::write(&path, format!("{head}\n{line}\n{line}\n")).expect("a file");
    let view = "plays_track_day_listener";
    let mut from_file = scheduled(&world, Policy::Report, None).await;
    for scheduled_view in &mut from_file.views {
        scheduled_view.request.view = view.to_owned();
        scheduled_view.request.expected = Expected::File(path.clone());
    }
    let result = reconcile(&world, &from_file, When::Now).await;
    assert_eq!(outcome_and_alerts(&result), (ReconcileOutcome::Failed, 1));
    world.catch_up().await;
    let alerts = messages(&*world.stores.log, RECONCILIATION_ALERTS).await;
    let alerts = alerts.expect("a topic").into_iter().flatten();
    let alerts: Vec<Value> = alerts.map(|(_, alert)| alert).collect();
    let errors = [&alerts[0]["error"], &history(&world).await[0]["error"]].map(Value::to_string);
    for error in errors {
        assert!(error.contains("2 times"), "{error}");
        assert!(error.contains("listener_id"), "{error}");
        assert!(!error.contains("103"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_is_paged() {
    let world = World::new().await;
    populate(&world).await;
    for _ in 0..3 {
        restore(&world, &request_for(VIEW))
            .await
            .expect("comparing");
    }
    let served = world.serve().await;
    let mut path = "/api/v1/reconciliations?source=plays&limit=2".to_owned();
    let mut reconciliations = Vec::new();
    loop {
        let page = served.client.fetch_json(&path).await;
        reconciliations.extend(page["reconciliations"].as_array().expect("a list").clone());
        let Some(cursor) = page["cursor"].as_str() else {
            break;
        };
        path = format!("/api/v1/reconciliations?source=plays&limit=2&cursor={cursor}");
    }
    let kinds: Vec<&str> = reconciliations
        .iter()
        .map(|reconciliation| reconciliation["kind"].as_str().expect("a kind"))
        .collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "restorate").count(), 3);
    assert!(kinds.contains(&"batch-run"), "{kinds:?}");
    let filtered = served
        .client
        .fetch_json("/api/v1/reconciliations?kind=restorate")
        .await;
    let numbers = filtered["reconciliations"]
        .as_array()
        .expect("a list")
        .iter();
    let numbers: Vec<&Value> = numbers.map(|row| &row["comparison"]["number"]).collect();
    assert_eq!(numbers, [3, 2, 1]);
    let (client, path) = (
        served.client.clone(),
        "/api/v1/reconciliations?format=csv&kind=restorate",
    );
    let (status, csv) = tokio::task::spawn_blocking(move || client.get(path))
        .await
        .expect("an answer");
    assert_eq!(status, 200);
    assert_eq!(csv.lines().count(), 4, "{csv}");
    assert!(csv.contains("restorate,plays,"), "{csv}");
    served.end().await;
}

/// Starts a server that sends these bytes on each connection, or never responds.
fn start_server(response: Option<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; 4096];
            let _read = stream.read(&mut request);
            match &response {
                Some(response) => {
                    let _written = stream.write_all(response.as_bytes());
                }
                None => open.push(stream),
            }
        }
    });
    format!("http://{address}/totals?token=sesame")
}

fn http(status: &str, headers: &str, body: &str) -> Option<String> {
    let length = body.len();
    Some(format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n\r\n{body}"
    ))
}

fn service_request(url: &str) -> ReconcileRequest {
    ReconcileRequest {
        expected: Expected::Answer(Address {
            url: Secret::from(url.to_owned()),
            bearer: Secret::from("abracadabra".to_owned()),
        }),
        rename: BTreeMap::from([
            ("customer".to_owned(), "owner_id".to_owned()),
            ("plays".to_owned(), "expected".to_owned()),
        ]),
        ..request_for(VIEW)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expected_counts_come_from_http_services() {
    let mut world = World::new().await;
    populate(&world).await;
    let served = world.serve().await;
    let total = served
        .client
        .fetch_json("/api/v1/stats/plays/total?owner_id=1")
        .await["count"]
        .clone();
    served.end().await;
    let rows = json!({"of": "2026", "rows": [{"customer": 1, "plays": total}]}).to_string();
    for (kind, body) in [
        ("application/json; charset=utf-8", rows.clone()),
        (
            "application/json",
            json!([{"customer": 1, "plays": total}]).to_string(),
        ),
        (
            "application/x-ndjson",
            json!({"customer": 1, "plays": total}).to_string(),
        ),
        ("text/csv", format!("customer,plays\n1,{total}\n")),
    ] {
        let url = start_server(http("200 OK", &format!("content-type: {kind}"), &body));
        let report = restore(&world, &service_request(&url)).await.expect(kind);
        assert_eq!((report.keys, report.differ), (1, 0), "{kind}: {report:#?}");
        assert!(!report.expected.contains("sesame"), "{}", report.expected);
    }
    world.batch_options.expected_bytes_max = 1_000;
    let json = "content-type: application/json";
    let large = format!("[{}]", " ".repeat(2_000));
    for (answer, reason) in [
        (http("404 Not Found", json, "[]"), "404"),
        (http("500 Oh", json, "[]"), "500"),
        (
            http("200 OK", "content-type: text/html", "<p>"),
            "text/html",
        ),
        (http("200 OK", json, &large), "larger than 1000 bytes"),
        (http("302 Found", "location: /other", ""), "redirects"),
        (
            http(
                "200 OK",
                &format!("{json}\r\nlink: </2>; rel=\"next\""),
                "[]",
            ),
            "only one page",
        ),
        (http("200 OK", json, "[{\"customer\": 1}"), "EOF"),
        (http("200 OK", json, "[]"), "it needs at least one line"),
        (None, "no complete response"),
    ] {
        if answer.is_none() {
            world.batch_options.expected_wait_ms = 1_500;
        }
        let url = start_server(answer);
        let error = restore(&world, &service_request(&url))
            .await
            .expect_err(reason);
        let error = error.to_string();
        assert!(error.contains(reason), "{reason}: {error}");
        assert!(
            !error.contains("sesame") && !error.contains("abracadabra"),
            "{error}"
        );
    }
}

async fn compare_with_queries(world: &World) {
    populate(world).await;
    let query_request = |query: &str| ReconcileRequest {
        expected: Expected::Query(query.to_owned()),
        ..request_for(VIEW)
    };
    let differing = query_request("SELECT 1 AS owner_id, 999999 AS expected;");
    let report = restore(world, &differing).await.expect("comparing");
    assert_eq!((report.keys, report.differ), (1, 1), "{report:#?}");
    let rows = [json!({"id": 7, "name": "a", "owner": 1, "athlete_capacity": 3}).to_string()];
    world.ingest_into(Source::Applications, &rows).await;
    for query in [
        "DELETE FROM applications",
        "SELECT 1 AS owner_id, 2 AS expected; DELETE FROM applications",
        "WITH gone AS (DELETE FROM applications RETURNING id) SELECT 1 AS owner_id, 2 AS expected",
        "SELECT 1 AS owner_id) AS x; DELETE FROM applications",
        "",
    ] {
        let refused = restore(world, &query_request(query)).await;
        refused.expect_err(query);
    }
    let entities = &world.stores.entities;
    assert_eq!(
        entities.applications(None, 10).await.expect("rows").len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expected_counts_come_from_queries_embedded() {
    let mut world = World::new().await;
    compare_with_queries(&world).await;
    world.batch_options.expected_wait_ms = 300;
    let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
                   SELECT 1 AS owner_id, count(*) AS expected FROM n";
    let request = ReconcileRequest {
        expected: Expected::Query(endless.to_owned()),
        ..request_for(VIEW)
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), restore(&world, &request)).await;
    let error = ended.expect("an end").expect_err("an endless query");
    assert!(error.to_string().contains("query"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expected_counts_come_from_queries_on_servers() {
    let world = World::on_servers().await;
    compare_with_queries(&world).await;
}

/// Corrects an owner's track by 40 plays, with a file.
async fn correct_by_file(world: &World) {
    let path = world.path().join("claims.csv");
    let lines = "owner_id,bucket,track_id,kind,expected\n1,2026-05-01,12,play,40";
    std::fs::write(&path, lines).expect("a file");
    let request = ReconcileRequest {
        expected: Expected::File(path),
        by: "ada".to_owned(),
        reason: "a lost shipment".to_owned(),
        ..applying_request(VIEW)
    };
    restore(world, &request).await.expect("restoring");
}

#[track_caller]
fn assert_count_and_sum(corrections: &Value, count: i64, sum: i64) {
    assert_eq!(
        (&corrections["count"], &corrections["sum"]),
        (&json!(count), &json!(sum)),
        "{corrections}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrections_are_explained() {
    let world = World::new().await;
    populate(&world).await;
    correct_by_file(&world).await;
    let explain = async |query: &str| {
        let served = world.serve().await;
        let path = format!("/api/v1/explain?{query}");
        let corrections = served.client.fetch_json(&path).await["corrections"].clone();
        served.end().await;
        corrections
    };
    let uncounted = explain("owner_id=1").await;
    assert_eq!(
        (&uncounted["count"], &uncounted["maybe"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(uncounted["restorations"][0]["is_counted"], false);
    world.catch_up().await;
    let corrections = explain("owner_id=1").await;
    assert_count_and_sum(&corrections, 1, 40);
    let restoration = &corrections["restorations"][0];
    assert_eq!(
        (&restoration["number"], &restoration["by"]),
        (&json!(1), &json!("ada"))
    );
    assert_eq!(restoration["reason"], "a lost shipment");
    for (query, sum, maybe) in [
        ("owner_id=2", 0, 0),
        ("track_id=12", 40, 0),
        ("owner_id=1&track_id=10", 0, 0),
        (
            "owner_id=1&period=custom&from=2026-05-01&to=2026-05-02",
            40,
            0,
        ),
        (
            "owner_id=1&period=custom&from=2026-04-01&to=2026-05-01",
            0,
            0,
        ),
        ("owner_id=1&listener_id=5", 0, 1),
    ] {
        let corrections = explain(query).await;
        assert_eq!(
            (&corrections["sum"], &corrections["maybe"]),
            (&json!(sum), &json!(maybe)),
            "{query}"
        );
    }
    let intake = world.intake(Source::Plays).await;
    let stop = CancellationToken::new();
    let batch = world.batch();
    let undone = batch.undo_restoration(
        (Source::Plays, 1),
        ("bob", "they were found"),
        &intake,
        (&(), &stop),
    );
    undone.await.expect("an undo");
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    let corrections = explain("owner_id=1").await;
    assert_count_and_sum(&corrections, 2, 0);
    assert_eq!(corrections["restorations"][0]["undoes"], 1);
}
