//! Slow, idle and greedy clients over loopback, while another client is served.

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::routing::{any, get, post};
use hyper::client::conn::http2;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;

const CONNECTIONS_MAX: usize = 8;
/// Time limit of each wait of a test.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Exceeds the buffers between server and client.
static LARGE: [u8; 16 << 20] = [b'x'; 16 << 20];
/// Bytes that a slow client reads at once, and its pause after that.
const READ_BYTES: usize = 512 << 10;
const PAUSE: Duration = Duration::from_millis(250);
/// Response of the handler that refuses bodies.
const REFUSED: &str = "refused";

struct RunningServer {
    address: SocketAddr,
    shutdown: CancellationToken,
    tasks: JoinSet<Result<()>>,
}

fn router() -> Router {
    let refuse = || async { (StatusCode::UNAUTHORIZED, REFUSED) };
    Router::new()
        .route("/", get(|| async { "here" }))
        .route("/large", get(|| async { Bytes::from_static(&LARGE) }))
        .route("/echo", post(|body: Body| async { body }))
        .route("/refused", any(refuse))
}

async fn start() -> RunningServer {
    start_with(|_| {}).await
}

async fn start_with(change: impl FnOnce(&mut Server)) -> RunningServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let options = ServingOptions {
        connections_max: CONNECTIONS_MAX,
        ..ServingOptions::default()
    };
    let shutdown = CancellationToken::new();
    let mut server = Server::new(router(), &options);
    change(&mut server);
    let mut tasks = JoinSet::new();
    tasks.spawn(server.run(listener, shutdown.clone()));
    RunningServer {
        address,
        shutdown,
        tasks,
    }
}

impl RunningServer {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address)
            .await
            .expect("a connection")
    }

    /// Fails unless another client is answered.
    async fn serves_others(&self) {
        let mut stream = self.connect_from("127.0.0.2:0").await;
        assert_eq!(send_request(&mut stream).await, Outcome::Answer);
    }

    async fn connect_from(&self, address: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .set_recv_buffer_size(64 << 10)
            .expect("a small buffer");
        let address = address.parse().expect("an address");
        socket.bind(address).expect("an address of this machine");
        socket.connect(self.address).await.expect("a connection")
    }

    async fn end(mut self) {
        self.shutdown.cancel();
        let ended = timeout(TEST_TIMEOUT, self.tasks.join_next()).await;
        let ended = ended.expect("the end in time").expect("a task");
        ended.expect("no panic").expect("no error");
    }
}

/// The outcome of a request on a connection.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Answer,
    End,
}

async fn send_request(stream: &mut TcpStream) -> Outcome {
    let request = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n";
    if stream.write_all(request).await.is_err() {
        return Outcome::End;
    }
    let mut answer = Vec::new();
    while !answer.ends_with(b"here") {
        let read = timeout(TEST_TIMEOUT, stream.read_buf(&mut answer)).await;
        match read.expect("an answer or an end in time") {
            Ok(0) | Err(_) => return Outcome::End,
            Ok(_) => {}
        }
    }
    Outcome::Answer
}

/// Sends a request with the first half of its body.
async fn send_half(running: &RunningServer) -> TcpStream {
    let mut stream = running.connect().await;
    let head = "POST /echo HTTP/1.1\r\nhost: here\r\ncontent-length: 8\r\n\r\nhalf";
    send(&mut stream, head.as_bytes()).await;
    stream
}

/// Sends the rest of the body, and reads the response.
async fn finish_body(stream: &mut TcpStream) {
    send(stream, b"done").await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"halfdone") {
        let read = timeout(TEST_TIMEOUT, stream.read_buf(&mut answer)).await;
        let read = read.expect("an answer in time").expect("an answer");
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
    }
}

async fn send(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.expect("sent bytes");
}

/// An HTTP/2 request of a client whose stream windows are 0.
fn request_with_closed_window(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).expect("a short path");
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // Settings: the window of each stream is 0.
    bytes.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
    // Headers of stream 1, whole: GET, http, the path, and the authority.
    bytes.extend([0, 0, 15 + length, 1, 5, 0, 0, 0, 1]);
    bytes.extend([0x82, 0x86, 0x04, length]);
    bytes.extend(path.as_bytes());
    bytes.extend(b"\x41\x09localhost");
    bytes
}

