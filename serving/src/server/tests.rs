//! Slow, silent and greedy clients over loopback, and another client that is served meanwhile.

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::routing::{any, get, post};
use hyper::client::conn::http2;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;
use crate::world::boards::serving;

const ROOM: usize = 8;
/// A test fails that waits for longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// More than the buffers between server and client hold.
static LARGE: [u8; 16 << 20] = [b'x'; 16 << 20];
/// How much a slow client takes at once, and how long it waits then.
const TAKEN_BYTES: usize = 512 << 10;
const PAUSE: Duration = Duration::from_millis(250);
/// What the handler of refused bodies answers.
const REFUSED: &str = "refused";

struct Running {
    address: SocketAddr,
    shutdown: CancellationToken,
    running: JoinSet<Result<()>>,
}

fn router() -> Router {
    let refuse = || async { (StatusCode::UNAUTHORIZED, REFUSED) };
    Router::new()
        .route("/", get(|| async { "here" }))
        .route("/large", get(|| async { Bytes::from_static(&LARGE) }))
        .route("/echo", post(|body: Body| async { body }))
        .route("/refused", any(refuse))
}

async fn running() -> Running {
    running_with(router(), |_| {}).await
}

async fn running_with(router: Router, change: impl FnOnce(&mut Server)) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let options = ServingOptions {
        connections_max: ROOM,
        ..ServingOptions::default()
    };
    let shutdown = CancellationToken::new();
    let mut server = Server::new(router, &options);
    change(&mut server);
    let mut running = JoinSet::new();
    running.spawn(server.run(listener, shutdown.clone()));
    Running {
        address,
        shutdown,
        running,
    }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address)
            .await
            .expect("a connection")
    }

    /// Fails unless another client is answered.
    async fn serves_others(&self) {
        let mut stream = self.connect_from("127.0.0.2:0").await;
        assert_eq!(ask(&mut stream).await, Came::Answer);
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
        let ended = timeout(PATIENCE, self.running.join_next()).await;
        let ended = ended.expect("it ends in time").expect("it runs");
        ended.expect("it ends").expect("without an error");
    }
}

/// What comes of asking on a connection.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    Answer,
    End,
}

async fn ask(stream: &mut TcpStream) -> Came {
    let asked = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n";
    if stream.write_all(asked).await.is_err() {
        return Came::End;
    }
    let mut answer = Vec::new();
    while !answer.ends_with(b"here") {
        let read = timeout(PATIENCE, stream.read_buf(&mut answer)).await;
        match read.expect("an answer or an end in time") {
            Ok(0) | Err(_) => return Came::End,
            Ok(_) => {}
        }
    }
    Came::Answer
}

/// Begins to send a body, of which the rest is missing.
async fn half(running: &Running) -> TcpStream {
    let mut stream = running.connect().await;
    let head = "POST /echo HTTP/1.1\r\nhost: here\r\ncontent-length: 8\r\n\r\nhalf";
    send(&mut stream, head.as_bytes()).await;
    stream
}

/// Sends the rest, and reads the answer.
async fn rest(stream: &mut TcpStream) {
    send(stream, b"done").await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"halfdone") {
        let read = timeout(PATIENCE, stream.read_buf(&mut answer)).await;
        let read = read.expect("an answer in time").expect("an answer");
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
    }
}

async fn send(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.expect("it is sent");
}

