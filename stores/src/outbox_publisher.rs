//! Publishes the outboxes of partition states: achievements to their table, achievements and board
//! changes to the log.
//!
//! Messages are written first and removed from the outbox afterwards. A crash in between repeats a
//! message with the same id, which does not change the table.

use std::sync::Arc;

use bytes::Bytes;
use schemas::achievement::{
    ACHIEVEMENTS_TOPIC, BOARD_CHANGES_TOPIC, OutboxMessage, OutboxMessageRef,
};
use schemas::clock::Clock;
use schemas::seam::Offset;

use crate::achievements::AchievementsWrite;
use crate::live::{LiveWrite, PartitionId};
use crate::log::{LogWrite, NewRecords, PartitionCounts};
use crate::{Error, Result};

/// Messages that are published at once.
const PUBLISH_BATCH: usize = 2_000;

/// Publishes the outboxes of partition states.
#[derive(Debug, Clone)]
pub struct OutboxPublisher {
    live: Arc<dyn LiveWrite>,
    achievements: Arc<dyn AchievementsWrite>,
    log: Arc<dyn LogWrite>,
    clock: Arc<dyn Clock>,
    partition_counts: PartitionCounts,
}

impl OutboxPublisher {
    /// Creates a publisher. Missing topics are created with `partitions` partitions.
    #[must_use]
    pub fn new(
        live: Arc<dyn LiveWrite>,
        achievements: Arc<dyn AchievementsWrite>,
        log: Arc<dyn LogWrite>,
        clock: Arc<dyn Clock>,
        partitions: u32,
    ) -> Self {
        Self {
            live,
            achievements,
            partition_counts: PartitionCounts::new(Arc::clone(&log), partitions),
            log,
            clock,
        }
    }

    /// Publishes the first messages of a partition's outbox and returns how many remain. Records
    /// the offset up to which messages are published if it is beyond `recorded_end`, and
    /// updates `recorded_end`.
    ///
    /// # Errors
    /// Those of the stores. The messages then stay in the outbox.
    pub async fn publish(
        &self,
        partition: PartitionId,
        recorded_end: &mut Option<Offset>,
    ) -> Result<u64> {
        let range = partition.partition..partition.partition.saturating_add(1);
        let outboxes = self
            .live
            .outboxes(partition.source, range, PUBLISH_BATCH)
            .await?;
        let Some(outbox) = outboxes.into_iter().next().flatten() else {
            return Ok(0);
        };
        let messages = decode_all(&outbox.entries, OutboxMessageRef::decode)?;
        let entries = outbox.entries.iter().zip(&messages);
        let achievements = entries.filter(|(_, message)| message.achievement.is_some());
        let achievements = decode_all(achievements.map(|(entry, _)| entry), |entry| {
            OutboxMessage::decode(entry)
        })?;
        if !achievements.is_empty() {
            self.achievements.write(&achievements).await?;
        }
        for topic in [ACHIEVEMENTS_TOPIC, BOARD_CHANGES_TOPIC] {
            self.append(topic, &messages).await?;
        }
        let remaining = outbox.pending.saturating_sub(messages.len() as u64);
        let end = match messages.last().filter(|_| remaining > 0) {
            // The messages of one notification may be published in two steps.
            Some(last) => last.position.offset,
            None => outbox.state.position.next_offset,
        };
        let published_end = match *recorded_end {
            Some(published_end) => published_end,
            None => self
                .achievements
                .published_end(partition)
                .await?
                .unwrap_or(0),
        };
        *recorded_end = Some(published_end);
        // A generation that is replayed starts below the offset that is published.
        let is_replaying = messages.is_empty() && outbox.state.is_replaying();
        if end > published_end && !is_replaying {
            self.achievements
                .record_published_end(partition, end)
                .await?;
            *recorded_end = Some(end);
        }
        self.live.remove_published(partition, &outbox).await?;
        Ok(remaining)
    }

    async fn append(&self, topic: &'static str, messages: &[OutboxMessageRef<'_>]) -> Result<()> {
        if !messages.iter().any(|message| message.topic() == topic) {
            return Ok(());
        }
        let records = build_records(topic, messages, self.partition_counts.count(topic).await?);
        let now_ms = self.clock.now_ms();
        self.log.append(topic, &records, now_ms).await.map(drop)
    }
}

/// Decodes entries.
fn decode_all<'a, T>(
    entries: impl IntoIterator<Item = &'a Bytes>,
    decode: impl Fn(&'a [u8]) -> Result<T, String>,
) -> Result<Vec<T>> {
    let messages = entries.into_iter().map(|entry| {
        decode(entry).map_err(|error| Error::broken("decoding an outbox message", error))
    });
    messages.collect()
}

/// Builds records of the messages for a topic, keyed like notifications.
fn build_records(
    topic: &str,
    messages: &[OutboxMessageRef<'_>],
    partitions: u32,
) -> Vec<NewRecords> {
    let messages = messages.iter().filter(|message| message.topic() == topic);
    let records = messages.map(|message| {
        let value = message.message.get().as_bytes().to_vec();
        (message.key.to_string(), value)
    });
    NewRecords::by_key(records, partitions)
}
