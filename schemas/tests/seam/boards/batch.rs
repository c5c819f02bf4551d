//! A batch process: it seals runs and publishes them, or computes the newest complete run again.

use rand::Rng;
use rand::seq::SliceRandom;
use schemas::seam::{Cut, Epoch, Run, RunState};

use super::entity_rows::{ABSENT, ALL_MEMBERS, KEY_MEMBERS, KEYS, MemberId, Scores};
use super::results::RunResult;
use super::stores::{SharedWorld, World};
use super::versions::{Node, Root};
use crate::simulation::{Event, end_step, seal_run, wait_grace_period};

/// The scores of all members at one or several moments.
type Snapshot = [Scores; ALL_MEMBERS];

/// The publication of a sealed run, or of the newest complete run again.
struct Publication {
    epoch: Epoch,
    cuts: Vec<Cut>,
    is_recompute: bool,
    /// The keys to compute; all if `None`.
    keys: Option<[bool; KEYS]>,
    stamp: i64,
    /// By key, nodes that the new versions do not reference.
    garbage: Vec<(usize, Vec<Node>)>,
}

/// Runs a batch process.
pub(super) async fn run_batch(world: &SharedWorld) {
    // The snapshot of a mutant, which takes it before the cuts.
    let mut early_snapshot = None;
    loop {
        let run_records = world.borrow().run_records();
        let runs = &run_records.runs;
        let sealed = runs.open_run().filter(|run| run.state == RunState::Sealed);
        if let Some(run) = sealed {
            let publication = Publication::new(run, false);
            publication.run(world, early_snapshot.take()).await;
        } else if world.borrow_mut().rng.random_ratio(1, 8) {
            let last = runs.iter().next_back();
            if let Some(run) = last.filter(|run| run.state == RunState::Complete) {
                Publication::new(run, true).run(world, None).await;
            }
        } else {
            if !world.borrow().stores.rules.snapshots_after_cut {
                early_snapshot = Some(take_early_snapshot(world).await);
            }
            seal_run(world, &run_records).await;
        }
        end_step().await;
    }
}

/// Reads all members, then lets some time pass.
async fn take_early_snapshot(world: &SharedWorld) -> Snapshot {
    let snapshot = std::array::from_fn(|member| world.borrow().read_scores(MemberId(member)));
    let steps = world.borrow_mut().rng.random_range(0..10);
    for _ in 0..=steps {
        end_step().await;
    }
    snapshot
}

impl Publication {
    fn new(run: &Run, is_recompute: bool) -> Self {
        Self {
            epoch: run.epoch,
            cuts: run.cuts.clone(),
            is_recompute,
            keys: None,
            stamp: 0,
            garbage: Vec::new(),
        }
    }

    /// Publishes the run. After the grace period, deletes nodes and prunes epochs. Returns `None`
    /// if it ends early: the run is abandoned or overtaken, or its process dies just before it
    /// completes the run.
    async fn run(mut self, world: &SharedWorld, early_snapshot: Option<Snapshot>) -> Option<()> {
        end_step().await;
        let keys = self.plan(&mut world.borrow_mut());
        let snapshot = take_snapshot(world, &keys, early_snapshot).await;
        end_step().await;
        if !self.is_recompute && world.borrow_mut().rng.random_ratio(1, 8) {
            world.borrow_mut().abandon_run(self.epoch);
            return None;
        }
        end_step().await;
        let result = self.result();
        self.stamp = world.borrow_mut().begin_publishing(self.epoch, result)?;
        for key in keys.into_iter().rev() {
            let scores = |number| snapshot[MemberId::new(key, number).0];
            let root = Root::from_scores(&std::array::from_fn(scores));
            self.publish_key(world, key, root).await?;
        }
        end_step().await;
        if world.borrow_mut().rng.random_ratio(1, 8) {
            return None;
        }
        end_step().await;
        self.complete(&mut world.borrow_mut())?;
        wait_grace_period(world).await;
        self.delete_garbage(world).await?;
        self.prune(world).await
    }

    fn result(&self) -> RunResult {
        RunResult {
            cuts: self.cuts.clone(),
            keys: self.keys,
        }
    }

    /// Plans the keys to compute. Returns them in random order.
    fn plan(&mut self, world: &mut World) -> Vec<usize> {
        let plans_all = self.is_recompute || world.rng.random_ratio(1, 6);
        if !world.stores.results.started.is_empty() {
            world.count_event(Event::PartlyPublishedFound);
        }
        self.keys = if plans_all {
            None
        } else {
            self.plan_keys(world)
        };
        world.count_event(match self.keys {
            Some(_) => Event::SomeKeysPlanned,
            None => Event::AllKeysPlanned,
        });
        let is_planned = |key: &usize| self.keys.is_none_or(|keys| keys[*key]);
        let mut planned: Vec<usize> = (0..KEYS).filter(is_planned).collect();
        planned.shuffle(&mut world.rng);
        planned
    }

