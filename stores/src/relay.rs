//! Relays the outbox of the entity store to the logs: notifications are appended after the commit
//! that created them, and removed from the outbox after the append is durable.
//!
//! The process that changes rows relays their notifications. The speed layer relays those that a
//! crash left behind. So a notification may be appended twice, which changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemas::clock::Clock;
use schemas::entities::Group;
use schemas::source::Source;
use tokio_util::sync::CancellationToken;

use crate::Result;
use crate::entities::{EntityWrite, Notification};
use crate::log::{LogWrite, NewRecords, PartitionCounts};

/// Notifications that are read from the outbox at once.
pub const OUTBOX_BATCH: usize = 10_000;

/// Relays notifications to the log.
#[derive(Debug, Clone)]
pub struct OutboxRelay {
    entities: Arc<dyn EntityWrite>,
    log: Arc<dyn LogWrite>,
    clock: Arc<dyn Clock>,
    partition_counts: PartitionCounts,
}

impl OutboxRelay {
    /// Creates a relay. Missing topics are created with `partitions` partitions.
    #[must_use]
    pub fn new(
        entities: Arc<dyn EntityWrite>,
        log: Arc<dyn LogWrite>,
        clock: Arc<dyn Clock>,
        partitions: u32,
    ) -> Self {
        Self {
            entities,
            partition_counts: PartitionCounts::new(Arc::clone(&log), partitions),
            log,
            clock,
        }
    }

    /// Appends notifications to the logs of their sources, then removes them from the outbox.
    ///
    /// # Errors
    /// Those of the stores. The notifications then stay in the outbox.
    pub async fn send(&self, notifications: &[Notification]) -> Result<()> {
        let mut by_source: BTreeMap<Source, Vec<Group>> = BTreeMap::new();
        for notification in notifications {
            by_source
                .entry(notification.source)
                .or_default()
                .push(notification.group);
        }
        for (source, groups) in by_source {
            self.append_notifications(source, &groups).await?;
        }
        let ids: Vec<i64> = notifications
            .iter()
            .map(|notification| notification.id)
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        self.entities.remove_notifications(&ids).await
    }

    /// Appends notifications of groups, which are not in the outbox, to the log of a source.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn append_notifications(&self, source: Source, groups: &[Group]) -> Result<()> {
        let records = build_notification_records(
            source,
            groups,
            self.partition_counts.count(source.topic()).await?,
        );
        let now_ms = self.clock.now_ms();
        self.log.append(source.topic(), &records, now_ms).await?;
        Ok(())
    }

    /// Relays pending notifications of a source up to the number `newest`, until `stop` is
    /// cancelled. Returns how many were appended.
    ///
    /// # Errors
    /// As [`OutboxRelay::send`].
    pub async fn drain(
        &self,
        source: Source,
        newest: i64,
        stop: &CancellationToken,
    ) -> Result<u64> {
        let mut sent = 0;
        while !stop.is_cancelled() {
            let pending = self
                .entities
                .pending_notifications(source, newest, OUTBOX_BATCH)
                .await?;
            self.send(&pending).await?;
            sent += pending.len() as u64;
            if pending.len() < OUTBOX_BATCH {
                break;
            }
        }
        Ok(sent)
    }
}

/// Builds the notifications of groups as records of a topic with `partitions` partitions.
#[must_use]
pub fn build_notification_records(
    source: Source,
    groups: &[Group],
    partitions: u32,
) -> Vec<NewRecords> {
    let records = groups
        .iter()
        .map(|group| (group.log_key(), group.notification(source)));
    NewRecords::by_key(records, partitions)
}
