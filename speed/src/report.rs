//! The totals that the workers of a source count together.

use std::sync::Mutex;

use serde::Serialize;

/// Totals of the speed layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SpeedReport {
    /// Events that were counted, or groups whose entries were updated.
    pub events: u64,
    /// Events that were already in the duplicate window, or notifications that repeated another one
    /// of their micro-batch.
    pub duplicates: u64,
    /// Records that were rejected.
    pub dead_letters: u64,
    /// Micro-batches that were applied.
    pub micro_batches: u64,
    /// Partition states that were rebuilt.
    pub heals: u64,
    /// Compare-and-set failures of workers.
    pub refusals: u64,
}

/// The totals of all workers.
pub(crate) type Counts = Mutex<SpeedReport>;