/// A request by HTTP/2 of a client that has room for no piece of any answer.
fn request_of_who_takes_nothing(path: &str) -> Vec<u8> {
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

/// Says that there is room for so much more on a stream, or on the connection for 0.
fn room(stream: u8, bytes: usize) -> Vec<u8> {
    let bytes = u32::try_from(bytes).expect("a window").to_be_bytes();
    let head = [0, 0, 4, 8, 0, 0, 0, 0, stream];
    [head.as_slice(), &bytes].concat()
}

/// Takes an answer slowly; how many bytes come until the end.
async fn taken_slowly(mut stream: TcpStream) -> usize {
    let head = "GET /large HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n";
    send(&mut stream, head.as_bytes()).await;
    let (mut taken, mut piece) = (0, vec![0; TAKEN_BYTES]);
    loop {
        let until = taken + TAKEN_BYTES;
        while taken < until {
            let read = timeout(PATIENCE, stream.read(&mut piece[..until - taken])).await;
            match read.expect("in time") {
                Ok(0) | Err(_) => return taken,
                Ok(read) => taken += read,
            }
        }
        sleep(PAUSE).await;
    }
}

/// The same by HTTP/2; how many bytes of the answer come, and whether it comes to its end.
async fn taken_slowly_by_http2(mut stream: TcpStream) -> (usize, bool) {
    send(&mut stream, &request_of_who_takes_nothing("/large")).await;
    let (mut taken, mut said) = (0, Vec::new());
    loop {
        let until = taken + TAKEN_BYTES.min(LARGE.len() - taken);
        send(
            &mut stream,
            &[room(0, TAKEN_BYTES), room(1, TAKEN_BYTES)].concat(),
        )
        .await;
        while taken < until {
            let read = timeout(PATIENCE, stream.read_buf(&mut said)).await;
            if matches!(read.expect("in time"), Ok(0) | Err(_)) {
                return (taken, false);
            }
            while let [a, b, c, kind, flags, ..] = *said {
                let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).expect("a length");
                if said.len() < length + 9 {
                    break;
                }
                said.drain(..length + 9);
                taken += if kind == 0 { length } else { 0 };
                if kind == 0 && flags & 1 == 1 {
                    return (taken, true);
                }
            }
        }
        sleep(PAUSE).await;
    }
}

/// Reads until the connection ends; how many bytes come.
async fn until_end(stream: &mut TcpStream) -> usize {
    let (mut all, mut piece) = (0, vec![0; TAKEN_BYTES]);
    loop {
        let read = timeout(PATIENCE, stream.read(&mut piece)).await;
        match read.expect("an end in time") {
            Ok(0) | Err(_) => return all,
            Ok(read) => all += read,
        }
    }
}

/// What a frame of HTTP/2 is that has a piece of an answer, and one that has its head.
const DATA: u8 = 0;
const HEAD: u8 = 1;

/// Whether one of some frames of HTTP/2 is of a kind.
fn has(mut frames: &[u8], wanted: u8) -> bool {
    while let [a, b, c, kind, ..] = *frames {
        if kind == wanted {
            return true;
        }
        let length = u32::from_be_bytes([0, a, b, c]);
        let next = usize::try_from(length).expect("a length") + 9;
        frames = frames.get(next..).unwrap_or_default();
    }
    false
}

/// Waits for a frame of HTTP/2 of a kind; with what has come before.
async fn until_comes(stream: &mut TcpStream, said: &mut Vec<u8>, wanted: u8) {
    while !has(said, wanted) {
        let Ok(read) = timeout(PATIENCE, stream.read_buf(said)).await else {
            panic!("no frame of kind {wanted} in {said:?}");
        };
        assert!(read.expect("frames") > 0);
    }
}

#[tokio::test]
async fn a_slow_client_gets_all_of_its_answer() {
    let running = running_with(router(), |server| {
        server.timeouts.idle = Duration::from_secs(4);
    })
    .await;
    let slow = taken_slowly(running.connect_from("127.0.0.3:0").await);
    let slow_by_http2 = taken_slowly_by_http2(running.connect_from("127.0.0.4:0").await);
    let (taken, by_http2, ()) = tokio::join!(slow, slow_by_http2, running.serves_others());
    assert!(taken > LARGE.len(), "{taken}");
    assert_eq!(by_http2, (LARGE.len(), true));
    running.end().await;
}

