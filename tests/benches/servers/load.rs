//! HTTP load from many connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

pub(crate) const CONNECTIONS: [usize; 3] = [1, 32, 256];
const OK: u16 = 200;
/// Duration of each question's round.
pub(crate) const ROUND: Duration = Duration::from_secs(3);

pub(crate) struct Load {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) rate: f64,
    /// Number of responses other than 200.
    pub(crate) failed: usize,
}

impl Load {
    /// Summarizes response times in milliseconds.
    pub(crate) fn new(mut took_ms: Vec<f64>, rate: f64, failed: usize) -> Self {
        took_ms.sort_by(f64::total_cmp);
        Self {
            p50_ms: took_ms[took_ms.len() / 2],
            p99_ms: took_ms[took_ms.len() * 99 / 100],
            rate,
            failed,
        }
    }
}

/// Sends rounds of requests on many connections. Each connection starts with another round, and
/// continues when all responses of a round have arrived.
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
    let deadline = Instant::now() + ROUND;
    let tasks = (0..connections).map(|connection| {
        let (address, rounds) = (address.to_owned(), Arc::clone(&rounds));
        let first = connection * rounds.len() / connections;
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(&address).await.expect("a connection");
            stream.set_nodelay(true).expect("an option");
            let (mut took, mut failed, mut buffer) = (Vec::new(), 0, Vec::new());
            for round in rounds.iter().cycle().skip(first) {
                if Instant::now() >= deadline {
                    break;
                }
                let begun = Instant::now();
                for request in round {
                    stream.write_all(request.as_bytes()).await.expect("asking");
                    failed += usize::from(read_response(&mut stream, &mut buffer).await != OK);
                }
                took.push(begun.elapsed().as_secs_f64() * 1_000.0);
            }
            (took, failed)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let (mut took, mut failed) = (Vec::new(), 0);
    for task in tasks {
        let (times, failures) = task.await.expect("responses");
        took.extend(times);
        failed += failures;
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = took.len() as f64 / ROUND.as_secs_f64();
    Load::new(took, rate, failed)
}

/// Posts each body once to its path, on many connections, until all are sent or the time is over;
/// returns the number of responses by status.
pub(crate) async fn post(
    address: &str,
    bodies: Vec<(String, String)>,
    connections: usize,
) -> (Load, BTreeMap<u16, usize>) {
    let begun = Instant::now();
    let deadline = begun + ROUND;
    let request = |(path, body): &(String, String)| {
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    };
    let mut posting = JoinSet::new();
    for connection in 0..connections {
        let requests = bodies.iter().skip(connection).step_by(connections);
        let requests: Vec<String> = requests.map(request).collect();
        let address = address.to_owned();
        posting.spawn(async move {
            let mut stream = TcpStream::connect(&address).await.expect("a connection");
            stream.set_nodelay(true).expect("an option");
            let (mut responses, mut buffer) = (Vec::new(), Vec::new());
            for request in requests {
                let begun = Instant::now();
                if begun >= deadline {
                    break;
                }
                stream.write_all(request.as_bytes()).await.expect("posting");
                let status = read_response(&mut stream, &mut buffer).await;
                responses.push((status, begun.elapsed().as_secs_f64() * 1_000.0));
            }
            responses
        });
    }
    let responses: Vec<(u16, f64)> = posting.join_all().await.into_iter().flatten().collect();
    let mut statuses = BTreeMap::new();
    for (status, _) in &responses {
        *statuses.entry(*status).or_default() += 1;
    }
    let rate = super::rate(responses.len() as u64, begun.elapsed());
    let took = responses.into_iter().map(|(_, took)| took).collect();
    (Load::new(took, rate, 0), statuses)
}

/// Reads one response with a content length; returns its status.
async fn read_response(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> u16 {
    buffer.clear();
    let mut status = 0;
    let mut response_bytes = None;
    while response_bytes.is_none_or(|response_bytes| buffer.len() < response_bytes) {
        let read = stream.read_buf(buffer).await.expect("a response");
        assert!(read > 0, "the connection was closed");
        if response_bytes.is_none()
            && let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n")
        {
            let head = std::str::from_utf8(&buffer[..end]).expect("a head");
            let code = head
                .strip_prefix("HTTP/1.1 ")
                .and_then(|code| code.get(..3));
            status = code.and_then(|code| code.parse().ok()).expect("a status");
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                is_length
                    .then(|| value.trim().parse::<usize>().ok())
                    .flatten()
            });
            response_bytes = Some(end + 4 + length.expect("a length"));
        }
    }
    status
}
