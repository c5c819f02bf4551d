//! Leases: a row for each, changed by lightweight transactions. What names the holder has a time to
//! live and is renewed at a third of it; the fencing number has none, and rises with every holder.
//!
//! The time to live counts at the servers from when they write, the holder's from before it asked: so
//! the holder knows that its lease is over before anybody else can take it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::CassandraOptions;
use super::session::{Cql, Outcome};
use crate::lease::{Held, Leases, check_name};
use crate::{Error, Result};

/// Servers count whole seconds, and their clocks are not quite ours.
const EARLY: Duration = Duration::from_secs(2);
const SHORTEST: Duration = Duration::from_secs(5);
/// Who lets go does not wait for long: the lease ends by itself.
const LET_GO_FOR: Duration = Duration::from_secs(3);

/// Leases in a keyspace.
#[derive(Debug, Clone)]
pub struct CassandraLeases {
    cql: Arc<Cql>,
    lasts: Duration,
}

/// The holder's side of a lease.
#[derive(Debug)]
struct CassandraHeld {
    taken: Arc<Taken>,
    /// Ends the task that renews, which then gives the lease back.
    over: CancellationToken,
    loss: Loss,
    task: Option<JoinHandle<()>>,
}

/// Whether a lease was lost, and why.
#[derive(Debug, Clone, Default)]
struct Loss {
    token: CancellationToken,
    why: Arc<OnceLock<String>>,
}

impl Loss {
    fn tell(&self, lease: &str, why: String) {
        tracing::error!(lease, why, "lost");
        // It is told once: the task that renews ends with it.
        let _first = self.why.set(why);
        self.token.cancel();
    }
}

#[async_trait]
impl Held for CassandraHeld {
    fn lost(&self) -> CancellationToken {
        self.loss.token.clone()
    }

    async fn is_held(&self) -> Result<bool> {
        let now = self.taken.look(&self.taken.doing("looking at")).await?;
        Ok(!self.loss.token.is_cancelled() && now.token.as_ref() == Some(&self.taken.token))
    }

    fn why_lost(&self) -> Option<String> {
        self.loss.why.get().cloned()
    }

    async fn let_go(mut self: Box<Self>) {
        self.over.cancel();
        if let Some(task) = self.task.take()
            && timeout(LET_GO_FOR, task).await.is_err()
        {
            tracing::warn!("a lease could not be given back; it ends by itself");
        }
    }
}

impl Drop for CassandraHeld {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

/// A lease that was taken.
#[derive(Debug)]
struct Taken {
    cql: Arc<Cql>,
    name: String,
    holder: String,
    token: String,
    lasts: Duration,
}

impl CassandraLeases {
    pub(super) fn new(cql: Arc<Cql>, options: &CassandraOptions) -> Self {
        let lasts = Duration::from_millis(options.lease_ms).max(SHORTEST);
        Self { cql, lasts }
    }

    /// Takes a lease, or answers who holds it.
    pub(super) async fn take(
        &self,
        name: &str,
        holder: &str,
    ) -> Result<Result<Box<dyn Held>, String>> {
        let taken = Arc::new(Taken {
            cql: Arc::clone(&self.cql),
            name: name.to_owned(),
            holder: holder.to_owned(),
            token: Uuid::new_v4().simple().to_string(),
            lasts: self.lasts,
        });
        let asked = Instant::now();
        if let Err(holder) = taken.take().await? {
            return Ok(Err(holder));
        }
        let (over, loss) = (CancellationToken::new(), Loss::default());
        let keeping = Arc::clone(&taken).keep(asked, over.clone(), loss.clone());
        #[expect(
            clippy::disallowed_methods,
            reason = "it ends with the lease, which owns it and outlives the call"
        )]
        let task = tokio::spawn(keeping);
        Ok(Ok(Box::new(CassandraHeld {
            taken,
            over,
            loss,
            task: Some(task),
        })))
    }
}

#[async_trait]
impl Leases for CassandraLeases {
    async fn acquire(&self, name: &str, holder: &str) -> Result<Result<Box<dyn Held>, String>> {
        check_name(name)?;
        self.take(&format!("of {name}"), holder).await
    }
}

/// What stands in the row of a lease.
#[derive(Debug, Default)]
struct Standing {
    fence: Option<i64>,
    token: Option<String>,
    holder: Option<String>,
    /// When the holder took it.
    since_us: Option<i64>,
}

impl Standing {
    fn told(self) -> String {
        let holder = self.holder.unwrap_or_else(|| "somebody".to_owned());
        let since = self
            .since_us
            .and_then(|us| Timestamp::from_microsecond(us).ok());
        since.map_or_else(
            || holder.clone(),
            |since| format!("{holder} (since {since:.0})"),
        )
    }
}

