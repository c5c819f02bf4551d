//! A section of the boards of a key: one of them, with what its rows must hold.
//!
//! Sections are what is asked for, and what a cache of boards holds: each is a list of rows in an order
//! of its own. Its bytes name it wherever it is stored.

use std::ops::RangeInclusive;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::Int64Type;
use schemas::key::{KeyError, KeyShape};

use schemas::leb128;

/// What a column of a row must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Test {
    /// This text.
    Text(String),
    /// A number within a range.
    Int(RangeInclusive<i64>),
}

/// One board of a key, with what its rows must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Section {
    /// The encoded board.
    pub board: Vec<u8>,
    /// By column of the payload.
    pub tests: Vec<(String, Test)>,
}

/// Bytes that name no section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "bytes that should name a section of a board do not: they are damaged or of another version"
)]
pub struct SectionError;

const TEXT: u8 = 0;
const INT: u8 = 1;

impl Section {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        leb128::write_bytes(&mut bytes, &self.board);
        for (column, test) in &self.tests {
            leb128::write_bytes(&mut bytes, column.as_bytes());
            match test {
                Test::Text(text) => {
                    bytes.push(TEXT);
                    leb128::write_bytes(&mut bytes, text.as_bytes());
                }
                Test::Int(range) => {
                    bytes.push(INT);
                    for end in [range.start(), range.end()] {
                        bytes.extend_from_slice(&end.to_be_bytes());
                    }
                }
            }
        }
        bytes
    }

    /// The section that bytes name.
    ///
    /// # Errors
    /// [`SectionError`] if they are not what [`Section::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<Self, SectionError> {
        let mut rest = bytes;
        let board = leb128::read_bytes(&mut rest).map_err(|_| SectionError)?;
        let board = board.to_vec();
        let mut tests = Vec::new();
        while !rest.is_empty() {
            let column = text(&mut rest)?;
            let (kind, after) = rest.split_first().ok_or(SectionError)?;
            rest = after;
            let test = match *kind {
                TEXT => Test::Text(text(&mut rest)?),
                INT => Test::Int(int(&mut rest)?..=int(&mut rest)?),
                _ => return Err(SectionError),
            };
            tests.push((column, test));
        }
        Ok(Self { board, tests })
    }

    /// Which of some rows hold what they must, by their payloads of this shape.
    ///
    /// # Errors
    /// If a payload does not decode.
    pub fn passing<'a>(
        &self,
        shape: &KeyShape,
        payloads: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<Vec<bool>, KeyError> {
        let mut passing = vec![true; payloads.len()];
        if self.tests.is_empty() || passing.is_empty() {
            return Ok(passing);
        }
        let columns = shape.decode(payloads)?;
        for (name, test) in &self.tests {
            let column = shape.0.iter().position(|column| column.name == *name);
            let column = column.and_then(|index| columns.get(index));
            for (row, passing) in passing.iter_mut().enumerate() {
                *passing = *passing && column.is_some_and(|column| passes(column, row, test));
            }
        }
        Ok(passing)
    }
}

fn passes(column: &ArrayRef, row: usize, test: &Test) -> bool {
    if column.is_null(row) {
        return false;
    }
    match test {
        Test::Text(text) => column
            .as_string_opt::<i32>()
            .is_some_and(|column| column.value(row) == text),
        Test::Int(range) => column
            .as_primitive_opt::<Int64Type>()
            .is_some_and(|column| range.contains(&column.value(row))),
    }
}

fn text(rest: &mut &[u8]) -> Result<String, SectionError> {
    let bytes = leb128::read_bytes(rest).map_err(|_| SectionError)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| SectionError)
}

fn int(rest: &mut &[u8]) -> Result<i64, SectionError> {
    let (bytes, after) = rest.split_first_chunk().ok_or(SectionError)?;
    *rest = after;
    Ok(i64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sections() -> impl Strategy<Value = Section> {
        let test = prop_oneof![
            ".{0,5}".prop_map(Test::Text),
            any::<(i64, i64)>().prop_map(|(from, to)| Test::Int(from..=to)),
        ];
        let board = proptest::collection::vec(any::<u8>(), 0..20);
        let tests = proptest::collection::vec(("[a-z]{1,8}", test), 0..3);
        (board, tests).prop_map(|(board, tests)| Section { board, tests })
    }

    proptest! {
        #[test]
        fn what_is_encoded_comes_back(section in sections()) {
            prop_assert_eq!(Section::decode(&section.encode()), Ok(section));
        }

        #[test]
        fn any_bytes_end_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            drop(Section::decode(&bytes));
        }
    }
}
