//! How long a server is waited for: every call has a deadline, and what may go through later is tried
//! again after a pause that grows and is never the same for two.

use std::future::Future;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{Error, ErrorKind, Result};

const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The patience with one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Patience {
    /// The server as people know it, with its address: `Redis at 127.0.0.1:6379`.
    server: String,
    /// How long one try may take.
    try_for: Duration,
    /// How long all tries of one call may take.
    call_for: Duration,
}

impl Patience {
    pub(crate) const fn new(server: String, try_for: Duration, call_for: Duration) -> Self {
        Self {
            server,
            try_for,
            call_for,
        }
    }

    /// The server as people know it.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// How long all tries of one call may take.
    pub(crate) const fn call_for(&self) -> Duration {
        self.call_for
    }

    /// Pauses between tries: they grow, are never the same for two, and never end.
    pub(crate) fn pauses(&self) -> impl Iterator<Item = Duration> + Send + use<> {
        ExponentialBuilder::default()
            .with_min_delay(PAUSE_FIRST)
            .with_max_delay(PAUSE_MAX)
            .with_jitter()
            .without_max_times()
            .build()
    }

    /// What was to be done, and where.
    pub(crate) fn what(&self, doing: &str) -> String {
        format!("{doing} ({})", self.server)
    }

    /// The error of a server that did not answer.
    pub(crate) fn unavailable(&self, doing: &str, why: impl ToString) -> Error {
        Error::Unavailable {
            what: self.what(doing),
            why: why.to_string(),
        }
    }

    /// One try, which must be over in time. Whether it had an effect is not known if it is not.
    pub(crate) async fn once<T>(
        &self,
        doing: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.until(doing, Instant::now() + self.try_for, call).await
    }

    /// Tries until it goes through, is refused, finds the store full, or all tries together took too long.
    /// The call must be one that may be repeated: a try that failed may have had its effect.
    pub(crate) async fn repeated<T, F: Future<Output = Result<T>>>(
        &self,
        doing: &str,
        mut call: impl FnMut() -> F,
    ) -> Result<T> {
        self.tries(doing, Some(self.try_for), no_turn, |()| call())
            .await
    }

    /// As [`Self::repeated`], but each try first waits for its turn on our side, which takes none of the server's time.
    pub(crate) async fn repeated_in_turn<P, T, W: Future<Output = Result<P>>, F>(
        &self,
        doing: &str,
        turn: impl FnMut() -> W,
        call: impl FnMut(P) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.tries(doing, Some(self.try_for), turn, call).await
    }

    /// As [`Self::repeated`], but a try has no deadline: it has steps, each with its own deadline, that wait for their turn.
    pub(crate) async fn repeated_steps<T, F: Future<Output = Result<T>>>(
        &self,
        doing: &str,
        mut call: impl FnMut() -> F,
    ) -> Result<T> {
        self.tries(doing, None, no_turn, |()| call()).await
    }

    async fn tries<P, T, W: Future<Output = Result<P>>, F>(
        &self,
        doing: &str,
        try_for: Option<Duration>,
        mut turn: impl FnMut() -> W,
        mut call: impl FnMut(P) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut deadline = Instant::now() + self.call_for;
        let mut pauses = self.pauses();
        loop {
            let asked = Instant::now();
            let place = turn().await?;
            deadline += asked.elapsed();
            let done = match try_for {
                Some(try_for) => {
                    let until = deadline.min(Instant::now() + try_for);
                    self.until(doing, until, call(place)).await
                }
                None => call(place).await,
            };
            let error = match done {
                Err(full @ Error::Full { .. }) => return Err(full),
                Err(error) if error.kind() == ErrorKind::Retry => error,
                done => return done,
            };
            let pause = pauses.next().unwrap_or(PAUSE_MAX);
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            tracing::debug!(%error, ?pause, "trying again");
            sleep(pause).await;
        }
    }

    async fn until<T>(
        &self,
        doing: &str,
        deadline: Instant,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let begun = Instant::now();
        match timeout_at(deadline, call).await {
            Ok(done) => done,
            Err(_) => {
                let waited = begun.elapsed().as_secs_f64();
                Err(self.unavailable(doing, format!("no answer within {waited:.1} s")))
            }
        }
    }
}

fn no_turn() -> std::future::Ready<Result<()>> {
    std::future::ready(Ok(()))
}

/// What happened and what led to it, on one line: many clients say only that a request failed.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !said.contains(&more) {
            said.push_str(": ");
            said.push_str(&more);
        }
        cause = error.source();
    }
    let words: Vec<&str> = said.split_whitespace().collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patience() -> Patience {
        let moment = Duration::from_millis(20);
        Patience::new("Redis at nowhere:1".to_owned(), moment, 10 * moment)
    }

    #[tokio::test]
    async fn a_call_that_hangs_ends() {
        let mut tries = 0;
        let patience = patience();
        let hangs = patience.repeated("reading", || {
            tries += 1;
            std::future::pending::<Result<()>>()
        });
        let error = hangs.await.expect_err("nothing came").to_string();
        assert!(error.contains("Redis at nowhere:1"), "{error}");
        assert!(tries > 0);
    }

    #[tokio::test]
    async fn a_wait_for_a_turn_is_not_the_servers_time() {
        let patience = patience();
        let mut tries = 0;
        // Longer than all tries may take.
        let turn = || async {
            sleep(20 * patience.try_for).await;
            Ok(())
        };
        let third = patience.repeated_in_turn("reading", turn, |()| {
            tries += 1;
            let outcome = match tries {
                3 => Ok(tries),
                _ => Err(patience.unavailable("reading", "overloaded")),
            };
            std::future::ready(outcome)
        });
        assert_eq!(third.await.expect("the third"), 3);
    }

    #[tokio::test]
    async fn steps_have_deadlines_of_their_own() {
        let patience = patience();
        let done = patience.repeated_steps("changing", || async {
            sleep(20 * patience.try_for).await;
            patience.once("writing", std::future::ready(Ok(7))).await
        });
        assert_eq!(done.await.expect("a long wait"), 7);
    }

    #[tokio::test]
    async fn what_may_pass_is_tried_again() {
        let long = Duration::from_secs(60);
        let patience = Patience::new("Redis at nowhere:1".to_owned(), long, 10 * long);
        let mut tries = 0;
        let third = patience.repeated("reading", || {
            tries += 1;
            let outcome = if tries < 3 {
                Err(patience.unavailable("reading", "loading"))
            } else {
                Ok(tries)
            };
            std::future::ready(outcome)
        });
        assert_eq!(third.await.expect("the third"), 3);
    }

    #[tokio::test]
    async fn what_is_refused_is_not() {
        let mut tries = 0;
        let patience = patience();
        let refused = patience.repeated("writing", || {
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
