//! A sealed run: plans, takes a snapshot, checks, publishes and completes. After the grace period,
//! it deletes nodes and prunes epochs.

use rand::Rng;
use rand::seq::SliceRandom;

use super::entity_rows::{GONE, GROUPS, Group, KEYS, MEMBERS, State};
use super::events::Event;
use super::records::{Keys, RunResult};
use super::versions::{Node, Root};
use super::world::{RunRecords, World};
use crate::seam::{Cut, Epoch, Run};

/// A try to publish a sealed run, or the newest complete run again.
pub(super) struct Publication {
    epoch: Epoch,
    cuts: Vec<Cut>,
    is_rerun: bool,
    early: Option<[State; GROUPS]>,
    /// The keys to compute; all if `None`.
    keys: Option<Keys>,
    snapshot: [State; GROUPS],
    stamp: i64,
    /// The remaining keys to publish.
    remaining_keys: Vec<usize>,
    /// Nodes that the new versions do not reference.
    garbage: Vec<(usize, Vec<Node>)>,
    at: At,
}

/// The next operation.
enum At {
    Plan,
    Snapshot(Vec<Group>),
    Judge,
    Begin,
    ReadHead,
    ReadNames(usize, Root),
    Write(PendingVersion),
    Complete,
    Wait(u32),
    Delete,
    ReadRuns,
    Prune(RunRecords, usize),
}

/// The unwritten part of a version.
struct PendingVersion {
    key: usize,
    root: Root,
    nodes: Vec<Node>,
    head: bool,
}

impl Publication {
    pub(super) fn new(run: &Run, is_rerun: bool, early: Option<[State; GROUPS]>) -> Self {
        Self {
            epoch: run.epoch,
            cuts: run.cuts.clone(),
            is_rerun,
            early,
            keys: None,
            snapshot: [GONE; GROUPS],
            stamp: 0,
            remaining_keys: Vec::new(),
            garbage: Vec::new(),
            at: At::Plan,
        }
    }

    /// Runs the next operation. Returns `None` after the last one.
    pub(super) fn step(mut self, world: &mut World) -> Option<Self> {
        let at = std::mem::replace(&mut self.at, At::Plan);
        self.at = match at {
            At::Plan => self.plan(world),
            At::Snapshot(groups) => self.read(world, groups),
            At::Judge if !self.is_rerun && world.rng.random_ratio(1, 8) => {
                world.abandon(self.epoch);
                return None;
            }
            At::Judge => At::Begin,
            At::Begin => {
                self.stamp = world.begin_publishing(self.epoch, &self.result())?;
                At::ReadHead
            }
            At::ReadHead => self.read_head(world)?,
            At::ReadNames(key, root) => self.read_names(world, key, root),
            At::Write(version) => self.write(world, version)?,
            At::Complete => self.complete(world)?,
            At::Wait(0) => At::Delete,
            At::Wait(steps) => At::Wait(steps - 1),
            At::Delete => self.delete(world)?,
            At::ReadRuns => At::Prune(world.runs(), 0),
            At::Prune(run_records, partition) => {
                let cut = run_records.runs.cut(run_records.newest, partition);
                world.prune_through(partition, run_records.newest, cut?);
                let next = Some(partition + 1).filter(|next| *next < self.cuts.len());
                At::Prune(run_records, next?)
            }
        };
        Some(self)
    }

    fn result(&self) -> RunResult {
        RunResult {
            cuts: self.cuts.clone(),
            keys: self.keys,
        }
    }

    /// Plans all keys, or those that were notified since the published result and those of results
    /// that may be partly published.
    fn plan(&mut self, world: &mut World) -> At {
        let results = world.results.clone();
        let mut keys = [false; KEYS];
        let mut is_full = self.is_rerun || world.rng.random_ratio(1, 6);
        if !results.started.is_empty() {
            world.count_event(Event::PartlyPublished);
        }
        for dirty in results
            .started
            .iter()
            .filter(|_| world.rules.plans_partly_published)
        {
            match &dirty.keys {
                Some(some) => (0..KEYS).for_each(|key| keys[key] |= some[key]),
                None => is_full = true,
            }
        }
        let started = results.started.last().filter(|_| world.rules.since_started);
        let since = started.or(results.published.as_ref());
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
        world.count_event(event);
        self.remaining_keys = (0..KEYS)
            .filter(|key| self.keys.is_none_or(|keys| keys[*key]))
            .collect();
        self.remaining_keys.shuffle(&mut world.rng);
        let groups_of_key = |key: &usize| {
            (0..MEMBERS)
                .map(|member| Group::new(*key, member))
                .collect()
        };
        let mut groups: Vec<Group> = self
            .remaining_keys
            .iter()
            .flat_map::<Vec<Group>, _>(groups_of_key)
            .collect();
        if world.rng.random() {
            groups.shuffle(&mut world.rng);
        }
        At::Snapshot(groups)
    }

    /// Reads some groups at one point in time.
    fn read(&mut self, world: &mut World, mut groups: Vec<Group>) -> At {
        let stay = groups
            .len()
            .saturating_sub(world.rng.random_range(1..=2 * MEMBERS));
        for group in groups.drain(stay..) {
            let now = world.current_state(group);
            self.snapshot[group.0] = self.early.map_or(now, |early| early[group.0]);
        }
        if groups.is_empty() {
            At::Judge
        } else {
            At::Snapshot(groups)
        }
    }

    fn read_head(&mut self, world: &mut World) -> Option<At> {
        let Some(key) = self.remaining_keys.pop() else {
            // Now and then it dies when all is done but said.
            let dies = world.rng.random_ratio(1, 8);
            return (!dies).then_some(At::Complete);
        };
        let states = std::array::from_fn(|member| self.snapshot[Group::new(key, member).0]);
        let root = Root::from_states(&states);
        Some(match world.head(key) {
            Some(head) if head.root == root => {
                world.count_event(Event::HeadSkipped);
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
            world.count_event(Event::NodeShared);
        }
        let garbage = stored.into_iter().filter(|node| !root.nodes.contains(node));
        self.garbage.push((key, garbage.collect()));
        At::Write(PendingVersion {
            key,
            root,
            nodes,
            head: true,
        })
    }

    /// Writes some nodes; the head when all of them are there.
    fn write(&mut self, world: &mut World, mut version: PendingVersion) -> Option<At> {
        if !world.may_publish(self.epoch, self.stamp) {
            return None;
        }
        let is_time = version.nodes.is_empty() || !world.rules.head_last;
        if version.head && is_time {
            world.write_head(version.key, self.epoch, version.root.clone());
            version.head = false;
        } else {
            let some = world.rng.random_range(0..=version.nodes.len());
            world.write_nodes(version.key, &version.nodes.split_off(some));
        }
        if version.head || !version.nodes.is_empty() {
            return Some(At::Write(version));
        }
        if !world.rules.grace {
            for (key, names) in self.garbage.drain(..) {
                world.delete_nodes(key, &names);
            }
        }
        Some(At::ReadHead)
    }

    fn complete(&mut self, world: &mut World) -> Option<At> {
        let ends = !self.is_rerun;
        if !world.complete(self.epoch, self.stamp, self.result(), ends) {
            return None;
        }
        world.count_event(if ends {
            Event::Completed
        } else {
            Event::Recomputed
        });
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
