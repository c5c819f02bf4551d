//! Deadlines and retries of calls to servers. Every call has a deadline. Transient errors are
//! retried after a pause that grows and has jitter.

use std::future::Future;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{Error, ErrorKind, Result};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// The deadlines and retries of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RetryPolicy {
    /// The name and address for messages: `Redis at 127.0.0.1:6379`.
    server: String,
    /// The deadline of one try.
    try_timeout: Duration,
    /// The deadline of all tries of a call.
    call_timeout: Duration,
}

impl RetryPolicy {
    pub(crate) const fn new(server: String, try_timeout: Duration, call_timeout: Duration) -> Self {
        Self {
            server,
            try_timeout,
            call_timeout,
        }
    }

    /// The name and address of the server.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// The deadline of all tries of a call.
    pub(crate) const fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    /// Pauses between tries: they grow, have jitter, and never end.
    pub(crate) fn pauses(&self) -> impl Iterator<Item = Duration> + Send + use<> {
        ExponentialBuilder::default()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(MAX_PAUSE)
            .with_jitter()
            .without_max_times()
            .build()
    }

    /// Describes an operation and its server.
    pub(crate) fn describe(&self, operation: &str) -> String {
        format!("{operation} ({})", self.server)
    }

    /// The error of a server that did not respond.
    pub(crate) fn unavailable(&self, operation: &str, reason: impl ToString) -> Error {
        Error::Unavailable {
            operation: self.describe(operation),
            reason: reason.to_string(),
        }
    }

    /// Makes one try before the deadline of a try. After a timeout it is unknown whether the call
    /// had its effect.
    pub(crate) async fn try_once<T>(
        &self,
        operation: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.run_until(operation, Instant::now() + self.try_timeout, call)
            .await
    }

    /// Retries until the call succeeds, is rejected, finds the store full, or all tries together
    /// take too long. The call must be idempotent, because a failed try may have had its effect.
    pub(crate) async fn retry<T, F: Future<Output = Result<T>>>(
        &self,
        operation: &str,
        mut call: impl FnMut() -> F,
    ) -> Result<T> {
        self.run_tries(operation, Some(self.try_timeout), no_permit, |()| call())
            .await
    }

    /// Retries like [`Self::retry`]. Each try first waits for a local permit; this wait does not
    /// count towards the deadlines.
    pub(crate) async fn retry_with_permit<P, T, W: Future<Output = Result<P>>, F>(
        &self,
        operation: &str,
        acquire: impl FnMut() -> W,
        call: impl FnMut(P) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.run_tries(operation, Some(self.try_timeout), acquire, call)
            .await
    }

    /// Retries like [`Self::retry`], but a try has no deadline: its steps have their own deadlines
    /// and wait for permits.
    pub(crate) async fn retry_steps<T, F: Future<Output = Result<T>>>(
        &self,
        operation: &str,
        mut call: impl FnMut() -> F,
    ) -> Result<T> {
        self.run_tries(operation, None, no_permit, |()| call())
            .await
    }

    async fn run_tries<P, T, W: Future<Output = Result<P>>, F>(
        &self,
        operation: &str,
        try_timeout: Option<Duration>,
        mut acquire: impl FnMut() -> W,
        mut call: impl FnMut(P) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut deadline = Instant::now() + self.call_timeout;
        let mut pauses = self.pauses();
        loop {
            let waiting_since = Instant::now();
            let permit = acquire().await?;
            deadline += waiting_since.elapsed();
            let outcome = match try_timeout {
                Some(try_timeout) => {
                    let try_deadline = deadline.min(Instant::now() + try_timeout);
                    self.run_until(operation, try_deadline, call(permit)).await
                }
                None => call(permit).await,
            };
            let error = match outcome {
                Err(full @ Error::Full { .. }) => return Err(full),
                Err(error) if error.kind() == ErrorKind::Retry => error,
                outcome => return outcome,
            };
            let pause = pauses.next().unwrap_or(MAX_PAUSE);
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            tracing::debug!(%error, ?pause, "retrying the call");
            sleep(pause).await;
        }
    }

    async fn run_until<T>(
        &self,
        operation: &str,
        deadline: Instant,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let started = Instant::now();
        match timeout_at(deadline, call).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let waited = started.elapsed().as_secs_f64();
                Err(self.unavailable(operation, format!("no response within {waited:.1} s")))
            }
        }
    }
}

fn no_permit() -> std::future::Ready<Result<()>> {
    std::future::ready(Ok(()))
}

/// Formats an error and its causes on one line. Many clients only say at the top that a
/// request failed.
pub(crate) fn format_error_chain(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let cause_message = error.to_string();
        if !message.contains(&cause_message) {
            message.push_str(": ");
            message.push_str(&cause_message);
        }
        cause = error.source();
    }
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> RetryPolicy {
        let moment = Duration::from_millis(20);
        RetryPolicy::new("Redis at nowhere:1".to_owned(), moment, 10 * moment)
    }

    #[tokio::test]
    async fn a_hanging_call_times_out() {
        let mut tries = 0;
        let policy = policy();
        let hangs = policy.retry("reading", || {
            tries += 1;
            std::future::pending::<Result<()>>()
        });
        let error = hangs.await.expect_err("a timeout").to_string();
        assert!(error.contains("Redis at nowhere:1"), "{error}");
        assert!(tries > 0);
    }

    #[tokio::test]
    async fn waiting_for_a_permit_does_not_use_the_deadline() {
        let policy = policy();
        let mut tries = 0;
        // Longer than the deadline of all tries.
        let acquire = || async {
            sleep(20 * policy.try_timeout).await;
            Ok(())
        };
        let third = policy.retry_with_permit("reading", acquire, |()| {
            tries += 1;
            let outcome = match tries {
                3 => Ok(tries),
                _ => Err(policy.unavailable("reading", "overloaded")),
            };
            std::future::ready(outcome)
        });
        assert_eq!(third.await.expect("the third"), 3);
    }

    #[tokio::test]
    async fn steps_have_their_own_deadlines() {
        let policy = policy();
        let outcome = policy.retry_steps("changing", || async {
            sleep(20 * policy.try_timeout).await;
            policy.try_once("writing", std::future::ready(Ok(7))).await
        });
        assert_eq!(outcome.await.expect("a long wait"), 7);
    }

    #[tokio::test]
    async fn transient_errors_are_retried() {
        let long = Duration::from_secs(60);
        let policy = RetryPolicy::new("Redis at nowhere:1".to_owned(), long, 10 * long);
        let mut tries = 0;
        let third = policy.retry("reading", || {
            tries += 1;
            let outcome = if tries < 3 {
                Err(policy.unavailable("reading", "loading"))
            } else {
                Ok(tries)
            };
            std::future::ready(outcome)
        });
        assert_eq!(third.await.expect("the third"), 3);
    }

    #[tokio::test]
    async fn rejections_are_not_retried() {
        let mut tries = 0;
        let policy = policy();
        let refused = policy.retry("writing", || {
            tries += 1;
            std::future::ready(Err::<(), _>(Error::Refused("no".to_owned())))
        });
        assert_eq!(
            refused.await.expect_err("refused").kind(),
            ErrorKind::Reject
        );
        assert_eq!(tries, 1);
    }
}
