//! The store of live state: the atomic changes of partition states, and their losses.

use std::rc::Rc;

use rand::Rng;
use schemas::seam::{Checkpoint, Cut, Epoch, Offset, PartitionState, Runs, WorkerStep};

use super::world::{Partition, cut_at, log_index};
use super::{Event, Fold, ViewKind, World};

const REPLICAS_MAX: usize = 12;
const KEEP_BOUNDS: u64 = 1;

/// The live state of a partition. Its fields change together.
#[derive(Clone, Default)]
pub(crate) struct LiveState<D> {
    pub(crate) partition_state: Option<Rc<PartitionState>>,
    /// Deltas or entries.
    pub(crate) data: D,
}

/// The progress of a partition, which actors cannot see.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// The offset up to which the log was counted since the last reversion.
    pub(crate) offset: Offset,
    pub(crate) reversions: u64,
}

impl<K: ViewKind> World<K> {
    pub(crate) fn partition_state(&self, partition: usize) -> Option<Rc<PartitionState>> {
        self.live_state(partition).partition_state.clone()
    }

    pub(crate) fn live_state(&self, partition: usize) -> &LiveState<K::LiveData> {
        &self.partitions[partition].live
    }

    pub(crate) fn progress(&self) -> Vec<Progress> {
        let partitions = self.partitions.iter();
        partitions.map(|partition| partition.progress).collect()
    }

    fn state_mut(&mut self, partition: usize) -> Option<&mut PartitionState> {
        let state = self.partitions[partition].live.partition_state.as_mut();
        state.map(Rc::make_mut)
    }

    /// Applies the micro-batch up to `next` if the checkpoint is the expected one. `change` adds
    /// its records to the live data. Returns whether the micro-batch was applied.
    pub(crate) fn apply(
        &mut self,
        fold: &Fold,
        next: Offset,
        change: impl FnOnce(&mut K::LiveData, &[Option<K::Record>]),
    ) -> bool {
        let (partition, expected) = (fold.partition, &fold.checkpoint);
        let names: Vec<&str> = fold.views.iter().map(|view| K::VIEWS[*view]).collect();
        let apply = self.protocol.apply;
        let Some(state) = self.state_mut(partition) else {
            return false;
        };
        let views_before = state.since.len();
        if apply(state, expected, cut_at(next), &names).is_err() {
            self.count_event(Event::ApplyRefused);
            return false;
        }
        if views_before > 0 && state.since.len() > views_before {
            self.count_event(Event::ViewAdded);
        }
        let changed = &mut self.partitions[partition];
        let records = log_index(expected.next_offset)..log_index(next);
        change(&mut changed.live.data, &changed.records[records]);
        changed.progress.offset = next.max(changed.progress.offset);
        self.record_change(partition);
        true
    }

    /// Performs a step of a worker, except folding.
    pub(crate) fn perform(
        &mut self,
        partition: usize,
        step: WorkerStep,
        expected: Option<Checkpoint>,
        runs: &Runs,
    ) {
        match (step, expected) {
            (WorkerStep::Rebuild, expected) => self.rebuild(partition, expected, runs),
            (WorkerStep::CloseEpoch, Some(expected)) => self.close_epoch(partition, &expected),
            _ => {}
        }
    }

    /// Starts a new generation at the newest complete run.
    fn rebuild(&mut self, partition: usize, expected: Option<Checkpoint>, runs: &Runs) {
        let start = runs.generation_start(partition, self.log_end(partition), self.now);
        let state = &mut self.partitions[partition].live.partition_state;
        if let Ok(rebuilt) = (self.protocol.rebuild)(state.as_deref(), expected, &start) {
            *state = Some(Rc::new(rebuilt));
            self.count_event(Event::Rebuilt);
            self.record_change(partition);
        }
    }

    fn close_epoch(&mut self, partition: usize, expected: &Checkpoint) {
        let state = self.state_mut(partition);
        if state.is_some_and(|state| state.close_epoch(expected).is_ok()) {
            self.count_event(Event::EpochClosed);
            self.record_change(partition);
        }
    }

