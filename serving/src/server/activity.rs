//! Progress of connections, which reveals idle and stalled connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::lock::lock;

/// Idle timeout while the maximum number of connections is open.
const FULL_IDLE_TIMEOUT: Duration = Duration::from_secs(1);
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
        let mut state = self.activity.lock_state();
        state.progressed_at = now;
        state.exchanges.insert(self.id, Some(now));
    }

    /// Records that the response waits for its handler, not for the client.
    pub(super) fn record_wait(&self) {
        self.activity.lock_state().exchanges.insert(self.id, None);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.activity.lock_state().exchanges.remove(&self.id);
    }
}

/// Progress of one connection. It progresses when a request begins, and when it takes a chunk of a
/// response. Pings do not count.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<ActivityState>,
    /// Counts running handlers, which have their own time limit.
    handlers: HandlerGuard,
}

#[derive(Debug)]
struct ActivityState {
    is_http1: bool,
    /// When the head of the next request began. The first one begins when the connection opens.
    head_began_at: Option<Instant>,
    progressed_at: Instant,
    /// Id of the next exchange.
    next_id: u64,
    /// Exchanges whose response is not sent or whose body is not read completely. Each has the time
    /// since when the client must receive a chunk of the response.
    exchanges: HashMap<u64, Option<Instant>>,
}

impl Activity {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let state = Mutex::new(ActivityState {
            is_http1: false,
            head_began_at: Some(now),
            progressed_at: now,
            next_id: 0,
            exchanges: HashMap::new(),
        });
        Self {
            state,
            handlers: HandlerGuard::default(),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, ActivityState> {
        lock(&self.state)
    }

    /// Counts a request whose head has arrived.
    pub(super) fn begin_exchange(self: &Arc<Self>, is_http1: bool) -> Exchange {
        let mut state = self.lock_state();
        state.is_http1 = is_http1;
        state.head_began_at = None;
        state.progressed_at = Instant::now();
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
    pub(super) fn guard_handler(&self) -> HandlerGuard {
        Arc::clone(&self.handlers)
    }

    /// Records progress.
    pub(super) fn record_progress(&self) {
        self.lock_state().progressed_at = Instant::now();
    }

    /// Records bytes from the client. Between requests they begin a head, except over HTTP/2, where
    /// clients also send pings.
    pub(super) fn record_read(&self, bytes: &[u8]) {
        let mut state = self.lock_state();
        if state.is_http1 && !bytes.is_empty() && state.exchanges.is_empty() {
            state.head_began_at.get_or_insert_with(Instant::now);
        }
    }

    /// Completes once the connection has exceeded a timeout.
    pub(super) async fn wait_until_expired(&self, timeouts: &Timeouts, is_full: impl Fn() -> bool) {
        loop {
            let remaining = self.remaining_time(timeouts, is_full());
            if remaining.is_zero() {
                return;
            }
            sleep(remaining.min(CHECK_INTERVAL)).await;
        }
    }

    fn remaining_time(&self, timeouts: &Timeouts, is_full: bool) -> Duration {
        let state = self.lock_state();
        match state.head_began_at {
            // Other exchanges do not extend the time of a stalled response.
            _ if state.stall_time() >= timeouts.idle => Duration::ZERO,
            _ if Arc::strong_count(&self.handlers) > 1 => CHECK_INTERVAL,
            Some(began_at) => timeouts.head.saturating_sub(began_at.elapsed()),
            None => {
                let idle_timeout = match is_full && state.exchanges.is_empty() {
                    true => FULL_IDLE_TIMEOUT.min(timeouts.idle),
                    false => timeouts.idle,
                };
                idle_timeout.saturating_sub(state.progressed_at.elapsed())
            }
        }
    }
}

impl ActivityState {
    /// Returns how long the client has not received a chunk of a response.
    fn stall_time(&self) -> Duration {
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
        let waiting = activity.begin_exchange(false);
        waiting.record_wait();
        let stalled = activity.begin_exchange(false);
        stalled.record_chunk();
        sleep(timeouts.idle).await;
        activity.begin_exchange(false).record_chunk();
        assert!(activity.remaining_time(&timeouts, false).is_zero());
        drop(stalled);
        activity.begin_exchange(false).record_chunk();
        assert!(!activity.remaining_time(&timeouts, false).is_zero());
    }
}
