//! Unit tests of each rule.

use schemas::seam::{
    Checkpoint, CheckpointMismatch, Cut, EndEpochError, Epoch, Generation, GenerationStart,
    LastRecord, Offset, PartitionState, Run, RunState, Runs, WorkerStep, base_epoch, can_seal,
    is_readable, needs_rebuild, next_step,
};

const VIEW: &str = "view@1";

fn cut(next_offset: Offset) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}

fn checkpoint(generation: Generation, next_offset: Offset, epoch: Epoch) -> Checkpoint {
    Checkpoint {
        generation,
        next_offset,
        epoch,
    }
}

fn run(epoch: Epoch, state: RunState, cuts: &[Offset]) -> Run {
    Run {
        epoch,
        state,
        cuts: cuts.iter().copied().map(cut).collect(),
        stamp_us: 0,
        token: String::new(),
    }
}

fn runs(runs: impl IntoIterator<Item = Run>) -> Runs {
    runs.into_iter().collect()
}

/// Creates the records of complete runs with these cuts of one partition.
fn complete_runs(cuts: &[Offset]) -> Runs {
    let epochs = (1..).zip(cuts);
    runs(epochs.map(|(epoch, cut)| run(epoch, RunState::Complete, &[*cut])))
}

fn start(newest: Epoch, cut: Cut, generation_min: Generation) -> GenerationStart {
    GenerationStart {
        newest,
        cut,
        log_end: 9,
        generation_min,
    }
}

/// Creates a state of generation 7 which counts `VIEW` from the beginning. Its first epochs ended
/// at `ends`.
fn state_at(ends: &[Offset], position: Offset) -> PartitionState {
    let mut state = PartitionState::new_generation(7, &start(0, Cut::start(), 0));
    for end in ends {
        apply(&mut state, *end, &[VIEW]);
        close_epoch(&mut state);
    }
    apply(&mut state, position, &[VIEW]);
    state
}

fn apply(state: &mut PartitionState, next: Offset, views: &[&str]) {
    let applied = state.apply(&state.checkpoint(), cut(next), views);
    applied.expect("the current checkpoint");
}

fn close_epoch(state: &mut PartitionState) {
    let closed = state.close_epoch(&state.checkpoint());
    closed.expect("the current checkpoint");
}

// The checkpoint.

#[test]
fn changes_require_the_current_checkpoint() {
    for expected in [
        checkpoint(6, 5, 1),
        checkpoint(8, 5, 1),
        checkpoint(7, 4, 1),
        checkpoint(7, 6, 1),
        checkpoint(7, 5, 0),
        checkpoint(7, 5, 2),
    ] {
        let mut state = state_at(&[], 5);
        let unchanged = state.clone();
        let actual = Some(checkpoint(7, 5, 1));
        assert_eq!(
            state.apply(&expected, cut(9), &[VIEW]),
            Err(CheckpointMismatch { actual })
        );
        assert_eq!(
            state.close_epoch(&expected),
            Err(CheckpointMismatch { actual })
        );
        assert_eq!(state, unchanged);
    }
    let mut state = state_at(&[], 5);
    assert_eq!(state.apply(&checkpoint(7, 5, 1), cut(9), &[VIEW]), Ok(()));
    assert_eq!(state.checkpoint(), checkpoint(7, 9, 1));
}

#[test]
fn the_position_never_decreases() {
    let mut state = state_at(&[], 5);
    assert!(state.apply(&state.checkpoint(), cut(4), &[VIEW]).is_err());
    assert_eq!(state.checkpoint(), checkpoint(7, 5, 1));
}

#[test]
fn a_position_has_the_record_before_it() {
    let last = LastRecord {
        offset: 8,
        checksum: 1,
        logged_at_ms: 2,
    };
    let position = Cut {
        next_offset: 9,
        last: Some(last),
    };
    let mut state = state_at(&[], 5);
    state.apply(&state.checkpoint(), position, &[VIEW]).unwrap();
    assert_eq!(state.end_epoch(1), Ok(position));
    assert_eq!(
        PartitionState::new_generation(1, &start(3, position, 0)).position,
        position
    );
}

