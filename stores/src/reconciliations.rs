//! What is kept of reconciliations: a record of each comparison, under numbers that rise, and small notes beside
//! them, each changed by compare-and-set: when a scheduled one last ran, alerts on their way, and which restorations have
//! corrected counts.
//!
//! What a record or a note says is the business of who writes it; adapters keep JSON. Nothing here is needed to answer
//! what is counted.

use async_trait::async_trait;
use schemas::source::Source;
use serde_json::Value;

use crate::Result;
use crate::aged::AgedCount;

/// A comparison that was recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Reconciliation {
    /// Its number among those of its source, from 1 on.
    pub number: u64,
    /// What no other one has.
    pub id: String,
    /// When it began, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// What was asked, found and done.
    pub record: Value,
}

/// A note, with how often it has been changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// From 1 on; each change adds one.
    pub version: u64,
    /// What it says.
    pub value: Value,
}

/// Reading records of comparisons, and notes beside them.
#[async_trait]
pub trait ReconciliationsRead: std::fmt::Debug + Send + Sync {
    /// Records before one of a number, newest first, at most `limit`.
    async fn reconciliations(
        &self,
        source: Source,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Reconciliation>>;

    /// A note.
    async fn note(&self, scope: &str, name: &str) -> Result<Option<Note>>;

    /// Notes of a scope in the order of their names, after one of them, at most `limit`.
    async fn notes(
        &self,
        scope: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Note)>>;
}

/// Writing records of comparisons, and notes beside them.
#[async_trait]
pub trait Reconciliations: ReconciliationsRead {
    /// Records a comparison under the next number of its source, durably when it answers. Called once more with the same
    /// id, after an answer was lost, it answers the same number.
    async fn add(&self, source: Source, id: &str, at_ms: i64, record: &Value) -> Result<u64>;

    /// Replaces what a record says.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if there is none of that number.
    async fn replace(&self, source: Source, number: u64, record: &Value) -> Result<()>;

    /// How many records there are of a source, and how many are older than a moment. They are looked at in the order
    /// of their numbers, up to the first that is younger.
    async fn aged(&self, source: Source, before_ms: i64) -> Result<AgedCount>;

    /// Deletes records that are older than a moment, the oldest first, at most `limit`; answers how many.
    async fn forget_aged(&self, source: Source, before_ms: i64, limit: usize) -> Result<u64>;

    /// Writes a note, or deletes it, if its version is still `seen` (nothing: if it is not there); else answers false.
    /// Of two that write the same over the same version both may be told that they did: who has to know puts something
    /// of its own into the value.
    async fn change_note(
        &self,
        scope: &str,
        name: &str,
        seen: Option<u64>,
        value: Option<&Value>,
    ) -> Result<bool>;
}
