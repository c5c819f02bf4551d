//! Reads dead letters, newest first.
//!
//! Each partition is read backwards from its end in ranges of offsets, and the dead letters of all
//! partitions are merged by the time of their append. The size of a range is halved or doubled so
//! that it has a few megabytes. So neither many nor large dead letters fill the memory.

use std::cmp::Reverse;

use futures::future::try_join_all;
use schemas::dead_letter::DeadLetterId;
use schemas::seam::Offset;
use schemas::source::Source;
use serde::{Deserialize, Serialize};

use super::filter::UnreadRange;
use super::recent::RecentDeadLetters;
use super::{DeadLetterFilter, StoredDeadLetter};
use crate::log::{FetchLimit, LogRead};
use crate::{Error, Result};

/// The number of offsets of the first range: most calls need a page or two.
const FIRST_RANGE_OFFSETS: i64 = 256;
/// The maximum number of offsets of a range.
const RANGE_OFFSETS_MAX: i64 = 8_192;
/// The maximum size of the values in a range, except for a single larger record.
const RANGE_BYTES_MAX: usize = 4 << 20;

/// The progress of a reader: by partition, the offset below which dead letters are unread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReadPositions(Vec<(Source, u32, Offset)>);

impl ReadPositions {
    fn get(&self, source: Source, partition: u32) -> Option<Offset> {
        let mut positions = self.0.iter();
        let position = positions.find(|(key, number, _)| (*key, *number) == (source, partition));
        position.map(|(_, _, end)| *end)
    }
}

/// Reads the dead letters that match a filter, the last appended first. A dead letter with the same
/// origin and bytes as a recent one is skipped.
#[derive(Debug)]
pub struct NewestDeadLetters<'a> {
    log: &'a dyn LogRead,
    filter: DeadLetterFilter,
    tails: Vec<PartitionTail>,
    recent: RecentDeadLetters,
    examined: u64,
}

impl<'a> NewestDeadLetters<'a> {
    /// Starts at the end of the log, or continues at the position of an earlier reader with the
    /// same filter.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn open(
        log: &'a dyn LogRead,
        filter: DeadLetterFilter,
        after: Option<&ReadPositions>,
    ) -> Result<Self> {
        let by_source = filter
            .sources()
            .map(|source| filter.find_unread_ranges(log, source));
        let ranges = try_join_all(by_source).await?;
        let tail = |range| PartitionTail::new(range, after);
        let tails = ranges.into_iter().flatten().map(tail).collect();
        Ok(Self {
            log,
            filter,
            tails,
            recent: RecentDeadLetters::default(),
            examined: 0,
        })
    }

    /// The next dead letter. `None` at the end, or after `examined_max` dead letters in total were
    /// examined, as [`NewestDeadLetters::is_exhausted`] tells. A later call with a higher limit
    /// continues.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn next(&mut self, examined_max: u64) -> Result<Option<StoredDeadLetter>> {
        while self.examined < examined_max {
            if self.tails.iter().any(PartitionTail::needs_more) {
                let log = self.log;
                let fills = self.tails.iter_mut().map(|tail| tail.fill(log));
                try_join_all(fills).await?;
            }
            let tails = self.tails.iter_mut().enumerate();
            let tails = tails.filter_map(|(index, tail)| {
                let logged_at_ms = tail.dead_letters.last()?.logged_at_ms;
                Some(((logged_at_ms, Reverse(index)), tail))
            });
            let newest = tails.max_by_key(|(order, _)| *order);
            let Some(dead_letter) = newest.and_then(|(_, tail)| tail.dead_letters.pop()) else {
                return Ok(None);
            };
            self.examined += 1;
            if self.filter.matches(&dead_letter) && self.recent.remember(&dead_letter) {
                return Ok(Some(dead_letter));
            }
        }
        Ok(None)
    }

    /// The number of examined dead letters, whether they match or not.
    #[must_use]
    pub const fn examined(&self) -> u64 {
        self.examined
    }

    /// Returns whether all dead letters were examined.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        let is_exhausted =
            |tail: &PartitionTail| tail.dead_letters.is_empty() && !tail.needs_more();
        self.tails.iter().all(is_exhausted)
    }

    /// The position after the last returned dead letter.
    #[must_use]
    pub fn positions(&self) -> ReadPositions {
        let position = |tail: &PartitionTail| (tail.source, tail.partition, tail.end_of_unread());
        let unread = self
            .tails
            .iter()
            .filter(|tail| tail.end_of_unread() > tail.start);
        ReadPositions(unread.map(position).collect())
    }
}

