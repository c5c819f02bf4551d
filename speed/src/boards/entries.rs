//! Which boards of a partition are cached, as the worker knows it.

use std::collections::BTreeMap;

use jobs::board::Section;
use stores::board_cache::{BoardName, Registered};

/// A board that is in the cache, or being filled.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) board: Registered,
    pub(super) section: Section,
}

/// All of them, with the memory that they take.
#[derive(Debug, Default)]
pub(super) struct Entries {
    by_name: BTreeMap<BoardName, Entry>,
    bytes: u64,
}

impl Entries {
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The memory of those that are measured, in bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.by_name.values()
    }

    /// Those of one key.
    pub(super) fn of(&self, view: &str, key: &[u8]) -> impl Iterator<Item = &Entry> {
        let first = BoardName {
            view: view.to_owned(),
            key: key.to_vec(),
            section: Vec::new(),
        };
        let from = self.by_name.range(first..);
        let of_key = from.take_while(move |(name, _)| name.view == view && name.key == key);
        of_key.map(|(_, entry)| entry)
    }

    pub(super) fn get(&self, name: &BoardName) -> Option<&Entry> {
        self.by_name.get(name)
    }

    /// Puts one in the place of what has its name.
    pub(super) fn enter(&mut self, entry: Entry) {
        self.remove(&entry.board.name);
        self.bytes += entry.board.bytes.unwrap_or(0);
        self.by_name.insert(entry.board.name.clone(), entry);
    }

    pub(super) fn remove(&mut self, name: &BoardName) {
        let removed = self.by_name.remove(name);
        self.bytes -= removed.and_then(|entry| entry.board.bytes).unwrap_or(0);
    }

    /// One has been measured.
    pub(super) fn measured(&mut self, name: &BoardName, bytes: u64) {
        if let Some(entry) = self.by_name.get_mut(name) {
            self.bytes -= entry.board.bytes.unwrap_or(0);
            self.bytes += bytes;
            entry.board.bytes = Some(bytes);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: u8, section: u8, bytes: Option<u64>) -> Entry {
        let section = Section {
            board: vec![section],
            tests: Vec::new(),
        };
        let name = BoardName {
            view: "a@1".to_owned(),
            key: vec![key],
            section: section.encode(),
        };
        let id = format!("1.{key}");
        let board = Registered { name, id, bytes };
        Entry { board, section }
    }

    /// After any change the sums are those of what is there.
    #[track_caller]
    fn holds(entries: &Entries, names: &[&BoardName]) {
        let bytes = entries.all().filter_map(|entry| entry.board.bytes);
        assert_eq!(entries.bytes(), bytes.sum::<u64>());
        assert_eq!(entries.all().count(), names.len());
        assert_eq!(entries.len(), names.len());
        assert_eq!(entries.is_empty(), names.is_empty());
        assert!(names.iter().all(|name| entries.get(name).is_some()));
    }

    #[test]
    fn sums_are_those_of_what_is_there() {
        let mut entries = Entries::default();
        let [one, two, other] = [entry(1, 1, None), entry(1, 2, Some(5)), entry(2, 1, None)];
        let names = [&one, &two, &other].map(|entry| entry.board.name.clone());
        let [first, second, third] = &names;
        for entry in [one, two, other] {
            entries.enter(entry);
        }
        holds(&entries, &[first, second, third]);
        assert_eq!(entries.of("a@1", &[1]).count(), 2);
        entries.measured(first, 7);
        entries.measured(first, 9);
        holds(&entries, &[first, second, third]);
        assert_eq!(entries.bytes(), 14);
        // Anew, under another id.
        entries.enter(entry(1, 1, Some(1)));
        holds(&entries, &[first, second, third]);
        assert_eq!(entries.bytes(), 6);
        entries.remove(second);
        entries.remove(second);
        entries.measured(second, 3);
        holds(&entries, &[first, third]);
        entries.clear();
        holds(&entries, &[]);
        assert_eq!(entries.of("a@1", &[1]).count(), 0);
    }
}
