//! Ingestion over HTTP: compression, limits, and rejected lines.

use std::io;
use std::net::SocketAddr;

use async_compression::tokio::bufread::{GzipEncoder, ZstdEncoder};
use async_compression::zstd::CParameter;
use futures::channel::mpsc::unbounded;
use futures::stream::{self, StreamExt};

use super::*;
use crate::http::Peer;

const INGEST: &str = "/api/v1/ingest/plays";

async fn compressed(coding: &str, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = match coding {
        "gzip" => GzipEncoder::new(content).read_to_end(&mut bytes).await,
        _ => ZstdEncoder::new(content).read_to_end(&mut bytes).await,
    };
    read.unwrap();
    bytes
}

fn encoded(coding: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post(INGEST).header("content-encoding", coding);
    request.body(body.into()).unwrap()
}

/// A body in chunks, with or without an end.
fn chunked(content: &[u8], size: usize, ends: bool) -> Body {
    let chunks = content
        .chunks(size)
        .map(<[u8]>::to_vec)
        .map(Ok::<_, io::Error>);
    let chunks = stream::iter(chunks.collect::<Vec<_>>());
    match ends {
        true => Body::from_stream(chunks),
        false => Body::from_stream(chunks.chain(stream::pending())),
    }
}

#[tokio::test]
async fn ingests_compressed_bodies() {
    let (one, two) = (
        format!("{}bad\n{}", line(1), line(2)),
        format!("{}bad", line(3)),
    );
    for (name, coding) in [
        ("gzip", "gzip"),
        ("X-GZip", "gzip"),
        ("identity, gzip", "gzip"),
        ("zstd", "zstd"),
        ("ZSTD,", "zstd"),
    ] {
        // In one member or frame, and in two; in one chunk, and in many.
        let whole = compressed(coding, format!("{one}{two}").as_bytes()).await;
        let parts = [one.as_bytes(), two.as_bytes()].map(|part| compressed(coding, part));
        let parts = futures::future::join_all(parts).await.concat();
        for body in [whole, parts] {
            for size in [1, 7, usize::MAX] {
                let (serving, world) = world(no_wait_options());
                let sent = encoded(name, chunked(&body, size.min(body.len()), true));
                let (response, text) = send(&serving, sent).await;
                assert_eq!(response.status(), StatusCode::OK, "{name} {size}: {text}");
                let ingested: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(ingested["accepted"], 3, "{text}");
                assert_eq!(ingested["rejected"][0]["line"], 2, "{text}");
                assert_eq!(ingested["rejected"][1]["line"], 5, "{text}");
                assert_eq!(world.appended().len(), 5);
            }
        }
    }
    let (serving, _) = world(no_wait_options());
    for plain in ["", "identity", "identity, identity"] {
        let (response, text) = send(&serving, encoded(plain, line(1))).await;
        assert_eq!(response.status(), StatusCode::OK, "{plain}: {text}");
    }
}

#[tokio::test]
async fn refuses_other_codings_and_lists_the_supported_ones() {
    let (serving, world) = world(no_wait_options());
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
        let (response, text) = send(&serving, encoded(coding, line(1))).await;
        assert_eq!(
            response.status(),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "{coding}: {text}"
        );
        assert_eq!(response.headers()["accept-encoding"], "gzip, zstd");
        assert!(
            text.contains("gzip, zstd") && text.contains("/problems/encoded-body"),
            "{text}"
        );
    }
    // Two headers count as one list.
    let twice = Request::post(INGEST)
        .header("content-encoding", "gzip")
        .header("content-encoding", "zstd");
    let (response, _) = send(&serving, twice.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    for coding in ["gzip", "br"] {
        let small = Request::patch("/api/v1/applications/1").header("content-encoding", coding);
        let (response, text) = send(&serving, small.body(Body::from("{}")).unwrap()).await;
        assert_eq!(
            response.status(),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "{text}"
        );
        assert_eq!(response.headers()["accept-encoding"], "identity");
    }
    assert!(world.appended().is_empty());
}

