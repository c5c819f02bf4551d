//! The canonical rows, and how the log is told of their changes: after the commit, late, in any
//! order, more than once.

use rand::Rng;

use super::tally::Event;
use super::world::World;

pub(super) const PARTITIONS: usize = 2;
pub(super) const KEYS: usize = 2 * PARTITIONS;
pub(super) const MEMBERS: usize = 3;
pub(super) const BOARDS: usize = 2;
/// The members of all keys.
pub(super) const GROUPS: usize = KEYS * MEMBERS;
pub(super) const SCORES: u8 = 3;

/// What a member has on the boards of a key: a score, or 0 where it is not there.
pub(super) type State = [u8; BOARDS];

pub(super) const GONE: State = [0; BOARDS];

/// A member of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group(pub(super) usize);

impl Group {
    pub(super) fn of(key: usize, member: usize) -> Self {
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

/// A notification. Nobody reads which change it is about; only the laws do, and a worker that
/// believes notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) group: Group,
    /// Which of the group's states it is about.
    pub(super) index: usize,
}

/// The canonical rows.
pub(super) struct Canon {
    /// By group: every state that it had, in order.
    states: [Vec<State>; GROUPS],
    /// What has not been told yet, in the memory of those who made the changes.
    memory: Vec<Told>,
    /// What may not be in the log.
    outbox: Vec<Told>,
}

impl Canon {
    pub(super) fn new() -> Self {
        Self {
            states: std::array::from_fn(|_| vec![GONE]),
            memory: Vec::new(),
            outbox: Vec::new(),
        }
    }
}

impl World {
    /// Reads the rows of a group.
    pub(super) fn canonical(&self, group: Group) -> State {
        let states = &self.canon.states[group.0];
        states[states.len() - 1]
    }

    /// The states that a group had from one of them on.
    pub(super) fn states_since(&self, group: Group, index: usize) -> &[State] {
        &self.canon.states[group.0][index..]
    }

    /// A group's rows change; the notification waits in the outbox.
    pub(super) fn change(&mut self) {
        let keys = self.keys;
        let group = Group(self.rng.random_range(0..keys * MEMBERS));
        let state = match self.rng.random_range(0..10) {
            0..3 => GONE,
            _ => [0; BOARDS].map(|_: u8| self.rng.random_range(0..=SCORES)),
        };
        let states = &mut self.canon.states[group.0];
        states.push(state);
        let told = Told {
            group,
            index: states.len() - 1,
        };
        self.canon.memory.push(told);
        self.canon.outbox.push(told);
    }

    /// Something of what is in memory comes into the log, or is lost from memory.
    pub(super) fn tell(&mut self) {
        let waiting = self.canon.memory.len();
        if waiting == 0 {
            return;
        }
        let told = self
            .canon
            .memory
            .swap_remove(self.rng.random_range(0..waiting));
        if self.rng.random_ratio(1, 6) {
            return self.note(Event::Forgotten);
        }
        self.append(told);
    }

    /// Something of what is in the outbox comes into the log, perhaps not for the first time.
    pub(super) fn relay(&mut self) {
        let waiting = self.canon.outbox.len();
        if waiting > 0 {
            let told = self.canon.outbox[self.rng.random_range(0..waiting)];
            self.note(Event::Relayed);
            self.append(told);
        }
    }

    /// Everything comes into the log that is not there.
    pub(super) fn relay_all(&mut self) {
        while let Some(told) = self.canon.outbox.pop() {
            self.log[partition_of(told.group.key())].append(Some(told));
        }
    }

    /// A notification is in the log, and then not in the outbox any more, except after a crash.
    fn append(&mut self, told: Told) {
        self.log[partition_of(told.group.key())].append(Some(told));
        if self.rng.random_ratio(1, 6) {
            return self.note(Event::Repeated);
        }
        self.canon.outbox.retain(|other| *other != told);
    }
}
