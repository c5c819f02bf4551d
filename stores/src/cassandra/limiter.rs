//! Limits concurrent requests. The limit is halved when the servers are slow or report overload,
//! and grows by one after as many successful requests as it allows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// All concurrent requests report the same overload, so it counts once within this time.
const OVERLOAD_WINDOW: Duration = Duration::from_millis(500);

/// An adaptive limit of concurrent requests.
#[derive(Debug)]
pub(super) struct ConcurrencyLimiter {
    permits: Arc<Semaphore>,
    state: Mutex<LimiterState>,
}

#[derive(Debug)]
struct LimiterState {
    max: usize,
    limit: usize,
    /// The number of permits. They exceed `limit` until acquired ones are released.
    permit_count: usize,
    successes: usize,
    halved_at: Option<Instant>,
    /// When a request was last answered.
    answered_at: Option<Instant>,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    /// The servers answered it.
    Answered,
    /// The servers could not keep up.
    Overloaded,
    /// Another failure, for example of the connection.
    Failed,
}

impl ConcurrencyLimiter {
    pub(super) fn new(max: usize) -> Self {
        let max = max.clamp(1, 4096);
        Self {
            permits: Arc::new(Semaphore::new(max)),
            state: Mutex::new(LimiterState {
                max,
                limit: max,
                permit_count: max,
                successes: 0,
                halved_at: None,
                answered_at: None,
            }),
        }
    }

    /// Waits for a permit as long as other requests are answered. Returns `None` if none was
    /// answered for `silent_for`.
    pub(super) async fn acquire(&self, silent_for: Duration) -> Option<OwnedSemaphorePermit> {
        let mut acquiring = std::pin::pin!(Arc::clone(&self.permits).acquire_owned());
        let mut wait_start = Instant::now();
        loop {
            if let Ok(permit) = timeout_at(wait_start + silent_for, &mut acquiring).await {
                return permit.ok();
            }
            wait_start = self
                .state()
                .answered_at
                .filter(|answered_at| *answered_at > wait_start)?;
        }
    }

    /// The current limit.
    pub(super) fn limit(&self) -> usize {
        self.state().limit
    }

    fn state(&self) -> MutexGuard<'_, LimiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the permit of a request, if it had one, and adapts the limit.
    pub(super) fn release(&self, permit: Option<OwnedSemaphorePermit>, outcome: RequestOutcome) {
        let mut state = self.state();
        let now = Instant::now();
        match outcome {
            RequestOutcome::Overloaded => {
                if state
                    .halved_at
                    .is_none_or(|halved_at| now - halved_at > OVERLOAD_WINDOW)
                {
                    state.limit = (state.limit / 2).max(1);
                    state.halved_at = Some(now);
                    state.successes = 0;
                    tracing::warn!(
                        in_flight = state.limit,
                        "Cassandra is overloaded; reducing concurrent requests"
                    );
                }
            }
            RequestOutcome::Answered => {
                state.answered_at = Some(now);
                state.successes += 1;
                if state.successes >= state.limit && state.limit < state.max {
                    state.limit += 1;
                    state.successes = 0;
                }
            }
            RequestOutcome::Failed => {}
        }
        if state.permit_count > state.limit
            && let Some(permit) = permit
        {
            permit.forget();
            state.permit_count -= 1;
        } else if state.permit_count < state.limit {
            self.permits.add_permits(1);
            state.permit_count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn waits_while_other_requests_are_answered() {
        let limiter = ConcurrencyLimiter::new(1);
        let permit = limiter.acquire(LONG).await;
        let interval = Duration::from_millis(50);
        assert!(
            limiter.acquire(interval).await.is_none(),
            "no request is answered"
        );
        let answers = async {
            // Longer than a wait without answers may last.
            for _ in 0..50 {
                tokio::time::sleep(interval).await;
                limiter.release(None, RequestOutcome::Answered);
            }
            limiter.release(permit, RequestOutcome::Answered);
        };
        let (waited, ()) = tokio::join!(limiter.acquire(40 * interval), answers);
        assert!(waited.is_some());
    }

    #[tokio::test]
    async fn limit_is_halved_once_and_grows_slowly() {
        let limiter = ConcurrencyLimiter::new(8);
        let mut permits = Vec::new();
        for _ in 0..8 {
            permits.push(limiter.acquire(LONG).await);
        }
        for permit in permits {
            limiter.release(permit, RequestOutcome::Overloaded);
        }
        assert_eq!(limiter.permits.available_permits(), 4, "halved once");
        for _ in 0..4 {
            let permit = limiter.acquire(LONG).await;
            limiter.release(permit, RequestOutcome::Answered);
        }
        assert_eq!(limiter.permits.available_permits(), 5);
        for _ in 0..100 {
            let permit = limiter.acquire(LONG).await;
            limiter.release(permit, RequestOutcome::Answered);
        }
        assert_eq!(
            limiter.permits.available_permits(),
            8,
            "never more than the maximum"
        );
    }
}
