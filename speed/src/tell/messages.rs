//! What is told, in words: the columns of a view by their names.

use jobs::board::{Achieving, Event, GroupState, Place};
use jobs::{Board, Job};
use schemas::achievement::{Achieved, Kind, Position, Told, id};
use schemas::entities::Group;
use schemas::key::{KeyShape, KeyValue};
use schemas::shown::{key_value, moment};
use serde_json::{Map, Value, json};

use crate::{Error, Result};

/// The column that names the activity of an effort.
const ACTIVITY: &str = "activity_id";

/// A group that a notification named.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    pub(crate) group: Group,
    pub(crate) position: Position,
    /// When the notification was logged.
    pub(crate) at_ms: i64,
}

/// Whether what a member has on a board is the same; how many efforts stand behind it is nobody's
/// business.
pub(super) fn is_same(one: Option<&Place>, other: Option<&Place>) -> bool {
    one.map(shown) == other.map(shown)
}

/// What a message shows of a place.
fn shown(place: &Place) -> (&[u8], &[u8]) {
    (&place.score, &place.payload)
}

/// The boards on which a group's row is another one now.
pub(super) fn changed<'a>(before: &'a GroupState, after: &'a GroupState) -> Vec<&'a [u8]> {
    let boards = before.places.iter().chain(&after.places);
    let mut boards: Vec<&[u8]> = boards.map(|place| place.board.as_slice()).collect();
    boards.sort_unstable();
    boards.dedup();
    boards.retain(|board| !is_same(before.on(board), after.on(board)));
    boards
}

/// That the boards of a group changed; `boards` are those that did.
pub(super) fn change(
    job: &Job<Board>,
    named: &Named,
    (before, after): (&GroupState, &GroupState),
    boards: &[&[u8]],
) -> Result<Told> {
    let mut changes = Vec::with_capacity(boards.len());
    // The same effort stands on many boards.
    let mut last: Option<(&Place, Map<String, Value>)> = None;
    for board in boards {
        let mut entry = Map::new();
        columns(job.boards(), board, &mut entry)?;
        let (old, new) = (before.on(board), after.on(board));
        let old = old.map(|place| row(job, &place.score, None)).transpose()?;
        entry.insert("before".to_owned(), old.map_or(Value::Null, Value::Object));
        let new = match (new, &last) {
            (None, _) => Value::Null,
            (Some(place), Some((same, row))) if shown(same) == shown(place) => row.clone().into(),
            (Some(place), _) => {
                let row = row(job, &place.score, Some(&place.payload))?;
                last = Some((place, row.clone()));
                row.into()
            }
        };
        entry.insert("after".to_owned(), new);
        changes.push(Value::Object(entry));
    }
    let Group { key, member } = named.group;
    let id = id(&named.position, job.name(), (key, member), ("change", ""));
    let mut message = frame(job, named, &id);
    message.insert("board".to_owned(), job.board().into());
    message.insert("changes".to_owned(), changes.into());
    Ok(Told {
        id,
        key,
        at_ms: named.at_ms,
        position: named.position,
        achieved: None,
        message,
    })
}

/// What somebody achieved by a change of a group.
pub(super) fn achievement(
    job: &Job<Board>,
    named: &Named,
    board: &Achieving,
    event: &Event,
) -> Result<Told> {
    let member = int(job.member(), &event.row.member)?;
    let key = named.group.key;
    let what = (event.kind.name(), board.name.as_str());
    let id = id(&named.position, job.name(), (key, member), what);
    let mut message = frame(job, named, &id);
    columns(job.member(), &event.row.member, &mut message)?;
    message.extend(row(job, &event.row.score, Some(&event.row.payload))?);
    message.insert("kind".to_owned(), event.kind.name().into());
    message.insert("board".to_owned(), board.name.as_str().into());
    message.insert("rank".to_owned(), event.rank.into());
    if event.kind == Kind::CrownLost {
        let taken_by = event.taken_by.as_deref();
        let taken_by = taken_by
            .map(|member| int(job.member(), member))
            .transpose()?;
        message.insert("taken_by".to_owned(), taken_by.into());
    }
    let activity = message.get(ACTIVITY).and_then(Value::as_i64);
    Ok(Told {
        id,
        key,
        at_ms: named.at_ms,
        position: named.position,
        achieved: Some(Achieved {
            kind: event.kind,
            member,
            activity,
        }),
        message,
    })
}

/// What every message has.
fn frame(job: &Job<Board>, named: &Named, id: &str) -> Map<String, Value> {
    let mut message = Map::new();
    message.insert("id".to_owned(), id.into());
    for (shape, value) in [
        (job.key(), named.group.key),
        (job.member(), named.group.member),
    ] {
        if let Some(column) = shape.0.first() {
            message.insert(column.name.clone(), value.into());
        }
    }
    message.insert("at".to_owned(), moment(named.at_ms).into());
    let Position {
        source,
        partition,
        offset,
    } = named.position;
    let position = json!({"source": source.name(), "partition": partition, "offset": offset});
    message.insert("position".to_owned(), position);
    message
}

/// The columns of a row: the score, and what is shown besides if there is a payload.
fn row(job: &Job<Board>, score: &[u8], payload: Option<&[u8]>) -> Result<Map<String, Value>> {
    let mut row = Map::new();
    columns(job.score(), score, &mut row)?;
    if let Some(payload) = payload {
        let values = decoded(job.payload(), payload)?;
        let stored = job.payload().0.iter().zip(&values);
        for column in &job.shown().0 {
            let mut of_name = stored.clone().filter(|(of, _)| of.name == column.name);
            let value = of_name.next().map(|(_, value)| key_value(value));
            row.insert(column.name.clone(), value.unwrap_or_default());
        }
    }
    Ok(row)
}

/// Adds the values of encoded columns by their names.
fn columns(shape: &KeyShape, bytes: &[u8], into: &mut Map<String, Value>) -> Result<()> {
    let values = decoded(shape, bytes)?;
    for (column, value) in shape.0.iter().zip(&values) {
        into.insert(column.name.clone(), key_value(value));
    }
    Ok(())
}

fn decoded(shape: &KeyShape, bytes: &[u8]) -> Result<Vec<KeyValue>> {
    let values = shape.decode_values(bytes);
    values.map_err(|error| Error::Damaged(error.to_string()))
}

/// The number that an encoded key or member is.
pub(super) fn int(shape: &KeyShape, bytes: &[u8]) -> Result<i64> {
    match decoded(shape, bytes)?.first() {
        Some(KeyValue::Int(n)) => Ok(*n),
        _ => Err(Error::Damaged("a member is no number".to_owned())),
    }
}
