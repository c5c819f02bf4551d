//! What was set aside, as the log of dead letters tells it: one letter, the newest first, the oldest
//! first, or how many of which kind. Nothing here writes, but [`erase`] and [`Replay`].
//!
//! However many letters there are, a reader has little of them in memory. So whether two are the same
//! one, noted twice, is only seen where they are not far apart.
//!
//! Whether a record of Avro can be read depends on what the schema registry knows at that moment. So
//! that every reader of the log decides alike, what counts is what was decided first: a record that
//! has become a dead letter does not count any more, but for its letter, which may be taken again.

mod asked;
mod counts;
pub mod erase;
mod letter;
mod newest;
mod oldest;
mod replay;
mod seen;

use std::collections::BTreeSet;

use schemas::dead_letter::Place;
use schemas::seam::Offset;
use schemas::source::Source;

use crate::Result;
use crate::log::{FetchLimit, LogRead};

pub use asked::Asked;
pub use counts::{Counts, KindCount, OTHER_KINDS, count};
pub use letter::{Letter, find};
pub use newest::{Newest, Positions};
pub use oldest::Oldest;
pub use replay::{Replay, Replayed};

const STEP: FetchLimit = FetchLimit {
    records: 20_000,
    bytes: 16 << 20,
};
/// A letter is written after its record was, and after the moment that it names, but perhaps by another
/// clock.
const CLOCKS_DIFFER_MS: i64 = 60_000;

/// The offsets of the records of a partition that have become dead letters, of those that were logged
/// at `since_ms` or later at least.
///
/// # Errors
/// Those of the log.
pub async fn set_aside(
    log: &dyn LogRead,
    source: Source,
    partition: u32,
    since_ms: i64,
) -> Result<BTreeSet<Offset>> {
    let letters = source.dead_letter_topic();
    let since_ms = since_ms.saturating_sub(CLOCKS_DIFFER_MS);
    let mut offsets = BTreeSet::new();
    for letters_partition in 0..log.partitions(letters).await? {
        let mut next = log.offset_at(letters, letters_partition, since_ms).await?;
        loop {
            let fetched = log.fetch(letters, letters_partition, next, STEP).await?;
            if fetched.next_offset == next {
                break;
            }
            next = fetched.next_offset;
            // The key of a letter is its origin.
            for origin in fetched.records.keys.iter().flatten() {
                let place = std::str::from_utf8(origin).ok().and_then(Place::of);
                if let Some(place) = place
                    && (place.topic, place.partition) == (source.topic(), partition)
                {
                    offsets.insert(place.offset);
                }
            }
        }
    }
    Ok(offsets)
}

#[cfg(test)]
#[path = "dead_letters/tests.rs"]
mod tests;
