//! Random histories of the protocol for boards.
//!
//! Rows change, and notifications arrive late, in any order, and repeatedly. Workers, batch runs
//! and readers interleave single operations on the stores. Meanwhile partition states revert or
//! vanish, processes die, and runs are abandoned. In an answer, the state of a member must be one
//! that it had at or after the last notification below the answer's position. After the faults end,
//! every read must be answered and equal the rows.
//!
//! The same histories with one rule broken (mutants) show which rules are needed, and that the
//! histories detect their absence.

mod actors;
mod batch;
mod count_update;
mod entity_rows;
mod events;
mod live;
mod live_counts;
mod live_entry;
mod mutants;
mod publish;
mod reader;
mod records;
mod rules;
mod versions;
mod worker;
mod world;

use std::num::NonZero;
use std::ops::Range;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use actors::{Actors, Role};
use batch::Batch;
use entity_rows::{Group, KEYS, PARTITIONS};
use events::{Event, EventCounts, Law};
use reader::Reader;
use rules::{REAL, Rules, WITH_LIVE_COUNTS};
use worker::Worker;
use world::World;

const HISTORIES: u64 = 6_000;
const WORKERS_EACH: usize = 2;
const UNDISTURBED_STEPS_MAX: usize = 2000;
/// More steps than a worker takes without a change while work remains.
const IDLE_STEPS: usize = 12;
/// The same for a worker that maintains live counts.
const IDLE_STEPS_WITH_COUNTS: usize = 24;

/// A violation of a law.
struct Violation {
    seed: u64,
    law: Law,
    what: String,
}

impl std::fmt::Debug for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "history {} breaks the law {:?}: {}",
            self.seed, self.law, self.what
        )
    }
}

/// Runs one history. Returns the number of each event, or the violated law.
fn history(seed: u64, rules: Rules) -> Result<EventCounts, Violation> {
    let mut world = World::new(rules, SmallRng::seed_from_u64(seed));
    run_disturbed(&mut world);
    if world.violation.is_none() {
        run_undisturbed(&mut world);
    }
    match world.violation {
        None => Ok(world.tally),
        Some((law, what)) => Err(Violation { seed, law, what }),
    }
}

fn run_disturbed(world: &mut World) {
    let mut actors = Actors::default();
    for partition in 0..PARTITIONS {
        actors.add(&[Role::Worker(partition); WORKERS_EACH], world);
    }
    actors.add(&[Role::Batch; 2], world);
    actors.add(&[Role::Reader; 5], world);
    let rate = world.rng.random_range(0.0..0.05);
    let often = world.rng.random();
    let undone = if often {
        world.rng.random_range(0.0..0.3)
    } else {
        0.0
    };
    let changing = world.rng.random_range(0.05..0.3);
    let falling = if world.rules.keeps_live_counts && world.rng.random() {
        world.rng.random_range(0.0..0.03)
    } else {
        0.0
    };
    for _ in 0..world.rng.random_range(150..500) {
        world.tick();
        if world.rng.random_bool(changing) {
            world.change();
        }
        match world.rng.random_range(0..100) {
            0..25 => world.deliver(),
            25..30 => world.relay(),
            30 => world.dead_letter(),
            _ => {}
        }
        if world.rng.random_bool(rate) {
            actors.crash(world);
        }
        let partition = world.rng.random_range(0..PARTITIONS);
        if world.rng.random_bool(undone) {
            world.undo_epoch_end(partition);
        }
        // Live counts are at risk if a state reverts and reaches the same checkpoint again.
        if world.rules.keeps_live_counts && world.rng.random_bool(falling) {
            world.revert_slightly(partition);
        }
        if world.rng.random_bool(rate) {
            if world.rng.random_ratio(17, 20) {
                world.fail_over(partition);
            } else {
                world.lose(partition);
            }
        }
        actors.step(world);
        if world.violation.is_some() {
            return;
        }
    }
}

