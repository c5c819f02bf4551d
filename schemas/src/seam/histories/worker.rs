//! A worker of one partition: reads the partition state and the run records, then rebuilds the
//! state, closes its epoch, or applies micro-batches.

use std::rc::Rc;

use rand::Rng;

use super::world::{CATALOGS, RunRecords, World};
use crate::seam::{Checkpoint, Offset, PartitionState, WorkerStep};

pub(super) struct Worker {
    partition: usize,
    views: &'static [usize],
    at: At,
}

/// The next operation.
enum At {
    ReadState,
    ReadRuns(Option<Rc<PartitionState>>),
    Act(Option<Checkpoint>, RunRecords, WorkerStep),
    Fetch(Folding),
    Apply(Folding, Offset),
}

struct Folding {
    checkpoint: Checkpoint,
    until: Option<Offset>,
    batches: u32,
}

impl Worker {
    pub(super) fn new(partition: usize, world: &World) -> Self {
        Self {
            partition,
            views: CATALOGS[world.catalog],
            at: At::ReadState,
        }
    }

    pub(super) fn step(&mut self, world: &mut World) {
        let at = std::mem::replace(&mut self.at, At::ReadState);
        self.at = match at {
            At::ReadState => At::ReadRuns(world.partition_state(self.partition)),
            At::ReadRuns(partition_state) => self.choose_step(world, partition_state.as_deref()),
            At::Act(expected, runs, step) => {
                match (step, expected) {
                    (WorkerStep::Rebuild, expected) => {
                        world.rebuild(self.partition, expected, &runs.runs);
                    }
                    (WorkerStep::CloseEpoch, Some(checkpoint)) => {
                        world.close_epoch(self.partition, checkpoint)
                    }
                    _ => {}
                }
                At::ReadState
            }
            At::Fetch(folding) => self.fetch(world, folding),
            At::Apply(folding, next) => self.apply(world, folding, next),
        };
    }

    fn choose_step(&self, world: &mut World, partition_state: Option<&PartitionState>) -> At {
        let run_records = world.runs();
        let step = (world.rules.next_step)(partition_state, self.partition, &run_records.runs);
        match (step, partition_state) {
            (WorkerStep::Refresh, _) => At::ReadState,
            (WorkerStep::Fold { until }, Some(partition_state)) => At::Fetch(Folding {
                checkpoint: partition_state.checkpoint(),
                until,
                batches: world.rng.random_range(1..6),
            }),
            (step, partition_state) => At::Act(
                partition_state.map(PartitionState::checkpoint),
                run_records,
                step,
            ),
        }
    }

    fn fetch(&self, world: &mut World, folding: Folding) -> At {
        let from = folding.checkpoint.next_offset;
        let end = world
            .end(self.partition)
            .min(folding.until.unwrap_or(Offset::MAX));
        let next = end.min(from + world.rng.random_range(1..4));
        if next <= from || folding.batches == 0 {
            return At::ReadState;
        }
        At::Apply(folding, next)
    }

    fn apply(&self, world: &mut World, mut folding: Folding, next: Offset) -> At {
        if !world.apply(self.partition, folding.checkpoint, next, self.views) {
            return At::ReadState;
        }
        folding.checkpoint.next_offset = next;
        folding.batches -= 1;
        At::Fetch(folding)
    }
}
