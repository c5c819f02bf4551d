//! Leases: one row each, changed by lightweight transactions. The columns that name the holder have
//! a time to live and are renewed at a third of it. The fencing number has none, and rises with
//! every holder.
//!
//! The servers count the time to live from their write, the holder from before its request. So the
//! holder knows that its lease has ended before another process can acquire it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::CassandraOptions;
use super::session::{CasOutcome, Cql};
use crate::lease::{LeaseGuard, Leases, check_name};
use crate::{Error, Result};

/// The holder ends its lease earlier by this time, because servers count whole seconds and clocks
/// differ.
const SAFETY_MARGIN: Duration = Duration::from_secs(2);
const DURATION_MIN: Duration = Duration::from_secs(5);
/// Maximum wait when a lease is released; after that it expires by itself.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Leases in a keyspace.
#[derive(Debug, Clone)]
pub struct CassandraLeases {
    cql: Arc<Cql>,
    duration: Duration,
}

/// The holder's side of a lease.
#[derive(Debug)]
struct CassandraLease {
    identity: Arc<LeaseIdentity>,
    /// Stops the renewal task, which then releases the lease.
    ended: CancellationToken,
    loss: Loss,
    task: Option<JoinHandle<()>>,
}

/// Signal that a lease was lost, with the reason.
#[derive(Debug, Clone, Default)]
struct Loss {
    token: CancellationToken,
    reason: Arc<OnceLock<String>>,
}

impl Loss {
    fn report(&self, lease: &str, reason: String) {
        tracing::error!(lease, reason, "lost a lease");
        // It is set only once, because the renewal task then ends.
        let _first = self.reason.set(reason);
        self.token.cancel();
    }
}

#[async_trait]
impl LeaseGuard for CassandraLease {
    fn lost(&self) -> CancellationToken {
        self.loss.token.clone()
    }

    async fn is_held(&self) -> Result<bool> {
        let row = self
            .identity
            .read_row(&self.identity.describe_operation("checking"))
            .await?;
        Ok(!self.loss.token.is_cancelled() && row.token.as_ref() == Some(&self.identity.token))
    }

    fn loss_reason(&self) -> Option<String> {
        self.loss.reason.get().cloned()
    }

    async fn release(mut self: Box<Self>) {
        self.ended.cancel();
        if let Some(task) = self.task.take()
            && timeout(RELEASE_TIMEOUT, task).await.is_err()
        {
            tracing::warn!("cannot release a lease in time; it expires by itself");
        }
    }
}

impl Drop for CassandraLease {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// Data of a lease that this process holds or tries to acquire.
#[derive(Debug)]
struct LeaseIdentity {
    cql: Arc<Cql>,
    name: String,
    holder: String,
    token: String,
    duration: Duration,
}

impl CassandraLeases {
    pub(super) fn new(cql: Arc<Cql>, options: &CassandraOptions) -> Self {
        let duration = Duration::from_millis(options.lease_ms).max(DURATION_MIN);
        Self { cql, duration }
    }

    /// Acquires a lease, or returns its holder.
    pub(super) async fn acquire_named(
        &self,
        name: &str,
        holder: &str,
    ) -> Result<Result<Box<dyn LeaseGuard>, String>> {
        let identity = Arc::new(LeaseIdentity {
            cql: Arc::clone(&self.cql),
            name: name.to_owned(),
            holder: holder.to_owned(),
            token: Uuid::new_v4().simple().to_string(),
            duration: self.duration,
        });
        let requested_at = Instant::now();
        if let Err(holder) = identity.acquire().await? {
            return Ok(Err(holder));
        }
        let (ended, loss) = (CancellationToken::new(), Loss::default());
        let renewing =
            Arc::clone(&identity).renew_until_released(requested_at, ended.clone(), loss.clone());
        #[expect(
            clippy::disallowed_methods,
            reason = "it ends with the lease, which owns it and outlives the call"
        )]
        let task = tokio::spawn(renewing);
        Ok(Ok(Box::new(CassandraLease {
            identity,
            ended,
            loss,
            task: Some(task),
        })))
    }
}

#[async_trait]
impl Leases for CassandraLeases {
    async fn acquire(
        &self,
        name: &str,
        holder: &str,
    ) -> Result<Result<Box<dyn LeaseGuard>, String>> {
        check_name(name)?;
        self.acquire_named(&format!("of {name}"), holder).await
    }

    async fn holder(&self, name: &str) -> Result<Option<String>> {
        check_name(name)?;
        let operation = format!("reading the lease {name}");
        // A serial read would compete with renewals of the lease.
        let text = "SELECT holder FROM leases WHERE name = ?";
        let values = (format!("of {name}"),);
        let row: Option<(Option<String>,)> = self.cql.fetch_first(&operation, text, values).await?;
        Ok(row.and_then(|(holder,)| holder))
    }
}

/// Row of a lease.
#[derive(Debug, Default)]
struct LeaseRow {
    fence: Option<i64>,
    token: Option<String>,
    holder: Option<String>,
    /// When the holder acquired it.
    since_us: Option<i64>,
}

