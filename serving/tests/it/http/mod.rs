//! The HTTP API: errors, runs, entity tags, and the OpenAPI document.

#![allow(clippy::too_many_lines, reason = "tables of cases")]

mod access;
mod achievements;
mod application_history;
mod applications;
mod boards;
pub(crate) mod connections;
mod ingest;
mod metrics;
mod openapi;
mod problems;
mod ranks;
mod statistics;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, StatusCode};
use jobs::Catalog;
use serde_json::{Value, json};
use serving::{Serving, ServingOptions};

use crate::memory_stores::{LayerProgress, MemoryStores, NOW_MS, PlayEvent};
use crate::requests::{build_request, get, get_json, no_wait_options, send};

/// Starts a service with six plays of owner 1: one on each of the last six days, of three tracks.
/// Run 1 covers two of them, and run 2 four.
fn start_service(options: ServingOptions) -> (Serving, Arc<MemoryStores>) {
    let plays = (0..6).map(|n| PlayEvent {
        time_s: NOW_MS / 1000 - 86_400 * n,
        int_columns: BTreeMap::from([("owner_id", 1), ("track_id", n % 3)]),
        text_columns: BTreeMap::from([("kind", "play".to_owned())]),
        amount: 1,
    });
    let plays: Vec<PlayEvent> = plays.collect();
    let catalog = Catalog::built_in().unwrap();
    let progress = LayerProgress {
        cuts: vec![2, 4],
        newest_complete: 2,
        pruned: 2,
        written_remainder: 0,
    };
    MemoryStores::from_history(&catalog, &plays, 2, &progress).start_service(&catalog, options)
}

/// Expects a problem document; returns its status and content.
async fn expect_problem(serving: &Serving, method: Method, uri: &str) -> (StatusCode, Value) {
    let (response, text) = send(serving, build_request(method, uri, Body::empty())).await;
    let content_type = &response.headers()["content-type"];
    assert_eq!(content_type, "application/problem+json", "{uri}: {text}");
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["status"], response.status().as_u16());
    assert_eq!(
        document["request_id"],
        response.headers()["x-request-id"].to_str().unwrap()
    );
    (response.status(), document)
}

#[tokio::test]
async fn answers_errors_with_problem_documents() {
    let (serving, _) = start_service(no_wait_options());
    let total = "/api/v1/stats/plays/total";
    for (uri, status, words) in [
        ("/nowhere", 404, "no route"),
        ("/api/v1/stats/likes/total?owner_id=1", 404, "likes"),
        ("/api/v1/stats/%FF/total", 400, "UTF-8"),
        ("/api/v1/boards/%FF/1", 400, "UTF-8"),
        ("/api/v1/boards/segments/%FF", 400, "UTF-8"),
        ("/api/v1/applications/%FF", 400, "UTF-8"),
        ("/api/v1/applications/%FF/history", 400, "UTF-8"),
        (total, 400, "owner_id or track_id"),
        (&format!("{total}?country=DE"), 400, "owner_id or track_id"),
        (
            &format!("{total}?owner_id=1&owner_id=1"),
            400,
            "owner_id is repeated",
        ),
        (&format!("{total}?owner_id=1&limit=1"), 400, "\"limit\""),
        (&format!("{total}?owner_id=x"), 400, "owner_id=\"x\""),
        (
            &format!("{total}?owner_id=1&tz=Mars/Olympus"),
            400,
            "Mars/Olympus",
        ),
        (&format!("{total}?owner_id=1&tz=%2B02:00"), 400, "IANA"),
        (&format!("{total}?owner_id=1&period=decade"), 400, "decade"),
        (&format!("{total}?owner_id=1&from=2026-02-30"), 400, "from"),
        (
            &format!("{total}?owner_id=1&from=2026-01-01T00:01:00Z"),
            400,
            "quarter",
        ),
        (
            "/api/v1/stats/plays/series?owner_id=1&interval=minute",
            400,
            "minute",
        ),
        (
            "/api/v1/stats/plays/series?owner_id=1&from=1900-01-01&to=2026-01-01&interval=hour",
            400,
            "10000",
        ),
        (
            "/api/v1/stats/plays/breakdown?owner_id=1",
            400,
            "by is required",
        ),
        (
            "/api/v1/stats/plays/breakdown?owner_id=1&by=colour",
            400,
            "colour",
        ),
        (
            "/api/v1/stats/plays/breakdown?owner_id=1&by=track&limit=1001",
            400,
            "limit",
        ),
        (
            "/api/v1/stats/plays/breakdown?owner_id=1&by=track&cursor=x",
            400,
            "cursor",
        ),
        ("/api/v1/batch/runs?source=likes", 400, "likes"),
        ("/api/v1/batch/runs/99", 404, "99"),
        ("/api/v1/batch/runs/x", 404, "x"),
        (
            "/api/v1/batch/runs/9223372036854775807",
            404,
            "9223372036854775807",
        ),
        (
            "/api/v1/batch/runs/18446744073709551615",
            404,
            "18446744073709551615",
        ),
        ("/metrics", 404, "metrics"),
    ] {
        let (actual, document) = expect_problem(&serving, Method::GET, uri).await;
        assert_eq!(actual.as_u16(), status, "{uri}: {document}");
        let detail = document["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{uri}: {document}");
    }
}

