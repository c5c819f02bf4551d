//! Rules of reads: which live deltas count, and when a sum is valid.
//!
//! The read order is part of the rules: the newest complete run first, then the partition states
//! with their deltas, then the rows.

use super::{Epoch, PartitionState, Runs};

/// Returns the epoch after which live deltas count: the later one of the row's epoch and the newest
/// complete run. A missing row has epoch 0.
#[must_use]
pub fn base_epoch(row_epoch: Epoch, newest: Epoch) -> Epoch {
    row_epoch.max(newest)
}

/// Returns whether the live deltas of `view` after epoch `base` are exactly the events between the
/// cut of run `base` and the position of the partition state.
///
/// Three conditions must hold: the epoch ended at that cut, later epochs are still retained, and
/// the view has been counted since the cut.
#[must_use]
pub fn is_readable(
    state: &PartitionState,
    partition: usize,
    base: Epoch,
    runs: &Runs,
    view: &str,
) -> bool {
    let (Some(bound), Some(cut)) = (state.bounds.get(&base), runs.sealed_cut(base, partition))
    else {
        return false;
    };
    bound.next_offset == cut.next_offset
        && state.oldest <= base + 1
        && state.counted_since(view) <= bound.next_offset
}
