//! Scanning the tables of views: rows in the order of tokens, heads in that of their buckets.
//!
//! A scan goes on after keys and not after what the servers call a paging state, which ends with their
//! version and can't be cut within an answer. Shares of rows are ranges of tokens, as `Murmur3Partitioner`
//! makes them, the only one that the driver knows; those of heads are whole buckets, of which there are
//! [`editions::BUCKETS`].

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use bytes::Bytes;
use scylla::response::PagingState;
use scylla::response::query_result::QueryRowsResult;
use scylla::routing::partitioner::{Murmur3Partitioner, Partitioner};
use scylla::serialize::row::SerializeRow;

use super::editions;
use super::session::Cql;
use super::view_rows::held;
use crate::Result;
use crate::view_scan::{
    HeadsPage, PageBudget, RowPosition, RowsPage, ScanShare, ScannedHead, ScannedHeads,
    ScannedRows, ShareScheme,
};

/// Rows and heads in one answer, at most: roots have some thousand bytes.
const ROWS_ASKED: usize = 5_000;
const HEADS_ASKED: usize = 500;
/// Shares that keep a small cluster busy.
const SIDE_BY_SIDE: NonZeroU32 = NonZeroU32::MIN.saturating_add(15);
/// Between two buckets lie so many places.
const BUCKET_PLACES: u64 = 1 << (u64::BITS - editions::BUCKETS.ilog2());

pub(super) const DIVISION: ShareScheme = ShareScheme {
    parallel_shares: SIDE_BY_SIDE,
    row_token: |part| place_of(token(part)),
    head_token: |key| bucket_place(editions::bucket(key)),
};

fn token(part: &[u8]) -> i64 {
    Murmur3Partitioner.hash_one(part).value()
}

/// Tokens are numbers with a sign, places without.
const fn place_of(token: i64) -> u64 {
    token.cast_unsigned() ^ (1 << 63)
}

const fn token_at(place: u64) -> i64 {
    (place ^ (1 << 63)).cast_signed()
}

const fn bucket_place(bucket: i32) -> u64 {
    bucket.cast_unsigned() as u64 * BUCKET_PLACES
}

/// The tokens of some places: after the first of these, up to the second. The smallest number is no token.
fn tokens(places: &RangeInclusive<u64>) -> (i64, i64) {
    let (first, last) = (token_at(*places.start()), token_at(*places.end()));
    (first.saturating_sub(1), last)
}

/// A page of the rows of a share.
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
    let Some(places) = share.token_range() else {
        return Ok(scan.page.finish(true));
    };
    let (mut begin, end) = tokens(&places);
    let mut is_all = true;
    if let Some(at) = after.filter(|at| share.contains(place_of(token(&at.partition)))) {
        begin = token(&at.partition);
        is_all = scan.take_rest(at).await?;
    }
    // Where both are the same, the range would be the whole ring.
    if is_all && begin < end {
        let range = "token(part) > ? AND token(part) <= ?";
        is_all = scan.take(range, &(begin, end)).await?;
    }
    Ok(scan.page.finish(is_all))
}

