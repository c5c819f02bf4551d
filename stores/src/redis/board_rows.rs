//! Rows of cached boards, encoded as `board_rows.lua` specifies.

use bytes::Bytes;
use schemas::seam::Epoch;

use crate::board_cache::{BoardRow, CachedBoardChanges};
use crate::{Error, Result};

/// The size of one number of a score, in bytes.
pub(super) const NUMBER_BYTES: usize = 8;

/// The maximum number of a score. Sorted sets rank by doubles, which would round larger numbers.
pub(super) const NUMBER_MAX: u64 = 1 << 53;

/// Returns the arguments of the apply script that concern cached boards.
pub(super) fn build_board_arguments(
    epoch: Epoch,
    changes: &CachedBoardChanges,
) -> Result<Vec<Bytes>> {
    let mut arguments = vec![
        format_argument(epoch),
        format_argument(changes.covered_epoch),
        format_argument(changes.boards.len()),
    ];
    for board in &changes.boards {
        arguments.push(Bytes::from(board.id.clone()));
        arguments.push(format_argument(board.rows.len()));
        for (member, row) in &board.rows {
            arguments.push(Bytes::copy_from_slice(member));
            arguments.push(match row {
                None => Bytes::new(),
                Some(row) => encode_row(row)?,
            });
        }
    }
    Ok(arguments)
}

/// Encodes a row as `board_rows.lua` specifies.
pub(super) fn encode_row(row: &BoardRow) -> Result<Bytes> {
    let (number, rest) = split_score(&row.score);
    if number.unsigned_abs() > NUMBER_MAX {
        return Err(Error::Refused(format!(
            "a score of {number} exceeds the limit of {NUMBER_MAX}, above which sorted sets round"
        )));
    }
    let mut value = format!("{number}:{}:{}:{}:", row.epoch, row.weight, rest.len()).into_bytes();
    value.extend_from_slice(rest);
    value.extend_from_slice(&row.payload);
    Ok(value.into())
}

/// Splits a score into its first number, which ranks in a sorted set, and the rest.
pub(super) fn split_score(score: &[u8]) -> (i64, &[u8]) {
    match score.split_first_chunk::<NUMBER_BYTES>() {
        None => (0, score),
        Some((number, rest)) => (decode_number(*number), rest),
    }
}

pub(super) fn decode_row(member: Vec<u8>, value: &[u8], score_bytes: usize) -> Option<BoardRow> {
    let mut parts = value.splitn(5, |byte| *byte == b':');
    let mut number = || -> Option<i64> {
        let part = std::str::from_utf8(parts.next()?).ok()?;
        part.parse().ok()
    };
    let (score_number, epoch, weight, length) = (number()?, number()?, number()?, number()?);
    let rest = parts.next()?;
    let (rest, payload) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    let mut score = Vec::with_capacity(score_bytes);
    if score_bytes >= NUMBER_BYTES {
        score.extend_from_slice(&encode_number(score_number));
    }
    score.extend_from_slice(rest);
    (score.len() == score_bytes).then(|| BoardRow {
        member,
        score,
        payload: payload.to_vec(),
        weight,
        epoch: Epoch::try_from(epoch).unwrap_or_default(),
    })
}

/// Decodes a number from bytes that sort like the number ([`schemas::key`]).
const fn decode_number(bytes: [u8; NUMBER_BYTES]) -> i64 {
    (u64::from_be_bytes(bytes) ^ (1 << 63)).cast_signed()
}

const fn encode_number(number: i64) -> [u8; NUMBER_BYTES] {
    (number.cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

pub(super) fn format_argument(number: impl std::fmt::Display) -> Bytes {
    Bytes::from(number.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_round_trip(
            number in -(1_i64 << 53)..=1 << 53,
            rest: [u8; 8],
            payload: Vec<u8>,
            weight: i64,
            epoch in 0..1_u64 << 40,
        ) {
            let score = [encode_number(number), rest].concat();
            let row = BoardRow { member: vec![b':', 7], score, payload, weight, epoch };
            let value = encode_row(&row).expect("a value");
            prop_assert_eq!(decode_row(row.member.clone(), &value, 16), Some(row));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            drop(decode_row(Vec::new(), &bytes, 16));
        }
    }

    #[test]
    fn refuses_scores_beyond_doubles() {
        let row = BoardRow {
            member: vec![1],
            score: encode_number((1 << 53) + 1).to_vec(),
            payload: Vec::new(),
            weight: 1,
            epoch: 0,
        };
        assert!(matches!(encode_row(&row), Err(Error::Refused(_))));
    }
}
