//! Which boards of a partition are cached, as the worker knows it.

use std::collections::HashMap;

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
    /// By view and key, then by section.
    by_key: HashMap<(String, Vec<u8>), HashMap<Vec<u8>, Entry>>,
    count: usize,
    bytes: u64,
}

impl Entries {
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// The memory of those that are measured, in bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.by_key.values().flat_map(HashMap::values)
    }

    /// Those of one key.
    pub(super) fn of(&self, view: &str, key: &[u8]) -> impl Iterator<Item = &Entry> {
        let of = (view.to_owned(), key.to_vec());
        self.by_key.get(&of).into_iter().flat_map(HashMap::values)
    }

    pub(super) fn get(&self, name: &BoardName) -> Option<&Entry> {
        self.by_key.get(&of(name))?.get(&name.section)
    }

    /// Puts one in the place of what has its name.
    pub(super) fn enter(&mut self, entry: Entry) {
        let name = entry.board.name.clone();
        self.remove(&name);
        self.count += 1;
        self.bytes += entry.board.bytes.unwrap_or(0);
        let of_key = self.by_key.entry(of(&name)).or_default();
        of_key.insert(name.section, entry);
    }

    pub(super) fn remove(&mut self, name: &BoardName) -> Option<Entry> {
        let of = of(name);
        let of_key = self.by_key.get_mut(&of)?;
        let removed = of_key.remove(&name.section)?;
        if of_key.is_empty() {
            self.by_key.remove(&of);
        }
        self.count -= 1;
        self.bytes -= removed.board.bytes.unwrap_or(0);
        Some(removed)
    }

    /// One has been measured.
    pub(super) fn measured(&mut self, name: &BoardName, bytes: u64) {
        if let Some(mut entry) = self.remove(name) {
            entry.board.bytes = Some(bytes);
            self.enter(entry);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn of(name: &BoardName) -> (String, Vec<u8>) {
    (name.view.clone(), name.key.clone())
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
