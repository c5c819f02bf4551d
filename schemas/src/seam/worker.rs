//! The next step of a worker, decided from the partition state and the run records.

use super::{Cut, Offset, PartitionState, RunState, Runs};

/// The next step of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerStep {
    /// Start a new generation at the newest complete run.
    Rebuild,
    /// Close the epoch: the position is at its recorded cut.
    CloseEpoch,
    /// Fold micro-batches, up to a recorded cut if there is one.
    Fold {
        /// The cut that a micro-batch must not cross.
        until: Option<Offset>,
    },
    /// Read state and run records again: the position has passed a proposed cut. Either the
    /// proposal will be replaced or the partition state will be rebuilt.
    Refresh,
}

/// Returns whether the partition state lacks the boundary of a recorded run that it should have. It
/// must have been read before the runs.
#[must_use]
pub fn needs_rebuild(state: &PartitionState, partition: usize, runs: &Runs) -> bool {
    let newest = runs.newest_complete();
    // An epoch is pruned only after its run is complete, so run records were lost.
    if state.oldest > newest + 1 {
        return true;
    }
    // The current epoch has a sealed cut before the position, and the position cannot move back.
    let is_passed = |cut: Cut| cut.next_offset < state.position.next_offset;
    if runs
        .sealed_cut(state.epoch, partition)
        .is_some_and(is_passed)
    {
        return true;
    }
    let run_zero = (newest == 0).then_some(0);
    let recorded = runs
        .iter()
        .filter(|run| run.state != RunState::Proposed && run.epoch >= newest)
        .map(|run| run.epoch);
    run_zero
        .into_iter()
        .chain(recorded)
        .filter(|epoch| epoch + 1 >= state.oldest)
        .any(|epoch| {
            let Some(cut) = runs.cut(epoch, partition) else {
                return false;
            };
            match state.bounds.get(&epoch) {
                Some(bound) => bound.next_offset != cut.next_offset,
                None => state.position.next_offset > cut.next_offset || state.epoch > epoch,
            }
        })
}

/// Returns the next step of a worker. The partition state must have been read before the runs.
#[must_use]
pub fn next_step(state: Option<&PartitionState>, partition: usize, runs: &Runs) -> WorkerStep {
    let Some(state) = state else {
        return WorkerStep::Rebuild;
    };
    if needs_rebuild(state, partition, runs) {
        return WorkerStep::Rebuild;
    }
    let next_offset = state.position.next_offset;
    match runs.cut(state.epoch, partition) {
        None => WorkerStep::Fold { until: None },
        Some(cut) if cut.next_offset == next_offset => WorkerStep::CloseEpoch,
        Some(cut) if cut.next_offset < next_offset => WorkerStep::Refresh,
        Some(cut) => WorkerStep::Fold {
            until: Some(cut.next_offset),
        },
    }
}
