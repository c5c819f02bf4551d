//! Mutants of the rules of aggregates.

use super::rules::{REAL, Rules};
use super::{Faults, HISTORIES, run_history};
use crate::simulation::{self, EventCounts, Protocol, Violation, mutants, protocol};

const fn with_protocol(protocol: Protocol) -> Rules {
    Rules { protocol, ..REAL }
}

fn run_with_all_faults(seed: u64, rules: Rules) -> Result<EventCounts, Violation> {
    run_history(seed, rules, Faults::All)
}

fn run_with_undone_epoch_ends(seed: u64, rules: Rules) -> Result<EventCounts, Violation> {
    run_history(seed, rules, Faults::UndoneEpochEnds)
}

mutants! {
    MUTANTS, run_with_all_faults, REAL;

    // Records count twice.
    offset_not_compared =
        with_protocol(protocol::OFFSET_NOT_COMPARED), Exact in 0..100;

    bound_not_compared =
        with_protocol(protocol::BOUND_NOT_COMPARED), Exact in 0..1_000;

    runs_read_last =
        with_protocol(protocol::RUNS_READ_LAST), Exact in 0..2_000;

    // Reads stay refused.
    folds_across_cuts =
        with_protocol(protocol::FOLDS_ACROSS_CUTS), Complete in 0..500;

    oldest_not_checked =
        with_protocol(protocol::OLDEST_NOT_CHECKED), Exact in 0..10_000;

    since_not_checked =
        with_protocol(protocol::SINCE_NOT_CHECKED), Exact in 0..100;

    // Deltas of a lost state count.
    generation_reused =
        with_protocol(protocol::GENERATION_REUSED), Exact in 0..500;

    // Answers shrink, but do not say that they are incomplete.
    replay_end_unknown =
        with_protocol(protocol::REPLAY_END_UNKNOWN), Fresh in 0..500;
}

// Mutants that rarely violate an invariant, each with a history that does.
mutants! {
    RARE_MUTANTS, run_with_all_faults, REAL;

    proposal_trusted =
        with_protocol(protocol::PROPOSAL_TRUSTED), Exact in 10_218..10_219;

    passed_old_cut_accepted =
        with_protocol(protocol::PASSED_OLD_CUT_ACCEPTED), Complete in 45_754..45_755;

    earlier_bounds_not_verified =
        with_protocol(protocol::EARLIER_BOUNDS_NOT_VERIFIED), Monotonic in 6_040..6_041;

    // A reader reads only the partitions of the log that it saw, although runs have more.
    added_partition_not_read = Rules {
        partitions_to_read: |log_partitions, _| log_partitions,
        ..REAL
    }, Exact in 5_242..5_243;

    // A run leaves rows unchanged that an abandoned run may have written.
    later_results_not_rewritten =
        Rules { rewrites_later_results: false, ..REAL }, Exact in 3_522..3_523;

    // A reader reads a deleted table as an empty one.
    table_not_required =
        Rules { requires_table: false, ..REAL }, Exact in 4_844..4_845;
}

mutants! {
    MUTANTS_WITHOUT_LOSSES, run_with_undone_epoch_ends, REAL;

    // States without a loss are rebuilt.
    sealed_unverified =
        with_protocol(protocol::SEALED_UNVERIFIED), Retained in 0..100;
}

/// Finds new seeds after a change of the simulation. The real rules have no violation.
#[test]
#[ignore = "a search of many minutes"]
fn find_violations() {
    let rules = [&[("real", REAL)], RARE_MUTANTS, MUTANTS];
    let seeds = 0..10 * HISTORIES;
    println!(
        "{}",
        simulation::find_violations(&seeds, &rules, run_with_all_faults)
    );
    let rules = [MUTANTS_WITHOUT_LOSSES];
    println!(
        "{}",
        simulation::find_violations(&seeds, &rules, run_with_undone_epoch_ends)
    );
}