#[tokio::test]
async fn refuses_unsupported_methods() {
    let (serving, _) = start_service(no_wait_options());
    let total = "/api/v1/stats/plays/total";
    let (status, document) = expect_problem(&serving, Method::DELETE, total).await;
    assert_eq!(
        (status.as_u16(), &document["type"]),
        (405, &json!("/problems/method-not-allowed"))
    );
    let (response, _) = send(
        &serving,
        build_request(Method::DELETE, total, Body::empty()),
    )
    .await;
    assert_eq!(response.headers()["allow"], "GET, HEAD");
    let (status, _) = expect_problem(&serving, Method::GET, "/api/v1/ingest/plays").await;
    assert_eq!(status.as_u16(), 405);
}

#[tokio::test]
async fn lists_runs_newest_first() {
    let (serving, _) = start_service(no_wait_options());
    let (_, page) = get_json(&serving, "/api/v1/batch/runs?limit=1").await;
    assert_eq!(page["runs"][0]["epoch"], 2);
    assert_eq!(page["runs"][0]["seconds"], 1.5);
    let cursor = page["cursor"].as_str().unwrap();
    let uri = format!("/api/v1/batch/runs?limit=1&cursor={cursor}");
    let (_, last_page) = get_json(&serving, &uri).await;
    assert_eq!(
        (&last_page["runs"][0]["epoch"], &last_page["cursor"]),
        (&json!(1), &Value::Null)
    );
    let provenance = json!({
        "source": "batch",
        "epoch": 2,
        "complete": true,
        "position": {"plays": page["runs"][0]["cuts"]},
    });
    for (name, value) in provenance.as_object().unwrap() {
        assert_eq!(&page["provenance"][name], value);
    }
    let (_, reconciliations) = get_json(&serving, "/api/v1/reconciliations?source=plays").await;
    assert_eq!(reconciliations["provenance"], page["provenance"]);
    let (_, run) = get_json(&serving, "/api/v1/batch/runs/1").await;
    assert_eq!(run["provenance"], page["provenance"]);
    assert_eq!(
        (&run["state"], &run["report"]["rows_read"]),
        (&json!("complete"), &json!(7))
    );
    let (_, csv) = get(&serving, "/api/v1/batch/runs?format=csv").await;
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("source,epoch,state,"), "{csv}");
    assert!(
        lines[1].starts_with("plays,2,complete,2026-07-14T"),
        "{csv}"
    );
}