/// The response is sent before the rest of the body arrives, and at most the limit is in memory.
#[tokio::test]
async fn refuses_a_body_that_expands_beyond_the_limit() {
    let (serving, world) = world(ServingOptions {
        body_bytes_max: 3 << 20,
        ..no_wait_options()
    });
    let bomb = vec![b' '; 8 << 20];
    for coding in ["gzip", "zstd"] {
        let body = compressed(coding, &bomb).await;
        assert!(body.len() < 1 << 20, "{coding}: {}", body.len());
        let (response, text) =
            send(&serving, encoded(coding, chunked(&body, body.len(), false))).await;
        assert_eq!(
            response.status(),
            StatusCode::PAYLOAD_TOO_LARGE,
            "{coding}: {text}"
        );
        // Empty members count with their compressed size.
        let empty = compressed(coding, b"").await;
        let many = empty.repeat((3 << 20) / empty.len() + 1);
        let (response, text) =
            send(&serving, encoded(coding, chunked(&many, 64 << 10, false))).await;
        assert_eq!(
            response.status(),
            StatusCode::PAYLOAD_TOO_LARGE,
            "{coding}: {text}"
        );
    }
    assert!(world.appended().len() < 2, "no more than one line");
}

#[tokio::test]
async fn refuses_a_truncated_compressed_body() {
    let (serving, _) = world(no_wait_options());
    for coding in ["gzip", "zstd"] {
        let one = compressed(coding, line(1).as_bytes()).await;
        let two = [one.as_slice(), &one].concat();
        for length in 0..=two.len() {
            let (response, text) = send(&serving, encoded(coding, two[..length].to_vec())).await;
            let is_whole = length == one.len() || length == two.len();
            let expected = if is_whole {
                StatusCode::OK
            } else {
                StatusCode::BAD_REQUEST
            };
            assert_eq!(response.status(), expected, "{coding} {length}: {text}");
            if !is_whole {
                assert!(
                    text.contains(coding) && text.contains("/problems/bad-body"),
                    "{text}"
                );
            }
        }
        for wrong in [[one.as_slice(), b"garbage"].concat(), line(1).into_bytes()] {
            let (response, text) = send(&serving, encoded(coding, wrong)).await;
            assert_eq!(
                response.status(),
                StatusCode::BAD_REQUEST,
                "{coding}: {text}"
            );
        }
        // A broken connection is reported as such, not as an invalid stream.
        let broken = stream::iter([Ok(one), Err(io::Error::other("gone"))]);
        let (response, text) = send(&serving, encoded(coding, Body::from_stream(broken))).await;
        assert_eq!(
            response.status(),
            StatusCode::BAD_REQUEST,
            "{coding}: {text}"
        );
        assert!(
            text.contains("ended early") && text.contains("\"accepted\":"),
            "{text}"
        );
    }
}

/// A frame decides how much memory its decoder needs: here 128 MiB.
#[tokio::test]
async fn refuses_a_frame_with_a_large_window() {
    let (serving, _) = world(no_wait_options());
    let content = line(1).repeat(10);
    for (window, status) in [(23, StatusCode::OK), (27, StatusCode::BAD_REQUEST)] {
        let level = async_compression::Level::Default;
        let window = [CParameter::window_log(window)];
        let mut encoder = ZstdEncoder::with_quality_and_params(content.as_bytes(), level, &window);
        let mut body = Vec::new();
        encoder.read_to_end(&mut body).await.unwrap();
        let (response, text) = send(&serving, encoded("zstd", body)).await;
        assert_eq!(response.status(), status, "{window:?}: {text}");
    }
}

