//! From the outboxes of slots to others: achievements into their table, and these and changes of
//! boards into the log.
//!
//! What waits is written first and taken out afterwards. A crash in between tells it once more, under
//! the same id: the table does not change by it.

use std::sync::Arc;

use bytes::Bytes;
use schemas::achievement::{ACHIEVEMENTS, BOARD_CHANGES, Told, Waiting};
use schemas::clock::Clock;
use schemas::seam::Offset;

use crate::achievements::AchievementsWrite;
use crate::live::{LiveWrite, SlotId};
use crate::log::{LogWrite, NewRecords, Partitions};
use crate::{Error, Result};

/// Entries that are told at once.
const STEP: usize = 2_000;

/// The way of what waits in slots.
#[derive(Debug, Clone)]
pub struct Telling {
    live: Arc<dyn LiveWrite>,
    achievements: Arc<dyn AchievementsWrite>,
    log: Arc<dyn LogWrite>,
    clock: Arc<dyn Clock>,
    partitions: Partitions,
}

impl Telling {
    /// A way that makes topics which are not there with `partitions` partitions.
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
            partitions: Partitions::new(Arc::clone(&log), partitions),
            log,
            clock,
        }
    }

    /// Tells the first of what waits in a slot, and answers how much is left. How far was told is noted
    /// where that is beyond `noted`, which it becomes.
    ///
    /// # Errors
    /// Those of the stores; then it still waits.
    pub async fn tell(&self, slot: SlotId, noted: &mut Option<Offset>) -> Result<u64> {
        let one = slot.partition..slot.partition.saturating_add(1);
        let outboxes = self.live.outboxes(slot.source, one, STEP).await?;
        let Some(outbox) = outboxes.into_iter().next().flatten() else {
            return Ok(0);
        };
        let told = decoded(&outbox.entries, Waiting::decode)?;
        let entries = outbox.entries.iter().zip(&told);
        let achieved = entries.filter(|(_, told)| told.achieved.is_some());
        let achieved = decoded(achieved.map(|(entry, _)| entry), |entry| {
            Told::decode(entry)
        })?;
        if !achieved.is_empty() {
            self.achievements.write(&achieved).await?;
        }
        for topic in [ACHIEVEMENTS, BOARD_CHANGES] {
            self.append(topic, &told).await?;
        }
        let left = outbox.waiting.saturating_sub(told.len() as u64);
        let through = match told.last().filter(|_| left > 0) {
            // What one notification brought may be told in two parts.
            Some(last) => last.position.offset,
            None => outbox.slot.position.next_offset,
        };
        let known = match *noted {
            Some(known) => known,
            None => self.achievements.told_through(slot).await?.unwrap_or(0),
        };
        *noted = Some(known);
        // A life that counts again stands where more has been told.
        let is_replaying = told.is_empty() && outbox.slot.is_replaying();
        if through > known && !is_replaying {
            self.achievements.note_told(slot, through).await?;
            *noted = Some(through);
        }
        self.live.take_out(slot, &outbox).await?;
        Ok(left)
    }

    async fn append(&self, topic: &'static str, told: &[Waiting<'_>]) -> Result<()> {
        if !told.iter().any(|told| told.topic() == topic) {
            return Ok(());
        }
        let records = records(topic, told, self.partitions.of(topic).await?);
        let now_ms = self.clock.now_ms();
        self.log.append(topic, &records, now_ms).await.map(drop)
    }
}

/// What waits, as far as it is wanted.
fn decoded<'a, T>(
    entries: impl IntoIterator<Item = &'a Bytes>,
    decode: impl Fn(&'a [u8]) -> Result<T, String>,
) -> Result<Vec<T>> {
    let told = entries.into_iter().map(|entry| {
        let told = decode(entry);
        told.map_err(|why| Error::broken("telling what waits in live state", why))
    });
    told.collect()
}

/// What of it goes to a topic with `partitions` partitions, keyed as notifications are.
fn records(topic: &str, told: &[Waiting<'_>], partitions: u32) -> Vec<NewRecords> {
    let told = told.iter().filter(|told| told.topic() == topic);
    let records = told.map(|told| {
        let value = told.message.get().as_bytes().to_vec();
        (told.key.to_string(), value)
    });
    NewRecords::by_key(records, partitions)
}
