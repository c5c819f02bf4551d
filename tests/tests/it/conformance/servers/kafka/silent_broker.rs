//! A broker that accepts connections and replies at first, and then stops replying.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI64};

use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const TIMEOUT: Duration = Duration::from_millis(1_000);
/// A call waits for several replies, but only one is missing. This limit leaves time for a busy
/// machine, and is shorter than the client's own timeouts of at least half a minute.
const DEADLINE: Duration = Duration::from_secs(15);
/// Larger than any reply in these tests.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// A proxy in front of the broker. It replaces the broker's advertised port by its own, so that
/// clients reconnect through it.
#[derive(Debug)]
struct Proxy {
    address: SocketAddr,
    /// The number of replies to pass before the broker falls silent.
    replies_left: AtomicI64,
    /// A request or a reply arrived during the silence.
    was_silent: AtomicBool,
}

impl Proxy {
    async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = Arc::new(Self {
            address: listener.local_addr().expect("an address"),
            replies_left: AtomicI64::new(i64::MAX),
            was_silent: AtomicBool::new(false),
        });
        let served = Arc::clone(&proxy);
        #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let broker = TcpStream::connect(servers::kafka()).await.expect("Kafka");
                let (from_client, to_client) = client.into_split();
                let (from_broker, to_broker) = broker.into_split();
                let (requesting, replying) = (Arc::clone(&served), Arc::clone(&served));
                // Clients may disconnect at any time.
                tokio::spawn(async move {
                    drop(requesting.pass_requests(from_client, to_broker).await);
                });
                tokio::spawn(async move {
                    drop(replying.pass_replies(from_broker, to_client).await);
                });
            }
        });
        proxy
    }

    fn fall_silent_after(&self, replies: i64) {
        self.replies_left.store(replies, SeqCst);
        self.was_silent.store(false, SeqCst);
    }

    async fn pass_requests(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
    ) -> io::Result<()> {
        loop {
            let frame = read_frame(&mut from).await?;
            if self.replies_left.load(SeqCst) <= 0 {
                self.was_silent.store(true, SeqCst);
            }
            write_frame(&mut to, &frame).await?;
        }
    }

    async fn pass_replies(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
    ) -> io::Result<()> {
        loop {
            let mut frame = read_frame(&mut from).await?;
            self.delay_and_rewrite(&mut frame).await;
            write_frame(&mut to, &frame).await?;
        }
    }

    /// Waits until the broker may reply, and puts the proxy's address into the reply.
    async fn delay_and_rewrite(&self, frame: &mut [u8]) {
        if self.replies_left.fetch_sub(1, SeqCst) <= 0 {
            self.was_silent.store(true, SeqCst);
            while self.replies_left.load(SeqCst) <= 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        let broker: SocketAddr = servers::kafka().parse().expect("an address");
        let name = broker.ip().to_string();
        let advertised = [name.as_bytes(), &u32::from(broker.port()).to_be_bytes()].concat();
        let proxy_port = u32::from(self.address.port()).to_be_bytes();
        for index in 0..frame.len().saturating_sub(advertised.len() - 1) {
            if frame[index..].starts_with(&advertised) {
                frame[index + name.len()..index + advertised.len()].copy_from_slice(&proxy_port);
            }
        }
    }

    fn open_log(&self, namespace: &Namespace) -> Result<KafkaLog> {
        let timeout_ms = u64::try_from(TIMEOUT.as_millis()).expect("short");
        let options = KafkaOptions {
            bootstrap_servers: self.address.to_string(),
            request_timeout_ms: timeout_ms,
            delivery_timeout_ms: timeout_ms,
            ..KafkaOptions::default()
        };
        KafkaLog::open(&options, namespace)
    }

    /// Returns whether a call succeeded. A failed call must end in time and name the broker, which
    /// may also be too slow on a busy machine.
    async fn must_end<T: std::fmt::Debug>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T>>,
    ) -> bool {
        let started = Instant::now();
        let outcome = call.await;
        assert!(
            started.elapsed() < DEADLINE,
            "{operation}: {:?}",
            started.elapsed()
        );
        let Err(error) = outcome else { return true };
        assert_eq!(error.kind(), ErrorKind::Retry, "{operation}: {error}");
        let address = format!("(Kafka at {})", self.address);
        assert!(error.to_string().contains(&address), "{operation}: {error}");
        false
    }
}

/// Reads the next frame: its length in four bytes, and the payload.
async fn read_frame(from: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut frame = vec![0; FRAME_BYTES_MAX.min(length as usize)];
    from.read_exact(&mut frame).await?;
    Ok(frame)
}