impl Taken {
    fn doing(&self, what: &str) -> String {
        format!("{what} the lease {}", self.name.trim_start_matches("of "))
    }

    fn seconds(&self) -> i32 {
        i32::try_from(self.lasts.as_secs()).unwrap_or(i32::MAX)
    }

    async fn look(&self, doing: &str) -> Result<Standing> {
        let text = "SELECT fence, held_by, holder, WRITETIME(fence) FROM leases WHERE name = ?";
        type Row = (Option<i64>, Option<String>, Option<String>, Option<i64>);
        let row: Option<Row> = self.cql.first_serial(doing, text, (&self.name,)).await?;
        let (fence, token, holder, since_us) = row.unwrap_or_default();
        Ok(Standing {
            fence,
            token,
            holder,
            since_us,
        })
    }

    /// Takes the lease, or answers who holds it.
    async fn take(&self) -> Result<Result<(), String>> {
        let doing = &self.doing("taking");
        let number = "UPDATE leases SET fence = ? WHERE name = ? IF fence = ? AND held_by = NULL";
        let holder = "UPDATE leases USING TTL ? SET held_by = ?, holder = ? WHERE name = ?";
        let patience = self.cql.patience();
        patience
            .repeated_steps(doing, || async {
                let now = self.look(doing).await?;
                if now.token.as_ref() == Some(&self.token) {
                    // An earlier try of ours, of which nothing was told.
                    return Ok(Ok(()));
                }
                if now.token.is_some() {
                    return Ok(Err(now.told()));
                }
                let statements = vec![
                    self.cql.prepare(doing, number).await?,
                    self.cql.prepare(doing, holder).await?,
                ];
                let fence = now.fence.unwrap_or(0) + 1;
                let values = (
                    (fence, &self.name, now.fence),
                    (self.seconds(), &self.token, &self.holder, &self.name),
                );
                match self.cql.agree_all(doing, statements, values).await? {
                    Outcome::Applied => {
                        tracing::debug!(lease = self.name, fence, "taken");
                        Ok(Ok(()))
                    }
                    Outcome::NotApplied(_) => {
                        Err(patience.unavailable(doing, "somebody else was quicker"))
                    }
                    Outcome::Unknown(error) => Err(error),
                }
            })
            .await
    }

    /// Renews the lease until it is over, and then gives it back.
    async fn keep(self: Arc<Self>, asked: Instant, over: CancellationToken, loss: Loss) {
        let mut why = format!("{} did not answer in time", self.cql.server());
        let mut held_until = asked + self.lasts - EARLY;
        let mut next = asked + self.lasts / 3;
        loop {
            tokio::select! {
                () = sleep_until(next.min(held_until)) => {}
                () = over.cancelled() => break,
            }
            let now = Instant::now();
            if now >= held_until {
                loss.tell(&self.name, why);
                return;
            }
            let renewed = tokio::select! {
                renewed = tokio::time::timeout_at(held_until, self.renew()) => renewed,
                () = over.cancelled() => break,
            };
            match renewed {
                Ok(Ok(true)) => {
                    held_until = now + self.lasts - EARLY;
                    next = now + self.lasts / 3;
                }
                Ok(Ok(false)) => {
                    loss.tell(&self.name, "somebody else has it now".to_owned());
                    return;
                }
                Ok(Err(error)) => {
                    tracing::warn!(lease = self.name, %error, "not renewed yet");
                    why = error.to_string();
                    next = Instant::now() + self.lasts / 10;
                }
                Err(_) => {}
            }
        }
        if let Err(error) = self.give_back().await {
            tracing::debug!(lease = self.name, %error, "it ends by itself");
        }
    }

    /// Renews it once; false if it is somebody else's.
    async fn renew(&self) -> Result<bool> {
        let doing = &self.doing("renewing");
        let text =
            "UPDATE leases USING TTL ? SET held_by = ?, holder = ? WHERE name = ? IF held_by = ?";
        let (token, name) = (&self.token, &self.name);
        let values = (self.seconds(), token, &self.holder, name, token);
        let renewed = self.cql.agree_at_once(doing, text, values);
        renewed.await?.applied()
    }

    async fn give_back(&self) -> Result<(), Error> {
        let doing = &self.doing("giving back");
        let text = "DELETE held_by, holder FROM leases WHERE name = ? IF held_by = ?";
        let values = (&self.name, &self.token);
        let given_back = self.cql.agree_at_once(doing, text, values);
        given_back.await?.applied().map(drop)
    }
}
