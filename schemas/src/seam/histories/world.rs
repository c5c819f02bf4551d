//! What the actors of a history share: the log, live state, run records and rows.
//!
//! Every method is one operation on a store, and atomic; between two of them anything may happen.

mod records;

use std::rc::Rc;

use rand::Rng;
use rand::rngs::SmallRng;

use super::rules::Rules;
use super::tally::{Event, Law, Tally};

use crate::seam::{Cut, Epoch, Fence, Generation, LastRecord, Offset, Run, RunState, Runs, Slot};

pub(super) const KEYS: usize = 2;
/// The first is always there; the third takes the place of the second.
pub(super) const VIEWS: [&str; 3] = ["plain@1", "scaled@1", "scaled@2"];
/// What an event adds to each view, so that none can be taken for another.
const WEIGHTS: [i64; VIEWS.len()] = [1, 1000, 1_000_000];
/// Deployments, one after the other: which views they have.
pub(super) const CATALOGS: [&[usize]; 3] = [&[0, 1], &[0, 1, 2], &[0, 2]];

const PAST_MAX: usize = 12;
const KEEP_BOUNDS: u64 = 1;

/// A row that a run gives a key; nothing where no event gives one.
pub(super) type Counts = [Option<i64>; KEYS];

/// A record of the log: what it adds to a key, or nothing if it was a dead letter.
pub(super) type Record = Option<(usize, i64)>;

/// A partition of the log, with the sums below every offset.
#[derive(Default)]
struct Partition {
    records: Vec<Record>,
    sums: Vec<Counts>,
}

/// The live state of a partition: the slot and its parts, which change together.
#[derive(Clone, Default)]
struct Live {
    slot: Option<Rc<Slot>>,
    parts: Vec<Part>,
}

#[derive(Clone, Copy)]
struct Part {
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

/// The rows that a try of a run gives a view, written down before any of them is published.
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    pub(super) epoch: Epoch,
    pub(super) attempt: u64,
    pub(super) rows: Counts,
}

/// A view's rows and results.
#[derive(Default)]
struct View {
    newest: Option<Epoch>,
    table: Option<[Option<Row>; KEYS]>,
    outcomes: Vec<Outcome>,
    published: Option<(Epoch, u64)>,
    forgotten: bool,
}

/// The run records and the newest complete epochs, read in one step.
#[derive(Clone)]
pub(super) struct RunsSeen {
    pub(super) runs: Rc<Runs>,
    pub(super) newest: [Option<Epoch>; VIEWS.len()],
}

pub(super) struct World {
    pub(super) rules: Rules,
    pub(super) rng: SmallRng,
    pub(super) tally: Tally,
    /// The law that was broken first, and how.
    pub(super) broken: Option<(Law, String)>,
    /// The deployment that actors start with now.
    pub(super) catalog: usize,
    /// Rows are refused once a newer run is recorded; else only their stamps decide.
    strict: bool,
    now: u64,
    /// How often live state was changed by an actor.
    pub(super) changes: u64,
    log: Vec<Partition>,
    live: Vec<Live>,
    past: Vec<Vec<Live>>,
    /// By partition: up to where the log had been counted, and how often that was taken back.
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
            tally: Tally::default(),
            broken: None,
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

    pub(super) fn note(&mut self, event: Event) {
        self.tally.add(event);
    }

