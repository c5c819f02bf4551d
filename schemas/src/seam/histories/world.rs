//! The state that the actors of a history share: the log, live state, run records and rows.
//!
//! Every method is one atomic operation on a store. Anything may happen between two of them.

mod records;

use std::rc::Rc;

use rand::Rng;
use rand::rngs::SmallRng;

use super::events::{Event, EventCounts, Law};
use super::rules::Rules;

use crate::seam::{
    Checkpoint, Cut, Epoch, Generation, LastRecord, Offset, PartitionState, RunState, Runs,
};

pub(super) const KEYS: usize = 2;
/// The first view is always present. The third replaces the second.
pub(super) const VIEWS: [&str; 3] = ["plain@1", "scaled@1", "scaled@2"];
/// The weight of an event in each view, so that views cannot be confused.
const WEIGHTS: [i64; VIEWS.len()] = [1, 1000, 1_000_000];
/// The views of each deployment, in order.
pub(super) const CATALOGS: [&[usize]; 3] = [&[0, 1], &[0, 1, 2], &[0, 2]];

const PAST_MAX: usize = 12;
const KEEP_BOUNDS: u64 = 1;

/// The count of each key; `None` without events.
pub(super) type Counts = [Option<i64>; KEYS];

/// A record of the log: a key and its increment, or `None` for a dead letter.
pub(super) type Record = Option<(usize, i64)>;

/// A log partition with the sums below every offset.
#[derive(Default)]
struct Partition {
    records: Vec<Record>,
    sums: Vec<Counts>,
}

/// The live state of a partition: the partition state and its deltas, which change together.
#[derive(Clone, Default)]
struct Live {
    partition_state: Option<Rc<PartitionState>>,
    deltas: Vec<Delta>,
}

#[derive(Clone, Copy)]
struct Delta {
    generation: Generation,
    epoch: Epoch,
    key: usize,
    view: usize,
    count: i64,
}

#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) count: Option<i64>,
    pub(super) epoch: Epoch,
    stamp: i64,
}

/// The rows of one try of a run for a view, recorded before any of them is published.
#[derive(Clone, Copy)]
pub(super) struct RunResult {
    pub(super) epoch: Epoch,
    pub(super) attempt: u64,
    pub(super) rows: Counts,
}

/// A view's rows and results.
#[derive(Default)]
struct View {
    newest: Option<Epoch>,
    table: Option<[Option<Row>; KEYS]>,
    results: Vec<RunResult>,
    published: Option<(Epoch, u64)>,
    deleted: bool,
}

/// The run records and the newest complete epochs, read in one step.
#[derive(Clone)]
pub(super) struct RunRecords {
    pub(super) runs: Rc<Runs>,
    pub(super) newest: [Option<Epoch>; VIEWS.len()],
}

pub(super) struct World {
    pub(super) rules: Rules,
    pub(super) rng: SmallRng,
    pub(super) tally: EventCounts,
    /// The first violation.
    pub(super) violation: Option<(Law, String)>,
    /// The current deployment, with which actors start.
    pub(super) catalog: usize,
    /// If set, rows are refused once a newer run is recorded. Otherwise only stamps decide.
    strict: bool,
    now: u64,
    /// The number of changes of live state.
    pub(super) changes: u64,
    log: Vec<Partition>,
    live: Vec<Live>,
    past: Vec<Vec<Live>>,
    /// By partition: the offset up to which the log was counted, and the number of reversions.
    counted: Vec<(Offset, u64)>,
    runs: Rc<Runs>,
    stamp: i64,
    attempts: u64,
    views: [View; VIEWS.len()],
}

impl World {
    pub(super) fn new(rules: Rules, mut rng: SmallRng) -> Self {
        let strict = rng.random();
        Self {
            rules,
            rng,
            tally: EventCounts::default(),
            violation: None,
            catalog: 0,
            strict,
            now: 1,
            changes: 0,
            log: Vec::new(),
            live: Vec::new(),
            past: Vec::new(),
            counted: Vec::new(),
            runs: Rc::new(Runs::default()),
            stamp: 0,
            attempts: 0,
            views: Default::default(),
        }
    }

