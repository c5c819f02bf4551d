//! The rules that a history is driven by: the real ones, and the same with one of them broken.

use super::editions::Root;
use super::sums::Kept;
use crate::seam::{self, Cut, Epoch, Fence, Moved, Runs, Slot};

/// An edition and a base.
type On<'a> = (Option<&'a Root>, Epoch);
type Keeps = fn(Option<&Kept>, Option<&Kept>, Option<Kept>) -> Option<Kept>;

type Apply = fn(&mut Slot, &Fence, Cut, &[&str]) -> Result<(), Moved>;

/// What the actors of a history go by.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) apply: Apply,
    pub(super) whole: fn(&Slot, usize, Epoch, &Runs, &str) -> bool,
    /// Whether a live state of an epoch counts on a base.
    pub(super) counts: fn(Epoch, Epoch) -> bool,
    /// Live states are read that were let go and are not deleted yet.
    pub(super) reads_dropped: bool,
    /// The newest complete run is read before everything else, not after.
    pub(super) newest_first: bool,
    /// A node that is missing is taken for one without rows.
    pub(super) missing_is_empty: bool,
    /// A worker reads groups again that are notified.
    pub(super) rereads: bool,
    /// A snapshot is taken after the cut.
    pub(super) snapshot_after_cut: bool,
    /// Keys are planned from the cuts of a result that was only begun.
    pub(super) since_begun: bool,
    /// Keys of results that were begun are planned too.
    pub(super) knows_dirty: bool,
    /// A head is written when its nodes are there.
    pub(super) head_last: bool,
    /// Nodes of a head that was replaced stay until the run is complete, and then some time.
    pub(super) grace: bool,
    /// A try is refused that another has taken the place of.
    pub(super) refuses: bool,
    /// Workers keep sums of live states, and readers compare them.
    pub(super) keeps_sums: bool,
    /// What is kept of a sum where states of its key change.
    pub(super) kept: Keeps,
    /// Whether a sum counts on an edition and a base.
    pub(super) joins: fn(On<'_>, On<'_>) -> bool,
    /// Names of sums are counted up.
    pub(super) sums_are_numbered: bool,
    /// A sum is made of states that were read before it was begun.
    pub(super) sums_at_once: bool,
}

pub(super) const REAL: Rules = Rules {
    apply: Slot::apply,
    whole: seam::whole,
    counts: |epoch, base| epoch > base,
    reads_dropped: false,
    newest_first: true,
    missing_is_empty: false,
    rereads: true,
    snapshot_after_cut: true,
    since_begun: false,
    knows_dirty: true,
    head_last: true,
    grace: true,
    refuses: true,
    keeps_sums: false,
    kept: seam::sum::kept,
    joins: |against, read| seam::sum::joins(against, read),
    sums_are_numbered: false,
    sums_at_once: false,
};

/// The same, with sums of live states.
pub(super) const SUMMED: Rules = Rules {
    keeps_sums: true,
    ..REAL
};

/// Sums count on any edition of the base.
pub(super) const SUM_ON_ANY_EDITION: Rules = Rules {
    joins: |against, read| against.1 == read.1,
    ..SUMMED
};

/// Sums count on any base.
pub(super) const SUM_ON_ANY_BASE: Rules = Rules {
    joins: |against, read| against.0 == read.0,
    ..SUMMED
};

/// Who says nothing of a sum leaves it as it is.
pub(super) const SUM_LEFT_ALONE: Rules = Rules {
    kept: |there, believed, next| match (believed, &next) {
        (None, None) => there.cloned(),
        _ => seam::sum::kept(there, believed, next),
    },
    ..SUMMED
};

/// Two sums may have one name.
pub(super) const SUMS_NUMBERED: Rules = Rules {
    sums_are_numbered: true,
    kept: |there, believed, next| {
        let name = |kept: Option<&Kept>| kept.map(|kept| (kept.name, kept.made.is_some()));
        match name(there) == name(believed) {
            true => next,
            false => None,
        }
    },
    ..SUMMED
};

/// Sums are not begun first.
pub(super) const SUMS_AT_ONCE: Rules = Rules {
    sums_at_once: true,
    ..SUMMED
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

/// As before, but nothing is left out, notifications are only taken again. Redundant: states are
/// absolute, and were read after all notifications below the position that the slot moves to.
pub(super) const GT_OVERLAP: Rules = Rules {
    apply: |slot, believed, next, views| {
        if believed.next_offset > slot.position.next_offset {
            let at = Some(slot.fence());
            return Err(Moved { at });
        }
        (GT.apply)(slot, believed, next, views)
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

/// Readers don't look whether the epochs after the base are still kept. Redundant while there is but
/// one view: when they go, every head holds them, or its key was not notified in them; and heads are
/// read after slots.
pub(super) const NO_OLDEST: Rules = Rules {
    whole: |slot, partition, base, runs, view| {
        let mut slot = slot.clone();
        slot.oldest = 0;
        seam::whole(&slot, partition, base, runs, view)
    },
    ..REAL
};

/// The newest complete run is read last.
pub(super) const ORDER: Rules = Rules {
    newest_first: false,
    ..REAL
};

/// Live states count that the edition holds already. Redundant as long as epochs are let go from the
/// oldest on: the newest state of a member was read after the last notification below the position.
pub(super) const OLD_STATES: Rules = Rules {
    counts: |_, _| true,
    ..REAL
};

/// And those that were let go, as far as they are still there.
pub(super) const DROPPED_STATES: Rules = Rules {
    reads_dropped: true,
    ..OLD_STATES
};

/// Workers put the states that notifications were about.
pub(super) const BELIEVING: Rules = Rules {
    rereads: false,
    ..REAL
};

/// The snapshot is taken before the cut.
pub(super) const EARLY: Rules = Rules {
    snapshot_after_cut: false,
    ..REAL
};

/// Keys are planned from the cuts of a result that was only begun, and it is forgotten itself.
pub(super) const SINCE_BEGUN: Rules = Rules {
    since_begun: true,
    knows_dirty: false,
    ..REAL
};

/// The same, but the keys of the begun result are planned again. Redundant: these are the keys that
/// were notified before its cuts.
pub(super) const SINCE_BEGUN_DIRTY: Rules = Rules {
    since_begun: true,
    ..REAL
};

/// What was begun is forgotten. Redundant: its keys were notified since the published result, or it
/// has all keys, and then what it wrote of others is newer than its cuts and not older.
pub(super) const NO_DIRTY: Rules = Rules {
    knows_dirty: false,
    ..REAL
};

/// A head is written before its nodes.
pub(super) const HEAD_FIRST: Rules = Rules {
    head_last: false,
    ..REAL
};

/// And readers take missing nodes for empty ones.
pub(super) const HEAD_FIRST_EMPTY: Rules = Rules {
    head_last: false,
    missing_is_empty: true,
    ..REAL
};

/// Nodes go with their head. Redundant: a reader that misses one begins again.
pub(super) const NO_GRACE: Rules = Rules {
    grace: false,
    ..REAL
};

/// And readers take missing nodes for empty ones.
pub(super) const NO_GRACE_EMPTY: Rules = Rules {
    grace: false,
    missing_is_empty: true,
    ..REAL
};

/// Readers take missing nodes for empty ones.
pub(super) const EMPTY: Rules = Rules {
    missing_is_empty: true,
    ..REAL
};

/// A try goes on that another has taken the place of.
pub(super) const OUTDATED: Rules = Rules {
    refuses: false,
    ..REAL
};
