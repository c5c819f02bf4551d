//! Daily counts, in `counts.db`.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use async_trait::async_trait;
use sqlx::AssertSqlSafe;

use super::db::{DatabaseSpec, Db, SMALL_FILE};
use super::statement::{split_ranges, to_stored};
use crate::Result;
use crate::counts::{CountsRead, CountsWrite, Day, DayRow, RunCount};

static COUNTS: DatabaseSpec = DatabaseSpec {
    name: "counts.db",
    version: 1,
    tables: "
        CREATE TABLE board_days (
            job TEXT NOT NULL,
            key BLOB NOT NULL,
            day INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            count INTEGER NOT NULL,
            before_epoch INTEGER,
            before_count INTEGER,
            stamp_us INTEGER NOT NULL,
            PRIMARY KEY (job, key, day)
        ) STRICT, WITHOUT ROWID;",
    remedy: "stop every process that uses this folder and restore counts.db from a backup: \
             counts of past days cannot be recomputed",
    ..SMALL_FILE
};

const COLUMNS: &str = "day, epoch, count, before_epoch, before_count";

/// A row of [`COLUMNS`].
type StoredRow = (Day, i64, i64, Option<i64>, Option<i64>);

/// The daily counts of a data folder.
#[derive(Debug)]
pub struct SqliteCounts {
    db: Db,
}

impl SqliteCounts {
    pub(super) async fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            db: Db::open(folder, &COUNTS).await?,
        })
    }
}

#[async_trait]
impl CountsRead for SqliteCounts {
    async fn read_days(
        &self,
        job: &str,
        key: &[u8],
        days: Range<Day>,
        limit: usize,
    ) -> Result<Vec<DayRow>> {
        let mut session = self.db.read("reading counts by day").await?;
        let text = format!(
            "SELECT {COLUMNS} FROM board_days WHERE job = ? AND key = ? AND day >= ? AND day < ?
             ORDER BY day LIMIT ?"
        );
        let query = sqlx::query(AssertSqlSafe(text))
            .bind(job)
            .bind(key)
            .bind(days.start)
            .bind(days.end)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = session.fetch_all(query).await?;
        Ok(rows.into_iter().map(decode_row).collect())
    }

    async fn read_last_days(
        &self,
        job: &str,
        keys: &[(&[u8], Day)],
    ) -> Result<Vec<Option<DayRow>>> {
        let mut session = self.db.read("reading the last counts by day").await?;
        let mut last_rows = vec![None; keys.len()];
        for range in split_ranges(keys.len()) {
            let placeholders = vec!["(?,?,?)"; range.len()].join(",");
            let text = format!(
                "WITH requested (position, requested_key, until) AS (VALUES {placeholders})
                 SELECT {COLUMNS}, position FROM requested CROSS JOIN board_days
                 WHERE job = ? AND key = requested_key AND day = (
                     SELECT max(day) FROM board_days WHERE job = ? AND key = requested_key AND day < until)"
            );
            let mut query = sqlx::query(AssertSqlSafe(text));
            for (position, (key, until)) in (0_i64..).zip(keys.get(range.clone()).unwrap_or(&[])) {
                query = query.bind(position).bind(*key).bind(*until);
            }
            let rows = session.fetch_all(query.bind(job).bind(job)).await?;
            for (day, epoch, count, before_epoch, before_count, position) in rows {
                let position: i64 = position;
                let position = usize::try_from(position).unwrap_or(usize::MAX);
                if let Some(last_rows) = last_rows.get_mut(range.start.saturating_add(position)) {
                    *last_rows = Some(decode_row((day, epoch, count, before_epoch, before_count)));
                }
            }
        }
        Ok(last_rows)
    }
}

#[async_trait]
impl CountsWrite for SqliteCounts {
    async fn write_days(&self, job: &str, stamp_us: i64, rows: &[(&[u8], DayRow)]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut tx = self.db.begin_write("writing counts by day").await?;
        let mut texts: HashMap<usize, String> = HashMap::new();
        let mut remaining = rows.iter();
        for range in split_ranges(rows.len()) {
            let text = texts.entry(range.len()).or_insert_with_key(|size| {
                let placeholders = vec!["(?,?,?,?,?,?,?,?)"; *size].join(",");
                format!(
                    "INSERT INTO board_days (job, key, {COLUMNS}, stamp_us) VALUES {placeholders}
                     ON CONFLICT DO UPDATE
                     SET epoch = excluded.epoch, count = excluded.count,
                         before_epoch = excluded.before_epoch, before_count = excluded.before_count,
                         stamp_us = excluded.stamp_us
                     WHERE excluded.stamp_us >= board_days.stamp_us"
                )
            });
            let mut query = sqlx::query(AssertSqlSafe(text.clone()));
            for (key, row) in remaining.by_ref().take(range.len()).copied() {
                let before = row.previous.map(|before| (before.epoch, before.count));
                let before =
                    before.map(|(epoch, count)| Ok((to_stored(epoch)?, to_stored(count)?)));
                let before: Option<(i64, i64)> = before.transpose()?;
                query = query
                    .bind(job)
                    .bind(key)
                    .bind(row.day)
                    .bind(to_stored(row.current.epoch)?)
                    .bind(to_stored(row.current.count)?)
                    .bind(before.map(|(epoch, _)| epoch))
                    .bind(before.map(|(_, count)| count))
                    .bind(stamp_us);
            }
            tx.execute(query).await?;
        }
        tx.commit().await
    }
}

fn decode_row((day, epoch, count, before_epoch, before_count): StoredRow) -> DayRow {
    let count_of = |(epoch, count): (i64, i64)| RunCount {
        epoch: epoch.cast_unsigned(),
        count: count.cast_unsigned(),
    };
    DayRow {
        day,
        current: count_of((epoch, count)),
        previous: before_epoch.zip(before_count).map(count_of),
    }
}