/// A frame that enlarges the window of a stream, or of the connection for stream 0.
fn window_update(stream: u8, bytes: usize) -> Vec<u8> {
    let bytes = u32::try_from(bytes).expect("a window").to_be_bytes();
    let head = [0, 0, 4, 8, 0, 0, 0, 0, stream];
    [head.as_slice(), &bytes].concat()
}

/// Reads a response slowly. Returns the number of bytes until the end.
async fn read_slowly(mut stream: TcpStream) -> usize {
    let head = "GET /large HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n";
    send(&mut stream, head.as_bytes()).await;
    let (mut received_bytes, mut buffer) = (0, vec![0; READ_BYTES]);
    loop {
        let pause_at = received_bytes + READ_BYTES;
        while received_bytes < pause_at {
            let read = timeout(
                TEST_TIMEOUT,
                stream.read(&mut buffer[..pause_at - received_bytes]),
            )
            .await;
            match read.expect("in time") {
                Ok(0) | Err(_) => return received_bytes,
                Ok(read) => received_bytes += read,
            }
        }
        sleep(PAUSE).await;
    }
}

/// As [`read_slowly`] by HTTP/2. Also returns whether the response is complete.
async fn read_slowly_by_http2(mut stream: TcpStream) -> (usize, bool) {
    send(&mut stream, &request_with_closed_window("/large")).await;
    let (mut received_bytes, mut frames) = (0, Vec::new());
    loop {
        let pause_at = received_bytes + READ_BYTES.min(LARGE.len() - received_bytes);
        send(
            &mut stream,
            &[window_update(0, READ_BYTES), window_update(1, READ_BYTES)].concat(),
        )
        .await;
        while received_bytes < pause_at {
            let read = timeout(TEST_TIMEOUT, stream.read_buf(&mut frames)).await;
            if matches!(read.expect("in time"), Ok(0) | Err(_)) {
                return (received_bytes, false);
            }
            while let [a, b, c, kind, flags, ..] = *frames {
                let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).expect("a length");
                if frames.len() < length + 9 {
                    break;
                }
                frames.drain(..length + 9);
                received_bytes += if kind == 0 { length } else { 0 };
                if kind == 0 && flags & 1 == 1 {
                    return (received_bytes, true);
                }
            }
        }
        sleep(PAUSE).await;
    }
}

/// Reads until the connection ends. Returns the number of bytes.
async fn read_until_end(stream: &mut TcpStream) -> usize {
    let (mut received_bytes, mut buffer) = (0, vec![0; READ_BYTES]);
    loop {
        let read = timeout(TEST_TIMEOUT, stream.read(&mut buffer)).await;
        match read.expect("an end in time") {
            Ok(0) | Err(_) => return received_bytes,
            Ok(read) => received_bytes += read,
        }
    }
}

/// Returns whether HTTP/2 frames include the head of a response.
fn has_response_head(mut frames: &[u8]) -> bool {
    while let [a, b, c, kind, ..] = *frames {
        if kind == 1 {
            return true;
        }
        let length = u32::from_be_bytes([0, a, b, c]);
        let next = usize::try_from(length).expect("a length") + 9;
        frames = frames.get(next..).unwrap_or_default();
    }
    false
}

/// Reads HTTP/2 frames until the head of a response arrives.
async fn read_response_head(stream: &mut TcpStream) {
    let mut frames = Vec::new();
    while !has_response_head(&frames) {
        let read = timeout(TEST_TIMEOUT, stream.read_buf(&mut frames)).await;
        assert!(read.expect("a head in time").expect("frames") > 0);
    }
}

#[tokio::test]
async fn a_slow_client_receives_its_whole_response() {
    let running = start_with(|server| {
        server.timeouts.idle = Duration::from_secs(4);
    })
    .await;
    let slow = read_slowly(running.connect_from("127.0.0.3:0").await);
    let slow_by_http2 = read_slowly_by_http2(running.connect_from("127.0.0.4:0").await);
    let (received_bytes, by_http2, ()) = tokio::join!(slow, slow_by_http2, running.serves_others());
    assert!(received_bytes > LARGE.len(), "{received_bytes}");
    assert_eq!(by_http2, (LARGE.len(), true));
    running.end().await;
}