/// A body that never pauses for long and never ends must release its permit.
#[tokio::test]
async fn stops_waiting_for_a_trickling_body() {
    for coding in ["identity", "gzip"] {
        let (serving, _) = world(ServingOptions {
            body_idle_timeout_ms: 300,
            body_bytes_per_second_min: 100_000,
            ..no_wait_options()
        });
        // Without a limit it would end after a minute.
        let trickle = stream::iter(0..6_000).then(|_| async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok::<_, io::Error>(b" ".to_vec())
        });
        // The head of a gzip member with an endless file name of blanks.
        let head = b"\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\xff".to_vec();
        let begin = if coding == "gzip" {
            head
        } else {
            b" ".to_vec()
        };
        let begin = stream::iter([Ok(begin)]);
        let body = Body::from_stream(begin.chain(trickle).boxed());
        let (response, text) = send(&serving, encoded(coding, body)).await;
        assert_eq!(
            response.status(),
            StatusCode::REQUEST_TIMEOUT,
            "{coding}: {text}"
        );
        assert!(text.contains("100000 bytes a second"), "{text}");
    }
}

fn from_address(from: &str, body: impl Into<Body>) -> Request<Body> {
    let peer: SocketAddr = from.parse().unwrap();
    let request = Request::post(INGEST).extension(Peer(peer));
    request.body(body.into()).unwrap()
}

/// A key that has used its share, from any address, does not block other keys.
#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test ends with its runtime, and its tasks with it"
)]
async fn limits_the_concurrent_bodies_of_a_key() {
    let (serving, world) = world(ServingOptions {
        ingests_max: 8,
        ingests_per_key_max: 1,
        key_requests_per_second_max: 0,
        stranger_requests_per_second_max: 0,
        ..no_wait_options()
    });
    let [one, other] = [(); 2].map(|()| world.keys.create("ingest", None).reveal().to_owned());
    let post = |key: &str, from: &str, body: Body| {
        let mut request = from_address(from, body);
        let key = format!("Bearer {key}").parse().unwrap();
        request.headers_mut().insert("authorization", key);
        request
    };
    let (sender, receiver) = unbounded::<io::Result<String>>();
    sender.unbounded_send(Ok(line(1))).unwrap();
    let first = post(&one, "203.0.113.1:1", Body::from_stream(receiver));
    let router = serving.router();
    let first = tokio::spawn(async move { router.oneshot(first).await.unwrap().status() });
    let mut tries = 0;
    // Until the first one has its permit.
    let refused = loop {
        let second = post(&one, "203.0.113.2:1", Body::from(line(2)));
        let (response, text) = send(&serving, second).await;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            break text;
        }
        tries += 1;
        assert!(tries < 1_000, "{text}");
        tokio::task::yield_now().await;
    };
    assert!(refused.contains("1 bodies with this key"), "{refused}");
    let third = post(&other, "203.0.113.1:1", Body::from(line(2)));
    let (response, text) = send(&serving, third).await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    drop(sender);
    assert_eq!(first.await.unwrap(), StatusCode::OK);
}

/// A client that sends its whole body before it reads still receives the response.
#[tokio::test]
async fn answers_a_refused_body() {
    let (address, shutdown, _tasks) = start_server(ServingOptions {
        body_bytes_max: 1_000,
        ..no_wait_options()
    })
    .await;
    let body = "x".repeat(16 << 20);
    let sized = format!("content-length: {}\r\n\r\n", body.len());
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", body.len());
    let encoded = format!("content-encoding: br\r\n{sized}");
    for (path, head, end, status) in [
        ("ingest/plays", &sized, "", 413),
        ("ingest/plays", &chunked, "\r\n0\r\n\r\n", 413),
        ("ingest/plays", &encoded, "", 415),
        ("ingest/nothing", &sized, "", 404),
        ("applications/1/authorizations", &sized, "", 413),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}"
        );
        let request = format!("{head}{body}{end}");
        let answer = exchange(&mut stream, &request);
        let answer = tokio::time::timeout(Duration::from_secs(20), answer).await;
        let answer = answer.expect("an answer in time");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        assert!(answer.contains("/problems/"), "{answer}");
    }
    shutdown.cancel();
}

