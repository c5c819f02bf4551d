//! The port of achievements: what athletes have achieved, by athlete and by activity, and how far the
//! changes of a log partition have been told.
//!
//! An achievement is written under its id: writing it again changes nothing. Nothing is ever deleted
//! or changed, but of an athlete who is erased.

use async_trait::async_trait;
use schemas::achievement::{Kind, Told};
use schemas::seam::Offset;

use crate::Result;
use crate::live::SlotId;

/// Whose achievements are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Of {
    /// An athlete's.
    Member(i64),
    /// Those of the efforts of an activity.
    Activity(i64),
}

impl Of {
    /// Whether an achievement is among them.
    #[must_use]
    pub fn has(&self, told: &Told) -> bool {
        let Some(achieved) = told.achieved else {
            return false;
        };
        match *self {
            Self::Member(member) => achieved.member == member,
            Self::Activity(activity) => achieved.activity == Some(activity),
        }
    }
}

/// A place in a list of achievements, which are told newest first: by time, then by id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// When the notification was logged, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The id.
    pub id: String,
}

impl Mark {
    /// Where an achievement stands.
    #[must_use]
    pub fn of(told: &Told) -> Self {
        Self {
            at_ms: told.at_ms,
            id: told.id.clone(),
        }
    }
}

/// Reading achievements.
#[async_trait]
pub trait AchievementsRead: std::fmt::Debug + Send + Sync {
    /// The newest achievements before a place, newest first, at most `limit` of them; of one kind, if
    /// that is said.
    async fn achievements(
        &self,
        of: Of,
        kind: Option<Kind>,
        before: Option<&Mark>,
        limit: usize,
    ) -> Result<Vec<Told>>;

    /// Up to which offset the changes of a log partition have been told: all before it; nothing where
    /// nothing has been told.
    async fn told_through(&self, slot: SlotId) -> Result<Option<Offset>>;
}

/// Writing achievements.
#[async_trait]
pub trait AchievementsWrite: AchievementsRead + AchievementsErase {
    /// Writes achievements; those that are there stay as they are.
    async fn write(&self, achievements: &[Told]) -> Result<()>;

    /// Notes up to which offset the changes of a log partition have been told; what was noted last
    /// stands.
    async fn note_told(&self, slot: SlotId, through: Offset) -> Result<()>;
}

/// Taking an athlete out of what was achieved.
#[async_trait]
pub trait AchievementsErase: std::fmt::Debug + Send + Sync {
    /// How many achievements name an athlete: the athlete's own, and those of others who lost a crown to the
    /// athlete. All of them are read.
    async fn naming(&self, athlete_id: i64) -> Result<u64>;

    /// Deletes the athlete's own; those of others name nobody then to whom a crown was lost. It may be done
    /// again.
    async fn erase(&self, athlete_id: i64) -> Result<()>;
}
