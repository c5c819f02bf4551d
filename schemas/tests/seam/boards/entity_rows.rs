//! The store of entity rows. Their notifications reach the log after the commit: late, in any
//! order, and repeatedly.

use rand::Rng;
use schemas::seam::Offset;

use super::stores::World;
use crate::simulation::{Event, PARTITIONS};

pub(super) const KEYS: usize = 2 * PARTITIONS;
/// The number of members of each key.
pub(super) const KEY_MEMBERS: usize = 3;
pub(super) const ALL_MEMBERS: usize = KEYS * KEY_MEMBERS;
/// The number of boards of each key.
pub(super) const BOARDS: usize = 2;
const SCORE_MAX: u8 = 3;

/// The scores of a member on the boards of its key; 0 if it is not on the board.
pub(super) type Scores = [u8; BOARDS];

pub(super) const ABSENT: Scores = [0; BOARDS];

/// A member of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemberId(pub(super) usize);

impl MemberId {
    /// Returns a member by its number within a key.
    pub(super) const fn new(key: usize, number: usize) -> Self {
        Self(key * KEY_MEMBERS + number)
    }

    pub(super) const fn key(self) -> usize {
        self.0 / KEY_MEMBERS
    }

    /// Returns the number within the key.
    pub(super) const fn number(self) -> usize {
        self.0 % KEY_MEMBERS
    }
}

pub(super) const fn partition_of(key: usize) -> usize {
    key % PARTITIONS
}

/// A notification. Only invariants, and a mutant worker, read the index of the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Notification {
    pub(super) member: MemberId,
    /// The index of the member's scores that it announces.
    pub(super) index: usize,
}

pub(super) struct EntityRows {
    /// By member, all scores that it had, in order.
    scores: [Vec<Scores>; ALL_MEMBERS],
    /// Pending notifications in the memory of the writers.
    memory: Vec<Notification>,
    /// Notifications that may be missing from the log.
    outbox: Vec<Notification>,
}

impl EntityRows {
    pub(super) fn new() -> Self {
        Self {
            scores: std::array::from_fn(|_| vec![ABSENT]),
            memory: Vec::new(),
            outbox: Vec::new(),
        }
    }
}

impl World {
    pub(super) fn read_scores(&self, member: MemberId) -> Scores {
        let scores = &self.stores.entities.scores[member.0];
        scores[scores.len() - 1]
    }

    /// Returns the scores that a member may have in an answer at an offset.
    pub(super) fn allowed_scores(&self, member: MemberId, offset: Offset) -> &[Scores] {
        let oldest = self.log_summary(partition_of(member.key()), offset)[member.0];
        &self.stores.entities.scores[member.0][oldest..]
    }

    /// Returns the members that are notified between two offsets, with the announced scores, which
    /// only a mutant uses.
    pub(super) fn notified(
        &self,
        partition: usize,
        start: Offset,
        end: Offset,
    ) -> Vec<(MemberId, Scores)> {
        let mut notified: Vec<(MemberId, Scores)> = Vec::new();
        for Notification { member, index } in self.records(partition, start, end).iter().flatten() {
            let scores = self.stores.entities.scores[member.0][*index];
            notified.retain(|(other, _)| other != member);
            notified.push((*member, scores));
        }
        notified
    }

    /// Changes the rows of a member. The notification enters the outbox.
    pub(super) fn change_rows(&mut self) {
        let members = self.stores.used_keys * KEY_MEMBERS;
        let member = MemberId(self.rng.random_range(0..members));
        let new = match self.rng.random_range(0..10) {
            0..3 => ABSENT,
            _ => [0; BOARDS].map(|_: u8| self.rng.random_range(0..=SCORE_MAX)),
        };
        let entities = &mut self.stores.entities;
        let index = entities.scores[member.0].len();
        entities.scores[member.0].push(new);
        let notification = Notification { member, index };
        entities.memory.push(notification);
        entities.outbox.push(notification);
    }

    /// Appends a notification from memory to the log, or loses it.
    pub(super) fn deliver(&mut self) {
        let memory = &mut self.stores.entities.memory;
        if memory.is_empty() {
            return;
        }
        let notification = memory.swap_remove(self.rng.random_range(0..memory.len()));
        if self.rng.random_ratio(1, 6) {
            return self.count_event(Event::NotificationLost);
        }
        self.append_from_outbox(notification);
    }

    /// Appends a notification from the outbox to the log, possibly again.
    pub(super) fn relay(&mut self) {
        let outbox = &self.stores.entities.outbox;
        if !outbox.is_empty() {
            let notification = outbox[self.rng.random_range(0..outbox.len())];
            self.count_event(Event::Relayed);
            self.append_from_outbox(notification);
        }
    }

    /// Appends all notifications that are missing from the log.
    pub(super) fn relay_all(&mut self) {
        while let Some(notification) = self.stores.entities.outbox.pop() {
            self.append_notification(notification);
        }
    }

    pub(super) fn append_dead_letter(&mut self) {
        let partition = self.rng.random_range(0..self.partitions());
        self.append(partition, None);
    }

    /// Appends a notification and removes it from the outbox, except after a crash.
    fn append_from_outbox(&mut self, notification: Notification) {
        self.append_notification(notification);
        if self.rng.random_ratio(1, 6) {
            return self.count_event(Event::NotificationRetained);
        }
        let outbox = &mut self.stores.entities.outbox;
        outbox.retain(|other| *other != notification);
    }

    fn append_notification(&mut self, notification: Notification) {
        let partition = partition_of(notification.member.key());
        self.append(partition, Some(notification));
    }
}