    pub(super) fn add_partition(&mut self) {
        let mut partition = Partition::default();
        partition.sums.push([None; KEYS]);
        self.log.push(partition);
        self.live.push(Live::default());
        self.past.push(vec![Live::default()]);
        self.counted.push((0, 0));
    }

    pub(super) fn tick(&mut self) {
        self.now += 1;
    }

    pub(super) fn count_event(&mut self, event: Event) {
        self.tally.add(event);
    }

    /// Records a violation. The first one is reported.
    pub(super) fn report_violation(&mut self, law: Law, what: String) {
        self.violation.get_or_insert((law, what));
    }

    // The log.

    pub(super) fn partitions(&self) -> usize {
        self.log.len()
    }

    pub(super) fn end(&self, partition: usize) -> Offset {
        offset(self.log[partition].records.len())
    }

    pub(super) fn append(&mut self, partition: usize, record: Record) {
        let log = &mut self.log[partition];
        let mut sums = log.sums[log.records.len()];
        if let Some((key, count)) = record {
            sums[key] = Some(sums[key].unwrap_or(0) + count);
        }
        log.records.push(record);
        log.sums.push(sums);
    }

    /// Returns the position at an offset, with the record before it.
    pub(super) fn cut_at(&self, next_offset: Offset) -> Cut {
        let last = (next_offset > 0).then(|| LastRecord {
            offset: next_offset - 1,
            checksum: 7,
            logged_at_ms: next_offset,
        });
        Cut { next_offset, last }
    }

    /// Folds the records below the offsets for a key of a view.
    pub(super) fn fold(&self, view: usize, key: usize, offsets: &[Offset]) -> Option<i64> {
        let sums = self
            .log
            .iter()
            .zip(offsets)
            .filter_map(|(log, at)| log.sums[index(*at)][key]);
        sums.reduce(|a, b| a + b).map(|sum| sum * WEIGHTS[view])
    }

    // Live state.

    /// Returns by partition the offset up to which the log was counted, and the number of
    /// reversions, which actors cannot see.
    pub(super) fn counted(&self) -> &[(Offset, u64)] {
        &self.counted
    }

    pub(super) fn partition_state(&self, partition: usize) -> Option<Rc<PartitionState>> {
        self.live[partition].partition_state.clone()
    }

    /// Reads a partition state and the retained deltas of a key by epoch, in its generation.
    pub(super) fn read(&self, partition: usize, view: usize, key: usize) -> StateRead {
        let live = &self.live[partition];
        let partition_state = live.partition_state.clone()?;
        let is_retained = |delta: &&Delta| {
            delta.generation == partition_state.generation
                && delta.epoch >= partition_state.oldest
                && (delta.view, delta.key) == (view, key)
        };
        let deltas = live
            .deltas
            .iter()
            .filter(is_retained)
            .map(|delta| (delta.epoch, delta.count))
            .collect();
        Some((partition_state, deltas))
    }

    /// Applies the records from the expected checkpoint up to `next`.
    pub(super) fn apply(
        &mut self,
        partition: usize,
        expected: Checkpoint,
        next: Offset,
        views: &[usize],
    ) -> bool {
        let names: Vec<&str> = views.iter().map(|view| VIEWS[*view]).collect();
        let next = self.cut_at(next);
        let live = &mut self.live[partition];
        let Some(partition_state) = live.partition_state.as_mut().map(Rc::make_mut) else {
            return false;
        };
        let known = partition_state.since.len();
        if (self.rules.apply)(partition_state, &expected, next, &names).is_err() {
            self.count_event(Event::ApplyRefused);
            return false;
        }
        let joined = known > 0 && partition_state.since.len() > known;
        let records =
            &self.log[partition].records[index(expected.next_offset)..index(next.next_offset)];
        for (key, count) in records.iter().flatten() {
            for view in views {
                let count = count * WEIGHTS[*view];
                add(&mut live.deltas, expected, *view, *key, count);
            }
        }
        if joined {
            self.count_event(Event::Merged);
        }
        let (counted, _) = &mut self.counted[partition];
        *counted = next.next_offset.max(*counted);
        self.remember(partition);
        true
    }

