//! Types of the API responses that pages show: the API's own types, except for lists whose columns
//! depend on the view.

use serde::Deserialize;
use serde_json::Value;

pub(crate) use crate::answer::{Breakdown, BreakdownRow, Point, RowKey, Series, Total, Uniques};
pub(crate) use crate::board::answer::{Counts, EntryShape, GapShape, PreviousBoard, PreviousRank};
pub(crate) use crate::http::achievements::AchievementShape;
pub(crate) use crate::http::applications::ApplicationResponse;
pub(crate) use crate::http::applications::history::ApplicationHistory;
pub(crate) use crate::http::applications::list::ApplicationsPage;
pub(crate) use crate::http::dead_letters::{
    CountsResponse, DeadLetterKind, DeadLettersPage, ReplayResponse,
};
pub(crate) use crate::http::overview::{Overview, PartitionOverview, SourceOverview};
pub(crate) use crate::http::reconciliations::{
    ApprovalResponse, ReconciliationResponse, ReconciliationsPage,
};
pub(crate) use crate::http::runs::RunResponse;
pub(crate) use schemas::provenance::{Origin, Provenance};

/// Page of a segment board.
#[derive(Debug, Deserialize)]
pub(crate) struct BoardPage {
    pub(crate) total: u64,
    pub(crate) entries: Vec<EntryShape>,
    pub(crate) cursor: Option<String>,
    /// The earlier day that ranks are compared with.
    pub(crate) previous: Option<PreviousBoard>,
    pub(crate) provenance: Provenance,
}

/// One athlete on a segment board.
#[derive(Debug, Deserialize)]
pub(crate) struct SegmentRank {
    pub(crate) total: u64,
    pub(crate) entry: EntryShape,
    pub(crate) neighbours: Vec<EntryShape>,
    pub(crate) percentile: Option<f64>,
    pub(crate) gap: Option<GapShape>,
    pub(crate) previous: Option<PreviousRank>,
    pub(crate) change: Option<i64>,
    pub(crate) provenance: Provenance,
}

/// Page of achievements.
#[derive(Debug, Deserialize)]
pub(crate) struct Achievements {
    pub(crate) achievements: Vec<AchievementShape>,
    pub(crate) cursor: Option<String>,
    pub(crate) provenance: Provenance,
}

/// Entry of the audit log; its values are not typed, since owners and capacities have different
/// types.
#[derive(Debug, Deserialize)]
pub(crate) struct AuditEntry {
    pub(crate) at: String,
    pub(crate) by: String,
    pub(crate) changed: String,
    pub(crate) before: Value,
    pub(crate) after: Value,
    pub(crate) reason: Option<String>,
}

/// Audit log of an application.
#[derive(Debug, Deserialize)]
pub(crate) struct Audit {
    pub(crate) entries: Vec<AuditEntry>,
}
