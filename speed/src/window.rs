//! The duplicate window: which events were seen in the last stretch of the log.
//!
//! Whether a record is a duplicate depends on nothing but the log: it is one if the same event
//! stands in a record before it, at most `window_ms` of log time and `events_max` events back. So a
//! worker that reads the stretch again after a crash decides every record as the first one did.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use schemas::plays::EventIdentity;

/// Identities are hashes already; hashing them again would only cost time.
#[derive(Debug, Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            self.0 ^= u64::from_le_bytes(word);
        }
    }

    fn write_u128(&mut self, n: u128) {
        self.write(&n.to_le_bytes());
    }
}

/// The events of the last stretch of one partition.
#[derive(Debug)]
pub(crate) struct Window {
    window_ms: i64,
    events_max: usize,
    /// By identity: the number of its newest sighting.
    newest: HashMap<EventIdentity, u64, BuildHasherDefault<IdentityHasher>>,
    /// Sightings from the oldest on: number, log time, identity.
    sightings: VecDeque<(u64, i64, EventIdentity)>,
    next: u64,
}

impl Window {
    pub(crate) fn new(window_ms: i64, events_max: usize) -> Self {
        Self {
            window_ms,
            events_max,
            newest: HashMap::default(),
            sightings: VecDeque::new(),
            next: 0,
        }
    }

    /// Notes a record; answers what became of the window, and with it whether the record is the first of
    /// its event there.
    pub(crate) fn note(&mut self, identity: EventIdentity, logged_at_ms: i64) -> Noted {
        let horizon = logged_at_ms.saturating_sub(self.window_ms);
        let mut gone = Vec::new();
        while let Some((number, at, old)) = self.sightings.front().copied() {
            if at >= horizon && self.sightings.len() < self.events_max {
                break;
            }
            self.sightings.pop_front();
            let was_newest = self.newest.get(&old) == Some(&number);
            if was_newest {
                self.newest.remove(&old);
            }
            gone.push((number, at, old, was_newest));
        }
        self.sightings
            .push_back((self.next, logged_at_ms, identity));
        let before = self.newest.insert(identity, self.next);
        self.next += 1;
        Noted { before, gone }
    }

    /// Makes the window as it was before the last records were noted.
    pub(crate) fn take_back(&mut self, noted: Vec<Noted>) {
        for Noted { before, gone } in noted.into_iter().rev() {
            if let Some((number, _, identity)) = self.sightings.pop_back() {
                self.next = number;
                match before {
                    Some(before) => self.newest.insert(identity, before),
                    None => self.newest.remove(&identity),
                };
            }
            for (number, at, identity, was_newest) in gone.into_iter().rev() {
                self.sightings.push_front((number, at, identity));
                if was_newest {
                    self.newest.insert(identity, number);
                }
            }
        }
    }
}

/// What became of the window when a record was noted.
#[derive(Debug)]
pub(crate) struct Noted {
    /// The sighting of the same event before, if the window holds one.
    before: Option<u64>,
    /// Sightings that are no longer in it: number, log time, identity, and whether it was the newest.
    gone: Vec<(u64, i64, EventIdentity, bool)>,
}

impl Noted {
    /// Whether the record is the first of its event in the window.
    pub(crate) const fn is_first(&self) -> bool {
        self.before.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Window {
        fn is_first(&mut self, identity: EventIdentity, logged_at_ms: i64) -> bool {
            self.note(identity, logged_at_ms).is_first()
        }
    }

    #[test]
    fn a_second_sighting_is_no_first_within_the_window() {
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
        assert!(window.is_first(1, 0), "long gone");
    }

    /// Records that are taken back have left no trace: they are decided again as they were.
    #[test]
    fn what_is_taken_back_was_never_noted() {
        let records: Vec<(u128, i64)> = (0..300_i64)
            .map(|i| (u128::from((i * 7919 % 23).unsigned_abs()), i / 3))
            .collect();
        for (window_ms, events_max) in [(10, 1000), (1000, 12), (3, 5)] {
            let mut plain = Window::new(window_ms, events_max);
            let truth: Vec<bool> = records.iter().map(|r| plain.is_first(r.0, r.1)).collect();
            let mut window = Window::new(window_ms, events_max);
            for (i, record) in records.iter().enumerate() {
                let ahead = records.iter().skip(i).take(1 + i % 40);
                let noted: Vec<Noted> = ahead.map(|r| window.note(r.0, r.1)).collect();
                window.take_back(noted);
                assert_eq!(window.is_first(record.0, record.1), truth[i], "{i}");
            }
            assert_eq!(window.sightings, plain.sightings);
            assert_eq!(window.newest, plain.newest);
        }
    }

    /// So it does where times fall, as those of a log with a clock of its own may: from the first
    /// record on that is in the window of the last one, as `Facts::begin` reads it.
    #[test]
    fn times_that_fall_change_nothing_when_the_stretch_is_read_again() {
        let window_ms = 40;
        let records: Vec<(u128, i64)> = (0..400_i64)
            .map(|i| {
                let back = if i % 23 < 3 { i % 70 } else { 0 };
                (u128::from((i * 7919 % 61).unsigned_abs()), i - back)
            })
            .collect();
        let mut whole = Window::new(window_ms, 1000);
        let truth: Vec<bool> = records.iter().map(|r| whole.is_first(r.0, r.1)).collect();
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

    /// A window that starts later, but far enough back, decides the same.
    #[test]
    fn reading_the_stretch_again_decides_the_same() {
        let records: Vec<(u128, i64)> = (0..500_i64)
            .map(|i| (u128::from((i * 7919 % 37).unsigned_abs()), i / 3))
            .collect();
        for (window_ms, events_max) in [(10, 1000), (1000, 12)] {
            let mut whole = Window::new(window_ms, events_max);
            let truth: Vec<bool> = records.iter().map(|r| whole.is_first(r.0, r.1)).collect();
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
