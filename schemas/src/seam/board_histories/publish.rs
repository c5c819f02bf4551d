//! What a run does once it is sealed: plan, take a snapshot, judge, publish, complete; and after the
//! grace delete nodes and drop epochs.

use rand::Rng;
use rand::seq::SliceRandom;

use super::canon::{GONE, GROUPS, Group, KEYS, MEMBERS, State};
use super::editions::{Node, Root};
use super::records::{Keys, Outcome};
use super::tally::Event;
use super::world::{RunsSeen, World};
use crate::seam::{Cut, Epoch, Run};

/// A try to publish a sealed run, or the newest complete one once more.
pub(super) struct Publication {
    epoch: Epoch,
    cuts: Vec<Cut>,
    again: bool,
    early: Option<[State; GROUPS]>,
    /// The keys to compute; all if there is no list.
    keys: Option<Keys>,
    snapshot: [State; GROUPS],
    stamp: i64,
    /// Keys that are still to be published.
    left: Vec<usize>,
    /// Nodes that the new editions do not refer to.
    garbage: Vec<(usize, Vec<Node>)>,
    at: At,
}

/// What comes next.
enum At {
    Plan,
    Snapshot(Vec<Group>),
    Judge,
    Begin,
    ReadHead,
    ReadNames(usize, Root),
    Write(Edition),
    Complete,
    Wait(u32),
    Delete,
    ReadRuns,
    Drop(RunsSeen, usize),
}

/// What is still to be written of an edition.
struct Edition {
    key: usize,
    root: Root,
    nodes: Vec<Node>,
    head: bool,
}

impl Publication {
    pub(super) fn of(run: &Run, again: bool, early: Option<[State; GROUPS]>) -> Self {
        Self {
            epoch: run.epoch,
            cuts: run.cuts.clone(),
            again,
            early,
            keys: None,
            snapshot: [GONE; GROUPS],
            stamp: 0,
            left: Vec::new(),
            garbage: Vec::new(),
            at: At::Plan,
        }
    }

