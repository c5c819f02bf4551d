//! Counts by day. A key is a partition: at most a row a day, so thirty years of a key have eleven
//! thousand small rows.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;

use super::session::{Cql, together};
use crate::counts::{Counted, CountsRead, CountsWrite, Day, DayRow};
use crate::{Error, Result};

/// Keys that are read or written at once.
const AT_ONCE: usize = 64;
/// Rows of a key in one step.
const ROWS_STEP: usize = 100;
/// In the place of a run that there is not. A null would be a tombstone in every row.
const NONE: i64 = -1;

/// Counts by day in a keyspace.
#[derive(Debug)]
pub struct CassandraCounts {
    cql: Arc<Cql>,
}

/// A row as it is stored: day, run and count, and run and count before.
type Stored = (i32, i64, i64, i64, i64);

impl CassandraCounts {
    pub(super) const fn new(cql: Arc<Cql>) -> Self {
        Self { cql }
    }
}

fn of_row((day, epoch, count, before_epoch, before_count): Stored) -> DayRow {
    let counted = |epoch: i64, count: i64| Counted {
        epoch: epoch.cast_unsigned(),
        count: count.cast_unsigned(),
    };
    DayRow {
        day,
        now: counted(epoch, count),
        before: (before_epoch != NONE).then(|| counted(before_epoch, before_count)),
    }
}

fn stored(number: u64) -> Result<i64> {
    i64::try_from(number).map_err(|_| {
        Error::Refused(format!(
            "{number} is larger than any number that can be stored; give less than 2^63"
        ))
    })
}

#[async_trait]
impl CountsRead for CassandraCounts {
    async fn days(
        &self,
        job: &str,
        key: &[u8],
        days: Range<Day>,
        limit: usize,
    ) -> Result<Vec<DayRow>> {
        let doing = "reading counts by day";
        let text = "SELECT day, epoch, count, before_epoch, before_count FROM board_days
                    WHERE job = ? AND key = ? AND day >= ? AND day < ? ORDER BY day ASC LIMIT ?";
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        if limit == 0 || days.is_empty() {
            return Ok(Vec::new());
        }
        let statement = self.cql.prepare(doing, text).await?;
        let values = (job, key, days.start, days.end, limit);
        let rows = self.cql.all(doing, &statement, &values).await?;
        Ok(rows.into_iter().map(of_row).collect())
    }

    async fn last_days(&self, job: &str, keys: &[(&[u8], Day)]) -> Result<Vec<Option<DayRow>>> {
        let doing = "reading the last counts by day";
        let text = "SELECT day, epoch, count, before_epoch, before_count FROM board_days
                    WHERE job = ? AND key = ? AND day < ? LIMIT 1";
        // Concurrent reads find it prepared.
        self.cql.prepare(doing, text).await?;
        let calls = keys.iter().map(|(key, before)| async move {
            let row = self.cql.first(doing, text, (job, *key, *before)).await?;
            Ok(row.map(of_row))
        });
        together(AT_ONCE, calls.collect()).await
    }
}

#[async_trait]
impl CountsWrite for CassandraCounts {
    async fn write_days(&self, job: &str, stamp_us: i64, rows: &[(&[u8], DayRow)]) -> Result<()> {
        let doing = "writing counts by day";
        let text =
            "INSERT INTO board_days (job, key, day, epoch, count, before_epoch, before_count)
                    VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let statement = &self.cql.prepare(doing, text).await?;
        let mut by_key: BTreeMap<&[u8], Vec<_>> = BTreeMap::new();
        for (key, row) in rows.iter().copied() {
            let (before_epoch, before_count) = match row.before {
                Some(before) => (stored(before.epoch)?, stored(before.count)?),
                None => (NONE, NONE),
            };
            let now = (stored(row.now.epoch)?, stored(row.now.count)?);
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
        let steps = by_key.values().flat_map(|rows| rows.chunks(ROWS_STEP));
        let calls = steps.map(|rows| self.cql.write(doing, statement, rows));
        together(AT_ONCE, calls.collect()).await.map(drop)
    }
}
