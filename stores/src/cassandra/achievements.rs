//! What athletes have achieved: an athlete's years, each a partition, newest first; and the same by
//! activity.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemas::achievement::{Kind, Told};
use schemas::seam::Offset;
use scylla::response::PagingState;

use super::session::{Cql, together};
use crate::Result;
use crate::achievements::{AchievementsErase, AchievementsRead, AchievementsWrite, Mark, Of};
use crate::live::SlotId;

/// Achievements that are written at once.
const AT_ONCE: usize = 64;
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

    /// The years of an athlete in which there is something, newest first.
    async fn years(&self, member: i64) -> Result<Vec<i32>> {
        let doing = "reading the years of achievements";
        let text = "SELECT year FROM achievement_years WHERE member = ?";
        let statement = self.cql.prepare(doing, text).await?;
        let years: Vec<(i32,)> = self.cql.all(doing, &statement, &(member,)).await?;
        Ok(years.into_iter().map(|(year,)| year).collect())
    }

    /// Adds what a part of a table holds before a place to `found`, until that has `limit`.
    async fn add(
        &self,
        of: (Of, Option<i32>),
        kind: Option<Kind>,
        before: &Mark,
        (found, limit): (&mut Vec<Told>, usize),
    ) -> Result<()> {
        let doing = "reading achievements";
        let text = match of.0 {
            Of::Member(_) => {
                "SELECT kind, told FROM achievements_of_members
                 WHERE member = ? AND year = ? AND (at_ms, id) < (?, ?)"
            }
            Of::Activity(_) => {
                "SELECT kind, told FROM achievements_of_activities
                 WHERE activity = ? AND (at_ms, id) < (?, ?)"
            }
        };
        let mut statement = self.cql.prepare(doing, text).await?;
        statement.set_page_size(PAGE_ROWS);
        let mut next = Some(PagingState::start());
        while let Some(from) = next {
            let (page, after) = match of {
                (Of::Member(member), year) => {
                    let values = (member, year.unwrap_or(0), before.at_ms, &before.id);
                    self.cql.page(doing, &statement, &values, from).await?
                }
                (Of::Activity(activity), _) => {
                    let values = (activity, before.at_ms, &before.id);
                    self.cql.page(doing, &statement, &values, from).await?
                }
            };
            next = after;
            let rows = page.rows::<(&str, &[u8])>();
            for row in rows.map_err(|error| self.cql.broken(doing, error))? {
                let (of_kind, told) = row.map_err(|error| self.cql.broken(doing, error))?;
                if kind.is_some_and(|kind| kind.name() != of_kind) {
                    continue;
                }
                if found.len() >= limit {
                    return Ok(());
                }
                let told = Told::decode(told).map_err(|why| self.cql.broken(doing, why))?;
                found.push(told);
            }
        }
        Ok(())
    }

    async fn write_one(&self, told: &Told) -> Result<()> {
        let doing = "writing achievements";
        let Some(achieved) = told.achieved else {
            return Ok(());
        };
        let (year, bytes) = (year(told.at_ms), told.encode());
        let (kind, id) = (achieved.kind.name(), told.id.as_str());
        // The year first: whoever finds none looks no further.
        let text = "INSERT INTO achievement_years (member, year) VALUES (?, ?)";
        let values = (achieved.member, year);
        self.cql.write_one(doing, text, values).await?;
        let text = "INSERT INTO achievements_of_members (member, year, at_ms, id, kind, told)
                    VALUES (?, ?, ?, ?, ?, ?)";
        let values = (achieved.member, year, told.at_ms, id, kind, &bytes);
        self.cql.write_one(doing, text, values).await?;
        let Some(activity) = achieved.activity else {
            return Ok(());
        };
        let text = "INSERT INTO achievements_of_activities (activity, at_ms, id, kind, told)
                    VALUES (?, ?, ?, ?, ?)";
        let values = (activity, told.at_ms, id, kind, &bytes);
        self.cql.write_one(doing, text, values).await
    }
}

/// The year of a moment, in UTC.
fn year(at_ms: i64) -> i32 {
    let at = Timestamp::from_millisecond(at_ms).unwrap_or_default();
    i32::from(at.to_zoned(TimeZone::UTC).year())
}

