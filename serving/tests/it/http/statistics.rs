//! Statistics of plays: incomplete and missing data, pages, caches, and shared reads.

use std::pin::pin;
use std::sync::Arc;

use axum::http::{Method, StatusCode};
use jobs::Catalog;
use schemas::partition::partition_of;
use serde_json::{Value, json};
use serving::ServingOptions;
use tokio::sync::Semaphore;

use super::{expect_problem, start_service};
use crate::memory_stores::{LayerProgress, MemoryStores};
use crate::requests::{get, get_json, no_wait_options, parse_next_link};

#[tokio::test]
async fn waits_for_incomplete_data_and_then_fails() {
    let (serving, stores) = start_service(ServingOptions {
        whole_wait_ms: 300,
        ..ServingOptions::default()
    });
    stores.faults().missing_state_reads = 2;
    let uri = "/api/v1/stats/plays/total?owner_id=1";
    let (status, total) = get_json(&serving, uri).await;
    assert_eq!((status, &total["count"]), (StatusCode::OK, &json!(6)));
    assert_eq!(total["provenance"]["source"], "merged");
    assert_eq!(total["provenance"]["epoch"], 2);
    assert_eq!(total["provenance"]["as_of"], "1970-01-01T00:00:00.006Z");

    stores.faults().missing_state_reads = usize::MAX;
    let (status, document) = expect_problem(&serving, Method::GET, uri).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let detail = document["detail"].as_str().unwrap();
    assert!(
        detail.contains("`backstitch speed` builds it"),
        "{document}"
    );
    assert_eq!(document["type"], "/problems/not-whole");
    let (response, _) = get(&serving, uri).await;
    assert_eq!(response.headers()["retry-after"], "1");
    let (status, document) = expect_problem(&serving, Method::GET, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let detail = document["detail"].as_str().unwrap();
    assert!(detail.contains("seam of plays"), "{document}");

    stores.faults().missing_state_reads = 0;
    assert_eq!(get_json(&serving, "/readyz").await.0, StatusCode::OK);
    assert_eq!(get_json(&serving, "/livez").await.0, StatusCode::OK);
}

#[tokio::test]
async fn an_owner_does_not_need_the_state_of_another_partition() {
    let (serving, stores) = start_service(no_wait_options());
    let partition = partition_of(b"1", 2) as usize;
    let next_offset = {
        let mut states = stores.partition_states.lock().unwrap();
        states[1 - partition] = None;
        states[partition].as_ref().unwrap().position.next_offset
    };
    let (status, total) = get_json(&serving, "/api/v1/stats/plays/total?owner_id=1").await;
    assert_eq!(status, StatusCode::OK, "{total}");
    let mut position = [json!(0), json!(0)];
    position[partition] = json!(next_offset);
    assert_eq!(total["provenance"]["position"], json!({"plays": position}));
    let (status, _) = get_json(&serving, "/api/v1/stats/plays/total?track_id=1").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn replaces_a_new_view_by_finer_ones() {
    let (serving, stores) = start_service(no_wait_options());
    let uri = "/api/v1/stats/plays/total?owner_id=1";
    for state in stores.partition_states.lock().unwrap().iter_mut().flatten() {
        let is_old = |view: &str| !view.starts_with("plays_owner_all");
        state.since.retain(|view, _| is_old(view));
    }
    let (status, total) = get_json(&serving, uri).await;
    assert_eq!(status, StatusCode::OK, "{total}");
    assert_eq!(total["count"], 6);
    for state in stores.partition_states.lock().unwrap().iter_mut().flatten() {
        state.since.clear();
    }
    let (status, document) = get_json(&serving, uri).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{document}");
}

#[tokio::test]
async fn answers_without_a_log() {
    let catalog = Catalog::built_in().unwrap();
    let empty = MemoryStores::from_history(&catalog, &[], 0, &LayerProgress::default());
    let (serving, _) = empty.start_service(&catalog, no_wait_options());
    let (status, total) = get_json(&serving, "/api/v1/stats/plays/total?track_id=1").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(total["count"], 0);
    assert_eq!(total["provenance"]["position"], json!({"plays": []}));
    assert_eq!(total["provenance"]["as_of"], Value::Null);
    let uri = "/api/v1/stats/plays/series?owner_id=1&period=today&interval=hour";
    let (_, series) = get_json(&serving, uri).await;
    assert_eq!(series["points"].as_array().unwrap().len(), 24);
    assert_eq!(get_json(&serving, "/readyz").await.0, StatusCode::OK);
    let (_, overview) = get_json(&serving, "/api/v1/overview").await;
    assert_eq!(overview["sources"][0]["partitions"], json!([]));
}

#[tokio::test]
async fn links_the_pages_of_a_breakdown() {
    let (serving, _) = start_service(no_wait_options());
    let uri = "/api/v1/stats/plays/breakdown?owner_id=1&by=track&limit=2";
    let (response, text) = get(&serving, uri).await;
    let page: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(page["rows"].as_array().unwrap().len(), 2);
    assert_eq!(page["rows"][0]["share"], json!(2.0 / 6.0));
    let next_uri = parse_next_link(response.headers()).unwrap();
    let (_, last_page) = get_json(&serving, &next_uri).await;
    assert_eq!(last_page["rows"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&last_page["cursor"], &last_page["total"]),
        (&Value::Null, &json!(6))
    );
    let cursor = page["cursor"].as_str().unwrap();
    let other_uri = format!("/api/v1/stats/plays/breakdown?owner_id=2&by=track&cursor={cursor}");
    let (status, document) = expect_problem(&serving, Method::GET, &other_uri).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let detail = document["detail"].as_str().unwrap();
    assert!(detail.contains("another request"), "{detail}");
    let (response, csv) = get(&serving, &format!("{next_uri}&format=csv")).await;
    let headers = response.headers();
    assert_eq!(headers["content-type"], "text/csv; charset=utf-8");
    assert!(csv.starts_with("key,count,share,source\r\n"), "{csv}");
    let provenance = headers["backstitch-provenance"].to_str().unwrap();
    let provenance: Value = serde_json::from_str(provenance).unwrap();
    assert_eq!(provenance["epoch"], 2);
}

#[tokio::test]
async fn repeats_an_earlier_response_while_a_store_is_down() {
    let (serving, stores) = start_service(ServingOptions {
        // Without caches, each request reads the store.
        row_cache_bytes_max: 0,
        runs_kept_for_ms: 0,
        ..no_wait_options()
    });
    let uri = "/api/v1/stats/plays/total?owner_id=1&period=all";
    let (_, earlier) = get_json(&serving, uri).await;
    assert_eq!(earlier["provenance"]["complete"], true);
    stores.faults().is_view_store_down = true;
    let (_, mut repeated) = get_json(&serving, uri).await;
    assert_eq!(repeated["provenance"]["complete"], false);
    repeated["provenance"]["complete"] = json!(true);
    // The layers and the position are those of the earlier response, too.
    assert_eq!(repeated, earlier);
    let other_uri = "/api/v1/stats/plays/total?owner_id=2&period=all";
    let (status, document) = expect_problem(&serving, Method::GET, other_uri).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{document}");
    stores.faults().is_view_store_down = false;
    assert_eq!(get_json(&serving, uri).await.1, earlier);
}

#[tokio::test]
async fn concurrent_equal_requests_share_reads() {
    let (serving, stores) = start_service(no_wait_options());
    let gate = Arc::new(Semaphore::new(0));
    stores.faults().partition_state_gate = Some(Arc::clone(&gate));
    let uri = "/api/v1/stats/plays/series?owner_id=1&period=7d&interval=day";
    let requests = (0..50).map(|_| get_json(&serving, uri));
    let mut responses = pin!(futures::future::join_all(requests));
    // All requests arrive during the first read.
    for _ in 0..100 {
        assert!(futures::poll!(responses.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    gate.close();
    let responses = responses.await;
    let are_equal = responses.iter().all(|response| *response == responses[0]);
    assert!(are_equal, "{responses:?}");
    assert_eq!(responses[0].0, StatusCode::OK);
    let reads = stores.read_counts().partition_states;
    assert_eq!(reads, 2, "for 50 requests");
}

#[tokio::test]
async fn reads_batch_rows_once_per_run() {
    let (serving, stores) = start_service(no_wait_options());
    let uri = "/api/v1/stats/plays/total?owner_id=1";
    let first = get_json(&serving, uri).await;
    let reads_per_request = stores.read_counts().batch_rows;
    assert!(reads_per_request > 0);
    assert_eq!(get_json(&serving, uri).await, first);
    let reads = stores.read_counts().batch_rows;
    assert_eq!(reads, reads_per_request, "the rows are cached");
    let (serving, stores) = start_service(ServingOptions {
        row_cache_bytes_max: 0,
        ..no_wait_options()
    });
    get_json(&serving, uri).await;
    get_json(&serving, uri).await;
    assert_eq!(stores.read_counts().batch_rows, 2 * reads_per_request);
}
