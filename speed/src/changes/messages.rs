//! Builds messages: the columns of a view by name.

use jobs::board::{AchievementBoard, AchievementEvent, BoardEntry, MemberEntries};
use jobs::{Board, Job};
use schemas::achievement::{
    AchievementKey, AchievementKind, NotificationPosition, OutboxMessage, message_id,
};
use schemas::entities::Group;
use schemas::json_value::{self, format_timestamp_ms};
use schemas::key::{KeyShape, KeyValue};
use serde_json::{Map, Value, json};

use crate::{Error, Result};

/// The column with the activity of an effort.
const ACTIVITY_COLUMN: &str = "activity_id";

/// A group with the notification that named it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotifiedGroup {
    pub(crate) group: Group,
    pub(crate) position: NotificationPosition,
    /// Log time of the notification.
    pub(crate) at_ms: i64,
}

/// Returns whether a member's entries on a board are equal in messages. The number of efforts is
/// not part of a message.
pub(super) fn are_same(a: Option<&BoardEntry>, b: Option<&BoardEntry>) -> bool {
    a.map(content) == b.map(content)
}

/// The content of an entry in messages: its score and its payload.
fn content(entry: &BoardEntry) -> (&[u8], &[u8]) {
    (&entry.score, &entry.payload)
}

/// Finds the boards on which a group's entry changed.
pub(super) fn find_changed_boards<'a>(
    before: &'a MemberEntries,
    after: &'a MemberEntries,
) -> Vec<&'a [u8]> {
    let boards = before.entries.iter().chain(&after.entries);
    let mut boards: Vec<&[u8]> = boards.map(|entry| entry.board.as_slice()).collect();
    boards.sort_unstable();
    boards.dedup();
    boards.retain(|board| !are_same(before.entry(board), after.entry(board)));
    boards
}

/// Builds the message that the boards of a group changed.
pub(super) fn build_board_change(
    job: &Job<Board>,
    notified: &NotifiedGroup,
    before: &MemberEntries,
    after: &MemberEntries,
    boards: &[&[u8]],
) -> Result<OutboxMessage> {
    let mut changes = Vec::with_capacity(boards.len());
    // One effort may be the entry of many boards.
    let mut last: Option<(&BoardEntry, Map<String, Value>)> = None;
    for board in boards {
        let mut fields = Map::new();
        add_columns(job.board_columns(), board, &mut fields)?;
        let (old, new) = (before.entry(board), after.entry(board));
        let old = old
            .map(|entry| build_row_fields(job, &entry.score, None))
            .transpose()?;
        fields.insert("before".to_owned(), old.map_or(Value::Null, Value::Object));
        let new = match (new, &last) {
            (None, _) => Value::Null,
            (Some(entry), Some((same, row))) if content(same) == content(entry) => {
                row.clone().into()
            }
            (Some(entry), _) => {
                let row = build_row_fields(job, &entry.score, Some(&entry.payload))?;
                last = Some((entry, row.clone()));
                row.into()
            }
        };
        fields.insert("after".to_owned(), new);
        changes.push(Value::Object(fields));
    }
    let Group { key, member } = notified.group;
    let id = message_id(&notified.position, job.name(), key, member, ["change", ""]);
    let mut message = build_common_fields(job, notified, &id);
    message.insert("board".to_owned(), job.board().into());
    message.insert("changes".to_owned(), changes.into());
    Ok(OutboxMessage {
        id,
        key,
        at_ms: notified.at_ms,
        position: notified.position,
        achievement: None,
        message,
    })
}

/// Builds the message of an achievement.
pub(super) fn build_achievement(
    job: &Job<Board>,
    notified: &NotifiedGroup,
    board: &AchievementBoard,
    event: &AchievementEvent,
) -> Result<OutboxMessage> {
    let member = decode_int(job.member(), &event.entry.member)?;
    let key = notified.group.key;
    let kind_and_board = [event.kind.name(), board.name.as_str()];
    let id = message_id(&notified.position, job.name(), key, member, kind_and_board);
    let mut message = build_common_fields(job, notified, &id);
    add_columns(job.member(), &event.entry.member, &mut message)?;
    message.extend(build_row_fields(
        job,
        &event.entry.score,
        Some(&event.entry.payload),
    )?);
    message.insert("kind".to_owned(), event.kind.name().into());
    message.insert("board".to_owned(), board.name.as_str().into());
    message.insert("rank".to_owned(), event.rank.into());
    if event.kind == AchievementKind::CrownLost {
        let new_holder = event.new_holder.as_deref();
        let new_holder = new_holder
            .map(|member| decode_int(job.member(), member))
            .transpose()?;
        message.insert("taken_by".to_owned(), new_holder.into());
    }
    let activity = message.get(ACTIVITY_COLUMN).and_then(Value::as_i64);
    Ok(OutboxMessage {
        id,
        key,
        at_ms: notified.at_ms,
        position: notified.position,
        achievement: Some(AchievementKey {
            kind: event.kind,
            member,
            activity,
        }),
        message,
    })
}

/// Builds the fields of every message.
fn build_common_fields(job: &Job<Board>, notified: &NotifiedGroup, id: &str) -> Map<String, Value> {
    let mut message = Map::new();
    message.insert("id".to_owned(), id.into());
    for (shape, value) in [
        (job.key(), notified.group.key),
        (job.member(), notified.group.member),
    ] {
        if let Some(column) = shape.0.first() {
            message.insert(column.name.clone(), value.into());
        }
    }
    message.insert("at".to_owned(), format_timestamp_ms(notified.at_ms).into());
    let NotificationPosition {
        source,
        partition,
        offset,
    } = notified.position;
    let position = json!({"source": source.name(), "partition": partition, "offset": offset});
    message.insert("position".to_owned(), position);
    message
}

/// Builds the columns of an entry: the score, and with a payload also the shown columns.
fn build_row_fields(
    job: &Job<Board>,
    score: &[u8],
    payload: Option<&[u8]>,
) -> Result<Map<String, Value>> {
    let mut row = Map::new();
    add_columns(job.score(), score, &mut row)?;
    if let Some(payload) = payload {
        let values = decode_columns(job.payload(), payload)?;
        let payload_columns = job.payload().0.iter().zip(&values);
        for column in &job.shown().0 {
            let mut same_name = payload_columns
                .clone()
                .filter(|(other, _)| other.name == column.name);
            let value = same_name
                .next()
                .map(|(_, value)| json_value::from_key(value));
            row.insert(column.name.clone(), value.unwrap_or_default());
        }
    }
    Ok(row)
}

/// Adds the values of encoded columns by name.
fn add_columns(shape: &KeyShape, bytes: &[u8], fields: &mut Map<String, Value>) -> Result<()> {
    let values = decode_columns(shape, bytes)?;
    for (column, value) in shape.0.iter().zip(&values) {
        fields.insert(column.name.clone(), json_value::from_key(value));
    }
    Ok(())
}

fn decode_columns(shape: &KeyShape, bytes: &[u8]) -> Result<Vec<KeyValue>> {
    let values = shape.decode_values(bytes);
    values.map_err(|error| Error::Damaged(error.to_string()))
}

/// Decodes the number of a key or member.
pub(super) fn decode_int(shape: &KeyShape, bytes: &[u8]) -> Result<i64> {
    match decode_columns(shape, bytes)?.first() {
        Some(KeyValue::Int(n)) => Ok(*n),
        _ => Err(Error::Damaged("a key or member is not a number".to_owned())),
    }
}
