//! Counts of connected athletes that are made anew from the authorizations, and recorded.
//!
//! A recount draws a *ticket* of its application before it reads the authorizations, and is recorded only where
//! no later ticket is. So of two that overlap the one stays that began later, which has seen everything that the
//! other one could be asked to hold: whoever counts because of a change drew the ticket after it was committed. No clock
//! decides that, and no lock is held while rows are counted. A crash between counting and recording leaves the record
//! of before.

use async_trait::async_trait;

use crate::Result;

/// A count that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recounted {
    /// Different athletes with an authorization that was not revoked.
    pub connected: u64,
    /// When counting began, in milliseconds since 1970, by the clock of who counted: what was committed before
    /// is counted.
    pub counted_at_ms: i64,
}

/// What is decided by whether an application is to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Countable {
    /// The application: it is known.
    pub application_id: i64,
    /// How many athletes may connect.
    pub athlete_capacity: i64,
    /// The count that is recorded, if there is one.
    pub recounted: Option<Recounted>,
}

/// A count that is not recorded yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recount {
    /// Of which application.
    pub application_id: i64,
    /// Its number among the recounts of the application, which rises.
    pub ticket: i64,
    /// What was counted.
    pub counted: Recounted,
}

/// Counting the athletes of applications from their authorizations.
#[async_trait]
pub trait Recounts: std::fmt::Debug + Send + Sync {
    /// Those of some applications that are known, by id.
    async fn countables(&self, application_ids: &[i64]) -> Result<Vec<Countable>>;

    /// Applications in the order of their ids, after one of them, at most `limit`.
    async fn countables_after(&self, after: Option<i64>, limit: usize) -> Result<Vec<Countable>>;

    /// Counts the athletes of some applications that are known, in one statement; by id. Nothing is recorded.
    async fn recount(&self, application_ids: &[i64], now_ms: i64) -> Result<Vec<Recount>>;

    /// Records counts, each unless one with a later ticket is recorded.
    async fn record_recounts(&self, recounts: &[Recount]) -> Result<()>;
}
