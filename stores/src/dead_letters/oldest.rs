//! Reads dead letters, the oldest of each partition first, to reprocess them in their original
//! order.

use schemas::dead_letter::DeadLetterId;

use super::filter::UnreadRange;
use super::recent::RecentDeadLetters;
use super::{DeadLetterFilter, StoredDeadLetter};
use crate::log::{FetchLimit, LogRead};
use crate::{Error, Result};

/// The limit of one fetch.
const BATCH_LIMIT: FetchLimit = FetchLimit {
    records: 2_000,
    bytes: 8 << 20,
};

/// Reads the dead letters that match a filter and existed at the start: by source, then by
/// partition, oldest first. A dead letter with the same origin and bytes as a recent one is
/// skipped.
#[derive(Debug)]
pub struct OldestDeadLetters<'a> {
    log: &'a dyn LogRead,
    filter: DeadLetterFilter,
    /// The ranges to read, the last one first.
    ranges: Vec<UnreadRange>,
    recent: RecentDeadLetters,
}

impl<'a> OldestDeadLetters<'a> {
    /// Starts at the beginning of the log.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn open(log: &'a dyn LogRead, filter: DeadLetterFilter) -> Result<Self> {
        let mut ranges = Vec::new();
        for source in filter.sources() {
            ranges.extend(filter.find_unread_ranges(log, source).await?);
        }
        ranges.reverse();
        Ok(Self {
            log,
            filter,
            ranges,
            recent: RecentDeadLetters::default(),
        })
    }

    /// The next dead letters, all of one source; empty at the end.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn next_batch(&mut self) -> Result<Vec<StoredDeadLetter>> {
        while let Some(range) = self.ranges.last_mut() {
            let UnreadRange {
                source,
                partition,
                span,
            } = *range;
            let topic = source.dead_letter_topic();
            if span.start >= span.end {
                self.ranges.pop();
                continue;
            }
            let fetched = match self
                .log
                .fetch(topic, partition, span.start, BATCH_LIMIT)
                .await
            {
                // The log has deleted them since the start.
                Err(Error::OffsetOutOfRange { start, .. }) if span.start < start => {
                    range.span.start = start;
                    continue;
                }
                fetched => fetched?,
            };
            if fetched.next_offset == span.start {
                self.ranges.pop();
                continue;
            }
            range.span.start = fetched.next_offset;
            let first = DeadLetterId {
                source,
                partition,
                offset: span.start,
            };
            let mut dead_letters = StoredDeadLetter::from_fetch(&fetched, first, span.end);
            dead_letters.retain(|dead_letter| {
                self.filter.matches(dead_letter) && self.recent.remember(dead_letter)
            });
            if !dead_letters.is_empty() {
                return Ok(dead_letters);
            }
        }
        Ok(Vec::new())
    }
}
