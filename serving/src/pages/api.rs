//! Answers of the API that pages show: the API's own types, but for lists whose columns views decide.

use serde::Deserialize;
use serde_json::Value;

pub(crate) use crate::answer::{Breakdown, Point, Row, RowKey, Series, Total, Uniques};
pub(crate) use crate::board::answer::{Counts, EntryShape, GapShape, PreviousBoard, PreviousPlace};
pub(crate) use crate::http::achievements::AchievementShape;
pub(crate) use crate::http::applications::ApplicationShown;
pub(crate) use crate::http::applications::history::HistoryShown;
pub(crate) use crate::http::applications::list::Applications;
pub(crate) use crate::http::dead_letters::{
    LetterCounts, LetterKind, LettersPage, LettersReplayed,
};
pub(crate) use crate::http::overview::{Overview, PartitionShown, SourceShown};
pub(crate) use crate::http::reconciliations::{
    ApprovalShown, ReconciliationShown, Reconciliations,
};
pub(crate) use crate::http::runs::RunShown;
pub(crate) use schemas::provenance::{Origin, Provenance};

/// A page of a board of segments.
#[derive(Debug, Deserialize)]
pub(crate) struct BoardPage {
    pub(crate) total: u64,
    pub(crate) entries: Vec<EntryShape>,
    pub(crate) cursor: Option<String>,
    /// The day that changes are since.
    pub(crate) previous: Option<PreviousBoard>,
    pub(crate) provenance: Provenance,
}

/// One athlete on a board of segments.
#[derive(Debug, Deserialize)]
pub(crate) struct BoardPlace {
    pub(crate) total: u64,
    pub(crate) entry: EntryShape,
    pub(crate) neighbours: Vec<EntryShape>,
    pub(crate) percentile: Option<f64>,
    pub(crate) gap: Option<GapShape>,
    pub(crate) previous: Option<PreviousPlace>,
    pub(crate) change: Option<i64>,
    pub(crate) provenance: Provenance,
}

/// A page of achievements.
#[derive(Debug, Deserialize)]
pub(crate) struct Achievements {
    pub(crate) achievements: Vec<AchievementShape>,
    pub(crate) cursor: Option<String>,
    pub(crate) provenance: Provenance,
}

/// The record of a change, where numbers of owners are not told from capacities.
#[derive(Debug, Deserialize)]
pub(crate) struct AuditEntry {
    pub(crate) at: String,
    pub(crate) by: String,
    pub(crate) changed: String,
    pub(crate) before: Value,
    pub(crate) after: Value,
    pub(crate) reason: Option<String>,
}

/// What was changed of an application.
#[derive(Debug, Deserialize)]
pub(crate) struct Audit {
    pub(crate) entries: Vec<AuditEntry>,
}
