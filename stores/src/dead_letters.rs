//! Reads dead letters from the log: a single one, newest first, oldest first, or counts by kind.
//! Only [`erase`] and [`Reprocessor`] write.
//!
//! A reader keeps few dead letters in memory. So a dead letter that was appended twice is detected
//! only if the two copies are close together.
//!
//! The decoding of an Avro record depends on the current content of the schema registry. All
//! readers of the log must decide alike, so the first decision is final. A record that became a
//! dead letter does not count any more; only its dead letter may be reprocessed.

mod counts;
pub mod erase;
mod filter;
mod newest;
mod oldest;
mod recent;
mod reprocess;
mod stored;

use std::collections::BTreeSet;

use schemas::dead_letter::LogPosition;
use schemas::seam::Offset;
use schemas::source::Source;

use crate::Result;
use crate::log::{FetchLimit, LogRead};

pub use counts::{DeadLetterCounts, KindCount, OTHER_KINDS, count};
pub use filter::DeadLetterFilter;
pub use newest::{NewestDeadLetters, ReadPositions};
pub use oldest::OldestDeadLetters;
pub use reprocess::{ReprocessReport, Reprocessor};
pub use stored::{StoredDeadLetter, find};

const FETCH_LIMIT: FetchLimit = FetchLimit {
    records: 20_000,
    bytes: 16 << 20,
};
/// A dead letter is written after its record and after its own timestamp, but possibly with another
/// clock.
const CLOCK_SKEW_MS: i64 = 60_000;

/// The offsets of the records of a partition that became dead letters; complete for records logged
/// at `since_ms` or later.
///
/// # Errors
/// Those of the log.
pub async fn find_dead_lettered_offsets(
    log: &dyn LogRead,
    source: Source,
    partition: u32,
    since_ms: i64,
) -> Result<BTreeSet<Offset>> {
    let topic = source.dead_letter_topic();
    let since_ms = since_ms.saturating_sub(CLOCK_SKEW_MS);
    let mut offsets = BTreeSet::new();
    for topic_partition in 0..log.partition_count(topic).await? {
        let mut next = log.offset_at(topic, topic_partition, since_ms).await?;
        loop {
            let fetched = log.fetch(topic, topic_partition, next, FETCH_LIMIT).await?;
            if fetched.next_offset == next {
                break;
            }
            next = fetched.next_offset;
            // The key of a dead letter is its origin.
            for origin in fetched.records.keys.iter().flatten() {
                let position = std::str::from_utf8(origin)
                    .ok()
                    .and_then(LogPosition::parse);
                if let Some(position) = position
                    && (position.topic, position.partition) == (source.topic(), partition)
                {
                    offsets.insert(position.offset);
                }
            }
        }
    }
    Ok(offsets)
}

#[cfg(test)]
#[path = "dead_letters/tests.rs"]
mod tests;
