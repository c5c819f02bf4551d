//! Ingestion over HTTP: rejected lines, compression, limits, and repeated requests.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use async_compression::Level;
use async_compression::tokio::bufread::{GzipEncoder, ZstdEncoder};
use async_compression::zstd::CParameter;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use futures::channel::mpsc::unbounded;
use futures::future::join_all;
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use serving::{Peer, Serving, ServingOptions};
use stores::keys::Token;
use tokio::io::AsyncReadExt;
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

use super::connections::RunningServer;
use super::{expect_problem, start_service};
use crate::requests::{build_request, no_wait_options, parse_json, send};

const INGEST: &str = "/api/v1/ingest/plays";

/// Writes a play with id `eN` of owner N, and a line end.
fn build_event_line(n: usize) -> String {
    format!(
        "{{\"event_id\":\"e{n}\",\"track_id\":1,\"owner_id\":{n},\"kind\":\"play\",\"at\":\"2026-07-01T00:00:00Z\"}}\n"
    )
}

async fn ingest(serving: &Serving, body: impl Into<Body>) -> (Response<()>, String) {
    send(serving, build_request(Method::POST, INGEST, body)).await
}

/// Ingests a body with the header `Content-Encoding`.
async fn ingest_encoded(
    serving: &Serving,
    coding: &str,
    body: impl Into<Body>,
) -> (Response<()>, String) {
    let request = Request::post(INGEST).header("content-encoding", coding);
    send(serving, request.body(body.into()).unwrap()).await
}

/// Returns the numbers of the rejected lines.
fn list_rejected_lines(ingested: &Value) -> Vec<i64> {
    let rejected = ingested["rejected"].as_array().unwrap().iter();
    rejected
        .map(|line| line["line"].as_i64().unwrap())
        .collect()
}

async fn compress(coding: &str, content: &[u8]) -> Vec<u8> {
    let mut compressed = Vec::new();
    let result = match coding {
        "gzip" => GzipEncoder::new(content).read_to_end(&mut compressed).await,
        _ => ZstdEncoder::new(content).read_to_end(&mut compressed).await,
    };
    result.unwrap();
    compressed
}

/// Builds a body of chunks, of which the last one may be shorter.
fn build_chunked_body(content: &[u8], chunk_bytes: usize) -> Body {
    Body::from_stream(stream::iter(split_into_chunks(content, chunk_bytes)))
}

/// As [`build_chunked_body`]; the body does not end after the content.
fn build_endless_body(content: &[u8], chunk_bytes: usize) -> Body {
    let chunks = stream::iter(split_into_chunks(content, chunk_bytes));
    Body::from_stream(chunks.chain(stream::pending()))
}

fn split_into_chunks(content: &[u8], chunk_bytes: usize) -> Vec<io::Result<Vec<u8>>> {
    let chunks = content.chunks(chunk_bytes.min(content.len()));
    chunks.map(|chunk| Ok(chunk.to_vec())).collect()
}

