//! Achievements of athletes, in `achievements.db`.

use std::path::Path;

use async_trait::async_trait;
use schemas::achievement::{AchievementKind, OutboxMessage};
use schemas::seam::Offset;
use sqlx::AssertSqlSafe;

use super::db::{DatabaseSpec, Db, SMALL_FILE};
use super::session::Session;
use crate::Result;
use crate::achievements::{
    AchievementCursor, AchievementOwner, AchievementsErase, AchievementsRead, AchievementsWrite,
};
use crate::live::PartitionId;

static ACHIEVEMENTS: DatabaseSpec = DatabaseSpec {
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
    remedy: "stop every process that uses this folder and restore achievements.db from a backup",
    ..SMALL_FILE
};

/// Achievements of a data folder.
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
        owner: AchievementOwner,
        kind: Option<AchievementKind>,
        before: Option<&AchievementCursor>,
        limit: usize,
    ) -> Result<Vec<OutboxMessage>> {
        let mut session = self.db.read("reading achievements").await?;
        let (column, id) = match owner {
            AchievementOwner::Member(member) => ("member", member),
            AchievementOwner::Activity(activity) => ("activity", activity),
        };
        let kind_filter = if kind.is_some() { "AND kind = ?4" } else { "" };
        let before_filter = if before.is_some() {
            "AND (at_ms, id) < (?2, ?3)"
        } else {
            ""
        };
        let text = format!(
            "SELECT told FROM achievements WHERE {column} = ?1 {kind_filter} {before_filter}
             ORDER BY at_ms DESC, id DESC LIMIT ?5"
        );
        let query = sqlx::query(AssertSqlSafe(text))
            .bind(id)
            .bind(before.map(|cursor| cursor.at_ms))
            .bind(before.map(|cursor| cursor.id.clone()))
            .bind(kind.map(AchievementKind::name))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows: Vec<(Vec<u8>,)> = session.fetch_all(query).await?;
        rows.iter()
            .map(|(bytes,)| OutboxMessage::decode(bytes).map_err(|reason| session.damaged(reason)))
            .collect()
    }

    async fn published_end(&self, partition_id: PartitionId) -> Result<Option<Offset>> {
        let mut session = self
            .db
            .read("reading how far achievements are published")
            .await?;
        let query = sqlx::query("SELECT through FROM told WHERE source = ? AND partition = ?")
            .bind(partition_id.source.name())
            .bind(partition_id.partition);
        let end: Option<(Offset,)> = session.fetch_first(query).await?;
        Ok(end.map(|(end,)| end))
    }
}

#[async_trait]
impl AchievementsWrite for SqliteAchievements {
    async fn write(&self, achievements: &[OutboxMessage]) -> Result<()> {
        let mut tx = self.db.begin_write("writing achievements").await?;
        for message in achievements {
            let Some(achieved) = message.achievement else {
                continue;
            };
            let query = sqlx::query(
                "INSERT INTO achievements (id, member, activity, kind, at_ms, told)
                 VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            )
            .bind(&message.id)
            .bind(achieved.member)
            .bind(achieved.activity)
            .bind(achieved.kind.name())
            .bind(message.at_ms)
            .bind(message.encode());
            tx.execute(query).await?;
        }
        tx.commit().await
    }

    async fn record_published_end(&self, partition_id: PartitionId, end: Offset) -> Result<()> {
        let mut session = self
            .db
            .write("recording how far achievements are published")
            .await?;
        let query = sqlx::query(
            "INSERT INTO told (source, partition, through) VALUES (?, ?, ?)
             ON CONFLICT DO UPDATE SET through = excluded.through",
        )
        .bind(partition_id.source.name())
        .bind(partition_id.partition)
        .bind(end);
        session.execute(query).await.map(drop)
    }
}

/// Returns the ids and stored messages of the achievements that mention an athlete. The messages
/// are JSON text in a blob.
async fn find_mentioning(session: &mut Session, athlete_id: i64) -> Result<Vec<(String, Vec<u8>)>> {
    let query = sqlx::query(
        "SELECT id, told FROM achievements
         WHERE member = ?1 OR json_extract(CAST(told AS TEXT), '$.message.taken_by') = ?1",
    );
    session.fetch_all(query.bind(athlete_id)).await
}

#[async_trait]
impl AchievementsErase for SqliteAchievements {
    async fn count_naming(&self, athlete_id: i64) -> Result<u64> {
        let operation = "finding an athlete's achievements";
        let mut session = self.db.read(operation).await?;
        Ok(find_mentioning(&mut session, athlete_id).await?.len() as u64)
    }

    async fn erase(&self, athlete_id: i64) -> Result<()> {
        // Most athletes have none, and for them the scan of the whole table must not block writers.
        if AchievementsErase::count_naming(self, athlete_id).await? == 0 {
            return Ok(());
        }
        let mut tx = self
            .db
            .begin_write("erasing an athlete's achievements")
            .await?;
        let mentions = find_mentioning(&mut tx, athlete_id).await?;
        for (id, stored) in mentions {
            let message = OutboxMessage::decode(&stored).map_err(|reason| tx.damaged(reason))?;
            let is_own_achievement = message
                .achievement
                .is_some_and(|achievement| achievement.member == athlete_id);
            let query = if is_own_achievement {
                sqlx::query("DELETE FROM achievements WHERE id = ?").bind(id)
            } else {
                sqlx::query("UPDATE achievements SET told = ? WHERE id = ?")
                    .bind(message.without_taker().encode())
                    .bind(id)
            };
            tx.execute(query).await?;
        }
        tx.commit().await?;
        // Deleted rows are overwritten, but not the copies that were moved to other pages before.
        tx.execute("VACUUM").await.map(drop)
    }
}
