//! Changes and losses of live state.

use std::rc::Rc;

use rand::Rng;

use super::super::entity_rows::{Group, State};
use super::super::events::{Event, Law};
use super::super::live::{StateRead, VIEW};
use super::super::live_counts::LiveCountChange;
use super::super::live_entry::LiveEntry;
use super::World;
use crate::seam::{Checkpoint, Cut, Epoch, LastRecord, Offset, PartitionState, Runs};

const PAST_MAX: usize = 12;
const KEEP_BOUNDS: u64 = 1;

impl World {
    pub(in super::super) fn partition_state(&self, partition: usize) -> Option<Rc<PartitionState>> {
        self.live[partition].partition_state.clone()
    }

    /// Reads a partition state and the retained entries of a key in its generation.
    pub(in super::super) fn read(&self, partition: usize, key: usize) -> StateRead {
        let live = &self.live[partition];
        let partition_state = live.partition_state.clone()?;
        let count = |entry: &&LiveEntry| {
            let is_kept = entry.epoch >= partition_state.oldest || self.rules.reads_pruned;
            entry.generation == partition_state.generation && is_kept && entry.group.key() == key
        };
        let entries = live.entries.iter().filter(count).copied().collect();
        let sum = live.sum((partition_state.generation, key)).cloned();
        Some((partition_state, entries, sum))
    }

    /// Replaces the entries of the groups that are notified up to `next`.
    pub(in super::super) fn apply(
        &mut self,
        partition: usize,
        expected: Checkpoint,
        next: Offset,
        states: &[(Group, State)],
        sums: &[LiveCountChange],
    ) -> bool {
        let live = &mut self.live[partition];
        let Some(partition_state) = live.partition_state.as_mut().map(Rc::make_mut) else {
            return false;
        };
        if (self.rules.apply)(partition_state, &expected, cut_at(next), &[VIEW]).is_err() {
            self.count_event(Event::ApplyRefused);
            return false;
        }
        for (group, state) in states {
            live.put(LiveEntry {
                generation: expected.generation,
                epoch: expected.epoch,
                group: *group,
                state: *state,
            });
        }
        let named: Vec<usize> = sums.iter().map(|change| change.key).collect();
        let mut unnamed: Vec<usize> = states.iter().map(|(group, _)| group.key()).collect();
        unnamed.dedup();
        unnamed.retain(|key| !named.contains(key));
        let generation = expected.generation;
        for change in sums {
            let id = (generation, change.key);
            let stored = live.sum(id).cloned();
            let (expected, next) = (change.expected.as_ref(), change.next.clone());
            live.set_count(id, (self.rules.next_count)(stored.as_ref(), expected, next));
        }
        for key in unnamed {
            let stored = live.sum((generation, key)).cloned();
            let count = (self.rules.next_count)(stored.as_ref(), None, None);
            live.set_count((generation, key), count);
        }
        self.check_sums(partition);
        self.remember(partition);
        true
    }

    /// Checks that each live count equals the sum of the entries, even if no reader uses it.
    fn check_sums(&mut self, partition: usize) {
        let live = &self.live[partition];
        let Some(partition_state) = &live.partition_state else {
            return;
        };
        let sums = live.sums.iter();
        let of_life = sums.filter(|((generation, _), _)| *generation == partition_state.generation);
        let mut wrong = None;
        for ((_, key), count) in of_life {
            // Some counted entries were pruned, so no reader has this base any more.
            let value = count.value.as_ref();
            let Some(sum) = value.filter(|sum| partition_state.oldest <= sum.base + 1) else {
                continue;
            };
            let entries = self.read(partition, *key).map(|(_, entries, _)| entries);
            if !sum.equals(&entries.unwrap_or_default()) {
                wrong = Some(format!("the sum of key {key} is {sum:?}"));
            }
        }
        if let Some(what) = wrong {
            self.report_violation(Law::LiveCount, what);
        }
    }

    pub(in super::super) fn close_epoch(&mut self, partition: usize, expected: Checkpoint) {
        let partition_state = self.live[partition]
            .partition_state
            .as_mut()
            .map(Rc::make_mut);
        if partition_state
            .is_some_and(|partition_state| partition_state.close_epoch(&expected).is_ok())
        {
            self.count_event(Event::EpochClosed);
            self.remember(partition);
        }
    }

