//! The entity rows and their notifications.

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
    pub(super) states: [Vec<State>; GROUPS],
    /// Pending notifications in the memory of the writers.
    pub(super) memory: Vec<Notification>,
    /// Notifications that may be missing from the log.
    pub(super) outbox: Vec<Notification>,
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
