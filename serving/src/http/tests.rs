#![allow(clippy::too_many_lines, reason = "tables of cases")]

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use jobs::Catalog;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::laws::get;
use crate::world::{NOW_MS, Play, Progress, World};
use crate::{Serving, ServingOptions};

fn plays() -> Vec<Play> {
    (0..6)
        .map(|n| Play {
            at: NOW_MS / 1000 - 86_400 * n,
            ints: BTreeMap::from([("owner_id", 1), ("track_id", n % 3)]),
            texts: BTreeMap::from([("kind", "play".to_owned())]),
            amount: 1,
        })
        .collect()
}

fn world(options: ServingOptions) -> (Serving, std::sync::Arc<World>) {
    let catalog = Catalog::built_in().unwrap();
    let progress = Progress {
        cuts: vec![2, 4],
        newest: 2,
        pruned: 2,
        loaded_remainder: 0,
    };
    World::new(&catalog, &plays(), 2, &progress).serving(&catalog, options)
}

fn no_wait_options() -> ServingOptions {
    ServingOptions {
        whole_wait_ms: 0,
        ..ServingOptions::default()
    }
}

async fn send(serving: &Serving, request: Request<Body>) -> (Response<()>, String) {
    let response = serving.router().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    (Response::from_parts(parts, ()), text)
}

fn request(method: Method, uri: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri(uri)
        .body(body.into())
        .unwrap()
}

async fn problem(serving: &Serving, method: Method, uri: &str) -> (StatusCode, Value) {
    let (response, text) = send(serving, request(method, uri, Body::empty())).await;
    let kind = &response.headers()["content-type"];
    assert_eq!(kind, "application/problem+json", "{uri}: {text}");
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
    let (serving, _) = world(no_wait_options());
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
        let (got, document) = problem(&serving, Method::GET, uri).await;
        assert_eq!(got.as_u16(), status, "{uri}: {document}");
        assert!(
            document["detail"].as_str().unwrap().contains(words),
            "{uri}: {document}"
        );
    }
}

#[tokio::test]
async fn refuses_unsupported_methods() {
    let (serving, _) = world(no_wait_options());
    let total = "/api/v1/stats/plays/total";
    let (status, document) = problem(&serving, Method::DELETE, total).await;
    assert_eq!(
        (status.as_u16(), &document["type"]),
        (405, &json!("/problems/method-not-allowed"))
    );
    let (response, _) = send(&serving, request(Method::DELETE, total, Body::empty())).await;
    assert_eq!(response.headers()["allow"], "GET, HEAD");
    let (status, _) = problem(&serving, Method::GET, "/api/v1/ingest/plays").await;
    assert_eq!(status.as_u16(), 405);
}

#[tokio::test]
async fn waits_for_incomplete_data_and_then_fails() {
    let (serving, world) = world(ServingOptions {
        whole_wait_ms: 300,
        ..ServingOptions::default()
    });
    *world.missing_state_reads.lock().unwrap() = 2;
    let uri = "/api/v1/stats/plays/total?owner_id=1";
    let (status, total) = get(&serving, uri).await;
    assert_eq!((status, &total["count"]), (StatusCode::OK, &json!(6)));
    assert_eq!(total["provenance"]["source"], "merged");
    assert_eq!(total["provenance"]["epoch"], 2);
    assert_eq!(total["provenance"]["as_of"], "1970-01-01T00:00:00.006Z");

    *world.missing_state_reads.lock().unwrap() = usize::MAX;
    let (status, document) = problem(&serving, Method::GET, uri).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        document["detail"]
            .as_str()
            .unwrap()
            .contains("`backstitch speed` builds it"),
        "{document}"
    );
    assert_eq!(document["type"], "/problems/not-whole");
    let (response, _) = send(&serving, request(Method::GET, uri, Body::empty())).await;
    assert_eq!(response.headers()["retry-after"], "1");
    let (status, document) = problem(&serving, Method::GET, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        document["detail"]
            .as_str()
            .unwrap()
            .contains("seam of plays"),
        "{document}"
    );

    *world.missing_state_reads.lock().unwrap() = 0;
    assert_eq!(get(&serving, "/readyz").await.0, StatusCode::OK);
    assert_eq!(get(&serving, "/livez").await.0, StatusCode::OK);
}

