//! Progress of connections, which reveals idle and stalled ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::lock::lock;

/// Idle timeout while the maximum number of connections is open.
const IDLE_WHEN_FULL: Duration = Duration::from_secs(1);
/// Interval between checks of a connection.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Timeouts {
    /// Time limit of the head of a request.
    pub(super) head: Duration,
    /// Time limit without progress.
    pub(super) idle: Duration,
}

/// Counts a running handler until it is dropped.
pub(super) type HandlerGuard = Arc<()>;

/// One request and its response, counted until both are complete.
#[derive(Debug)]
pub(super) struct Exchange {
    activity: Arc<Activity>,
    id: u64,
}

impl Exchange {
    /// Records that the connection took a chunk of the response. From now on the client must
    /// receive it.
    pub(super) fn record_chunk(&self) {
        let now = Instant::now();
        let mut state = self.activity.state();
        state.progressed = now;
        state.exchanges.insert(self.id, Some(now));
    }

    /// Records that the response waits for its handler, not for the client.
    pub(super) fn record_wait(&self) {
        self.activity.state().exchanges.insert(self.id, None);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.activity.state().exchanges.remove(&self.id);
    }
}

/// Progress of one connection: a request begins, or the connection takes a chunk of a response.
/// Pings do not count.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<State>,
    /// Counts running handlers, which have their own time limit.
    handlers: HandlerGuard,
}

#[derive(Debug)]
struct State {
    is_http1: bool,
    /// When the head of the next request began. The first one begins when the connection opens.
    head_began: Option<Instant>,
    progressed: Instant,
    /// Id of the next exchange.
    next_id: u64,
    /// Exchanges whose response is not sent or whose body is not read completely. Each has the time
    /// since when the client must receive a chunk of the response.
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

    /// Records progress.
    pub(super) fn record_progress(&self) {
        self.state().progressed = Instant::now();
    }

    /// Records bytes from the client. Between requests they begin a head, except over HTTP/2, where
    /// clients also send pings.
    pub(super) fn record_read(&self, bytes: &[u8]) {
        let mut state = self.state();
        if state.is_http1 && !bytes.is_empty() && state.exchanges.is_empty() {
            state.head_began.get_or_insert_with(Instant::now);
        }
    }

    /// Completes once the connection has exceeded a timeout.
    pub(super) async fn expired(&self, timeouts: &Timeouts, is_full: impl Fn() -> bool) {
        loop {
            let left = self.time_left(timeouts, is_full());
            if left.is_zero() {
                return;
            }
            sleep(left.min(CHECK_INTERVAL)).await;
        }
    }

    fn time_left(&self, timeouts: &Timeouts, is_full: bool) -> Duration {
        let state = self.state();
        match state.head_began {
            // Other exchanges do not extend the time of a stalled response.
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
    /// Returns how long the client has not received a chunk of a response.
    fn stalled_for(&self) -> Duration {
        let oldest = self.exchanges.values().flatten().min();
        oldest.map_or(Duration::ZERO, Instant::elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other requests on the same connection do not extend the time of a stalled response.
    #[tokio::test]
    async fn a_stalled_response_ends_a_busy_connection() {
        let timeouts = Timeouts {
            head: Duration::from_secs(1),
            idle: Duration::from_secs(2),
        };
        let activity = Arc::new(Activity::new());
        let waiting = activity.begin(false);
        waiting.record_wait();
        let stalled = activity.begin(false);
        stalled.record_chunk();
        sleep(timeouts.idle).await;
        activity.begin(false).record_chunk();
        assert!(activity.time_left(&timeouts, false).is_zero());
        drop(stalled);
        activity.begin(false).record_chunk();
        assert!(!activity.time_left(&timeouts, false).is_zero());
    }
}
