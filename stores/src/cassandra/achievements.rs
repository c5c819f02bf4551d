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

/// The number of concurrent writes.
const CONCURRENT_WRITES: usize = 64;
/// The number of rows in a page.
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
    async fn list_years(&self, member: i64) -> Result<Vec<i32>> {
        let operation = "reading the years of achievements";
        let text = "SELECT year FROM achievement_years WHERE member = ?";
        let statement = self.cql.prepare(operation, text).await?;
        let years: Vec<(i32,)> = self
            .cql
            .fetch_all(operation, &statement, &(member,))
            .await?;
        Ok(years.into_iter().map(|(year,)| year).collect())
    }

    /// Adds the achievements of one partition before a cursor to `messages`, up to `limit`.
    async fn read_partition(
        &self,
        owner: AchievementOwner,
        year: Option<i32>,
        kind: Option<AchievementKind>,
        before: &AchievementCursor,
        messages: &mut Vec<OutboxMessage>,
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
        while let Some(page_state) = next {
            let (page, after) = match owner {
                AchievementOwner::Member(member) => {
                    let values = (member, year.unwrap_or(0), before.at_ms, &before.id);
                    self.cql
                        .read_page(operation, &statement, &values, page_state)
                        .await?
                }
                AchievementOwner::Activity(activity) => {
                    let values = (activity, before.at_ms, &before.id);
                    self.cql
                        .read_page(operation, &statement, &values, page_state)
                        .await?
                }
            };
            next = after;
            let rows = page.rows::<(&str, &[u8])>();
            for row in rows.map_err(|error| self.cql.broken(operation, error))? {
                let (stored_kind, bytes) =
                    row.map_err(|error| self.cql.broken(operation, error))?;
                if kind.is_some_and(|kind| kind.name() != stored_kind) {
                    continue;
                }
                if messages.len() >= limit {
                    return Ok(());
                }
                let message = OutboxMessage::decode(bytes)
                    .map_err(|reason| self.cql.broken(operation, reason))?;
                messages.push(message);
            }
        }
        Ok(())
    }

    async fn write_one(&self, message: &OutboxMessage) -> Result<()> {
        let operation = "writing achievements";
        let Some(achievement) = message.achievement else {
            return Ok(());
        };
        let (year, bytes) = (utc_year(message.at_ms), message.encode());
        let (kind, id) = (achievement.kind.name(), message.id.as_str());
        // The year is written first, because readers look only into listed years.
        let text = "INSERT INTO achievement_years (member, year) VALUES (?, ?)";
        let values = (achievement.member, year);
        self.cql.write_one(operation, text, values).await?;
        let text = "INSERT INTO achievements_of_members (member, year, at_ms, id, kind, told)
                    VALUES (?, ?, ?, ?, ?, ?)";
        let values = (achievement.member, year, message.at_ms, id, kind, &bytes);
        self.cql.write_one(operation, text, values).await?;
        let Some(activity) = achievement.activity else {
            return Ok(());
        };
        let text = "INSERT INTO achievements_of_activities (activity, at_ms, id, kind, told)
                    VALUES (?, ?, ?, ?, ?)";
        let values = (activity, message.at_ms, id, kind, &bytes);
        self.cql.write_one(operation, text, values).await
    }
}

/// Returns the year of a time in UTC.
fn utc_year(at_ms: i64) -> i32 {
    let time = Timestamp::from_millisecond(at_ms).unwrap_or_default();
    i32::from(time.to_zoned(TimeZone::UTC).year())
}

