//! A worker of one partition: it looks around, then takes some micro-batches of notifications and
//! reads the groups again that they name.

use std::rc::Rc;

use rand::Rng;

use super::canon::{Group, State};
use super::world::{RunsSeen, World};
use crate::seam::{self, Fence, Offset, Slot, Step};

pub(super) struct Worker {
    partition: usize,
    at: At,
}

/// What comes next.
enum At {
    ReadSlot,
    ReadRuns(Option<Rc<Slot>>),
    Act(Option<Fence>, RunsSeen, Step),
    Fetch(Folding),
    ReadGroup(Folding, Micro),
    Apply(Folding, Micro),
}

struct Folding {
    fence: Fence,
    until: Option<Offset>,
    batches: u32,
}

/// A micro-batch.
struct Micro {
    next: Offset,
    groups: Vec<(Group, State)>,
    /// How many of the groups have been read.
    read: usize,
}

impl Worker {
    pub(super) fn new(partition: usize) -> Self {
        Self {
            partition,
            at: At::ReadSlot,
        }
    }

    pub(super) fn step(&mut self, world: &mut World) {
        let at = std::mem::replace(&mut self.at, At::ReadSlot);
        self.at = match at {
            At::ReadSlot => At::ReadRuns(world.slot(self.partition)),
            At::ReadRuns(slot) => self.look(world, slot.as_deref()),
            At::Act(seen, runs, step) => {
                match (step, seen) {
                    (Step::Heal, seen) => world.heal(self.partition, seen, &runs.runs),
                    (Step::Impose, Some(fence)) => world.impose(self.partition, fence),
                    _ => {}
                }
                At::ReadSlot
            }
            At::Fetch(folding) => self.fetch(world, folding),
            At::ReadGroup(folding, mut micro) => {
                if let Some((group, state)) = micro.groups.get_mut(micro.read) {
                    if world.rules.rereads {
                        *state = world.canonical(*group);
                    }
                    micro.read += 1;
                    At::ReadGroup(folding, micro)
                } else {
                    At::Apply(folding, micro)
                }
            }
            At::Apply(folding, micro) => self.apply(world, folding, &micro),
        };
    }

    fn look(&self, world: &mut World, slot: Option<&Slot>) -> At {
        let seen = world.runs();
        let step = seam::next_step(slot, self.partition, &seen.runs);
        match (step, slot) {
            (Step::LookAgain, _) => At::ReadSlot,
            (Step::Fold { until }, Some(slot)) => At::Fetch(Folding {
                fence: slot.fence(),
                until,
                batches: world.rng.random_range(1..12),
            }),
            (step, slot) => At::Act(slot.map(Slot::fence), seen, step),
        }
    }

    fn fetch(&self, world: &mut World, folding: Folding) -> At {
        let from = folding.fence.next_offset;
        let end = world
            .end(self.partition)
            .min(folding.until.unwrap_or(Offset::MAX));
        let next = end.min(from + world.rng.random_range(1..4));
        if next <= from || folding.batches == 0 {
            return At::ReadSlot;
        }
        let groups = world.notified(self.partition, from, next);
        let read = 0;
        At::ReadGroup(folding, Micro { next, groups, read })
    }

    fn apply(&self, world: &mut World, mut folding: Folding, micro: &Micro) -> At {
        if !world.apply(self.partition, folding.fence, micro.next, &micro.groups) {
            return At::ReadSlot;
        }
        folding.fence.next_offset = micro.next;
        folding.batches -= 1;
        At::Fetch(folding)
    }
}
