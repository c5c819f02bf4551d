//! From the outbox of the canonical store into the logs: notifications are appended after the
//! commit that made them, and taken out of the outbox once they are durable there.
//!
//! Whoever changes rows relays what that gave; what a crash left behind is relayed by the speed
//! layer. A notification may so come twice, which changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemas::clock::Clock;
use schemas::entities::Group;
use schemas::source::Source;
use tokio_util::sync::CancellationToken;

use crate::Result;
use crate::canon::{CanonWrite, Notification};
use crate::log::{LogWrite, NewRecords, Partitions};

/// Notifications that are read from the outbox at once.
pub const STEP: usize = 10_000;

/// The way of notifications into the log.
#[derive(Debug, Clone)]
pub struct Relay {
    canon: Arc<dyn CanonWrite>,
    log: Arc<dyn LogWrite>,
    clock: Arc<dyn Clock>,
    partitions: Partitions,
}

impl Relay {
    /// A relay that makes topics which are not there with `partitions` partitions.
    #[must_use]
    pub fn new(
        canon: Arc<dyn CanonWrite>,
        log: Arc<dyn LogWrite>,
        clock: Arc<dyn Clock>,
        partitions: u32,
    ) -> Self {
        Self {
            canon,
            partitions: Partitions::new(Arc::clone(&log), partitions),
            log,
            clock,
        }
    }

    /// Appends notifications to the logs of their sources, then takes them out of the outbox.
    ///
    /// # Errors
    /// Those of the stores; then they stay in the outbox.
    pub async fn send(&self, notifications: &[Notification]) -> Result<()> {
        let mut by_source: BTreeMap<Source, Vec<Group>> = BTreeMap::new();
        for told in notifications {
            by_source.entry(told.source).or_default().push(told.group);
        }
        for (source, groups) in by_source {
            self.tell(source, &groups).await?;
        }
        let ids: Vec<i64> = notifications.iter().map(|told| told.id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        self.canon.notified(&ids).await
    }

    /// Appends that groups of a source changed to its log: of some that are not in the outbox.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn tell(&self, source: Source, groups: &[Group]) -> Result<()> {
        let records = records(source, groups, self.partitions.of(source.topic()).await?);
        let now_ms = self.clock.now_ms();
        self.log.append(source.topic(), &records, now_ms).await?;
        Ok(())
    }

    /// Sends what waits in the outbox for the log of a source, up to the number `newest`, until that
    /// is done or `stop` is cancelled; answers how many notifications were sent.
    ///
    /// # Errors
    /// As [`Relay::send`].
    pub async fn drain(
        &self,
        source: Source,
        newest: i64,
        stop: &CancellationToken,
    ) -> Result<u64> {
        let mut sent = 0;
        while !stop.is_cancelled() {
            let pending = self.canon.pending(source, newest, STEP).await?;
            self.send(&pending).await?;
            sent += pending.len() as u64;
            if pending.len() < STEP {
                break;
            }
        }
        Ok(sent)
    }
}

/// The notifications of some groups as records of a topic with `partitions` partitions.
#[must_use]
pub fn records(source: Source, groups: &[Group], partitions: u32) -> Vec<NewRecords> {
    let told = groups
        .iter()
        .map(|group| (group.log_key(), group.notification(source)));
    NewRecords::by_key(told, partitions)
}
