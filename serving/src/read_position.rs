//! Position in the log that an answer reflects.

use schemas::seam::Epoch;
use schemas::source::Source;

/// Position in the log that an answer reflects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReadPosition {
    pub(crate) source: Source,
    /// Newest complete epoch of the views that were read; the oldest one where they differ.
    pub(crate) epoch: Epoch,
    /// Log time of the last record before the position, in milliseconds since the Unix epoch.
    pub(crate) as_of_ms: Option<i64>,
    /// Next offset by partition.
    pub(crate) position: Vec<i64>,
    /// Number of backfills that the batch rows include.
    pub(crate) backfills: u64,
    /// False while the live state of a partition is missing or still replays after a loss.
    pub(crate) complete: bool,
}

impl ReadPosition {
    /// Position of an answer while the log does not exist yet.
    pub(crate) const fn empty(source: Source, epoch: Epoch) -> Self {
        Self {
            source,
            epoch,
            as_of_ms: None,
            position: Vec::new(),
            backfills: 0,
            complete: true,
        }
    }

    /// Combines two reads that ran one after the other into a position that both reflect.
    pub(crate) fn min_with(mut self, other: &Self) -> Self {
        let partitions = self.position.len().max(other.position.len());
        let offset_in = |position: &[i64], partition| position.get(partition).copied().unwrap_or(0);
        self.position = (0..partitions)
            .map(|partition| {
                offset_in(&self.position, partition).min(offset_in(&other.position, partition))
            })
            .collect();
        self.epoch = self.epoch.min(other.epoch);
        self.backfills = self.backfills.min(other.backfills);
        self.as_of_ms = self.as_of_ms.min(other.as_of_ms);
        self.complete &= other.complete;
        self
    }
}
