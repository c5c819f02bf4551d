//! Histories with one rule broken.

use std::ops::Range;

use super::rules::{self, REAL, Rules};
use super::tally::Law;
use super::{HISTORIES, histories, history};

/// What boards do without, since other rules say the same; see the rules for why.
const REDUNDANT: [(&str, Rules); 6] = [
    ("GT_OVERLAP", rules::GT_OVERLAP),
    ("NO_OLDEST", rules::NO_OLDEST),
    ("OLD_STATES", rules::OLD_STATES),
    ("SINCE_BEGUN_DIRTY", rules::SINCE_BEGUN_DIRTY),
    ("NO_DIRTY", rules::NO_DIRTY),
    ("NO_GRACE", rules::NO_GRACE),
];

/// Finds a history that breaks the law, among these.
fn breaks(law: Law, rules: Rules, mut seeds: Range<u64>) {
    let broken = seeds.find_map(|seed| history(seed, rules).err());
    let broken = broken.unwrap_or_else(|| panic!("{seeds:?}: all do without the rule"));
    assert_eq!(broken.law, law, "{broken:?}");
}

#[test]
fn with_the_newest_run_read_last_answers_are_wrong() {
    breaks(Law::Exact, rules::ORDER, 3_300..3_400);
}

/// It takes a worker that goes on over a cut that it has not seen, in a slot that has lost the end
/// of the epoch, and nobody who puts that right before the run is published.
#[test]
fn without_the_boundary_check_answers_are_wrong() {
    breaks(Law::Exact, rules::NO_BOUND, 2_600..2_700);
}

#[test]
fn a_head_before_its_nodes_is_never_whole_after_a_crash() {
    breaks(Law::Whole, rules::HEAD_FIRST, 0..100);
}

#[test]
fn a_head_before_its_nodes_is_read_without_them() {
    breaks(Law::Size, rules::HEAD_FIRST_EMPTY, 0..100);
}

#[test]
fn nodes_that_go_with_their_head_are_missed() {
    breaks(Law::Size, rules::NO_GRACE_EMPTY, 0..100);
}

#[test]
fn after_the_grace_too_a_missing_node_is_not_an_empty_one() {
    breaks(Law::Size, rules::EMPTY, 0..500);
}

#[test]
fn a_snapshot_before_the_cut_is_too_old() {
    breaks(Law::Exact, rules::EARLY, 0..2_000);
}

#[test]
fn keys_since_a_result_that_was_only_begun_are_too_few() {
    breaks(Law::Exact, rules::SINCE_BEGUN, 0..1_000);
}

#[test]
fn notifications_that_are_believed_bring_old_states_back() {
    breaks(Law::Exact, rules::BELIEVING, 0..100);
}

#[test]
fn a_fence_that_need_not_be_exact_leaves_notifications_out() {
    breaks(Law::Exact, rules::GT, 0..1_000);
}

#[test]
fn states_that_were_let_go_do_not_count() {
    breaks(Law::Exact, rules::DROPPED_STATES, 0..500);
}

#[test]
fn a_run_that_was_overtaken_must_not_change_what_is_published() {
    breaks(Law::Whole, rules::OUTDATED, 0..500);
}

#[test]
fn a_sum_against_another_edition_is_wrong() {
    breaks(Law::Summed, rules::SUM_ON_ANY_EDITION, 0..500);
}

#[test]
fn a_sum_on_another_base_is_wrong() {
    breaks(Law::Summed, rules::SUM_ON_ANY_BASE, 16_200..16_300);
}

#[test]
fn a_sum_ends_where_somebody_does_not_know_it() {
    breaks(Law::Summed, rules::SUM_LEFT_ALONE, 0..500);
}

/// It takes two workers of which one goes on after the slot has fallen back and come to the same fence.
#[test]
fn two_sums_of_one_name_are_taken_for_each_other() {
    breaks(Law::Summed, rules::SUMS_NUMBERED, 8_700..9_500);
}

#[test]
fn a_sum_is_begun_before_its_states_are_read() {
    breaks(Law::Summed, rules::SUMS_AT_ONCE, 8_700..9_500);
}

/// After the simulator was changed, finds out how many histories each mutant needs; the real rules
/// have none that is wrong, nor have those that are redundant.
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
        ("SINCE_BEGUN", rules::SINCE_BEGUN),
        ("BELIEVING", rules::BELIEVING),
        ("GT", rules::GT),
        ("DROPPED_STATES", rules::DROPPED_STATES),
        ("OUTDATED", rules::OUTDATED),
        ("SUM_ON_ANY_EDITION", rules::SUM_ON_ANY_EDITION),
        ("SUM_ON_ANY_BASE", rules::SUM_ON_ANY_BASE),
        ("SUM_LEFT_ALONE", rules::SUM_LEFT_ALONE),
        ("SUMS_NUMBERED", rules::SUMS_NUMBERED),
        ("SUMS_AT_ONCE", rules::SUMS_AT_ONCE),
    ];
    let all = [("REAL", REAL), ("SUMMED", rules::SUMMED)]
        .into_iter()
        .chain(needed);
    for (name, rules) in all.chain(REDUNDANT) {
        match histories(0..10 * HISTORIES, rules) {
            Ok(_) => println!("{name}: none"),
            Err(broken) => println!("{name}: {broken:?}"),
        }
    }
}
