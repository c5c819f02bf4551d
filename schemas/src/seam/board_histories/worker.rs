//! A worker of one partition: reads the partition state and the run records, then rebuilds the
//! state, closes its epoch, or applies micro-batches of notifications. It reads the notified groups
//! from the entity store.

use std::rc::Rc;

use rand::Rng;

use super::count_update::CountUpdate;
use super::entity_rows::{Group, MEMBERS, State};
use super::live::StateRead;
use super::live_counts::LiveCountChange;
use super::world::{RunRecords, World};
use crate::seam::{self, Checkpoint, Offset, PartitionState, WorkerStep};

const REST_MAX: u64 = 80;

pub(super) struct Worker {
    partition: usize,
    /// The time at which the worker continues.
    later: u64,
    at: At,
}

/// The next operation.
enum At {
    ReadState,
    ReadRuns(Option<Rc<PartitionState>>),
    Act(Option<Checkpoint>, RunRecords, WorkerStep),
    Fetch(Folding),
    ReadGroup(Folding, Micro),
    /// The remaining keys whose live counts are to be read.
    ReadCount(Folding, Micro, Vec<usize>),
    ReadHead(Folding, Micro, Vec<usize>, StateRead),
    Apply(Folding, Micro),
}

struct Folding {
    checkpoint: Checkpoint,
    run_records: RunRecords,
    until: Option<Offset>,
    batches: u32,
}

/// A micro-batch.
struct Micro {
    next: Offset,
    groups: Vec<(Group, State)>,
    /// The number of groups that have been read.
    read: usize,
    /// The changes of live counts.
    sums: Vec<LiveCountChange>,
}

impl Worker {
    pub(super) fn new(partition: usize) -> Self {
        Self {
            partition,
            later: 0,
            at: At::ReadState,
        }
    }

    pub(super) fn step(&mut self, world: &mut World) {
        if world.now < self.later {
            return;
        }
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
            At::ReadGroup(folding, mut micro) => {
                if let Some((group, state)) = micro.groups.get_mut(micro.read) {
                    if world.rules.reads_groups {
                        *state = world.current_state(*group);
                    }
                    micro.read += 1;
                    At::ReadGroup(folding, micro)
                } else {
                    let keys = sums_of(world, &micro);
                    At::ReadCount(folding, micro, keys)
                }
            }
            At::ReadCount(folding, micro, keys) => match keys.last() {
                Some(key) => {
                    let read = world.read(self.partition, *key);
                    At::ReadHead(folding, micro, keys, read)
                }
                None => self.apply(world, folding, &micro),
            },
            At::ReadHead(folding, micro, keys, read) => {
                // Sometimes pauses, so that its reads become stale.
                if !world.is_undisturbed && world.rng.random_ratio(1, 4) {
                    self.later = world.now + world.rng.random_range(0..REST_MAX);
                }
                self.update_count(world, folding, micro, keys, read)
            }
            At::Apply(folding, micro) => self.apply(world, folding, &micro),
        };
    }

    fn choose_step(&self, world: &mut World, partition_state: Option<&PartitionState>) -> At {
        let run_records = world.runs();
        let step = seam::next_step(partition_state, self.partition, &run_records.runs);
        match (step, partition_state) {
            (WorkerStep::Refresh, _) => At::ReadState,
            (WorkerStep::Fold { until }, Some(partition_state)) => At::Fetch(Folding {
                checkpoint: partition_state.checkpoint(),
                run_records,
                until,
                batches: world.rng.random_range(1..12),
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
        let groups = world.notified(self.partition, from, next);
        let micro = Micro {
            next,
            groups,
            read: 0,
            sums: Vec::new(),
        };
        At::ReadGroup(folding, micro)
    }

    /// Computes the change of the live count of the last key.
    fn update_count(
        &self,
        world: &mut World,
        folding: Folding,
        mut micro: Micro,
        mut keys: Vec<usize>,
        read: StateRead,
    ) -> At {
        let Some(key) = keys.pop() else {
            return At::Apply(folding, micro);
        };
        let new = |member| {
            let mut groups = micro.groups.iter();
            let found = groups.find(|(group, _)| *group == Group::new(key, member));
            found.map(|(_, state)| *state)
        };
        let new: [Option<State>; MEMBERS] = std::array::from_fn(new);
        let head = world.head(key);
        let summing = CountUpdate {
            partition: self.partition,
            checkpoint: folding.checkpoint,
            run_records: &folding.run_records,
            key,
            new,
        };
        match summing.change(world, read, head) {
            Some(change) => micro.sums.push(change),
            None => return At::ReadState,
        }
        At::ReadCount(folding, micro, keys)
    }

    fn apply(&self, world: &mut World, mut folding: Folding, micro: &Micro) -> At {
        if !world.apply(
            self.partition,
            folding.checkpoint,
            micro.next,
            &micro.groups,
            &micro.sums,
        ) {
            return At::ReadState;
        }
        folding.checkpoint.next_offset = micro.next;
        folding.batches -= 1;
        At::Fetch(folding)
    }
}

/// Returns the keys whose live counts a worker changes. Rules without live counts have none, and
/// some keys are skipped at random.
fn sums_of(world: &mut World, micro: &Micro) -> Vec<usize> {
    let mut keys: Vec<usize> = micro.groups.iter().map(|(group, _)| group.key()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|_| world.rules.keeps_live_counts && world.rng.random_ratio(3, 4));
    keys
}