// Ending an epoch.

#[test]
fn ending_an_epoch_is_idempotent() {
    let mut state = state_at(&[], 5);
    assert_eq!(state.end_epoch(1), Ok(cut(5)));
    assert_eq!(state.checkpoint(), checkpoint(7, 5, 2));
    apply(&mut state, 9, &[VIEW]);
    let unchanged = state.clone();
    assert_eq!(state.end_epoch(1), Ok(cut(5)));
    assert_eq!(state, unchanged);
}

#[test]
fn ending_another_epoch_is_refused() {
    let mut state = state_at(&[3], 5);
    let unchanged = state.clone();
    assert_eq!(
        state.end_epoch(3),
        Err(EndEpochError::OtherEpoch(checkpoint(7, 5, 2)))
    );
    let mut rebuilt = PartitionState::new_generation(7, &start(4, cut(5), 0));
    assert_eq!(
        rebuilt.end_epoch(3),
        Err(EndEpochError::OtherEpoch(checkpoint(7, 5, 5)))
    );
    assert_eq!(state, unchanged);
}

#[test]
fn closing_ends_the_epoch_at_the_checkpoint() {
    let mut state = state_at(&[], 5);
    state.close_epoch(&checkpoint(7, 5, 1)).unwrap();
    assert_eq!(state.bounds[&1], cut(5));
    assert_eq!(state.checkpoint(), checkpoint(7, 5, 2));
    assert!(state.close_epoch(&checkpoint(7, 5, 1)).is_err());
}

// Pruning.

#[test]
fn prunes_only_if_the_boundary_is_the_cut() {
    let mut state = state_at(&[3, 6], 8);
    let unchanged = state.clone();
    assert!(!state.prune_through(2, cut(5), 8));
    assert!(!state.prune_through(3, cut(8), 8));
    assert_eq!(state, unchanged);
    assert!(state.prune_through(2, cut(6), 8));
    assert_eq!(state.oldest, 3);
    assert!(
        !state.prune_through(2, cut(6), 8),
        "a pruned epoch is not pruned again"
    );
    assert!(!state.prune_through(1, cut(3), 8), "nor is an older one");
    assert_eq!(state.oldest, 3);
}

#[test]
fn retains_some_old_bounds() {
    let mut state = state_at(&[1, 2, 3, 4, 5], 6);
    assert!(state.prune_through(4, cut(4), 2));
    assert_eq!(
        state.bounds.keys().copied().collect::<Vec<_>>(),
        [2, 3, 4, 5]
    );
}

// Rebuilding.

#[test]
fn a_rebuild_begins_at_the_newest_complete_run() {
    let rebuilt = PartitionState::rebuild(None, None, &start(4, cut(9), 1)).unwrap();
    assert_eq!(rebuilt.checkpoint(), checkpoint(1, 9, 5));
    assert_eq!(rebuilt.oldest, 5);
    assert_eq!(rebuilt.bounds, [(4, cut(9))].into());
    assert!(rebuilt.since.is_empty());
}

#[test]
fn a_rebuilt_state_is_replaying_until_the_end_of_the_log() {
    let mut state = PartitionState::rebuild(None, None, &start(0, cut(3), 1)).unwrap();
    assert!(state.is_replaying());
    apply(&mut state, 8, &[VIEW]);
    assert!(state.is_replaying());
    apply(&mut state, 9, &[VIEW]);
    assert!(!state.is_replaying());
}

#[test]
fn a_rebuild_requires_the_current_checkpoint() {
    let old = state_at(&[], 5);
    let actual = Some(old.checkpoint());
    assert_eq!(
        PartitionState::rebuild(Some(&old), None, &start(0, cut(0), 1)),
        Err(CheckpointMismatch { actual })
    );
    let other = Some(checkpoint(7, 4, 1));
    assert_eq!(
        PartitionState::rebuild(Some(&old), other, &start(0, cut(0), 1)),
        Err(CheckpointMismatch { actual })
    );
    assert_eq!(
        PartitionState::rebuild(None, actual, &start(0, cut(0), 1)),
        Err(CheckpointMismatch { actual: None })
    );
    assert!(PartitionState::rebuild(Some(&old), actual, &start(0, cut(0), 1)).is_ok());
}

