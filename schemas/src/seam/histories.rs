//! Random histories of the whole protocol.
//!
//! Workers, batch runs and readers take turns between single operations on the stores, while slots
//! fall back to earlier states or vanish, processes die, runs are given up, views come and go and a
//! partition is added. Every answer is compared with a fold of the log up to the positions that it
//! names; and once nothing is disturbed any more, everything must be answered, and hold everything.
//!
//! The numbers of histories that were once wrong are kept as [`REGRESSIONS`].

mod batch;
mod reader;
mod rules;
mod worker;
mod world;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use batch::Batch;
use reader::Reader;
use rules::{REAL, Rules};
use worker::Worker;
use world::{CATALOGS, Event, KEYS, Tally, World};

const PARTITIONS: usize = 2;
const WORKERS_EACH: usize = 2;
const BATCHES: usize = 2;
const READERS: usize = 3;
const CALM_STEPS_MAX: usize = 2000;
/// More steps than a worker can go without changing anything though there is something to do.
const IDLE_STEPS: usize = 6;

/// What may happen in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Faults {
    /// Everything.
    All,
    /// Processes die; a slot falls back only behind the end of an epoch that no run has recorded.
    UndoneRolls,
}

#[derive(Clone, Copy)]
enum Role {
    Worker(usize),
    Batch,
    Reader,
}

enum Actor {
    Worker(Worker),
    Batch(Batch),
    Reader(Reader),
}

impl Role {
    fn start(self, world: &World) -> Actor {
        match self {
            Self::Worker(partition) => Actor::Worker(Worker::new(partition, world)),
            Self::Batch => Actor::Batch(Batch::new(world)),
            Self::Reader => Actor::Reader(Reader::new(None)),
        }
    }
}

impl Actor {
    fn step(&mut self, world: &mut World) {
        match self {
            Self::Worker(worker) => worker.step(world),
            Self::Batch(batch) => batch.step(world),
            Self::Reader(reader) => reader.step(world),
        }
    }
}

/// The actors of a history; some are quick and some are slow.
#[derive(Default)]
struct Cast {
    actors: Vec<(Role, Actor)>,
    /// Sums of the rates up to each actor.
    rates: Vec<f64>,
}

impl Cast {
    fn enter(&mut self, role: Role, world: &mut World) {
        let rate = world.rng.random::<f64>().powi(2) + 0.02;
        let rate = match role { Role::Reader if world.rng.random() => rate / 8.0, _ => rate };
        self.actors.push((role, role.start(world)));
        self.rates.push(self.rates.last().unwrap_or(&0.0) + rate);
    }

    fn enter_workers(&mut self, partition: usize, world: &mut World) {
        for _ in 0..WORKERS_EACH {
            self.enter(Role::Worker(partition), world);
        }
    }

    fn step(&mut self, world: &mut World) {
        let all = self.rates.last().copied().unwrap_or_default();
        let drawn = world.rng.random::<f64>() * all;
        let next = self.rates.partition_point(|rate| *rate <= drawn);
        self.actors[next].1.step(world);
    }

    fn crash(&mut self, world: &mut World) {
        let which = world.rng.random_range(0..self.actors.len());
        let (role, actor) = &mut self.actors[which];
        *actor = role.start(world);
    }
}

/// One history; what contradicts the protocol is told with its number.
fn history(seed: u64, rules: Rules, faults: Faults) -> Result<Tally, String> {
    let rng = SmallRng::seed_from_u64(seed);
    let mut world = World::new(rules, rng, PARTITIONS);
    disturbed(&mut world, faults);
    if world.wrong.is_none() {
        calm(&mut world);
    }
    if faults == Faults::UndoneRolls && world.tally.of(Event::Healed) > PARTITIONS as u64 {
        world.fail("a slot began anew that had lost nothing".to_owned());
    }
    match world.wrong {
        None => Ok(world.tally),
        Some(why) => Err(format!("history {seed}: {why}")),
    }
}

fn disturbed(world: &mut World, faults: Faults) {
    let mut cast = Cast::default();
    for partition in 0..PARTITIONS {
        cast.enter_workers(partition, world);
    }
    for role in [[Role::Batch; BATCHES].as_slice(), &[Role::Reader; READERS]].concat() {
        cast.enter(role, world);
    }
    let rate = world.rng.random::<f64>() * 0.05;
    let undone = match faults == Faults::UndoneRolls || world.rng.random() {
        true => world.rng.random_range(0.0..0.5),
        false => 0.0,
    };
    let corrections = world.rng.random_range(0.1..0.5);
    for _ in 0..world.rng.random_range(100..400) {
        world.tick();
        let partition = world.rng.random_range(0..world.partitions());
        if world.rng.random_bool(0.3) {
            append(world, partition, corrections);
        }
        if world.rng.random_bool(undone) {
            world.undo_roll(partition, faults == Faults::All);
        }
        if faults == Faults::All && world.rng.random_bool(rate) {
            match world.rng.random_ratio(17, 20) {
                true => world.fail_over(partition),
                false => world.lose(partition),
            }
        }
        if world.rng.random_bool(rate) {
            cast.crash(world);
            world.note(Event::Crashed);
        }
        if world.rng.random_bool(0.01) {
            deploy(world);
        }
        if faults == Faults::All && world.tally.of(Event::Added) == 0 && world.rng.random_bool(0.002) {
            world.add_partition();
            world.note(Event::Added);
            cast.enter_workers(world.partitions() - 1, world);
        }
        cast.step(world);
        if world.wrong.is_some() {
            return;
        }
    }
}

