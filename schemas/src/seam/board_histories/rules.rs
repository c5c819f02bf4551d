//! The rules of a history: the real ones, and mutants with one rule broken.

use super::live_counts::StoredCount;
use super::versions::Root;
use crate::seam::{self, Checkpoint, CheckpointMismatch, Cut, Epoch, PartitionState, Runs};

/// A version and a base epoch.
type VersionAndBase<'a> = (Option<&'a Root>, Epoch);
type NextCount =
    fn(Option<&StoredCount>, Option<&StoredCount>, Option<StoredCount>) -> Option<StoredCount>;

type Apply = fn(&mut PartitionState, &Checkpoint, Cut, &[&str]) -> Result<(), CheckpointMismatch>;

/// The rules of the actors.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) apply: Apply,
    pub(super) is_readable: fn(&PartitionState, usize, Epoch, &Runs, &str) -> bool,
    /// Returns whether a live state of an epoch counts on a base.
    pub(super) counts: fn(Epoch, Epoch) -> bool,
    /// Pruned entries that are not deleted yet are read.
    pub(super) reads_pruned: bool,
    /// The newest complete run is read first, not last.
    pub(super) newest_first: bool,
    /// A missing node counts as an empty one.
    pub(super) missing_is_empty: bool,
    /// A worker reads notified groups from the entity store.
    pub(super) reads_groups: bool,
    /// A snapshot is taken after the cut.
    pub(super) snapshot_after_cut: bool,
    /// Keys are planned from the cuts of a result that was only started.
    pub(super) since_started: bool,
    /// Keys of partly published results are planned, too.
    pub(super) plans_partly_published: bool,
    /// A head is written after its nodes.
    pub(super) head_last: bool,
    /// Nodes of a replaced head stay until the end of the grace period.
    pub(super) grace: bool,
    /// An overtaken try is refused.
    pub(super) refuses_overtaken: bool,
    /// Workers maintain live counts, and readers compare them.
    pub(super) keeps_live_counts: bool,
    /// The live count to store when entries of its key change.
    pub(super) next_count: NextCount,
    /// Returns whether a sum counts on an edition and a base.
    pub(super) matches_version: fn(VersionAndBase<'_>, VersionAndBase<'_>) -> bool,
    /// Names of live counts are consecutive numbers.
    pub(super) names_are_numbered: bool,
    /// A live count is computed without a placeholder.
    pub(super) skips_placeholder: bool,
}

pub(super) const REAL: Rules = Rules {
    apply: PartitionState::apply,
    is_readable: seam::is_readable,
    counts: |epoch, base| epoch > base,
    reads_pruned: false,
    newest_first: true,
    missing_is_empty: false,
    reads_groups: true,
    snapshot_after_cut: true,
    since_started: false,
    plans_partly_published: true,
    head_last: true,
    grace: true,
    refuses_overtaken: true,
    keeps_live_counts: false,
    next_count: seam::live_count::next_count,
    matches_version: |against, read| seam::live_count::matches_version(against, read),
    names_are_numbered: false,
    skips_placeholder: false,
};

/// The real rules, with live counts.
pub(super) const WITH_LIVE_COUNTS: Rules = Rules {
    keeps_live_counts: true,
    ..REAL
};

/// Live counts apply to any version of the base.
pub(super) const COUNT_ON_ANY_VERSION: Rules = Rules {
    matches_version: |against, read| against.1 == read.1,
    ..WITH_LIVE_COUNTS
};

/// Live counts apply to any base.
pub(super) const COUNT_ON_ANY_BASE: Rules = Rules {
    matches_version: |against, read| against.0 == read.0,
    ..WITH_LIVE_COUNTS
};

/// A write that does not name the live count leaves it unchanged.
pub(super) const COUNT_NOT_INVALIDATED: Rules = Rules {
    next_count: |stored, expected, next| match (expected, &next) {
        (None, None) => stored.cloned(),
        _ => seam::live_count::next_count(stored, expected, next),
    },
    ..WITH_LIVE_COUNTS
};

/// Two live counts may have the same name.
pub(super) const COUNTS_NUMBERED: Rules = Rules {
    names_are_numbered: true,
    next_count: |stored, expected, next| {
        let name =
            |count: Option<&StoredCount>| count.map(|count| (count.name, count.value.is_some()));
        match name(stored) == name(expected) {
            true => next,
            false => None,
        }
    },
    ..WITH_LIVE_COUNTS
};

/// Live counts do not begin as a placeholder.
pub(super) const NO_PLACEHOLDER: Rules = Rules {
    skips_placeholder: true,
    ..WITH_LIVE_COUNTS
};

