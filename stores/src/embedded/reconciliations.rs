//! Records of comparisons and their notes, in `reconciliations.db`.

use std::path::Path;

use async_trait::async_trait;
use schemas::source::Source;
use serde_json::Value;
use sqlx::Connection;

use super::db::{BEGIN_WRITE, Db, Kind as File, Opened};
use super::statement::stored;
use crate::aged::AgedCount;
use crate::reconciliations::{Note, Reconciliation, Reconciliations, ReconciliationsRead};
use crate::{Error, Result};

static RECONCILIATIONS: File = File {
    name: "reconciliations.db",
    version: 1,
    tables: "
        CREATE TABLE reconciliations (
            source TEXT NOT NULL,
            number INTEGER NOT NULL,
            id TEXT NOT NULL,
            at_ms INTEGER NOT NULL,
            record TEXT NOT NULL,
            PRIMARY KEY (source, number)
        ) STRICT, WITHOUT ROWID;
        CREATE UNIQUE INDEX reconciliations_by_id ON reconciliations (source, id);
        CREATE TABLE numbers (
            source TEXT NOT NULL PRIMARY KEY,
            newest INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE notes (
            scope TEXT NOT NULL,
            name TEXT NOT NULL,
            version INTEGER NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (scope, name)
        ) STRICT, WITHOUT ROWID;",
    upgrades: &[],
    replaceable: false,
    page_bytes: 4096,
    cache_kib: 1024,
    readers: 2,
    rows_ahead: 128,
    remedy: "stop every process of this folder and restore reconciliations.db from its newest copy, or \
             move it away: then nothing is known of comparisons of before",
};

/// The comparisons of a data folder.
#[derive(Debug)]
pub struct SqliteReconciliations {
    db: Db,
}

impl SqliteReconciliations {
    pub(super) async fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            db: Db::open(folder, &RECONCILIATIONS).await?,
        })
    }
}

type Row = (i64, String, i64, String);

#[async_trait]
impl ReconciliationsRead for SqliteReconciliations {
    async fn reconciliations(
        &self,
        source: Source,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Reconciliation>> {
        let doing = "reading comparisons";
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let text = "SELECT number, id, at_ms, record FROM reconciliations
                    WHERE source = ? AND number < ? ORDER BY number DESC LIMIT ?";
        let before = before.map_or(Ok(i64::MAX), stored)?;
        let rows: Vec<Row> = sqlx::query_as(text)
            .bind(source.name())
            .bind(before)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await
            .map_err(db.fault(doing))?;
        let read = |(number, id, at_ms, record): Row| {
            Ok(Reconciliation {
                number: number.cast_unsigned(),
                id,
                at_ms,
                record: read(&db, doing, &record)?,
            })
        };
        rows.into_iter().map(read).collect()
    }

    async fn note(&self, scope: &str, name: &str) -> Result<Option<Note>> {
        let doing = "reading notes of reconciliations";
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let text = "SELECT version, value FROM notes WHERE scope = ? AND name = ?";
        let row: Option<(i64, String)> = sqlx::query_as(text)
            .bind(scope)
            .bind(name)
            .fetch_optional(&mut *connection)
            .await
            .map_err(db.fault(doing))?;
        row.map(|(version, value)| note(&db, doing, version, &value))
            .transpose()
    }

    async fn notes(
        &self,
        scope: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Note)>> {
        let doing = "reading notes of reconciliations";
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let text = "SELECT name, version, value FROM notes
                    WHERE scope = ? AND name > ? ORDER BY name LIMIT ?";
        let rows: Vec<(String, i64, String)> = sqlx::query_as(text)
            .bind(scope)
            .bind(after.unwrap_or_default())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await
            .map_err(db.fault(doing))?;
        rows.into_iter()
            .map(|(name, version, value)| Ok((name, note(&db, doing, version, &value)?)))
            .collect()
    }
}

#[async_trait]
impl Reconciliations for SqliteReconciliations {
    async fn add(&self, source: Source, id: &str, at_ms: i64, record: &Value) -> Result<u64> {
        let db = self.db.current().await?;
        let fault = db.fault("recording a comparison");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let there = "SELECT number FROM reconciliations WHERE source = ? AND id = ?";
        let there: Option<i64> = sqlx::query_scalar(there)
            .bind(source.name())
            .bind(id)
            .fetch_optional(&mut *tx)
            .await
            .map_err(fault)?;
        if let Some(number) = there {
            return Ok(number.cast_unsigned());
        }
        let number: i64 = sqlx::query_scalar(
            "INSERT INTO numbers (source, newest) VALUES (?, 1)
             ON CONFLICT DO UPDATE SET newest = newest + 1 RETURNING newest",
        )
        .bind(source.name())
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        let row = "INSERT INTO reconciliations (source, number, id, at_ms, record)
                   VALUES (?, ?, ?, ?, ?)";
        sqlx::query(row)
            .bind(source.name())
            .bind(number)
            .bind(id)
            .bind(at_ms)
            .bind(record.to_string())
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(number.cast_unsigned())
    }

