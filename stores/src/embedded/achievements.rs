//! What athletes have achieved, in `achievements.db`.

use std::path::Path;

use async_trait::async_trait;
use schemas::achievement::{Kind as Achievement, Told};
use schemas::seam::Offset;
use sqlx::{AssertSqlSafe, Connection};

use super::db::{BEGIN_WRITE, Db, Kind};
use crate::Result;
use crate::achievements::{AchievementsErase, AchievementsRead, AchievementsWrite, Mark, Of};
use crate::live::SlotId;

static ACHIEVEMENTS: Kind = Kind {
    name: "achievements.db",
    version: 1,
    tables: "
        CREATE TABLE achievements (
            id TEXT NOT NULL PRIMARY KEY,
            member INTEGER NOT NULL,
            activity INTEGER,
            kind TEXT NOT NULL,
            at_ms INTEGER NOT NULL,
            told BLOB NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX achievements_of_members ON achievements (member, at_ms, id);
        CREATE INDEX achievements_of_activities ON achievements (activity, at_ms, id);
        CREATE TABLE told (
            source TEXT NOT NULL,
            partition INTEGER NOT NULL,
            through INTEGER NOT NULL,
            PRIMARY KEY (source, partition)
        ) STRICT, WITHOUT ROWID;",
    upgrades: &[],
    replaceable: false,
    page_bytes: 4096,
    cache_kib: 8 * 1024,
    readers: 2,
    rows_ahead: 128,
    remedy: "stop every process of this folder and restore achievements.db from a copy",
};

/// The achievements of a data folder.
#[derive(Debug)]
pub struct SqliteAchievements {
    db: Db,
}

impl SqliteAchievements {
    pub(super) async fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            db: Db::open(folder, &ACHIEVEMENTS).await?,
        })
    }
}

#[async_trait]
impl AchievementsRead for SqliteAchievements {
    async fn achievements(
        &self,
        of: Of,
        kind: Option<Achievement>,
        before: Option<&Mark>,
        limit: usize,
    ) -> Result<Vec<Told>> {
        let doing = "reading achievements";
        let db = self.db.current().await?;
        let fault = db.fault(doing);
        let mut connection = db.reader().await?;
        let (column, whose) = match of {
            Of::Member(member) => ("member", member),
            Of::Activity(activity) => ("activity", activity),
        };
        let of_kind = if kind.is_some() { "AND kind = ?4" } else { "" };
        let from = if before.is_some() {
            "AND (at_ms, id) < (?2, ?3)"
        } else {
            ""
        };
        let text = format!(
            "SELECT told FROM achievements WHERE {column} = ?1 {of_kind} {from}
             ORDER BY at_ms DESC, id DESC LIMIT ?5"
        );
        let rows: Vec<Vec<u8>> = sqlx::query_scalar(AssertSqlSafe(text))
            .bind(whose)
            .bind(before.map(|mark| mark.at_ms))
            .bind(before.map(|mark| mark.id.clone()))
            .bind(kind.map(Achievement::name))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await
            .map_err(fault)?;
        rows.iter()
            .map(|bytes| Told::decode(bytes).map_err(|why| db.damaged(doing, why)))
            .collect()
    }

    async fn told_through(&self, slot: SlotId) -> Result<Option<Offset>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        sqlx::query_scalar("SELECT through FROM told WHERE source = ? AND partition = ?")
            .bind(slot.source.name())
            .bind(slot.partition)
            .fetch_optional(&mut *connection)
            .await
            .map_err(db.fault("reading how far was told"))
    }
}

#[async_trait]
impl AchievementsWrite for SqliteAchievements {
    async fn write(&self, achievements: &[Told]) -> Result<()> {
        let db = self.db.current().await?;
        let fault = db.fault("writing achievements");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        for told in achievements {
            let Some(achieved) = told.achieved else {
                continue;
            };
            sqlx::query(
                "INSERT INTO achievements (id, member, activity, kind, at_ms, told)
                 VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            )
            .bind(&told.id)
            .bind(achieved.member)
            .bind(achieved.activity)
            .bind(achieved.kind.name())
            .bind(told.at_ms)
            .bind(told.encode())
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        }
        tx.commit().await.map_err(fault)
    }

    async fn note_told(&self, slot: SlotId, through: Offset) -> Result<()> {
        let db = self.db.current().await?;
        let mut connection = db.writer().await?;
        sqlx::query(
            "INSERT INTO told (source, partition, through) VALUES (?, ?, ?)
             ON CONFLICT DO UPDATE SET through = excluded.through",
        )
        .bind(slot.source.name())
        .bind(slot.partition)
        .bind(through)
        .execute(&mut *connection)
        .await
        .map(drop)
        .map_err(db.fault("noting how far was told"))
    }
}

/// Which achievements name an athlete: `told` is text in a blob.
const NAMING: &str = "member = ?1 OR json_extract(CAST(told AS TEXT), '$.message.taken_by') = ?1";

#[async_trait]
impl AchievementsErase for SqliteAchievements {
    async fn naming(&self, athlete_id: i64) -> Result<u64> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let text = format!("SELECT count(*) FROM achievements WHERE {NAMING}");
        let found: i64 = sqlx::query_scalar(AssertSqlSafe(text))
            .bind(athlete_id)
            .fetch_one(&mut *connection)
            .await
            .map_err(db.fault("looking for an athlete's achievements"))?;
        Ok(found.unsigned_abs())
    }

    async fn erase(&self, athlete_id: i64) -> Result<()> {
        let db = self.db.current().await?;
        let fault = db.fault("erasing an athlete's achievements");
        let found: Vec<(String, Vec<u8>)> = {
            let mut connection = db.reader().await?;
            let text = format!("SELECT id, told FROM achievements WHERE {NAMING}");
            sqlx::query_as(AssertSqlSafe(text))
                .bind(athlete_id)
                .fetch_all(&mut *connection)
                .await
                .map_err(fault)?
        };
        if found.is_empty() {
            return Ok(());
        }
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        for (id, told) in found {
            let told =
                Told::decode(&told).map_err(|why| db.damaged("reading achievements", why))?;
            let is_own = told.achieved.is_some_and(|one| one.member == athlete_id);
            let query = if is_own {
                sqlx::query("DELETE FROM achievements WHERE id = ?").bind(id)
            } else {
                sqlx::query("UPDATE achievements SET told = ? WHERE id = ?")
                    .bind(told.taken_by_nobody().encode())
                    .bind(id)
            };
            query.execute(&mut *tx).await.map_err(fault)?;
        }
        tx.commit().await.map_err(fault)?;
        // What is deleted is overwritten, but not what had been moved to another page before.
        let done = sqlx::query("VACUUM").execute(&mut *connection).await;
        done.map(drop).map_err(fault)
    }
}
