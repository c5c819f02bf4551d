//! Progress on a connection, by which silent and stalled ones are recognized.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long an unused connection may stay while all connections are taken.
const IDLE_WHEN_FULL: Duration = Duration::from_secs(1);
/// How often a connection is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Timeouts {
    /// How long the head of a request may take.
    pub(super) head: Duration,
    /// How long a connection may be without progress.
    pub(super) idle: Duration,
}

/// Keeps a request counted until it is dropped.
pub(super) type Mark = Arc<()>;

/// Progress on one connection: a request begins, or a piece of an answer is taken. Pings are none.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<State>,
    /// Requests whose handler is running. Handlers have limits of their own.
    handlers: Mark,
    /// Requests whose answer is not taken yet, or whose body is not read yet.
    exchanges: Mark,
}

#[derive(Debug)]
struct State {
    is_http1: bool,
    /// When the head of the next request began. That of the first one begins when the connection opens.
    head_began: Option<Instant>,
    progressed: Instant,
}

impl Activity {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let state = Mutex::new(State {
            is_http1: false,
            head_began: Some(now),
            progressed: now,
        });
        Self {
            state,
            handlers: Mark::default(),
            exchanges: Mark::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request whose head has arrived.
    pub(super) fn begin(&self, is_http1: bool) -> Mark {
        *self.state() = State {
            is_http1,
            head_began: None,
            progressed: Instant::now(),
        };
        Arc::clone(&self.exchanges)
    }

    /// Counts a handler that is running.
    pub(super) fn handling(&self) -> Mark {
        Arc::clone(&self.handlers)
    }

    pub(super) fn note(&self) {
        self.state().progressed = Instant::now();
    }

    /// Notes bytes of the client. Between requests they begin a head, except over HTTP/2, where clients also send pings.
    pub(super) fn note_read(&self, bytes: &[u8]) {
        let mut state = self.state();
        if state.is_http1 && !bytes.is_empty() && is_unused(&self.exchanges) {
            state.head_began.get_or_insert_with(Instant::now);
        }
    }

    /// Completes once the connection has exceeded a timeout.
    pub(super) async fn expired(&self, timeouts: &Timeouts, is_full: impl Fn() -> bool) {
        loop {
            let left = self.left(timeouts, is_full());
            if left.is_zero() {
                return;
            }
            sleep(left.min(CHECK_INTERVAL)).await;
        }
    }

    fn left(&self, timeouts: &Timeouts, is_full: bool) -> Duration {
        let state = self.state();
        match state.head_began {
            _ if !is_unused(&self.handlers) => CHECK_INTERVAL,
            Some(began) => timeouts.head.saturating_sub(began.elapsed()),
            None => {
                let idle = match is_full && is_unused(&self.exchanges) {
                    true => IDLE_WHEN_FULL.min(timeouts.idle),
                    false => timeouts.idle,
                };
                idle.saturating_sub(state.progressed.elapsed())
            }
        }
    }
}

fn is_unused(mark: &Mark) -> bool {
    Arc::strong_count(mark) == 1
}