#[async_trait]
impl AchievementsRead for CassandraAchievements {
    async fn achievements(
        &self,
        of: Of,
        kind: Option<Kind>,
        before: Option<&Mark>,
        limit: usize,
    ) -> Result<Vec<Told>> {
        let end = Mark {
            at_ms: i64::MAX,
            id: String::new(),
        };
        let before = before.unwrap_or(&end);
        let mut found = Vec::new();
        match of {
            Of::Activity(_) => {
                self.add((of, None), kind, before, (&mut found, limit))
                    .await?;
            }
            Of::Member(member) => {
                let last = (before.at_ms < i64::MAX).then(|| year(before.at_ms));
                for year in self.years(member).await? {
                    if last.is_some_and(|last| year > last) {
                        continue;
                    }
                    if found.len() >= limit {
                        break;
                    }
                    self.add((of, Some(year)), kind, before, (&mut found, limit))
                        .await?;
                }
            }
        }
        Ok(found)
    }

    async fn told_through(&self, slot: SlotId) -> Result<Option<Offset>> {
        let doing = "reading how far was told";
        let text = "SELECT through FROM told WHERE source = ? AND partition = ?";
        let values = (slot.source.name(), partition(slot));
        let row: Option<(Option<Offset>,)> = self.cql.first(doing, text, values).await?;
        Ok(row.and_then(|(through,)| through))
    }
}

#[async_trait]
impl AchievementsWrite for CassandraAchievements {
    async fn write(&self, achievements: &[Told]) -> Result<()> {
        let calls = achievements.iter().map(|told| self.write_one(told));
        together(AT_ONCE, calls.collect()).await.map(drop)
    }

    async fn note_told(&self, slot: SlotId, through: Offset) -> Result<()> {
        let doing = "noting how far was told";
        let text = "INSERT INTO told (source, partition, through) VALUES (?, ?, ?)";
        let values = (slot.source.name(), partition(slot), through);
        self.cql.write_one(doing, text, values).await
    }
}

#[async_trait]
impl AchievementsErase for CassandraAchievements {
    async fn naming(&self, athlete_id: i64) -> Result<u64> {
        let mut found = 0;
        for table in TABLES {
            found += self.naming_in(table, athlete_id).await?.len() as u64;
        }
        Ok(found + self.years(athlete_id).await?.len() as u64)
    }

    async fn erase(&self, athlete_id: i64) -> Result<()> {
        for table in TABLES {
            for told in self.naming_in(table, athlete_id).await? {
                let is_own = told.achieved.is_some_and(|one| one.member == athlete_id);
                if is_own {
                    self.delete(table, &told).await?;
                } else {
                    self.write_one(&told.taken_by_nobody()).await?;
                }
            }
        }
        // The years last: they lead to the others.
        let doing = "erasing the years of achievements";
        let text = "DELETE FROM achievement_years WHERE member = ?";
        self.cql.write_one(doing, text, (athlete_id,)).await
    }
}

/// The tables of achievements.
const TABLES: [&str; 2] = ["achievements_of_members", "achievements_of_activities"];

impl CassandraAchievements {
    /// What a table holds that names an athlete: all of it is read.
    async fn naming_in(&self, table: &str, athlete_id: i64) -> Result<Vec<Told>> {
        let doing = "looking for an athlete's achievements";
        let mut statement = self
            .cql
            .prepare(doing, &format!("SELECT told FROM {table}"))
            .await?;
        statement.set_page_size(PAGE_ROWS);
        let mut found = Vec::new();
        let take = |(told,): (Vec<u8>,)| {
            let told = Told::decode(&told).map_err(|why| self.cql.broken(doing, why))?;
            let is_own = told.achieved.is_some_and(|one| one.member == athlete_id);
            if is_own || told.was_taken_by(athlete_id) {
                found.push(told);
            }
            Ok(())
        };
        self.cql.each(doing, &statement, &(), take).await?;
        Ok(found)
    }

    /// Deletes an achievement from a table.
    async fn delete(&self, table: &str, told: &Told) -> Result<()> {
        let doing = "erasing an athlete's achievements";
        let Some(achieved) = told.achieved else {
            return Ok(());
        };
        let (at_ms, id) = (told.at_ms, told.id.as_str());
        if table == TABLES[0] {
            let text = "DELETE FROM achievements_of_members
                        WHERE member = ? AND year = ? AND at_ms = ? AND id = ?";
            let values = (achieved.member, year(at_ms), at_ms, id);
            return self.cql.write_one(doing, text, values).await;
        }
        let Some(activity) = achieved.activity else {
            return Ok(());
        };
        let text = "DELETE FROM achievements_of_activities
                    WHERE activity = ? AND at_ms = ? AND id = ?";
        self.cql.write_one(doing, text, (activity, at_ms, id)).await
    }
}

fn partition(slot: SlotId) -> i32 {
    i32::try_from(slot.partition).unwrap_or(i32::MAX)
}
