//! The causes of differences.

use schemas::named;
use serde::Serialize;

named! {
    /// Why a served value is not what is expected.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Cause {
        /// The batch row holds another count than the events give: somebody else wrote it.
        ChangedRow = "changed_row",
        /// There is no batch row where events give one.
        MissingRow = "missing_row",
        /// There is a batch row that no event gives.
        ExtraRow = "extra_row",
        /// There is a batch row in the partition of another time than its own: somebody else wrote it.
        MisplacedRow = "misplaced_row",
        /// There is a batch row whose key can't be read: somebody else wrote it.
        UnreadableRow = "unreadable_row",
        /// Live state held less than there are events.
        LostLive = "lost_live",
        /// An event came again after the window of the speed layer, and is counted again until the next run.
        Duplicate = "duplicate",
        /// An event came again in another partition, and is counted again until the next run.
        OtherPartition = "other_partition",
        /// Live state held something else than the events give, and nothing that is known explains it.
        Unexplained = "unexplained",
        /// What is served is what all events give, and what is expected is something else.
        Claimed = "claimed",
        /// Live state holds other rows of a board than the canonical store gives: somebody else wrote it.
        ChangedLive = "changed_live",
        /// Rows were changed and nobody was told, so neither layer has them.
        NotTold = "not_told",
        /// Batch rows of a key's boards are missing or damaged: it can't be read.
        Damaged = "damaged",
    }
}

impl Cause {
    /// Whether it is that of a row that lies where none of the view can lie, which is known by its place.
    pub(crate) const fn is_of_stray(self) -> bool {
        matches!(self, Self::MisplacedRow | Self::UnreadableRow)
    }
}

impl From<crate::drift::Cause> for Cause {
    fn from(cause: crate::drift::Cause) -> Self {
        match cause {
            crate::drift::Cause::Duplicate => Self::Duplicate,
            crate::drift::Cause::OtherPartition => Self::OtherPartition,
            crate::drift::Cause::LostLive => Self::LostLive,
            crate::drift::Cause::Unexplained => Self::Unexplained,
        }
    }
}
