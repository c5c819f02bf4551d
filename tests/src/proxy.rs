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
    Answers,
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
            Self::Answers => direction == Direction::ToClient,
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
    left: AtomicI64,
    then: Mutex<Holds>,
    /// A text in requests whose answers are to be held.
    unanswered: Mutex<Option<&'static str>>,
    /// Data from clients while it is recorded.
    recorded: Mutex<Option<Vec<u8>>>,
    passed: AtomicU64,
    /// Number of chunks that were held.
    held: watch::Sender<u64>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            holds: watch::Sender::new(Holds::Nothing),
            cuts: watch::Sender::new(0),
            left: AtomicI64::new(-1),
            then: Mutex::new(Holds::Nothing),
            unanswered: Mutex::new(None),
            recorded: Mutex::new(None),
            passed: AtomicU64::new(0),
            held: watch::Sender::new(0),
        }
    }
}

impl Gate {
    /// Holds this traffic from now on, and releases other held traffic.
    pub fn hold(&self, what: Holds) {
        self.left.store(-1, Ordering::SeqCst);
        *lock(&self.unanswered) = None;
        self.holds.send_replace(what);
    }

    /// Holds all answers once a request with this text has passed.
    pub fn hold_answer_to(&self, text: &'static str) {
        *lock(&self.unanswered) = Some(text);
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
    /// request or answer.
    pub fn hold_after(&self, pieces: u64, what: Holds) {
        *lock(&self.then) = what;
        let pieces = i64::try_from(pieces).unwrap_or(i64::MAX);
        self.left.store(pieces, Ordering::SeqCst);
    }

    /// Closes all connections and drops their held traffic. New connections can be opened.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Returns the number of chunks that have passed.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }

    /// Returns the number of chunks that were held.
    #[must_use]
    pub fn held(&self) -> u64 {
        *self.held.borrow()
    }

    /// Waits until more than `before` chunks were held.
    ///
    /// # Panics
    /// Never: the gate exists as long as the call.
    pub async fn wait_for_held(&self, before: u64) {
        let mut held = self.held.subscribe();
        let held = held.wait_for(|held| *held > before).await;
        drop(held.expect("the gate exists"));
    }

    /// Waits until a chunk may pass.
    async fn pass(&self, direction: Direction, bytes: &[u8]) {
        if direction == Direction::ToServer
            && let Some(recorded) = &mut *lock(&self.recorded)
        {
            recorded.extend_from_slice(bytes);
        }
        let unanswered = *lock(&self.unanswered);
        if let Some(text) = unanswered
            && direction == Direction::ToServer
            && bytes.windows(text.len()).any(|at| at == text.as_bytes())
        {
            self.hold(Holds::Answers);
        }
        if self.left.load(Ordering::SeqCst) >= 0 && self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            let then = *lock(&self.then);
            self.holds.send_replace(then);
        }
        let mut holds = self.holds.subscribe();
        if holds.borrow().holds(direction) {
            self.held.send_modify(|held| *held += 1);
            // This gate owns the sender.
            let _open = holds.wait_for(|holds| !holds.holds(direction)).await;
        }
        self.passed.fetch_add(1, Ordering::SeqCst);
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
    pub async fn to(server: &str, gate: &Arc<Gate>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self::on(listener, server, gate)
    }

    /// Starts a proxy on an existing listener.
    ///
    /// # Panics
    /// Never: a listener has an address.
    #[must_use]
    pub fn on(listener: TcpListener, server: &str, gate: &Arc<Gate>) -> Self {
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
    let mut ways = JoinSet::new();
    ways.spawn(pass(
        from_client,
        to_server,
        Direction::ToServer,
        Arc::clone(&gate),
    ));
    ways.spawn(pass(from_server, to_client, Direction::ToClient, gate));
    tokio::select! {
        _cut = cuts.changed() => ways.abort_all(),
        () = async { while ways.join_next().await.is_some() {} } => {}
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
