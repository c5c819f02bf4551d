//! Records of restorations: which corrections were appended, and which rows were written anew. Both may name a
//! listener in their keys.
//!
//! A file is written once more in its place: as many changes, in the same order, without the listener. What was
//! changed by how much stays readable, a restoration that died is gone on with, and one can be taken back.

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray};
use futures::TryStreamExt;
use serde_json::{Map, Value};
use std::sync::Arc;
use stores::archive::Archive;
use stores::erasures::Sought;

use super::listener::SOURCE;
use crate::restore::{CHANGE, CHANGES_BATCH_ROWS, changes_folder, encode_changes};
use crate::{Error, Result};

const LISTENER: &str = "listener_id";

/// Counts the changes that restorations recorded of each listener who is sought.
pub(super) async fn in_restorations(archive: &Archive, found: &mut Sought) -> Result<()> {
    for path in archive.list(&changes_folder(SOURCE)).await? {
        for batch in batches(archive, &path).await? {
            for change in changes(&path, &batch)?.1 {
                if let Some(id) = listener(&parsed(&path, change)?) {
                    found.note(id);
                }
            }
        }
    }
    Ok(())
}

/// Takes such listeners out of the changes that restorations recorded. Nobody else may write or read them meanwhile.
pub(super) async fn redact(archive: &Archive, is_wanted: impl Fn(i64) -> bool) -> Result<()> {
    for path in archive.list(&changes_folder(SOURCE)).await? {
        let mut is_found = false;
        let mut kept = Vec::new();
        for batch in batches(archive, &path).await? {
            let without = without(&path, &batch, &is_wanted)?;
            is_found |= without.is_some();
            kept.push(without.unwrap_or(batch));
        }
        if is_found {
            archive.put(&path, encode_changes(&kept)?).await?;
        }
    }
    Ok(())
}

/// What a file holds: a restoration writes files of a size that memory holds.
async fn batches(archive: &Archive, path: &str) -> Result<Vec<RecordBatch>> {
    let all = archive.columns(path, None, CHANGES_BATCH_ROWS, None);
    Ok(all.await?.try_collect().await?)
}

/// The changes of a batch, and which column they are.
fn changes<'a>(
    path: &str,
    batch: &'a RecordBatch,
) -> Result<(usize, impl Iterator<Item = &'a str> + use<'a>)> {
    let wrong = || Error::damaged(path, "it has not the columns of changes");
    let place = batch.schema_ref().index_of(CHANGE).map_err(|_| wrong())?;
    let changes = batch.column(place).as_string_opt::<i32>();
    let changes = changes.ok_or_else(wrong)?;
    Ok((place, changes.iter().map(Option::unwrap_or_default)))
}

fn parsed(path: &str, change: &str) -> Result<Map<String, Value>> {
    let wrong = |_| Error::damaged(path, "a change in it is no JSON object");
    serde_json::from_str(change).map_err(wrong)
}

/// Changes without such listeners; nothing if none named one.
fn without(
    path: &str,
    batch: &RecordBatch,
    is_wanted: impl Fn(i64) -> bool,
) -> Result<Option<RecordBatch>> {
    let mut is_found = false;
    let mut kept = Vec::new();
    let (place, changes) = changes(path, batch)?;
    for change in changes {
        let named = parsed(path, change)?;
        if listener(&named).is_some_and(&is_wanted) {
            is_found = true;
            kept.push(anonymous(named));
        } else {
            kept.push(change.to_owned());
        }
    }
    if !is_found {
        return Ok(None);
    }
    let mut columns = batch.columns().to_vec();
    if let Some(column) = columns.get_mut(place) {
        *column = Arc::new(StringArray::from(kept)) as ArrayRef;
    }
    let batch = RecordBatch::try_new(batch.schema(), columns);
    Ok(Some(batch.map_err(|e| Error::fault("changes", e))?))
}

fn listener(change: &Map<String, Value>) -> Option<i64> {
    match change.get(LISTENER)? {
        Value::String(id) => id.parse().ok(),
        id => id.as_i64(),
    }
}

/// The same correction or key without its listener: an event has no such field then, a key has none there.
fn anonymous(mut change: Map<String, Value>) -> String {
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
    fn a_change_names_nobody_then() {
        let event = change(r#"{"event_id":"restoration-1-ab","listener_id":42,"amount":3}"#);
        assert_eq!(listener(&event), Some(42));
        let kept = change(&anonymous(event));
        assert_eq!(listener(&kept), None);
        assert_eq!(kept["amount"], 3);
        assert!(!kept.contains_key(LISTENER));
        let key = change(r#"{"listener_id":42,"track_id":7}"#);
        let kept = change(&anonymous(key));
        assert_eq!((listener(&kept), &kept["track_id"]), (None, &7.into()));
        assert!(kept.contains_key(LISTENER), "a key has all its columns");
    }
}
