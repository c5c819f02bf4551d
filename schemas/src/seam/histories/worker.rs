//! A worker of one partition: it looks around, then folds some micro-batches.

use std::rc::Rc;

use rand::Rng;

use super::world::{CATALOGS, RunsSeen, World};
use crate::seam::{Fence, Offset, Slot, Step};

pub(super) struct Worker {
    partition: usize,
    views: &'static [usize],
    at: At,
}

/// What comes next.
enum At {
    ReadSlot,
    ReadRuns(Option<Rc<Slot>>),
    Act(Option<Fence>, RunsSeen, Step),
    Fetch(Folding),
    Apply(Folding, Offset),
}

struct Folding {
    fence: Fence,
    until: Option<Offset>,
    batches: u32,
}

impl Worker {
    pub(super) fn new(partition: usize, world: &World) -> Self {
        Self {
            partition,
            views: CATALOGS[world.catalog],
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
            At::Apply(folding, next) => self.apply(world, folding, next),
        };
    }

    fn look(&self, world: &mut World, slot: Option<&Slot>) -> At {
        let seen = world.runs();
        let step = (world.rules.next_step)(slot, self.partition, &seen.runs);
        match (step, slot) {
            (Step::LookAgain, _) => At::ReadSlot,
            (Step::Fold { until }, Some(slot)) => At::Fetch(Folding {
                fence: slot.fence(),
                until,
                batches: world.rng.random_range(1..6),
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
        At::Apply(folding, next)
    }

    fn apply(&self, world: &mut World, mut folding: Folding, next: Offset) -> At {
        if !world.apply(self.partition, folding.fence, next, self.views) {
            return At::ReadSlot;
        }
        folding.fence.next_offset = next;
        folding.batches -= 1;
        At::Fetch(folding)
    }
}
