//! The scan port: all rows of a view's table, page by page, by whoever compares what is stored with what
//! should be.
//!
//! A table comes in an order of the store's own, which no write changes: on Cassandra that of tokens, then of
//! rows; embedded that of keys. So a row that was there from the begin of a scan to its end comes once, one
//! that is written meanwhile at most once, and whoever scans holds no more than a page. A page is of about one
//! moment, a scan of none: what a run publishes meanwhile is told by its stamp.
//!
//! Several readers divide a table into [`ScanShare`]s. Which share a key is in does not depend on what is
//! stored ([`Division`]), so what should be there can be divided in the same way, and each share compared
//! by itself.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use arrow::array::{
    BinaryArray, BinaryBuilder, Int64Array, Int64Builder, UInt64Array, UInt64Builder,
};
use async_trait::async_trait;
use bytes::Bytes;
use schemas::seam::Epoch;

use crate::{Error, Result};

/// A page is full with so many bytes of keys and roots, whatever its limit; the last row may go beyond.
const PAGE_BYTES: usize = 4 << 20;
/// What a row takes beside its keys.
const ROW_BYTES: usize = 32;

/// The part of a table that one reader scans: share `index`, from 0 on, of `of` shares. Together they are
/// the whole table, and no two have a row in common; a share with an index that is too large has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScanShare {
    /// Which one.
    pub index: u32,
    /// How many there are.
    pub of: NonZeroU32,
}

impl ScanShare {
    /// The whole table.
    pub const ALL: Self = Self {
        index: 0,
        of: NonZeroU32::MIN,
    };

    /// All shares of a table that is divided into so many.
    pub fn each(of: NonZeroU32) -> impl Iterator<Item = Self> {
        (0..of.get()).map(move |index| Self { index, of })
    }

    /// The places that it holds, of all that 64 bits can name; nothing if there is no such share.
    pub(crate) fn places(self) -> Option<RangeInclusive<u64>> {
        let begin = |index: u64| (u128::from(index) << 64).div_ceil(u128::from(self.of.get()));
        let first = u64::try_from(begin(self.index.into())).ok()?;
        // At most 2^64 - 1, as the first place is below 2^64.
        let last = u64::try_from(begin(u64::from(self.index) + 1) - 1).ok()?;
        Some(first..=last)
    }

    /// Whether it holds a place.
    pub(crate) fn has(self, place: u64) -> bool {
        self.places().is_some_and(|places| places.contains(&place))
    }
}

/// How a store divides its tables into shares: each key has a place among 2^64, and shares are equal
/// stretches of them. It is always the same for a store.
#[derive(Debug, Clone, Copy)]
pub struct Division {
    /// So many shares it pays to read side by side. One where a share costs as much as the table.
    pub side_by_side: NonZeroU32,
    pub(crate) row_place: fn(part: &[u8]) -> u64,
    pub(crate) head_place: fn(key: &[u8]) -> u64,
}

impl Division {
    /// Whether a share holds the rows of a table partition.
    #[must_use]
    pub fn has_rows(&self, share: ScanShare, part: &[u8]) -> bool {
        share.has((self.row_place)(part))
    }

    /// Whether a share holds the head of a key.
    #[must_use]
    pub fn has_head(&self, share: ScanShare, key: &[u8]) -> bool {
        share.has((self.head_place)(key))
    }
}

/// A place in the scan of a tally's table: after the row with these keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScanPlace {
    /// The encoded table partition.
    pub part: Vec<u8>,
    /// The encoded row key.
    pub row: Vec<u8>,
}

/// A page of a tally's rows.
#[derive(Debug, Clone)]
pub struct ScannedRows {
    /// The encoded table partitions.
    pub parts: BinaryArray,
    /// The encoded row keys.
    pub rows: BinaryArray,
    /// The counts; null for a marker: no event gives the row any more.
    pub counts: Int64Array,
    /// The epochs that the rows hold.
    pub epochs: UInt64Array,
    /// The stamps with which they were written, in microseconds since the Unix epoch.
    pub stamps_us: Int64Array,
    /// Where the next page begins; nothing if the share has no more. Also a page without rows may have
    /// one that follows.
    pub next: Option<ScanPlace>,
}

/// A head as a scan finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedHead {
    /// The encoded key.
    pub key: Vec<u8>,
    /// The epoch that its boards hold.
    pub epoch: Epoch,
    /// The root.
    pub root: Bytes,
    /// The stamp with which it was written, in microseconds since the Unix epoch. Nothing where an older
    /// version of a store wrote it.
    pub stamp_us: Option<i64>,
}

/// A page of the heads of a view of boards.
#[derive(Debug, Clone)]
pub struct ScannedHeads {
    /// The heads.
    pub heads: Vec<ScannedHead>,
    /// The key after which the next page begins; nothing if the share has no more. Also a page without
    /// heads may have one that follows.
    pub next: Option<Vec<u8>>,
}

/// Reading the tables of views as a whole. A page has at most `limit` rows (of a limit of 0, one) and about
/// 4 MiB; the next one begins at its `next`, also in another process.
#[async_trait]
pub trait ViewsScan: std::fmt::Debug + Send + Sync {
    /// How tables are divided into shares.
    async fn division(&self) -> Result<Division>;

