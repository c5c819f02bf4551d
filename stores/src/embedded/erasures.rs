//! Erasures, in `erasures.db`.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use sqlx::{Connection, Row};

use super::db::{BEGIN_WRITE, Db, Kind as File, Opened, empty_wal};
use super::statement::stored;
use crate::erasures::{Erasure, Erasures, Key, Kind};
use crate::{Error, Result};

static ERASURES: File = File {
    name: "erasures.db",
    version: 1,
    tables: "
        CREATE TABLE secret (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            key BLOB NOT NULL
        ) STRICT;
        CREATE TABLE erasures (
            number INTEGER PRIMARY KEY,
            kind TEXT NOT NULL,
            person BLOB NOT NULL,
            begun_at_ms INTEGER NOT NULL,
            asked_by TEXT NOT NULL,
            reason TEXT NOT NULL,
            finished_at_ms INTEGER,
            receipt TEXT NOT NULL
        ) STRICT;",
    upgrades: &[],
    replaceable: false,
    page_bytes: 4096,
    cache_kib: 1024,
    readers: 2,
    rows_ahead: 128,
    remedy: "stop every process of this folder and restore erasures.db from its newest copy: without \
             it nobody knows who must not come back",
};

/// The files that may hold somebody; one whose store is on a server is not there.
const FILES: [&str; 7] = [
    "log.db",
    "live.db",
    "views.db",
    "canon.db",
    "achievements.db",
    "counts.db",
    "reconciliations.db",
];

/// The erasures of a data folder.
#[derive(Debug)]
pub struct SqliteErasures {
    db: Db,
    folder: PathBuf,
}

impl SqliteErasures {
    pub(super) async fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            db: Db::open(folder, &ERASURES).await?,
            folder: folder.to_owned(),
        })
    }
}

#[async_trait]
impl Erasures for SqliteErasures {
    async fn newest(&self) -> Result<u64> {
        let db = self.db.current().await?;
        let fault = db.fault("looking for erasures");
        let mut connection = db.reader().await?;
        let newest: i64 = sqlx::query_scalar("SELECT coalesce(max(number), 0) FROM erasures")
            .fetch_one(&mut *connection)
            .await
            .map_err(fault)?;
        Ok(newest.cast_unsigned())
    }

    async fn all(&self) -> Result<Vec<Erasure>> {
        let doing = "reading erasures";
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let rows = sqlx::query(
            "SELECT number, kind, person, begun_at_ms, asked_by, reason, finished_at_ms, receipt
             FROM erasures ORDER BY number",
        )
        .fetch_all(&mut *connection)
        .await
        .map_err(db.fault(doing))?;
        rows.iter().map(|row| erasure_of(&db, doing, row)).collect()
    }

    async fn key(&self, drawn: Key) -> Result<Key> {
        let doing = "reading the key of erasures";
        let db = self.db.current().await?;
        let fault = db.fault(doing);
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let found: Option<Vec<u8>> = sqlx::query_scalar("SELECT key FROM secret")
            .fetch_optional(&mut *tx)
            .await
            .map_err(fault)?;
        if let Some(found) = found {
            let wrong = |_| db.damaged(doing, "it has another length");
            return found.try_into().map_err(wrong);
        }
        sqlx::query("INSERT INTO secret (id, key) VALUES (1, ?)")
            .bind(&drawn[..])
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(drawn)
    }

    async fn add(&self, erasure: &Erasure) -> Result<bool> {
        let db = self.db.current().await?;
        let fault = db.fault("beginning an erasure");
        let mut connection = db.writer().await?;
        let done = sqlx::query(
            "INSERT INTO erasures
                 (number, kind, person, begun_at_ms, asked_by, reason, finished_at_ms, receipt)
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
             WHERE ?1 = (SELECT coalesce(max(number), 0) + 1 FROM erasures)",
        )
        .bind(stored(erasure.number)?)
        .bind(erasure.kind.name())
        .bind(&erasure.person[..])
        .bind(erasure.begun_at_ms)
        .bind(&erasure.by)
        .bind(&erasure.reason)
        .bind(erasure.finished_at_ms)
        .bind(erasure.receipt.to_string())
        .execute(&mut *connection)
        .await
        .map_err(fault)?;
        Ok(done.rows_affected() == 1)
    }

    async fn tidy(&self) -> Result<()> {
        for name in FILES {
            empty_wal(&self.folder, name).await?;
        }
        Ok(())
    }

    async fn note(
        &self,
        number: u64,
        finished_at_ms: Option<i64>,
        receipt: &serde_json::Value,
    ) -> Result<()> {
        let db = self.db.current().await?;
        let fault = db.fault("noting an erasure");
        let mut connection = db.writer().await?;
        let done =
            sqlx::query("UPDATE erasures SET finished_at_ms = ?, receipt = ? WHERE number = ?")
                .bind(finished_at_ms)
                .bind(receipt.to_string())
                .bind(stored(number)?)
                .execute(&mut *connection)
                .await
                .map_err(fault)?;
        if done.rows_affected() == 0 {
            return Err(Error::Refused(format!("there is no erasure {number}")));
        }
        Ok(())
    }
}

fn erasure_of(db: &Opened, doing: &str, row: &sqlx::sqlite::SqliteRow) -> Result<Erasure> {
    let text = |at: usize| row.try_get::<String, _>(at);
    let read = || -> std::result::Result<_, sqlx::Error> {
        let number: i64 = row.try_get(0)?;
        let person: Vec<u8> = row.try_get(2)?;
        let parts = (text(1)?, person, text(7)?);
        let erasure = Erasure {
            number: number.cast_unsigned(),
            kind: Kind::Listener,
            person: Default::default(),
            begun_at_ms: row.try_get(3)?,
            by: text(4)?,
            reason: text(5)?,
            finished_at_ms: row.try_get(6)?,
            receipt: serde_json::Value::Null,
        };
        Ok((erasure, parts))
    };
    let (mut erasure, (kind, person, receipt)) = read().map_err(|e| db.damaged(doing, e))?;
    let other = || db.damaged(doing, format!("erasure {} can't be read", erasure.number));
    erasure.kind = Kind::of(&kind).ok_or_else(other)?;
    erasure.person = person.try_into().map_err(|_| other())?;
    erasure.receipt = serde_json::from_str(&receipt).map_err(|_| other())?;
    Ok(erasure)
}
