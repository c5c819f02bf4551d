//! Random histories of the protocol for boards.
//!
//! Rows change and are notified late, in any order, more than once; workers, batch runs and readers
//! take turns between single operations on the stores, while slots fall back to earlier states or
//! vanish, processes die and runs are given up. What an answer says of a member must be a state that
//! it had at or after the last notification below the answer's position; and once nothing is
//! disturbed any more, everything must be answered and be what the rows say.
//!
//! The same histories with one rule broken show which rules are needed, and that the histories would
//! find out.

mod batch;
mod canon;
mod cast;
mod editions;
mod live;
mod mutants;
mod publish;
mod reader;
mod records;
mod rules;
mod sums;
mod tally;
mod worker;
mod world;

use std::num::NonZero;
use std::ops::Range;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use batch::Batch;
use canon::{Group, KEYS, PARTITIONS};
use cast::{Cast, Role};
use reader::Reader;
use rules::{REAL, Rules, SUMMED};
use tally::{Event, Law, Tally};
use worker::Worker;
use world::World;

const HISTORIES: u64 = 6_000;
const WORKERS_EACH: usize = 2;
const CALM_STEPS_MAX: usize = 2000;
/// More steps than a worker takes without changing anything while there is something to do.
const IDLE_STEPS: usize = 12;
/// The same where it keeps sums.
const SUMMING_STEPS: usize = 24;

/// A law that was broken.
struct Broken {
    seed: u64,
    law: Law,
    what: String,
}

impl std::fmt::Debug for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "history {} breaks the law {:?}: {}",
            self.seed, self.law, self.what
        )
    }
}

/// One history: how often each thing happened in it, or which law it breaks.
fn history(seed: u64, rules: Rules) -> Result<Tally, Broken> {
    let mut world = World::new(rules, SmallRng::seed_from_u64(seed));
    disturbed(&mut world);
    if world.broken.is_none() {
        calm(&mut world);
    }
    match world.broken {
        None => Ok(world.tally),
        Some((law, what)) => Err(Broken { seed, law, what }),
    }
}

fn disturbed(world: &mut World) {
    let mut cast = Cast::default();
    for partition in 0..PARTITIONS {
        cast.enter(&[Role::Worker(partition); WORKERS_EACH], world);
    }
    cast.enter(&[Role::Batch; 2], world);
    cast.enter(&[Role::Reader; 5], world);
    let rate = world.rng.random_range(0.0..0.05);
    let often = world.rng.random();
    let undone = if often {
        world.rng.random_range(0.0..0.3)
    } else {
        0.0
    };
    let changing = world.rng.random_range(0.05..0.3);
    let falling = if world.rules.keeps_sums && world.rng.random() {
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
            0..25 => world.tell(),
            25..30 => world.relay(),
            30 => world.dead_letter(),
            _ => {}
        }
        if world.rng.random_bool(rate) {
            cast.crash(world);
        }
        let partition = world.rng.random_range(0..PARTITIONS);
        if world.rng.random_bool(undone) {
            world.undo_roll(partition);
        }
        // Sums are in danger where a slot falls back and comes to the same fence by other states.
        if world.rules.keeps_sums && world.rng.random_bool(falling) {
            world.fall_back(partition);
        }
        if world.rng.random_bool(rate) {
            if world.rng.random_ratio(17, 20) {
                world.fail_over(partition);
            } else {
                world.lose(partition);
            }
        }
        cast.step(world);
        if world.broken.is_some() {
            return;
        }
    }
}

/// Nothing is disturbed any more. First workers alone must make everything whole that a run has
/// completed; then with batch runs everything must be answered and be what the rows say.
fn calm(world: &mut World) {
    world.is_calm = true;
    world.relay_all();
    let mut crew = [0; PARTITIONS].map(|_: usize| Worker::new(0));
    for (partition, worker) in crew.iter_mut().enumerate() {
        *worker = Worker::new(partition);
    }
    settle(world, &mut crew);
    ask(world, false, "with workers alone");
    let before = world.tally.of(Event::Completed);
    let is_done = |world: &World| world.tally.of(Event::Completed) >= before + 2;
    let mut batch = Batch::new();
    for _ in 0..CALM_STEPS_MAX {
        world.tick();
        crew.iter_mut().for_each(|worker| worker.step(world));
        batch.step(world);
        if is_done(world) {
            break;
        }
    }
    if !is_done(world) {
        world.contradict(Law::Whole, "runs don't come to an end".to_owned());
    }
    settle(world, &mut crew);
    for partition in 0..PARTITIONS {
        let stands = world.slot(partition).map(|slot| slot.position.next_offset);
        if stands != Some(world.end(partition)) {
            let what = format!("partition {partition} stands at {stands:?} at the end");
            world.contradict(Law::Whole, what);
        }
    }
    ask(world, true, "at the end");
}

/// Workers go on until they have nothing to do any more.
fn settle(world: &mut World, crew: &mut [Worker]) {
    let mut idle = 0;
    let idle_steps = match world.rules.keeps_sums {
        true => SUMMING_STEPS,
        false => IDLE_STEPS,
    };
    for _ in 0..CALM_STEPS_MAX {
        let before = world.changes;
        world.tick();
        crew.iter_mut().for_each(|worker| worker.step(world));
        idle = if world.changes == before { idle + 1 } else { 0 };
        if idle > idle_steps {
            return;
        }
    }
}

/// Reads every key; all must be answered, and `at_rest` be what the rows say.
fn ask(world: &mut World, at_rest: bool, when: &str) {
    for key in 0..KEYS {
        let mut reader = Reader::new(Some(key));
        while reader.answered.is_none() {
            world.tick();
            reader.step(world);
        }
        if reader.answered == Some(false) {
            world.contradict(Law::Whole, format!("key {key} is not whole {when}"));
            continue;
        }
        for (member, answer) in reader.answer.iter().enumerate() {
            let state = world.canonical(Group::of(key, member));
            if at_rest && *answer != state {
                let what =
                    format!("member {member} of key {key} is {answer:?} {when}, not {state:?}");
                world.contradict(Law::Whole, what);
            }
        }
    }
}

/// What happened in all these histories, or the first law that one of them breaks.
fn histories(seeds: Range<u64>, rules: Rules) -> Result<Tally, Broken> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let of_thread = |thread: usize| {
        let mut all = Tally::default();
        for seed in seeds.clone().skip(thread).step_by(threads) {
            all.merge(&history(seed, rules)?);
        }
        Ok(all)
    };
    let of_thread = &of_thread;
    std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || of_thread(thread));
        let running: Vec<_> = (0..threads).map(start).collect();
        let mut all = Tally::default();
        for thread in running {
            all.merge(&thread.join().expect("a thread that ends")?);
        }
        Ok(all)
    })
}

#[test]
fn every_answer_of_every_history_is_of_states_that_the_members_had() {
    let all = histories(0..HISTORIES, REAL);
    let all = all.unwrap_or_else(|broken| panic!("{broken:?}"));
    for event in Event::ALL {
        let count = all.of(event);
        assert!(
            count > HISTORIES / 20,
            "{event:?} happened only {count} times"
        );
    }
}

#[test]
fn every_sum_of_live_states_that_counts_is_what_the_members_are() {
    let all = histories(0..HISTORIES, SUMMED);
    let all = all.unwrap_or_else(|broken| panic!("{broken:?}"));
    for event in Event::OF_SUMS {
        let count = all.of(event);
        assert!(
            count > HISTORIES / 50,
            "{event:?} happened only {count} times"
        );
    }
}