#[test]
fn generations_increase_and_respect_the_minimum() {
    let old = state_at(&[], 5);
    let rebuilt_generation = |state: Option<&PartitionState>, generation_min| {
        let expected = state.map(PartitionState::checkpoint);
        let start = start(0, cut(0), generation_min);
        let rebuilt = PartitionState::rebuild(state, expected, &start);
        rebuilt.map(|state| state.generation)
    };
    assert_eq!(rebuilt_generation(Some(&old), 0), Ok(8));
    assert_eq!(rebuilt_generation(Some(&old), 100), Ok(100));
    assert_eq!(rebuilt_generation(None, 100), Ok(100));
    assert_eq!(rebuilt_generation(None, 0), Ok(1));
}

// Views.

#[test]
fn a_view_is_counted_since_its_first_micro_batch() {
    let mut state = PartitionState::new_generation(7, &start(0, Cut::start(), 0));
    apply(&mut state, 3, &["a", "b"]);
    apply(&mut state, 5, &["a", "c"]);
    assert_eq!(
        state.since,
        [("a".to_owned(), 0), ("c".to_owned(), 3)].into()
    );
    // After a pause, the view has missed events.
    apply(&mut state, 6, &["a", "b"]);
    assert_eq!(state.since["b"], 5);
}

// The next step of a worker.

#[test]
fn rebuilds_a_missing_state() {
    assert_eq!(next_step(None, 0, &Runs::default()), WorkerStep::Rebuild);
}

#[test]
fn folds_without_a_limit_if_no_cut_is_recorded() {
    let runs = complete_runs(&[3]);
    assert_eq!(
        next_step(Some(&state_at(&[3], 5)), 0, &runs),
        WorkerStep::Fold { until: None }
    );
}

#[test]
fn folds_up_to_a_recorded_cut_and_closes_the_epoch() {
    for state in [
        RunState::Proposed,
        RunState::Sealed,
        RunState::Complete,
        RunState::Abandoned,
    ] {
        let runs = runs([run(1, state, &[5])]);
        let step = |position| next_step(Some(&state_at(&[], position)), 0, &runs);
        assert_eq!(step(4), WorkerStep::Fold { until: Some(5) }, "{state:?}");
        assert_eq!(step(5), WorkerStep::CloseEpoch, "{state:?}");
        let step_after_cut = if state == RunState::Proposed {
            WorkerStep::Refresh
        } else {
            WorkerStep::Rebuild
        };
        assert_eq!(step(6), step_after_cut, "{state:?}");
    }
}

#[test]
fn rebuilds_a_state_without_a_recorded_boundary() {
    for state in [RunState::Sealed, RunState::Complete, RunState::Abandoned] {
        let runs = runs([run(1, state, &[5])]);
        assert!(!needs_rebuild(&state_at(&[5], 8), 0, &runs), "{state:?}");
        assert!(
            !needs_rebuild(&state_at(&[], 4), 0, &runs),
            "it can still reach the cut"
        );
        assert!(
            needs_rebuild(&state_at(&[4], 4), 0, &runs),
            "{state:?}: its epoch ended at another offset"
        );
        assert!(
            needs_rebuild(&state_at(&[], 6), 0, &runs),
            "{state:?}: it has passed the cut"
        );
    }
    let proposed = runs([run(1, RunState::Proposed, &[5])]);
    assert!(
        !needs_rebuild(&state_at(&[4], 6), 0, &proposed),
        "a proposal can be replaced"
    );
}

#[test]
fn rebuilds_a_state_that_passed_an_old_cut() {
    // The state reverted to epoch 1 and passed its end, while a newer run was already complete.
    for state in [RunState::Abandoned, RunState::Complete] {
        let runs = runs([run(1, state, &[2]), run(2, RunState::Complete, &[9])]);
        assert_eq!(
            next_step(Some(&state_at(&[], 5)), 0, &runs),
            WorkerStep::Rebuild
        );
        assert_eq!(
            next_step(Some(&state_at(&[], 2)), 0, &runs),
            WorkerStep::CloseEpoch
        );
    }
}

