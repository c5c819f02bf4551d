//! Mutants of the rules of boards.

use schemas::seam::live_count;

use super::live_counts::StoredCount;
use super::rules::{REAL, Rules, WITH_LIVE_COUNTS};
use super::{HISTORIES, run_history};
use crate::simulation::{self, Protocol, mutants, protocol};

const fn with_protocol(protocol: Protocol) -> Rules {
    Rules { protocol, ..REAL }
}

mutants! {
    MUTANTS, run_history, REAL;

    runs_read_last =
        with_protocol(protocol::RUNS_READ_LAST), Exact in 3_300..3_400;

    // This needs a worker that crosses a cut which it has not read, in a state that lost the end of
    // the epoch, and no repair before the run is published.
    bound_not_compared =
        with_protocol(protocol::BOUND_NOT_COMPARED), Exact in 2_600..2_700;

    // Notifications are skipped.
    offset_not_compared =
        with_protocol(protocol::OFFSET_NOT_COMPARED), Exact in 0..1_000;

    // A run writes a head before its nodes. After a crash, the key stays unreadable.
    head_before_nodes =
        Rules { writes_head_last: false, ..REAL }, Complete in 0..100;

    // As `head_before_nodes`, and readers take missing nodes as empty.
    head_before_nodes_read =
        Rules { writes_head_last: false, accepts_missing_nodes: true, ..REAL }, Size in 0..100;

    // A run deletes nodes when it replaces their head, and readers take missing nodes as empty.
    no_grace_period_read =
        Rules { waits_grace_period: false, accepts_missing_nodes: true, ..REAL }, Size in 0..100;

    // Readers take missing nodes as empty, but nodes are missing after the grace period.
    missing_nodes_accepted =
        Rules { accepts_missing_nodes: true, ..REAL }, Size in 0..500;

    // A run takes its snapshot before the cut, so the snapshot is too old.
    snapshot_before_cut =
        Rules { snapshots_after_cut: false, ..REAL }, Exact in 0..2_000;

    // A run plans the keys that changed since a started result, but not the keys of that result.
    planned_only_since_started =
        Rules { plans_since_started: true, plans_partly_published: false, ..REAL },
        Exact in 0..1_000;

    // Workers store the scores that a notification announces, and so restore old scores.
    notifications_trusted =
        Rules { reads_entity_rows: false, ..REAL }, Exact in 0..100;

    // Entries count although the version covers them, even pruned ones that are not deleted yet.
    pruned_entries_count =
        Rules { entry_counts: |_, _| true, reads_pruned_entries: true, ..REAL }, Exact in 0..500;

    // An overtaken try continues.
    overtaken_try_publishes =
        Rules { refuses_overtaken: false, ..REAL }, Complete in 0..500;
}

mutants! {
    COUNT_MUTANTS, run_history, WITH_LIVE_COUNTS;

    // Live counts apply to any version of the base.
    count_on_any_version = Rules {
        matches_version: |count, read| count.1 == read.1,
        ..WITH_LIVE_COUNTS
    }, LiveCount in 0..500;

    // Live counts apply to any base.
    count_on_any_base = Rules {
        matches_version: |count, read| count.0 == read.0,
        ..WITH_LIVE_COUNTS
    }, LiveCount in 16_200..16_300;

    // A write that does not name the live count leaves it unchanged.
    count_not_invalidated = Rules {
        next_count: |stored, expected, next| match (expected, &next) {
            (None, None) => stored.cloned(),
            _ => live_count::next_count(stored, expected, next),
        },
        ..WITH_LIVE_COUNTS
    }, LiveCount in 0..500;

    // Two live counts may have the same name, and only names are compared. This needs two workers,
    // one of which continues after the state reverted and reached the same checkpoint again.
    count_names_repeat = Rules {
        numbers_count_names: true,
        next_count: |stored, expected, next| {
            let name = |count: &StoredCount| (count.name, count.value.is_some());
            next.filter(|_| stored.map(name) == expected.map(name))
        },
        ..WITH_LIVE_COUNTS
    }, LiveCount in 8_700..9_500;

    // Live counts do not begin as a placeholder before the entries are read.
    count_without_placeholder =
        Rules { skips_placeholder: true, ..WITH_LIVE_COUNTS }, LiveCount in 8_700..9_500;
}

mutants! {
    REDUNDANT_MUTANTS, run_history, REAL;

    // Entries are absolute, and were read after all notifications below the new position.
    offset_may_lag =
        with_protocol(protocol::OFFSET_MAY_LAG);

    // Redundant while there is only one view. When epochs are pruned, every head covers them or its
    // key was not notified in them, and heads are read after partition states.
    oldest_not_checked =
        with_protocol(protocol::OLDEST_NOT_CHECKED);

    // Entries count although the version covers them. Redundant while epochs are pruned from the
    // oldest on: the newest entry of a member was read after the last notification below the
    // position.
    covered_entries_count =
        Rules { entry_counts: |_, _| true, ..REAL };

    // A run plans the keys that changed since a started result, and the keys of that result. These
    // were notified before its cuts.
    planned_since_started =
        Rules { plans_since_started: true, ..REAL };

    // A run does not plan the keys of partly published results. They were notified since the
    // published result. Or the partly published result has all keys; then its rows are newer than
    // its cuts.
    partly_published_not_planned =
        Rules { plans_partly_published: false, ..REAL };

    // A run deletes nodes when it replaces their head. A reader that misses a node starts again.
    no_grace_period =
        Rules { waits_grace_period: false, ..REAL };
}

/// Finds new seeds after a change of the simulation. The real rules and the redundant mutants have
/// no violation.
#[test]
#[ignore = "a search of many minutes"]
fn find_violations() {
    let real: &[_] = &[("real", REAL), ("with_live_counts", WITH_LIVE_COUNTS)];
    let rules = [real, MUTANTS, COUNT_MUTANTS, REDUNDANT_MUTANTS];
    let seeds = 0..10 * HISTORIES;
    println!(
        "{}",
        simulation::find_violations(&seeds, &rules, run_history)
    );
}
