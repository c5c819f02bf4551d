//! Counts by day. A key is a partition with at most one row per day, so thirty years of a key have
//! eleven thousand small rows.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;

use super::session::{Cql, run_concurrently};
use crate::counts::{CountsRead, CountsWrite, Day, DayRow, RunCount};
use crate::{Error, Result};

/// Number of keys that are read or written concurrently.
const CONCURRENCY: usize = 64;
/// Rows of a key in one write.
const ROWS_PER_WRITE: usize = 100;
/// Stands for a missing run. A null would be a tombstone in every row.
const NONE: i64 = -1;

/// Counts by day in a keyspace.
#[derive(Debug)]
pub struct CassandraCounts {
    cql: Arc<Cql>,
}

/// A stored row: day, run and count, earlier run and count.
type StoredRow = (i32, i64, i64, i64, i64);

impl CassandraCounts {
    pub(super) const fn new(cql: Arc<Cql>) -> Self {
        Self { cql }
    }
}

fn decode_row((day, epoch, count, before_epoch, before_count): StoredRow) -> DayRow {
    let count_of = |epoch: i64, count: i64| RunCount {
        epoch: epoch.cast_unsigned(),
        count: count.cast_unsigned(),
    };
    DayRow {
        day,
        current: count_of(epoch, count),
        previous: (before_epoch != NONE).then(|| count_of(before_epoch, before_count)),
    }
}

fn to_stored(number: u64) -> Result<i64> {
    i64::try_from(number).map_err(|_| {
        Error::Refused(format!(
            "{number} exceeds the largest number that can be stored, 2^63 - 1"
        ))
    })
}

#[async_trait]
impl CountsRead for CassandraCounts {
    async fn read_days(
        &self,
        job: &str,
        key: &[u8],
        days: Range<Day>,
        limit: usize,
    ) -> Result<Vec<DayRow>> {
        let operation = "reading counts by day";
        let text = "SELECT day, epoch, count, before_epoch, before_count FROM board_days
                    WHERE job = ? AND key = ? AND day >= ? AND day < ? ORDER BY day ASC LIMIT ?";
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        if limit == 0 || days.is_empty() {
            return Ok(Vec::new());
        }
        let statement = self.cql.prepare(operation, text).await?;
        let values = (job, key, days.start, days.end, limit);
        let rows = self.cql.fetch_all(operation, &statement, &values).await?;
        Ok(rows.into_iter().map(decode_row).collect())
    }

    async fn read_last_days(
        &self,
        job: &str,
        keys: &[(&[u8], Day)],
    ) -> Result<Vec<Option<DayRow>>> {
        let operation = "reading the last counts by day";
        let text = "SELECT day, epoch, count, before_epoch, before_count FROM board_days
                    WHERE job = ? AND key = ? AND day < ? LIMIT 1";
        // Prepared once for all concurrent reads.
        self.cql.prepare(operation, text).await?;
        let calls = keys.iter().map(|(key, before)| async move {
            let row = self
                .cql
                .fetch_first(operation, text, (job, *key, *before))
                .await?;
            Ok(row.map(decode_row))
        });
        run_concurrently(CONCURRENCY, calls.collect()).await
    }
}

#[async_trait]
impl CountsWrite for CassandraCounts {
    async fn write_days(&self, job: &str, stamp_us: i64, rows: &[(&[u8], DayRow)]) -> Result<()> {
        let operation = "writing counts by day";
        let text =
            "INSERT INTO board_days (job, key, day, epoch, count, before_epoch, before_count)
                    VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let statement = &self.cql.prepare(operation, text).await?;
        let mut by_key: BTreeMap<&[u8], Vec<_>> = BTreeMap::new();
        for (key, row) in rows.iter().copied() {
            let (before_epoch, before_count) = match row.previous {
                Some(before) => (to_stored(before.epoch)?, to_stored(before.count)?),
                None => (NONE, NONE),
            };
            let now = (to_stored(row.current.epoch)?, to_stored(row.current.count)?);
            by_key.entry(key).or_default().push((
                job,
                key,
                row.day,
                now.0,
                now.1,
                before_epoch,
                before_count,
                stamp_us,
            ));
        }
        let steps = by_key.values().flat_map(|rows| rows.chunks(ROWS_PER_WRITE));
        let calls = steps.map(|rows| self.cql.write(operation, statement, rows));
        run_concurrently(CONCURRENCY, calls.collect())
            .await
            .map(drop)
    }
}