    pub(crate) fn end_epoch(&mut self, partition: usize, epoch: Epoch) -> Option<Cut> {
        let state = self.state_mut(partition)?;
        let epoch_before = state.epoch;
        let cut = state.end_epoch(epoch).ok()?;
        if state.epoch != epoch_before {
            self.record_change(partition);
        }
        Some(cut)
    }

    /// Prunes epochs. Their live data is deleted now or later.
    pub(crate) fn prune_through(&mut self, partition: usize, epoch: Epoch, cut: Cut) {
        let live = &mut self.partitions[partition].live;
        let Some(state) = live.partition_state.as_mut().map(Rc::make_mut) else {
            return;
        };
        if state.prune_through(epoch, cut, KEEP_BOUNDS) {
            K::delete_pruned(
                &mut live.data,
                state.generation,
                state.oldest,
                &mut self.rng,
            );
            self.count_event(Event::Pruned);
            self.record_change(partition);
        }
    }

    /// Counts a change of live state. A replica receives some of the changes.
    fn record_change(&mut self, partition: usize) {
        self.live_changes += 1;
        if self.rng.random_ratio(1, 2) {
            let Partition { live, replicas, .. } = &mut self.partitions[partition];
            if replicas.len() >= REPLICAS_MAX {
                replicas.remove(0);
            }
            replicas.push(live.clone());
        }
    }

    /// Loses live state with the given probability: usually the last writes, sometimes all.
    pub(crate) fn lose_randomly(&mut self, partition: usize, probability: f64) {
        if self.rng.random_bool(probability) {
            if self.rng.random_ratio(17, 20) {
                self.fail_over(partition);
            } else {
                self.lose(partition);
            }
        }
    }

    /// Fails over to a replica that lacks the last writes.
    fn fail_over(&mut self, partition: usize) {
        let replicas = &mut self.partitions[partition].replicas;
        let live = replicas.swap_remove(self.rng.random_range(0..replicas.len()));
        replicas.clear();
        replicas.push(live.clone());
        self.revert(partition, live);
    }

    /// Fails over to a replica that lacks only a few writes.
    pub(crate) fn revert_slightly(&mut self, partition: usize) {
        let replicas = &mut self.partitions[partition].replicas;
        let last = replicas.len() - 1;
        let index = last - self.rng.random_range(0..=last.min(2));
        replicas.truncate(index + 1);
        let live = replicas[index].clone();
        self.revert(partition, live);
    }

    fn revert(&mut self, partition: usize, live: LiveState<K::LiveData>) {
        let reverted = &mut self.partitions[partition];
        let state = live.partition_state.as_ref();
        reverted.progress.offset = state.map_or(0, |state| state.position.next_offset);
        reverted.progress.reversions += 1;
        reverted.live = live;
        self.count_event(Event::FailedOver);
    }

    /// Deletes a partition state, with or without its live data.
    fn lose(&mut self, partition: usize) {
        let live = &mut self.partitions[partition].live;
        live.partition_state = None;
        if self.rng.random() {
            live.data = K::LiveData::default();
        }
        self.count_event(Event::Lost);
    }

    /// Fails over to a replica that lacks only the end of an epoch, if that was the last change and
    /// `may_undo` permits it.
    pub(crate) fn undo_epoch_end(
        &mut self,
        partition: usize,
        may_undo: impl FnOnce(&PartitionState, Epoch) -> bool,
    ) {
        let Some(state) = &mut self.partitions[partition].live.partition_state else {
            return;
        };
        let ended = state.epoch - 1;
        if may_undo(state, ended) && state.bounds.get(&ended) == Some(&state.position) {
            let state = Rc::make_mut(state);
            state.bounds.remove(&ended);
            state.epoch = ended;
            self.count_event(Event::FailedOver);
        }
    }
}