#[tokio::test]
async fn ingests_lines_and_reports_invalid_ones() {
    let (serving, stores) = start_service(no_wait_options());
    let body = format!(
        "{}\n{{\"a\":1}}\r\n{}nonsense",
        build_event_line(1),
        build_event_line(2)
    );
    let (response, text) = ingest(&serving, body).await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    let ingested = parse_json(&text);
    assert_eq!(
        (&ingested["accepted"], &ingested["rejected_count"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(list_rejected_lines(&ingested), [3, 5]);
    assert_eq!(stores.appended().len(), 4);
    let (status, _) = expect_problem(&serving, Method::POST, "/api/v1/ingest/likes").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn numbers_the_lines_of_long_bodies() {
    let (serving, stores) = start_service(no_wait_options());
    let mut body = String::new();
    for n in 0..40_000 {
        body.push_str(if n % 10_000 == 9_999 { "bad\n" } else { "" });
        body.push_str(&build_event_line(n));
    }
    let (_, text) = ingest(&serving, body).await;
    let ingested = parse_json(&text);
    assert_eq!(ingested["accepted"], 40_000);
    assert_eq!(
        list_rejected_lines(&ingested),
        [10_000, 20_001, 30_002, 40_003]
    );
    assert_eq!(stores.appended().len(), 40_004);
}

#[tokio::test]
async fn an_endless_line_is_one_dead_letter() {
    let (serving, stores) = start_service(no_wait_options());
    let halves = |line: String| {
        let (head, tail) = line.split_at(line.len() / 2);
        [head.to_owned(), tail.to_owned()].map(Ok::<_, io::Error>)
    };
    let mut chunks = Vec::from(halves(build_event_line(1)));
    for _ in 0..5 {
        chunks.push(Ok("x".repeat(700_000)));
    }
    chunks.push(Ok("yy\n".to_owned()));
    chunks.extend(halves(build_event_line(2)));
    let body = Body::from_stream(stream::iter(chunks));
    let (response, text) = ingest(&serving, body).await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    let ingested = parse_json(&text);
    assert_eq!(ingested["accepted"], 2, "{text}");
    assert_eq!(list_rejected_lines(&ingested), [2], "{text}");
    assert_eq!(ingested["rejected_count"], 1, "{text}");
    assert_eq!(stores.appended().len(), 3);
}

#[tokio::test]
async fn blanks_count_toward_the_length_of_a_line() {
    let blanks = " ".repeat(2 << 20);
    let event = build_event_line(1);
    let event = event.trim();
    for long_line in [
        format!("{blanks}{event}\n"),
        format!("{event}{blanks}garbage}}\n"),
        format!("{blanks}bad\n"),
        blanks.clone(),
    ] {
        // In one chunk, and in many.
        for chunk_bytes in [usize::MAX, 300_000] {
            let (serving, stores) = start_service(no_wait_options());
            let content = format!("{}{long_line}", build_event_line(2));
            let body = build_chunked_body(content.as_bytes(), chunk_bytes);
            let (_, text) = ingest(&serving, body).await;
            let ingested = parse_json(&text);
            assert_eq!(ingested["accepted"], 1, "{text}");
            let reason = ingested["rejected"][0]["reason"].as_str().unwrap();
            assert!(reason.contains("too long"), "{text}");
            assert_eq!(stores.appended().len(), 2);
        }
    }
}

#[tokio::test]
async fn an_idempotency_key_makes_dead_letters_repeatable() {
    let (serving, stores) = start_service(no_wait_options());
    let post = |key: &str| {
        let request = Request::post(INGEST).header("idempotency-key", key);
        request.body(Body::from("bad\n")).unwrap()
    };
    for key in ["a-1", "a-1", "b"] {
        let (response, text) = send(&serving, post(key)).await;
        assert_eq!(response.status(), StatusCode::OK, "{text}");
    }
    let dead_letters = stores.appended();
    assert_eq!(dead_letters.len(), 3);
    assert_eq!(dead_letters[0].1, dead_letters[1].1);
    assert_ne!(dead_letters[0].1, dead_letters[2].1);
    for invalid in ["", "a b", "ä", &"x".repeat(129)] {
        let (response, text) = send(&serving, post(invalid)).await;
        let status = response.status();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{invalid}: {text}");
        assert!(text.contains("Idempotency-Key"), "{text}");
    }
}

#[tokio::test]
async fn ingests_compressed_bodies() {
    let first_half = format!("{}bad\n{}", build_event_line(1), build_event_line(2));
    let second_half = format!("{}bad", build_event_line(3));
    for (name, coding) in [
        ("gzip", "gzip"),
        ("X-GZip", "gzip"),
        ("identity, gzip", "gzip"),
        ("zstd", "zstd"),
        ("ZSTD,", "zstd"),
    ] {
        // In one member or frame, and in two; in one chunk, and in many.
        let whole = compress(coding, format!("{first_half}{second_half}").as_bytes()).await;
        let halves = [&first_half, &second_half].map(|half| compress(coding, half.as_bytes()));
        let halves = join_all(halves).await.concat();
        for content in [whole, halves] {
            for chunk_bytes in [1, 7, usize::MAX] {
                let (serving, stores) = start_service(no_wait_options());
                let body = build_chunked_body(&content, chunk_bytes);
                let (response, text) = ingest_encoded(&serving, name, body).await;
                let status = response.status();
                assert_eq!(status, StatusCode::OK, "{name} {chunk_bytes}: {text}");
                let ingested = parse_json(&text);
                assert_eq!(ingested["accepted"], 3, "{text}");
                assert_eq!(list_rejected_lines(&ingested), [2, 5], "{text}");
                assert_eq!(stores.appended().len(), 5);
            }
        }
    }
    let (serving, _) = start_service(no_wait_options());
    for plain in ["", "identity", "identity, identity"] {
        let (response, text) = ingest_encoded(&serving, plain, build_event_line(1)).await;
        assert_eq!(response.status(), StatusCode::OK, "{plain}: {text}");
    }
}

#[tokio::test]
async fn refuses_other_codings_and_lists_the_supported_ones() {
    let (serving, stores) = start_service(no_wait_options());
    for coding in [
        "br",
        "deflate",
        "compress",
        "gzip, br",
        "gzip, gzip",
        "gzip, zstd",
        "br, identity",
        "gzip;q=1",
    ] {
        let (response, text) = ingest_encoded(&serving, coding, build_event_line(1)).await;
        let status = response.status();
        assert_eq!(
            status,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "{coding}: {text}"
        );
        assert_eq!(response.headers()["accept-encoding"], "gzip, zstd");
        assert!(text.contains("gzip, zstd"), "{text}");
        assert!(text.contains("/problems/encoded-body"), "{text}");
    }
    // Two headers count as one list.
    let request = Request::post(INGEST)
        .header("content-encoding", "gzip")
        .header("content-encoding", "zstd");
    let (response, _) = send(&serving, request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    // Other bodies may not be compressed.
    for coding in ["gzip", "br"] {
        let request = Request::patch("/api/v1/applications/1").header("content-encoding", coding);
        let (response, text) = send(&serving, request.body(Body::from("{}")).unwrap()).await;
        let status = response.status();
        assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{text}");
        assert_eq!(response.headers()["accept-encoding"], "identity");
    }
    assert!(stores.appended().is_empty());
}

#[tokio::test]
async fn refuses_bodies_that_are_too_large_or_encoded() {
    let (serving, stores) = start_service(ServingOptions {
        body_bytes_max: 100,
        ..no_wait_options()
    });
    let announced = Request::post(INGEST).header("content-length", 101);
    let (response, text) = send(&serving, announced.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE, "{text}");
    let lines = (0..3).map(|n| Ok::<_, io::Error>(build_event_line(n)));
    let (response, text) = ingest(&serving, Body::from_stream(stream::iter(lines))).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE, "{text}");
    assert!(text.contains("\"accepted\":0"), "{text}");
    let (response, _) = ingest_encoded(&serving, "br", Body::empty()).await;
    assert_eq!(response.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let broken = stream::iter([Err::<String, _>(io::Error::other("gone"))]);
    let (response, text) = ingest(&serving, Body::from_stream(broken)).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{text}");
    assert!(stores.appended().is_empty());
}

/// The response is sent before the rest of the body arrives, and at most the limit is in memory.
#[tokio::test]
async fn refuses_a_body_that_expands_beyond_the_limit() {
    let (serving, stores) = start_service(ServingOptions {
        body_bytes_max: 3 << 20,
        ..no_wait_options()
    });
    let blanks = vec![b' '; 8 << 20];
    for coding in ["gzip", "zstd"] {
        let bomb = compress(coding, &blanks).await;
        assert!(bomb.len() < 1 << 20, "{coding}: {}", bomb.len());
        // Empty members count with their compressed size.
        let empty_member = compress(coding, b"").await;
        let empty_members = empty_member.repeat((3 << 20) / empty_member.len() + 1);
        for (content, chunk_bytes) in [(bomb, usize::MAX), (empty_members, 64 << 10)] {
            let body = build_endless_body(&content, chunk_bytes);
            let (response, text) = ingest_encoded(&serving, coding, body).await;
            let status = response.status();
            assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{coding}: {text}");
        }
    }
    assert!(stores.appended().len() < 2, "no more than one line");
}

#[tokio::test]
async fn refuses_a_truncated_compressed_body() {
    let (serving, _) = start_service(no_wait_options());
    for coding in ["gzip", "zstd"] {
        let member = compress(coding, build_event_line(1).as_bytes()).await;
        let two_members = [member.as_slice(), &member].concat();
        for length in 0..=two_members.len() {
            let body = two_members[..length].to_vec();
            let (response, text) = ingest_encoded(&serving, coding, body).await;
            let is_whole = length == member.len() || length == two_members.len();
            let expected = if is_whole {
                StatusCode::OK
            } else {
                StatusCode::BAD_REQUEST
            };
            assert_eq!(response.status(), expected, "{coding} {length}: {text}");
            if !is_whole {
                assert!(text.contains(coding), "{text}");
                assert!(text.contains("/problems/bad-body"), "{text}");
            }
        }
        let with_garbage = [member.as_slice(), b"garbage"].concat();
        for invalid in [with_garbage, build_event_line(1).into_bytes()] {
            let (response, text) = ingest_encoded(&serving, coding, invalid).await;
            assert_eq!(
                response.status(),
                StatusCode::BAD_REQUEST,
                "{coding}: {text}"
            );
        }
        // A broken connection is reported as such, not as an invalid stream.
        let broken = stream::iter([Ok(member), Err(io::Error::other("gone"))]);
        let body = Body::from_stream(broken);
        let (response, text) = ingest_encoded(&serving, coding, body).await;
        assert_eq!(
            response.status(),
            StatusCode::BAD_REQUEST,
            "{coding}: {text}"
        );
        assert!(text.contains("ended early"), "{text}");
        assert!(text.contains("\"accepted\":"), "{text}");
    }
}

/// A frame decides how much memory its decoder needs. The larger window here needs 128 MiB.
#[tokio::test]
async fn refuses_a_frame_with_a_large_window() {
    let (serving, _) = start_service(no_wait_options());
    let content = build_event_line(1).repeat(10);
    for (window_log, expected) in [(23, StatusCode::OK), (27, StatusCode::BAD_REQUEST)] {
        let params = [CParameter::window_log(window_log)];
        let content = content.as_bytes();
        let mut encoder = ZstdEncoder::with_quality_and_params(content, Level::Default, &params);
        let mut body = Vec::new();
        encoder.read_to_end(&mut body).await.unwrap();
        let (response, text) = ingest_encoded(&serving, "zstd", body).await;
        assert_eq!(response.status(), expected, "{window_log}: {text}");
    }
}

/// A body that never pauses for long and never ends must release its permit.
#[tokio::test]
async fn stops_waiting_for_a_trickling_body() {
    // The head of a gzip member with a file name, which the following blanks continue.
    let gzip_head: &[u8] = b"\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\xff";
    for (coding, beginning) in [("identity", &b" "[..]), ("gzip", gzip_head)] {
        let (serving, _) = start_service(ServingOptions {
            body_idle_timeout_ms: 300,
            body_bytes_per_second_min: 100_000,
            ..no_wait_options()
        });
        // Without a limit it would end after a minute.
        let trickle = stream::iter(0..6_000).then(|_| async {
            sleep(Duration::from_millis(10)).await;
            Ok::<_, io::Error>(b" ".to_vec())
        });
        let beginning = stream::iter([Ok(beginning.to_vec())]);
        let body = Body::from_stream(beginning.chain(trickle).boxed());
        let (response, text) = ingest_encoded(&serving, coding, body).await;
        assert_eq!(
            response.status(),
            StatusCode::REQUEST_TIMEOUT,
            "{coding}: {text}"
        );
        assert!(text.contains("100000 bytes a second"), "{text}");
    }
}

#[tokio::test]
async fn limits_concurrent_ingest_requests() {
    let (serving, stores) = start_service(ServingOptions {
        ingests_max: 1,
        ..no_wait_options()
    });
    let (sender, receiver) = unbounded::<io::Result<String>>();
    let mut first = pin!(ingest(&serving, Body::from_stream(receiver)));
    sender.unbounded_send(Ok(build_event_line(1))).unwrap();
    let is_finished = timeout(Duration::from_millis(50), &mut first).await.is_ok();
    assert!(!is_finished, "it waits for the rest of its body");
    let (response, text) = ingest(&serving, build_event_line(2)).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{text}");
    assert_eq!(response.headers()["retry-after"], "1");
    assert!(text.contains("too-many-writers"), "{text}");
    drop(sender);
    let (response, text) = first.await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    let (response, text) = ingest(&serving, build_event_line(2)).await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    assert_eq!(stores.appended().len(), 2);
}

/// A key that has used its share, from any address, does not block other keys.
#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test ends with its runtime, and its tasks with it"
)]
async fn limits_the_concurrent_bodies_of_a_key() {
    let (serving, stores) = start_service(ServingOptions {
        ingests_max: 8,
        ingests_per_key_max: 1,
        key_requests_per_second_max: 0,
        stranger_requests_per_second_max: 0,
        ..no_wait_options()
    });
    let [busy_key, other_key] = [(); 2].map(|()| stores.keys.create("ingest", None));
    let request_with = |key: &Token, peer: &str, body: Body| {
        let peer: SocketAddr = peer.parse().unwrap();
        Request::post(INGEST)
            .extension(Peer(peer))
            .header("authorization", format!("Bearer {}", key.reveal()))
            .body(body)
            .unwrap()
    };
    let (sender, receiver) = unbounded::<io::Result<String>>();
    sender.unbounded_send(Ok(build_event_line(1))).unwrap();
    let first = request_with(&busy_key, "203.0.113.1:1", Body::from_stream(receiver));
    let router = serving.router();
    let first = tokio::spawn(async move { router.oneshot(first).await.unwrap().status() });
    let mut attempts = 0;
    // Until the first request has its permit, the second one is accepted.
    let refusal = loop {
        let second = request_with(&busy_key, "203.0.113.2:1", Body::from(build_event_line(2)));
        let (response, text) = send(&serving, second).await;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            break text;
        }
        attempts += 1;
        assert!(attempts < 1_000, "{text}");
        tokio::task::yield_now().await;
    };
    assert!(refusal.contains("1 bodies with this key"), "{refusal}");
    let third = request_with(&other_key, "203.0.113.1:1", Body::from(build_event_line(2)));
    let (response, text) = send(&serving, third).await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    drop(sender);
    assert_eq!(first.await.unwrap(), StatusCode::OK);
}

/// A client that sends its whole body before it reads still receives the response.
#[tokio::test]
async fn answers_a_refused_body() {
    let (serving, _) = start_service(ServingOptions {
        body_bytes_max: 1_000,
        ..no_wait_options()
    });
    let server = RunningServer::start(serving).await;
    let body = "x".repeat(16 << 20);
    let sized = format!("content-length: {}\r\n\r\n", body.len());
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", body.len());
    let encoded = format!("content-encoding: br\r\n{sized}");
    for (path, headers, end, status) in [
        ("ingest/plays", &sized, "", 413),
        ("ingest/plays", &chunked, "\r\n0\r\n\r\n", 413),
        ("ingest/plays", &encoded, "", 415),
        ("ingest/nothing", &sized, "", 404),
        ("applications/1/authorizations", &sized, "", 413),
    ] {
        let head = format!("POST /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close");
        let sent = format!("{head}\r\n{headers}{body}{end}");
        let response = server.exchange(&sent).await;
        let status_line = format!("HTTP/1.1 {status} ");
        assert!(response.starts_with(&status_line), "{response}");
        assert!(response.contains("/problems/"), "{response}");
    }
}
