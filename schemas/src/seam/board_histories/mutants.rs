//! Mutants: histories with one rule broken.

use std::ops::Range;

use super::events::Law;
use super::rules::{self, REAL, Rules};
use super::{HISTORIES, histories, history};

/// Redundant rules of boards: other rules imply them. The rules have the reasons.
const REDUNDANT: [(&str, Rules); 6] = [
    ("GT_OVERLAP", rules::GT_OVERLAP),
    ("NO_OLDEST", rules::NO_OLDEST),
    ("OLD_STATES", rules::OLD_STATES),
    ("SINCE_BEGUN_DIRTY", rules::SINCE_STARTED_PLANNED),
    ("NO_DIRTY", rules::NO_PARTLY_PUBLISHED),
    ("NO_GRACE", rules::NO_GRACE),
];

/// Checks that one of these histories violates the law.
fn breaks(law: Law, rules: Rules, mut seeds: Range<u64>) {
    let violation = seeds.find_map(|seed| history(seed, rules).err());
    let violation = violation.unwrap_or_else(|| panic!("{seeds:?}: no history needs the rule"));
    assert_eq!(violation.law, law, "{violation:?}");
}

#[test]
fn with_the_newest_run_read_last_answers_are_wrong() {
    breaks(Law::Exact, rules::ORDER, 3_300..3_400);
}

/// This needs a worker that crosses a cut which it has not read, in a state that lost the end of
/// the epoch, and no repair before the run is published.
#[test]
fn without_the_boundary_check_answers_are_wrong() {
    breaks(Law::Exact, rules::NO_BOUND, 2_600..2_700);
}

#[test]
fn a_head_before_its_nodes_stays_unreadable_after_a_crash() {
    breaks(Law::Complete, rules::HEAD_FIRST, 0..100);
}

#[test]
fn a_head_before_its_nodes_is_read_without_them() {
    breaks(Law::Size, rules::HEAD_FIRST_EMPTY, 0..100);
}

#[test]
fn nodes_deleted_with_their_head_are_missed() {
    breaks(Law::Size, rules::NO_GRACE_EMPTY, 0..100);
}

#[test]
fn a_missing_node_is_not_an_empty_one_after_the_grace_period() {
    breaks(Law::Size, rules::EMPTY, 0..500);
}

#[test]
fn a_snapshot_before_the_cut_is_too_old() {
    breaks(Law::Exact, rules::EARLY, 0..2_000);
}

#[test]
fn planning_since_a_started_result_misses_keys() {
    breaks(Law::Exact, rules::SINCE_STARTED, 0..1_000);
}

#[test]
fn trusting_notifications_restores_old_states() {
    breaks(Law::Exact, rules::TRUSTED_NOTIFICATIONS, 0..100);
}

#[test]
fn an_inexact_checkpoint_skips_notifications() {
    breaks(Law::Exact, rules::GT, 0..1_000);
}

#[test]
fn pruned_states_do_not_count() {
    breaks(Law::Exact, rules::PRUNED_STATES, 0..500);
}

#[test]
fn an_overtaken_run_must_not_publish() {
    breaks(Law::Complete, rules::OUTDATED, 0..500);
}

#[test]
fn a_live_count_on_another_version_is_wrong() {
    breaks(Law::LiveCount, rules::COUNT_ON_ANY_VERSION, 0..500);
}

#[test]
fn a_live_count_on_another_base_is_wrong() {
    breaks(Law::LiveCount, rules::COUNT_ON_ANY_BASE, 16_200..16_300);
}

#[test]
fn a_write_that_does_not_name_the_live_count_invalidates_it() {
    breaks(Law::LiveCount, rules::COUNT_NOT_INVALIDATED, 0..500);
}

/// This needs two workers, one of which continues after the state reverted and reached the same
/// checkpoint again.
#[test]
fn live_counts_need_unique_names() {
    breaks(Law::LiveCount, rules::COUNTS_NUMBERED, 8_700..9_500);
}

#[test]
fn a_placeholder_precedes_the_read_of_states() {
    breaks(Law::LiveCount, rules::NO_PLACEHOLDER, 8_700..9_500);
}

/// Finds the number of histories that each mutant needs, after a change of the simulator. The real
/// and the redundant rules have no violation.
#[test]
#[ignore = "a search of many minutes"]
fn find_histories() {
    let needed = [
        ("ORDER", rules::ORDER),
        ("NO_BOUND", rules::NO_BOUND),
        ("HEAD_FIRST", rules::HEAD_FIRST),
        ("HEAD_FIRST_EMPTY", rules::HEAD_FIRST_EMPTY),
        ("NO_GRACE_EMPTY", rules::NO_GRACE_EMPTY),
        ("EMPTY", rules::EMPTY),
        ("EARLY", rules::EARLY),
        ("SINCE_BEGUN", rules::SINCE_STARTED),
        ("BELIEVING", rules::TRUSTED_NOTIFICATIONS),
        ("GT", rules::GT),
        ("DROPPED_STATES", rules::PRUNED_STATES),
        ("OUTDATED", rules::OUTDATED),
        ("SUM_ON_ANY_EDITION", rules::COUNT_ON_ANY_VERSION),
        ("SUM_ON_ANY_BASE", rules::COUNT_ON_ANY_BASE),
        ("SUM_LEFT_ALONE", rules::COUNT_NOT_INVALIDATED),
        ("SUMS_NUMBERED", rules::COUNTS_NUMBERED),
        ("SUMS_AT_ONCE", rules::NO_PLACEHOLDER),
    ];
    let all = [("REAL", REAL), ("SUMMED", rules::WITH_LIVE_COUNTS)]
        .into_iter()
        .chain(needed);
    for (name, rules) in all.chain(REDUNDANT) {
        match histories(0..10 * HISTORIES, rules) {
            Ok(_) => println!("{name}: none"),
            Err(violation) => println!("{name}: {violation:?}"),
        }
    }
}
