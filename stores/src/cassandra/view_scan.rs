//! Scans the tables of views: rows in the order of tokens, heads in the order of their buckets.
//!
//! A scan continues after a key and not after a paging state of the servers, which depends on their
//! version and cannot point into a page. Shares of rows are ranges of tokens of the
//! `Murmur3Partitioner`, the only one that the driver supports. Shares of heads are whole buckets,
//! of which there are [`editions::BUCKETS`].

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use bytes::Bytes;
use scylla::response::PagingState;
use scylla::response::query_result::QueryRowsResult;
use scylla::routing::partitioner::{Murmur3Partitioner, Partitioner};
use scylla::serialize::row::SerializeRow;

use super::editions;
use super::session::Cql;
use super::view_rows::decode_row;
use crate::Result;
use crate::view_scan::{
    HeadsPage, PageBudget, RowPosition, RowsPage, ScanShare, ScannedHead, ScannedHeads,
    ScannedRows, ShareScheme,
};

/// The maximum number of rows and heads in one page. A root has a few thousand bytes.
const PAGE_ROWS_MAX: usize = 5_000;
const PAGE_HEADS_MAX: usize = 500;
/// The number of parallel shares that keep a small cluster busy.
const PARALLEL_SHARES: NonZeroU32 = NonZeroU32::MIN.saturating_add(15);
/// The number of unsigned tokens per bucket.
const TOKENS_PER_BUCKET: u64 = 1 << (u64::BITS - editions::BUCKETS.ilog2());

pub(super) const DIVISION: ShareScheme = ShareScheme {
    parallel_shares: PARALLEL_SHARES,
    row_token: |part| to_unsigned_token(token(part)),
    head_token: |key| bucket_token(editions::bucket(key)),
};

fn token(part: &[u8]) -> i64 {
    Murmur3Partitioner.hash_one(part).value()
}

/// Converts a token of Cassandra, which is signed, to an unsigned one in the same order.
const fn to_unsigned_token(token: i64) -> u64 {
    token.cast_unsigned() ^ (1 << 63)
}

const fn to_signed_token(token: u64) -> i64 {
    (token ^ (1 << 63)).cast_signed()
}

const fn bucket_token(bucket: i32) -> u64 {
    bucket.cast_unsigned() as u64 * TOKENS_PER_BUCKET
}

/// Converts a range to signed tokens: exclusive start, inclusive end. The smallest number is no
/// token.
fn to_signed_range(token_range: &RangeInclusive<u64>) -> (i64, i64) {
    let (first, last) = (
        to_signed_token(*token_range.start()),
        to_signed_token(*token_range.end()),
    );
    (first.saturating_sub(1), last)
}

/// Reads a page of the rows of a share.
pub(super) async fn rows(
    cql: &Cql,
    id: &str,
    share: ScanShare,
    after: Option<&RowPosition>,
    limit: usize,
) -> Result<ScannedRows> {
    let mut scan = RowScan {
        cql,
        id,
        page: RowsPage::new(limit),
    };
    let Some(token_range) = share.token_range() else {
        return Ok(scan.page.finish(true));
    };
    let (mut begin, end) = to_signed_range(&token_range);
    let mut is_complete = true;
    if let Some(at) = after.filter(|at| share.contains(to_unsigned_token(token(&at.partition)))) {
        begin = token(&at.partition);
        is_complete = scan.read_rest(at).await?;
    }
    // If both are equal, the servers take the range for the whole ring.
    if is_complete && begin < end {
        let range = "token(part) > ? AND token(part) <= ?";
        is_complete = scan.read_matching(range, &(begin, end)).await?;
    }
    Ok(scan.page.finish(is_complete))
}

/// A scanned row: its keys, count and epoch, and the write times of both.
type Scanned<'a> = (
    &'a [u8],
    &'a [u8],
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

/// A scan that fills a page.
struct RowScan<'a> {
    cql: &'a Cql,
    id: &'a str,
    page: RowsPage,
}

