//! The entity rows and their notifications, which reach the log after the commit: late, in any
//! order, and repeatedly.

use rand::Rng;

use super::events::Event;
use super::world::World;

pub(super) const PARTITIONS: usize = 2;
pub(super) const KEYS: usize = 2 * PARTITIONS;
pub(super) const MEMBERS: usize = 3;
pub(super) const BOARDS: usize = 2;
/// The members of all keys.
pub(super) const GROUPS: usize = KEYS * MEMBERS;
pub(super) const SCORES: u8 = 3;

/// The scores of a member on the boards of a key; 0 if it is not on the board.
pub(super) type State = [u8; BOARDS];

pub(super) const GONE: State = [0; BOARDS];

/// A member of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group(pub(super) usize);

impl Group {
    pub(super) fn new(key: usize, member: usize) -> Self {
        Self(key * MEMBERS + member)
    }

    pub(super) fn key(self) -> usize {
        self.0 / MEMBERS
    }

    pub(super) fn member(self) -> usize {
        self.0 % MEMBERS
    }
}

pub(super) fn partition_of(key: usize) -> usize {
    key % PARTITIONS
}

/// A notification. Only the laws, and a mutant worker, use the index of its change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Notification {
    pub(super) group: Group,
    /// The index of the group's state that it announces.
    pub(super) index: usize,
}

/// The entity rows.
pub(super) struct EntityRows {
    /// By group, all states that it had, in order.
    states: [Vec<State>; GROUPS],
    /// Pending notifications in the memory of the writers.
    memory: Vec<Notification>,
    /// Notifications that may be missing from the log.
    outbox: Vec<Notification>,
}

impl EntityRows {
    pub(super) fn new() -> Self {
        Self {
            states: std::array::from_fn(|_| vec![GONE]),
            memory: Vec::new(),
            outbox: Vec::new(),
        }
    }
}

impl World {
    /// Reads the current state of a group.
    pub(super) fn current_state(&self, group: Group) -> State {
        let states = &self.entities.states[group.0];
        states[states.len() - 1]
    }

    /// Returns the states of a group from an index on.
    pub(super) fn states_since(&self, group: Group, index: usize) -> &[State] {
        &self.entities.states[group.0][index..]
    }

    /// Changes the rows of a group. The notification enters the outbox.
    pub(super) fn change(&mut self) {
        let keys = self.keys;
        let group = Group(self.rng.random_range(0..keys * MEMBERS));
        let state = match self.rng.random_range(0..10) {
            0..3 => GONE,
            _ => [0; BOARDS].map(|_: u8| self.rng.random_range(0..=SCORES)),
        };
        let states = &mut self.entities.states[group.0];
        states.push(state);
        let notification = Notification {
            group,
            index: states.len() - 1,
        };
        self.entities.memory.push(notification);
        self.entities.outbox.push(notification);
    }

    /// Appends a notification from memory to the log, or loses it.
    pub(super) fn deliver(&mut self) {
        let waiting = self.entities.memory.len();
        if waiting == 0 {
            return;
        }
        let notification = self
            .entities
            .memory
            .swap_remove(self.rng.random_range(0..waiting));
        if self.rng.random_ratio(1, 6) {
            return self.count_event(Event::NotificationLost);
        }
        self.append(notification);
    }

    /// Appends a notification from the outbox to the log, possibly again.
    pub(super) fn relay(&mut self) {
        let waiting = self.entities.outbox.len();
        if waiting > 0 {
            let notification = self.entities.outbox[self.rng.random_range(0..waiting)];
            self.count_event(Event::Relayed);
            self.append(notification);
        }
    }

    /// Appends all notifications that are missing from the log.
    pub(super) fn relay_all(&mut self) {
        while let Some(notification) = self.entities.outbox.pop() {
            self.log[partition_of(notification.group.key())].append(Some(notification));
        }
    }

    /// Appends a notification and removes it from the outbox, except after a crash.
    fn append(&mut self, notification: Notification) {
        self.log[partition_of(notification.group.key())].append(Some(notification));
        if self.rng.random_ratio(1, 6) {
            return self.count_event(Event::Repeated);
        }
        self.entities.outbox.retain(|other| *other != notification);
    }
}
