//! The rules of boards, beside those of `schemas::seam`.

use schemas::seam::Epoch;
use schemas::seam::live_count;

use super::live_counts::StoredCount;
use super::versions::Root;
use crate::simulation::{Protocol, protocol};

/// The version and the base epoch of a live count or of a read.
type VersionAndBase<'a> = (Option<&'a Root>, Epoch);
type NextCount =
    fn(Option<&StoredCount>, Option<&StoredCount>, Option<StoredCount>) -> Option<StoredCount>;

/// The rules that the actors follow.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) protocol: Protocol,
    /// Returns whether a live entry of an epoch counts on a base.
    pub(super) entry_counts: fn(Epoch, Epoch) -> bool,
    /// A reader reads pruned entries, too, if they are not deleted yet.
    pub(super) reads_pruned_entries: bool,
    /// A reader takes a missing node as an empty one.
    pub(super) accepts_missing_nodes: bool,
    /// A worker reads notified members from the entity rows.
    pub(super) reads_entity_rows: bool,
    /// A run takes its snapshot after the cut.
    pub(super) snapshots_after_cut: bool,
    /// A run plans the keys that changed since a result that was only started.
    pub(super) plans_since_started: bool,
    /// A run also plans the keys of partly published results.
    pub(super) plans_partly_published: bool,
    /// A run writes a head after its nodes.
    pub(super) writes_head_last: bool,
    /// A run deletes the nodes of replaced heads after the grace period.
    pub(super) waits_grace_period: bool,
    /// The stores refuse an overtaken try.
    pub(super) refuses_overtaken: bool,
    /// Workers maintain live counts, and readers check them.
    pub(super) keeps_live_counts: bool,
    /// Returns the live count to store when entries of its key change.
    pub(super) next_count: NextCount,
    /// Returns whether a live count applies to a read.
    pub(super) matches_version: fn(VersionAndBase<'_>, VersionAndBase<'_>) -> bool,
    /// The names of live counts are consecutive numbers.
    pub(super) numbers_count_names: bool,
    /// A worker computes a live count without a placeholder.
    pub(super) skips_placeholder: bool,
}

pub(super) const REAL: Rules = Rules {
    protocol: protocol::REAL,
    entry_counts: |epoch, base| epoch > base,
    reads_pruned_entries: false,
    accepts_missing_nodes: false,
    reads_entity_rows: true,
    snapshots_after_cut: true,
    plans_since_started: false,
    plans_partly_published: true,
    writes_head_last: true,
    waits_grace_period: true,
    refuses_overtaken: true,
    keeps_live_counts: false,
    next_count: live_count::next_count,
    matches_version: |count, read| live_count::matches_version(count, read),
    numbers_count_names: false,
    skips_placeholder: false,
};

/// The real rules, with live counts.
pub(super) const WITH_LIVE_COUNTS: Rules = Rules {
    keeps_live_counts: true,
    ..REAL
};