fn append(world: &mut World, partition: usize, corrections: f64) {
    let key = world.rng.random_range(0..KEYS);
    let count = if world.rng.random_bool(corrections) { -1 } else { 1 };
    let record = world.rng.random_bool(0.9).then_some((key, count));
    world.append(partition, record);
}

/// The next deployment, or back to the one before. Processes that run stay as they are.
fn deploy(world: &mut World) {
    let back = world.catalog > 0 && world.rng.random_ratio(1, 3);
    let next = if back { world.catalog - 1 } else { world.catalog + 1 };
    world.catalog = next.min(CATALOGS.len() - 1);
    world.note(Event::Deployed);
}

/// Nothing is disturbed any more. First workers alone must make everything whole that a run has
/// completed; then with batch runs everything must be answered and hold the whole log.
fn calm(world: &mut World) {
    let partitions = 0..world.partitions();
    let mut crew: Vec<Worker> =
        partitions.clone().map(|partition| Worker::new(partition, world)).collect();
    settle(world, &mut crew);
    ask(world, &[0], "with workers alone");
    let mut batch = Batch::new(world);
    for _ in 0..CALM_STEPS_MAX {
        world.tick();
        crew.iter_mut().for_each(|worker| worker.step(world));
        batch.step(world);
        if batch.completed >= 2 {
            break;
        }
    }
    if batch.completed < 2 {
        world.fail("runs don't come to an end".to_owned());
    }
    settle(world, &mut crew);
    for partition in partitions {
        let stands = world.slot(partition).map(|slot| slot.position.next_offset);
        if stands != Some(world.end(partition)) {
            world.fail(format!("partition {partition} stands at {stands:?} at the end"));
        }
    }
    ask(world, CATALOGS[world.catalog], "at the end");
}

/// Workers go on until they have nothing to do any more.
fn settle(world: &mut World, crew: &mut [Worker]) {
    let mut idle = 0;
    for _ in 0..CALM_STEPS_MAX {
        let before = world.changes;
        world.tick();
        crew.iter_mut().for_each(|worker| worker.step(world));
        idle = if world.changes == before { idle + 1 } else { 0 };
        if idle > IDLE_STEPS {
            return;
        }
    }
}

/// Reads every key of some views; all must be answered.
fn ask(world: &mut World, views: &[usize], when: &str) {
    for view in views.iter().filter(|view| !world.is_forgotten(**view)).copied().collect::<Vec<_>>() {
        for key in 0..KEYS {
            let mut reader = Reader::new(Some((view, key)));
            while reader.answered.is_none() {
                reader.step(world);
            }
            if reader.answered == Some(false) {
                let stand = world.describe();
                world.fail(format!("key {key} of view {view} is not whole {when}: {stand}"));
            }
        }
    }
}

/// Histories with these numbers: how many, all they did, and the first that was wrong.
fn histories(seeds: std::ops::Range<u64>, rules: Rules, faults: Faults) -> Result<Tally, String> {
    let mut all = Tally::default();
    for seed in seeds {
        all.merge(&history(seed, rules, faults)?);
    }
    Ok(all)
}

#[test]
fn try_out() {
    let n = std::env::var("N").map_or(2000, |n| n.parse().unwrap());
    let start = std::time::Instant::now();
    let faults = [Faults::All, Faults::UndoneRolls];
    let only = std::env::var("ONLY").unwrap_or_default();
    let from: u64 = std::env::var("FROM").map_or(0, |n| n.parse().unwrap());
    for (name, rules) in [("real", REAL), ("gt", rules::GT), ("nobound", rules::NO_BOUND), ("order", rules::ORDER),
        ("nosplit", rules::NO_SPLIT), ("nooldest", rules::NO_OLDEST), ("noverify", rules::NO_VERIFY), ("nosince", rules::NO_SINCE),
        ("boundonly", rules::BOUND_ONLY), ("nohint", rules::NO_HINT), ("fewslots", rules::FEW_SLOTS), ("norewrite", rules::NO_REWRITE), ("notable", rules::NO_TABLE), ("proposed", rules::PROPOSED), ("passed", rules::PASSED)] {
        if !only.is_empty() && only != name { continue; }
        for faults in faults {
            if std::env::var("FAULTS").is_ok_and(|f| f != format!("{faults:?}")) { continue; }
            let mut bad = Vec::new();
            let mut all = Tally::default();
            for seed in from..from + n {
                match history(seed, rules, faults) { Ok(t) => all.merge(&t), Err(why) => bad.push(why) }
            }
            println!("{name} {faults:?} {} bad {:?}  {:?} {:?}", bad.len(), bad.iter().take(3).collect::<Vec<_>>(), Event::ALL.map(|e| format!("{e:?} {}", all.of(e))).join(", "), start.elapsed());
        }
    }
}
