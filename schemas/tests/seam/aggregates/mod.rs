//! Simulated histories of aggregate views.
//!
//! A record of the log increments a count. Each view weights the counts differently. Deployments
//! add a view and remove another one, and a log partition is added. An answer must equal the sum of
//! the log below its positions.

mod batch;
mod mutants;
mod reader;
mod rows;
mod rules;
mod stores;

use rand::Rng;
use schemas::seam::RunState;

use crate::simulation::{
    self, Actors, Event, EventCounts, Invariant, PARTITIONS, ViewKind, Violation,
};
use rules::{REAL, Rules};
use stores::{Aggregates, Increment, KEYS, SharedWorld, World};

const HISTORIES: u64 = 20_000;
const READERS: usize = 3;

/// The faults of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Faults {
    All,
    /// Processes die, and a partition state reverts only the end of an epoch that no run has
    /// recorded. So no state loses what a run depends on, and none may be rebuilt.
    UndoneEpochEnds,
}

/// Runs a history. Returns how often each event occurred, or the first violation.
fn run_history(seed: u64, rules: Rules, faults: Faults) -> Result<EventCounts, Violation> {
    let world = World::new(seed, rules.protocol, |rng| Aggregates::new(rules, rng));
    let world = SharedWorld::new(world);
    run_disturbed(&world, faults);
    if world.borrow().violation.is_none() {
        simulation::run_undisturbed(&world);
    }
    let mut world = world.into_inner();
    let first_builds = PARTITIONS as u64;
    if faults == Faults::UndoneEpochEnds && world.events.get(Event::Rebuilt) > first_builds {
        let description = "a partition state was rebuilt".to_owned();
        world.report_violation(Invariant::Retained, description);
    }
    world.into_outcome()
}

/// Runs the random part of a history, with faults.
fn run_disturbed(shared: &SharedWorld, faults: Faults) {
    let mut actors = Actors::start(shared, READERS);
    let (steps, disturbances) = {
        let world = &mut *shared.borrow_mut();
        let undoes_epoch_ends = faults == Faults::UndoneEpochEnds || world.rng.random();
        let disturbances = Disturbances {
            faults,
            undo_probability: world.draw_probability(undoes_epoch_ends, 0.5),
            fault_probability: world.draw_probability(true, 0.05),
            negative_share: world.rng.random_range(0.1..0.5),
        };
        (world.rng.random_range(100..400), disturbances)
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
    faults: Faults,
    undo_probability: f64,
    fault_probability: f64,
    /// The share of negative increments.
    negative_share: f64,
}

/// Changes the log and the deployment, and causes faults.
fn disturb(world: &mut World, actors: &mut Actors<'_, Aggregates>, disturbances: &Disturbances) {
    let Disturbances {
        faults,
        undo_probability,
        fault_probability,
        negative_share,
    } = *disturbances;
    world.tick();
    let partition = world.rng.random_range(0..world.partitions());
    if world.rng.random_bool(0.3) {
        append_randomly(world, partition, negative_share);
    }
    if world.rng.random_bool(undo_probability) {
        undo_epoch_end(world, partition, faults);
    }
    if world.rng.random_bool(fault_probability) {
        actors.crash(world);
    }
    if world.rng.random_bool(0.01) {
        deploy(world);
    }
    if faults == Faults::All {
        world.lose_randomly(partition, fault_probability);
        if world.events.get(Event::PartitionAdded) == 0 && world.rng.random_bool(0.002) {
            world.add_partition();
            world.count_event(Event::PartitionAdded);
            actors.add_workers(world, world.partitions() - 1);
        }
    }
}

/// Appends an increment of a random key, or sometimes a dead letter.
fn append_randomly(world: &mut World, partition: usize, negative_share: f64) {
    let key = world.rng.random_range(0..KEYS);
    let is_negative = world.rng.random_bool(negative_share);
    let count = if is_negative { -1 } else { 1 };
    let increment = Increment { key, count };
    let record = world.rng.random_bool(0.9).then_some(increment);
    world.append(partition, record);
}

/// Undoes the end of an epoch that no run has recorded, or has only proposed if all faults occur.
fn undo_epoch_end(world: &mut World, partition: usize, faults: Faults) {
    let unrecorded = match world.last_run() {
        Some(run) if faults == Faults::All && run.state == RunState::Proposed => run.epoch,
        Some(run) => run.epoch + 1,
        None => 1,
    };
    world.undo_epoch_end(partition, |_, ended| ended == unrecorded);
}

/// Deploys the views of the next or the previous deployment. Running actors keep theirs.
fn deploy(world: &mut World) {
    let is_rollback = world.deployment > 0 && world.rng.random_ratio(1, 3);
    let deployment = if is_rollback {
        world.deployment - 1
    } else {
        world.deployment + 1
    };
    world.deployment = deployment.min(Aggregates::DEPLOYMENTS.len() - 1);
    world.count_event(Event::Deployed);
}

#[test]
fn every_answer_is_the_sum_of_the_log() {
    let run = |seed| run_history(seed, REAL, Faults::All);
    let events = [Event::COMMON, Event::AGGREGATES];
    simulation::assert_no_violation(0..HISTORIES, run, &events, HISTORIES / 10);
}

#[test]
fn no_state_without_a_loss_is_rebuilt() {
    let run = |seed| run_history(seed, REAL, Faults::UndoneEpochEnds);
    let events: [&[Event]; 1] = [&[Event::FailedOver]];
    simulation::assert_no_violation(0..HISTORIES / 10, run, &events, HISTORIES / 10);
}