#[tokio::test]
async fn an_owner_does_not_need_the_state_of_another_partition() {
    let (serving, world) = world(no_wait_options());
    let mine = schemas::partition::partition_of(b"1", 2) as usize;
    let offset = world.states.lock().unwrap()[mine]
        .as_ref()
        .unwrap()
        .position
        .next_offset;
    world.states.lock().unwrap()[1 - mine] = None;
    let (status, total) = get(&serving, "/api/v1/stats/plays/total?owner_id=1").await;
    assert_eq!(status, StatusCode::OK, "{total}");
    let mut position = [json!(0), json!(0)];
    position[mine] = json!(offset);
    assert_eq!(total["provenance"]["position"], json!({"plays": position}));
    let (status, _) = get(&serving, "/api/v1/stats/plays/total?track_id=1").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn replaces_a_new_view_by_finer_ones() {
    let (serving, world) = world(no_wait_options());
    for slot in world.states.lock().unwrap().iter_mut().flatten() {
        slot.since
            .retain(|view, _| !view.starts_with("plays_owner_all"));
    }
    let (status, total) = get(&serving, "/api/v1/stats/plays/total?owner_id=1").await;
    assert_eq!(
        (status, &total["count"]),
        (StatusCode::OK, &json!(6)),
        "{total}"
    );
    for slot in world.states.lock().unwrap().iter_mut().flatten() {
        slot.since.clear();
    }
    let (status, document) = get(&serving, "/api/v1/stats/plays/total?owner_id=1").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{document}");
}

#[tokio::test]
async fn answers_without_a_log() {
    let catalog = Catalog::built_in().unwrap();
    let empty = World::new(&catalog, &[], 0, &Progress::default());
    let (serving, _) = empty.serving(&catalog, no_wait_options());
    let (status, total) = get(&serving, "/api/v1/stats/plays/total?track_id=1").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(total["count"], 0);
    assert_eq!(total["provenance"]["position"], json!({"plays": []}));
    assert_eq!(total["provenance"]["as_of"], Value::Null);
    let (_, series) = get(
        &serving,
        "/api/v1/stats/plays/series?owner_id=1&period=today&interval=hour",
    )
    .await;
    assert_eq!(series["points"].as_array().unwrap().len(), 24);
    assert_eq!(get(&serving, "/readyz").await.0, StatusCode::OK);
    let (_, overview) = get(&serving, "/api/v1/overview").await;
    assert_eq!(overview["sources"][0]["partitions"], json!([]));
}

#[tokio::test]
async fn links_the_pages_of_a_breakdown() {
    let (serving, _) = world(no_wait_options());
    let uri = "/api/v1/stats/plays/breakdown?owner_id=1&by=track&limit=2";
    let (response, text) = send(&serving, request(Method::GET, uri, Body::empty())).await;
    let page: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(page["rows"].as_array().unwrap().len(), 2);
    assert_eq!(page["rows"][0]["share"], json!(2.0 / 6.0));
    let link = response.headers()["link"].to_str().unwrap();
    let next = link
        .strip_prefix('<')
        .unwrap()
        .strip_suffix(">; rel=\"next\"")
        .unwrap();
    let (_, last) = get(&serving, next).await;
    assert_eq!(last["rows"].as_array().unwrap().len(), 1);
    assert_eq!((&last["cursor"], &last["total"]), (&Value::Null, &json!(6)));
    let cursor = page["cursor"].as_str().unwrap();
    let other = format!("/api/v1/stats/plays/breakdown?owner_id=2&by=track&cursor={cursor}");
    let (status, document) = problem(&serving, Method::GET, &other).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(
        document["detail"]
            .as_str()
            .unwrap()
            .contains("another request")
    );
    let csv = format!("{next}&format=csv");
    let (response, text) = send(&serving, request(Method::GET, &csv, Body::empty())).await;
    assert_eq!(
        response.headers()["content-type"],
        "text/csv; charset=utf-8"
    );
    assert!(text.starts_with("key,count,share,source\r\n"), "{text}");
    let provenance = response.headers()["backstitch-provenance"]
        .to_str()
        .unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(provenance).unwrap()["epoch"],
        2
    );
}