    /// A page of the rows of a tally in a share, after a place in the same share; nothing if the view has no
    /// table, since it was never made or has been deleted.
    ///
    /// # Errors
    /// [`Error::Refused`] for a view of boards.
    async fn scan_rows(
        &self,
        view: &str,
        share: ScanShare,
        after: Option<&ScanPlace>,
        limit: usize,
    ) -> Result<Option<ScannedRows>>;

    /// A page of the heads of a view of boards in a share, after a key in the same share; nothing if the
    /// view has no table.
    ///
    /// # Errors
    /// [`Error::Refused`] for a tally.
    async fn scan_heads(
        &self,
        view: &str,
        share: ScanShare,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Option<ScannedHeads>>;
}

/// The error for a view that is scanned for what views of the other kind have.
pub(crate) fn other_kind(view: &str, is_board: bool) -> Error {
    let what = if is_board {
        "it has boards and no rows of a tally; scan its heads"
    } else {
        "it is a tally and has no heads; scan its rows"
    };
    Error::Refused(format!("{view}: {what}"))
}

/// How much a page takes yet.
#[derive(Debug)]
pub(crate) struct Room {
    rows: usize,
    bytes: usize,
    taken: usize,
}

impl Room {
    const fn new(limit: usize) -> Self {
        Self {
            rows: if limit == 0 { 1 } else { limit },
            bytes: PAGE_BYTES,
            taken: 0,
        }
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.rows == 0 || self.bytes == 0
    }

    const fn take(&mut self, bytes: usize) {
        self.taken += 1;
        self.rows = self.rows.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes + ROW_BYTES);
    }

    /// How many rows it takes yet, at most.
    pub(crate) const fn rows_left(&self) -> usize {
        self.rows
    }

    /// How many rows to ask a server for at once, at most `most`: as many as the page takes if they are as
    /// large as those before, and a tenth of the most as long as nobody knows how large they are.
    pub(crate) fn to_ask(&self, most: usize) -> usize {
        let rows = match self.taken {
            0 => most / 10,
            taken => self.bytes / ((PAGE_BYTES - self.bytes) / taken).max(1) + 1,
        };
        rows.min(most).min(self.rows).max(1)
    }
}

/// A page of rows while it is filled.
#[derive(Debug)]
pub(crate) struct RowsPage {
    room: Room,
    parts: BinaryBuilder,
    rows: BinaryBuilder,
    counts: Int64Builder,
    epochs: UInt64Builder,
    stamps_us: Int64Builder,
    last: ScanPlace,
}

impl RowsPage {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            room: Room::new(limit),
            parts: BinaryBuilder::new(),
            rows: BinaryBuilder::new(),
            counts: Int64Builder::new(),
            epochs: UInt64Builder::new(),
            stamps_us: Int64Builder::new(),
            last: ScanPlace::default(),
        }
    }

    pub(crate) const fn room(&self) -> &Room {
        &self.room
    }

    /// Adds a row: its keys, count, epoch and stamp.
    pub(crate) fn add(
        &mut self,
        (part, row): (&[u8], &[u8]),
        count: Option<i64>,
        (epoch, stamp_us): (Epoch, i64),
    ) {
        self.room.take(part.len() + row.len());
        self.parts.append_value(part);
        self.rows.append_value(row);
        self.counts.append_option(count);
        self.epochs.append_value(epoch);
        self.stamps_us.append_value(stamp_us);
    }

    /// Looks at a row, whether it is added or not: the scan goes on after the last one.
    pub(crate) fn pass(&mut self, part: &[u8], row: &[u8]) {
        if self.last.part != part {
            self.last.part.clear();
            self.last.part.extend_from_slice(part);
        }
        self.last.row.clear();
        self.last.row.extend_from_slice(row);
    }

    /// The row that was looked at last.
    pub(crate) const fn last(&self) -> &ScanPlace {
        &self.last
    }

    pub(crate) fn finish(mut self, is_last: bool) -> ScannedRows {
        ScannedRows {
            parts: self.parts.finish(),
            rows: self.rows.finish(),
            counts: self.counts.finish(),
            epochs: self.epochs.finish(),
            stamps_us: self.stamps_us.finish(),
            next: (!is_last).then_some(self.last),
        }
    }
}

/// A page of heads while it is filled.
#[derive(Debug)]
pub(crate) struct HeadsPage {
    room: Room,
    heads: Vec<ScannedHead>,
}

impl HeadsPage {
    pub(crate) const fn new(limit: usize) -> Self {
        Self {
            room: Room::new(limit),
            heads: Vec::new(),
        }
    }

    pub(crate) const fn room(&self) -> &Room {
        &self.room
    }

    pub(crate) fn add(&mut self, head: ScannedHead) {
        self.room.take(head.key.len() + head.root.len());
        self.heads.push(head);
    }

    /// The page, of a scan that goes on after a key.
    pub(crate) fn finish(self, next: Option<Vec<u8>>) -> ScannedHeads {
        ScannedHeads {
            heads: self.heads,
            next,
        }
    }

    /// The key of the last head.
    pub(crate) fn last(&self) -> Option<Vec<u8>> {
        self.heads.last().map(|head| head.key.clone())
    }
}

#[cfg(test)]
#[path = "view_scan_tests.rs"]
mod tests;
