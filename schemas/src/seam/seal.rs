//! The condition under which the cuts of a run may be sealed.

use super::{Cut, Epoch, PartitionState, Runs, needs_rebuild};

/// Returns whether this partition state permits sealing a recorded proposal of run `epoch`: its
/// epoch ended at the cut, and it has the boundaries of all earlier runs.
///
/// `runs` are the records from which the run started, so they include all runs before `epoch`. A
/// partition state that reverted to a position before an earlier run's cut can still end an epoch.
/// If that cut were sealed, it would be before the earlier cut, and an incremental run would be
/// wrong.
#[must_use]
pub fn can_seal(
    state: Option<&PartitionState>,
    partition: usize,
    epoch: Epoch,
    cut: Cut,
    runs: &Runs,
) -> bool {
    state.is_some_and(|state| {
        let bound = state.bounds.get(&epoch);
        bound.is_some_and(|bound| bound.next_offset == cut.next_offset)
            && !needs_rebuild(state, partition, runs)
    })
}
