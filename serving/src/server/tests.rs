//! Connections over loopback.

use axum::body::Body;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;
use crate::world::boards::serving;

const ROOM: usize = 8;
/// Whatever takes longer is waited for in vain.
const PATIENCE: Duration = Duration::from_secs(20);

/// More than what is on its way to a client between both of them.
static LARGE: [u8; 16 << 20] = [b'x'; 16 << 20];
/// What a slow client takes at once, and how long it waits then: it needs longer than what one may take nothing.
const TAKEN_BYTES: usize = 512 << 10;
const PAUSE: Duration = Duration::from_millis(250);

struct Running {
    address: SocketAddr,
    shutdown: CancellationToken,
    running: JoinSet<Result<()>>,
}

async fn running() -> Running {
    let router = Router::new()
        .route("/", get(|| async { "here" }))
        .route("/large", get(|| async { Bytes::from_static(&LARGE) }))
        .route("/echo", post(|body: Body| async { body }));
    running_with(router).await
}

async fn running_with(router: Router) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let options = ServingOptions {
        connections_max: ROOM,
        ..ServingOptions::default()
    };
    let shutdown = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn({
        let shutdown = shutdown.clone();
        async move { run(listener, router, &options, shutdown).await }
    });
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

    /// One whose client has room for little.
    async fn connect_narrow(&self) -> TcpStream {
        self.connect_from("127.0.0.1:0").await
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

#[tokio::test]
async fn who_holds_every_connection_shuts_nobody_out() {
    let running = running().await;
    let mut held = Vec::new();
    for _ in 0..ROOM {
        let mut stream = running.connect().await;
        assert_eq!(ask(&mut stream).await, Came::Answer);
        held.push(stream);
    }
    // Some that say nothing, and one that begins a head.
    for begun in ["", "", "GET / HT"] {
        let mut stream = running.connect().await;
        send(&mut stream, begun.as_bytes()).await;
        held.push(stream);
    }
    for _ in 0..2 * ROOM {
        let mut stream = running.connect().await;
        assert_eq!(ask(&mut stream).await, Came::Answer);
        held.push(stream);
    }
    assert_eq!(ask(&mut held[0]).await, Came::End);
    running.end().await;
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

#[tokio::test]
async fn who_takes_an_answer_slowly_gets_all_of_it_though_others_need_room() {
    let running = running().await;
    let slow = taken_slowly(running.connect_from("127.0.0.3:0").await);
    let slow_by_http2 = taken_slowly_by_http2(running.connect_from("127.0.0.4:0").await);
    let others = async {
        let mut held = Vec::new();
        for _ in 2..ROOM {
            let mut stream = running.connect_from("127.0.0.5:0").await;
            // These take nothing of it.
            send(&mut stream, b"GET /large HTTP/1.1\r\nhost: here\r\n\r\n").await;
            held.push(stream);
        }
        sleep(PAUSE).await;
        for _ in 0..ROOM {
            let mut stream = running.connect().await;
            assert_eq!(ask(&mut stream).await, Came::Answer);
            held.push(stream);
        }
        // Some of those who take nothing were closed: they are told so behind what they have not taken.
        let mut closed = 0;
        for stream in &mut held[..ROOM - 2] {
            let (mut all, mut piece) = (0, vec![0; TAKEN_BYTES]);
            while all < LARGE.len() {
                let read = timeout(PATIENCE, stream.read(&mut piece)).await;
                match read.expect("in time") {
                    Ok(0) | Err(_) => break,
                    Ok(read) => all += read,
                }
            }
            closed += usize::from(all < LARGE.len());
        }
        assert!(closed > 0);
    };
    let (taken, (taken_by_http2, has_ended), ()) = tokio::join!(slow, slow_by_http2, others);
    assert!(taken > LARGE.len(), "{taken}");
    assert_eq!((taken_by_http2, has_ended), (LARGE.len(), true));
    running.end().await;
}

#[tokio::test]
async fn who_takes_something_on_every_connection_shuts_nobody_out() {
    let running = running().await;
    let mut slow = JoinSet::new();
    for _ in 0..=ROOM {
        slow.spawn(taken_slowly(running.connect_narrow().await));
    }
    sleep(PAUSE).await;
    // Long before one of these has all, though another of theirs waits, too.
    let mut stream = running.connect_from("127.0.0.2:0").await;
    let came = timeout(Duration::from_secs(6), ask(&mut stream)).await;
    assert_eq!(came.expect("in time"), Came::Answer);
    slow.shutdown().await;
    running.end().await;
}

#[tokio::test]
async fn a_request_keeps_its_place_until_its_answer_is_taken() {
    let (serving, _) = serving(ServingOptions {
        requests_max: 1,
        ..ServingOptions::default()
    });
    let running = running_with(serving.router()).await;
    let status = async |uri: &str| {
        let mut stream = running.connect().await;
        let asked = format!("GET {uri} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        send(&mut stream, asked.as_bytes()).await;
        let mut answer = String::new();
        let read = timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
        read.expect("in time").expect("an answer");
        answer.split(' ').nth(1).expect("a status").to_owned()
    };
    // A large one, and one that says what is wrong and is written at once.
    for path in ["/openapi.json", "/nowhere"] {
        let mut taking = running.connect().await;
        send(&mut taking, &request_of_who_takes_nothing(path)).await;
        let mut said = Vec::new();
        until_comes(&mut taking, &mut said, HEAD).await;
        assert_eq!(status("/openapi.json").await, "503", "{path}");
        assert_eq!(status("/livez").await, "200");
        // Nor is it over when a byte has left.
        send(&mut taking, &room(1, 1)).await;
        until_comes(&mut taking, &mut said, DATA).await;
        assert_eq!(status("/openapi.json").await, "503", "{path}");
        // Now it takes all.
        send(&mut taking, &[room(0, 1 << 24), room(1, 1 << 24)].concat()).await;
        let taken = async {
            while status("/openapi.json").await != "200" {
                sleep(PAUSE).await;
            }
        };
        timeout(PATIENCE, taken).await.expect("a place again");
    }
    running.end().await;
}

#[tokio::test]
async fn who_sends_no_body_shuts_nobody_out() {
    let running = running().await;
    let mut held = Vec::new();
    for _ in 0..ROOM {
        held.push(half(&running).await);
    }
    let mut stream = running.connect_from("127.0.0.2:0").await;
    assert_eq!(ask(&mut stream).await, Came::Answer);
    running.end().await;
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
async fn who_takes_no_answer_shuts_nobody_out() {
    let running = running().await;
    let mut held = Vec::new();
    for _ in 0..ROOM {
        let mut stream = running.connect().await;
        send(&mut stream, &request_of_who_takes_nothing("/")).await;
        held.push(stream);
    }
    for stream in &mut held {
        until_comes(stream, &mut Vec::new(), HEAD).await;
    }
    // They are pinged, which is nothing.
    let pings = async {
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        loop {
            for stream in &mut held {
                stream.write_all(&ping).await.ok();
            }
            sleep(Duration::from_millis(500)).await;
        }
    };
    // Its own address is given nothing before these have taken nothing for a while.
    let own = async {
        let asked = async { while ask(&mut running.connect().await).await == Came::End {} };
        timeout(PATIENCE, asked).await.expect("room in time");
    };
    tokio::select! {
        () = own => {}
        () = pings => {}
    }
    running.end().await;
}

#[tokio::test]
async fn what_is_under_way_is_not_closed_for_others() {
    let running = running().await;
    let mut sending = half(&running).await;
    let mut held = Vec::new();
    for _ in 0..2 * ROOM {
        let mut stream = running.connect().await;
        assert_eq!(ask(&mut stream).await, Came::Answer);
        held.push(stream);
    }
    rest(&mut sending).await;
    // One that was asked to end would answer no further request.
    assert_eq!(ask(&mut sending).await, Came::Answer);
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
