//! The cached boards of a partition that the worker knows.

use std::collections::BTreeMap;

use jobs::board::FilteredBoard;
use stores::board_cache::{BoardName, RegisteredBoard};

/// A board that is cached or being filled.
#[derive(Debug)]
pub(super) struct KnownBoard {
    pub(super) board: RegisteredBoard,
    pub(super) filtered_board: FilteredBoard,
}

/// All known boards and their memory.
#[derive(Debug, Default)]
pub(super) struct KnownBoards {
    by_name: BTreeMap<BoardName, KnownBoard>,
    bytes: u64,
}

impl KnownBoards {
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The memory of the measured boards, in bytes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &KnownBoard> {
        self.by_name.values()
    }

    /// The boards of one key.
    pub(super) fn find_by_key(&self, view: &str, key: &[u8]) -> impl Iterator<Item = &KnownBoard> {
        let first = BoardName {
            view: view.to_owned(),
            key: key.to_vec(),
            filtered_board: Vec::new(),
        };
        let from = self.by_name.range(first..);
        let boards = from.take_while(move |(name, _)| name.view == view && name.key == key);
        boards.map(|(_, known)| known)
    }

    pub(super) fn get(&self, name: &BoardName) -> Option<&KnownBoard> {
        self.by_name.get(name)
    }

    /// Adds a board, or replaces the one with its name.
    pub(super) fn insert(&mut self, known: KnownBoard) {
        self.remove(&known.board.name);
        self.bytes += known.board.bytes.unwrap_or(0);
        self.by_name.insert(known.board.name.clone(), known);
    }

    pub(super) fn remove(&mut self, name: &BoardName) {
        let removed = self.by_name.remove(name);
        self.bytes -= removed.and_then(|known| known.board.bytes).unwrap_or(0);
    }

    /// Sets the measured memory of a board.
    pub(super) fn set_bytes(&mut self, name: &BoardName, bytes: u64) {
        if let Some(known) = self.by_name.get_mut(name) {
            self.bytes -= known.board.bytes.unwrap_or(0);
            self.bytes += bytes;
            known.board.bytes = Some(bytes);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known_board(key: u8, section: u8, bytes: Option<u64>) -> KnownBoard {
        let section = FilteredBoard {
            board: vec![section],
            filters: Vec::new(),
        };
        let name = BoardName {
            view: "a@1".to_owned(),
            key: vec![key],
            filtered_board: section.encode(),
        };
        let id = format!("1.{key}");
        let board = RegisteredBoard { name, id, bytes };
        KnownBoard {
            board,
            filtered_board: section,
        }
    }

    /// Memory and counts must equal the sums over all boards.
    #[track_caller]
    fn assert_consistent(boards: &KnownBoards, names: &[&BoardName]) {
        let bytes = boards.all().filter_map(|known| known.board.bytes);
        assert_eq!(boards.bytes(), bytes.sum::<u64>());
        assert_eq!(boards.all().count(), names.len());
        assert_eq!(boards.len(), names.len());
        assert_eq!(boards.is_empty(), names.is_empty());
        assert!(names.iter().all(|name| boards.get(name).is_some()));
    }

    #[test]
    fn memory_is_the_sum_of_all_boards() {
        let mut boards = KnownBoards::default();
        let [board_1_1, board_1_2, board_2_1] = [
            known_board(1, 1, None),
            known_board(1, 2, Some(5)),
            known_board(2, 1, None),
        ];
        let names = [&board_1_1, &board_1_2, &board_2_1].map(|known| known.board.name.clone());
        let [first, second, third] = &names;
        for known in [board_1_1, board_1_2, board_2_1] {
            boards.insert(known);
        }
        assert_consistent(&boards, &[first, second, third]);
        assert_eq!(boards.find_by_key("a@1", &[1]).count(), 2);
        boards.set_bytes(first, 7);
        boards.set_bytes(first, 9);
        assert_consistent(&boards, &[first, second, third]);
        assert_eq!(boards.bytes(), 14);
        // The same name with another id.
        boards.insert(known_board(1, 1, Some(1)));
        assert_consistent(&boards, &[first, second, third]);
        assert_eq!(boards.bytes(), 6);
        boards.remove(second);
        boards.remove(second);
        boards.set_bytes(second, 3);
        assert_consistent(&boards, &[first, third]);
        boards.clear();
        assert_consistent(&boards, &[]);
        assert_eq!(boards.find_by_key("a@1", &[1]).count(), 0);
    }
}