#[tokio::test]
async fn ingests_lines_and_reports_invalid_ones() {
    let (serving, world) = world(no_wait_options());
    let body = format!("{}\n{{\"a\":1}}\r\n{}nonsense", line(1), line(2));
    let (response, text) = send(
        &serving,
        request(Method::POST, "/api/v1/ingest/plays", body),
    )
    .await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    let ingested: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&ingested["accepted"], &ingested["rejected_count"]),
        (&json!(2), &json!(2))
    );
    let lines: Vec<&Value> = ingested["rejected"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| &r["line"])
        .collect();
    assert_eq!(lines, [&json!(3), &json!(5)]);
    assert_eq!(world.appended().len(), 4);
    let (status, _) = problem(&serving, Method::POST, "/api/v1/ingest/likes").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn numbers_the_lines_of_long_bodies() {
    let (serving, world) = world(no_wait_options());
    let mut body = String::new();
    for n in 0..40_000 {
        body.push_str(if n % 10_000 == 9_999 { "bad\n" } else { "" });
        body.push_str(&line(n));
    }
    let (_, text) = send(
        &serving,
        request(Method::POST, "/api/v1/ingest/plays", body),
    )
    .await;
    let ingested: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(ingested["accepted"], 40_000);
    let lines: Vec<i64> = ingested["rejected"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["line"].as_i64().unwrap())
        .collect();
    assert_eq!(lines, [10_000, 20_001, 30_002, 40_003]);
    assert_eq!(world.appended().len(), 40_004);
}

#[tokio::test]
async fn an_endless_line_is_one_dead_letter() {
    let (serving, world) = world(no_wait_options());
    let halves = |line: String| {
        let (head, tail) = line.split_at(line.len() / 2);
        [head.to_owned(), tail.to_owned()].map(Ok::<_, io::Error>)
    };
    let mut body = Vec::from(halves(line(1)));
    for _ in 0..5 {
        body.push(Ok("x".repeat(700_000)));
    }
    body.push(Ok("yy\n".to_owned()));
    body.extend(halves(line(2)));
    let body = Body::from_stream(stream::iter(body));
    let uri = "/api/v1/ingest/plays";
    let (response, text) = send(&serving, request(Method::POST, uri, body)).await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    let ingested: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(ingested["accepted"], 2, "{text}");
    assert_eq!(ingested["rejected"][0]["line"], 2, "{text}");
    assert_eq!(ingested["rejected_count"], 1, "{text}");
    assert_eq!(world.appended().len(), 3);
}

#[tokio::test]
async fn blanks_count_toward_the_length_of_a_line() {
    let blanks = " ".repeat(2 << 20);
    let event = line(1);
    let event = event.trim();
    for (long, reason) in [
        (format!("{blanks}{event}\n"), "too long"),
        (format!("{event}{blanks}garbage}}\n"), "too long"),
        (format!("{blanks}bad\n"), "too long"),
        (blanks.clone(), "too long"),
    ] {
        // In one chunk, and in many.
        for size in [usize::MAX, 300_000] {
            let (serving, world) = world(no_wait_options());
            let body = format!("{}{long}", line(2));
            let chunks: Vec<_> = body.as_bytes().chunks(size.min(body.len())).collect();
            let chunks = chunks
                .into_iter()
                .map(|chunk| Ok::<_, io::Error>(chunk.to_vec()));
            let body = Body::from_stream(stream::iter(chunks.collect::<Vec<_>>()));
            let request = request(Method::POST, "/api/v1/ingest/plays", body);
            let (_, text) = send(&serving, request).await;
            let ingested: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(ingested["accepted"], 1, "{text}");
            let found = ingested["rejected"][0]["reason"]
                .as_str()
                .unwrap_or_default();
            assert!(found.contains(reason), "{text}");
            assert_eq!(world.appended().len(), 2);
        }
    }
}
