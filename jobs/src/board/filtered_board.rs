//! One board of a key, restricted by filters on payload columns.
//!
//! Requests read filtered boards, and the board cache stores them. Each is a ranked list of its
//! own. Its encoded bytes are its stored name.

use std::ops::RangeInclusive;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::Int64Type;
use schemas::key::{KeyError, KeyShape};

use schemas::leb128;

/// A condition on one column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ColumnFilter {
    /// The column equals this text.
    Text(String),
    /// The column is an integer in this range.
    Int(RangeInclusive<i64>),
}

/// One board of a key with filters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FilteredBoard {
    /// The encoded board.
    pub board: Vec<u8>,
    /// Filters by payload column. An entry must match all of them.
    pub filters: Vec<(String, ColumnFilter)>,
}

/// Bytes that do not decode to a filtered board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stored name of a filtered board does not decode: it is damaged or of another version")]
pub struct FilteredBoardError;

const TEXT: u8 = 0;
const INT: u8 = 1;

impl FilteredBoard {
    /// Encodes the board and its filters.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        leb128::write_bytes(&mut bytes, &self.board);
        for (column, filter) in &self.filters {
            leb128::write_bytes(&mut bytes, column.as_bytes());
            match filter {
                ColumnFilter::Text(text) => {
                    bytes.push(TEXT);
                    leb128::write_bytes(&mut bytes, text.as_bytes());
                }
                ColumnFilter::Int(range) => {
                    bytes.push(INT);
                    for end in [range.start(), range.end()] {
                        bytes.extend_from_slice(&end.to_be_bytes());
                    }
                }
            }
        }
        bytes
    }

    /// Decodes a board and its filters.
    ///
    /// # Errors
    /// [`FilteredBoardError`] if `bytes` are not the result of [`FilteredBoard::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FilteredBoardError> {
        let mut rest = bytes;
        let board = leb128::read_bytes(&mut rest).map_err(|_| FilteredBoardError)?;
        let board = board.to_vec();
        let mut filters = Vec::new();
        while !rest.is_empty() {
            let column = read_text(&mut rest)?;
            let (kind, after) = rest.split_first().ok_or(FilteredBoardError)?;
            rest = after;
            let filter = match *kind {
                TEXT => ColumnFilter::Text(read_text(&mut rest)?),
                INT => ColumnFilter::Int(read_int(&mut rest)?..=read_int(&mut rest)?),
                _ => return Err(FilteredBoardError),
            };
            filters.push((column, filter));
        }
        Ok(Self { board, filters })
    }

    /// Returns for each payload of this shape whether it matches all filters.
    ///
    /// # Errors
    /// If a payload does not decode.
    pub fn match_payloads<'a>(
        &self,
        shape: &KeyShape,
        payloads: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<Vec<bool>, KeyError> {
        let mut matches = vec![true; payloads.len()];
        if self.filters.is_empty() || matches.is_empty() {
            return Ok(matches);
        }
        let columns = shape.decode(payloads)?;
        for (name, filter) in &self.filters {
            let column = shape.0.iter().position(|column| column.name == *name);
            let column = column.and_then(|index| columns.get(index));
            for (row, is_match) in matches.iter_mut().enumerate() {
                *is_match =
                    *is_match && column.is_some_and(|column| matches_filter(column, row, filter));
            }
        }
        Ok(matches)
    }
}

fn matches_filter(column: &ArrayRef, row: usize, filter: &ColumnFilter) -> bool {
    if column.is_null(row) {
        return false;
    }
    match filter {
        ColumnFilter::Text(text) => column
            .as_string_opt::<i32>()
            .is_some_and(|column| column.value(row) == text),
        ColumnFilter::Int(range) => column
            .as_primitive_opt::<Int64Type>()
            .is_some_and(|column| range.contains(&column.value(row))),
    }
}

fn read_text(rest: &mut &[u8]) -> Result<String, FilteredBoardError> {
    let bytes = leb128::read_bytes(rest).map_err(|_| FilteredBoardError)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| FilteredBoardError)
}

fn read_int(rest: &mut &[u8]) -> Result<i64, FilteredBoardError> {
    let (bytes, after) = rest.split_first_chunk().ok_or(FilteredBoardError)?;
    *rest = after;
    Ok(i64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filtered_boards() -> impl Strategy<Value = FilteredBoard> {
        let filter = prop_oneof![
            ".{0,5}".prop_map(ColumnFilter::Text),
            any::<(i64, i64)>().prop_map(|(from, to)| ColumnFilter::Int(from..=to)),
        ];
        let board = proptest::collection::vec(any::<u8>(), 0..20);
        let filters = proptest::collection::vec(("[a-z]{1,8}", filter), 0..3);
        (board, filters).prop_map(|(board, filters)| FilteredBoard { board, filters })
    }

    proptest! {
        #[test]
        fn decodes_its_encoding(board in filtered_boards()) {
            prop_assert_eq!(FilteredBoard::decode(&board.encode()), Ok(board));
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            drop(FilteredBoard::decode(&bytes));
        }
    }
}
