//! Simulated histories of boards.
//!
//! The entity rows say which scores a member has on the boards of a key. Rows change, and the log
//! has only notifications of changes: late, in any order, and repeatedly. A worker reads the rows
//! of notified members into live entries. A run reads them into immutable versions of the boards.
//! In an answer, a member must have scores that it had at or after the last notification below the
//! answer's position.
//!
//! In histories with live counts, workers also maintain the sizes of boards.

mod batch;
mod count_update;
mod entity_rows;
mod live_counts;
mod live_entries;
mod mutants;
mod reader;
mod results;
mod rules;
mod stores;
mod versions;
mod worker;

use rand::Rng;

use crate::simulation::{self, Actors, Event, EventCounts, Violation};
use rules::{REAL, Rules, WITH_LIVE_COUNTS};
use stores::{Boards, SharedWorld, World};

const HISTORIES: u64 = 6_000;
const READERS: usize = 5;

/// Runs a history. Returns how often each event occurred, or the first violation.
fn run_history(seed: u64, rules: Rules) -> Result<EventCounts, Violation> {
    let world = World::new(seed, rules.protocol, |rng| Boards::new(rules, rng));
    let world = SharedWorld::new(world);
    run_disturbed(&world);
    if world.borrow().violation.is_none() {
        world.borrow_mut().stores.is_undisturbed = true;
        world.borrow_mut().relay_all();
        simulation::run_undisturbed(&world);
    }
    world.into_inner().into_outcome()
}

/// Runs the random part of a history, with faults.
fn run_disturbed(shared: &SharedWorld) {
    let mut actors = Actors::start(shared, READERS);
    let (steps, disturbances) = {
        let world = &mut *shared.borrow_mut();
        let disturbances = Disturbances::new(world);
        (world.rng.random_range(150..500), disturbances)
    };
    for _ in 0..steps {
        disturb(&mut shared.borrow_mut(), &mut actors, &disturbances);
        actors.step();
        if shared.borrow().violation.is_some() {
            return;
        }
    }
}

/// The probabilities of the disturbances before each step of an actor.
struct Disturbances {
    fault_probability: f64,
    undo_probability: f64,
    change_probability: f64,
    /// Live counts are at risk if a state reverts slightly and reaches the same checkpoint again.
    reversion_probability: f64,
}

impl Disturbances {
    fn new(world: &mut World) -> Self {
        let fault_probability = world.draw_probability(true, 0.05);
        let undoes_epoch_ends = world.rng.random();
        let undo_probability = world.draw_probability(undoes_epoch_ends, 0.3);
        let change_probability = world.rng.random_range(0.05..0.3);
        let reverts_slightly = world.stores.rules.keeps_live_counts && world.rng.random();
        Self {
            fault_probability,
            undo_probability,
            change_probability,
            reversion_probability: world.draw_probability(reverts_slightly, 0.03),
        }
    }
}

/// Changes entity rows, moves notifications to the log, and causes faults.
fn disturb(world: &mut World, actors: &mut Actors<'_, Boards>, disturbances: &Disturbances) {
    world.tick();
    if world.rng.random_bool(disturbances.change_probability) {
        world.change_rows();
    }
    match world.rng.random_range(0..100) {
        0..25 => world.deliver(),
        25..30 => world.relay(),
        30 => world.append_dead_letter(),
        _ => {}
    }
    if world.rng.random_bool(disturbances.fault_probability) {
        actors.crash(world);
    }
    let partition = world.rng.random_range(0..world.partitions());
    if world.rng.random_bool(disturbances.undo_probability) {
        world.undo_epoch_end(partition, |state, ended| ended >= state.oldest);
    }
    let keeps_counts = world.stores.rules.keeps_live_counts;
    if keeps_counts && world.rng.random_bool(disturbances.reversion_probability) {
        world.revert_slightly(partition);
    }
    world.lose_randomly(partition, disturbances.fault_probability);
}

#[test]
fn every_answer_has_scores_that_the_members_had() {
    let run = |seed| run_history(seed, REAL);
    let events = [Event::COMMON, Event::BOARDS];
    simulation::assert_no_violation(0..HISTORIES, run, &events, HISTORIES / 20);
}

#[test]
fn every_applicable_live_count_is_right() {
    let run = |seed| run_history(seed, WITH_LIVE_COUNTS);
    simulation::assert_no_violation(0..HISTORIES, run, &[Event::LIVE_COUNTS], HISTORIES / 50);
}