#[tokio::test]
async fn a_connection_whose_answer_is_not_taken_is_closed() {
    let running = running_with(router(), |server| {
        server.timeouts.idle = Duration::from_secs(1);
    })
    .await;
    let mut by_http1 = running.connect_from("127.0.0.3:0").await;
    send(&mut by_http1, b"GET /large HTTP/1.1\r\nhost: here\r\n\r\n").await;
    let mut by_http2 = running.connect().await;
    send(&mut by_http2, &request_of_who_takes_nothing("/")).await;
    until_comes(&mut by_http2, &mut Vec::new(), HEAD).await;
    running.serves_others().await;
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let pinged = async {
        while by_http2.write_all(&ping).await.is_ok() {
            sleep(PAUSE).await
        }
    };
    timeout(PATIENCE, pinged)
        .await
        .expect("pings are no progress");
    // Reading sooner would be progress.
    sleep(Duration::from_secs(3)).await;
    let taken = until_end(&mut by_http1).await;
    assert!(taken < LARGE.len(), "{taken}");
    running.end().await;
}

#[tokio::test]
async fn a_request_keeps_its_place_until_its_answer_is_taken() {
    let (serving, _) = serving(ServingOptions {
        requests_max: 1,
        ..ServingOptions::default()
    });
    let running = running_with(serving.router(), |_| {}).await;
    let status = async |uri: &str| {
        let mut stream = running.connect().await;
        let asked = format!("GET {uri} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        send(&mut stream, asked.as_bytes()).await;
        let mut answer = String::new();
        let read = timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
        read.expect("in time").expect("an answer");
        answer.split(' ').nth(1).expect("a status").to_owned()
    };
    let mut taking = running.connect().await;
    send(&mut taking, &request_of_who_takes_nothing("/openapi.json")).await;
    let mut said = Vec::new();
    until_comes(&mut taking, &mut said, HEAD).await;
    assert_eq!(status("/openapi.json").await, "503");
    assert_eq!(status("/livez").await, "200");
    // One byte is not all of it.
    send(&mut taking, &room(1, 1)).await;
    until_comes(&mut taking, &mut said, DATA).await;
    assert_eq!(status("/openapi.json").await, "503");
    send(&mut taking, &[room(0, 1 << 24), room(1, 1 << 24)].concat()).await;
    let taken = async {
        while status("/openapi.json").await != "200" {
            sleep(PAUSE).await;
        }
    };
    timeout(PATIENCE, taken).await.expect("a place again");
    running.end().await;
}

#[tokio::test]
async fn silent_clients_leave_room_after_the_head_timeout() {
    let running = running_with(router(), |server| {
        server.timeouts.head = Duration::from_millis(500);
    })
    .await;
    let mut held = Vec::new();
    for begun in ["", "PRI * HT", "GET / HTTP/1.1\r\nhost:"].repeat(ROOM) {
        let mut stream = running.connect().await;
        send(&mut stream, begun.as_bytes()).await;
        held.push(stream);
    }
    running.serves_others().await;
    assert_eq!(until_end(&mut held[0]).await, 0);
    running.end().await;
}

#[tokio::test]
async fn a_head_of_one_byte_at_a_time_is_not_waited_for() {
    let running = running_with(router(), |server| {
        server.timeouts.head = Duration::from_millis(500);
    })
    .await;
    // For the first request of a connection, and for a later one.
    for asks_before in [false, true] {
        let mut stream = running.connect().await;
        if asks_before {
            assert_eq!(ask(&mut stream).await, Came::Answer);
        }
        let slow = async {
            send(&mut stream, b"GET / HTTP/1.1\r\nhost: ").await;
            while stream.write_all(b"x").await.is_ok() {
                sleep(PAUSE / 5).await;
            }
        };
        timeout(PATIENCE, slow).await.expect("an end in time");
        running.serves_others().await;
    }
    running.end().await;
}

#[tokio::test]
async fn idle_connections_make_room_once_all_are_taken() {
    let running = running().await;
    // A request in flight stays.
    let mut sending = half(&running).await;
    let mut held = Vec::new();
    for _ in 0..2 * ROOM {
        let mut stream = running.connect().await;
        assert_eq!(ask(&mut stream).await, Came::Answer);
        held.push(stream);
    }
    assert_eq!(ask(&mut held[0]).await, Came::End);
    rest(&mut sending).await;
    assert_eq!(ask(&mut sending).await, Came::Answer);
    running.end().await;
}

#[tokio::test]
async fn a_greedy_address_leaves_most_connections_to_others() {
    let running = running_with(router(), |server| server.is_local = |_| false).await;
    let mut greedy = Vec::new();
    for _ in 0..200 {
        greedy.push(running.connect_from("127.0.0.3:0").await);
    }
    running.serves_others().await;
    assert_eq!(ask(&mut greedy[0]).await, Came::Answer);
    for stream in &mut greedy[1..] {
        assert_eq!(ask(stream).await, Came::End);
    }
    drop(greedy);
    let again = async {
        while ask(&mut running.connect_from("127.0.0.3:0").await).await == Came::End {
            sleep(PAUSE).await;
        }
    };
    timeout(PATIENCE, again).await.expect("its share again");
    running.end().await;
}

#[test]
fn this_machine_and_trusted_proxies_have_no_share() {
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
    // The addresses of one customer.
    assert_eq!(limited("2001:db8::1"), limited("2001:db8::2"));
}

/// More than the buffers between client and server hold.
const BODY_BYTES: usize = 32 << 20;

#[tokio::test]
async fn a_refused_body_gets_its_answer_by_http1() {
    let running = running().await;
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
            let read = timeout(PATIENCE, stream.read_buf(&mut answer)).await;
            assert!(read.expect("in time").expect("an answer") > 0);
        }
        assert!(answer.starts_with(b"HTTP/1.1 401 "));
        assert_eq!(
            ask(&mut stream).await,
            Came::Answer,
            "the connection goes on"
        );
    }
    running.end().await;
}

