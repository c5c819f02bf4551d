//! The id of a partition state.

use schemas::source::Source;

/// Names the partition state of one log partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId {
    /// The source.
    pub source: Source,
    /// The log partition.
    pub partition: u32,
}
