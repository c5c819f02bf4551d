//! Cursors: where the next page begins, as a text that only the same question takes.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jobs::board::Ranked;
use schemas::key::KeyValue;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stores::achievements::Mark;
use stores::board_cache::BoardWant;
use xxhash_rust::xxh3::xxh3_64;

use super::problem::Problem;
use crate::answer::{Place, RowKey, row_key};

/// The fingerprint of a question, to which a cursor is bound.
pub(crate) fn fingerprint(question: &str) -> u64 {
    xxh3_64(question.as_bytes())
}

/// Makes a page of what was found for it, which is one more than it has where there is more; the cursor of the next page
/// then, after the last one of this.
pub(crate) fn page<T>(
    found: &mut Vec<T>,
    limit: usize,
    after: impl FnOnce(&T) -> String,
) -> Option<String> {
    let more = found.len() > limit;
    found.truncate(limit);
    found.last().filter(|_| more).map(after)
}

/// The cursor after a place in a ranking.
pub(crate) fn after_place(fingerprint: u64, place: &Place) -> String {
    write(&(fingerprint, place.count, row_key(place.key.clone())))
}

/// The place of a cursor.
pub(crate) fn place(fingerprint: u64, cursor: &str) -> Result<Place, Problem> {
    let (of, count, key): (u64, i64, Option<RowKey>) = read(cursor)?;
    same(of, fingerprint)?;
    let key = match key {
        None => KeyValue::Null,
        Some(RowKey::Int(n)) => KeyValue::Int(n),
        Some(RowKey::Text(text)) => KeyValue::Text(text),
    };
    Ok(Place { count, key })
}

/// The cursor after a row of a board.
pub(crate) fn after_row(fingerprint: u64, row: &Ranked) -> String {
    let key = [row.score.as_slice(), &row.member].concat();
    write(&(fingerprint, URL_SAFE_NO_PAD.encode(key)))
}

/// The page that the cursor of a board asks for. The sizes are those of an encoded score and member.
pub(crate) fn board_page(
    fingerprint: u64,
    cursor: &str,
    (score_bytes, member_bytes): (usize, usize),
    limit: usize,
) -> Result<BoardWant, Problem> {
    // Cursors of version 0.1.0 hold an offset.
    if let Ok((of, place)) = read::<(u64, u64)>(cursor) {
        same(of, fingerprint)?;
        let offset = storable(place)?;
        return Ok(BoardWant::Page { offset, limit });
    }
    let (of, key): (u64, String) = read(cursor)?;
    same(of, fingerprint)?;
    let mut score = URL_SAFE_NO_PAD.decode(key).map_err(|_| unknown())?;
    if score.len() != score_bytes + member_bytes {
        return Err(unknown());
    }
    let member = score.split_off(score_bytes);
    Ok(BoardWant::After {
        score,
        member,
        limit,
    })
}

/// The cursor that begins after `last`.
pub(crate) fn after(fingerprint: u64, last: &impl Serialize) -> String {
    write(&(fingerprint, last))
}

/// What a cursor of [`after`] holds.
pub(crate) fn last<T: DeserializeOwned>(fingerprint: u64, cursor: &str) -> Result<T, Problem> {
    let (of, last) = read(cursor)?;
    same(of, fingerprint)?;
    Ok(last)
}

/// The run of a cursor.
pub(crate) fn run(fingerprint: u64, cursor: &str) -> Result<u64, Problem> {
    last(fingerprint, cursor).and_then(storable)
}

/// A number that stores can look for: all that a cursor of ours holds.
fn storable(number: u64) -> Result<u64, Problem> {
    if i64::try_from(number).is_ok_and(|number| number < i64::MAX) {
        return Ok(number);
    }
    Err(Problem::parameter(format!(
        "cursor leads to {number}, where nothing can be: leave it out, or send one as it was given"
    )))
}

/// The last run of each source of a cursor.
pub(crate) fn runs(fingerprint: u64, cursor: &str) -> Result<BTreeMap<String, u64>, Problem> {
    let epochs: BTreeMap<String, u64> = last(fingerprint, cursor)?;
    epochs
        .values()
        .try_for_each(|one| storable(*one).map(drop))?;
    Ok(epochs)
}

