//! Asking a server over HTTP from many connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const CONNECTIONS: [usize; 3] = [1, 32, 256];
/// How long each question is asked.
const ROUND: Duration = Duration::from_secs(3);

pub(crate) struct Load {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) rate: f64,
    /// Answers other than 200.
    pub(crate) failed: usize,
}

/// Rounds of requests, one after the other, on so many connections, each of which begins with another
/// round and goes on as soon as all of one are answered.
#[expect(
    clippy::disallowed_methods,
    reason = "connections side by side, each waited for"
)]
pub(crate) async fn load(address: &str, rounds: &[Vec<String>], connections: usize) -> Load {
    let request = |path: &String| format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let rounds = rounds
        .iter()
        .map(|paths| paths.iter().map(request).collect());
    let rounds: Arc<Vec<Vec<String>>> = Arc::new(rounds.collect());
    let until = Instant::now() + ROUND;
    let asking = (0..connections).map(|connection| {
        let (address, rounds) = (address.to_owned(), Arc::clone(&rounds));
        let first = connection * rounds.len() / connections;
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(&address).await.expect("a connection");
            stream.set_nodelay(true).expect("an option");
            let (mut took, mut failed, mut buffer) = (Vec::new(), 0, Vec::new());
            for round in rounds.iter().cycle().skip(first) {
                if Instant::now() >= until {
                    break;
                }
                let begun = Instant::now();
                for request in round {
                    stream.write_all(request.as_bytes()).await.expect("asking");
                    failed += usize::from(!answered(&mut stream, &mut buffer).await);
                }
                took.push(begun.elapsed().as_secs_f64() * 1_000.0);
            }
            (took, failed)
        })
    });
    let asking: Vec<_> = asking.collect();
    let (mut took, mut failed) = (Vec::new(), 0);
    for one in asking {
        let (of_one, failed_of_one) = one.await.expect("answers");
        took.extend(of_one);
        failed += failed_of_one;
    }
    took.sort_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = took.len() as f64 / ROUND.as_secs_f64();
    Load {
        p50_ms: took[took.len() / 2],
        p99_ms: took[took.len() * 99 / 100],
        rate,
        failed,
    }
}

/// Reads one answer, which says how long it is; whether it is 200.
async fn answered(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> bool {
    buffer.clear();
    let mut is_good = false;
    let mut whole = None;
    while whole.is_none_or(|whole| buffer.len() < whole) {
        let read = stream.read_buf(buffer).await.expect("an answer");
        assert!(read > 0, "the connection was closed");
        if whole.is_none()
            && let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n")
        {
            let head = std::str::from_utf8(&buffer[..end]).expect("a head");
            is_good = head.starts_with("HTTP/1.1 200");
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                is_length
                    .then(|| value.trim().parse::<usize>().ok())
                    .flatten()
            });
            whole = Some(end + 4 + length.expect("a length"));
        }
    }
    is_good
}