    /// The next operation; nothing if this was the last.
    pub(super) fn step(mut self, world: &mut World) -> Option<Self> {
        let at = std::mem::replace(&mut self.at, At::Plan);
        self.at = match at {
            At::Plan => self.plan(world),
            At::Snapshot(groups) => self.read(world, groups),
            At::Judge if !self.again && world.rng.random_ratio(1, 8) => {
                world.abandon(self.epoch);
                return None;
            }
            At::Judge => At::Begin,
            At::Begin => {
                self.stamp = world.begin_publishing(self.epoch, &self.outcome())?;
                At::ReadHead
            }
            At::ReadHead => self.read_head(world)?,
            At::ReadNames(key, root) => self.read_names(world, key, root),
            At::Write(edition) => self.write(world, edition)?,
            At::Complete => self.complete(world)?,
            At::Wait(0) => At::Delete,
            At::Wait(steps) => At::Wait(steps - 1),
            At::Delete => self.delete(world)?,
            At::ReadRuns => At::Drop(world.runs(), 0),
            At::Drop(seen, partition) => {
                let cut = seen.runs.cut(seen.newest, partition);
                world.drop_through(partition, seen.newest, cut?);
                let next = Some(partition + 1).filter(|next| *next < self.cuts.len());
                At::Drop(seen, next?)
            }
        };
        Some(self)
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            cuts: self.cuts.clone(),
            keys: self.keys,
        }
    }

    /// All keys, or those that were notified since the published result and those of results that
    /// may have been published in part.
    fn plan(&mut self, world: &mut World) -> At {
        let results = world.results.clone();
        let mut keys = [false; KEYS];
        let mut is_full = self.again || world.rng.random_ratio(1, 6);
        if !results.begun.is_empty() {
            world.note(Event::Dirty);
        }
        for dirty in results.begun.iter().filter(|_| world.rules.knows_dirty) {
            match &dirty.keys {
                Some(some) => (0..KEYS).for_each(|key| keys[key] |= some[key]),
                None => is_full = true,
            }
        }
        let begun = results.begun.last().filter(|_| world.rules.since_begun);
        let since = begun.or(results.published.as_ref());
        match since.filter(|_| !is_full) {
            None => self.keys = None,
            Some(since) => {
                for (partition, cut) in self.cuts.iter().enumerate() {
                    let (from, until) = (since.cuts[partition].next_offset, cut.next_offset);
                    for (group, _) in world.notified(partition, from.min(until), until) {
                        keys[group.key()] = true;
                    }
                }
                self.keys = Some(keys);
            }
        }
        let event = match self.keys {
            Some(_) => Event::Incremental,
            None => Event::Full,
        };
        world.note(event);
        self.left = (0..KEYS)
            .filter(|key| self.keys.is_none_or(|keys| keys[*key]))
            .collect();
        self.left.shuffle(&mut world.rng);
        let of_key = |key: &usize| (0..MEMBERS).map(|member| Group::of(*key, member)).collect();
        let mut groups: Vec<Group> = self.left.iter().flat_map::<Vec<Group>, _>(of_key).collect();
        if world.rng.random() {
            groups.shuffle(&mut world.rng);
        }
        At::Snapshot(groups)
    }

    /// Some groups are read as of one moment.
    fn read(&mut self, world: &mut World, mut groups: Vec<Group>) -> At {
        let stay = groups
            .len()
            .saturating_sub(world.rng.random_range(1..=2 * MEMBERS));
        for group in groups.drain(stay..) {
            let now = world.canonical(group);
            self.snapshot[group.0] = self.early.map_or(now, |early| early[group.0]);
        }
        if groups.is_empty() {
            At::Judge
        } else {
            At::Snapshot(groups)
        }
    }

    fn read_head(&mut self, world: &mut World) -> Option<At> {
        let Some(key) = self.left.pop() else {
            // Now and then it dies when all is done but said.
            let dies = world.rng.random_ratio(1, 8);
            return (!dies).then_some(At::Complete);
        };
        let states = std::array::from_fn(|member| self.snapshot[Group::of(key, member).0]);
        let root = Root::of(&states);
        Some(match world.head(key) {
            Some(head) if head.root == root => {
                world.note(Event::HeadSkipped);
                At::ReadHead
            }
            None if root.nodes.is_empty() => At::ReadHead,
            _ => At::ReadNames(key, root),
        })
    }

    fn read_names(&mut self, world: &mut World, key: usize, root: Root) -> At {
        let mut nodes = root.nodes.to_vec();
        let stored = world.nodes(key);
        nodes.retain(|node| !stored.contains(node));
        for _ in nodes.len()..root.nodes.len() {
            world.note(Event::NodeShared);
        }
        let garbage = stored.into_iter().filter(|node| !root.nodes.contains(node));
        self.garbage.push((key, garbage.collect()));
        At::Write(Edition {
            key,
            root,
            nodes,
            head: true,
        })
    }

    /// Writes some nodes; the head when all of them are there.
    fn write(&mut self, world: &mut World, mut edition: Edition) -> Option<At> {
        if !world.may_publish(self.epoch, self.stamp) {
            return None;
        }
        let is_time = edition.nodes.is_empty() || !world.rules.head_last;
        if edition.head && is_time {
            world.write_head(edition.key, self.epoch, edition.root.clone());
            edition.head = false;
        } else {
            let some = world.rng.random_range(0..=edition.nodes.len());
            world.write_nodes(edition.key, &edition.nodes.split_off(some));
        }
        if edition.head || !edition.nodes.is_empty() {
            return Some(At::Write(edition));
        }
        if !world.rules.grace {
            for (key, names) in self.garbage.drain(..) {
                world.delete_nodes(key, &names);
            }
        }
        Some(At::ReadHead)
    }

    fn complete(&mut self, world: &mut World) -> Option<At> {
        let ends = !self.again;
        if !world.complete(self.epoch, self.stamp, self.outcome(), ends) {
            return None;
        }
        world.note(if ends { Event::Completed } else { Event::Again });
        Some(At::Wait(world.rng.random_range(0..4)))
    }

    fn delete(&mut self, world: &mut World) -> Option<At> {
        let Some((key, names)) = self.garbage.pop() else {
            return Some(At::ReadRuns);
        };
        if !world.may_publish(self.epoch, self.stamp) {
            return None;
        }
        world.delete_nodes(key, &names);
        Some(At::Delete)
    }
}