#[async_trait]
impl AchievementsRead for CassandraAchievements {
    async fn achievements(
        &self,
        owner: AchievementOwner,
        kind: Option<AchievementKind>,
        before: Option<&AchievementCursor>,
        limit: usize,
    ) -> Result<Vec<OutboxMessage>> {
        let end = AchievementCursor {
            at_ms: i64::MAX,
            id: String::new(),
        };
        let before = before.unwrap_or(&end);
        let mut messages = Vec::new();
        match owner {
            AchievementOwner::Activity(_) => {
                self.read_partition(owner, None, kind, before, &mut messages, limit)
                    .await?;
            }
            AchievementOwner::Member(member) => {
                let newest_year = (before.at_ms < i64::MAX).then(|| utc_year(before.at_ms));
                for year in self.list_years(member).await? {
                    if newest_year.is_some_and(|newest_year| year > newest_year) {
                        continue;
                    }
                    if messages.len() >= limit {
                        break;
                    }
                    self.read_partition(owner, Some(year), kind, before, &mut messages, limit)
                        .await?;
                }
            }
        }
        Ok(messages)
    }

    async fn published_end(&self, partition_id: PartitionId) -> Result<Option<Offset>> {
        let operation = "reading how far achievements are published";
        let text = "SELECT through FROM told WHERE source = ? AND partition = ?";
        let values = (partition_id.source.name(), partition_number(partition_id));
        let row: Option<(Option<Offset>,)> = self.cql.fetch_first(operation, text, values).await?;
        Ok(row.and_then(|(end,)| end))
    }
}

#[async_trait]
impl AchievementsWrite for CassandraAchievements {
    async fn write(&self, achievements: &[OutboxMessage]) -> Result<()> {
        let calls = achievements.iter().map(|message| self.write_one(message));
        run_concurrently(CONCURRENT_WRITES, calls.collect())
            .await
            .map(drop)
    }

    async fn record_published_end(&self, partition_id: PartitionId, end: Offset) -> Result<()> {
        let operation = "recording how far achievements are published";
        let text = "INSERT INTO told (source, partition, through) VALUES (?, ?, ?)";
        let values = (
            partition_id.source.name(),
            partition_number(partition_id),
            end,
        );
        self.cql.write_one(operation, text, values).await
    }
}

#[async_trait]
impl AchievementsErase for CassandraAchievements {
    async fn count_naming(&self, athlete_id: i64) -> Result<u64> {
        let mut count = 0;
        for table in TABLES {
            count += self.find_mentioning(table, athlete_id).await?.len() as u64;
        }
        Ok(count + self.list_years(athlete_id).await?.len() as u64)
    }

    async fn erase(&self, athlete_id: i64) -> Result<()> {
        for table in TABLES {
            for message in self.find_mentioning(table, athlete_id).await? {
                let is_their_own = message
                    .achievement
                    .is_some_and(|achievement| achievement.member == athlete_id);
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
        let mut messages = Vec::new();
        let collect = |(message,): (Vec<u8>,)| {
            let message = OutboxMessage::decode(&message)
                .map_err(|reason| self.cql.broken(operation, reason))?;
            let is_their_own = message
                .achievement
                .is_some_and(|achievement| achievement.member == athlete_id);
            if is_their_own || message.is_crown_taken_by(athlete_id) {
                messages.push(message);
            }
            Ok(())
        };
        self.cql
            .for_each_row(operation, &statement, &(), collect)
            .await?;
        Ok(messages)
    }

    /// Deletes an achievement from a table.
    async fn delete(&self, table: &str, message: &OutboxMessage) -> Result<()> {
        let operation = "erasing an athlete's achievements";
        let Some(achievement) = message.achievement else {
            return Ok(());
        };
        let (at_ms, id) = (message.at_ms, message.id.as_str());
        if table == TABLES[0] {
            let text = "DELETE FROM achievements_of_members
                        WHERE member = ? AND year = ? AND at_ms = ? AND id = ?";
            let values = (achievement.member, utc_year(at_ms), at_ms, id);
            return self.cql.write_one(operation, text, values).await;
        }
        let Some(activity) = achievement.activity else {
            return Ok(());
        };
        let text = "DELETE FROM achievements_of_activities
                    WHERE activity = ? AND at_ms = ? AND id = ?";
        self.cql
            .write_one(operation, text, (activity, at_ms, id))
            .await
    }
}

fn partition_number(partition_id: PartitionId) -> i32 {
    i32::try_from(partition_id.partition).unwrap_or(i32::MAX)
}
