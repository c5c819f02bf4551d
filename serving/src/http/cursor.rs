//! Cursors: opaque texts that tell where the next page of a list begins. A cursor is valid only for
//! the request that returned it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jobs::board::RankedEntry;
use schemas::key::KeyValue;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stores::achievements::AchievementCursor;
use stores::board_cache::BoardSelection;
use xxhash_rust::xxh3::xxh3_64;

use super::problem::Problem;
use crate::answer::{BreakdownPosition, RowKey, to_row_key};

/// Computes the fingerprint of a request. Its cursors include the fingerprint.
pub(crate) fn compute_fingerprint(request: &str) -> u64 {
    xxh3_64(request.as_bytes())
}

/// Cuts a list of at most `limit + 1` rows to `limit` rows. Returns the cursor after the last row
/// if the list had more.
pub(crate) fn truncate_page<T>(
    rows: &mut Vec<T>,
    limit: usize,
    encode_cursor: impl FnOnce(&T) -> String,
) -> Option<String> {
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    rows.last().filter(|_| has_more).map(encode_cursor)
}

/// Encodes the cursor after a row of a breakdown.
pub(crate) fn encode_breakdown_row(fingerprint: u64, row: &BreakdownPosition) -> String {
    serialize(&(fingerprint, row.count, to_row_key(row.key.clone())))
}

/// Decodes the cursor after a row of a breakdown.
pub(crate) fn decode_breakdown_row(
    fingerprint: u64,
    cursor: &str,
) -> Result<BreakdownPosition, Problem> {
    let (cursor_fingerprint, count, key): (u64, i64, Option<RowKey>) = parse(cursor)?;
    check_fingerprint(cursor_fingerprint, fingerprint)?;
    let key = match key {
        None => KeyValue::Null,
        Some(RowKey::Int(n)) => KeyValue::Int(n),
        Some(RowKey::Text(text)) => KeyValue::Text(text),
    };
    Ok(BreakdownPosition { count, key })
}

/// Encodes the cursor after a row of a board.
pub(crate) fn encode_board_row(fingerprint: u64, row: &RankedEntry) -> String {
    let key = [row.score.as_slice(), &row.member].concat();
    serialize(&(fingerprint, URL_SAFE_NO_PAD.encode(key)))
}

/// The sizes of a board row's encoded score and member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoardKeySizes {
    pub(crate) score_bytes: usize,
    pub(crate) member_bytes: usize,
}

/// Decodes the cursor of a board into the page that begins there.
pub(crate) fn decode_board_page(
    fingerprint: u64,
    cursor: &str,
    sizes: BoardKeySizes,
    limit: usize,
) -> Result<BoardSelection, Problem> {
    // Cursors of version 0.1.0 hold an offset.
    if let Ok((cursor_fingerprint, offset)) = parse::<(u64, u64)>(cursor) {
        check_fingerprint(cursor_fingerprint, fingerprint)?;
        let offset = check_storable(offset)?;
        return Ok(BoardSelection::Page { offset, limit });
    }
    let (cursor_fingerprint, key): (u64, String) = parse(cursor)?;
    check_fingerprint(cursor_fingerprint, fingerprint)?;
    let mut score = URL_SAFE_NO_PAD.decode(key).map_err(|_| invalid_cursor())?;
    if score.len() != sizes.score_bytes + sizes.member_bytes {
        return Err(invalid_cursor());
    }
    let member = score.split_off(sizes.score_bytes);
    Ok(BoardSelection::After {
        score,
        member,
        limit,
    })
}

/// Encodes the cursor after `last`.
pub(crate) fn encode(fingerprint: u64, last: &impl Serialize) -> String {
    serialize(&(fingerprint, last))
}

/// Decodes a cursor of [`encode`].
pub(crate) fn decode<T: DeserializeOwned>(fingerprint: u64, cursor: &str) -> Result<T, Problem> {
    let (cursor_fingerprint, last) = parse(cursor)?;
    check_fingerprint(cursor_fingerprint, fingerprint)?;
    Ok(last)
}

/// Decodes a cursor after a batch run.
pub(crate) fn decode_run(fingerprint: u64, cursor: &str) -> Result<u64, Problem> {
    decode(fingerprint, cursor).and_then(check_storable)
}

/// Checks that stores can search for a number. Every number in a cursor of this service passes.
fn check_storable(number: u64) -> Result<u64, Problem> {
    if i64::try_from(number).is_ok_and(|number| number < i64::MAX) {
        return Ok(number);
    }
    Err(Problem::parameter(format!(
        "cursor holds the invalid number {number}: leave it out, or send a cursor unchanged"
    )))
}

/// Decodes a cursor after one run of each source.
pub(crate) fn decode_runs(
    fingerprint: u64,
    cursor: &str,
) -> Result<BTreeMap<String, u64>, Problem> {
    let epochs: BTreeMap<String, u64> = decode(fingerprint, cursor)?;
    epochs
        .values()
        .try_for_each(|epoch| check_storable(*epoch).map(drop))?;
    Ok(epochs)
}

