//! The store of live entries and live counts, beside the partition states.

use std::rc::Rc;

use schemas::seam::{Epoch, Generation, Offset, PartitionState};

use super::entity_rows::{MemberId, Scores};
use super::live_counts::{LiveCountChange, StoredCount};
use super::rules::Rules;
use super::stores::World;
use crate::simulation::{Fold, Invariant};

/// The scores of a member after the last notification that an epoch covers.
#[derive(Debug, Clone, Copy)]
pub(super) struct LiveEntry {
    pub(super) generation: Generation,
    pub(super) epoch: Epoch,
    pub(super) member: MemberId,
    pub(super) scores: Scores,
}

/// The live data of a partition.
#[derive(Clone, Default)]
pub(super) struct LiveEntries {
    pub(super) entries: Vec<LiveEntry>,
    /// By generation and key.
    counts: Vec<((Generation, usize), StoredCount)>,
}

/// A partition state, and the live data of a key.
pub(super) struct KeyState {
    pub(super) partition_state: Rc<PartitionState>,
    pub(super) entries: Vec<LiveEntry>,
    pub(super) count: Option<StoredCount>,
}

impl LiveEntries {
    fn count(&self, id: (Generation, usize)) -> Option<&StoredCount> {
        let mut counts = self.counts.iter();
        counts
            .find(|(other, _)| *other == id)
            .map(|(_, count)| count)
    }

    /// Changes the live count of a key if it is the expected one.
    fn change_count(
        &mut self,
        id: (Generation, usize),
        expected: Option<&StoredCount>,
        next: Option<StoredCount>,
        rules: &Rules,
    ) {
        let next = (rules.next_count)(self.count(id), expected, next);
        self.counts.retain(|(other, _)| *other != id);
        self.counts.extend(next.map(|count| (id, count)));
    }

    fn put(&mut self, new: LiveEntry) {
        let id = |entry: &LiveEntry| (entry.generation, entry.epoch, entry.member);
        match self.entries.iter_mut().find(|old| id(old) == id(&new)) {
            Some(old) => old.scores = new.scores,
            None => self.entries.push(new),
        }
    }
}

impl World {
    /// Reads a partition state, and the retained entries of a key in its generation.
    pub(super) fn read_key(&self, partition: usize, key: usize) -> Option<KeyState> {
        let live = self.live_state(partition);
        let partition_state = live.partition_state.clone()?;
        let is_retained = |entry: &&LiveEntry| {
            let is_pruned = entry.epoch < partition_state.oldest;
            entry.generation == partition_state.generation
                && (!is_pruned || self.stores.rules.reads_pruned_entries)
                && entry.member.key() == key
        };
        Some(KeyState {
            entries: live
                .data
                .entries
                .iter()
                .filter(is_retained)
                .copied()
                .collect(),
            count: live.data.count((partition_state.generation, key)).cloned(),
            partition_state,
        })
    }

    /// Replaces the entries of the members that are notified up to `next`, and the live counts of
    /// their keys. Returns whether the checkpoint was the expected one.
    pub(super) fn apply_entries(
        &mut self,
        fold: &Fold,
        next: Offset,
        members: &[(MemberId, Scores)],
        changes: &[LiveCountChange],
    ) -> bool {
        let (rules, generation) = (self.stores.rules, fold.checkpoint.generation);
        let is_applied = self.apply(fold, next, |live, _| {
            for (member, scores) in members {
                live.put(LiveEntry {
                    generation,
                    epoch: fold.checkpoint.epoch,
                    member: *member,
                    scores: *scores,
                });
            }
            for change in changes {
                let (expected, next) = (change.expected.as_ref(), change.next.clone());
                live.change_count((generation, change.key), expected, next, &rules);
            }
            let mut unnamed: Vec<usize> = members.iter().map(|(member, _)| member.key()).collect();
            unnamed.dedup();
            unnamed.retain(|key| changes.iter().all(|change| change.key != *key));
            for key in unnamed {
                live.change_count((generation, key), None, None, &rules);
            }
        });
        if is_applied {
            self.check_counts(fold.partition);
        }
        is_applied
    }

    /// Checks that each live count equals the sum of the entries, even if no reader uses it.
    fn check_counts(&mut self, partition: usize) {
        let live = self.live_state(partition);
        let Some(state) = &live.partition_state else {
            return;
        };
        let counts = live.data.counts.iter();
        let counts = counts.filter(|((generation, _), _)| *generation == state.generation);
        let mut wrong = None;
        for ((_, key), stored) in counts {
            // If some of the counted entries were pruned, no reader has this base any more.
            let value = stored.value.as_ref();
            let Some(count) = value.filter(|count| state.oldest <= count.base + 1) else {
                continue;
            };
            let entries = self.read_key(partition, *key).map(|read| read.entries);
            if !count.equals_sum(&entries.unwrap_or_default()) {
                wrong = Some(format!("the live count of key {key} is {count:?}"));
            }
        }
        if let Some(description) = wrong {
            self.report_violation(Invariant::LiveCount, description);
        }
    }
}
