//! Redaction of plays: removes the listeners that were erased.
//!
//! All other fields stay, so totals stay. The listener is not part of an event's identity, so
//! deduplication is unaffected.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use arrow::error::ArrowError;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{Decoder, Line};
use crate::avro::WriterSchemas;

/// Replaces each suppressed listener by null. Returns `None` if nothing changes, or if the batch
/// has no column `listener_id`.
#[must_use]
pub fn redact_listeners(
    events: &RecordBatch,
    is_suppressed: impl Fn(i64) -> bool,
) -> Option<RecordBatch> {
    let (index, _) = events.schema_ref().column_with_name("listener_id")?;
    let listeners = events.column(index).as_primitive_opt::<Int64Type>()?;
    let mut is_changed = false;
    let redacted = listeners.iter().map(|listener| {
        let redacted = listener.filter(|id| !is_suppressed(*id));
        is_changed |= redacted != listener;
        redacted
    });
    let redacted: Int64Array = redacted.collect();
    if !is_changed {
        return None;
    }
    let mut columns = events.columns().to_vec();
    if let Some(column) = columns.get_mut(index) {
        *column = Arc::new(redacted);
    }
    // This cannot fail: the column has the same type and is nullable.
    RecordBatch::try_new(events.schema(), columns).ok()
}

/// Returns redacted JSON lines, by index, for the records whose listener is suppressed. The records
/// are JSON lines or framed Avro. Unknown fields are removed, and invalid records are skipped.
///
/// # Errors
/// As [`Decoder::decode_records`].
pub fn redact_lines<'a>(
    records: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
    writers: &WriterSchemas,
    is_suppressed: impl Fn(i64) -> bool,
) -> Result<BTreeMap<usize, Vec<u8>>, ArrowError> {
    let lines = (0..).zip(records).map(|(offset, bytes)| Line {
        // The offset identifies the record in the decoded batch.
        offset,
        logged_at_ms: 0,
        bytes,
    });
    let events = Decoder::new(0).decode_records(lines, writers)?.events;
    let mut redacted = BTreeMap::new();
    let columns = (
        events.column_by_name("offset"),
        events.column_by_name("listener_id"),
    );
    let (Some(offsets), Some(listeners)) = columns else {
        return Ok(redacted);
    };
    let offsets = offsets.as_primitive::<Int64Type>();
    let listeners = listeners.as_primitive::<Int64Type>();
    for (row, listener) in listeners.iter().enumerate() {
        if listener.is_some_and(&is_suppressed)
            && let Ok(index) = usize::try_from(offsets.value(row))
        {
            redacted.insert(index, format_line_without_listener(&events, row)?);
        }
    }
    Ok(redacted)
}

/// Formats a row as a JSON line without the listener.
fn format_line_without_listener(events: &RecordBatch, row: usize) -> Result<Vec<u8>, ArrowError> {
    let mut line = Map::new();
    for name in [
        "event_id", "track_id", "owner_id", "country", "referrer", "app_id", "kind", "at", "amount",
    ] {
        let Some(column) = events
            .column_by_name(name)
            .filter(|column| column.is_valid(row))
        else {
            continue;
        };
        let value = if let Some(texts) = column.as_string_opt::<i32>() {
            Value::from(texts.value(row))
        } else if let Some(numbers) = column.as_primitive_opt::<Int64Type>() {
            Value::from(numbers.value(row))
        } else if let Some(times) = column.as_primitive_opt::<TimestampMicrosecondType>() {
            let time = Timestamp::from_microsecond(times.value(row));
            Value::from(
                time.map_err(|e| ArrowError::ComputeError(e.to_string()))?
                    .to_string(),
            )
        } else {
            continue;
        };
        line.insert(name.to_owned(), value);
    }
    serde_json::to_vec(&line).map_err(|error| ArrowError::JsonError(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plays::event_identities;

    const LINES: [&str; 4] = [
        r#"{"event_id":"a","track_id":1,"owner_id":2,"listener_id":7,"kind":"play","at":"2026-03-01T10:00:00.123456+02:00","name":"X","amount":-3}"#,
        r#"{"event_id":"b","track_id":1,"owner_id":2,"listener_id":8,"kind":"play","at":"2026-03-01T10:00:00Z"}"#,
        r#"{"event_id":"c","track_id":1,"owner_id":2,"kind":"download","at":"2026-03-01T10:00:00Z"}"#,
        "no line",
    ];

    fn decode(lines: &[&[u8]]) -> RecordBatch {
        let lines = lines.iter().map(|bytes| Line {
            offset: 0,
            logged_at_ms: 0,
            bytes,
        });
        Decoder::new(0).decode(lines).unwrap().events
    }

    #[test]
    fn redaction_keeps_the_identity() {
        let lines: Vec<&[u8]> = LINES.iter().map(|line| line.as_bytes()).collect();
        let events = decode(&lines);
        let without_listeners = redact_listeners(&events, |id| id == 7).unwrap();
        let listeners = without_listeners.column_by_name("listener_id").unwrap();
        let listeners: Vec<_> = listeners.as_primitive::<Int64Type>().iter().collect();
        assert_eq!(listeners, [None, Some(8), None]);
        assert_eq!(
            event_identities(&events),
            event_identities(&without_listeners)
        );
        assert!(redact_listeners(&without_listeners, |id| id == 7).is_none());
        assert!(redact_listeners(&events, |_| false).is_none());
    }

    #[test]
    fn a_redacted_line_lacks_only_the_listener() {
        let lines: Vec<&[u8]> = LINES.iter().map(|line| line.as_bytes()).collect();
        let writers = WriterSchemas::default();
        let redacted = redact_lines(lines.iter().copied(), &writers, |id| id == 7).unwrap();
        assert_eq!(redacted.keys().collect::<Vec<_>>(), [&0]);
        let text = std::str::from_utf8(&redacted[&0]).unwrap();
        assert!(!text.contains('7') && !text.contains("name"), "{text}");
        let events = decode(&lines[..1]);
        let without_listeners = redact_listeners(&events, |_| true).unwrap();
        assert_eq!(decode(&[&redacted[&0]]), without_listeners);
    }
}