async fn write_frame(to: &mut OwnedWriteHalf, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).expect("a short frame");
    to.write_all(&[&length.to_be_bytes(), frame].concat()).await
}

fn ten_records() -> [NewRecords; 1] {
    [group((0..10).map(|n| n.to_string()))]
}

const FIVE_RECORDS: FetchLimit = FetchLimit {
    records: 5,
    bytes: usize::MAX,
};

/// All clients are active when the broker falls silent, and work again once it replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_fail_in_time_during_a_silence_and_succeed_after_it() -> Result<()> {
    let topics = Topics::create().await;
    let proxy = Proxy::start().await;
    // A client with short timeouts must not be the first: a broker takes time to create topics and
    // to elect leaders.
    let default_log = topics.ports().await?.log;
    default_log.ensure_topic(TOPIC, 1).await?;
    default_log.append(TOPIC, &ten_records(), 0).await?;
    let log = proxy.open_log(&topics.namespace)?;
    retry_until_ok(async || log.append(TOPIC, &ten_records(), 0).await).await;
    let fetched = retry_until_ok(async || log.fetch(TOPIC, 0, 0, FIVE_RECORDS).await).await;
    assert_eq!(fetched.next_offset, 5);
    let offset = retry_until_ok(async || log.offset_at(TOPIC, 0, 0).await).await;
    assert_eq!(offset, 0);
    proxy.fall_silent_after(0);
    let calls = [
        proxy.must_end("spans", log.spans(TOPIC)).await,
        proxy
            .must_end("reading on", log.fetch(TOPIC, 0, 5, FIVE_RECORDS))
            .await,
        proxy
            .must_end("reading", log.fetch(TOPIC, 0, 2, FIVE_RECORDS))
            .await,
        proxy
            .must_end("one record", log.fetch_fresh(TOPIC, 0, 2))
            .await,
        proxy.must_end("a moment", log.offset_at(TOPIC, 0, 0)).await,
        proxy.must_end("a topic", log.ensure_topic(TOPIC, 1)).await,
        proxy
            .must_end("a new topic", log.ensure_topic("backstitch.new.v1", 1))
            .await,
        proxy
            .must_end("appending", log.append(TOPIC, &ten_records(), 0))
            .await,
        proxy.must_end("diagnostics", log.diagnostics()).await,
    ];
    assert_eq!(calls, [false; 9]);
    // Cached metadata still works.
    assert!(
        proxy
            .must_end("partitions", log.partition_count(TOPIC))
            .await
    );
    let mut membership = log.join_group(TOPIC).await?;
    let waited = tokio::time::timeout(TIMEOUT, membership.changed()).await;
    assert!(waited.is_err(), "nothing is assigned");
    drop(membership);
    proxy.replies_left.store(i64::MAX, SeqCst);
    retry_until_ok(async || log.spans(TOPIC).await).await;
    let mut next = 5;
    while next < 10 {
        let fetched = retry_until_ok(async || log.fetch(TOPIC, 0, next, FIVE_RECORDS).await).await;
        next = fetched.next_offset;
    }
    retry_until_ok(async || log.append(TOPIC, &ten_records(), 0).await).await;
    topics.clear().await
}

/// The broker falls silent during a client's first call, after each of the replies that the call
/// needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_calls_fail_in_time_at_any_point_of_silence() -> Result<()> {
    let topics = Topics::create().await;
    let log = topics.ports().await?.log;
    log.ensure_topic(TOPIC, 1).await?;
    log.append(TOPIC, &ten_records(), 0).await?;
    let calls = (0..4).flat_map(|call| (0..14).step_by(2).map(move |replies| (call, replies)));
    let calls = calls.map(|(call, replies)| {
        let namespace = topics.namespace.clone();
        async move {
            let proxy = Proxy::start().await;
            let log = proxy.open_log(&namespace)?;
            proxy.fall_silent_after(replies);
            let operation = format!("call {call} after {replies} replies");
            let succeeded = match call {
                0 => {
                    proxy
                        .must_end(&operation, log.fetch(TOPIC, 0, 3, FIVE_RECORDS))
                        .await
                }
                1 => {
                    proxy
                        .must_end(&operation, log.append(TOPIC, &ten_records(), 0))
                        .await
                }
                2 => proxy.must_end(&operation, log.spans(TOPIC)).await,
                _ => proxy.must_end(&operation, log.ensure_topic(TOPIC, 1)).await,
            };
            let was_interrupted = !succeeded && proxy.was_silent.load(SeqCst);
            Ok::<_, Error>(u32::from(was_interrupted))
        }
    });
    let interrupted = join_all(calls).await.into_iter().sum::<Result<u32>>()?;
    assert!(interrupted >= 10, "{interrupted} met the silence");
    topics.clear().await
}