    pub(in super::super) fn end_epoch(&mut self, partition: usize, epoch: Epoch) -> Option<Cut> {
        let partition_state = Rc::make_mut(self.live[partition].partition_state.as_mut()?);
        let filling = partition_state.epoch;
        let cut = partition_state.end_epoch(epoch).ok()?;
        if partition_state.epoch != filling {
            self.remember(partition);
        }
        Some(cut)
    }

    /// Starts a new generation at the newest complete run of `runs`.
    pub(in super::super) fn rebuild(
        &mut self,
        partition: usize,
        expected: Option<Checkpoint>,
        runs: &Runs,
    ) {
        let start = runs.generation_start(partition, self.end(partition), self.now);
        let live = &mut self.live[partition];
        if let Ok(partition_state) =
            PartitionState::rebuild(live.partition_state.as_deref(), expected, &start)
        {
            live.partition_state = Some(Rc::new(partition_state));
            self.count_event(Event::Rebuilt);
            self.remember(partition);
        }
    }

    /// Prunes epochs. Their entries are deleted then or later.
    pub(in super::super) fn prune_through(&mut self, partition: usize, epoch: Epoch, cut: Cut) {
        let live = &mut self.live[partition];
        let Some(partition_state) = live.partition_state.as_mut().map(Rc::make_mut) else {
            return;
        };
        if partition_state.prune_through(epoch, cut, KEEP_BOUNDS) {
            let (generation, oldest) = (partition_state.generation, partition_state.oldest);
            live.entries.retain(|entry| {
                let read = entry.generation == generation && entry.epoch >= oldest;
                read || self.rng.random_ratio(1, 3)
            });
            self.count_event(Event::Pruned);
            self.remember(partition);
        }
    }

    fn remember(&mut self, partition: usize) {
        self.changes += 1;
        if self.rng.random_ratio(1, 2) {
            let past = &mut self.past[partition];
            if past.len() >= PAST_MAX {
                past.remove(0);
            }
            past.push(self.live[partition].clone());
        }
    }

    /// Fails over to a replica that lacks the last writes.
    pub(in super::super) fn fail_over(&mut self, partition: usize) {
        let past = &mut self.past[partition];
        let live = past.swap_remove(self.rng.random_range(0..past.len()));
        past.clear();
        past.push(live.clone());
        self.live[partition] = live;
        self.count_event(Event::FailedOver);
    }

    /// Fails over to a replica that lacks only a few writes.
    pub(in super::super) fn revert_slightly(&mut self, partition: usize) {
        let past = &mut self.past[partition];
        let last = past.len() - 1;
        let at = last - self.rng.random_range(0..=last.min(2));
        past.truncate(at + 1);
        self.live[partition] = past[at].clone();
        self.count_event(Event::FailedOver);
    }

    /// Fails over to a replica that lacks only the end of an epoch, if that was the last change.
    pub(in super::super) fn undo_epoch_end(&mut self, partition: usize) {
        let Some(partition_state) = &mut self.live[partition].partition_state else {
            return;
        };
        let ended = partition_state.epoch - 1;
        if ended >= partition_state.oldest
            && partition_state.bounds.get(&ended) == Some(&partition_state.position)
        {
            let partition_state = Rc::make_mut(partition_state);
            partition_state.bounds.remove(&ended);
            partition_state.epoch = ended;
            self.count_event(Event::FailedOver);
        }
    }

    /// Deletes a partition state, with or without its entries.
    pub(in super::super) fn lose(&mut self, partition: usize) {
        let live = &mut self.live[partition];
        live.partition_state = None;
        if self.rng.random() {
            live.entries.clear();
            live.sums.clear();
        }
        self.count_event(Event::Lost);
    }
}

/// Returns the position at an offset, with the record before it.
fn cut_at(next_offset: Offset) -> Cut {
    let last = (next_offset > 0).then(|| LastRecord {
        offset: next_offset - 1,
        checksum: 7,
        logged_at_ms: next_offset,
    });
    Cut { next_offset, last }
}
