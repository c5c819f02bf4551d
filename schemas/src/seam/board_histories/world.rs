//! The state that the actors of a history share: entity rows, the log, live state, run records and
//! versions.
//!
//! Every method of a store is one atomic operation. Anything may happen between two of them.

mod entity_rows;
mod live;
mod records;
mod versions;

use std::rc::Rc;

use rand::Rng;
use rand::rngs::SmallRng;

use super::entity_rows::{EntityRows, GROUPS, Group, KEYS, Notification, PARTITIONS, State};
use super::events::{Event, EventCounts, Law};
use super::live::Live;
use super::records::Results;
use super::rules::Rules;
use super::versions::Boards;
use crate::seam::{Epoch, Offset, Runs};

/// A partition of the log.
pub(super) struct Partition {
    /// Notifications; `None` for a dead letter.
    records: Vec<Option<Notification>>,
    /// Below every offset, by group, the newest state that a notification announced.
    oldest_states: Vec<[usize; GROUPS]>,
}

/// The run records and the newest complete epoch, read in one step.
#[derive(Clone)]
pub(super) struct RunRecords {
    pub(super) runs: Rc<Runs>,
    pub(super) newest: Epoch,
}

pub(super) struct World {
    pub(super) rules: Rules,
    pub(super) rng: SmallRng,
    pub(super) tally: EventCounts,
    /// The first violation.
    pub(super) violation: Option<(Law, String)>,
    /// The number of keys with rows.
    pub(super) keys: usize,
    pub(super) now: u64,
    /// Set after the faults end.
    pub(super) is_undisturbed: bool,
    /// The number of changes of live state.
    pub(super) changes: u64,
    pub(super) entities: EntityRows,
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
            tally: EventCounts::default(),
            violation: None,
            keys,
            now: 1,
            is_undisturbed: false,
            changes: 0,
            entities: EntityRows::new(),
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

    pub(super) fn count_event(&mut self, event: Event) {
        self.tally.add(event);
    }

    /// Records a violation. The first one is reported.
    pub(super) fn report_violation(&mut self, law: Law, what: String) {
        self.violation.get_or_insert((law, what));
    }

    pub(super) fn runs(&self) -> RunRecords {
        RunRecords {
            runs: Rc::clone(&self.runs),
            newest: self.newest,
        }
    }

    // The log.

    pub(super) fn end(&self, partition: usize) -> Offset {
        offset(self.log[partition].records.len())
    }

    /// Returns the groups that are notified between two offsets, with the announced states, which
    /// only a mutant uses.
    pub(super) fn notified(
        &self,
        partition: usize,
        from: Offset,
        until: Offset,
    ) -> Vec<(Group, State)> {
        let records = &self.log[partition].records[index(from)..index(until)];
        let mut groups: Vec<(Group, State)> = Vec::new();
        for notification in records.iter().flatten() {
            let state = self.states_since(notification.group, notification.index)[0];
            groups.retain(|(group, _)| *group != notification.group);
            groups.push((notification.group, state));
        }
        groups
    }

    pub(super) fn dead_letter(&mut self) {
        let partition = self.rng.random_range(0..PARTITIONS);
        self.log[partition].append(None);
    }

    /// Returns the index of the oldest state that a group may have in an answer at an offset.
    pub(super) fn oldest_allowed(&self, partition: usize, group: Group, at: Offset) -> usize {
        self.log[partition].oldest_states[index(at)][group.0]
    }
}

impl Partition {
    fn new() -> Self {
        Self {
            records: Vec::new(),
            oldest_states: vec![[0; GROUPS]],
        }
    }

    pub(super) fn append(&mut self, record: Option<Notification>) {
        let mut oldest_states = self.oldest_states[self.records.len()];
        if let Some(notification) = record {
            let oldest = &mut oldest_states[notification.group.0];
            *oldest = notification.index.max(*oldest);
        }
        self.records.push(record);
        self.oldest_states.push(oldest_states);
    }
}

fn offset(index: usize) -> Offset {
    Offset::try_from(index).expect("a small log")
}

fn index(offset: Offset) -> usize {
    usize::try_from(offset).expect("an offset of the log")
}
