//! The port for letting go of old records beside the canonical rows: what was changed of applications, what was asked
//! for and decided, which notices were delivered. Rows themselves are not let go here.

use async_trait::async_trait;

use crate::Result;

/// A kind of records that grows for ever unless some are let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ageing {
    /// What was changed of applications: as old as the change.
    Audit,
    /// Requests for capacity that were decided: as old as the decision.
    CapacityRequests,
    /// Notices that are delivered or given up: as old as they are. The notice of a threshold of the
    /// capacity that an application has now stays, or it would be made once more.
    CapacityNotices,
}

impl Ageing {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Audit, Self::CapacityRequests, Self::CapacityNotices];
}

/// How many records of a kind there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgedCount {
    /// In all.
    pub all: u64,
    /// When the oldest was made, in milliseconds since the Unix epoch.
    pub oldest_ms: Option<i64>,
    /// How many of them may go: older than the moment that was asked for, and needed by nobody.
    pub aged: u64,
    /// How many are as old and are still needed.
    pub needed: u64,
}

/// Letting go of old records.
#[async_trait]
pub trait AgedRecords: std::fmt::Debug + Send + Sync {
    /// How many there are, and how many are older than a moment (milliseconds since the Unix epoch).
    async fn aged(&self, of: Ageing, before_ms: i64) -> Result<AgedCount>;

    /// Deletes some that are older than a moment and needed by nobody, the oldest first, at most `limit`, in one
    /// transaction; answers how many.
    async fn forget_aged(&self, of: Ageing, before_ms: i64, limit: usize) -> Result<u64>;
}