/// A row as it is scanned: its keys, count and epoch, and when these were written.
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
    const DOING: &'static str = "scanning batch rows";

    /// Takes what follows a place and has the same token: the rest of its partition and, seldom enough,
    /// partitions with the same token, which lie in the order of their keys. Answers whether that was all.
    async fn take_rest(&mut self, at: &RowPosition) -> Result<bool> {
        let rest = (&at.partition, &at.row);
        if !self.take("part = ? AND row > ?", &rest).await? {
            return Ok(false);
        }
        let text = format!(
            "SELECT DISTINCT part FROM rows_{} WHERE token(part) = ?",
            self.id
        );
        let statement = self.cql.prepare(Self::DOING, &text).await?;
        let of_token = (token(&at.partition),);
        let mut parts: Vec<(Vec<u8>,)> = self
            .cql
            .fetch_all(Self::DOING, &statement, &of_token)
            .await?;
        parts.retain(|(part,)| *part > at.partition);
        for (part,) in parts {
            if !self.take("part = ?", &(part,)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the rows that a condition names, in their order, until the page is full; answers whether
    /// these were all.
    async fn take(&mut self, condition: &str, values: &(impl SerializeRow + Sync)) -> Result<bool> {
        let text = format!(
            "SELECT part, row, count, epoch, WRITETIME(count), WRITETIME(epoch) FROM rows_{} WHERE {condition}",
            self.id
        );
        let mut statement = self.cql.prepare(Self::DOING, &text).await?;
        let mut next = Some(PagingState::start());
        while let Some(from) = next {
            if self.page.budget().is_full() {
                return Ok(false);
            }
            statement.set_page_size(asked(self.page.budget(), ROWS_ASKED));
            let asked = self.cql.read_page(Self::DOING, &statement, values, from);
            let (answer, after) = asked.await?;
            next = after;
            let are_all = self.add(&answer);
            if !are_all.map_err(|error| self.cql.broken(Self::DOING, error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds rows until the page is full; answers whether these were all.
    fn add(
        &mut self,
        answer: &QueryRowsResult,
    ) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
        for row in answer.rows::<Scanned<'_>>()? {
            if self.page.budget().is_full() {
                return Ok(false);
            }
            let (part, row, count, epoch, count_us, epoch_us) = row?;
            let (count, epoch) = held(count, epoch);
            self.page.visit(part, row);
            // Both are written together; by whoever changes one of them later than the other.
            let stamp_us = count_us.max(epoch_us).unwrap_or(0);
            self.page.add(part, row, count, epoch, stamp_us);
        }
        Ok(true)
    }
}

/// How many rows to ask for at once.
fn asked(room: &PageBudget, most: usize) -> i32 {
    i32::try_from(room.choose_fetch_rows(most)).unwrap_or(1)
}

/// A page of the heads of a share.
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
        if !share.contains(bucket_place(bucket)) {
            continue;
        }
        let after = after.filter(|key| editions::bucket(key) == bucket);
        if !take_bucket(cql, id, (bucket, after), &mut page).await? {
            let next = page.last();
            return Ok(page.finish(next));
        }
    }
    Ok(page.finish(None))
}

type HeadRow = (Vec<u8>, i64, i64, Bytes);

/// Takes heads of a bucket until the page is full; answers whether these were all.
async fn take_bucket(
    cql: &Cql,
    id: &str,
    (bucket, after): (i32, Option<&[u8]>),
    page: &mut HeadsPage,
) -> Result<bool> {
    let doing = "scanning heads";
    // With a bound also from the first on: without one the row of the bucket's fence would come, too.
    let bound = if after.is_some() { ">" } else { ">=" };
    let text = format!(
        "SELECT key, epoch, stamp_us, root FROM heads_{id} WHERE bucket = ? AND key {bound} ?"
    );
    let mut statement = cql.prepare(doing, &text).await?;
    let values = (bucket, after.unwrap_or_default());
    let mut next = Some(PagingState::start());
    while let Some(from) = next {
        if page.budget().is_full() {
            return Ok(false);
        }
        statement.set_page_size(asked(page.budget(), HEADS_ASKED));
        let (answer, later) = cql.read_page(doing, &statement, &values, from).await?;
        next = later;
        let rows = answer.rows::<HeadRow>();
        for row in rows.map_err(|error| cql.broken(doing, error))? {
            if page.budget().is_full() {
                return Ok(false);
            }
            let (key, epoch, stamp_us, root) = row.map_err(|error| cql.broken(doing, error))?;
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
        // As a server answers `SELECT token(part)`.
        assert_eq!(token(b"test"), -6_017_608_668_500_074_083);
        assert_eq!(token(b"xd"), 4_507_812_186_440_344_727);
        assert_eq!(token(b"primary_key"), -1_632_642_444_691_073_360);
    }

    #[test]
    fn shares_are_ranges_of_tokens() {
        let all = ScanShare::ALL.token_range().expect("a share");
        assert_eq!(tokens(&all), (i64::MIN, i64::MAX));
        let of = NonZeroU32::MIN.saturating_add(1);
        let halves =
            ScanShare::list_all(of).map(|share| tokens(&share.token_range().expect("a share")));
        let halves: Vec<_> = halves.collect();
        assert_eq!(halves, [(i64::MIN, -1), (-1, i64::MAX)]);
        for token in [i64::MIN + 1, -1, 0, i64::MAX] {
            assert_eq!(token_at(place_of(token)), token);
            let share = u32::from(token >= 0);
            assert!(
                ScanShare {
                    index: share,
                    count: of
                }
                .contains(place_of(token))
            );
        }
    }

    #[test]
    fn buckets_lie_evenly() {
        let last = bucket_place(editions::BUCKETS.cast_signed() - 1);
        assert_eq!(last.wrapping_add(BUCKET_PLACES), 0);
    }
}