#[tokio::test]
async fn closes_a_connection_with_a_stalled_response() {
    let running = start_with(|server| {
        server.timeouts.idle = Duration::from_secs(1);
    })
    .await;
    let mut by_http1 = running.connect_from("127.0.0.3:0").await;
    send(&mut by_http1, b"GET /large HTTP/1.1\r\nhost: here\r\n\r\n").await;
    let mut by_http2 = running.connect().await;
    send(&mut by_http2, &request_with_closed_window("/")).await;
    read_response_head(&mut by_http2).await;
    running.serves_others().await;
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let pinged = async {
        while by_http2.write_all(&ping).await.is_ok() {
            sleep(PAUSE).await
        }
    };
    timeout(TEST_TIMEOUT, pinged)
        .await
        .expect("an end in spite of pings");
    // Reading earlier would count as progress.
    sleep(Duration::from_secs(3)).await;
    let received_bytes = read_until_end(&mut by_http1).await;
    assert!(received_bytes < LARGE.len(), "{received_bytes}");
    running.end().await;
}

#[tokio::test]
async fn the_head_timeout_closes_silent_connections() {
    let running = start_with(|server| {
        server.timeouts.head = Duration::from_millis(500);
    })
    .await;
    let mut open_streams = Vec::new();
    for partial_request in ["", "PRI * HT", "GET / HTTP/1.1\r\nhost:"].repeat(CONNECTIONS_MAX) {
        let mut stream = running.connect().await;
        send(&mut stream, partial_request.as_bytes()).await;
        open_streams.push(stream);
    }
    running.serves_others().await;
    assert_eq!(read_until_end(&mut open_streams[0]).await, 0);
    running.end().await;
}

#[tokio::test]
async fn the_head_timeout_closes_slow_connections() {
    let running = start_with(|server| {
        server.timeouts.head = Duration::from_millis(500);
    })
    .await;
    // For the first request of a connection, and for a later one.
    for has_prior_request in [false, true] {
        let mut stream = running.connect().await;
        if has_prior_request {
            assert_eq!(send_request(&mut stream).await, Outcome::Answer);
        }
        let slow = async {
            send(&mut stream, b"GET / HTTP/1.1\r\nhost: ").await;
            while stream.write_all(b"x").await.is_ok() {
                sleep(PAUSE / 5).await;
            }
        };
        timeout(TEST_TIMEOUT, slow).await.expect("an end in time");
        running.serves_others().await;
    }
    running.end().await;
}

#[tokio::test]
async fn closes_idle_connections_at_the_connection_limit() {
    let running = start().await;
    // A request in flight is not closed.
    let mut sending = send_half(&running).await;
    let mut open_streams = Vec::new();
    for _ in 0..2 * CONNECTIONS_MAX {
        let mut stream = running.connect().await;
        assert_eq!(send_request(&mut stream).await, Outcome::Answer);
        open_streams.push(stream);
    }
    assert_eq!(send_request(&mut open_streams[0]).await, Outcome::End);
    finish_body(&mut sending).await;
    assert_eq!(send_request(&mut sending).await, Outcome::Answer);
    running.end().await;
}

#[tokio::test]
async fn limits_the_connections_of_an_address() {
    let running = start_with(|server| server.is_local = |_| false).await;
    let mut greedy = Vec::new();
    for _ in 0..200 {
        greedy.push(running.connect_from("127.0.0.3:0").await);
    }
    running.serves_others().await;
    assert_eq!(send_request(&mut greedy[0]).await, Outcome::Answer);
    for stream in &mut greedy[1..] {
        assert_eq!(send_request(stream).await, Outcome::End);
    }
    drop(greedy);
    let connect_again = async {
        while send_request(&mut running.connect_from("127.0.0.3:0").await).await == Outcome::End {
            sleep(PAUSE).await;
        }
    };
    timeout(TEST_TIMEOUT, connect_again)
        .await
        .expect("a free share");
    running.end().await;
}