#[tokio::test]
async fn lists_runs_newest_first() {
    let (serving, _) = world(no_wait_options());
    let (_, page) = get(&serving, "/api/v1/batch/runs?limit=1").await;
    assert_eq!(page["runs"][0]["epoch"], 2);
    assert_eq!(page["runs"][0]["seconds"], 1.5);
    let next = page["cursor"].as_str().unwrap();
    let (_, last) = get(
        &serving,
        &format!("/api/v1/batch/runs?limit=1&cursor={next}"),
    )
    .await;
    assert_eq!(
        (&last["runs"][0]["epoch"], &last["cursor"]),
        (&json!(1), &Value::Null)
    );
    let ends = json!({
        "source": "batch",
        "epoch": 2,
        "complete": true,
        "position": {"plays": page["runs"][0]["cuts"]},
    });
    for (name, value) in ends.as_object().unwrap() {
        assert_eq!(&page["provenance"][name], value);
    }
    let (_, all) = get(&serving, "/api/v1/reconciliations?source=plays").await;
    assert_eq!(all["provenance"], page["provenance"]);
    let (_, one) = get(&serving, "/api/v1/batch/runs/1").await;
    assert_eq!(one["provenance"], page["provenance"]);
    assert_eq!(
        (&one["state"], &one["report"]["rows_read"]),
        (&json!("complete"), &json!(7))
    );
    let uri = "/api/v1/batch/runs?format=csv";
    let (_, text) = send(&serving, request(Method::GET, uri, Body::empty())).await;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("source,epoch,state,"), "{text}");
    assert!(
        lines[1].starts_with("plays,2,complete,2026-07-14T"),
        "{text}"
    );
}

fn line(n: usize) -> String {
    format!(
        "{{\"event_id\":\"e{n}\",\"track_id\":1,\"owner_id\":{n},\"kind\":\"play\",\"at\":\"2026-07-01T00:00:00Z\"}}\n"
    )
}

#[tokio::test]
async fn refuses_bodies_that_are_too_large_or_encoded() {
    let (serving, world) = world(ServingOptions {
        body_bytes_max: 100,
        ..no_wait_options()
    });
    let uri = "/api/v1/ingest/plays";
    let sized = Request::post(uri)
        .header("content-length", 101)
        .body(Body::empty())
        .unwrap();
    let (response, text) = send(&serving, sized).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE, "{text}");
    let unsized_body = Body::from_stream(futures::stream::iter(
        (0..3).map(|n| Ok::<_, std::io::Error>(line(n))),
    ));
    let (response, text) = send(&serving, request(Method::POST, uri, unsized_body)).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE, "{text}");
    assert!(text.contains("\"accepted\":0"), "{text}");
    let encoded = Request::post(uri)
        .header("content-encoding", "br")
        .body(Body::empty())
        .unwrap();
    let (response, _) = send(&serving, encoded).await;
    assert_eq!(response.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let broken = Body::from_stream(futures::stream::iter([Err::<String, _>(
        std::io::Error::other("gone"),
    )]));
    let (response, text) = send(&serving, request(Method::POST, uri, broken)).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{text}");
    assert!(world.appended().is_empty());
}

