//! Counts by day, in `counts.db`.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Connection, Row};

use super::db::{BEGIN_WRITE, Db, Kind, Opened};
use super::statement::{ranges, stored};
use crate::Result;
use crate::counts::{Counted, CountsRead, CountsWrite, Day, DayRow, NewDays};

static COUNTS: Kind = Kind {
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
    upgrades: &[],
    replaceable: false,
    page_bytes: 4096,
    cache_kib: 8 * 1024,
    readers: 2,
    rows_ahead: 128,
    remedy: "stop every process of this folder and restore counts.db from a copy: what runs counted \
             on days that are over can't be made again",
};

const COLUMNS: &str = "day, epoch, count, before_epoch, before_count";

/// The counts by day of a data folder.
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
    async fn days(
        &self,
        job: &str,
        key: &[u8],
        days: Range<Day>,
        limit: usize,
    ) -> Result<Vec<DayRow>> {
        let doing = "reading counts by day";
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let text = format!(
            "SELECT {COLUMNS} FROM board_days WHERE job = ? AND key = ? AND day >= ? AND day < ?
             ORDER BY day LIMIT ?"
        );
        let rows = sqlx::query(AssertSqlSafe(text))
            .bind(job)
            .bind(key)
            .bind(days.start)
            .bind(days.end)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await
            .map_err(db.fault(doing))?;
        rows.iter().map(|row| row_of(&db, doing, row)).collect()
    }

    async fn last_days(&self, job: &str, keys: &[(&[u8], Day)]) -> Result<Vec<Option<DayRow>>> {
        let doing = "reading the last counts by day";
        let db = self.db.current().await?;
        let fault = db.fault(doing);
        let mut connection = db.reader().await?;
        let mut found = vec![None; keys.len()];
        for stretch in ranges(keys.len()) {
            let marks = vec!["(?,?,?)"; stretch.len()].join(",");
            let text = format!(
                "WITH asked (place, of_key, until) AS (VALUES {marks})
                 SELECT {COLUMNS}, place FROM asked CROSS JOIN board_days
                 WHERE job = ? AND key = of_key AND day = (
                     SELECT max(day) FROM board_days WHERE job = ? AND key = of_key AND day < until)"
            );
            let mut query = sqlx::query(AssertSqlSafe(text));
            for (place, (key, until)) in (0_i64..).zip(keys.get(stretch.clone()).unwrap_or(&[])) {
                query = query.bind(place).bind(*key).bind(*until);
            }
            let rows = query.bind(job).bind(job).fetch_all(&mut *connection).await;
            for row in rows.map_err(fault)? {
                let place: i64 = row.try_get(5).map_err(fault)?;
                let place = usize::try_from(place).unwrap_or(usize::MAX);
                if let Some(found) = found.get_mut(stretch.start.saturating_add(place)) {
                    *found = Some(row_of(&db, doing, &row)?);
                }
            }
        }
        Ok(found)
    }
}

#[async_trait]
impl CountsWrite for SqliteCounts {
    async fn write_days(&self, job: &str, stamp_us: i64, rows: &NewDays) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let db = self.db.current().await?;
        let fault = db.fault("writing counts by day");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let mut texts: HashMap<usize, String> = HashMap::new();
        let mut rest = rows.iter();
        for stretch in ranges(rows.len()) {
            let text = texts.entry(stretch.len()).or_insert_with_key(|size| {
                let marks = vec!["(?,?,?,?,?,?,?,?)"; *size].join(",");
                format!(
                    "INSERT INTO board_days (job, key, {COLUMNS}, stamp_us) VALUES {marks}
                     ON CONFLICT DO UPDATE
                     SET epoch = excluded.epoch, count = excluded.count,
                         before_epoch = excluded.before_epoch, before_count = excluded.before_count,
                         stamp_us = excluded.stamp_us
                     WHERE excluded.stamp_us >= board_days.stamp_us"
                )
            });
            let mut query = sqlx::query(AssertSqlSafe(text.clone()));
            for (key, row) in rest.by_ref().take(stretch.len()) {
                let before = row.before.map(|before| (before.epoch, before.count));
                let before = before.map(|(epoch, count)| Ok((stored(epoch)?, stored(count)?)));
                let before: Option<(i64, i64)> = before.transpose()?;
                query = query
                    .bind(job)
                    .bind(key)
                    .bind(row.day)
                    .bind(stored(row.now.epoch)?)
                    .bind(stored(row.now.count)?)
                    .bind(before.map(|(epoch, _)| epoch))
                    .bind(before.map(|(_, count)| count))
                    .bind(stamp_us);
            }
            query.execute(&mut *tx).await.map_err(fault)?;
        }
        tx.commit().await.map_err(fault)
    }
}

/// A row of [`COLUMNS`].
fn row_of(db: &Opened, doing: &str, row: &SqliteRow) -> Result<DayRow> {
    let number = |at: usize| row.try_get::<i64, _>(at).map(i64::cast_unsigned);
    let known = |at: usize| row.try_get::<Option<i64>, _>(at);
    let read = || -> std::result::Result<DayRow, sqlx::Error> {
        let before = known(3)?.zip(known(4)?).map(|(epoch, count)| Counted {
            epoch: epoch.cast_unsigned(),
            count: count.cast_unsigned(),
        });
        Ok(DayRow {
            day: row.try_get(0)?,
            now: Counted {
                epoch: number(1)?,
                count: number(2)?,
            },
            before,
        })
    };
    read().map_err(|error| db.damaged(doing, error))
}
