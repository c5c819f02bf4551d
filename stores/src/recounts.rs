//! Counts of connected athletes, recomputed from the authorizations and recorded.
//!
//! A recount takes a *ticket* of its application before it reads the authorizations. It is recorded
//! only if no later ticket is recorded. So of two overlapping recounts, the one that began later
//! wins. It has seen every change that triggered the other one, because a recount takes its ticket
//! after the commit of the change. No clock decides, and no lock is held while rows are counted.
//! After a crash between counting and recording, the earlier record stays.

use async_trait::async_trait;

use crate::Result;

/// A recorded count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedCount {
    /// The number of distinct athletes with an authorization that is not revoked.
    pub connected: u64,
    /// When counting began, in milliseconds since the Unix epoch, by the clock of the counting
    /// process. Earlier commits are counted.
    pub counted_at_ms: i64,
}

/// The data that decides whether an application needs a recount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedApplication {
    /// The application.
    pub application_id: i64,
    /// The maximum number of connected athletes.
    pub athlete_capacity: i64,
    /// The recorded count, if there is one.
    pub recorded: Option<RecordedCount>,
}

/// A count that is not recorded yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recount {
    /// The application.
    pub application_id: i64,
    /// The ascending number of the recount of this application.
    pub ticket: i64,
    /// The count.
    pub counted: RecordedCount,
}

/// Counts the athletes of applications from their authorizations.
#[async_trait]
pub trait Recounts: std::fmt::Debug + Send + Sync {
    /// The data of the existing applications among these, by id.
    async fn counted_applications(
        &self,
        application_ids: &[i64],
    ) -> Result<Vec<CountedApplication>>;

    /// The data of applications in the order of their ids, after one of them, at most `limit`.
    async fn counted_applications_after(
        &self,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<CountedApplication>>;

    /// Counts the athletes of the existing applications among these in one statement, by id.
    /// Records nothing.
    async fn recount(&self, application_ids: &[i64], now_ms: i64) -> Result<Vec<Recount>>;

    /// Records counts, each unless a count with a later ticket is recorded.
    async fn record_recounts(&self, recounts: &[Recount]) -> Result<()>;
}
