//! TCP proxies between the system and its servers: they forward, hold or disconnect traffic.
//! Several can share one gate, so that all traffic of a process stops at one moment.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The traffic that a gate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Nothing.
    Nothing,
    /// Data from clients.
    Requests,
    /// Data from servers.
    Replies,
    /// Everything.
    Everything,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Holds {
    fn holds(self, direction: Direction) -> bool {
        match self {
            Self::Nothing => false,
            Self::Requests => direction == Direction::ToServer,
            Self::Replies => direction == Direction::ToClient,
            Self::Everything => true,
        }
    }
}

/// Shared control of proxies.
#[derive(Debug)]
pub struct Gate {
    holds: watch::Sender<Holds>,
    /// Incremented to close all connections.
    cuts: watch::Sender<u64>,
    /// Number of chunks that may pass before the delayed hold begins; negative if none is planned.
    chunks_left: AtomicI64,
    planned_hold: Mutex<Holds>,
    /// A text in requests whose replies are to be held.
    unreplied: Mutex<Option<&'static str>>,
    /// Data from clients while it is recorded.
    recorded: Mutex<Option<Vec<u8>>>,
    chunks_passed: AtomicU64,
    /// Number of chunks that were held.
    chunks_held: watch::Sender<u64>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            holds: watch::Sender::new(Holds::Nothing),
            cuts: watch::Sender::new(0),
            chunks_left: AtomicI64::new(-1),
            planned_hold: Mutex::new(Holds::Nothing),
            unreplied: Mutex::new(None),
            recorded: Mutex::new(None),
            chunks_passed: AtomicU64::new(0),
            chunks_held: watch::Sender::new(0),
        }
    }
}

impl Gate {
    /// Holds this traffic from now on, and releases other held traffic.
    pub fn hold(&self, traffic: Holds) {
        self.chunks_left.store(-1, Ordering::SeqCst);
        *lock(&self.unreplied) = None;
        self.holds.send_replace(traffic);
    }

    /// Holds all replies once a request with this text has passed.
    pub fn hold_reply_to(&self, text: &'static str) {
        *lock(&self.unreplied) = Some(text);
    }

    /// Records data from clients from now on.
    pub fn record_requests(&self) {
        *lock(&self.recorded) = Some(Vec::new());
    }

    /// Returns the data from clients since [`Gate::record_requests`].
    #[must_use]
    pub fn recorded_requests(&self) -> String {
        let recorded = lock(&self.recorded).take().unwrap_or_default();
        String::from_utf8_lossy(&recorded).into_owned()
    }

    /// Holds this traffic after `pieces` more chunks. A chunk is the result of one read, about one
    /// request or reply.
    pub fn hold_after(&self, chunks: u64, traffic: Holds) {
        *lock(&self.planned_hold) = traffic;
        let chunks = i64::try_from(chunks).unwrap_or(i64::MAX);
        self.chunks_left.store(chunks, Ordering::SeqCst);
    }

    /// Closes all connections and drops their held traffic. New connections can be opened.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Returns the number of chunks that have passed.
    #[must_use]
    pub fn passed_chunks(&self) -> u64 {
        self.chunks_passed.load(Ordering::SeqCst)
    }

    /// Returns the number of chunks that were held.
    #[must_use]
    pub fn held_chunks(&self) -> u64 {
        *self.chunks_held.borrow()
    }

    /// Waits until more than `count` chunks were held.
    ///
    /// # Panics
    /// Never: the gate exists as long as the call.
    pub async fn wait_for_held(&self, count: u64) {
        let mut held = self.chunks_held.subscribe();
        let held = held.wait_for(|held| *held > count).await;
        drop(held.expect("the gate exists"));
    }

    /// Waits until a chunk may pass.
    async fn pass(&self, direction: Direction, bytes: &[u8]) {
        if direction == Direction::ToServer
            && let Some(recorded) = &mut *lock(&self.recorded)
        {
            recorded.extend_from_slice(bytes);
        }
        let unreplied = *lock(&self.unreplied);
        if let Some(text) = unreplied
            && direction == Direction::ToServer
            && bytes
                .windows(text.len())
                .any(|window| window == text.as_bytes())
        {
            self.hold(Holds::Replies);
        }
        if self.chunks_left.load(Ordering::SeqCst) >= 0
            && self.chunks_left.fetch_sub(1, Ordering::SeqCst) == 0
        {
            let planned_hold = *lock(&self.planned_hold);
            self.holds.send_replace(planned_hold);
        }
        let mut holds = self.holds.subscribe();
        if holds.borrow().holds(direction) {
            self.chunks_held.send_modify(|held| *held += 1);
            // This gate owns the sender.
            let _open = holds.wait_for(|holds| !holds.holds(direction)).await;
        }
        self.chunks_passed.fetch_add(1, Ordering::SeqCst);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A proxy in front of one server.
#[derive(Debug)]
pub struct Proxy {
    /// The address for clients.
    pub address: String,
    server: Arc<Mutex<String>>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Starts a proxy of a server, controlled by a gate. If the server accepts no connection, the
    /// client's is closed immediately.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start(server: &str, gate: &Arc<Gate>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self::start_on(listener, server, gate)
    }

    /// Starts a proxy on an existing listener.
    ///
    /// # Panics
    /// Never: a listener has an address.
    #[must_use]
    pub fn start_on(listener: TcpListener, server: &str, gate: &Arc<Gate>) -> Self {
        let address = listener.local_addr().expect("an address").to_string();
        let server = Arc::new(Mutex::new(server.to_owned()));
        let (to, gate) = (Arc::clone(&server), Arc::clone(gate));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let to = lock(&to).clone();
                connections.spawn(connection(client, to, Arc::clone(&gate)));
            }
        });
        Self {
            address,
            server,
            _tasks: tasks,
        }
    }

    /// Returns the port for clients.
    ///
    /// # Panics
    /// Never: the address ends with it.
    #[must_use]
    pub fn port(&self) -> u16 {
        let port = self.address.rsplit(':').next();
        port.and_then(|port| port.parse().ok()).expect("a port")
    }

    /// Forwards new connections to another server.
    pub fn forward_to(&self, server: &str) {
        server.clone_into(&mut lock(&self.server));
    }
}

async fn connection(client: TcpStream, to: String, gate: Arc<Gate>) {
    let mut cuts = gate.cuts.subscribe();
    let Ok(server) = TcpStream::connect(&to).await else {
        return;
    };
    let _delayed = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut directions = JoinSet::new();
    directions.spawn(pass(
        from_client,
        to_server,
        Direction::ToServer,
        Arc::clone(&gate),
    ));
    directions.spawn(pass(from_server, to_client, Direction::ToClient, gate));
    tokio::select! {
        _cut = cuts.changed() => directions.abort_all(),
        () = async { while directions.join_next().await.is_some() {} } => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    gate: Arc<Gate>,
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        gate.pass(direction, &bytes[..length]).await;
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}
