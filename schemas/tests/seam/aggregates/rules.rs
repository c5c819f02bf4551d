//! The rules of aggregates, beside those of `schemas::seam`.

use schemas::seam::Runs;

use crate::simulation::{Protocol, protocol};

/// The rules that the actors follow.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) protocol: Protocol,
    /// Returns the number of partitions to read, from that of the log and the run records.
    pub(super) partitions_to_read: fn(usize, &Runs) -> usize,
    /// A run rewrites the rows that any result since the published one may have written.
    pub(super) rewrites_later_results: bool,
    /// A reader refuses a view that has a complete run but no table.
    pub(super) requires_table: bool,
}

pub(super) const REAL: Rules = Rules {
    protocol: protocol::REAL,
    partitions_to_read: |log_partitions, runs| log_partitions.max(runs.partition_count()),
    rewrites_later_results: true,
    requires_table: true,
};
