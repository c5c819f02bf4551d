//! The expiry port: deletes old records of the entity store, that is audit entries, decided
//! capacity requests, and delivered notices. Rows of entities do not expire.

use async_trait::async_trait;

use crate::Result;

/// A kind of records that grows without limit unless old records are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExpiringRecords {
    /// Audit entries. The age counts from the change.
    Audit,
    /// Decided capacity requests. The age counts from the decision.
    CapacityRequests,
    /// Notices that are delivered or given up. The age counts from that moment. The notice of a
    /// threshold of the current capacity stays; otherwise it would be created again.
    CapacityNotices,
}

impl ExpiringRecords {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Audit, Self::CapacityRequests, Self::CapacityNotices];
}

/// The number of records of a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExpiryCount {
    /// All records.
    pub total: u64,
    /// When the oldest was created, in milliseconds since the Unix epoch.
    pub oldest_ms: Option<i64>,
    /// Records older than the limit that may be deleted.
    pub expired: u64,
    /// Records older than the limit that are still needed.
    pub retained: u64,
}

/// Deletes old records.
#[async_trait]
pub trait RecordExpiry: std::fmt::Debug + Send + Sync {
    /// Counts records, and those older than a time (milliseconds since the Unix epoch).
    async fn count_expired(&self, kind: ExpiringRecords, before_ms: i64) -> Result<ExpiryCount>;

    /// Deletes records that are older than a time and not needed, oldest first, at most `limit`, in
    /// one transaction. Returns their number.
    async fn purge_expired(
        &self,
        kind: ExpiringRecords,
        before_ms: i64,
        limit: usize,
    ) -> Result<u64>;
}
