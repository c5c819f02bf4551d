//! The entries of one member on all boards of a key, and their stored bytes.
//!
//! Layout: a version byte, the distinct values, the entries. A value is a score and a payload; one
//! result is often the best on several boards. An entry is a board, a weight and the index of its
//! value. Lengths and numbers are LEB128. Live state and batch tables store this layout.

use std::collections::HashMap;

use schemas::leb128::{self, Leb128Error, read_bytes, write_bytes};

/// The entry of a member on one board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardEntry {
    /// The encoded board.
    pub board: Vec<u8>,
    /// The encoded score.
    pub score: Vec<u8>,
    /// The encoded payload.
    pub payload: Vec<u8>,
    /// The number of source rows of the entry.
    pub weight: i64,
}

/// A member's entries on all boards of a key; empty if the member is on no board.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberEntries {
    /// The entries, one for each board.
    pub entries: Vec<BoardEntry>,
}

/// Stored bytes that do not decode to member entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stored entries of a board member do not decode: they are damaged or of another version")]
pub struct MemberEntriesError;

const VERSION: u8 = 1;

impl MemberEntries {
    /// Returns the entry on one board.
    #[must_use]
    pub fn entry(&self, board: &[u8]) -> Option<&BoardEntry> {
        self.entries.iter().find(|entry| entry.board == board)
    }

    /// Encodes the entries.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut values: Vec<(&[u8], &[u8])> = Vec::new();
        let mut value_indexes: HashMap<(&[u8], &[u8]), u64> = HashMap::new();
        let mut rows = Vec::new();
        for entry in &self.entries {
            let value = (entry.score.as_slice(), entry.payload.as_slice());
            let next = values.len() as u64;
            let value_index = *value_indexes.entry(value).or_insert(next);
            if value_index == next {
                values.push(value);
            }
            write_bytes(&mut rows, &entry.board);
            leb128::write(&mut rows, entry.weight.cast_unsigned());
            leb128::write(&mut rows, value_index);
        }
        let mut bytes = vec![VERSION];
        leb128::write(&mut bytes, values.len() as u64);
        for (score, payload) in values {
            write_bytes(&mut bytes, score);
            write_bytes(&mut bytes, payload);
        }
        leb128::write(&mut bytes, self.entries.len() as u64);
        bytes.extend_from_slice(&rows);
        bytes
    }

    /// Decodes the entries.
    ///
    /// # Errors
    /// [`MemberEntriesError`] if `bytes` are not the result of [`MemberEntries::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MemberEntriesError> {
        let Some((&VERSION, mut rest)) = bytes.split_first() else {
            return Err(MemberEntriesError);
        };
        let count = read_count(&mut rest)?;
        let mut values = Vec::new();
        for _ in 0..count {
            values.push((read_bytes(&mut rest)?, read_bytes(&mut rest)?));
        }
        let count = read_count(&mut rest)?;
        let mut entries = Vec::new();
        for _ in 0..count {
            let board = read_bytes(&mut rest)?.to_vec();
            let weight = leb128::read(&mut rest)?.cast_signed();
            let value_index =
                usize::try_from(leb128::read(&mut rest)?).map_err(|_| MemberEntriesError)?;
            let (score, payload) = values.get(value_index).ok_or(MemberEntriesError)?;
            entries.push(BoardEntry {
                board,
                score: score.to_vec(),
                payload: payload.to_vec(),
                weight,
            });
        }
        if rest.is_empty() {
            Ok(Self { entries })
        } else {
            Err(MemberEntriesError)
        }
    }
}

impl From<Leb128Error> for MemberEntriesError {
    fn from(_: Leb128Error) -> Self {
        Self
    }
}

/// Reads the number of following items, each of which has at least one byte.
fn read_count(rest: &mut &[u8]) -> Result<usize, MemberEntriesError> {
    let count = usize::try_from(leb128::read(rest)?).map_err(|_| MemberEntriesError)?;
    if count > rest.len() {
        return Err(MemberEntriesError);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member_entries() -> impl Strategy<Value = MemberEntries> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..4);
        let entry = (bytes(), bytes(), bytes(), 0..i64::MAX);
        let entry = entry.prop_map(|(board, score, payload, weight)| BoardEntry {
            board,
            score,
            payload,
            weight,
        });
        proptest::collection::vec(entry, 0..12).prop_map(|entries| MemberEntries { entries })
    }

    proptest! {
        #[test]
        fn decodes_its_encoding(entries in member_entries()) {
            prop_assert_eq!(MemberEntries::decode(&entries.encode()), Ok(entries));
        }

        #[test]
        fn truncated_bytes_do_not_decode(entries in member_entries(), cut in 0..64_usize) {
            let bytes = entries.encode();
            if cut < bytes.len() {
                prop_assert_eq!(MemberEntries::decode(&bytes[..cut]), Err(MemberEntriesError));
            }
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            drop(MemberEntries::decode(&bytes));
        }
    }
}
