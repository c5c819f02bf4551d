//! Sums of live states: what a worker makes of them, key by key, before it applies a micro-batch.

use rand::Rng;

use super::canon::{BOARDS, GONE, MEMBERS, State};
use super::editions::{Head, Root};
use super::live::{Entry, SlotRead, VIEW};
use super::tally::Event;
use super::world::{RunsSeen, World};
use crate::seam::{self, Epoch, Fence, Slot};

/// A sum as a slot keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) name: u64,
    /// Nothing while it is only begun.
    pub(super) made: Option<Sum>,
}

/// What live states of epochs after a base put on each board of an edition, less what they take away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) root: Option<Root>,
    pub(super) base: Epoch,
    pub(super) change: [i32; BOARDS],
}

/// What an apply makes of the sum of a key.
pub(super) struct SumChange {
    pub(super) key: usize,
    pub(super) believed: Option<Kept>,
    pub(super) next: Option<Kept>,
}

/// What was read of a key, with the states that its members get.
pub(super) struct Summing<'a> {
    pub(super) partition: usize,
    pub(super) fence: Fence,
    pub(super) seen: &'a RunsSeen,
    pub(super) key: usize,
    pub(super) new: [Option<State>; MEMBERS],
}

impl Summing<'_> {
    /// What becomes of the key's sum; nothing if the slot is not where the worker believes.
    pub(super) fn change(
        &self,
        world: &mut World,
        read: SlotRead,
        head: Option<Head>,
    ) -> Option<SumChange> {
        let (slot, entries, kept) = read.filter(|(slot, ..)| slot.fence() == self.fence)?;
        let next = match &kept {
            None if world.rules.sums_at_once => self.made(world, &slot, head, |members| {
                members.after(&entries, &self.new)
            }),
            None => {
                let is_wanted = world.rng.random_ratio(2, 3);
                return Some(self.put(world, kept, is_wanted.then_some(None)));
            }
            Some(Kept { made: None, .. }) => self.made(world, &slot, head, |members| {
                members.after(&entries, &self.new)
            }),
            Some(Kept {
                made: Some(sum), ..
            }) => {
                let sum = sum.clone();
                // Only the members that change are looked up.
                let touched: Vec<Entry> = entries
                    .into_iter()
                    .filter(|entry| self.new[entry.group.member()].is_some())
                    .collect();
                let joins = world.rules.joins;
                let moved = self.made(world, &slot, head, |members| {
                    let before = members.after(&touched, &[None; MEMBERS]);
                    let after = members.after(&touched, &self.new);
                    std::array::from_fn(|board| sum.change[board] + after[board] - before[board])
                });
                let is_same = |moved: &Sum| {
                    joins(
                        (sum.root.as_ref(), sum.base),
                        (moved.root.as_ref(), moved.base),
                    )
                };
                match moved {
                    Some(moved) if is_same(&moved) => Some(Sum {
                        change: moved.change,
                        ..sum
                    }),
                    Some(_) => {
                        world.note(Event::SumStale);
                        return Some(self.put(world, kept, Some(None)));
                    }
                    None => None,
                }
            }
        };
        if next.is_some() {
            world.note(Event::SumMade);
        }
        Some(self.put(world, kept, next.map(Some)))
    }

    /// A sum against the present edition; nothing if what it takes is not there.
    fn made(
        &self,
        world: &World,
        slot: &Slot,
        head: Option<Head>,
        change: impl FnOnce(&Members) -> [i32; BOARDS],
    ) -> Option<Sum> {
        let base = seam::base(head.as_ref().map_or(0, |head| head.epoch), self.seen.newest);
        if !(world.rules.whole)(slot, self.partition, base, &self.seen.runs, VIEW) {
            return None;
        }
        let root = head.map(|head| head.root);
        let mut nodes = root.iter().flat_map(|root| root.nodes.iter());
        if !nodes.all(|node| world.has_node(self.key, *node)) {
            return None;
        }
        Some(Sum {
            change: change(&Members::of(root.as_ref(), base)),
            root,
            base,
        })
    }

    fn put(
        &self,
        world: &mut World,
        believed: Option<Kept>,
        next: Option<Option<Sum>>,
    ) -> SumChange {
        let after = believed.as_ref().map_or(1, |kept| kept.name + 1);
        let name = match world.rules.sums_are_numbered {
            true => after,
            false => world.rng.random_range(0..u64::MAX),
        };
        SumChange {
            key: self.key,
            believed,
            next: next.map(|made| Kept { name, made }),
        }
    }
}

/// The members of an edition.
struct Members {
    states: [State; MEMBERS],
    base: Epoch,
}

impl Sum {
    /// Whether it is what the entries of its key, all of them, add up to.
    pub(super) fn is_of(&self, entries: &[Entry]) -> bool {
        let members = Members::of(self.root.as_ref(), self.base);
        self.change == members.after(entries, &[None; MEMBERS])
    }
}

impl Members {
    fn of(root: Option<&Root>, base: Epoch) -> Self {
        let mut states = [GONE; MEMBERS];
        let nodes = root.into_iter().flat_map(|root| root.nodes.iter());
        for row in nodes.flat_map(|node| node.rows()) {
            states[row.member][row.board] = row.score;
        }
        Self { states, base }
    }

    /// What entries, and then new states, make of each board.
    fn after(&self, entries: &[Entry], new: &[Option<State>; MEMBERS]) -> [i32; BOARDS] {
        let mut change = [0; BOARDS];
        for (member, old) in self.states.iter().enumerate() {
            let counting = entries
                .iter()
                .filter(|entry| entry.group.member() == member && entry.epoch > self.base);
            let newest = counting.max_by_key(|entry| entry.epoch);
            let Some(now) = new[member].or(newest.map(|entry| entry.state)) else {
                continue;
            };
            for board in 0..BOARDS {
                change[board] += i32::from(now[board] > 0) - i32::from(old[board] > 0);
            }
        }
        change
    }
}
