//! The duplicate window: the events of the most recent part of the log.
//!
//! The log alone decides if a record is a duplicate. It is one if an earlier record has the
//! same event, at most `window_ms` of log time and `events_max` events before. So a worker that
//! rereads this part after a crash decides every record as before.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use schemas::plays::EventIdentity;

/// Identities are hashes, so they need no further hashing.
#[derive(Debug, Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            for (target, source) in word.iter_mut().zip(chunk) {
                *target = *source;
            }
            self.0 ^= u64::from_le_bytes(word);
        }
    }

    fn write_u128(&mut self, n: u128) {
        self.write(&n.to_le_bytes());
    }
}

/// The most recent events of one partition.
#[derive(Debug)]
pub(crate) struct Window {
    window_ms: i64,
    events_max: usize,
    /// By identity: the number of its newest sighting.
    newest: HashMap<EventIdentity, u64, BuildHasherDefault<IdentityHasher>>,
    /// Sightings, oldest first: number, log time, identity.
    sightings: VecDeque<(u64, i64, EventIdentity)>,
    next_number: u64,
}

impl Window {
    pub(crate) fn new(window_ms: i64, events_max: usize) -> Self {
        Self {
            window_ms,
            events_max,
            newest: HashMap::default(),
            sightings: VecDeque::new(),
            next_number: 0,
        }
    }

    /// Adds a record and returns the update of the window, which tells whether the record is the
    /// first of its event.
    pub(crate) fn record(&mut self, identity: EventIdentity, logged_at_ms: i64) -> WindowUpdate {
        let window_start_ms = logged_at_ms.saturating_sub(self.window_ms);
        let mut evicted = Vec::new();
        while let Some((number, old_logged_at_ms, old_identity)) = self.sightings.front().copied() {
            if old_logged_at_ms >= window_start_ms && self.sightings.len() < self.events_max {
                break;
            }
            self.sightings.pop_front();
            let was_newest = self.newest.get(&old_identity) == Some(&number);
            if was_newest {
                self.newest.remove(&old_identity);
            }
            evicted.push((number, old_logged_at_ms, old_identity, was_newest));
        }
        self.sightings
            .push_back((self.next_number, logged_at_ms, identity));
        let previous = self.newest.insert(identity, self.next_number);
        self.next_number += 1;
        WindowUpdate { previous, evicted }
    }

    /// Undoes the updates of the last records.
    pub(crate) fn undo(&mut self, updates: Vec<WindowUpdate>) {
        for WindowUpdate { previous, evicted } in updates.into_iter().rev() {
            if let Some((number, _, identity)) = self.sightings.pop_back() {
                self.next_number = number;
                match previous {
                    Some(previous) => self.newest.insert(identity, previous),
                    None => self.newest.remove(&identity),
                };
            }
            for (number, logged_at_ms, identity, was_newest) in evicted.into_iter().rev() {
                self.sightings.push_front((number, logged_at_ms, identity));
                if was_newest {
                    self.newest.insert(identity, number);
                }
            }
        }
    }
}

/// The update of the window by one record.
#[derive(Debug)]
pub(crate) struct WindowUpdate {
    /// The previous sighting of the event, if the window holds one.
    previous: Option<u64>,
    /// Evicted sightings: number, log time, identity, and whether it was the newest of its event.
    evicted: Vec<(u64, i64, EventIdentity, bool)>,
}

impl WindowUpdate {
    /// Returns whether the record is the first of its event in the window.
    pub(crate) const fn is_first(&self) -> bool {
        self.previous.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Window {
        fn is_first(&mut self, identity: EventIdentity, logged_at_ms: i64) -> bool {
            self.record(identity, logged_at_ms).is_first()
        }
    }

    #[test]
    fn a_repeated_event_is_a_duplicate_within_the_window() {
        let mut window = Window::new(10, 100);
        assert!(window.is_first(1, 0));
        assert!(!window.is_first(1, 5));
        assert!(!window.is_first(1, 15), "the sighting at 5 is within 10");
        assert!(window.is_first(1, 26), "the sighting at 15 is not");
        assert!(window.is_first(2, 26));
    }

    #[test]
    fn the_number_of_events_is_bounded() {
        let mut window = Window::new(i64::MAX, 3);
        for id in 0..100 {
            assert!(window.is_first(id, 0));
            assert!(window.sightings.len() <= 3 && window.newest.len() <= 3);
        }
        assert!(!window.is_first(99, 0));
        assert!(window.is_first(1, 0), "long evicted");
    }

    /// Undone records leave no trace: they are decided again as before.
    #[test]
    fn undone_records_leave_no_trace() {
        let records: Vec<(u128, i64)> = (0..300_i64)
            .map(|i| (u128::from((i * 7919 % 23).unsigned_abs()), i / 3))
            .collect();
        for (window_ms, events_max) in [(10, 1000), (1000, 12), (3, 5)] {
            let mut plain = Window::new(window_ms, events_max);
            let truth: Vec<bool> = records.iter().map(|r| plain.is_first(r.0, r.1)).collect();
            let mut window = Window::new(window_ms, events_max);
            for (i, record) in records.iter().enumerate() {
                let ahead = records.iter().skip(i).take(1 + i % 40);
                let updates: Vec<WindowUpdate> = ahead.map(|r| window.record(r.0, r.1)).collect();
                window.undo(updates);
                assert_eq!(window.is_first(record.0, record.1), truth[i], "{i}");
            }
            assert_eq!(window.sightings, plain.sightings);
            assert_eq!(window.newest, plain.newest);
        }
    }

    /// Decisions are the same if log times decrease, as they may with the log's own clock. The
    /// reread starts at the first record within the window of the last one, as in
    /// `EventProcessor::begin`.
    #[test]
    fn rereading_decreasing_times_gives_the_same_decisions() {
        let window_ms = 40;
        let records: Vec<(u128, i64)> = (0..400_i64)
            .map(|i| {
                let back = if i % 23 < 3 { i % 70 } else { 0 };
                (u128::from((i * 7919 % 61).unsigned_abs()), i - back)
            })
            .collect();
        let mut full_window = Window::new(window_ms, 1000);
        let truth: Vec<bool> = records
            .iter()
            .map(|r| full_window.is_first(r.0, r.1))
            .collect();
        for resume in 1..records.len() {
            let since = records[resume - 1].1 - window_ms;
            let start = records.iter().position(|record| record.1 >= since);
            let mut again = Window::new(window_ms, 1000);
            for (i, record) in records.iter().enumerate().skip(start.unwrap()) {
                let first = again.is_first(record.0, record.1);
                assert!(i < resume || first == truth[i], "{resume} {i}");
            }
        }
    }

    /// A window that starts later, but far enough back, gives the same decisions.
    #[test]
    fn rereading_gives_the_same_decisions() {
        let records: Vec<(u128, i64)> = (0..500_i64)
            .map(|i| (u128::from((i * 7919 % 37).unsigned_abs()), i / 3))
            .collect();
        for (window_ms, events_max) in [(10, 1000), (1000, 12)] {
            let mut full_window = Window::new(window_ms, events_max);
            let truth: Vec<bool> = records
                .iter()
                .map(|r| full_window.is_first(r.0, r.1))
                .collect();
            for start in 0..records.len() {
                let mut again = Window::new(window_ms, events_max);
                let resume = (start + 60).min(records.len());
                for (i, record) in records.iter().enumerate().skip(start) {
                    let first = again.is_first(record.0, record.1);
                    assert!(i < resume || first == truth[i], "{start} {i}");
                }
            }
        }
    }
}
