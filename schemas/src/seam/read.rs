//! What a reader adds up, and when it may.
//!
//! The order of reading is part of the rule: the newest complete run first, then the slots with
//! their parts, then the rows.

use super::{Epoch, Runs, Slot};

/// The epoch after which live parts count: that of the row or of the newest complete run,
/// whichever is later. A missing row has epoch 0.
#[must_use]
pub fn base(row_epoch: Epoch, newest: Epoch) -> Epoch {
    row_epoch.max(newest)
}

/// Whether the live parts of `view` after epoch `base` are exactly the events between the cut of
/// run `base` and the slot's position: the slot's epoch ended at that cut, its later epochs are
/// still kept, and the view has been counted since.
#[must_use]
pub fn whole(slot: &Slot, partition: usize, base: Epoch, runs: &Runs, view: &str) -> bool {
    let (Some(bound), Some(cut)) = (slot.bounds.get(&base), runs.sealed_cut(base, partition))
    else {
        return false;
    };
    bound.next_offset == cut.next_offset
        && slot.oldest <= base + 1
        && slot.counted_since(view) <= bound.next_offset
}
