//! Results of board reads, and the rows that match the filters of a request.

use std::collections::VecDeque;
use std::sync::Arc;

use jobs::board::RankedEntry;
use jobs::tree::Sum;
use stores::board_cache::BoardSelection;

use super::explanation::BoardExplanation;
use crate::read_position::ReadPosition;
use crate::stale_cache::Cacheable;

/// Result for the board of one key.
#[derive(Debug, Clone, Default)]
pub(crate) struct BoardReading {
    /// Totals of all rows that match the filters.
    pub(crate) sum: Sum,
    /// Index of the first row, from 0.
    pub(crate) first_index: u64,
    pub(crate) rows: Vec<RankedEntry>,
    /// Indexes of the rows, if they are not consecutive.
    pub(crate) indexes: Option<Vec<u64>>,
    /// Index of the requested member.
    pub(crate) member_index: Option<u64>,
    /// True for each layer that contributed: the batch layer, and live entries.
    pub(crate) layers: (bool, bool),
    /// Explanation, if requested.
    pub(crate) explanation: Option<Arc<BoardExplanation>>,
    /// True if some rows may be older than the reported position.
    pub(crate) is_split: bool,
    /// Position of this board, if the keys were not read at once.
    pub(crate) own_position: Option<Arc<ReadPosition>>,
}

/// Result of a read: the boards in the order of the keys, and the position.
#[derive(Debug, Clone)]
pub(crate) struct BoardsReading {
    pub(crate) boards: Vec<BoardReading>,
    /// Position that all boards reflect at least.
    pub(crate) read_position: ReadPosition,
}

impl BoardsReading {
    /// The boards, each with its position.
    pub(crate) fn boards_with_positions(
        &self,
    ) -> impl Iterator<Item = (&BoardReading, ReadPosition)> {
        self.boards.iter().map(move |board| {
            let mut position = board
                .own_position
                .as_deref()
                .unwrap_or(&self.read_position)
                .clone();
            position.complete &= self.read_position.complete;
            (board, position)
        })
    }
}

impl Cacheable for BoardsReading {
    fn read_position_mut(&mut self) -> &mut ReadPosition {
        &mut self.read_position
    }

    fn memory_bytes(&self) -> usize {
        let rows = self.boards.iter().flat_map(|board| &board.rows);
        let row_bytes = |row: &RankedEntry| {
            size_of::<RankedEntry>() + row.member.len() + row.score.len() + row.payload.len()
        };
        self.boards.len() * size_of::<BoardReading>() + rows.map(row_bytes).sum::<usize>()
    }
}

/// True if a request covers a member. `members` is sorted, and `None` covers all.
pub(super) fn covers_member(members: Option<&[Vec<u8>]>, member: &[u8]) -> bool {
    members.is_none_or(|members| {
        members
            .binary_search_by(|covered| covered.as_slice().cmp(member))
            .is_ok()
    })
}

/// First index and number of the rows around an index.
pub(super) fn index_range(index: u64, around: u64) -> (u64, usize) {
    let first = index.saturating_sub(around);
    let length = index.saturating_add(around).saturating_add(1) - first;
    (first, usize::try_from(length).unwrap_or(usize::MAX))
}

/// Counts the rows that match the filters, which it gets in the order of ranks, and collects the
/// selected ones.
pub(super) struct FilteredRows {
    selection: BoardSelection,
    rows: VecDeque<RankedEntry>,
    pub(super) reading: BoardReading,
}

impl FilteredRows {
    pub(super) fn new(selection: BoardSelection) -> Self {
        Self {
            selection,
            rows: VecDeque::new(),
            reading: BoardReading::default(),
        }
    }

    pub(super) fn add(&mut self, row: RankedEntry, is_live: bool) {
        let reading = &mut self.reading;
        let index = reading.sum.count;
        reading.sum.count += 1;
        reading.sum.weight = reading.sum.weight.saturating_add(row.weight);
        reading.layers.0 |= !is_live;
        reading.layers.1 |= is_live;
        match &self.selection {
            BoardSelection::TotalsOnly | BoardSelection::Members(_) => {}
            BoardSelection::Page { offset, limit } => {
                if index >= *offset && self.rows.len() < *limit {
                    self.rows.push_back(row);
                }
            }
            BoardSelection::After {
                score,
                member,
                limit,
            } => {
                if row.sort_key() <= (score.as_slice(), member.as_slice()) {
                    reading.first_index = index + 1;
                } else if self.rows.len() < *limit {
                    self.rows.push_back(row);
                }
            }
            BoardSelection::MembersWithIndexes(members) => {
                if covers_member(Some(members), &row.member) {
                    reading.indexes.get_or_insert_default().push(index);
                    self.rows.push_back(row);
                }
            }
            BoardSelection::Around { member, around } => {
                if row.member == *member {
                    reading.member_index = Some(index);
                }
                match reading.member_index {
                    Some(member_index) if index - member_index > *around => {}
                    Some(_) => self.rows.push_back(row),
                    // Until the member is reached, keep only rows that may be its neighbours.
                    None => {
                        self.rows.push_back(row);
                        if self.rows.len() as u64 > *around {
                            self.rows.pop_front();
                        }
                    }
                }
            }
        }
    }

    pub(super) fn finish(self) -> BoardReading {
        let mut reading = self.reading;
        reading.first_index = match (&self.selection, reading.member_index) {
            (
                BoardSelection::TotalsOnly
                | BoardSelection::Members(_)
                | BoardSelection::MembersWithIndexes(_),
                _,
            ) => 0,
            (BoardSelection::Page { offset, .. }, _) => *offset,
            (BoardSelection::After { .. }, _) => reading.first_index,
            (BoardSelection::Around { around, .. }, Some(index)) => index_range(index, *around).0,
            (BoardSelection::Around { .. }, None) => return reading,
        };
        reading.rows = self.rows.into();
        reading
    }
}

#[cfg(test)]
#[path = "reading_tests.rs"]
mod tests;
