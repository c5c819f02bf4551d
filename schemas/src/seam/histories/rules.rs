//! The rules that a history is driven by: the real ones, and the same with one of them broken.

use crate::seam::{self, Cut, Epoch, Fence, Moved, NewLife, Runs, Slot, Step};

type Apply = fn(&mut Slot, &Fence, Cut, &[&str]) -> Result<(), Moved>;
type Heal = fn(Option<&Slot>, Option<Fence>, &NewLife) -> Result<Slot, Moved>;

/// What the actors of a history go by.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) apply: Apply,
    pub(super) heal: Heal,
    pub(super) next_step: fn(Option<&Slot>, usize, &Runs) -> Step,
    pub(super) sealable: fn(Option<&Slot>, usize, Epoch, Cut, &Runs) -> bool,
    pub(super) whole: fn(&Slot, usize, Epoch, &Runs, &str) -> bool,
    /// How many slots a reader asks for, from what the log has and the run records.
    pub(super) partitions: fn(usize, &Runs) -> usize,
    /// The newest complete run is read before everything else, not after.
    pub(super) newest_first: bool,
    /// A run rewrites what any result since the published one may have written.
    pub(super) rewrites: bool,
    /// A view with a complete run and without a table is not read.
    pub(super) needs_table: bool,
}

pub(super) const REAL: Rules = Rules {
    apply: Slot::apply,
    heal: Slot::heal,
    next_step: seam::next_step,
    sealable: seam::sealable,
    whole: seam::whole,
    partitions: |log, runs| log.max(runs.partitions()),
    newest_first: true,
    rewrites: true,
    needs_table: true,
};

/// A fence that only must not lie behind.
pub(super) const GT: Rules = Rules {
    apply: |slot, believed, next, views| {
        let stands = slot.fence();
        let ahead = next.next_offset > stands.next_offset;
        if (stands.generation, stands.epoch) == (believed.generation, believed.epoch) && ahead {
            slot.apply(&stands, next, views)
        } else {
            Err(Moved { at: Some(stands) })
        }
    },
    ..REAL
};

/// Readers don't compare the boundary with the run's cut.
pub(super) const NO_BOUND: Rules = Rules {
    whole: |slot, partition, base, runs, view| {
        let mut slot = slot.clone();
        if let Some(cut) = runs.cut(base, partition) {
            slot.bounds.insert(base, cut);
        }
        seam::whole(&slot, partition, base, runs, view)
    },
    ..REAL
};

/// Readers don't look whether the epochs after the base are still kept.
pub(super) const NO_OLDEST: Rules = Rules {
    whole: |slot, partition, base, runs, view| {
        let mut slot = slot.clone();
        slot.oldest = 0;
        seam::whole(&slot, partition, base, runs, view)
    },
    ..REAL
};

/// Readers don't look since when the view has been counted.
pub(super) const NO_SINCE: Rules = Rules {
    whole: |slot, partition, base, runs, view| {
        let mut slot = slot.clone();
        slot.since.insert(view.to_owned(), 0);
        seam::whole(&slot, partition, base, runs, view)
    },
    ..REAL
};

/// Readers trust a cut that may still be replaced.
pub(super) const PROPOSED: Rules = Rules {
    whole: |slot, partition, base, runs, view| {
        let sealed: Runs = runs.iter().cloned().map(super::world::sealed).collect();
        seam::whole(slot, partition, base, &sealed, view)
    },
    ..REAL
};

/// The newest complete run is read last.
pub(super) const ORDER: Rules = Rules {
    newest_first: false,
    ..REAL
};

/// Workers fold across recorded cuts.
pub(super) const NO_SPLIT: Rules = Rules {
    next_step: |slot, partition, runs| match seam::next_step(slot, partition, runs) {
        Step::Heal => Step::Heal,
        _ => Step::Fold { until: None },
    },
    ..REAL
};

/// A slot that has passed the cut of the epoch it fills is healed only if no newer run is complete.
pub(super) const PASSED: Rules = Rules {
    next_step: |slot, partition, runs| {
        let newest = runs.newest();
        let recent: Runs = runs
            .iter()
            .filter(|run| run.epoch >= newest)
            .cloned()
            .collect();
        match (seam::next_step(slot, partition, runs), slot) {
            (Step::Heal, Some(slot)) if !seam::broken(slot, partition, &recent) => Step::LookAgain,
            (step, _) => step,
        }
    },
    ..REAL
};

/// A run is sealed without a second look at the slots.
pub(super) const NO_VERIFY: Rules = Rules {
    sealable: |_, _, _, _, _| true,
    ..REAL
};

/// The second look sees only whether the boundary stands, not whether the slot is right.
pub(super) const BOUND_ONLY: Rules = Rules {
    sealable: |slot, _, epoch, cut, _| {
        let bound = slot.and_then(|slot| slot.bounds.get(&epoch));
        bound.is_some_and(|bound| bound.next_offset == cut.next_offset)
    },
    ..REAL
};

/// The number of a slot's life is used again after the slot was lost.
pub(super) const NO_HINT: Rules = Rules {
    heal: |slot, seen, life| Slot::heal(slot, seen, &NewLife { hint: 0, ..*life }),
    ..REAL
};

/// A slot does not remember how much of the log there was when it began anew.
pub(super) const NO_REPLAY: Rules = Rules {
    heal: |slot, seen, life| {
        let log_end = 0;
        Slot::heal(slot, seen, &NewLife { log_end, ..*life })
    },
    ..REAL
};

/// Readers ask for the partitions that the log had when they looked, though runs hold more.
pub(super) const FEW_SLOTS: Rules = Rules {
    partitions: |log, _| log,
    ..REAL
};

/// A run leaves rows alone that a run which was given up may have written.
pub(super) const NO_REWRITE: Rules = Rules {
    rewrites: false,
    ..REAL
};

/// A table that was deleted is read as one without rows.
pub(super) const NO_TABLE: Rules = Rules {
    needs_table: false,
    ..REAL
};