#[test]
fn the_share_excludes_this_machine_and_trusted_proxies() {
    let options = ServingOptions {
        trusted_proxies: vec!["192.0.2.0/24".parse().expect("a network")],
        ..ServingOptions::default()
    };
    let server = Server::new(router(), &options);
    let limited = |peer: &str| server.share_key(peer.parse().expect("an address"));
    for exempt in [
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "192.0.2.9",
        "::ffff:192.0.2.9",
    ] {
        assert_eq!(limited(exempt), None, "{exempt}");
    }
    assert_eq!(limited("198.51.100.1"), "198.51.100.1".parse().ok());
    // Addresses of one /64 network.
    assert_eq!(limited("2001:db8::1"), limited("2001:db8::2"));
}

/// Exceeds the buffers between client and server.
const BODY_BYTES: usize = 32 << 20;

#[tokio::test]
async fn answers_a_refused_body_by_http1() {
    let running = start().await;
    let body = vec![b'x'; BODY_BYTES];
    let sized = format!("content-length: {BODY_BYTES}\r\n\r\n");
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{BODY_BYTES:x}\r\n");
    for (head, end) in [(sized, ""), (chunked, "\r\n0\r\n\r\n")] {
        let mut stream = running.connect().await;
        let head = format!("POST /refused HTTP/1.1\r\nhost: here\r\n{head}");
        for part in [head.as_bytes(), &body, end.as_bytes()] {
            send(&mut stream, part).await;
        }
        let mut answer = Vec::new();
        while !answer.ends_with(REFUSED.as_bytes()) {
            let read = timeout(TEST_TIMEOUT, stream.read_buf(&mut answer)).await;
            assert!(read.expect("in time").expect("an answer") > 0);
        }
        assert!(answer.starts_with(b"HTTP/1.1 401 "));
        assert_eq!(
            send_request(&mut stream).await,
            Outcome::Answer,
            "the connection remains open"
        );
    }
    running.end().await;
}

#[tokio::test]
async fn answers_a_refused_body_by_http2() {
    let running = start().await;
    let stream = TokioIo::new(running.connect().await);
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), stream)
        .await
        .expect("a connection");
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    for _ in 0..2 {
        let body = Body::from(vec![b'x'; BODY_BYTES]);
        let request = Request::post("http://here/refused").body(body);
        let sent = client.send_request(request.expect("a request"));
        let response = timeout(TEST_TIMEOUT, sent).await.expect("in time");
        let response = response.expect("an answer");
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        let answer = axum::body::to_bytes(Body::new(response.into_body()), 99).await;
        assert_eq!(answer.expect("all of it"), REFUSED);
    }
    drop((client, tasks));
    running.end().await;
}

#[tokio::test]
async fn answers_and_then_closes_an_endless_body() {
    let running = start().await;
    let (mut reader, mut writer) = running.connect().await.into_split();
    let sending = async {
        let head = "POST /refused HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n";
        writer.write_all(head.as_bytes()).await.expect("sent bytes");
        let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
        while writer.write_all(chunk.as_bytes()).await.is_ok() {}
    };
    let mut answer = Vec::new();
    let reading = async {
        while reader
            .read_buf(&mut answer)
            .await
            .is_ok_and(|read| read > 0)
        {}
    };
    let exchange = async { tokio::join!(sending, reading, running.serves_others()) };
    timeout(TEST_TIMEOUT, exchange)
        .await
        .expect("an end in time");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains(REFUSED), "{answer}");
    running.end().await;
}

#[tokio::test]
async fn does_not_request_a_refused_body_with_expect_continue() {
    let running = start().await;
    let mut stream = running.connect().await;
    let head =
        "POST /refused HTTP/1.1\r\nhost: here\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    send(&mut stream, head.as_bytes()).await;
    let mut answer = String::new();
    let read = timeout(TEST_TIMEOUT, stream.read_to_string(&mut answer)).await;
    read.expect("in time").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    running.end().await;
}

#[tokio::test]
async fn shutdown_finishes_requests_in_flight() {
    let running = start().await;
    let mut sending = send_half(&running).await;
    let mut idle = running.connect().await;
    assert_eq!(send_request(&mut idle).await, Outcome::Answer);
    running.shutdown.cancel();
    assert_eq!(send_request(&mut idle).await, Outcome::End);
    finish_body(&mut sending).await;
    assert_eq!(send_request(&mut sending).await, Outcome::End);
    running.end().await;
}
