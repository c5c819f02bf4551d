//! Changes of entity rows, whose notifications reach the log after the commit: late, in any order,
//! and repeatedly.

use rand::Rng;

use super::super::entity_rows::{
    BOARDS, GONE, Group, MEMBERS, Notification, SCORES, State, partition_of,
};
use super::super::events::Event;
use super::World;

impl World {
    /// Reads the current state of a group.
    pub(in super::super) fn current_state(&self, group: Group) -> State {
        let states = &self.entities.states[group.0];
        states[states.len() - 1]
    }

    /// Returns the states of a group from an index on.
    pub(in super::super) fn states_since(&self, group: Group, index: usize) -> &[State] {
        &self.entities.states[group.0][index..]
    }

    /// Changes the rows of a group. The notification enters the outbox.
    pub(in super::super) fn change(&mut self) {
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
    pub(in super::super) fn deliver(&mut self) {
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
    pub(in super::super) fn relay(&mut self) {
        let waiting = self.entities.outbox.len();
        if waiting > 0 {
            let notification = self.entities.outbox[self.rng.random_range(0..waiting)];
            self.count_event(Event::Relayed);
            self.append(notification);
        }
    }

    /// Appends all notifications that are missing from the log.
    pub(in super::super) fn relay_all(&mut self) {
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