    /// Returns the keys that were notified since the published result, and those of results that
    /// may be partly published; `None` if these are all keys.
    fn plan_keys(&self, world: &World) -> Option<[bool; KEYS]> {
        let (rules, results) = (&world.stores.rules, &world.stores.results);
        let started = results.started.last();
        let started = started.filter(|_| rules.plans_since_started);
        let since = started.or(results.published.as_ref())?;
        let mut keys = [false; KEYS];
        for (partition, cut) in self.cuts.iter().enumerate() {
            let (start, end) = (since.cuts[partition].next_offset, cut.next_offset);
            for (member, _) in world.notified(partition, start.min(end), end) {
                keys[member.key()] = true;
            }
        }
        if rules.plans_partly_published {
            for result in &results.started {
                let started_keys = result.keys?;
                (0..KEYS).for_each(|key| keys[key] |= started_keys[key]);
            }
        }
        Some(keys)
    }

    /// Writes the version of a key if it differs from the stored one. Returns `None` if the run is
    /// overtaken.
    async fn publish_key(&mut self, world: &SharedWorld, key: usize, root: Root) -> Option<()> {
        end_step().await;
        let head = world.borrow().head(key);
        match head {
            Some(head) if head.root == root => {
                world.borrow_mut().count_event(Event::HeadUnchanged);
                return Some(());
            }
            None if root.nodes.is_empty() => return Some(()),
            _ => {}
        }
        end_step().await;
        let mut new_nodes = self.compare_nodes(&mut world.borrow_mut(), key, &root);
        let mut needs_head = true;
        while needs_head || !new_nodes.is_empty() {
            end_step().await;
            let world = &mut *world.borrow_mut();
            if !world.may_publish(self.epoch, self.stamp) {
                return None;
            }
            let may_write_head = new_nodes.is_empty() || !world.stores.rules.writes_head_last;
            if needs_head && may_write_head {
                world.write_head(key, self.epoch, root.clone());
                needs_head = false;
            } else {
                let nodes_left = world.rng.random_range(0..=new_nodes.len());
                world.write_nodes(key, &new_nodes.split_off(nodes_left));
            }
        }
        if !world.borrow().stores.rules.waits_grace_period {
            for (key, nodes) in self.garbage.drain(..) {
                world.borrow_mut().delete_nodes(key, &nodes);
            }
        }
        Some(())
    }

    /// Returns the nodes of a version that are not stored. Stored nodes that it does not reference
    /// become garbage.
    fn compare_nodes(&mut self, world: &mut World, key: usize, root: &Root) -> Vec<Node> {
        let mut new_nodes = root.nodes.to_vec();
        let stored = world.nodes(key);
        new_nodes.retain(|node| !stored.contains(node));
        for _ in new_nodes.len()..root.nodes.len() {
            world.count_event(Event::NodeShared);
        }
        let garbage = stored.into_iter().filter(|node| !root.nodes.contains(node));
        self.garbage.push((key, garbage.collect()));
        new_nodes
    }

    fn complete(&self, world: &mut World) -> Option<()> {
        let ends_epoch = !self.is_recompute;
        let is_current = world.complete_try(self.epoch, self.stamp, self.result(), ends_epoch);
        is_current.then_some(())
    }

    /// Deletes the garbage. Returns `None` if the run is overtaken.
    async fn delete_garbage(&mut self, world: &SharedWorld) -> Option<()> {
        while let Some((key, nodes)) = self.garbage.pop() {
            end_step().await;
            let world = &mut *world.borrow_mut();
            if !world.may_publish(self.epoch, self.stamp) {
                return None;
            }
            world.delete_nodes(key, &nodes);
        }
        end_step().await;
        Some(())
    }

    /// Prunes the epochs of complete runs.
    async fn prune(&self, world: &SharedWorld) -> Option<()> {
        end_step().await;
        let run_records = world.borrow().run_records();
        let newest = run_records.newest[0];
        for partition in 0..self.cuts.len() {
            end_step().await;
            let cut = run_records.runs.cut(newest, partition)?;
            world.borrow_mut().prune_through(partition, newest, cut);
        }
        Some(())
    }
}

/// Reads the members of some keys from the entity rows, several at a time.
async fn take_snapshot(
    world: &SharedWorld,
    keys: &[usize],
    early_snapshot: Option<Snapshot>,
) -> Snapshot {
    let members = keys.iter();
    let members =
        members.flat_map(|key| (0..KEY_MEMBERS).map(|number| MemberId::new(*key, number)));
    let mut members: Vec<MemberId> = members.collect();
    if world.borrow_mut().rng.random() {
        members.shuffle(&mut world.borrow_mut().rng);
    }
    let mut snapshot = [ABSENT; ALL_MEMBERS];
    loop {
        end_step().await;
        let count = world.borrow_mut().rng.random_range(1..=2 * KEY_MEMBERS);
        for member in members.drain(members.len().saturating_sub(count)..) {
            let scores = world.borrow().read_scores(member);
            let early = early_snapshot.map(|early| early[member.0]);
            snapshot[member.0] = early.unwrap_or(scores);
        }
        if members.is_empty() {
            return snapshot;
        }
    }
}