    /// Notes what contradicts the protocol; the first such thing is told.
    pub(super) fn contradict(&mut self, law: Law, what: String) {
        self.broken.get_or_insert((law, what));
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

    /// The position at an offset, with the record before it.
    pub(super) fn cut_at(&self, next_offset: Offset) -> Cut {
        let last = (next_offset > 0).then(|| LastRecord {
            offset: next_offset - 1,
            checksum: 7,
            logged_at_ms: next_offset,
        });
        Cut { next_offset, last }
    }

    /// What the records below the offsets give a key of a view.
    pub(super) fn fold(&self, view: usize, key: usize, offsets: &[Offset]) -> Option<i64> {
        let sums = self
            .log
            .iter()
            .zip(offsets)
            .filter_map(|(log, at)| log.sums[index(*at)][key]);
        sums.reduce(|a, b| a + b).map(|sum| sum * WEIGHTS[view])
    }

    // Live state.

    /// By partition: up to where the log had been counted, and how often a slot fell back behind
    /// that, which nobody can see.
    pub(super) fn counted(&self) -> &[(Offset, u64)] {
        &self.counted
    }

    pub(super) fn slot(&self, partition: usize) -> Option<Rc<Slot>> {
        self.live[partition].slot.clone()
    }

    /// A slot and by epoch the parts of a key, of the slot's generation and the epochs it keeps.
    pub(super) fn read(&self, partition: usize, view: usize, key: usize) -> SlotRead {
        let live = &self.live[partition];
        let slot = live.slot.clone()?;
        let kept = |part: &&Part| {
            part.generation == slot.generation
                && part.epoch >= slot.oldest
                && (part.view, part.key) == (view, key)
        };
        let parts = live
            .parts
            .iter()
            .filter(kept)
            .map(|part| (part.epoch, part.count))
            .collect();
        Some((slot, parts))
    }

    /// Folds the records from where the worker believes the slot to be up to `next`.
    pub(super) fn apply(
        &mut self,
        partition: usize,
        believed: Fence,
        next: Offset,
        views: &[usize],
    ) -> bool {
        let names: Vec<&str> = views.iter().map(|view| VIEWS[*view]).collect();
        let next = self.cut_at(next);
        let live = &mut self.live[partition];
        let Some(slot) = live.slot.as_mut().map(Rc::make_mut) else {
            return false;
        };
        let known = slot.since.len();
        if (self.rules.apply)(slot, &believed, next, &names).is_err() {
            self.note(Event::Fenced);
            return false;
        }
        let joined = known > 0 && slot.since.len() > known;
        let records =
            &self.log[partition].records[index(believed.next_offset)..index(next.next_offset)];
        for (key, count) in records.iter().flatten() {
            for view in views {
                let count = count * WEIGHTS[*view];
                add(&mut live.parts, believed, *view, *key, count);
            }
        }
        if joined {
            self.note(Event::Joined);
        }
        let (counted, _) = &mut self.counted[partition];
        *counted = next.next_offset.max(*counted);
        self.remember(partition);
        true
    }

    pub(super) fn impose(&mut self, partition: usize, believed: Fence) {
        let slot = self.live[partition].slot.as_mut().map(Rc::make_mut);
        if slot.is_some_and(|slot| slot.impose(&believed).is_ok()) {
            self.note(Event::Imposed);
            self.remember(partition);
        }
    }

    pub(super) fn roll(&mut self, partition: usize, epoch: Epoch) -> Option<Cut> {
        let slot = Rc::make_mut(self.live[partition].slot.as_mut()?);
        let filling = slot.epoch;
        let cut = slot.roll(epoch).ok()?;
        if slot.epoch != filling {
            self.remember(partition);
        }
        Some(cut)
    }

    /// Starts a new life at the newest complete run of `runs`.
    pub(super) fn heal(&mut self, partition: usize, seen: Option<Fence>, runs: &Runs) {
        let life = runs.new_life(partition, self.end(partition), self.now);
        let live = &mut self.live[partition];
        let healed = (self.rules.heal)(live.slot.as_deref(), seen, &life);
        if let Ok(slot) = healed {
            live.slot = Some(Rc::new(slot));
            self.note(Event::Healed);
            self.remember(partition);
        }
    }

    pub(super) fn drop_through(&mut self, partition: usize, epoch: Epoch, cut: Cut) {
        let live = &mut self.live[partition];
        let Some(slot) = live.slot.as_mut().map(Rc::make_mut) else {
            return;
        };
        if slot.drop_through(epoch, cut, KEEP_BOUNDS) {
            let (generation, oldest) = (slot.generation, slot.oldest);
            if self.rng.random() {
                live.parts
                    .retain(|part| part.generation == generation && part.epoch >= oldest);
            }
            self.note(Event::Dropped);
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

    /// A replica that had not seen the last writes takes over.
    pub(super) fn fail_over(&mut self, partition: usize) {
        let past = &mut self.past[partition];
        let live = past.swap_remove(self.rng.random_range(0..past.len()));
        past.clear();
        past.push(live.clone());
        let stands = |slot: &Rc<Slot>| slot.position.next_offset;
        let (counted, taken_back) = &mut self.counted[partition];
        *counted = live.slot.as_ref().map_or(0, stands);
        *taken_back += 1;
        self.live[partition] = live;
        self.note(Event::FailedOver);
    }

    /// The slot vanishes, its parts with it or not.
    pub(super) fn lose(&mut self, partition: usize) {
        let live = &mut self.live[partition];
        live.slot = None;
        if self.rng.random() {
            live.parts.clear();
        }
        self.note(Event::Lost);
    }

    /// A replica takes over that had seen everything but the end of an epoch that no run has
    /// recorded yet, or only proposed, if the slot stands like that.
    pub(super) fn undo_roll(&mut self, partition: usize, proposed: bool) {
        let epoch = match (self.last_run(), self.runs.open()) {
            (_, Some(open)) if proposed && open.state == RunState::Proposed => open.epoch,
            (Some(last), _) => last.epoch + 1,
            (None, _) => 1,
        };
        let Some(slot) = &mut self.live[partition].slot else {
            return;
        };
        if slot.epoch == epoch + 1 && slot.bounds.get(&epoch) == Some(&slot.position) {
            let slot = Rc::make_mut(slot);
            slot.bounds.remove(&epoch);
            slot.epoch = epoch;
            self.note(Event::FailedOver);
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

/// A slot and by epoch the parts of a key.
pub(super) type SlotRead = Option<(Rc<Slot>, Vec<(Epoch, i64)>)>;

/// A run as it is once it can't be replaced any more.
pub(super) fn sealed(run: Run) -> Run {
    match run.state {
        RunState::Proposed => Run {
            state: RunState::Sealed,
            ..run
        },
        _ => run,
    }
}

fn add(parts: &mut Vec<Part>, fence: Fence, view: usize, key: usize, count: i64) {
    let Fence {
        generation, epoch, ..
    } = fence;
    let same = |part: &&mut Part| {
        (part.generation, part.epoch, part.view, part.key) == (generation, epoch, view, key)
    };
    match parts.iter_mut().find(same) {
        Some(part) => part.count += count,
        None => parts.push(Part {
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
