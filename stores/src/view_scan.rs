//! The scan port: reads all rows of a view's table, page by page, to compare them with the expected
//! rows.
//!
//! Rows come in storage order, which no write changes: by token and row in Cassandra, by key in the
//! embedded store. So a row that exists during the whole scan is returned once, a row that is
//! written meanwhile at most once, and a scan holds one page in memory. A page is of about one
//! moment, a scan is not: the stamp of a row shows that a run published it meanwhile.
//!
//! Several readers divide a table into [`ScanShare`]s. The share of a key does not depend on the
//! stored rows ([`ShareScheme`]). So the expected rows can be divided in the same way, and each
//! share compared separately.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use arrow::array::{
    BinaryArray, BinaryBuilder, Int64Array, Int64Builder, UInt64Array, UInt64Builder,
};
use async_trait::async_trait;
use bytes::Bytes;
use schemas::seam::Epoch;

use crate::{Error, Result};

/// The size of keys and roots after which a page is full; the last row may exceed it.
const PAGE_BYTES: usize = 4 << 20;
/// The estimated size of a row without its keys.
const ROW_BYTES: usize = 32;

/// The part of a table that one reader scans: share `index`, from 0, of `count` shares. Shares are
/// disjoint and cover the table; a share with an index that is too large is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScanShare {
    /// The index of the share.
    pub index: u32,
    /// The number of shares.
    pub count: NonZeroU32,
}

impl ScanShare {
    /// The whole table.
    pub const ALL: Self = Self {
        index: 0,
        count: NonZeroU32::MIN,
    };

    /// Lists all shares of a table.
    pub fn list_all(count: NonZeroU32) -> impl Iterator<Item = Self> {
        (0..count.get()).map(move |index| Self { index, count })
    }

    /// The tokens of the share; `None` if the share does not exist.
    pub(crate) fn token_range(self) -> Option<RangeInclusive<u64>> {
        let start = |index: u64| (u128::from(index) << 64).div_ceil(u128::from(self.count.get()));
        let first = u64::try_from(start(self.index.into())).ok()?;
        // At most 2^64 - 1, because the first token is below 2^64.
        let last = u64::try_from(start(u64::from(self.index) + 1) - 1).ok()?;
        Some(first..=last)
    }

    /// Returns whether a token is in the share.
    pub(crate) fn contains(self, token: u64) -> bool {
        self.token_range()
            .is_some_and(|range| range.contains(&token))
    }
}

/// How a store divides its tables into shares: each key has a 64-bit token, and shares are equal
/// token ranges. It is constant for a store.
#[derive(Debug, Clone, Copy)]
pub struct ShareScheme {
    /// The number of shares that are worth reading in parallel; 1 if a share costs as much as the
    /// table.
    pub parallel_shares: NonZeroU32,
    pub(crate) row_token: fn(partition: &[u8]) -> u64,
    pub(crate) head_token: fn(key: &[u8]) -> u64,
}

impl ShareScheme {
    /// Returns whether a share holds the rows of a table partition.
    #[must_use]
    pub fn has_rows(&self, share: ScanShare, partition: &[u8]) -> bool {
        share.contains((self.row_token)(partition))
    }

    /// Returns whether a share holds the head of a key.
    #[must_use]
    pub fn has_head(&self, share: ScanShare, key: &[u8]) -> bool {
        share.contains((self.head_token)(key))
    }
}

/// A position in the scan of an aggregate's table: after the row with these keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowPosition {
    /// The encoded table partition.
    pub partition: Vec<u8>,
    /// The encoded row key.
    pub row: Vec<u8>,
}

/// A page of an aggregate's rows.
#[derive(Debug, Clone)]
pub struct ScannedRows {
    /// The encoded table partitions.
    pub partitions: BinaryArray,
    /// The encoded row keys.
    pub rows: BinaryArray,
    /// The counts; null for a marker, a row that no event produces any more.
    pub counts: Int64Array,
    /// The epochs that the rows are valid for.
    pub epochs: UInt64Array,
    /// The stamps of the writes, in microseconds since the Unix epoch.
    pub stamps_us: Int64Array,
    /// The position after which the next page begins; `None` at the end of the share. A page may be
    /// empty though another one follows.
    pub next: Option<RowPosition>,
}

/// A head of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedHead {
    /// The encoded key.
    pub key: Vec<u8>,
    /// The epoch that its boards cover.
    pub epoch: Epoch,
    /// The root.
    pub root: Bytes,
    /// The stamp of the write, in microseconds since the Unix epoch; `None` if an older version of
    /// a store wrote it.
    pub stamp_us: Option<i64>,
}

/// A page of the heads of a view of boards.
#[derive(Debug, Clone)]
pub struct ScannedHeads {
    /// The heads.
    pub heads: Vec<ScannedHead>,
    /// The key after which the next page begins; `None` at the end of the share. A page may be
    /// empty though another one follows.
    pub next: Option<Vec<u8>>,
}

