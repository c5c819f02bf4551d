//! What a worker does next, from the slot and then the run records that it has read.

use super::{Cut, Offset, RunState, Runs, Slot};

/// What a worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Start a new life of the slot at the newest complete run.
    Heal,
    /// End the epoch where the slot stands: its recorded cut is here.
    Impose,
    /// Fold micro-batches, up to a recorded cut if there is one.
    Fold {
        /// The cut that must not be folded across.
        until: Option<Offset>,
    },
    /// A proposed cut lies behind the slot: it will be replaced, or the slot healed. Look again.
    LookAgain,
}

/// Whether the slot lacks the boundary of a recorded run that it should have. The slot must have
/// been read before the runs.
#[must_use]
pub fn broken(slot: &Slot, partition: usize, runs: &Runs) -> bool {
    let newest = runs.newest();
    // An epoch is let go only once its run is complete, so here the run records were lost.
    if slot.oldest > newest + 1 {
        return true;
    }
    // The epoch that is being filled ended behind the slot, and that can't be put back.
    let passed = |cut: Cut| cut.next_offset < slot.position.next_offset;
    if runs.sealed_cut(slot.epoch, partition).is_some_and(passed) {
        return true;
    }
    let complete_zero = (newest == 0).then_some(0);
    let recorded = runs
        .iter()
        .filter(|run| run.state != RunState::Proposed && run.epoch >= newest)
        .map(|run| run.epoch);
    complete_zero
        .into_iter()
        .chain(recorded)
        .filter(|epoch| epoch + 1 >= slot.oldest)
        .any(|epoch| {
            let Some(cut) = runs.cut(epoch, partition) else {
                return false;
            };
            match slot.bounds.get(&epoch) {
                Some(bound) => bound.next_offset != cut.next_offset,
                None => slot.position.next_offset > cut.next_offset || slot.epoch > epoch,
            }
        })
}

/// What a worker does next. The slot must have been read before the runs.
#[must_use]
pub fn next_step(slot: Option<&Slot>, partition: usize, runs: &Runs) -> Step {
    let Some(slot) = slot else {
        return Step::Heal;
    };
    if broken(slot, partition, runs) {
        return Step::Heal;
    }
    let stands = slot.position.next_offset;
    match runs.cut(slot.epoch, partition) {
        None => Step::Fold { until: None },
        Some(cut) if cut.next_offset == stands => Step::Impose,
        Some(cut) if cut.next_offset < stands => Step::LookAgain,
        Some(cut) => Step::Fold {
            until: Some(cut.next_offset),
        },
    }
}