impl LeaseRow {
    fn describe_holder(self) -> String {
        let holder = self
            .holder
            .unwrap_or_else(|| "an unknown process".to_owned());
        let since = self
            .since_us
            .and_then(|us| Timestamp::from_microsecond(us).ok());
        since.map_or_else(
            || holder.clone(),
            |since| format!("{holder} (since {since:.0})"),
        )
    }
}

impl LeaseIdentity {
    fn describe_operation(&self, verb: &str) -> String {
        format!("{verb} the lease {}", self.name.trim_start_matches("of "))
    }

    fn ttl_seconds(&self) -> i32 {
        i32::try_from(self.duration.as_secs()).unwrap_or(i32::MAX)
    }

    async fn read_row(&self, operation: &str) -> Result<LeaseRow> {
        let text = "SELECT fence, held_by, holder, WRITETIME(fence) FROM leases WHERE name = ?";
        type Row = (Option<i64>, Option<String>, Option<String>, Option<i64>);
        let row: Option<Row> = self
            .cql
            .fetch_first_serial(operation, text, (&self.name,))
            .await?;
        let (fence, token, holder, since_us) = row.unwrap_or_default();
        Ok(LeaseRow {
            fence,
            token,
            holder,
            since_us,
        })
    }

    /// Acquires the lease, or returns its holder.
    async fn acquire(&self) -> Result<Result<(), String>> {
        let operation = &self.describe_operation("acquiring");
        let fence_statement =
            "UPDATE leases SET fence = ? WHERE name = ? IF fence = ? AND held_by = NULL";
        let holder_statement =
            "UPDATE leases USING TTL ? SET held_by = ?, holder = ? WHERE name = ?";
        let retry_policy = self.cql.retry_policy();
        retry_policy
            .retry_steps(operation, || async {
                let row = self.read_row(operation).await?;
                if row.token.as_ref() == Some(&self.token) {
                    // An earlier attempt of this process with an unknown outcome was applied.
                    return Ok(Ok(()));
                }
                if row.token.is_some() {
                    return Ok(Err(row.describe_holder()));
                }
                let statements = vec![
                    self.cql.prepare(operation, fence_statement).await?,
                    self.cql.prepare(operation, holder_statement).await?,
                ];
                let fence = row.fence.unwrap_or(0) + 1;
                let values = (
                    (fence, &self.name, row.fence),
                    (self.ttl_seconds(), &self.token, &self.holder, &self.name),
                );
                match self
                    .cql
                    .compare_and_set_batch(operation, statements, values)
                    .await?
                {
                    CasOutcome::Applied => {
                        tracing::debug!(lease = self.name, fence, "acquired a lease");
                        Ok(Ok(()))
                    }
                    CasOutcome::NotApplied(_) => Err(retry_policy
                        .unavailable(operation, "another process acquired it at the same time")),
                    CasOutcome::Unknown(error) => Err(error),
                }
            })
            .await
    }

    /// Renews the lease until it is released or lost.
    async fn renew_until_released(
        self: Arc<Self>,
        requested_at: Instant,
        ended: CancellationToken,
        loss: Loss,
    ) {
        let mut reason = format!("{} did not answer in time", self.cql.server());
        let mut valid_until = requested_at + self.duration - SAFETY_MARGIN;
        let mut next = requested_at + self.duration / 3;
        loop {
            tokio::select! {
                () = sleep_until(next.min(valid_until)) => {}
                () = ended.cancelled() => break,
            }
            let now = Instant::now();
            if now >= valid_until {
                loss.report(&self.name, reason);
                return;
            }
            let renewed = tokio::select! {
                renewed = tokio::time::timeout_at(valid_until, self.renew()) => renewed,
                () = ended.cancelled() => break,
            };
            match renewed {
                Ok(Ok(true)) => {
                    valid_until = now + self.duration - SAFETY_MARGIN;
                    next = now + self.duration / 3;
                }
                Ok(Ok(false)) => {
                    loss.report(&self.name, "another process holds it now".to_owned());
                    return;
                }
                Ok(Err(error)) => {
                    tracing::warn!(lease = self.name, %error, "cannot renew a lease; retrying");
                    reason = error.to_string();
                    next = Instant::now() + self.duration / 10;
                }
                Err(_) => {}
            }
        }
        if let Err(error) = self.release().await {
            tracing::debug!(lease = self.name, %error, "cannot release a lease; it expires by itself");
        }
    }

    /// Renews it once. Returns false if another process holds it.
    async fn renew(&self) -> Result<bool> {
        let operation = &self.describe_operation("renewing");
        let text =
            "UPDATE leases USING TTL ? SET held_by = ?, holder = ? WHERE name = ? IF held_by = ?";
        let (token, name) = (&self.token, &self.name);
        let values = (self.ttl_seconds(), token, &self.holder, name, token);
        let renewed = self.cql.compare_and_set_at_once(operation, text, values);
        renewed.await?.into_applied()
    }

    async fn release(&self) -> Result<(), Error> {
        let operation = &self.describe_operation("releasing");
        let text = "DELETE held_by, holder FROM leases WHERE name = ? IF held_by = ?";
        let values = (&self.name, &self.token);
        let released = self.cql.compare_and_set_at_once(operation, text, values);
        released.await?.into_applied().map(drop)
    }
}
