//! The stores of aggregates: the log of increments and the live deltas.

use std::rc::Rc;

use rand::Rng;
use rand::rngs::SmallRng;
use schemas::seam::{Checkpoint, Epoch, Generation, Offset, PartitionState};

use super::batch;
use super::reader::{Query, Reader};
use super::rows::ViewRows;
use super::rules::Rules;
use crate::simulation::{self, Fold, Invariant, Phase, ViewKind, end_step, read_alone};

pub(super) const KEYS: usize = 2;
/// The weight of an increment in each view, so that views cannot be confused.
const WEIGHTS: [i64; Aggregates::VIEWS.len()] = [1, 1000, 1_000_000];
const IDLE_STEPS_MAX: usize = 6;

pub(super) type World = simulation::World<Aggregates>;
pub(super) type SharedWorld = simulation::SharedWorld<Aggregates>;

/// The count of each key; `None` without increments.
pub(super) type Counts = [Option<i64>; KEYS];

/// A record of the log.
#[derive(Clone, Copy)]
pub(super) struct Increment {
    pub(super) key: usize,
    pub(super) count: i64,
}

#[derive(Clone, Copy)]
pub(super) struct Delta {
    generation: Generation,
    epoch: Epoch,
    view: usize,
    key: usize,
    count: i64,
}

/// The aggregate views, with the stores that only they have.
pub(super) struct Aggregates {
    pub(super) rules: Rules,
    /// A row is refused once a newer run is recorded. If unset, only stamps decide.
    pub(super) refuses_overtaken: bool,
    /// The number of recorded results.
    pub(super) results: u64,
    pub(super) views: [ViewRows; Self::VIEWS.len()],
}

/// A partition state, and the count of the deltas of a key in each epoch.
pub(super) type StateWithDeltas = (Rc<PartitionState>, Vec<(Epoch, i64)>);

impl Aggregates {
    pub(super) fn new(rules: Rules, rng: &mut SmallRng) -> Self {
        Self {
            rules,
            refuses_overtaken: rng.random(),
            results: 0,
            views: Default::default(),
        }
    }
}

impl ViewKind for Aggregates {
    type Record = Increment;
    type LogSummary = Counts;
    type LiveData = Vec<Delta>;

    const VIEWS: &'static [&'static str] = &["plain@1", "scaled@1", "scaled@2"];
    /// The first view is in all deployments. The third replaces the second.
    const DEPLOYMENTS: &'static [&'static [usize]] = &[&[0, 1], &[0, 1, 2], &[0, 2]];
    const MICRO_BATCHES_MAX: u32 = 5;
    const BATCH_SPEED: f64 = 1.0;

    fn add_to_summary(sums: &mut Counts, record: Increment) {
        let sum = &mut sums[record.key];
        *sum = Some(sum.unwrap_or(0) + record.count);
    }

    fn delete_pruned(
        deltas: &mut Vec<Delta>,
        generation: Generation,
        oldest: Epoch,
        rng: &mut SmallRng,
    ) {
        if rng.random() {
            deltas.retain(|delta| delta.generation == generation && delta.epoch >= oldest);
        }
    }

    async fn apply_micro_batch(world: &SharedWorld, fold: &Fold, next: Offset) -> bool {
        end_step().await;
        world.borrow_mut().apply_increments(fold, next)
    }

    fn batch_views(world: &World) -> Vec<usize> {
        let views = world.deployed_views().iter().copied();
        views.filter(|view| !world.is_deleted(*view)).collect()
    }

    async fn run_batch(world: &SharedWorld, views: Vec<usize>) {
        batch::run_batch(world, &views).await;
    }

    async fn run_reader(world: &SharedWorld) {
        let mut reader = Reader::default();
        loop {
            reader.read(world, None).await;
            end_step().await;
        }
    }

    fn idle_steps_max(&self) -> usize {
        IDLE_STEPS_MAX
    }

    /// Reads every key of the deployed views; before the runs, only of the oldest one, because the
    /// others may not have a complete run.
    fn read_everything(world: &SharedWorld, phase: Phase) {
        let views: &[usize] = match phase {
            Phase::AfterWorkers => &[0],
            Phase::AfterRuns => world.borrow().deployed_views(),
        };
        for view in views.iter().copied() {
            if world.borrow().is_deleted(view) {
                continue;
            }
            for query in (0..KEYS).map(|key| Query { view, key }) {
                let mut reader = Reader::default();
                if !read_alone(world, reader.read(world, Some(query))) {
                    let description = format!("{query:?} is refused {phase:?}");
                    let mut world = world.borrow_mut();
                    world.report_violation(Invariant::Complete, description);
                }
            }
        }
    }
}

impl World {
    /// Sums the log below the offsets for a key of a view.
    pub(super) fn sum_log(&self, view: usize, key: usize, offsets: &[Offset]) -> Option<i64> {
        let sums = offsets.iter().enumerate();
        let sums = sums.filter_map(|(partition, offset)| self.log_summary(partition, *offset)[key]);
        sums.reduce(|a, b| a + b).map(|sum| sum * WEIGHTS[view])
    }

    /// Adds the increments up to `next` to the epoch of the checkpoint. Returns whether the
    /// checkpoint was the expected one.
    fn apply_increments(&mut self, fold: &Fold, next: Offset) -> bool {
        self.apply(fold, next, |deltas, records| {
            for increment in records.iter().flatten() {
                for view in fold.views {
                    add_delta(deltas, &fold.checkpoint, *view, *increment);
                }
            }
        })
    }

    /// Reads a partition state and the retained deltas of a key in its generation.
    pub(super) fn read_deltas(&self, partition: usize, query: Query) -> Option<StateWithDeltas> {
        let live = self.live_state(partition);
        let state = live.partition_state.clone()?;
        let is_retained = |delta: &&Delta| {
            delta.generation == state.generation
                && delta.epoch >= state.oldest
                && (delta.view, delta.key) == (query.view, query.key)
        };
        let deltas = live.data.iter().filter(is_retained);
        let deltas = deltas.map(|delta| (delta.epoch, delta.count)).collect();
        Some((state, deltas))
    }
}

fn add_delta(deltas: &mut Vec<Delta>, checkpoint: &Checkpoint, view: usize, record: Increment) {
    let new = Delta {
        generation: checkpoint.generation,
        epoch: checkpoint.epoch,
        view,
        key: record.key,
        count: record.count * WEIGHTS[view],
    };
    let id = |delta: &Delta| (delta.generation, delta.epoch, delta.view, delta.key);
    match deltas.iter_mut().find(|delta| id(delta) == id(&new)) {
        Some(delta) => delta.count += new.count,
        None => deltas.push(new),
    }
}
