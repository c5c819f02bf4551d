//! Retry budget of a read.

use std::fmt::Display;

use tokio::time::{Duration, Instant, sleep};

const FIRST_WAIT: Duration = Duration::from_millis(5);
const WAIT_MAX: Duration = Duration::from_millis(200);

/// Waits between the attempts of a read. The budget starts at the first failure, and always permits
/// one retry, even after a slow first attempt.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    limit: Duration,
    wait: Duration,
    failed_at: Option<Instant>,
}

impl RetryBudget {
    pub(crate) const fn new(limit: Duration) -> Self {
        Self {
            limit,
            wait: FIRST_WAIT,
            failed_at: None,
        }
    }

    /// Waits before the next attempt. Returns false if the budget is exhausted.
    pub(crate) async fn wait_before_retry(&mut self, error: &impl Display) -> bool {
        metrics::counter!("backstitch_serving_not_whole_total").increment(1);
        let is_first = self.failed_at.is_none();
        let failed_at = *self.failed_at.get_or_insert_with(Instant::now);
        if !is_first && failed_at.elapsed() + self.wait > self.limit {
            return false;
        }
        tracing::debug!(%error, "reading again");
        sleep(self.wait).await;
        self.wait = (self.wait * 2).min(WAIT_MAX);
        true
    }
}
