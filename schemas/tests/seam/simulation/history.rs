//! The end of a history without faults, and runs of many histories.

use std::num::NonZero;
use std::ops::Range;

use super::actors::{Actor, start_batch, start_worker};
use super::{Event, EventCounts, Invariant, Phase, SharedWorld, ViewKind, Violation};

const STEPS_MAX: usize = 2000;
const FINAL_RUNS: u64 = 2;

/// Runs without faults. First, workers alone must make complete views readable. Then, with batch
/// runs, all reads must be answered and include everything.
pub(crate) fn run_undisturbed<K: ViewKind>(world: &SharedWorld<K>) {
    let partitions = 0..world.borrow().partitions();
    let start = |partition| start_worker(world, &world.borrow(), partition);
    let mut workers: Vec<_> = partitions.clone().map(start).collect();
    run_workers(world, &mut workers);
    K::read_everything(world, Phase::AfterWorkers);
    let mut batch = start_batch(world, &world.borrow());
    let completed = || world.borrow().events.get(Event::Completed);
    let target = completed() + FINAL_RUNS;
    for _ in 0..STEPS_MAX {
        step_all(world, &mut workers);
        batch.step(world);
        if completed() >= target {
            break;
        }
    }
    if completed() < target {
        let mut world = world.borrow_mut();
        world.report_violation(Invariant::Complete, "runs do not complete".to_owned());
    }
    run_workers(world, &mut workers);
    for partition in partitions {
        let mut world = world.borrow_mut();
        let state = world.partition_state(partition);
        let offset = state.map(|state| state.position.next_offset);
        if offset != Some(world.log_end(partition)) {
            let description = format!("partition {partition} is at {offset:?} at the end");
            world.report_violation(Invariant::Complete, description);
        }
    }
    K::read_everything(world, Phase::AfterRuns);
}

/// Runs the workers until they have no more work.
fn run_workers<K: ViewKind>(world: &SharedWorld<K>, workers: &mut [Actor<'_, ()>]) {
    let idle_steps_max = world.borrow().stores.idle_steps_max();
    let mut idle_steps = 0;
    for _ in 0..STEPS_MAX {
        let changes = world.borrow().live_changes;
        step_all(world, workers);
        let is_idle = world.borrow().live_changes == changes;
        idle_steps = if is_idle { idle_steps + 1 } else { 0 };
        if idle_steps > idle_steps_max {
            return;
        }
    }
}

fn step_all<K: ViewKind>(world: &SharedWorld<K>, workers: &mut [Actor<'_, ()>]) {
    world.borrow_mut().tick();
    for worker in workers {
        worker.step(world);
    }
}

/// Performs a read while no other actor acts.
pub(crate) fn read_alone<K: ViewKind, T>(
    world: &SharedWorld<K>,
    read: impl Future<Output = T>,
) -> T {
    let mut reader = Actor::new(read);
    loop {
        world.borrow_mut().tick();
        if let Some(answer) = reader.step(world) {
            return answer;
        }
    }
}

/// Runs histories in parallel. No history may violate an invariant, and each of the events must
/// occur more than `limit` times.
pub(crate) fn assert_no_violation(
    seeds: Range<u64>,
    run_history: impl Fn(u64) -> Result<EventCounts, Violation> + Sync,
    events: &[&[Event]],
    limit: u64,
) {
    let counts = run_all(seeds, run_history);
    let counts = counts.unwrap_or_else(|violation| panic!("{violation:?}"));
    for event in events.iter().copied().flatten() {
        let count = counts.get(*event);
        assert!(count > limit, "{event:?} occurred only {count} times");
    }
}

/// Runs histories in parallel. Returns the sums of their events, or a violation.
pub(super) fn run_all(
    seeds: Range<u64>,
    run_history: impl Fn(u64) -> Result<EventCounts, Violation> + Sync,
) -> Result<EventCounts, Violation> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let run_part = |thread: usize| {
        let mut sums = EventCounts::new();
        for seed in seeds.clone().skip(thread).step_by(threads) {
            sums.merge(&run_history(seed)?);
        }
        Ok(sums)
    };
    let run_part = &run_part;
    std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || run_part(thread));
        let handles: Vec<_> = (0..threads).map(start).collect();
        let mut sums = EventCounts::new();
        for handle in handles {
            sums.merge(&handle.join().expect("a thread that ends")?);
        }
        Ok(sums)
    })
}
