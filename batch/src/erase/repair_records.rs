//! Records of repairs: which corrections were appended, and which rows were rewritten. Both may
//! name a listener in their keys.
//!
//! A file is replaced by one with the same changes in the same order, without the listener. So the
//! amounts remain readable, an interrupted reconciliation can continue, and a repair can be undone.

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray};
use futures::TryStreamExt;
use serde_json::{Map, Value};
use std::sync::Arc;
use stores::archive::Archive;
use stores::erasures::SearchedPeople;

use super::sources::LISTENER_SOURCE;
use crate::restore::{CHANGE, CHANGES_BATCH_ROWS, changes_folder, encode_changes};
use crate::{Error, Result};

const LISTENER: &str = "listener_id";

/// Counts the recorded changes that name each searched listener.
pub(super) async fn count_in_changes(archive: &Archive, counts: &mut SearchedPeople) -> Result<()> {
    for path in archive.list(&changes_folder(LISTENER_SOURCE)).await? {
        for batch in read_batches(archive, &path).await? {
            for change in find_changes(&path, &batch)?.1 {
                if let Some(id) = parse_listener_id(&parse_change(&path, change)?) {
                    counts.increment(id);
                }
            }
        }
    }
    Ok(())
}

/// Removes erased listeners from recorded changes. No other process may read or write the files
/// meanwhile.
pub(super) async fn redact(archive: &Archive, is_erased: impl Fn(i64) -> bool) -> Result<()> {
    for path in archive.list(&changes_folder(LISTENER_SOURCE)).await? {
        let mut names_erased = false;
        let mut rewritten = Vec::new();
        for batch in read_batches(archive, &path).await? {
            let redacted = remove_listeners(&path, &batch, &is_erased)?;
            names_erased |= redacted.is_some();
            rewritten.push(redacted.unwrap_or(batch));
        }
        if names_erased {
            archive.put(&path, encode_changes(&rewritten)?).await?;
        }
    }
    Ok(())
}

/// Reads a file. Reconciliations write files that fit in memory.
async fn read_batches(archive: &Archive, path: &str) -> Result<Vec<RecordBatch>> {
    let columns = archive.read_columns(path, None, CHANGES_BATCH_ROWS, None);
    Ok(columns.await?.try_collect().await?)
}

/// Returns the changes of a batch, and the index of their column.
fn find_changes<'a>(
    path: &str,
    batch: &'a RecordBatch,
) -> Result<(usize, impl Iterator<Item = &'a str> + use<'a>)> {
    let damaged = || Error::damaged(path, "it does not have the columns of changes");
    let index = batch.schema_ref().index_of(CHANGE).map_err(|_| damaged())?;
    let changes = batch.column(index).as_string_opt::<i32>();
    let changes = changes.ok_or_else(damaged)?;
    Ok((index, changes.iter().map(Option::unwrap_or_default)))
}

fn parse_change(path: &str, change: &str) -> Result<Map<String, Value>> {
    let damaged = |_| Error::damaged(path, "a change in it is not a JSON object");
    serde_json::from_str(change).map_err(damaged)
}

/// Returns the changes without erased listeners; `None` if no change names one.
fn remove_listeners(
    path: &str,
    batch: &RecordBatch,
    is_erased: impl Fn(i64) -> bool,
) -> Result<Option<RecordBatch>> {
    let mut names_erased = false;
    let mut redacted_changes = Vec::new();
    let (index, changes) = find_changes(path, batch)?;
    for change in changes {
        let fields = parse_change(path, change)?;
        if parse_listener_id(&fields).is_some_and(&is_erased) {
            names_erased = true;
            redacted_changes.push(redact_change(fields));
        } else {
            redacted_changes.push(change.to_owned());
        }
    }
    if !names_erased {
        return Ok(None);
    }
    let mut columns = batch.columns().to_vec();
    if let Some(column) = columns.get_mut(index) {
        *column = Arc::new(StringArray::from(redacted_changes)) as ArrayRef;
    }
    let batch = RecordBatch::try_new(batch.schema(), columns);
    Ok(Some(batch.map_err(|e| Error::fault("changes", e))?))
}

fn parse_listener_id(change: &Map<String, Value>) -> Option<i64> {
    match change.get(LISTENER)? {
        Value::String(id) => id.parse().ok(),
        id => id.as_i64(),
    }
}

/// Removes the listener from a change. A correction loses the field; a key gets the value null.
fn redact_change(mut change: Map<String, Value>) -> String {
    if change.contains_key("event_id") {
        change.remove(LISTENER);
    } else {
        change.insert(LISTENER.to_owned(), Value::Null);
    }
    Value::Object(change).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).expect("a JSON object")
    }

    #[test]
    fn removes_the_listener_from_a_change() {
        let event = change(r#"{"event_id":"restoration-1-ab","listener_id":42,"amount":3}"#);
        assert_eq!(parse_listener_id(&event), Some(42));
        let redacted = change(&redact_change(event));
        assert_eq!(parse_listener_id(&redacted), None);
        assert_eq!(redacted["amount"], 3);
        assert!(!redacted.contains_key(LISTENER));
        let key = change(r#"{"listener_id":42,"track_id":7}"#);
        let redacted = change(&redact_change(key));
        assert_eq!(
            (parse_listener_id(&redacted), &redacted["track_id"]),
            (None, &7.into())
        );
        assert!(redacted.contains_key(LISTENER), "a key has all its columns");
    }
}