#[test]
fn rebuilds_a_state_that_pruned_too_much() {
    let mut state = state_at(&[3, 6], 8);
    state.prune_through(2, cut(6), 8);
    assert!(needs_rebuild(&state, 0, &complete_runs(&[3])));
    assert!(!needs_rebuild(&state, 0, &complete_runs(&[3, 6])));
}

#[test]
fn the_log_start_is_the_boundary_before_the_first_run() {
    assert!(!needs_rebuild(&state_at(&[], 5), 0, &Runs::default()));
    let later = PartitionState::new_generation(7, &start(0, cut(3), 0));
    assert!(needs_rebuild(&later, 0, &Runs::default()));
}

#[test]
fn an_added_partition_begins_after_every_run() {
    let runs = runs([
        run(1, RunState::Complete, &[5]),
        run(2, RunState::Sealed, &[8]),
    ]);
    assert_eq!(runs.partition_count(), 1);
    assert_eq!(runs.cut(2, 1), Some(Cut::start()));
    let added = PartitionState::new_generation(7, &start(1, Cut::start(), 0));
    assert_eq!(next_step(Some(&added), 1, &runs), WorkerStep::CloseEpoch);
    assert!(
        needs_rebuild(&state_at(&[], 4), 1, &runs),
        "it was counted into an epoch that had ended"
    );
}

// Sealing.

#[test]
fn seals_only_the_bound_of_the_epoch() {
    let seals = |state: PartitionState| can_seal(Some(&state), 0, 1, cut(5), &Runs::default());
    assert!(seals(state_at(&[5], 8)));
    assert!(!seals(state_at(&[4], 8)));
    assert!(!seals(state_at(&[], 8)));
    assert!(!can_seal(None, 0, 1, cut(5), &Runs::default()));
}

#[test]
fn does_not_seal_without_the_previous_boundary() {
    let runs = complete_runs(&[9]);
    let reverted = state_at(&[5, 7], 8);
    assert!(!can_seal(Some(&reverted), 0, 2, cut(7), &runs));
    let unreverted = state_at(&[9, 12], 13);
    assert!(can_seal(Some(&unreverted), 0, 2, cut(12), &runs));
}

// Run records.

#[test]
fn the_next_run_is_the_open_one_or_follows_the_last() {
    let next_open_newest = |records: &[(Epoch, RunState)]| {
        let records = records.iter();
        let runs = runs(records.map(|(epoch, state)| run(*epoch, *state, &[])));
        (
            runs.next_epoch(),
            runs.open_run().is_some(),
            runs.newest_complete(),
        )
    };
    use RunState::{Abandoned, Complete, Proposed, Sealed};
    assert_eq!(next_open_newest(&[]), (1, false, 0));
    assert_eq!(next_open_newest(&[(1, Proposed)]), (1, true, 0));
    assert_eq!(
        next_open_newest(&[(1, Complete), (2, Sealed)]),
        (2, true, 1)
    );
    assert_eq!(
        next_open_newest(&[(1, Complete), (2, Complete)]),
        (3, false, 2)
    );
    assert_eq!(
        next_open_newest(&[(1, Complete), (2, Abandoned)]),
        (3, false, 1)
    );
    assert_eq!(next_open_newest(&[(1, Abandoned)]), (2, false, 0));
}

#[test]
fn run_0_is_empty_and_an_unknown_run_has_no_cut() {
    let runs = Runs::default();
    assert_eq!(runs.cut(0, 3), Some(Cut::start()));
    assert_eq!(runs.sealed_cut(0, 3), Some(Cut::start()));
    assert_eq!(runs.cut(1, 0), None);
    assert_eq!(runs.sealed_cut(1, 0), None);
}

#[test]
fn a_proposed_cut_is_not_sealed() {
    let records = runs([run(1, RunState::Proposed, &[5])]);
    assert_eq!(records.cut(1, 0), Some(cut(5)));
    assert_eq!(records.sealed_cut(1, 0), None);
    for state in [RunState::Sealed, RunState::Complete, RunState::Abandoned] {
        let records = runs([run(1, state, &[5])]);
        assert_eq!(records.sealed_cut(1, 0), Some(cut(5)), "{state:?}");
    }
}

