//! Record store in `erasures.db` and `reconciliations.db`.

use std::path::Path;

use async_trait::async_trait;
use serde_json::Value;

use super::db::{DatabaseSpec, Db, SMALL_FILE, Upgrade};
use super::session::Session;
use super::statement::to_stored;
use crate::Result;
use crate::records::{Direction, Record, Records, RecordsRead, Scan};

const TABLES: &str = "
    CREATE TABLE records (
        scope TEXT NOT NULL,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (scope, name)
    ) STRICT, WITHOUT ROWID;";

/// Erasures are in a separate file, because its newest copy must be stored apart from the other
/// files.
pub(super) static ERASURES: DatabaseSpec = DatabaseSpec {
    name: "erasures.db",
    upgrades: &[(
        1,
        Upgrade::Statements(include_str!("records/erasures_2.sql")),
    )],
    remedy: "stop every process that uses this folder and restore erasures.db from its \
             newest backup: without it, erased people reappear",
    ..RECONCILIATIONS
};

/// All other records.
pub(super) static RECONCILIATIONS: DatabaseSpec = DatabaseSpec {
    name: "reconciliations.db",
    version: 2,
    tables: TABLES,
    upgrades: &[(
        1,
        Upgrade::Statements(include_str!("records/reconciliations_2.sql")),
    )],
    cache_kib: 1024,
    remedy: "stop every process that uses this folder and restore reconciliations.db from its \
             newest backup, or move it away, which loses comparisons, approvals and schedules",
    ..SMALL_FILE
};

/// Record store in one file of a data folder.
#[derive(Debug)]
pub struct SqliteRecords {
    db: Db,
}

impl SqliteRecords {
    pub(super) async fn open(folder: &Path, spec: &'static DatabaseSpec) -> Result<Self> {
        Ok(Self {
            db: Db::open(folder, spec).await?,
        })
    }
}

type Row = (String, i64, String);

#[async_trait]
impl RecordsRead for SqliteRecords {
    async fn get(&self, scope: &str, name: &str) -> Result<Option<Record>> {
        let mut session = self.db.read("reading a record").await?;
        let text = "SELECT name, version, value FROM records WHERE scope = ? AND name = ?";
        let row = session
            .fetch_first(sqlx::query(text).bind(scope).bind(name))
            .await?;
        row.map(|row| decode_record(&session, row)).transpose()
    }

    async fn scan(&self, scope: &str, scan: Scan<'_>) -> Result<Vec<Record>> {
        let mut session = self.db.read("reading records").await?;
        let text = match scan.direction {
            Direction::Ascending => {
                "SELECT name, version, value FROM records
                 WHERE scope = ? AND name > ? AND name < ? ORDER BY name LIMIT ?"
            }
            Direction::Descending => {
                "SELECT name, version, value FROM records
                 WHERE scope = ? AND name > ? AND name < ? ORDER BY name DESC LIMIT ?"
            }
        };
        let (after, before) = scan.bounds();
        let query = sqlx::query(text)
            .bind(scope)
            .bind(after)
            .bind(before)
            .bind(i64::try_from(scan.limit).unwrap_or(i64::MAX));
        let rows = session.fetch_all(query).await?.into_iter();
        rows.map(|row| decode_record(&session, row)).collect()
    }
}

#[async_trait]
impl Records for SqliteRecords {
    async fn compare_and_set(
        &self,
        scope: &str,
        name: &str,
        expected_version: Option<u64>,
        value: Option<&Value>,
    ) -> Result<bool> {
        let text = match (expected_version, value) {
            (None, Some(_)) => {
                "INSERT INTO records (scope, name, version, value)
                 VALUES (?1, ?2, 1, ?4) ON CONFLICT DO NOTHING"
            }
            (Some(_), Some(_)) => {
                "UPDATE records SET version = version + 1, value = ?4
                 WHERE scope = ?1 AND name = ?2 AND version = ?3"
            }
            (Some(_), None) => {
                "DELETE FROM records WHERE scope = ?1 AND name = ?2 AND version = ?3"
            }
            (None, None) => return Ok(self.get(scope, name).await?.is_none()),
        };
        let mut session = self.db.write("changing a record").await?;
        let mut query = sqlx::query(text)
            .bind(scope)
            .bind(name)
            .bind(expected_version.map(to_stored).transpose()?);
        if let Some(value) = value {
            query = query.bind(value.to_string());
        }
        Ok(session.execute(query).await? == 1)
    }
}

fn decode_record(session: &Session, row: Row) -> Result<Record> {
    let (name, version, value) = row;
    let value = serde_json::from_str(&value);
    let value = value.map_err(|error| session.damaged(format!("record {name}: {error}")))?;
    Ok(Record {
        name,
        version: version.cast_unsigned(),
        value,
    })
}

#[cfg(test)]
#[path = "records_upgrade_tests.rs"]
mod upgrade_tests;