#[tokio::test]
async fn the_openapi_document_has_every_path() {
    let (serving, _) = world(no_wait_options());
    let (status, document) = get(&serving, "/openapi.json").await;
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
async fn a_panic_becomes_a_problem() {
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    async fn handler() {
        panic!("on purpose");
    }
    let router: Router = Router::new()
        .route("/", get(handler))
        .layer(tower_http::catch_panic::CatchPanicLayer::custom(
            super::layers::on_panic,
        ))
        .layer(from_fn(super::layers::finish_response));
    let response = router
        .oneshot(request(Method::GET, "/", Body::empty()))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
}

/// Starts a server. Returns its address, its shutdown token, and its task.
async fn start_server(
    options: ServingOptions,
) -> (
    std::net::SocketAddr,
    CancellationToken,
    tokio::task::JoinSet<crate::Result<()>>,
) {
    let (serving, _) = world(options);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    let token = shutdown.clone();
    tasks.spawn(async move { serving.run(listener, token).await });
    (address, shutdown, tasks)
}

async fn exchange(stream: &mut TcpStream, text: &str) -> String {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn serves_and_drains_a_socket() {
    let (address, shutdown, mut tasks) = start_server(no_wait_options()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let answer = exchange(
        &mut stream,
        "GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let idle = TcpStream::connect(address).await.unwrap();
    shutdown.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(5), tasks.join_next()).await;
    assert!(ended.unwrap().unwrap().unwrap().is_ok());
    drop(idle);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn disconnects_silent_and_slow_clients() {
    let (address, shutdown, _tasks) = start_server(ServingOptions {
        head_timeout_ms: 100,
        ..no_wait_options()
    })
    .await;
    for begin in ["", "PRI * HT", "GET /livez HTTP/1.1\r\nhost:"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let ended =
            tokio::time::timeout(Duration::from_secs(5), exchange(&mut stream, begin)).await;
        assert!(ended.is_ok(), "{begin:?}: the connection is still open");
    }
    // A connection may idle after a request, but the head of its next request has a time limit.
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut answer = [0; 4_096];
    for _ in 0..2 {
        stream.write_all(request).await.unwrap();
        let read = stream.read(&mut answer).await.unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let ended =
        tokio::time::timeout(Duration::from_secs(5), exchange(&mut stream, "GET /li")).await;
    assert!(ended.is_ok(), "the connection is still open");
    shutdown.cancel();
}

/// The body is announced, but all of it or its end is missing.
#[tokio::test]
async fn stops_waiting_for_a_missing_body() {
    let (address, shutdown, _tasks) = start_server(ServingOptions {
        body_idle_timeout_ms: 100,
        ..no_wait_options()
    })
    .await;
    for head in [
        "PATCH /api/v1/applications/1",
        "POST /api/v1/applications/1/authorizations",
        "POST /api/v1/ingest/plays",
    ] {
        for begin in ["", "{\"athlete_"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let text =
                format!("{head} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n{begin}");
            let answer = tokio::time::timeout(Duration::from_secs(5), exchange(&mut stream, &text));
            let answer = answer.await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 408"), "{head}: {answer}");
            assert!(answer.contains("/problems/slow-body"), "{head}: {answer}");
        }
    }
    shutdown.cancel();
}

#[tokio::test]
async fn repeats_an_earlier_response_while_a_store_is_down() {
    let (serving, world) = world(ServingOptions {
        // Without caches, each request reads the store.
        row_cache_bytes_max: 0,
        runs_kept_for_ms: 0,
        ..no_wait_options()
    });
    let uri = "/api/v1/stats/plays/total?owner_id=1&period=all";
    let (_, before) = get(&serving, uri).await;
    assert_eq!(before["provenance"]["complete"], true);
    *world.is_down.lock().unwrap() = true;
    let (_, mut again) = get(&serving, uri).await;
    assert_eq!(again["provenance"]["complete"], false);
    again["provenance"]["complete"] = json!(true);
    // The layers and the position are those of the earlier response, too.
    assert_eq!(again, before);
    let other = "/api/v1/stats/plays/total?owner_id=2&period=all";
    let (status, problem) = problem(&serving, Method::GET, other).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{problem}");
    *world.is_down.lock().unwrap() = false;
    assert_eq!(get(&serving, uri).await.1, before);
}

#[tokio::test]
async fn sends_no_body_for_an_unchanged_response() {
    let (serving, world) = world(no_wait_options());
    for uri in [
        "/api/v1/stats/plays/total?owner_id=1",
        "/api/v1/stats/plays/breakdown?owner_id=1&by=track&format=csv",
        "/api/v1/stats/plays/uniques?owner_id=1",
        "/api/v1/batch/runs",
    ] {
        let (response, text) = send(&serving, request(Method::GET, uri, Body::empty())).await;
        assert_eq!(response.headers()["cache-control"], "no-cache", "{uri}");
        assert!(!text.is_empty(), "{uri}");
        let tag = response.headers()["etag"].clone();
        let again = |tag: axum::http::HeaderValue| {
            let request = Request::get(uri).header("if-none-match", tag);
            request.body(Body::empty()).unwrap()
        };
        let (response, text) = send(&serving, again(tag.clone())).await;
        assert_eq!(
            (response.status(), text.as_str()),
            (StatusCode::NOT_MODIFIED, "")
        );
        assert_eq!(response.headers()["etag"], tag);
        assert_eq!(response.headers()["cache-control"], "no-cache");
        let other = axum::http::HeaderValue::from_static("W/\"0\"");
        let (response, text) = send(&serving, again(other)).await;
        assert_eq!(response.status(), StatusCode::OK, "{text}");
    }
    let total = || {
        request(
            Method::GET,
            "/api/v1/stats/plays/total?owner_id=1",
            Body::empty(),
        )
    };
    let (before, _) = send(&serving, total()).await;
    for slot in world.states.lock().unwrap().iter_mut().flatten() {
        slot.position.next_offset += 1;
    }
    // The same count at another position is another response.
    let (after, _) = send(&serving, total()).await;
    assert_ne!(before.headers()["etag"], after.headers()["etag"]);
    // Errors have no tag.
    let uri = "/api/v1/stats/plays/total";
    let (refused, _) = send(&serving, request(Method::GET, uri, Body::empty())).await;
    assert!(!refused.headers().contains_key("etag"));
    assert_eq!(refused.headers()["cache-control"], "no-store");
}

#[tokio::test]
async fn concurrent_equal_requests_share_reads() {
    let (serving, world) = world(no_wait_options());
    world
        .is_slow
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let uri = "/api/v1/stats/plays/series?owner_id=1&period=7d&interval=day";
    let requests = (0..50).map(|_| get(&serving, uri));
    let answers = futures::future::join_all(requests).await;
    assert!(
        answers.iter().all(|answer| *answer == answers[0]),
        "{answers:?}"
    );
    assert_eq!(answers[0].0, StatusCode::OK);
    let reads = *world.live_reads.lock().unwrap();
    assert_eq!(reads, 2, "for 50 requests");
}

#[tokio::test]
async fn reads_batch_rows_once_per_run() {
    let (serving, world) = world(no_wait_options());
    let uri = "/api/v1/stats/plays/total?owner_id=1";
    let first = get(&serving, uri).await;
    let reads = || *world.row_reads.lock().unwrap();
    let before = reads();
    assert!(before > 0);
    assert_eq!(get(&serving, uri).await, first);
    assert_eq!(reads(), before, "the rows are cached");
    let without_cache = ServingOptions {
        row_cache_bytes_max: 0,
        ..no_wait_options()
    };
    let (serving, world) = self::world(without_cache);
    get(&serving, uri).await;
    get(&serving, uri).await;
    assert_eq!(*world.row_reads.lock().unwrap(), 2 * before);
}

#[tokio::test]
async fn limits_concurrent_ingest_requests() {
    let (serving, world) = world(ServingOptions {
        ingests_max: 1,
        ..no_wait_options()
    });
    let uri = "/api/v1/ingest/plays";
    let (sender, receiver) = futures::channel::mpsc::unbounded::<Result<String, std::io::Error>>();
    let first = request(Method::POST, uri, Body::from_stream(receiver));
    let mut first = std::pin::pin!(send(&serving, first));
    sender.unbounded_send(Ok(line(1))).unwrap();
    let soon = tokio::time::timeout(Duration::from_millis(50), &mut first);
    assert!(soon.await.is_err(), "it waits for the rest of its body");
    let (response, text) = send(&serving, request(Method::POST, uri, line(2))).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{text}");
    assert_eq!(response.headers()["retry-after"], "1");
    assert!(text.contains("too-many-writers"), "{text}");
    drop(sender);
    let (response, text) = first.await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    let (response, text) = send(&serving, request(Method::POST, uri, line(2))).await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    assert_eq!(world.appended().len(), 2);
}

#[tokio::test]
async fn an_idempotency_key_makes_dead_letters_repeatable() {
    let (serving, world) = world(no_wait_options());
    let post = |key: &str| {
        let request = Request::post("/api/v1/ingest/plays").header("idempotency-key", key);
        request.body(Body::from("bad\n")).unwrap()
    };
    for key in ["a-1", "a-1", "b"] {
        let (response, text) = send(&serving, post(key)).await;
        assert_eq!(response.status(), StatusCode::OK, "{text}");
    }
    let letters: Vec<Vec<u8>> = world
        .appended()
        .into_iter()
        .map(|(_, letter)| letter)
        .collect();
    assert_eq!(letters.len(), 3);
    assert_eq!(letters[0], letters[1]);
    assert_ne!(letters[0], letters[2]);
    for wrong in ["", "a b", "ä", &"x".repeat(129)] {
        let (response, text) = send(&serving, post(wrong)).await;
        assert_eq!(
            response.status(),
            StatusCode::BAD_REQUEST,
            "{wrong}: {text}"
        );
        assert!(text.contains("Idempotency-Key"), "{text}");
    }
}

#[path = "ingest_tests.rs"]
mod ingest;