#[test]
fn records_round_trip_through_json() {
    let state = state_at(&[3, 6], 8);
    let json = serde_json::to_string(&state).unwrap();
    assert_eq!(
        serde_json::from_str::<PartitionState>(&json).unwrap(),
        state
    );
    let run = run(1, RunState::Abandoned, &[5]);
    let json = serde_json::to_string(&run).unwrap();
    assert!(json.contains(&format!("{:?}", run.state.name())), "{json}");
    assert_eq!(serde_json::from_str::<Run>(&json).unwrap(), run);
}

// Reading.

#[test]
fn deltas_count_after_the_later_of_row_and_newest_run() {
    assert_eq!(base_epoch(3, 5), 5);
    assert_eq!(base_epoch(6, 5), 6);
    assert_eq!(
        base_epoch(0, 5),
        5,
        "a missing row counts as one of the newest run"
    );
}

#[test]
fn a_state_is_readable_if_its_epoch_ended_at_the_cut() {
    let runs = runs([
        run(1, RunState::Complete, &[3]),
        run(2, RunState::Sealed, &[6]),
    ]);
    let matching = state_at(&[3, 6], 8);
    for epoch in 0..=2 {
        assert!(is_readable(&matching, 0, epoch, &runs, VIEW), "{epoch}");
    }
    assert!(!is_readable(&matching, 0, 3, &runs, VIEW), "no such run");
    assert!(
        !is_readable(&state_at(&[3, 5], 8), 0, 2, &runs, VIEW),
        "another boundary"
    );
    assert!(
        !is_readable(&state_at(&[3], 8), 0, 2, &runs, VIEW),
        "no boundary"
    );
    assert!(
        is_readable(&state_at(&[3], 8), 0, 1, &runs, VIEW),
        "the bound of epoch 1 is present"
    );
}

#[test]
fn a_state_is_readable_while_later_epochs_are_retained() {
    let runs = complete_runs(&[3, 6]);
    let mut state = state_at(&[3, 6], 8);
    state.prune_through(1, cut(3), 8);
    assert!(is_readable(&state, 0, 1, &runs, VIEW));
    state.prune_through(2, cut(6), 8);
    assert!(!is_readable(&state, 0, 1, &runs, VIEW));
    assert!(is_readable(&state, 0, 2, &runs, VIEW));
}

#[test]
fn a_proposed_cut_is_not_readable() {
    // The state may revert, and another cut be sealed. Then a row of the run belongs to that cut.
    let proposed = runs([run(1, RunState::Proposed, &[3])]);
    assert!(!is_readable(&state_at(&[3], 8), 0, 1, &proposed, VIEW));
    let abandoned = runs([run(1, RunState::Abandoned, &[3])]);
    assert!(is_readable(&state_at(&[3], 8), 0, 1, &abandoned, VIEW));
}

#[test]
fn a_view_is_readable_after_a_cut_from_which_it_was_counted() {
    let runs = complete_runs(&[3, 6]);
    let mut state = state_at(&[3], 3);
    apply(&mut state, 4, &[VIEW, "new@1"]);
    assert!(
        is_readable(&state, 0, 1, &runs, "new@1"),
        "counted since exactly the cut"
    );
    assert!(!is_readable(&state, 0, 0, &runs, "new@1"));
    apply(&mut state, 5, &[VIEW, "new@1", "newer@1"]);
    assert!(!is_readable(&state, 0, 1, &runs, "newer@1"));
    assert!(!is_readable(&state, 0, 1, &runs, "unknown@1"));
    apply(&mut state, 6, &[VIEW, "new@1", "newer@1"]);
    close_epoch(&mut state);
    assert!(is_readable(&state, 0, 2, &runs, "newer@1"));
    assert!(
        is_readable(&state, 0, 2, &runs, "unknown@1"),
        "no event has arrived since the cut"
    );
}
