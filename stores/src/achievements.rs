//! The achievements port: achievements by athlete and by activity, and the offset up to which the
//! changes of a log partition are published.
//!
//! An achievement is written under its id, so writing it again changes nothing. Only the erasure of
//! an athlete deletes or changes achievements.

use async_trait::async_trait;
use schemas::achievement::{AchievementKind, OutboxMessage};
use schemas::seam::Offset;

use crate::Result;
use crate::live::PartitionId;

/// The athlete or activity whose achievements are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AchievementOwner {
    /// The achievements of an athlete.
    Member(i64),
    /// The achievements of the efforts of an activity.
    Activity(i64),
}

impl AchievementOwner {
    /// Returns whether a message is an achievement of this owner.
    #[must_use]
    pub fn contains(&self, message: &OutboxMessage) -> bool {
        let Some(achievement) = message.achievement else {
            return false;
        };
        match *self {
            Self::Member(member) => achievement.member == member,
            Self::Activity(activity) => achievement.activity == Some(activity),
        }
    }
}

/// A position in a list of achievements, which is ordered by time, then by id, newest first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AchievementCursor {
    /// When the notification was logged, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The id.
    pub id: String,
}

impl AchievementCursor {
    /// The position of an achievement.
    #[must_use]
    pub fn from_message(message: &OutboxMessage) -> Self {
        Self {
            at_ms: message.at_ms,
            id: message.id.clone(),
        }
    }
}

/// Reads achievements.
#[async_trait]
pub trait AchievementsRead: std::fmt::Debug + Send + Sync {
    /// Reads the newest achievements before a position, newest first, at most `limit`; only those
    /// of `kind`, if given.
    async fn achievements(
        &self,
        owner: AchievementOwner,
        kind: Option<AchievementKind>,
        before: Option<&AchievementCursor>,
        limit: usize,
    ) -> Result<Vec<OutboxMessage>>;

    /// The offset below which all changes of a log partition are published; `None` before the
    /// first.
    async fn published_end(&self, partition: PartitionId) -> Result<Option<Offset>>;
}

/// Writes achievements.
#[async_trait]
pub trait AchievementsWrite: AchievementsRead + AchievementsErase {
    /// Writes achievements. Existing ones stay unchanged.
    async fn write(&self, achievements: &[OutboxMessage]) -> Result<()>;

    /// Records the offset below which all changes of a log partition are published. The last call
    /// wins.
    async fn record_published_end(&self, partition: PartitionId, end: Offset) -> Result<()>;
}

/// Erases an athlete from achievements.
#[async_trait]
pub trait AchievementsErase: std::fmt::Debug + Send + Sync {
    /// Counts the achievements that name an athlete: the athlete's own, and those of others who
    /// took a crown from the athlete. Reads all achievements.
    async fn count_naming(&self, athlete_id: i64) -> Result<u64>;

    /// Deletes the athlete's own achievements, and removes the athlete from those of others. It is
    /// idempotent.
    async fn erase(&self, athlete_id: i64) -> Result<()>;
}