    pub(super) fn close_epoch(&mut self, partition: usize, expected: Checkpoint) {
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

    pub(super) fn end_epoch(&mut self, partition: usize, epoch: Epoch) -> Option<Cut> {
        let partition_state = Rc::make_mut(self.live[partition].partition_state.as_mut()?);
        let filling = partition_state.epoch;
        let cut = partition_state.end_epoch(epoch).ok()?;
        if partition_state.epoch != filling {
            self.remember(partition);
        }
        Some(cut)
    }

    /// Starts a new generation at the newest complete run of `runs`.
    pub(super) fn rebuild(&mut self, partition: usize, expected: Option<Checkpoint>, runs: &Runs) {
        let start = runs.generation_start(partition, self.end(partition), self.now);
        let live = &mut self.live[partition];
        let rebuilt = (self.rules.rebuild)(live.partition_state.as_deref(), expected, &start);
        if let Ok(partition_state) = rebuilt {
            live.partition_state = Some(Rc::new(partition_state));
            self.count_event(Event::Rebuilt);
            self.remember(partition);
        }
    }

    pub(super) fn prune_through(&mut self, partition: usize, epoch: Epoch, cut: Cut) {
        let live = &mut self.live[partition];
        let Some(partition_state) = live.partition_state.as_mut().map(Rc::make_mut) else {
            return;
        };
        if partition_state.prune_through(epoch, cut, KEEP_BOUNDS) {
            let (generation, oldest) = (partition_state.generation, partition_state.oldest);
            if self.rng.random() {
                live.deltas
                    .retain(|delta| delta.generation == generation && delta.epoch >= oldest);
            }
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
    pub(super) fn fail_over(&mut self, partition: usize) {
        let past = &mut self.past[partition];
        let live = past.swap_remove(self.rng.random_range(0..past.len()));
        past.clear();
        past.push(live.clone());
        let next_offset =
            |partition_state: &Rc<PartitionState>| partition_state.position.next_offset;
        let (counted, reversions) = &mut self.counted[partition];
        *counted = live.partition_state.as_ref().map_or(0, next_offset);
        *reversions += 1;
        self.live[partition] = live;
        self.count_event(Event::FailedOver);
    }

    /// Deletes a partition state, with or without its deltas.
    pub(super) fn lose(&mut self, partition: usize) {
        let live = &mut self.live[partition];
        live.partition_state = None;
        if self.rng.random() {
            live.deltas.clear();
        }
        self.count_event(Event::Lost);
    }

    /// Fails over to a replica that lacks only the end of an epoch, if that was the last change. No
    /// run has recorded this end, or a run has only proposed it.
    pub(super) fn undo_epoch_end(&mut self, partition: usize, proposed: bool) {
        let epoch = match (self.last_run(), self.runs.open()) {
            (_, Some(open)) if proposed && open.state == RunState::Proposed => open.epoch,
            (Some(last), _) => last.epoch + 1,
            (None, _) => 1,
        };
        let Some(partition_state) = &mut self.live[partition].partition_state else {
            return;
        };
        if partition_state.epoch == epoch + 1
            && partition_state.bounds.get(&epoch) == Some(&partition_state.position)
        {
            let partition_state = Rc::make_mut(partition_state);
            partition_state.bounds.remove(&epoch);
            partition_state.epoch = epoch;
            self.count_event(Event::FailedOver);
        }
    }
}

impl Row {
    pub(super) fn new(count: Option<i64>, epoch: Epoch, stamp: i64) -> Self {
        Self {
            count,
            epoch,
            stamp,
        }
    }
}

/// A partition state with the deltas of a key by epoch.
pub(super) type StateRead = Option<(Rc<PartitionState>, Vec<(Epoch, i64)>)>;

fn add(deltas: &mut Vec<Delta>, checkpoint: Checkpoint, view: usize, key: usize, count: i64) {
    let Checkpoint {
        generation, epoch, ..
    } = checkpoint;
    let same = |delta: &&mut Delta| {
        (delta.generation, delta.epoch, delta.view, delta.key) == (generation, epoch, view, key)
    };
    match deltas.iter_mut().find(same) {
        Some(delta) => delta.count += count,
        None => deltas.push(Delta {
            generation,
            epoch,
            key,
            view,
            count,
        }),
    }
}

fn offset(index: usize) -> Offset {
    Offset::try_from(index).expect("a small log")
}

fn index(offset: Offset) -> usize {
    usize::try_from(offset).expect("an offset of the log")
}
