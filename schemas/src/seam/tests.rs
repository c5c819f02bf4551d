//! Each rule by itself.

use super::*;

const VIEW: &str = "view@1";

fn cut(next_offset: Offset) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}

fn fence(generation: Generation, next_offset: Offset, epoch: Epoch) -> Fence {
    Fence {
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

fn life(newest: Epoch, cut: Cut, hint: Generation) -> NewLife {
    NewLife {
        newest,
        cut,
        log_end: 9,
        hint,
    }
}

/// A slot of generation 7 that has counted `VIEW` from the beginning: its epochs ended at `ends`,
/// it stands at `at`.
fn slot(ends: &[Offset], at: Offset) -> Slot {
    let mut slot = Slot::new_generation(7, &life(0, Cut::start(), 0));
    for end in ends {
        slot.apply(&slot.fence(), cut(*end), &[VIEW]).unwrap();
        slot.impose(&slot.fence()).unwrap();
    }
    slot.apply(&slot.fence(), cut(at), &[VIEW]).unwrap();
    slot
}

// The fence.

#[test]
fn a_micro_batch_moves_a_slot_only_from_exactly_where_it_was_believed() {
    for believed in [
        fence(6, 5, 1),
        fence(8, 5, 1),
        fence(7, 4, 1),
        fence(7, 6, 1),
        fence(7, 5, 0),
        fence(7, 5, 2),
    ] {
        let mut slot = slot(&[], 5);
        let before = slot.clone();
        let at = Some(fence(7, 5, 1));
        assert_eq!(slot.apply(&believed, cut(9), &[VIEW]), Err(Moved { at }));
        assert_eq!(slot.impose(&believed), Err(Moved { at }));
        assert_eq!(slot, before);
    }
    let mut slot = slot(&[], 5);
    assert_eq!(slot.apply(&fence(7, 5, 1), cut(9), &[VIEW]), Ok(()));
    assert_eq!(slot.fence(), fence(7, 9, 1));
}

#[test]
fn a_slot_never_goes_back() {
    let mut slot = slot(&[], 5);
    assert!(slot.apply(&slot.fence(), cut(4), &[VIEW]).is_err());
    assert_eq!(slot.fence(), fence(7, 5, 1));
}

#[test]
fn a_position_keeps_the_record_before_it() {
    let last = LastRecord {
        offset: 8,
        checksum: 1,
        logged_at_ms: 2,
    };
    let position = Cut {
        next_offset: 9,
        last: Some(last),
    };
    let mut slot = slot(&[], 5);
    slot.apply(&slot.fence(), position, &[VIEW]).unwrap();
    assert_eq!(slot.roll(1), Ok(position));
    assert_eq!(
        Slot::new_generation(1, &life(3, position, 0)).position,
        position
    );
}

// Ending an epoch.

#[test]
fn a_roll_ends_the_epoch_where_the_slot_stands_and_answers_the_same_ever_after() {
    let mut slot = slot(&[], 5);
    assert_eq!(slot.roll(1), Ok(cut(5)));
    assert_eq!(slot.fence(), fence(7, 5, 2));
    slot.apply(&slot.fence(), cut(9), &[VIEW]).unwrap();
    let before = slot.clone();
    assert_eq!(slot.roll(1), Ok(cut(5)));
    assert_eq!(slot, before);
}

#[test]
fn a_roll_of_an_epoch_that_is_not_being_filled_is_refused() {
    let mut slot = slot(&[3], 5);
    let before = slot.clone();
    assert_eq!(slot.roll(3), Err(RollRefused::Elsewhere(fence(7, 5, 2))));
    let mut healed = Slot::new_generation(7, &life(4, cut(5), 0));
    assert_eq!(healed.roll(3), Err(RollRefused::Elsewhere(fence(7, 5, 5))));
    assert_eq!(slot, before);
}

#[test]
fn an_imposed_cut_ends_the_epoch_at_the_fence() {
    let mut slot = slot(&[], 5);
    slot.impose(&fence(7, 5, 1)).unwrap();
    assert_eq!(slot.bounds[&1], cut(5));
    assert_eq!(slot.fence(), fence(7, 5, 2));
    assert!(slot.impose(&fence(7, 5, 1)).is_err());
}

// Letting go.

#[test]
fn epochs_are_dropped_only_where_the_boundary_is_the_cut() {
    let mut slot = slot(&[3, 6], 8);
    let before = slot.clone();
    assert!(!slot.drop_through(2, cut(5), 8));
    assert!(!slot.drop_through(3, cut(8), 8));
    assert_eq!(slot, before);
    assert!(slot.drop_through(2, cut(6), 8));
    assert_eq!(slot.oldest, 3);
    assert!(
        !slot.drop_through(2, cut(6), 8),
        "what is gone is not dropped again"
    );
    assert!(!slot.drop_through(1, cut(3), 8), "nor what is older");
    assert_eq!(slot.oldest, 3);
}

#[test]
fn only_some_old_bounds_are_remembered() {
    let mut slot = slot(&[1, 2, 3, 4, 5], 6);
    assert!(slot.drop_through(4, cut(4), 2));
    assert_eq!(
        slot.bounds.keys().copied().collect::<Vec<_>>(),
        [2, 3, 4, 5]
    );
}

// Healing.

#[test]
fn a_new_life_begins_at_the_newest_complete_run_with_nothing_counted() {
    let healed = Slot::heal(None, None, &life(4, cut(9), 1)).unwrap();
    assert_eq!(healed.fence(), fence(1, 9, 5));
    assert_eq!(healed.oldest, 5);
    assert_eq!(healed.bounds, [(4, cut(9))].into());
    assert!(healed.since.is_empty());
}

#[test]
fn a_new_life_is_replaying_until_it_is_where_the_log_ended() {
    let mut slot = Slot::heal(None, None, &life(0, cut(3), 1)).unwrap();
    assert!(slot.is_replaying());
    slot.apply(&slot.fence(), cut(8), &[VIEW]).unwrap();
    assert!(slot.is_replaying());
    slot.apply(&slot.fence(), cut(9), &[VIEW]).unwrap();
    assert!(!slot.is_replaying());
}

#[test]
fn only_a_slot_that_stands_as_it_was_seen_is_healed() {
    let old = slot(&[], 5);
    let at = Some(old.fence());
    assert_eq!(
        Slot::heal(Some(&old), None, &life(0, cut(0), 1)),
        Err(Moved { at })
    );
    let other = Some(fence(7, 4, 1));
    assert_eq!(
        Slot::heal(Some(&old), other, &life(0, cut(0), 1)),
        Err(Moved { at })
    );
    assert_eq!(
        Slot::heal(None, at, &life(0, cut(0), 1)),
        Err(Moved { at: None })
    );
    assert!(Slot::heal(Some(&old), at, &life(0, cut(0), 1)).is_ok());
}

#[test]
fn a_generation_is_larger_than_the_one_before_and_not_below_the_hint() {
    let old = slot(&[], 5);
    let of = |slot: Option<&Slot>, hint| {
        let seen = slot.map(Slot::fence);
        Slot::heal(slot, seen, &life(0, cut(0), hint))
            .unwrap()
            .generation
    };
    assert_eq!(of(Some(&old), 0), 8);
    assert_eq!(of(Some(&old), 100), 100);
    assert_eq!(of(None, 100), 100);
    assert_eq!(of(None, 0), 1);
}

// Views.

#[test]
fn a_view_is_counted_since_the_first_micro_batch_that_had_it() {
    let mut slot = Slot::new_generation(7, &life(0, Cut::start(), 0));
    slot.apply(&slot.fence(), cut(3), &["a", "b"]).unwrap();
    slot.apply(&slot.fence(), cut(5), &["a", "c"]).unwrap();
    assert_eq!(
        slot.since,
        [("a".to_owned(), 0), ("c".to_owned(), 3)].into()
    );
    // Back again, it has missed what came in between.
    slot.apply(&slot.fence(), cut(6), &["a", "b"]).unwrap();
    assert_eq!(slot.since["b"], 5);
}

// What a worker does next.

#[test]
fn a_missing_slot_is_healed() {
    assert_eq!(next_step(None, 0, &Runs::default()), Step::Heal);
}

#[test]
fn without_a_recorded_cut_there_is_no_end_to_folding() {
    let runs = runs([run(1, RunState::Complete, &[3])]);
    assert_eq!(
        next_step(Some(&slot(&[3], 5)), 0, &runs),
        Step::Fold { until: None }
    );
}

#[test]
fn a_recorded_cut_is_folded_up_to_and_then_imposed() {
    for state in [
        RunState::Proposed,
        RunState::Sealed,
        RunState::Complete,
        RunState::Abandoned,
    ] {
        let runs = runs([run(1, state, &[5])]);
        let step = |at| next_step(Some(&slot(&[], at)), 0, &runs);
        assert_eq!(step(4), Step::Fold { until: Some(5) }, "{state:?}");
        assert_eq!(step(5), Step::Impose, "{state:?}");
        let passed = if state == RunState::Proposed {
            Step::LookAgain
        } else {
            Step::Heal
        };
        assert_eq!(step(6), passed, "{state:?}");
    }
}

#[test]
fn a_slot_without_the_boundary_of_a_recorded_run_is_broken() {
    for state in [RunState::Sealed, RunState::Complete, RunState::Abandoned] {
        let runs = runs([run(1, state, &[5])]);
        assert!(!broken(&slot(&[5], 8), 0, &runs), "{state:?}");
        assert!(!broken(&slot(&[], 4), 0, &runs), "it can still come there");
        assert!(
            broken(&slot(&[4], 4), 0, &runs),
            "{state:?}: it ended elsewhere"
        );
        assert!(broken(&slot(&[], 6), 0, &runs), "{state:?}: it has passed");
    }
    let proposed = runs([run(1, RunState::Proposed, &[5])]);
    assert!(
        !broken(&slot(&[4], 6), 0, &proposed),
        "a proposal can be replaced"
    );
}

#[test]
fn a_slot_that_has_passed_the_end_of_an_old_epoch_is_broken() {
    // It fell back to epoch 1 and went on beyond its end, while a newer run is complete already.
    for state in [RunState::Abandoned, RunState::Complete] {
        let runs = runs([run(1, state, &[2]), run(2, RunState::Complete, &[9])]);
        assert_eq!(next_step(Some(&slot(&[], 5)), 0, &runs), Step::Heal);
        assert_eq!(next_step(Some(&slot(&[], 2)), 0, &runs), Step::Impose);
    }
}

#[test]
fn a_slot_that_has_dropped_more_than_any_run_holds_is_broken() {
    let mut slot = slot(&[3, 6], 8);
    slot.drop_through(2, cut(6), 8);
    let one = runs([run(1, RunState::Complete, &[3])]);
    assert!(broken(&slot, 0, &one));
    let both = runs([
        run(1, RunState::Complete, &[3]),
        run(2, RunState::Complete, &[6]),
    ]);
    assert!(!broken(&slot, 0, &both));
}

#[test]
fn before_the_first_run_the_beginning_of_the_log_is_the_boundary() {
    assert!(!broken(&slot(&[], 5), 0, &Runs::default()));
    let later = Slot::new_generation(7, &life(0, cut(3), 0));
    assert!(broken(&later, 0, &Runs::default()));
}

#[test]
fn a_partition_that_was_added_begins_after_every_run() {
    let runs = runs([
        run(1, RunState::Complete, &[5]),
        run(2, RunState::Sealed, &[8]),
    ]);
    assert_eq!(runs.partitions(), 1);
    assert_eq!(runs.cut(2, 1), Some(Cut::start()));
    let added = Slot::new_generation(7, &life(1, Cut::start(), 0));
    assert_eq!(next_step(Some(&added), 1, &runs), Step::Impose);
    assert!(
        broken(&slot(&[], 4), 1, &runs),
        "it was counted into an epoch that had ended"
    );
}

// Sealing.

#[test]
fn a_cut_is_sealed_only_where_it_stands() {
    let none = Runs::default();
    assert!(sealable(Some(&slot(&[5], 8)), 0, 1, cut(5), &none));
    assert!(!sealable(Some(&slot(&[4], 8)), 0, 1, cut(5), &none));
    assert!(!sealable(Some(&slot(&[], 8)), 0, 1, cut(5), &none));
    assert!(!sealable(None, 0, 1, cut(5), &none));
}

#[test]
fn a_cut_of_a_slot_that_lacks_the_run_before_is_not_sealed() {
    let before = runs([run(1, RunState::Complete, &[9])]);
    let fell_back = slot(&[5, 7], 8);
    assert!(!sealable(Some(&fell_back), 0, 2, cut(7), &before));
    assert!(sealable(Some(&slot(&[9, 12], 13)), 0, 2, cut(12), &before));
}

// Run records.

#[test]
fn the_next_run_is_the_open_one_or_the_one_after_the_last() {
    let of = |records: &[(Epoch, RunState)]| {
        let runs = runs(
            records
                .iter()
                .map(|(epoch, state)| run(*epoch, *state, &[])),
        );
        (runs.next_epoch(), runs.open().is_some(), runs.newest())
    };
    use RunState::{Abandoned, Complete, Proposed, Sealed};
    assert_eq!(of(&[]), (1, false, 0));
    assert_eq!(of(&[(1, Proposed)]), (1, true, 0));
    assert_eq!(of(&[(1, Complete), (2, Sealed)]), (2, true, 1));
    assert_eq!(of(&[(1, Complete), (2, Complete)]), (3, false, 2));
    assert_eq!(of(&[(1, Complete), (2, Abandoned)]), (3, false, 1));
    assert_eq!(of(&[(1, Abandoned)]), (2, false, 0));
}

#[test]
fn run_0_covers_nothing_and_an_unknown_run_has_no_cut() {
    let none = Runs::default();
    assert_eq!(none.cut(0, 3), Some(Cut::start()));
    assert_eq!(none.sealed_cut(0, 3), Some(Cut::start()));
    assert_eq!(none.cut(1, 0), None);
    assert_eq!(none.sealed_cut(1, 0), None);
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
fn records_survive_as_json() {
    let slot = slot(&[3, 6], 8);
    let json = serde_json::to_string(&slot).unwrap();
    assert_eq!(serde_json::from_str::<Slot>(&json).unwrap(), slot);
    let run = run(1, RunState::Abandoned, &[5]);
    let json = serde_json::to_string(&run).unwrap();
    assert!(json.contains(&format!("{:?}", run.state.name())), "{json}");
    assert_eq!(serde_json::from_str::<Run>(&json).unwrap(), run);
}

// Reading.

#[test]
fn live_parts_count_after_the_row_or_the_newest_run_whichever_is_later() {
    assert_eq!(base(3, 5), 5);
    assert_eq!(base(6, 5), 6);
    assert_eq!(
        base(0, 5),
        5,
        "a missing row holds what the newest run holds: nothing"
    );
}

#[test]
fn a_slot_is_whole_where_its_epoch_ended_at_the_cut() {
    let runs = runs([
        run(1, RunState::Complete, &[3]),
        run(2, RunState::Sealed, &[6]),
    ]);
    let right = slot(&[3, 6], 8);
    for epoch in 0..=2 {
        assert!(whole(&right, 0, epoch, &runs, VIEW), "{epoch}");
    }
    assert!(!whole(&right, 0, 3, &runs, VIEW), "no such run");
    assert!(
        !whole(&slot(&[3, 5], 8), 0, 2, &runs, VIEW),
        "another boundary"
    );
    assert!(!whole(&slot(&[3], 8), 0, 2, &runs, VIEW), "no boundary");
    assert!(
        whole(&slot(&[3], 8), 0, 1, &runs, VIEW),
        "the one before is there"
    );
}

#[test]
fn a_slot_is_whole_only_while_it_keeps_the_epochs_after_the_base() {
    let runs = runs([
        run(1, RunState::Complete, &[3]),
        run(2, RunState::Complete, &[6]),
    ]);
    let mut slot = slot(&[3, 6], 8);
    slot.drop_through(1, cut(3), 8);
    assert!(whole(&slot, 0, 1, &runs, VIEW));
    slot.drop_through(2, cut(6), 8);
    assert!(!whole(&slot, 0, 1, &runs, VIEW));
    assert!(whole(&slot, 0, 2, &runs, VIEW));
}

#[test]
fn a_proposed_cut_joins_no_rows() {
    // The reader saw the proposal, the slot fell back and another cut was sealed: the row that it
    // finds is of the other cut.
    let seen = runs([run(1, RunState::Proposed, &[3])]);
    assert!(!whole(&slot(&[3], 8), 0, 1, &seen, VIEW));
    let given_up = runs([run(1, RunState::Abandoned, &[3])]);
    assert!(whole(&slot(&[3], 8), 0, 1, &given_up, VIEW));
}

#[test]
fn a_view_is_whole_only_after_a_cut_that_it_was_counted_from() {
    let runs = runs([
        run(1, RunState::Complete, &[3]),
        run(2, RunState::Complete, &[6]),
    ]);
    let mut slot = slot(&[3], 3);
    slot.apply(&slot.fence(), cut(4), &[VIEW, "new@1"]).unwrap();
    assert!(whole(&slot, 0, 1, &runs, "new@1"), "since exactly the cut");
    assert!(!whole(&slot, 0, 0, &runs, "new@1"));
    slot.apply(&slot.fence(), cut(5), &[VIEW, "new@1", "newer@1"])
        .unwrap();
    assert!(!whole(&slot, 0, 1, &runs, "newer@1"));
    assert!(!whole(&slot, 0, 1, &runs, "unknown@1"));
    slot.apply(&slot.fence(), cut(6), &[VIEW, "new@1", "newer@1"])
        .unwrap();
    slot.impose(&slot.fence()).unwrap();
    assert!(whole(&slot, 0, 2, &runs, "newer@1"));
    assert!(
        whole(&slot, 0, 2, &runs, "unknown@1"),
        "nothing has come since the cut"
    );
}