/// The unread dead letters of a partition.
#[derive(Debug)]
struct PartitionTail {
    source: Source,
    partition: u32,
    /// The first offset to read.
    start: Offset,
    /// Dead letters from this offset on were read.
    read_from: Offset,
    /// The dead letters that were read and not returned yet, oldest first.
    dead_letters: Vec<StoredDeadLetter>,
    /// The number of offsets of the next range.
    range_offsets: i64,
}

/// The result of reading a range.
enum RangeRead {
    /// The dead letters of the range, and their size in bytes.
    Read(Vec<StoredDeadLetter>, usize),
    /// The range is too large.
    TooLarge,
    /// The log begins at this offset now.
    StartsAt(Offset),
}

impl PartitionTail {
    fn new(range: UnreadRange, after: Option<&ReadPositions>) -> Self {
        let UnreadRange {
            source,
            partition,
            span,
        } = range;
        let end = match after {
            None => span.end,
            // A partition that is missing in the positions was read completely.
            Some(positions) => positions.get(source, partition).unwrap_or(span.start),
        };
        Self {
            source,
            partition,
            start: span.start,
            read_from: end.clamp(span.start, span.end),
            dead_letters: Vec::new(),
            range_offsets: FIRST_RANGE_OFFSETS,
        }
    }

    /// Returns whether more must be read to know the next dead letter of the partition.
    fn needs_more(&self) -> bool {
        self.dead_letters.is_empty() && self.read_from > self.start
    }

    /// The offset below which dead letters are not returned yet.
    fn end_of_unread(&self) -> Offset {
        let next = self.dead_letters.last();
        next.map_or(self.read_from, |dead_letter| dead_letter.id.offset + 1)
    }

    /// Reads until there is a dead letter to return, or the partition is exhausted.
    async fn fill(&mut self, log: &dyn LogRead) -> Result<()> {
        while self.needs_more() {
            let from = self.start.max(self.read_from - self.range_offsets);
            match self.read_range(log, from).await? {
                RangeRead::Read(dead_letters, bytes) => {
                    self.read_from = from;
                    self.dead_letters = dead_letters;
                    if bytes < RANGE_BYTES_MAX / 4 {
                        self.range_offsets = RANGE_OFFSETS_MAX.min(self.range_offsets * 2);
                    }
                }
                RangeRead::TooLarge => self.range_offsets = ((self.read_from - from) / 2).max(1),
                RangeRead::StartsAt(start) => self.start = start.min(self.read_from),
            }
        }
        Ok(())
    }

    /// Reads the dead letters from an offset up to those that were read before.
    async fn read_range(&self, log: &dyn LogRead, from: Offset) -> Result<RangeRead> {
        let topic = self.source.dead_letter_topic();
        let first = DeadLetterId {
            source: self.source,
            partition: self.partition,
            offset: from,
        };
        let (mut next, end) = (from, self.read_from);
        let (mut dead_letters, mut bytes) = (Vec::new(), 0);
        while next < end {
            let limit = FetchLimit {
                records: usize::try_from(end - next).unwrap_or(usize::MAX),
                bytes: RANGE_BYTES_MAX,
            };
            let fetched = match log.fetch_once(topic, self.partition, next, limit).await {
                Err(Error::OffsetOutOfRange { start, .. }) if next < start => {
                    return Ok(RangeRead::StartsAt(start));
                }
                fetched => fetched?,
            };
            if fetched.next_offset == next {
                break;
            }
            bytes += fetched.records.value_bytes();
            if bytes > RANGE_BYTES_MAX && end - from > 1 {
                return Ok(RangeRead::TooLarge);
            }
            dead_letters.extend(StoredDeadLetter::from_fetch(&fetched, first, end));
            next = fetched.next_offset;
        }
        Ok(RangeRead::Read(dead_letters, bytes))
    }
}
