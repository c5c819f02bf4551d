//! Progress on a connection, by which silent and stalled ones are recognized.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::lock::lock;

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

/// Counts a running handler until it is dropped.
pub(super) type HandlerGuard = Arc<()>;

/// One request and its answer, counted until both are done.
#[derive(Debug)]
pub(super) struct Exchange {
    activity: Arc<Activity>,
    id: u64,
}

impl Exchange {
    /// Records that the client has room for a piece of the answer, and must take it now.
    pub(super) fn record_piece(&self) {
        let now = Instant::now();
        let mut state = self.activity.state();
        state.progressed = now;
        state.exchanges.insert(self.id, Some(now));
    }

    /// Records that the answer waits for its handler, not for the client.
    pub(super) fn record_wait(&self) {
        self.activity.state().exchanges.insert(self.id, None);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.activity.state().exchanges.remove(&self.id);
    }
}

/// Progress on one connection: a request begins, or a piece of an answer is taken. Pings are none.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<State>,
    /// Requests whose handler is running. Handlers have limits of their own.
    handlers: HandlerGuard,
}

#[derive(Debug)]
struct State {
    is_http1: bool,
    /// When the head of the next request began. That of the first one begins when the connection opens.
    head_began: Option<Instant>,
    progressed: Instant,
    /// The next exchange's id.
    next_id: u64,
    /// Exchanges whose answer is not sent yet, or whose body is not read yet; each with the time since when the client must take a
    /// piece of the answer.
    exchanges: HashMap<u64, Option<Instant>>,
}

impl Activity {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let state = Mutex::new(State {
            is_http1: false,
            head_began: Some(now),
            progressed: now,
            next_id: 0,
            exchanges: HashMap::new(),
        });
        Self {
            state,
            handlers: HandlerGuard::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Counts a request whose head has arrived.
    pub(super) fn begin(self: &Arc<Self>, is_http1: bool) -> Exchange {
        let mut state = self.state();
        state.is_http1 = is_http1;
        state.head_began = None;
        state.progressed = Instant::now();
        let id = state.next_id;
        state.next_id += 1;
        state.exchanges.insert(id, None);
        drop(state);
        Exchange {
            activity: Arc::clone(self),
            id,
        }
    }

    /// Counts a handler that is running.
    pub(super) fn handling(&self) -> HandlerGuard {
        Arc::clone(&self.handlers)
    }

    pub(super) fn note(&self) {
        self.state().progressed = Instant::now();
    }

    /// Notes bytes of the client. Between requests they begin a head, except over HTTP/2, where clients also send pings.
    pub(super) fn note_read(&self, bytes: &[u8]) {
        let mut state = self.state();
        if state.is_http1 && !bytes.is_empty() && state.exchanges.is_empty() {
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
            // An answer that is not taken is not kept by others beside it.
            _ if state.stalled_for() >= timeouts.idle => Duration::ZERO,
            _ if Arc::strong_count(&self.handlers) > 1 => CHECK_INTERVAL,
            Some(began) => timeouts.head.saturating_sub(began.elapsed()),
            None => {
                let idle = match is_full && state.exchanges.is_empty() {
                    true => IDLE_WHEN_FULL.min(timeouts.idle),
                    false => timeouts.idle,
                };
                idle.saturating_sub(state.progressed.elapsed())
            }
        }
    }
}

impl State {
    /// How long the client has not taken a piece of an answer.
    fn stalled_for(&self) -> Duration {
        let oldest = self.exchanges.values().flatten().min();
        oldest.map_or(Duration::ZERO, Instant::elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other requests on the same connection do not extend the time of an answer that the client does not take.
    #[tokio::test]
    async fn an_answer_that_is_not_taken_ends_a_busy_connection() {
        let timeouts = Timeouts {
            head: Duration::from_secs(1),
            idle: Duration::from_secs(2),
        };
        let activity = Arc::new(Activity::new());
        let waiting = activity.begin(false);
        waiting.record_wait();
        let stalled = activity.begin(false);
        stalled.record_piece();
        sleep(timeouts.idle).await;
        activity.begin(false).record_piece();
        assert!(activity.left(&timeouts, false).is_zero());
        drop(stalled);
        activity.begin(false).record_piece();
        assert!(!activity.left(&timeouts, false).is_zero());
    }
}