/// Encodes the cursor after an achievement.
pub(crate) fn encode_achievement(fingerprint: u64, achievement: &AchievementCursor) -> String {
    serialize(&(fingerprint, achievement.at_ms, &achievement.id))
}

/// Decodes the cursor after an achievement.
pub(crate) fn decode_achievement(
    fingerprint: u64,
    cursor: &str,
) -> Result<AchievementCursor, Problem> {
    let (cursor_fingerprint, at_ms, id): (u64, i64, String) = parse(cursor)?;
    check_fingerprint(cursor_fingerprint, fingerprint)?;
    Ok(AchievementCursor { at_ms, id })
}

fn check_fingerprint(cursor_fingerprint: u64, fingerprint: u64) -> Result<(), Problem> {
    if cursor_fingerprint == fingerprint {
        return Ok(());
    }
    Err(Problem::parameter(
        "cursor belongs to another request: leave it out, or send it with the parameters of the request that returned it",
    ))
}

fn serialize(content: &impl Serialize) -> String {
    // Numbers and texts are always valid JSON.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(content).unwrap_or_default())
}

fn parse<T: DeserializeOwned>(cursor: &str) -> Result<T, Problem> {
    URL_SAFE_NO_PAD
        .decode(cursor)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .ok_or_else(invalid_cursor)
}

fn invalid_cursor() -> Problem {
    Problem::parameter("cursor is not valid: leave it out, or send a cursor unchanged")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_numbers_that_stores_cannot_hold() {
        assert_eq!(decode_run(1, &encode(1, &7)).unwrap(), 7);
        let largest = i64::MAX.cast_unsigned();
        assert_eq!(
            decode_run(1, &encode(1, &(largest - 1))).unwrap(),
            largest - 1
        );
        for number in [largest, largest + 1, u64::MAX] {
            decode_run(1, &encode(1, &number)).unwrap_err();
            let numbers = BTreeMap::from([("plays".to_owned(), 1), ("efforts".to_owned(), number)]);
            decode_runs(1, &encode(1, &numbers)).unwrap_err();
        }
        for id in [i64::MIN, -1, 0, i64::MAX] {
            assert_eq!(decode::<i64>(1, &encode(1, &id)).unwrap(), id);
        }
    }
    use crate::http::problem::ProblemKind;

    #[test]
    fn a_cursor_is_valid_for_its_request_only() {
        let request = compute_fingerprint("a");
        for key in [
            KeyValue::Null,
            KeyValue::Int(i64::MIN),
            KeyValue::Text(String::new()),
            KeyValue::Text("7".to_owned()),
            KeyValue::Text("\0ü/+\"".to_owned()),
        ] {
            let row = BreakdownPosition {
                count: -i64::MAX,
                key,
            };
            let cursor = encode_breakdown_row(request, &row);
            assert!(
                cursor
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'),
                "{cursor}"
            );
            assert_eq!(decode_breakdown_row(request, &cursor).unwrap(), row);
            let error = decode_breakdown_row(compute_fingerprint("b"), &cursor).unwrap_err();
            assert_eq!(error.kind(), ProblemKind::BadParameter);
            assert!(error.detail().contains("another request"));
        }
    }

    #[test]
    fn a_board_cursor_holds_a_row() {
        let row = RankedEntry {
            score: vec![0, 255],
            member: vec![b'"', 7, 128],
            payload: Vec::new(),
            weight: 1,
        };
        let cursor = encode_board_row(1, &row);
        let expected = BoardSelection::After {
            score: row.score,
            member: row.member,
            limit: 9,
        };
        let sizes = |score_bytes, member_bytes| BoardKeySizes {
            score_bytes,
            member_bytes,
        };
        let page = decode_board_page(1, &cursor, sizes(2, 3), 9).unwrap();
        assert_eq!(page, expected);
        for (fingerprint, sizes) in [(2, sizes(2, 3)), (1, sizes(2, 2)), (1, sizes(0, 3))] {
            decode_board_page(fingerprint, &cursor, sizes, 9).unwrap_err();
        }
        // A cursor of version 0.1.0.
        let page = decode_board_page(1, &encode(1, &7), sizes(2, 3), 9).unwrap();
        let (offset, limit) = (7, 9);
        assert_eq!(page, BoardSelection::Page { offset, limit });
        decode_board_page(2, &encode(1, &7), sizes(2, 3), 9).unwrap_err();
        decode_board_page(1, &encode(1, &u64::MAX), sizes(2, 3), 9).unwrap_err();
    }

    #[test]
    fn refuses_malformed_cursors() {
        let sizes = BoardKeySizes {
            score_bytes: 0,
            member_bytes: 0,
        };
        for text in ["", "x", "bnVsbA", "WzFd", "!!!!", "W10="] {
            assert!(decode_breakdown_row(1, text).is_err(), "{text}");
            assert!(decode_run(1, text).is_err(), "{text}");
            assert!(decode_board_page(1, text, sizes, 9).is_err(), "{text}");
        }
    }
}
