//! What the actors of a history share: the canonical rows, the log, live state, run records and
//! editions.
//!
//! Every method of a store is one operation, and atomic; between two of them anything may happen.

use std::rc::Rc;

use rand::Rng;
use rand::rngs::SmallRng;

use super::canon::{Canon, GROUPS, Group, KEYS, PARTITIONS, State, Told};
use super::editions::Boards;
use super::live::Live;
use super::records::Results;
use super::rules::Rules;
use super::tally::{Event, Law, Tally};
use crate::seam::{Epoch, Offset, Runs};

/// A partition of the log.
pub(super) struct Partition {
    /// Notifications; nothing where one was a dead letter.
    records: Vec<Option<Told>>,
    /// Below every offset, by group: the newest state that a notification was about.
    lows: Vec<[usize; GROUPS]>,
}

/// The run records and the newest complete epoch, read in one step.
#[derive(Clone)]
pub(super) struct RunsSeen {
    pub(super) runs: Rc<Runs>,
    pub(super) newest: Epoch,
}

pub(super) struct World {
    pub(super) rules: Rules,
    pub(super) rng: SmallRng,
    pub(super) tally: Tally,
    /// The law that was broken first, and how.
    pub(super) broken: Option<(Law, String)>,
    /// So many keys have rows.
    pub(super) keys: usize,
    pub(super) now: u64,
    /// Nothing is disturbed any more.
    pub(super) is_calm: bool,
    /// How often live state was changed by an actor.
    pub(super) changes: u64,
    pub(super) canon: Canon,
    pub(super) log: [Partition; PARTITIONS],
    pub(super) live: [Live; PARTITIONS],
    pub(super) past: [Vec<Live>; PARTITIONS],
    pub(super) runs: Rc<Runs>,
    pub(super) stamp: i64,
    pub(super) newest: Epoch,
    pub(super) results: Results,
    pub(super) boards: [Boards; KEYS],
}

impl World {
    pub(super) fn new(rules: Rules, mut rng: SmallRng) -> Self {
        let keys = rng.random_range(1..=KEYS);
        Self {
            rules,
            rng,
            tally: Tally::default(),
            broken: None,
            keys,
            now: 1,
            is_calm: false,
            changes: 0,
            canon: Canon::new(),
            log: [(); PARTITIONS].map(|()| Partition::new()),
            live: Default::default(),
            past: [(); PARTITIONS].map(|()| vec![Live::default()]),
            runs: Rc::new(Runs::default()),
            stamp: 0,
            newest: 0,
            results: Results::default(),
            boards: Default::default(),
        }
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

    pub(super) fn runs(&self) -> RunsSeen {
        RunsSeen {
            runs: Rc::clone(&self.runs),
            newest: self.newest,
        }
    }

    // The log.

    pub(super) fn end(&self, partition: usize) -> Offset {
        offset(self.log[partition].records.len())
    }

    /// The groups that are named between two offsets, and for those who believe notifications the
    /// states that these were about.
    pub(super) fn notified(
        &self,
        partition: usize,
        from: Offset,
        until: Offset,
    ) -> Vec<(Group, State)> {
        let records = &self.log[partition].records[index(from)..index(until)];
        let mut groups: Vec<(Group, State)> = Vec::new();
        for told in records.iter().flatten() {
            let state = self.states_since(told.group, told.index)[0];
            groups.retain(|(group, _)| *group != told.group);
            groups.push((told.group, state));
        }
        groups
    }

    pub(super) fn dead_letter(&mut self) {
        let partition = self.rng.random_range(0..PARTITIONS);
        self.log[partition].append(None);
    }

    /// The first of the states that a group may have in an answer that reaches up to an offset.
    pub(super) fn low(&self, partition: usize, group: Group, at: Offset) -> usize {
        self.log[partition].lows[index(at)][group.0]
    }
}

impl Partition {
    fn new() -> Self {
        Self {
            records: Vec::new(),
            lows: vec![[0; GROUPS]],
        }
    }

    pub(super) fn append(&mut self, record: Option<Told>) {
        let mut lows = self.lows[self.records.len()];
        if let Some(told) = record {
            let low = &mut lows[told.group.0];
            *low = told.index.max(*low);
        }
        self.records.push(record);
        self.lows.push(lows);
    }
}

fn offset(index: usize) -> Offset {
    Offset::try_from(index).expect("a small log")
}

fn index(offset: Offset) -> usize {
    usize::try_from(offset).expect("an offset of the log")
}
