//! How long a read tries again.

use std::fmt::Display;

use tokio::time::{Duration, Instant, sleep};

const FIRST_WAIT: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// The waits between the tries of a read. They are counted from the first failure on, and there is
/// one more try in any case: a slow first one must not be the only one.
#[derive(Debug)]
pub(crate) struct Patience {
    length: Duration,
    wait: Duration,
    failed_at: Option<Instant>,
}

impl Patience {
    pub(crate) const fn of(length: Duration) -> Self {
        Self {
            length,
            wait: FIRST_WAIT,
            failed_at: None,
        }
    }

    /// Waits before the next try. Answers false if there is to be none.
    pub(crate) async fn wait(&mut self, error: &impl Display) -> bool {
        metrics::counter!("backstitch_serving_not_whole_total").increment(1);
        let is_first = self.failed_at.is_none();
        let failed_at = *self.failed_at.get_or_insert_with(Instant::now);
        if !is_first && failed_at.elapsed() + self.wait > self.length {
            return false;
        }
        tracing::debug!(%error, "reading again");
        sleep(self.wait).await;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        true
    }
}