/// The checkpoint must only not be behind, instead of equal.
pub(super) const GT: Rules = Rules {
    apply: |partition_state, expected, next, views| {
        let actual = partition_state.checkpoint();
        let ahead = next.next_offset > actual.next_offset;
        if (actual.generation, actual.epoch) == (expected.generation, expected.epoch) && ahead {
            partition_state.apply(&actual, next, views)
        } else {
            Err(CheckpointMismatch {
                actual: Some(actual),
            })
        }
    },
    ..REAL
};

/// As [`GT`], but notifications are only repeated, never skipped. Redundant: entries are absolute,
/// and were read after all notifications below the new position.
pub(super) const GT_OVERLAP: Rules = Rules {
    apply: |partition_state, expected, next, views| {
        if expected.next_offset > partition_state.position.next_offset {
            let at = Some(partition_state.checkpoint());
            return Err(CheckpointMismatch { actual: at });
        }
        (GT.apply)(partition_state, expected, next, views)
    },
    ..REAL
};

/// Readers do not compare the boundary with the run's cut.
pub(super) const NO_BOUND: Rules = Rules {
    is_readable: |partition_state, partition, base, runs, view| {
        let mut partition_state = partition_state.clone();
        if let Some(cut) = runs.cut(base, partition) {
            partition_state.bounds.insert(base, cut);
        }
        seam::is_readable(&partition_state, partition, base, runs, view)
    },
    ..REAL
};

/// Readers do not check whether the epochs after the base are retained. Redundant while there is
/// only one view: when epochs are pruned, every head covers them or its key was not notified in
/// them, and heads are read after partition states.
pub(super) const NO_OLDEST: Rules = Rules {
    is_readable: |partition_state, partition, base, runs, view| {
        let mut partition_state = partition_state.clone();
        partition_state.oldest = 0;
        seam::is_readable(&partition_state, partition, base, runs, view)
    },
    ..REAL
};

/// The newest complete run is read last.
pub(super) const ORDER: Rules = Rules {
    newest_first: false,
    ..REAL
};

/// Entries count although the version already covers them. Redundant while epochs are pruned from
/// the oldest on: the newest entry of a member was read after the last notification below the
/// position.
pub(super) const OLD_STATES: Rules = Rules {
    counts: |_, _| true,
    ..REAL
};

/// As [`OLD_STATES`], and pruned entries that are not deleted yet also count.
pub(super) const PRUNED_STATES: Rules = Rules {
    reads_pruned: true,
    ..OLD_STATES
};

/// Workers store the states that notifications announce.
pub(super) const TRUSTED_NOTIFICATIONS: Rules = Rules {
    reads_groups: false,
    ..REAL
};

/// The snapshot is taken before the cut.
pub(super) const EARLY: Rules = Rules {
    snapshot_after_cut: false,
    ..REAL
};

/// Keys are planned from the cuts of a started result, whose own keys are not planned.
pub(super) const SINCE_STARTED: Rules = Rules {
    since_started: true,
    plans_partly_published: false,
    ..REAL
};

/// Keys are planned from the cuts of a started result, together with its own keys. Redundant: its
/// keys were notified before its cuts.
pub(super) const SINCE_STARTED_PLANNED: Rules = Rules {
    since_started: true,
    ..REAL
};

/// Keys of partly published results are not planned. Redundant: they were notified since the
/// published result, or the partly published result has all keys, and its rows are newer than its
/// cuts.
pub(super) const NO_PARTLY_PUBLISHED: Rules = Rules {
    plans_partly_published: false,
    ..REAL
};

/// A head is written before its nodes.
pub(super) const HEAD_FIRST: Rules = Rules {
    head_last: false,
    ..REAL
};

/// As [`HEAD_FIRST`], and missing nodes count as empty ones.
pub(super) const HEAD_FIRST_EMPTY: Rules = Rules {
    head_last: false,
    missing_is_empty: true,
    ..REAL
};

/// Nodes are deleted with their head. Redundant: a reader that misses a node starts again.
pub(super) const NO_GRACE: Rules = Rules {
    grace: false,
    ..REAL
};

/// As [`NO_GRACE`], and missing nodes count as empty ones.
pub(super) const NO_GRACE_EMPTY: Rules = Rules {
    grace: false,
    missing_is_empty: true,
    ..REAL
};

/// Missing nodes count as empty ones.
pub(super) const EMPTY: Rules = Rules {
    missing_is_empty: true,
    ..REAL
};

/// An overtaken try continues.
pub(super) const OUTDATED: Rules = Rules {
    refuses_overtaken: false,
    ..REAL
};