/// Runs without faults. First, workers alone must make all completed boards readable. Then, with
/// batch runs, all reads must be answered and equal the rows.
fn run_undisturbed(world: &mut World) {
    world.is_undisturbed = true;
    world.relay_all();
    let mut workers = [0; PARTITIONS].map(|_: usize| Worker::new(0));
    for (partition, worker) in workers.iter_mut().enumerate() {
        *worker = Worker::new(partition);
    }
    settle(world, &mut workers);
    read_all_keys(world, false, "with workers alone");
    let before = world.tally.get(Event::Completed);
    let is_done = |world: &World| world.tally.get(Event::Completed) >= before + 2;
    let mut batch = Batch::new();
    for _ in 0..UNDISTURBED_STEPS_MAX {
        world.tick();
        workers.iter_mut().for_each(|worker| worker.step(world));
        batch.step(world);
        if is_done(world) {
            break;
        }
    }
    if !is_done(world) {
        world.report_violation(Law::Complete, "runs do not complete".to_owned());
    }
    settle(world, &mut workers);
    for partition in 0..PARTITIONS {
        let position = world
            .partition_state(partition)
            .map(|partition_state| partition_state.position.next_offset);
        if position != Some(world.end(partition)) {
            let what = format!("partition {partition} is at {position:?} at the end");
            world.report_violation(Law::Complete, what);
        }
    }
    read_all_keys(world, true, "at the end");
}

/// Runs the workers until they have no more work.
fn settle(world: &mut World, workers: &mut [Worker]) {
    let mut idle = 0;
    let idle_steps = match world.rules.keeps_live_counts {
        true => IDLE_STEPS_WITH_COUNTS,
        false => IDLE_STEPS,
    };
    for _ in 0..UNDISTURBED_STEPS_MAX {
        let before = world.changes;
        world.tick();
        workers.iter_mut().for_each(|worker| worker.step(world));
        idle = if world.changes == before { idle + 1 } else { 0 };
        if idle > idle_steps {
            return;
        }
    }
}

/// Reads every key. All reads must be answered, and equal the rows if `at_rest`.
fn read_all_keys(world: &mut World, at_rest: bool, when: &str) {
    for key in 0..KEYS {
        let mut reader = Reader::new(Some(key));
        while reader.answered.is_none() {
            world.tick();
            reader.step(world);
        }
        if reader.answered == Some(false) {
            world.report_violation(Law::Complete, format!("key {key} is not readable {when}"));
            continue;
        }
        for (member, answer) in reader.answer.iter().enumerate() {
            let state = world.current_state(Group::new(key, member));
            if at_rest && *answer != state {
                let what =
                    format!("member {member} of key {key} is {answer:?} {when}, not {state:?}");
                world.report_violation(Law::Complete, what);
            }
        }
    }
}

/// Runs histories in parallel. Returns the sums of their events, or the first violation.
fn histories(seeds: Range<u64>, rules: Rules) -> Result<EventCounts, Violation> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let of_thread = |thread: usize| {
        let mut all = EventCounts::default();
        for seed in seeds.clone().skip(thread).step_by(threads) {
            all.merge(&history(seed, rules)?);
        }
        Ok(all)
    };
    let of_thread = &of_thread;
    std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || of_thread(thread));
        let running: Vec<_> = (0..threads).map(start).collect();
        let mut all = EventCounts::default();
        for thread in running {
            all.merge(&thread.join().expect("a thread that ends")?);
        }
        Ok(all)
    })
}

#[test]
fn every_answer_has_states_of_the_members() {
    let all = histories(0..HISTORIES, REAL);
    let all = all.unwrap_or_else(|violation| panic!("{violation:?}"));
    for event in Event::ALL {
        let count = all.get(event);
        assert!(
            count > HISTORIES / 20,
            "{event:?} happened only {count} times"
        );
    }
}

#[test]
fn every_applicable_live_count_is_right() {
    let all = histories(0..HISTORIES, WITH_LIVE_COUNTS);
    let all = all.unwrap_or_else(|violation| panic!("{violation:?}"));
    for event in Event::OF_LIVE_COUNTS {
        let count = all.get(event);
        assert!(
            count > HISTORIES / 50,
            "{event:?} happened only {count} times"
        );
    }
}
