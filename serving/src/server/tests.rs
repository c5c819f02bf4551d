//! Connections over loopback.

use axum::body::Body;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const ROOM: usize = 8;
/// Whatever takes longer is waited for in vain.
const PATIENCE: Duration = Duration::from_secs(20);

struct Running {
    address: SocketAddr,
    shutdown: CancellationToken,
    running: JoinSet<Result<()>>,
}

async fn running() -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = Router::new()
        .route("/", get(|| async { "here" }))
        .route("/echo", post(|body: Body| async { body }));
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
fn request_of_who_takes_nothing() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // Settings: the window of each stream is 0.
    bytes.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
    // Headers of stream 1, whole: GET, http, /, and the authority.
    let headers = b"\x82\x86\x84\x41\x04here";
    bytes.extend([0, 0, 9, 1, 5, 0, 0, 0, 1]);
    bytes.extend(headers);
    bytes
}

/// Whether frames of HTTP/2 have the head of an answer among them.
fn answers(mut frames: &[u8]) -> bool {
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

#[tokio::test]
async fn who_takes_no_answer_shuts_nobody_out() {
    let running = running().await;
    let mut held = Vec::new();
    for _ in 0..ROOM {
        let mut stream = running.connect().await;
        send(&mut stream, &request_of_who_takes_nothing()).await;
        held.push(stream);
    }
    for stream in &mut held {
        let mut said = Vec::new();
        while !answers(&said) {
            let read = timeout(PATIENCE, stream.read_buf(&mut said)).await;
            assert!(read.expect("in time").expect("frames") > 0);
        }
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
    let mut stream = running.connect().await;
    tokio::select! {
        came = ask(&mut stream) => assert_eq!(came, Came::Answer),
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
