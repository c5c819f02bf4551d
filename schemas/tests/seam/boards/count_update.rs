//! The update of a live count. A worker computes it for each key before it applies a micro-batch.

use rand::Rng;
use schemas::seam::{self, PartitionState};

use super::entity_rows::{BOARDS, KEY_MEMBERS, MemberId, Scores};
use super::live_counts::{LiveCount, LiveCountChange, StoredCount, VersionMembers};
use super::live_entries::{KeyState, LiveEntry};
use super::stores::{Boards, World};
use super::versions::Head;
use crate::simulation::{Event, Fold, ViewKind};

pub(super) struct CountUpdate<'a> {
    fold: &'a Fold,
    key: usize,
    /// The new scores of the members that the micro-batch notifies.
    new_scores: [Option<Scores>; KEY_MEMBERS],
}

impl<'a> CountUpdate<'a> {
    pub(super) fn new(fold: &'a Fold, key: usize, notified: &[(MemberId, Scores)]) -> Self {
        let new_scores = |number| {
            let mut members = notified.iter();
            let member = members.find(|(member, _)| *member == MemberId::new(key, number));
            member.map(|(_, scores)| *scores)
        };
        Self {
            fold,
            key,
            new_scores: std::array::from_fn(new_scores),
        }
    }

    /// Computes the change of the key's live count; `None` if the checkpoint does not match.
    pub(super) fn compute_change(
        &self,
        world: &mut World,
        read: Option<KeyState>,
        head: Option<Head>,
    ) -> Option<LiveCountChange> {
        let KeyState {
            partition_state: state,
            entries,
            count: stored,
        } = read.filter(|read| read.partition_state.checkpoint() == self.fold.checkpoint)?;
        if stored.is_none() && !world.stores.rules.skips_placeholder {
            let is_wanted = world.rng.random_ratio(2, 3);
            return Some(self.replace(world, stored, is_wanted.then_some(None)));
        }
        let next = match stored.as_ref().and_then(|stored| stored.value.clone()) {
            None => self.compute(world, &state, head, |members| {
                members.sum_changes(&entries, &self.new_scores)
            }),
            Some(count) => {
                let updated = self.update(world, &state, head, &entries, &count);
                let matches = world.stores.rules.matches_version;
                let is_same_version = |updated: &LiveCount| {
                    let current = (updated.root.as_ref(), updated.base);
                    matches((count.root.as_ref(), count.base), current)
                };
                if updated
                    .as_ref()
                    .is_some_and(|updated| !is_same_version(updated))
                {
                    world.count_event(Event::CountStale);
                    return Some(self.replace(world, stored, Some(None)));
                }
                updated.map(|updated| LiveCount {
                    size_changes: updated.size_changes,
                    ..count
                })
            }
        };
        if next.is_some() {
            world.count_event(Event::CountComputed);
        }
        Some(self.replace(world, stored, next.map(Some)))
    }

    /// Updates a live count from the entries of the changed members alone.
    fn update(
        &self,
        world: &World,
        state: &PartitionState,
        head: Option<Head>,
        entries: &[LiveEntry],
        count: &LiveCount,
    ) -> Option<LiveCount> {
        let is_changed = |entry: &&LiveEntry| self.new_scores[entry.member.number()].is_some();
        let changed: Vec<LiveEntry> = entries.iter().filter(is_changed).copied().collect();
        self.compute(world, state, head, |members| {
            let old = members.sum_changes(&changed, &[None; KEY_MEMBERS]);
            let new = members.sum_changes(&changed, &self.new_scores);
            std::array::from_fn(|board| count.size_changes[board] + new[board] - old[board])
        })
    }

    /// Computes a live count on the current version; `None` if required data is missing.
    fn compute(
        &self,
        world: &World,
        state: &PartitionState,
        head: Option<Head>,
        compute_changes: impl FnOnce(&VersionMembers) -> [i32; BOARDS],
    ) -> Option<LiveCount> {
        let run_records = &self.fold.run_records;
        let head_epoch = head.as_ref().map_or(0, |head| head.epoch);
        let base = seam::base_epoch(head_epoch, run_records.newest[0]);
        let (partition, view) = (self.fold.partition, Boards::VIEWS[0]);
        if !(world.protocol.is_readable)(state, partition, base, &run_records.runs, view) {
            return None;
        }
        let root = head.map(|head| head.root);
        let mut nodes = root.iter().flat_map(|root| root.nodes.iter());
        if !nodes.all(|node| world.has_node(self.key, *node)) {
            return None;
        }
        Some(LiveCount {
            size_changes: compute_changes(&VersionMembers::new(root.as_ref(), base)),
            root,
            base,
        })
    }

    /// Replaces the stored count by another one, a placeholder (`Some(None)`), or none.
    fn replace(
        &self,
        world: &mut World,
        stored: Option<StoredCount>,
        next: Option<Option<LiveCount>>,
    ) -> LiveCountChange {
        let name = if world.stores.rules.numbers_count_names {
            stored.as_ref().map_or(1, |stored| stored.name + 1)
        } else {
            world.rng.random_range(0..u64::MAX)
        };
        LiveCountChange {
            key: self.key,
            expected: stored,
            next: next.map(|value| StoredCount { name, value }),
        }
    }
}
