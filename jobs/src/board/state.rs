//! The state of a group as bytes: a member's rows on all boards of a key.
//!
//! Layout: a version byte; the distinct values (score and payload), since the same best stands on
//! several boards; then the rows: board, weight, number of the value. Lengths and numbers are
//! LEB128. The layout is stored in live state and in batch tables.

use std::collections::HashMap;

use schemas::leb128::{self, NoNumber, read_bytes, write_bytes};

/// A row of a group: what a member has on one board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Which board, encoded.
    pub board: Vec<u8>,
    /// The encoded score.
    pub score: Vec<u8>,
    /// The encoded payload.
    pub payload: Vec<u8>,
    /// How many of the source's rows stand behind it.
    pub weight: i64,
}

/// A member's rows on all boards of a key; none if the member is on no board.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupState {
    /// The rows, by board.
    pub places: Vec<Place>,
}

/// Stored bytes that are no state of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stored state of a group does not decode: the store is damaged or of another version")]
pub struct StateError;

const VERSION: u8 = 1;

impl GroupState {
    /// The row on one board.
    #[must_use]
    pub fn on(&self, board: &[u8]) -> Option<&Place> {
        self.places.iter().find(|place| place.board == board)
    }

    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut values: Vec<(&[u8], &[u8])> = Vec::new();
        let mut numbers: HashMap<(&[u8], &[u8]), u64> = HashMap::new();
        let mut rows = Vec::new();
        for place in &self.places {
            let value = (place.score.as_slice(), place.payload.as_slice());
            let next = values.len() as u64;
            let number = *numbers.entry(value).or_insert(next);
            if number == next {
                values.push(value);
            }
            write_bytes(&mut rows, &place.board);
            leb128::write(&mut rows, place.weight.cast_unsigned());
            leb128::write(&mut rows, number);
        }
        let mut bytes = vec![VERSION];
        leb128::write(&mut bytes, values.len() as u64);
        for (score, payload) in values {
            write_bytes(&mut bytes, score);
            write_bytes(&mut bytes, payload);
        }
        leb128::write(&mut bytes, self.places.len() as u64);
        bytes.extend_from_slice(&rows);
        bytes
    }

    /// The state in bytes.
    ///
    /// # Errors
    /// [`StateError`] if they are not what [`GroupState::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let Some((&VERSION, mut rest)) = bytes.split_first() else {
            return Err(StateError);
        };
        let count = read_count(&mut rest)?;
        let mut values = Vec::new();
        for _ in 0..count {
            values.push((read_bytes(&mut rest)?, read_bytes(&mut rest)?));
        }
        let count = read_count(&mut rest)?;
        let mut places = Vec::new();
        for _ in 0..count {
            let board = read_bytes(&mut rest)?.to_vec();
            let weight = leb128::read(&mut rest)?.cast_signed();
            let number = usize::try_from(leb128::read(&mut rest)?).map_err(|_| StateError)?;
            let (score, payload) = values.get(number).ok_or(StateError)?;
            places.push(Place {
                board,
                score: score.to_vec(),
                payload: payload.to_vec(),
                weight,
            });
        }
        if rest.is_empty() {
            Ok(Self { places })
        } else {
            Err(StateError)
        }
    }
}

impl From<NoNumber> for StateError {
    fn from(_: NoNumber) -> Self {
        Self
    }
}

/// Reads a number of things, each of which has a byte at least.
fn read_count(rest: &mut &[u8]) -> Result<usize, StateError> {
    let count = usize::try_from(leb128::read(rest)?).map_err(|_| StateError)?;
    if count > rest.len() {
        return Err(StateError);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn states() -> impl Strategy<Value = GroupState> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..4);
        let place = (bytes(), bytes(), bytes(), 0..i64::MAX);
        let place = place.prop_map(|(board, score, payload, weight)| Place {
            board,
            score,
            payload,
            weight,
        });
        proptest::collection::vec(place, 0..12).prop_map(|places| GroupState { places })
    }

    proptest! {
        #[test]
        fn what_is_encoded_comes_back(state in states()) {
            prop_assert_eq!(GroupState::decode(&state.encode()), Ok(state));
        }

        #[test]
        fn no_bytes_are_taken_for_a_state_in_part(state in states(), cut in 0..64_usize) {
            let bytes = state.encode();
            if cut < bytes.len() {
                prop_assert_eq!(GroupState::decode(&bytes[..cut]), Err(StateError));
            }
        }

        #[test]
        fn any_bytes_end_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            drop(GroupState::decode(&bytes));
        }
    }
}
