//! What athletes have achieved, in `achievements.db`.

use std::path::Path;

use async_trait::async_trait;
use schemas::achievement::{Kind as Achievement, Told};
use schemas::seam::Offset;
use sqlx::AssertSqlSafe;

use super::db::{Db, Kind, SMALL_FILE};
use super::session::Session;
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
    remedy: "stop every process of this folder and restore achievements.db from a copy",
    ..SMALL_FILE
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
        let mut session = self.db.read("reading achievements").await?;
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
        let query = sqlx::query(AssertSqlSafe(text))
            .bind(whose)
            .bind(before.map(|mark| mark.at_ms))
            .bind(before.map(|mark| mark.id.clone()))
            .bind(kind.map(Achievement::name))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows: Vec<(Vec<u8>,)> = session.all(query).await?;
        rows.iter()
            .map(|(bytes,)| Told::decode(bytes).map_err(|why| session.damaged(why)))
            .collect()
    }

    async fn told_through(&self, slot: SlotId) -> Result<Option<Offset>> {
        let mut session = self.db.read("reading how far was told").await?;
        let query = sqlx::query("SELECT through FROM told WHERE source = ? AND partition = ?")
            .bind(slot.source.name())
            .bind(slot.partition);
        let through: Option<(Offset,)> = session.first(query).await?;
        Ok(through.map(|(through,)| through))
    }
}

#[async_trait]
impl AchievementsWrite for SqliteAchievements {
    async fn write(&self, achievements: &[Told]) -> Result<()> {
        let mut tx = self.db.change("writing achievements").await?;
        for told in achievements {
            let Some(achieved) = told.achieved else {
                continue;
            };
            let query = sqlx::query(
                "INSERT INTO achievements (id, member, activity, kind, at_ms, told)
                 VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            )
            .bind(&told.id)
            .bind(achieved.member)
            .bind(achieved.activity)
            .bind(achieved.kind.name())
            .bind(told.at_ms)
            .bind(told.encode());
            tx.execute(query).await?;
        }
        tx.commit().await
    }

    async fn note_told(&self, slot: SlotId, through: Offset) -> Result<()> {
        let mut session = self.db.write("noting how far was told").await?;
        let query = sqlx::query(
            "INSERT INTO told (source, partition, through) VALUES (?, ?, ?)
             ON CONFLICT DO UPDATE SET through = excluded.through",
        )
        .bind(slot.source.name())
        .bind(slot.partition)
        .bind(through);
        session.execute(query).await.map(drop)
    }
}

/// The ids of the achievements that name an athlete, with what was told: text in a blob.
async fn naming(session: &mut Session, athlete_id: i64) -> Result<Vec<(String, Vec<u8>)>> {
    let query = sqlx::query(
        "SELECT id, told FROM achievements
         WHERE member = ?1 OR json_extract(CAST(told AS TEXT), '$.message.taken_by') = ?1",
    );
    session.all(query.bind(athlete_id)).await
}

#[async_trait]
impl AchievementsErase for SqliteAchievements {
    async fn naming(&self, athlete_id: i64) -> Result<u64> {
        let doing = "looking for an athlete's achievements";
        let mut session = self.db.read(doing).await?;
        Ok(naming(&mut session, athlete_id).await?.len() as u64)
    }

    async fn erase(&self, athlete_id: i64) -> Result<()> {
        // Most athletes have none: the search of the whole table does not hold up writers for them.
        if AchievementsErase::naming(self, athlete_id).await? == 0 {
            return Ok(());
        }
        let mut tx = self.db.change("erasing an athlete's achievements").await?;
        let found = naming(&mut tx, athlete_id).await?;
        for (id, told) in found {
            let told = Told::decode(&told).map_err(|why| tx.damaged(why))?;
            let is_own = told.achieved.is_some_and(|one| one.member == athlete_id);
            let query = if is_own {
                sqlx::query("DELETE FROM achievements WHERE id = ?").bind(id)
            } else {
                sqlx::query("UPDATE achievements SET told = ? WHERE id = ?")
                    .bind(told.taken_by_nobody().encode())
                    .bind(id)
            };
            tx.execute(query).await?;
        }
        tx.commit().await?;
        // What is deleted is overwritten, but not what had been moved to another page before.
        tx.execute("VACUUM").await.map(drop)
    }
}