#[tokio::test]
async fn the_openapi_document_has_every_path() {
    let (serving, _) = start_service(no_wait_options());
    let (status, document) = get_json(&serving, "/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    let paths: Vec<&str> = document["paths"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        paths,
        [
            "/api/v1/activities/{id}/achievements",
            "/api/v1/applications",
            "/api/v1/applications/{id}",
            "/api/v1/applications/{id}/audit",
            "/api/v1/applications/{id}/authorizations",
            "/api/v1/applications/{id}/authorizations/{athlete_id}",
            "/api/v1/applications/{id}/capacity-notices",
            "/api/v1/applications/{id}/capacity-requests",
            "/api/v1/applications/{id}/history",
            "/api/v1/applications/{id}/limit",
            "/api/v1/athletes/{athlete_id}/achievements",
            "/api/v1/batch/runs",
            "/api/v1/batch/runs/{epoch}",
            "/api/v1/boards/{name}/ranks",
            "/api/v1/boards/{name}/{key}",
            "/api/v1/boards/{name}/{key}/athletes/{athlete_id}",
            "/api/v1/capacity-notices",
            "/api/v1/capacity-requests",
            "/api/v1/capacity-requests/{id}",
            "/api/v1/dead-letters",
            "/api/v1/dead-letters/counts",
            "/api/v1/dead-letters/replay",
            "/api/v1/dead-letters/{id}",
            "/api/v1/explain",
            "/api/v1/ingest/{source}",
            "/api/v1/overview",
            "/api/v1/reconciliations",
            "/api/v1/reconciliations/approve",
            "/api/v1/segments/{segment_id}/counts",
            "/api/v1/stats/{metric}/breakdown",
            "/api/v1/stats/{metric}/series",
            "/api/v1/stats/{metric}/total",
            "/api/v1/stats/{metric}/uniques",
            "/api/v1/stats/{metric}/uniques/series",
            "/livez",
            "/metrics",
            "/openapi.json",
            "/problems/{kind}",
            "/readyz",
        ]
    );
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for name in [
        "Total",
        "Series",
        "Breakdown",
        "Provenance",
        "Problem",
        "Ingested",
        "Runs",
        "BoardPage",
        "BoardPlace",
        "BoardEntry",
        "Counts",
        "ApplicationResponse",
        "Achievement",
        "DeadLettersPage",
        "DeadLetterCounts",
        "DeadLetterResponse",
    ] {
        assert!(schemas.contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn sends_no_body_for_an_unchanged_response() {
    let (serving, stores) = start_service(no_wait_options());
    let total = "/api/v1/stats/plays/total?owner_id=1";
    for uri in [
        total,
        "/api/v1/stats/plays/breakdown?owner_id=1&by=track&format=csv",
        "/api/v1/stats/plays/uniques?owner_id=1",
        "/api/v1/batch/runs",
    ] {
        let (response, text) = get(&serving, uri).await;
        assert_eq!(response.headers()["cache-control"], "no-cache", "{uri}");
        assert!(!text.is_empty(), "{uri}");
        let tag = response.headers()["etag"].clone();
        let request_unless = |tag: HeaderValue| {
            let request = Request::get(uri).header("if-none-match", tag);
            request.body(Body::empty()).unwrap()
        };
        let (response, text) = send(&serving, request_unless(tag.clone())).await;
        assert_eq!(
            (response.status(), text.as_str()),
            (StatusCode::NOT_MODIFIED, "")
        );
        assert_eq!(response.headers()["etag"], tag);
        assert_eq!(response.headers()["cache-control"], "no-cache");
        let other_tag = HeaderValue::from_static("W/\"0\"");
        let (response, text) = send(&serving, request_unless(other_tag)).await;
        assert_eq!(response.status(), StatusCode::OK, "{text}");
    }
    let (first, _) = get(&serving, total).await;
    for state in stores.partition_states.lock().unwrap().iter_mut().flatten() {
        state.position.next_offset += 1;
    }
    // The same count at another position is another response.
    let (second, _) = get(&serving, total).await;
    assert_ne!(first.headers()["etag"], second.headers()["etag"]);
    // Errors have no tag.
    let (refused, _) = get(&serving, "/api/v1/stats/plays/total").await;
    assert!(!refused.headers().contains_key("etag"));
    assert_eq!(refused.headers()["cache-control"], "no-store");
}