impl RowScan<'_> {
    const OPERATION: &'static str = "scanning batch rows";

    /// Reads the rows after a position that have the same token: the rest of its partition and,
    /// which is rare, other partitions with this token, in the order of their keys. Returns whether
    /// these were all.
    async fn read_rest(&mut self, at: &RowPosition) -> Result<bool> {
        let rest = (&at.partition, &at.row);
        if !self.read_matching("part = ? AND row > ?", &rest).await? {
            return Ok(false);
        }
        let text = format!(
            "SELECT DISTINCT part FROM rows_{} WHERE token(part) = ?",
            self.id
        );
        let statement = self.cql.prepare(Self::OPERATION, &text).await?;
        let of_token = (token(&at.partition),);
        let mut parts: Vec<(Vec<u8>,)> = self
            .cql
            .fetch_all(Self::OPERATION, &statement, &of_token)
            .await?;
        parts.retain(|(part,)| *part > at.partition);
        for (part,) in parts {
            if !self.read_matching("part = ?", &(part,)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the rows that satisfy a condition, in their order, until the page is full. Returns
    /// whether these were all.
    async fn read_matching(
        &mut self,
        condition: &str,
        values: &(impl SerializeRow + Sync),
    ) -> Result<bool> {
        let text = format!(
            "SELECT part, row, count, epoch, WRITETIME(count), WRITETIME(epoch) FROM rows_{} WHERE {condition}",
            self.id
        );
        let mut statement = self.cql.prepare(Self::OPERATION, &text).await?;
        let mut next = Some(PagingState::start());
        while let Some(from) = next {
            if self.page.budget().is_full() {
                return Ok(false);
            }
            statement.set_page_size(choose_page_size(self.page.budget(), PAGE_ROWS_MAX));
            let page = self
                .cql
                .read_page(Self::OPERATION, &statement, values, from);
            let (page, after) = page.await?;
            next = after;
            let is_complete = self.add(&page);
            if !is_complete.map_err(|error| self.cql.broken(Self::OPERATION, error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds rows until the page is full. Returns whether these were all.
    fn add(
        &mut self,
        page: &QueryRowsResult,
    ) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
        for row in page.rows::<Scanned<'_>>()? {
            if self.page.budget().is_full() {
                return Ok(false);
            }
            let (part, row, count, epoch, count_us, epoch_us) = row?;
            let (count, epoch) = decode_row(count, epoch);
            self.page.visit(part, row);
            // A run writes both together. Another program may have changed one of them later.
            let stamp_us = count_us.max(epoch_us).unwrap_or(0);
            self.page.add(part, row, count, epoch, stamp_us);
        }
        Ok(true)
    }
}

/// Chooses how many rows to request at once.
fn choose_page_size(budget: &PageBudget, rows_max: usize) -> i32 {
    i32::try_from(budget.choose_fetch_rows(rows_max)).unwrap_or(1)
}

/// Reads a page of the heads of a share.
pub(super) async fn heads(
    cql: &Cql,
    id: &str,
    share: ScanShare,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<ScannedHeads> {
    let mut page = HeadsPage::new(limit);
    let first = after.map_or(0, editions::bucket);
    for bucket in first..editions::BUCKETS.cast_signed() {
        if !share.contains(bucket_token(bucket)) {
            continue;
        }
        let after = after.filter(|key| editions::bucket(key) == bucket);
        if !read_bucket(cql, id, (bucket, after), &mut page).await? {
            let next = page.last();
            return Ok(page.finish(next));
        }
    }
    Ok(page.finish(None))
}

type HeadRow = (Vec<u8>, i64, i64, Bytes);

/// Reads heads of a bucket until the page is full. Returns whether these were all.
async fn read_bucket(
    cql: &Cql,
    id: &str,
    (bucket, after): (i32, Option<&[u8]>),
    page: &mut HeadsPage,
) -> Result<bool> {
    let operation = "scanning heads";
    // The first read has a bound, too. Without one, it would return the row of the bucket's fence.
    let bound = if after.is_some() { ">" } else { ">=" };
    let text = format!(
        "SELECT key, epoch, stamp_us, root FROM heads_{id} WHERE bucket = ? AND key {bound} ?"
    );
    let mut statement = cql.prepare(operation, &text).await?;
    let values = (bucket, after.unwrap_or_default());
    let mut next = Some(PagingState::start());
    while let Some(from) = next {
        if page.budget().is_full() {
            return Ok(false);
        }
        statement.set_page_size(choose_page_size(page.budget(), PAGE_HEADS_MAX));
        let (result, later) = cql.read_page(operation, &statement, &values, from).await?;
        next = later;
        let rows = result.rows::<HeadRow>();
        for row in rows.map_err(|error| cql.broken(operation, error))? {
            if page.budget().is_full() {
                return Ok(false);
            }
            let (key, epoch, stamp_us, root) = row.map_err(|error| cql.broken(operation, error))?;
            page.add(ScannedHead {
                key,
                epoch: epoch.cast_unsigned(),
                root,
                stamp_us: Some(stamp_us),
            });
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_of_cassandra() {
        // The results of `SELECT token(part)` on a server.
        assert_eq!(token(b"test"), -6_017_608_668_500_074_083);
        assert_eq!(token(b"xd"), 4_507_812_186_440_344_727);
        assert_eq!(token(b"primary_key"), -1_632_642_444_691_073_360);
    }

    #[test]
    fn shares_are_ranges_of_tokens() {
        let all = ScanShare::ALL.token_range().expect("a share");
        assert_eq!(to_signed_range(&all), (i64::MIN, i64::MAX));
        let count = NonZeroU32::MIN.saturating_add(1);
        let halves = ScanShare::list_all(count)
            .map(|share| to_signed_range(&share.token_range().expect("a share")));
        let halves: Vec<_> = halves.collect();
        assert_eq!(halves, [(i64::MIN, -1), (-1, i64::MAX)]);
        for token in [i64::MIN + 1, -1, 0, i64::MAX] {
            assert_eq!(to_signed_token(to_unsigned_token(token)), token);
            let share = u32::from(token >= 0);
            assert!(
                ScanShare {
                    index: share,
                    count
                }
                .contains(to_unsigned_token(token))
            );
        }
    }

    #[test]
    fn buckets_divide_the_tokens_evenly() {
        let last = bucket_token(editions::BUCKETS.cast_signed() - 1);
        assert_eq!(last.wrapping_add(TOKENS_PER_BUCKET), 0);
    }
}