#[tokio::test]
async fn a_refused_body_gets_its_answer_by_http2() {
    let running = running().await;
    let stream = TokioIo::new(running.connect().await);
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), stream)
        .await
        .expect("a connection");
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    for _ in 0..2 {
        let body = Body::from(vec![b'x'; BODY_BYTES]);
        let request = Request::post("http://here/refused").body(body);
        let asked = client.send_request(request.expect("a request"));
        let response = timeout(PATIENCE, asked).await.expect("in time");
        let response = response.expect("an answer");
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        let answer = axum::body::to_bytes(Body::new(response.into_body()), 99).await;
        assert_eq!(answer.expect("all of it"), REFUSED);
    }
    drop((client, tasks));
    running.end().await;
}

#[tokio::test]
async fn a_body_without_end_is_answered_and_then_cut_off() {
    let running = running().await;
    let (mut reader, mut writer) = running.connect().await.into_split();
    let sending = async {
        let head = "POST /refused HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n";
        writer.write_all(head.as_bytes()).await.expect("it is sent");
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
    let both = async { tokio::join!(sending, reading, running.serves_others()) };
    timeout(PATIENCE, both)
        .await
        .expect("it is cut off in time");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains(REFUSED), "{answer}");
    running.end().await;
}

#[tokio::test]
async fn a_refused_body_that_waits_for_its_turn_is_not_asked_for() {
    let running = running().await;
    let mut stream = running.connect().await;
    let head =
        "POST /refused HTTP/1.1\r\nhost: here\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    send(&mut stream, head.as_bytes()).await;
    let mut answer = String::new();
    let read = timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
    read.expect("in time").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    running.end().await;
}

#[tokio::test]
async fn what_is_under_way_is_answered_before_it_ends() {
    let running = running().await;
    let mut sending = half(&running).await;
    let mut idle = running.connect().await;
    assert_eq!(ask(&mut idle).await, Came::Answer);
    running.shutdown.cancel();
    assert_eq!(ask(&mut idle).await, Came::End);
    rest(&mut sending).await;
    assert_eq!(ask(&mut sending).await, Came::End);
    running.end().await;
}
