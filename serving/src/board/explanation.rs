//! Explanation of a board: the published version, the changes by live entries, and the live entries
//! of one member.

use jobs::board::{RankBreakdown, RankedEntry};
use schemas::seam::Epoch;

/// The parts of a board.
#[derive(Debug, Clone, Default)]
pub(crate) struct BoardExplanation {
    /// Newest run of the view.
    pub(crate) newest: Epoch,
    /// The published version of the key's boards; `None` before the first run.
    pub(crate) version: Option<ExplainedVersion>,
    /// Number of rows of the version, within the filters, that newer live entries removed.
    pub(crate) removed: u64,
    /// Number of rows, within the filters, that newer live entries added.
    pub(crate) added: u64,
    /// The live entries of the member, in the order of epochs.
    pub(crate) live_entries: Vec<ExplainedLiveEntry>,
    /// Derivation of the member's rank; only for boards without filters.
    pub(crate) rank_breakdown: Option<RankBreakdown>,
}

/// The published version in an explanation.
#[derive(Debug, Clone)]
pub(crate) struct ExplainedVersion {
    /// The run that last changed the key's boards.
    pub(crate) epoch: Epoch,
    /// When the run published the version.
    pub(crate) published_at_us: Option<i64>,
    /// The run of the stored version of an earlier day.
    pub(crate) earlier: Option<Epoch>,
    /// Identifies the version: a hash of the root.
    pub(crate) name: String,
    /// Number of rows on the version's board within the filters.
    pub(crate) total: u64,
    /// The member's index from 0 and its row.
    pub(crate) member: Option<(u64, RankedEntry)>,
}

/// A live entry of a member.
#[derive(Debug, Clone)]
pub(crate) struct ExplainedLiveEntry {
    pub(crate) partition: usize,
    pub(crate) epoch: Epoch,
    /// True if the entry is newer than the version and the newest run.
    pub(crate) is_newer: bool,
    /// True if the entry is the effective one.
    pub(crate) is_effective: bool,
    /// The row; `None` if the entry removes the member from the board.
    pub(crate) row: Option<RankedEntry>,
}
