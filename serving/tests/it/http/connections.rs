//! Connections over loopback: shutdown, timeouts, and the permit of a response that is read slowly.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use futures::StreamExt;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serving::{Serving, ServingOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::start_service;
use crate::memory_stores::boards;
use crate::requests::no_wait_options;

/// Time limit of a wait for the server.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Time limit of a wait for a timeout that the test has shortened. The default timeouts are longer.
const SHORTENED_TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// A service that listens on loopback.
pub(crate) struct RunningServer {
    address: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    tasks: JoinSet<serving::Result<()>>,
}

impl RunningServer {
    pub(crate) async fn start(serving: Serving) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let token = shutdown.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { serving.run(listener, token).await });
        Self {
            address,
            shutdown,
            tasks,
        }
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes on a new connection. Returns all bytes that the server sends until it closes the
    /// connection.
    pub(super) async fn exchange(&self, sent: &str) -> String {
        exchange_on(self.connect().await, sent, WAIT_MAX).await
    }
}

/// As [`RunningServer::exchange`], on an open connection and within a time limit.
async fn exchange_on(mut stream: TcpStream, sent: &str, limit: Duration) -> String {
    let received = async {
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).await.unwrap();
        received
    };
    let received = timeout(limit, received).await;
    received.expect("the server does not close the connection in time")
}

#[tokio::test]
async fn serves_and_drains_a_socket() {
    let (serving, _) = start_service(no_wait_options());
    let mut server = RunningServer::start(serving).await;
    let request = "GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let response = server.exchange(request).await;
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
    let idle = server.connect().await;
    server.shutdown.cancel();
    let ended = timeout(SHORTENED_TIMEOUT_MAX, server.tasks.join_next()).await;
    assert!(ended.unwrap().unwrap().unwrap().is_ok());
    drop(idle);
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn disconnects_silent_and_slow_clients() {
    let (serving, _) = start_service(ServingOptions {
        head_timeout_ms: 100,
        ..no_wait_options()
    });
    let server = RunningServer::start(serving).await;
    for beginning in ["", "PRI * HT", "GET /livez HTTP/1.1\r\nhost:"] {
        exchange_on(server.connect().await, beginning, SHORTENED_TIMEOUT_MAX).await;
    }
    // A connection may idle after a request, but the head of its next request has a time limit.
    let mut stream = server.connect().await;
    let request = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut response = [0; 4_096];
    for _ in 0..2 {
        stream.write_all(request).await.unwrap();
        let length = stream.read(&mut response).await.unwrap();
        assert!(response[..length].starts_with(b"HTTP/1.1 200"));
        sleep(Duration::from_millis(300)).await;
    }
    exchange_on(stream, "GET /li", SHORTENED_TIMEOUT_MAX).await;
}

/// The body is announced, but all of it or its end is missing.
#[tokio::test]
async fn stops_waiting_for_a_missing_body() {
    let (serving, _) = start_service(ServingOptions {
        body_idle_timeout_ms: 100,
        ..no_wait_options()
    });
    let server = RunningServer::start(serving).await;
    for route in [
        "PATCH /api/v1/applications/1",
        "POST /api/v1/applications/1/authorizations",
        "POST /api/v1/ingest/plays",
    ] {
        let head = format!("{route} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n");
        for body in ["", "{\"athlete_"] {
            let sent = format!("{head}{body}");
            let response = exchange_on(server.connect().await, &sent, SHORTENED_TIMEOUT_MAX).await;
            assert!(response.starts_with("HTTP/1.1 408"), "{route}: {response}");
            assert!(
                response.contains("/problems/slow-body"),
                "{route}: {response}"
            );
        }
    }
}

#[tokio::test]
async fn a_request_keeps_its_permit_until_its_response_is_received() {
    let (serving, _) = boards::start_service(ServingOptions {
        requests_max: 1,
        ..ServingOptions::default()
    });
    let server = RunningServer::start(serving).await;
    let status = async |uri: &str| {
        let head = format!("GET {uri} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let response = server.exchange(&head).await;
        response.split(' ').nth(1).unwrap().to_owned()
    };
    // The client accepts 1 KiB at a time, so most of the response stays unsent.
    let (mut client, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1_024)
        .handshake(TokioIo::new(server.connect().await))
        .await
        .unwrap();
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let request = Request::get("http://localhost/openapi.json").body(Body::empty());
    let response = client.send_request(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(status("/openapi.json").await, "503");
    assert_eq!(status("/livez").await, "200");
    let mut chunks = Body::new(response.into_body()).into_data_stream();
    // The first chunk is not the whole response.
    chunks.next().await.unwrap().unwrap();
    assert_eq!(status("/openapi.json").await, "503");
    while let Some(chunk) = chunks.next().await {
        chunk.unwrap();
    }
    let served_again = async {
        while status("/openapi.json").await != "200" {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(WAIT_MAX, served_again).await.expect("a permit");
}
