//! Achievements of athletes, newest first: one partition per athlete and year, and one per
//! activity.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemas::achievement::{AchievementKind, OutboxMessage};
use schemas::seam::Offset;
use scylla::response::PagingState;

use super::session::{Cql, run_concurrently};
use crate::Result;
use crate::achievements::{
    AchievementCursor, AchievementOwner, AchievementsErase, AchievementsRead, AchievementsWrite,
};
use crate::live::PartitionId;

/// Number of concurrent writes.
const CONCURRENCY: usize = 64;
/// Rows in a page.
const PAGE_ROWS: i32 = 500;

/// Achievements in a keyspace.
#[derive(Debug)]
pub struct CassandraAchievements {
    cql: Arc<Cql>,
}

impl CassandraAchievements {
    pub(super) const fn new(cql: Arc<Cql>) -> Self {
        Self { cql }
    }

    /// Returns the years in which an athlete has achievements, newest first.
    async fn years(&self, member: i64) -> Result<Vec<i32>> {
        let operation = "reading the years of achievements";
        let text = "SELECT year FROM achievement_years WHERE member = ?";
        let statement = self.cql.prepare(operation, text).await?;
        let years: Vec<(i32,)> = self
            .cql
            .fetch_all(operation, &statement, &(member,))
            .await?;
        Ok(years.into_iter().map(|(year,)| year).collect())
    }

    /// Adds the achievements of one partition before a cursor to `found`, up to `limit`.
    async fn add(
        &self,
        owner: AchievementOwner,
        year: Option<i32>,
        kind: Option<AchievementKind>,
        before: &AchievementCursor,
        found: &mut Vec<OutboxMessage>,
        limit: usize,
    ) -> Result<()> {
        let operation = "reading achievements";
        let text = match owner {
            AchievementOwner::Member(_) => {
                "SELECT kind, told FROM achievements_of_members
                 WHERE member = ? AND year = ? AND (at_ms, id) < (?, ?)"
            }
            AchievementOwner::Activity(_) => {
                "SELECT kind, told FROM achievements_of_activities
                 WHERE activity = ? AND (at_ms, id) < (?, ?)"
            }
        };
        let mut statement = self.cql.prepare(operation, text).await?;
        statement.set_page_size(PAGE_ROWS);
        let mut next = Some(PagingState::start());
        while let Some(from) = next {
            let (page, after) = match owner {
                AchievementOwner::Member(member) => {
                    let values = (member, year.unwrap_or(0), before.at_ms, &before.id);
                    self.cql.page(operation, &statement, &values, from).await?
                }
                AchievementOwner::Activity(activity) => {
                    let values = (activity, before.at_ms, &before.id);
                    self.cql.page(operation, &statement, &values, from).await?
                }
            };
            next = after;
            let rows = page.rows::<(&str, &[u8])>();
            for row in rows.map_err(|error| self.cql.broken(operation, error))? {
                let (stored_kind, stored) =
                    row.map_err(|error| self.cql.broken(operation, error))?;
                if kind.is_some_and(|kind| kind.name() != stored_kind) {
                    continue;
                }
                if found.len() >= limit {
                    return Ok(());
                }
                let message =
                    OutboxMessage::decode(stored).map_err(|why| self.cql.broken(operation, why))?;
                found.push(message);
            }
        }
        Ok(())
    }

    async fn write_one(&self, message: &OutboxMessage) -> Result<()> {
        let operation = "writing achievements";
        let Some(achieved) = message.achievement else {
            return Ok(());
        };
        let (year, bytes) = (year(message.at_ms), message.encode());
        let (kind, id) = (achieved.kind.name(), message.id.as_str());
        // The year is written first, because readers look only into listed years.
        let text = "INSERT INTO achievement_years (member, year) VALUES (?, ?)";
        let values = (achieved.member, year);
        self.cql.write_one(operation, text, values).await?;
        let text = "INSERT INTO achievements_of_members (member, year, at_ms, id, kind, told)
                    VALUES (?, ?, ?, ?, ?, ?)";
        let values = (achieved.member, year, message.at_ms, id, kind, &bytes);
        self.cql.write_one(operation, text, values).await?;
        let Some(activity) = achieved.activity else {
            return Ok(());
        };
        let text = "INSERT INTO achievements_of_activities (activity, at_ms, id, kind, told)
                    VALUES (?, ?, ?, ?, ?)";
        let values = (activity, message.at_ms, id, kind, &bytes);
        self.cql.write_one(operation, text, values).await
    }
}

/// Year of a time in UTC.
fn year(at_ms: i64) -> i32 {
    let at = Timestamp::from_millisecond(at_ms).unwrap_or_default();
    i32::from(at.to_zoned(TimeZone::UTC).year())
}

