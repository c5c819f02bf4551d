//! Dead letters, the newest first.
//!
//! Each partition is read in stretches from its end backwards, and the letters of all partitions are
//! merged by when they were appended. A stretch has as many records as fit into a few megabytes, found by
//! halving and doubling, so that neither many letters nor large ones fill the memory.

use std::cmp::Reverse;

use futures::future::try_join_all;
use schemas::dead_letter::LetterId;
use schemas::seam::Offset;
use schemas::source::Source;
use serde::{Deserialize, Serialize};

use super::asked::Stretch;
use super::seen::Seen;
use super::{Asked, Letter};
use crate::log::{FetchLimit, LogRead};
use crate::{Error, Result};

/// Offsets of the first stretch: mostly a page or two are asked for.
const FIRST_OFFSETS: i64 = 256;
/// Offsets of a stretch, at most.
const OFFSETS_MAX: i64 = 8_192;
/// Bytes of values in a stretch, at most, but for one record that is larger.
const STRETCH_BYTES: usize = 4 << 20;

/// How far somebody has read: by partition the offset below which the rest stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Positions(Vec<(Source, u32, Offset)>);

impl Positions {
    fn of(&self, source: Source, partition: u32) -> Option<Offset> {
        let mut all = self.0.iter();
        let found = all.find(|(of, number, _)| (*of, *number) == (source, partition));
        found.map(|(_, _, below)| *below)
    }
}

/// Dead letters that are asked for, the one that was appended last first. One that was noted more than
/// once, with the same origin and the same bytes, comes once, as far as that is remembered.
#[derive(Debug)]
pub struct Newest<'a> {
    log: &'a dyn LogRead,
    asked: Asked,
    tails: Vec<Tail>,
    seen: Seen,
    looked_at: u64,
}

impl<'a> Newest<'a> {
    /// Begins at the end of the log, or goes on where somebody else stopped who asked for the same.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn open(
        log: &'a dyn LogRead,
        asked: Asked,
        after: Option<&Positions>,
    ) -> Result<Self> {
        let by_source = asked.sources().map(|source| asked.stretches(log, source));
        let stretches = try_join_all(by_source).await?;
        let tail = |stretch| Tail::of(stretch, after);
        let tails = stretches.into_iter().flatten().map(tail).collect();
        Ok(Self {
            log,
            asked,
            tails,
            seen: Seen::default(),
            looked_at: 0,
        })
    }

    /// The next letter. None if there is no more, or once `looked_at_max` letters in all were looked at;
    /// [`Newest::is_over`] tells which. Then it may be asked again.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn next(&mut self, looked_at_max: u64) -> Result<Option<Letter>> {
        while self.looked_at < looked_at_max {
            if self.tails.iter().any(Tail::wants) {
                let log = self.log;
                let filled = self.tails.iter_mut().map(|tail| tail.fill(log));
                try_join_all(filled).await?;
            }
            let newest = self.tails.iter_mut().enumerate();
            let newest = newest.filter_map(|(index, tail)| {
                let logged_at_ms = tail.letters.last()?.logged_at_ms;
                Some(((logged_at_ms, Reverse(index)), tail))
            });
            let newest = newest.max_by_key(|(order, _)| *order);
            let Some(letter) = newest.and_then(|(_, tail)| tail.letters.pop()) else {
                return Ok(None);
            };
            self.looked_at += 1;
            if self.asked.takes(&letter) && self.seen.is_new(&letter) {
                return Ok(Some(letter));
            }
        }
        Ok(None)
    }

    /// How many letters were looked at, also those that were not asked for.
    #[must_use]
    pub const fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Whether no more letters are to be looked at.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_over = |tail: &Tail| tail.letters.is_empty() && !tail.wants();
        self.tails.iter().all(is_over)
    }

    /// Where to go on after the last letter.
    #[must_use]
    pub fn positions(&self) -> Positions {
        let position = |tail: &Tail| (tail.source, tail.partition, tail.below());
        let unread = self.tails.iter().filter(|tail| tail.below() > tail.start);
        Positions(unread.map(position).collect())
    }
}

/// The letters of a partition that were not given yet.
#[derive(Debug)]
struct Tail {
    source: Source,
    partition: u32,
    /// Where those begin that are asked for.
    start: Offset,
    /// What stands from here on was read.
    read_from: Offset,
    /// What of that was not given yet, the oldest first.
    letters: Vec<Letter>,
    /// How many offsets are read next.
    offsets: i64,
}

/// What became of reading a stretch.
enum Tried {
    /// Its letters, and how many bytes that took.
    Read(Vec<Letter>, usize),
    /// It has more bytes than fit.
    TooLarge,
    /// The log begins here by now.
    Begins(Offset),
}

impl Tail {
    fn of(stretch: Stretch, after: Option<&Positions>) -> Self {
        let Stretch {
            source,
            partition,
            span,
        } = stretch;
        let below = match after {
            None => span.end,
            // Who had read all of a partition goes on without it.
            Some(positions) => positions.of(source, partition).unwrap_or(span.start),
        };
        Self {
            source,
            partition,
            start: span.start,
            read_from: below.clamp(span.start, span.end),
            letters: Vec::new(),
            offsets: FIRST_OFFSETS,
        }
    }

    /// Whether more must be read before it is known which of its letters comes next.
    fn wants(&self) -> bool {
        self.letters.is_empty() && self.read_from > self.start
    }

    /// Below this offset stand those that were not given yet.
    fn below(&self) -> Offset {
        let next = self.letters.last();
        next.map_or(self.read_from, |letter| letter.id.offset + 1)
    }

    /// Reads on until there is a letter to give, or no more.
    async fn fill(&mut self, log: &dyn LogRead) -> Result<()> {
        while self.wants() {
            let from = self.start.max(self.read_from - self.offsets);
            match self.try_stretch(log, from).await? {
                Tried::Read(letters, bytes) => {
                    self.read_from = from;
                    self.letters = letters;
                    if bytes < STRETCH_BYTES / 4 {
                        self.offsets = OFFSETS_MAX.min(self.offsets * 2);
                    }
                }
                Tried::TooLarge => self.offsets = ((self.read_from - from) / 2).max(1),
                Tried::Begins(start) => self.start = start.min(self.read_from),
            }
        }
        Ok(())
    }

    /// Reads the letters from here on to those that were read.
    async fn try_stretch(&self, log: &dyn LogRead, from: Offset) -> Result<Tried> {
        let topic = self.source.dead_letter_topic();
        let first = LetterId {
            source: self.source,
            partition: self.partition,
            offset: from,
        };
        let (mut next, end) = (from, self.read_from);
        let (mut letters, mut bytes) = (Vec::new(), 0);
        while next < end {
            let limit = FetchLimit {
                records: usize::try_from(end - next).unwrap_or(usize::MAX),
                bytes: STRETCH_BYTES,
            };
            let fetched = match log.fetch_apart(topic, self.partition, next, limit).await {
                Err(Error::OffsetOutOfRange { start, .. }) if next < start => {
                    return Ok(Tried::Begins(start));
                }
                fetched => fetched?,
            };
            if fetched.next_offset == next {
                break;
            }
            bytes += fetched.records.value_bytes();
            if bytes > STRETCH_BYTES && end - from > 1 {
                return Ok(Tried::TooLarge);
            }
            letters.extend(Letter::all(&fetched, first, end));
            next = fetched.next_offset;
        }
        Ok(Tried::Read(letters, bytes))
    }
}