    async fn replace(&self, source: Source, number: u64, record: &Value) -> Result<()> {
        let db = self.db.current().await?;
        let fault = db.fault("recording a comparison");
        let mut connection = db.writer().await?;
        let text = "UPDATE reconciliations SET record = ? WHERE source = ? AND number = ?";
        let done = sqlx::query(text)
            .bind(record.to_string())
            .bind(source.name())
            .bind(stored(number)?)
            .execute(&mut *connection)
            .await
            .map_err(fault)?;
        if done.rows_affected() == 0 {
            return Err(Error::Refused(format!(
                "there is no comparison {number} of {source}"
            )));
        }
        Ok(())
    }

    async fn aged(&self, source: Source, before_ms: i64) -> Result<AgedCount> {
        let db = self.db.current().await?;
        let fault = db.fault("counting comparisons");
        let mut connection = db.reader().await?;
        let text = "SELECT count(*), min(at_ms),
                count(CASE WHEN number < coalesce((SELECT min(number) FROM reconciliations
                    WHERE source = ?1 AND at_ms >= ?2), 9223372036854775807) THEN 1 END)
            FROM reconciliations WHERE source = ?1";
        let (all, oldest_ms, aged): (i64, Option<i64>, i64) = sqlx::query_as(text)
            .bind(source.name())
            .bind(before_ms)
            .fetch_one(&mut *connection)
            .await
            .map_err(fault)?;
        Ok(AgedCount {
            all: all.cast_unsigned(),
            oldest_ms,
            aged: aged.cast_unsigned(),
            needed: 0,
        })
    }

    async fn forget_aged(&self, source: Source, before_ms: i64, limit: usize) -> Result<u64> {
        let db = self.db.current().await?;
        let fault = db.fault("deleting comparisons");
        let mut connection = db.writer().await?;
        let text = "DELETE FROM reconciliations WHERE source = ?1 AND number IN (
                SELECT number FROM reconciliations WHERE source = ?1
                    AND number < coalesce((SELECT min(number) FROM reconciliations
                        WHERE source = ?1 AND at_ms >= ?2), 9223372036854775807)
                ORDER BY number LIMIT ?3)";
        let done = sqlx::query(text)
            .bind(source.name())
            .bind(before_ms)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .execute(&mut *connection)
            .await
            .map_err(fault)?;
        Ok(done.rows_affected())
    }

    async fn change_note(
        &self,
        scope: &str,
        name: &str,
        seen: Option<u64>,
        value: Option<&Value>,
    ) -> Result<bool> {
        let db = self.db.current().await?;
        let fault = db.fault("changing notes of reconciliations");
        let mut connection = db.writer().await?;
        let text = value.map(Value::to_string);
        let done = match (seen, text) {
            (None, Some(value)) => {
                let text = "INSERT INTO notes (scope, name, version, value) VALUES (?, ?, 1, ?)
                            ON CONFLICT DO NOTHING";
                sqlx::query(text)
                    .bind(scope)
                    .bind(name)
                    .bind(value)
                    .execute(&mut *connection)
                    .await
            }
            (Some(seen), Some(value)) => {
                let text = "UPDATE notes SET version = version + 1, value = ?
                            WHERE scope = ? AND name = ? AND version = ?";
                sqlx::query(text)
                    .bind(value)
                    .bind(scope)
                    .bind(name)
                    .bind(stored(seen)?)
                    .execute(&mut *connection)
                    .await
            }
            (Some(seen), None) => {
                let text = "DELETE FROM notes WHERE scope = ? AND name = ? AND version = ?";
                sqlx::query(text)
                    .bind(scope)
                    .bind(name)
                    .bind(stored(seen)?)
                    .execute(&mut *connection)
                    .await
            }
            (None, None) => {
                drop(connection);
                return Ok(self.note(scope, name).await?.is_none());
            }
        };
        Ok(done.map_err(fault)?.rows_affected() == 1)
    }
}

fn note(db: &Opened, doing: &str, version: i64, value: &str) -> Result<Note> {
    Ok(Note {
        version: version.cast_unsigned(),
        value: read(db, doing, value)?,
    })
}

fn read(db: &Opened, doing: &str, text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|error| db.damaged(doing, error))
}
