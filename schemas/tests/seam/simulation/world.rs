//! The stores that the actors of a history share.
//!
//! Every method is one atomic operation on a store. Between two of them, other actors may act.

use std::rc::Rc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schemas::seam::{Cut, Epoch, LastRecord, Offset, Runs};

use super::{Event, EventCounts, Invariant, LiveState, Progress, Protocol, ViewKind, Violation};

/// The number of log partitions at the start.
pub(crate) const PARTITIONS: usize = 2;

/// The stores, and what the simulation needs to know about a history.
pub(crate) struct World<K: ViewKind> {
    seed: u64,
    pub(crate) protocol: Protocol,
    pub(crate) rng: SmallRng,
    pub(crate) events: EventCounts,
    /// The first violation.
    pub(crate) violation: Option<Violation>,
    /// The index of the current deployment, with which actors start.
    pub(crate) deployment: usize,
    /// The time. It advances before each step of an actor.
    pub(crate) now: u64,
    /// The time until which the running actor pauses.
    pub(super) pause_until: u64,
    /// The number of changes of live state.
    pub(super) live_changes: u64,
    pub(super) partitions: Vec<Partition<K>>,
    pub(super) runs: Rc<Runs>,
    pub(super) last_stamp: i64,
    /// By view, the newest complete epoch; 0 before the first.
    pub(super) newest: Vec<Epoch>,
    /// The stores and rules of this kind of views.
    pub(crate) stores: K,
}

/// A log partition and its live state.
pub(super) struct Partition<K: ViewKind> {
    /// The log; `None` for a dead letter.
    pub(super) records: Vec<Option<K::Record>>,
    /// A summary of the records below each offset.
    summaries: Vec<K::LogSummary>,
    pub(super) live: LiveState<K::LiveData>,
    /// Earlier live states, to which a failover may revert.
    pub(super) replicas: Vec<LiveState<K::LiveData>>,
    pub(super) progress: Progress,
}

impl<K: ViewKind> World<K> {
    pub(crate) fn new(
        seed: u64,
        protocol: Protocol,
        create_stores: impl FnOnce(&mut SmallRng) -> K,
    ) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let stores = create_stores(&mut rng);
        let mut world = Self {
            seed,
            protocol,
            rng,
            events: EventCounts::new(),
            violation: None,
            deployment: 0,
            now: 1,
            pause_until: 0,
            live_changes: 0,
            partitions: Vec::new(),
            runs: Rc::default(),
            last_stamp: 0,
            newest: vec![0; K::VIEWS.len()],
            stores,
        };
        for _ in 0..PARTITIONS {
            world.add_partition();
        }
        world
    }

    /// Returns the events of the history, or the first violation.
    pub(crate) fn into_outcome(self) -> Result<EventCounts, Violation> {
        self.violation.map_or(Ok(self.events), Err)
    }

    pub(crate) fn add_partition(&mut self) {
        self.partitions.push(Partition {
            records: Vec::new(),
            summaries: vec![K::LogSummary::default()],
            live: LiveState::default(),
            replicas: vec![LiveState::default()],
            progress: Progress::default(),
        });
    }

    pub(crate) const fn partitions(&self) -> usize {
        self.partitions.len()
    }

    pub(crate) fn deployed_views(&self) -> &'static [usize] {
        K::DEPLOYMENTS[self.deployment]
    }

    /// Draws the probability of a disturbance; 0 if it is not `enabled`.
    pub(crate) fn draw_probability(&mut self, enabled: bool, max: f64) -> f64 {
        if enabled {
            self.rng.random_range(0.0..max)
        } else {
            0.0
        }
    }

    pub(crate) const fn tick(&mut self) {
        self.now += 1;
    }

    /// Sometimes lets the running actor pause after its step, so that its reads become stale.
    pub(crate) fn pause_randomly(&mut self, ticks_max: u64) {
        if self.rng.random_ratio(1, 4) {
            self.pause_until = self.now + self.rng.random_range(0..ticks_max);
        }
    }

    pub(crate) const fn count_event(&mut self, event: Event) {
        self.events.add(event);
    }

    /// Records a violation. The first one is reported.
    pub(crate) fn report_violation(&mut self, invariant: Invariant, description: String) {
        self.violation.get_or_insert(Violation {
            seed: self.seed,
            invariant,
            description,
        });
    }

    /// Appends a record to the log, or a dead letter if it is `None`.
    pub(crate) fn append(&mut self, partition: usize, record: Option<K::Record>) {
        let partition = &mut self.partitions[partition];
        let mut summary = partition.summaries[partition.records.len()];
        if let Some(record) = record {
            K::add_to_summary(&mut summary, record);
        }
        partition.records.push(record);
        partition.summaries.push(summary);
    }

    pub(crate) fn log_end(&self, partition: usize) -> Offset {
        let records = self.partitions[partition].records.len();
        Offset::try_from(records).expect("a small log")
    }

    /// Returns the records between two offsets.
    pub(crate) fn records(
        &self,
        partition: usize,
        start: Offset,
        end: Offset,
    ) -> &[Option<K::Record>] {
        &self.partitions[partition].records[log_index(start)..log_index(end)]
    }

    pub(crate) fn log_summary(&self, partition: usize, offset: Offset) -> K::LogSummary {
        self.partitions[partition].summaries[log_index(offset)]
    }
}

/// Returns the cut at an offset, with the record before it.
pub(crate) fn cut_at(next_offset: Offset) -> Cut {
    let last = (next_offset > 0).then(|| LastRecord {
        offset: next_offset - 1,
        checksum: 7,
        logged_at_ms: next_offset,
    });
    Cut { next_offset, last }
}

pub(super) fn log_index(offset: Offset) -> usize {
    usize::try_from(offset).expect("an offset of the log")
}
