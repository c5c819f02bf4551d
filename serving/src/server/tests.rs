//! Connections over loopback.

use std::io;

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

/// Asks on a connection; whether it was answered.
async fn ask(stream: &mut TcpStream) -> io::Result<bool> {
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
        .await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"here") {
        let read = timeout(PATIENCE, stream.read_buf(&mut answer)).await;
        match read.map_err(io::Error::other)?? {
            0 => return Ok(false),
            _ => continue,
        }
    }
    Ok(true)
}

#[tokio::test]
async fn who_holds_every_connection_shuts_nobody_out() {
    let running = running().await;
    let mut held = Vec::new();
    for _ in 0..ROOM {
        let mut stream = running.connect().await;
        assert!(ask(&mut stream).await.expect("an answer"));
        held.push(stream);
    }
    // Some that say nothing, and one that begins a head.
    for begun in ["", "", "GET / HT"] {
        let mut stream = running.connect().await;
        stream
            .write_all(begun.as_bytes())
            .await
            .expect("it is sent");
        held.push(stream);
    }
    for _ in 0..2 * ROOM {
        let mut stream = running.connect().await;
        assert!(ask(&mut stream).await.expect("an answer"));
        held.push(stream);
    }
    // The oldest were closed, the newest were not.
    assert!(!ask(&mut held[0]).await.unwrap_or(false));
    let newest = held.last_mut().expect("one");
    assert!(ask(newest).await.expect("an answer"));
    running.end().await;
}

#[tokio::test]
async fn what_is_under_way_is_not_closed_for_others() {
    let running = running().await;
    let mut sending = running.connect().await;
    let head =
        "POST /echo HTTP/1.1\r\nhost: here\r\ncontent-length: 8\r\nconnection: close\r\n\r\nhalf";
    sending
        .write_all(head.as_bytes())
        .await
        .expect("it is sent");
    let mut held = Vec::new();
    for _ in 0..2 * ROOM {
        let mut stream = running.connect().await;
        assert!(ask(&mut stream).await.expect("an answer"));
        held.push(stream);
    }
    sending.write_all(b"done").await.expect("it is sent");
    let mut answer = String::new();
    let read = timeout(PATIENCE, sending.read_to_string(&mut answer)).await;
    read.expect("in time").expect("an answer");
    assert!(answer.ends_with("halfdone"), "{answer}");
    running.end().await;
}

#[tokio::test]
async fn what_is_under_way_is_answered_before_it_ends() {
    let running = running().await;
    let mut sending = running.connect().await;
    let head = "POST /echo HTTP/1.1\r\nhost: here\r\ncontent-length: 8\r\n\r\nhalf";
    sending
        .write_all(head.as_bytes())
        .await
        .expect("it is sent");
    let mut idle = running.connect().await;
    assert!(ask(&mut idle).await.expect("an answer"));
    running.shutdown.cancel();
    // Idle ones end at once.
    assert!(!ask(&mut idle).await.unwrap_or(false));
    sending.write_all(b"done").await.expect("it is sent");
    let mut answer = String::new();
    let read = timeout(PATIENCE, sending.read_to_string(&mut answer)).await;
    read.expect("in time").expect("an answer");
    assert!(answer.ends_with("halfdone"), "{answer}");
    running.end().await;
}