#[async_trait]
impl AchievementsRead for CassandraAchievements {
    async fn achievements(
        &self,
        of: AchievementOwner,
        kind: Option<AchievementKind>,
        before: Option<&AchievementCursor>,
        limit: usize,
    ) -> Result<Vec<OutboxMessage>> {
        let end = AchievementCursor {
            at_ms: i64::MAX,
            id: String::new(),
        };
        let before = before.unwrap_or(&end);
        let mut found = Vec::new();
        match of {
            AchievementOwner::Activity(_) => {
                self.add(of, None, kind, before, &mut found, limit).await?;
            }
            AchievementOwner::Member(member) => {
                let last = (before.at_ms < i64::MAX).then(|| year(before.at_ms));
                for year in self.years(member).await? {
                    if last.is_some_and(|last| year > last) {
                        continue;
                    }
                    if found.len() >= limit {
                        break;
                    }
                    self.add(of, Some(year), kind, before, &mut found, limit)
                        .await?;
                }
            }
        }
        Ok(found)
    }

    async fn published_through(&self, partition_id: PartitionId) -> Result<Option<Offset>> {
        let operation = "reading how far achievements are published";
        let text = "SELECT through FROM told WHERE source = ? AND partition = ?";
        let values = (partition_id.source.name(), partition(partition_id));
        let row: Option<(Option<Offset>,)> = self.cql.fetch_first(operation, text, values).await?;
        Ok(row.and_then(|(through,)| through))
    }
}

#[async_trait]
impl AchievementsWrite for CassandraAchievements {
    async fn write(&self, achievements: &[OutboxMessage]) -> Result<()> {
        let calls = achievements.iter().map(|message| self.write_one(message));
        run_concurrently(CONCURRENCY, calls.collect())
            .await
            .map(drop)
    }

    async fn record_published_through(
        &self,
        partition_id: PartitionId,
        through: Offset,
    ) -> Result<()> {
        let operation = "recording how far achievements are published";
        let text = "INSERT INTO told (source, partition, through) VALUES (?, ?, ?)";
        let values = (partition_id.source.name(), partition(partition_id), through);
        self.cql.write_one(operation, text, values).await
    }
}

#[async_trait]
impl AchievementsErase for CassandraAchievements {
    async fn count_naming(&self, athlete_id: i64) -> Result<u64> {
        let mut found = 0;
        for table in TABLES {
            found += self.find_mentioning(table, athlete_id).await?.len() as u64;
        }
        Ok(found + self.years(athlete_id).await?.len() as u64)
    }

    async fn erase(&self, athlete_id: i64) -> Result<()> {
        for table in TABLES {
            for message in self.find_mentioning(table, athlete_id).await? {
                let is_their_own = message
                    .achievement
                    .is_some_and(|one| one.member == athlete_id);
                if is_their_own {
                    self.delete(table, &message).await?;
                } else {
                    self.write_one(&message.without_taker()).await?;
                }
            }
        }
        // The years are deleted last, because they lead to the others.
        let operation = "erasing the years of achievements";
        let text = "DELETE FROM achievement_years WHERE member = ?";
        self.cql.write_one(operation, text, (athlete_id,)).await
    }
}

/// The tables of achievements.
const TABLES: [&str; 2] = ["achievements_of_members", "achievements_of_activities"];

impl CassandraAchievements {
    /// Returns all achievements in a table that mention an athlete. It reads the whole table.
    async fn find_mentioning(&self, table: &str, athlete_id: i64) -> Result<Vec<OutboxMessage>> {
        let operation = "finding an athlete's achievements";
        let mut statement = self
            .cql
            .prepare(operation, &format!("SELECT told FROM {table}"))
            .await?;
        statement.set_page_size(PAGE_ROWS);
        let mut found = Vec::new();
        let take = |(message,): (Vec<u8>,)| {
            let message =
                OutboxMessage::decode(&message).map_err(|why| self.cql.broken(operation, why))?;
            let is_their_own = message
                .achievement
                .is_some_and(|one| one.member == athlete_id);
            if is_their_own || message.is_crown_taken_by(athlete_id) {
                found.push(message);
            }
            Ok(())
        };
        self.cql
            .for_each_row(operation, &statement, &(), take)
            .await?;
        Ok(found)
    }

    /// Deletes an achievement from a table.
    async fn delete(&self, table: &str, message: &OutboxMessage) -> Result<()> {
        let operation = "erasing an athlete's achievements";
        let Some(achieved) = message.achievement else {
            return Ok(());
        };
        let (at_ms, id) = (message.at_ms, message.id.as_str());
        if table == TABLES[0] {
            let text = "DELETE FROM achievements_of_members
                        WHERE member = ? AND year = ? AND at_ms = ? AND id = ?";
            let values = (achieved.member, year(at_ms), at_ms, id);
            return self.cql.write_one(operation, text, values).await;
        }
        let Some(activity) = achieved.activity else {
            return Ok(());
        };
        let text = "DELETE FROM achievements_of_activities
                    WHERE activity = ? AND at_ms = ? AND id = ?";
        self.cql
            .write_one(operation, text, (activity, at_ms, id))
            .await
    }
}

fn partition(partition_id: PartitionId) -> i32 {
    i32::try_from(partition_id.partition).unwrap_or(i32::MAX)
}
