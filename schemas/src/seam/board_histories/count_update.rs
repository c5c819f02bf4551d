//! The computation of live counts: a worker does it by key before it applies a micro-batch.

use rand::Rng;

use super::entity_rows::{BOARDS, MEMBERS, State};
use super::events::Event;
use super::live::{StateRead, VIEW};
use super::live_counts::{LiveCount, LiveCountChange, Members, StoredCount};
use super::live_entry::LiveEntry;
use super::versions::Head;
use super::world::{RunRecords, World};
use crate::seam::{self, Checkpoint, PartitionState};

/// The reads of a key, with the new states of its members.
pub(super) struct CountUpdate<'a> {
    pub(super) partition: usize,
    pub(super) checkpoint: Checkpoint,
    pub(super) run_records: &'a RunRecords,
    pub(super) key: usize,
    pub(super) new: [Option<State>; MEMBERS],
}

impl CountUpdate<'_> {
    /// Computes the change of the key's live count; `None` if the checkpoint does not match.
    pub(super) fn change(
        &self,
        world: &mut World,
        read: StateRead,
        head: Option<Head>,
    ) -> Option<LiveCountChange> {
        let (partition_state, entries, stored) =
            read.filter(|(partition_state, ..)| partition_state.checkpoint() == self.checkpoint)?;
        let next = match &stored {
            None if world.rules.skips_placeholder => {
                self.compute(world, &partition_state, head, |members| {
                    members.after(&entries, &self.new)
                })
            }
            None => {
                let is_wanted = world.rng.random_ratio(2, 3);
                return Some(self.put(world, stored, is_wanted.then_some(None)));
            }
            Some(StoredCount { value: None, .. }) => {
                self.compute(world, &partition_state, head, |members| {
                    members.after(&entries, &self.new)
                })
            }
            Some(StoredCount {
                value: Some(sum), ..
            }) => {
                let sum = sum.clone();
                // Only the changed members are looked up.
                let touched: Vec<LiveEntry> = entries
                    .into_iter()
                    .filter(|entry| self.new[entry.group.member()].is_some())
                    .collect();
                let matches_version = world.rules.matches_version;
                let updated = self.compute(world, &partition_state, head, |members| {
                    let before = members.after(&touched, &[None; MEMBERS]);
                    let after = members.after(&touched, &self.new);
                    std::array::from_fn(|board| sum.change[board] + after[board] - before[board])
                });
                let is_same = |updated: &LiveCount| {
                    matches_version(
                        (sum.root.as_ref(), sum.base),
                        (updated.root.as_ref(), updated.base),
                    )
                };
                match updated {
                    Some(updated) if is_same(&updated) => Some(LiveCount {
                        change: updated.change,
                        ..sum
                    }),
                    Some(_) => {
                        world.count_event(Event::CountStale);
                        return Some(self.put(world, stored, Some(None)));
                    }
                    None => None,
                }
            }
        };
        if next.is_some() {
            world.count_event(Event::CountComputed);
        }
        Some(self.put(world, stored, next.map(Some)))
    }

    /// Computes a live count on the current version; `None` if required data is missing.
    fn compute(
        &self,
        world: &World,
        partition_state: &PartitionState,
        head: Option<Head>,
        change: impl FnOnce(&Members) -> [i32; BOARDS],
    ) -> Option<LiveCount> {
        let base = seam::base(
            head.as_ref().map_or(0, |head| head.epoch),
            self.run_records.newest,
        );
        if !(world.rules.is_readable)(
            partition_state,
            self.partition,
            base,
            &self.run_records.runs,
            VIEW,
        ) {
            return None;
        }
        let root = head.map(|head| head.root);
        let mut nodes = root.iter().flat_map(|root| root.nodes.iter());
        if !nodes.all(|node| world.has_node(self.key, *node)) {
            return None;
        }
        Some(LiveCount {
            change: change(&Members::new(root.as_ref(), base)),
            root,
            base,
        })
    }

    fn put(
        &self,
        world: &mut World,
        expected: Option<StoredCount>,
        next: Option<Option<LiveCount>>,
    ) -> LiveCountChange {
        let after = expected.as_ref().map_or(1, |stored| stored.name + 1);
        let name = match world.rules.names_are_numbered {
            true => after,
            false => world.rng.random_range(0..u64::MAX),
        };
        LiveCountChange {
            key: self.key,
            expected,
            next: next.map(|value| StoredCount { name, value }),
        }
    }
}
