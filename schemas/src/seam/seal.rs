//! When the cuts of a run may be sealed.

use super::{Cut, Epoch, Runs, Slot, broken};

/// Whether a recorded proposal of run `epoch` may be sealed as far as this slot goes: its epoch
/// ended at the cut, and it lacks no boundary of the runs before. `runs` are the records from which
/// the run was begun, so that all runs before `epoch` are among them.
///
/// A slot that fell back behind an earlier run's cut can still end an epoch; sealed, that cut would
/// lie before the earlier one, and a run that computes only what came since would be wrong.
#[must_use]
pub fn sealable(
    slot: Option<&Slot>,
    partition: usize,
    epoch: Epoch,
    cut: Cut,
    runs: &Runs,
) -> bool {
    slot.is_some_and(|slot| {
        let bound = slot.bounds.get(&epoch);
        bound.is_some_and(|bound| bound.next_offset == cut.next_offset)
            && !broken(slot, partition, runs)
    })
}
