//! A worker of one partition: it looks around, then takes some micro-batches of notifications and
//! reads the groups again that they name.

use std::rc::Rc;

use rand::Rng;

use super::canon::{Group, MEMBERS, State};
use super::live::SlotRead;
use super::sums::{SumChange, Summing};
use super::world::{RunsSeen, World};
use crate::seam::{self, Fence, Offset, Slot, Step};

const REST_MAX: u64 = 80;

pub(super) struct Worker {
    partition: usize,
    /// When it goes on.
    later: u64,
    at: At,
}

/// What comes next.
enum At {
    ReadSlot,
    ReadRuns(Option<Rc<Slot>>),
    Act(Option<Fence>, RunsSeen, Step),
    Fetch(Folding),
    ReadGroup(Folding, Micro),
    /// The keys whose sums are still to be read.
    ReadSum(Folding, Micro, Vec<usize>),
    ReadHead(Folding, Micro, Vec<usize>, SlotRead),
    Apply(Folding, Micro),
}

struct Folding {
    fence: Fence,
    seen: RunsSeen,
    until: Option<Offset>,
    batches: u32,
}

/// A micro-batch.
struct Micro {
    next: Offset,
    groups: Vec<(Group, State)>,
    /// How many of the groups have been read.
    read: usize,
    /// What becomes of sums.
    sums: Vec<SumChange>,
}

impl Worker {
    pub(super) fn new(partition: usize) -> Self {
        Self {
            partition,
            later: 0,
            at: At::ReadSlot,
        }
    }

    pub(super) fn step(&mut self, world: &mut World) {
        if world.now < self.later {
            return;
        }
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
                    let keys = sums_of(world, &micro);
                    At::ReadSum(folding, micro, keys)
                }
            }
            At::ReadSum(folding, micro, keys) => match keys.last() {
                Some(key) => {
                    let read = world.read(self.partition, *key);
                    At::ReadHead(folding, micro, keys, read)
                }
                None => self.apply(world, folding, &micro),
            },
            At::ReadHead(folding, micro, keys, read) => {
                // Now and then what it has read grows old.
                if !world.is_calm && world.rng.random_ratio(1, 4) {
                    self.later = world.now + world.rng.random_range(0..REST_MAX);
                }
                self.sum_up(world, (folding, micro), keys, read)
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
                seen,
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
        let micro = Micro {
            next,
            groups,
            read: 0,
            sums: Vec::new(),
        };
        At::ReadGroup(folding, micro)
    }

    /// Says what becomes of the sum of the last of some keys.
    fn sum_up(
        &self,
        world: &mut World,
        (folding, mut micro): (Folding, Micro),
        mut keys: Vec<usize>,
        read: SlotRead,
    ) -> At {
        let Some(key) = keys.pop() else {
            return At::Apply(folding, micro);
        };
        let new = |member| {
            let mut groups = micro.groups.iter();
            let found = groups.find(|(group, _)| *group == Group::of(key, member));
            found.map(|(_, state)| *state)
        };
        let new: [Option<State>; MEMBERS] = std::array::from_fn(new);
        let head = world.head(key);
        let summing = Summing {
            partition: self.partition,
            fence: folding.fence,
            seen: &folding.seen,
            key,
            new,
        };
        match summing.change(world, read, head) {
            Some(change) => micro.sums.push(change),
            None => return At::ReadSlot,
        }
        At::ReadSum(folding, micro, keys)
    }

    fn apply(&self, world: &mut World, mut folding: Folding, micro: &Micro) -> At {
        if !world.apply(
            self.partition,
            folding.fence,
            micro.next,
            (&micro.groups, &micro.sums),
        ) {
            return At::ReadSlot;
        }
        folding.fence.next_offset = micro.next;
        folding.batches -= 1;
        At::Fetch(folding)
    }
}

/// The keys of whose sums a worker says something: some know nothing of sums, and some leave one out.
fn sums_of(world: &mut World, micro: &Micro) -> Vec<usize> {
    let mut keys: Vec<usize> = micro.groups.iter().map(|(group, _)| group.key()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|_| world.rules.keeps_sums && world.rng.random_ratio(3, 4));
    keys
}