/// The cursor after an achievement.
pub(crate) fn after_mark(fingerprint: u64, mark: &Mark) -> String {
    write(&(fingerprint, mark.at_ms, &mark.id))
}

/// The achievement of a cursor.
pub(crate) fn mark(fingerprint: u64, cursor: &str) -> Result<Mark, Problem> {
    let (of, at_ms, id): (u64, i64, String) = read(cursor)?;
    same(of, fingerprint)?;
    Ok(Mark { at_ms, id })
}

fn same(of: u64, fingerprint: u64) -> Result<(), Problem> {
    if of == fingerprint {
        return Ok(());
    }
    Err(Problem::parameter(
        "cursor is of another question: leave it out, or ask the question that gave it",
    ))
}

fn write(content: &impl Serialize) -> String {
    // Numbers and texts always can be written as JSON.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(content).unwrap_or_default())
}

fn read<T: DeserializeOwned>(cursor: &str) -> Result<T, Problem> {
    URL_SAFE_NO_PAD
        .decode(cursor)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .ok_or_else(unknown)
}

fn unknown() -> Problem {
    Problem::parameter("cursor is not one that this service gave: leave it out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_store_has_are_refused() {
        assert_eq!(run(1, &after(1, &7)).unwrap(), 7);
        let largest = i64::MAX.cast_unsigned();
        assert_eq!(run(1, &after(1, &(largest - 1))).unwrap(), largest - 1);
        for number in [largest, largest + 1, u64::MAX] {
            run(1, &after(1, &number)).unwrap_err();
            let all = BTreeMap::from([("plays".to_owned(), 1), ("efforts".to_owned(), number)]);
            runs(1, &after(1, &all)).unwrap_err();
        }
        for id in [i64::MIN, -1, 0, i64::MAX] {
            assert_eq!(last::<i64>(1, &after(1, &id)).unwrap(), id);
        }
    }
    use crate::http::problem::Kind;

    #[test]
    fn a_cursor_comes_back_for_the_same_question_only() {
        let question = fingerprint("a");
        for key in [
            KeyValue::Null,
            KeyValue::Int(i64::MIN),
            KeyValue::Text(String::new()),
            KeyValue::Text("7".to_owned()),
            KeyValue::Text("\0ü/+\"".to_owned()),
        ] {
            let there = Place {
                count: -i64::MAX,
                key,
            };
            let cursor = after_place(question, &there);
            assert!(
                cursor
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'),
                "{cursor}"
            );
            assert_eq!(place(question, &cursor).unwrap(), there);
            let error = place(fingerprint("b"), &cursor).unwrap_err();
            assert_eq!(error.kind(), Kind::BadParameter);
            assert!(error.detail().contains("another question"));
        }
    }

    #[test]
    fn a_cursor_of_a_board_holds_a_row() {
        let row = Ranked {
            score: vec![0, 255],
            member: vec![b'"', 7, 128],
            payload: Vec::new(),
            weight: 1,
        };
        let cursor = after_row(1, &row);
        let after_row = BoardWant::After {
            score: row.score,
            member: row.member,
            limit: 9,
        };
        let page = board_page(1, &cursor, (2, 3), 9).unwrap();
        assert_eq!(page, after_row);
        for (fingerprint, bytes) in [(2, (2, 3)), (1, (2, 2)), (1, (0, 3))] {
            board_page(fingerprint, &cursor, bytes, 9).unwrap_err();
        }
        // As it was given by version 0.1.0.
        let page = board_page(1, &after(1, &7), (2, 3), 9).unwrap();
        let (offset, limit) = (7, 9);
        assert_eq!(page, BoardWant::Page { offset, limit });
        board_page(2, &after(1, &7), (2, 3), 9).unwrap_err();
        board_page(1, &after(1, &u64::MAX), (2, 3), 9).unwrap_err();
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        for text in ["", "x", "bnVsbA", "WzFd", "!!!!", "W10="] {
            assert!(place(1, text).is_err(), "{text}");
            assert!(run(1, text).is_err(), "{text}");
            assert!(board_page(1, text, (0, 0), 9).is_err(), "{text}");
        }
    }
}