/// Reads complete tables of views. A page has at most `limit` rows (one for a limit of 0) and about
/// 4 MiB. The next page begins at its `next`, also in another process.
#[async_trait]
pub trait ViewsScan: std::fmt::Debug + Send + Sync {
    /// How the store divides tables into shares.
    async fn share_scheme(&self) -> Result<ShareScheme>;

    /// A page of the rows of an aggregate in a share, after a position in the same share; `None` if
    /// the view has no table.
    ///
    /// # Errors
    /// [`Error::Refused`] for a view of boards.
    async fn scan_rows(
        &self,
        view: &str,
        share: ScanShare,
        after: Option<&RowPosition>,
        limit: usize,
    ) -> Result<Option<ScannedRows>>;

    /// A page of the heads of a view of boards in a share, after a key in the same share; `None` if
    /// the view has no table.
    ///
    /// # Errors
    /// [`Error::Refused`] for an aggregate.
    async fn scan_heads(
        &self,
        view: &str,
        share: ScanShare,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Option<ScannedHeads>>;
}

/// The error of a scan for the other kind of view.
pub(crate) fn wrong_kind_error(view: &str, is_board: bool) -> Error {
    let problem = if is_board {
        "it is a view of boards and has no aggregate rows; scan its heads"
    } else {
        "it is an aggregate view and has no heads; scan its rows"
    };
    Error::Refused(format!("{view}: {problem}"))
}

/// The remaining capacity of a page.
#[derive(Debug)]
pub(crate) struct PageBudget {
    rows: usize,
    bytes: usize,
    added: usize,
}

impl PageBudget {
    const fn new(limit: usize) -> Self {
        Self {
            rows: if limit == 0 { 1 } else { limit },
            bytes: PAGE_BYTES,
            added: 0,
        }
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.rows == 0 || self.bytes == 0
    }

    const fn consume(&mut self, bytes: usize) {
        self.added += 1;
        self.rows = self.rows.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes + ROW_BYTES);
    }

    /// The maximum number of rows to add.
    pub(crate) const fn rows_left(&self) -> usize {
        self.rows
    }

    /// Chooses the number of rows to request from a server, at most `rows_max`. It assumes rows as
    /// large as those before, and a tenth of the maximum before the first row.
    pub(crate) fn choose_fetch_rows(&self, rows_max: usize) -> usize {
        let rows = match self.added {
            0 => rows_max / 10,
            added => self.bytes / ((PAGE_BYTES - self.bytes) / added).max(1) + 1,
        };
        rows.min(rows_max).min(self.rows).max(1)
    }
}

/// A page of rows under construction.
#[derive(Debug)]
pub(crate) struct RowsPage {
    budget: PageBudget,
    partitions: BinaryBuilder,
    rows: BinaryBuilder,
    counts: Int64Builder,
    epochs: UInt64Builder,
    stamps_us: Int64Builder,
    last: RowPosition,
}

impl RowsPage {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            budget: PageBudget::new(limit),
            partitions: BinaryBuilder::new(),
            rows: BinaryBuilder::new(),
            counts: Int64Builder::new(),
            epochs: UInt64Builder::new(),
            stamps_us: Int64Builder::new(),
            last: RowPosition::default(),
        }
    }

    pub(crate) const fn budget(&self) -> &PageBudget {
        &self.budget
    }

    /// Adds a row.
    pub(crate) fn add(
        &mut self,
        partition: &[u8],
        row: &[u8],
        count: Option<i64>,
        epoch: Epoch,
        stamp_us: i64,
    ) {
        self.budget.consume(partition.len() + row.len());
        self.partitions.append_value(partition);
        self.rows.append_value(row);
        self.counts.append_option(count);
        self.epochs.append_value(epoch);
        self.stamps_us.append_value(stamp_us);
    }

    /// Visits a row, whether it is added or not. The scan continues after the last visited row.
    pub(crate) fn visit(&mut self, partition: &[u8], row: &[u8]) {
        if self.last.partition != partition {
            self.last.partition.clear();
            self.last.partition.extend_from_slice(partition);
        }
        self.last.row.clear();
        self.last.row.extend_from_slice(row);
    }

    /// The last visited row.
    pub(crate) const fn last(&self) -> &RowPosition {
        &self.last
    }

    pub(crate) fn finish(mut self, is_last: bool) -> ScannedRows {
        ScannedRows {
            partitions: self.partitions.finish(),
            rows: self.rows.finish(),
            counts: self.counts.finish(),
            epochs: self.epochs.finish(),
            stamps_us: self.stamps_us.finish(),
            next: (!is_last).then_some(self.last),
        }
    }
}

/// A page of heads under construction.
#[derive(Debug)]
pub(crate) struct HeadsPage {
    budget: PageBudget,
    heads: Vec<ScannedHead>,
}

impl HeadsPage {
    pub(crate) const fn new(limit: usize) -> Self {
        Self {
            budget: PageBudget::new(limit),
            heads: Vec::new(),
        }
    }

    pub(crate) const fn budget(&self) -> &PageBudget {
        &self.budget
    }

    pub(crate) fn add(&mut self, head: ScannedHead) {
        self.budget.consume(head.key.len() + head.root.len());
        self.heads.push(head);
    }

    /// The page of a scan that continues after a key.
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
