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

use super::listener::SOURCE;
use crate::restore::{CHANGE, CHANGES_BATCH_ROWS, changes_folder, encode_changes};
use crate::{Error, Result};

const LISTENER: &str = "listener_id";

/// How many changes that restorations recorded name such a listener.
pub(super) async fn in_restorations(
    archive: &Archive,
    is_wanted: impl Fn(i64) -> bool,
) -> Result<u64> {
    let mut found = 0;
    for path in archive.list(&changes_folder(SOURCE)).await? {
        for batch in batches(archive, &path).await? {
            found += without(&path, &batch, &is_wanted)?.map_or(0, |(count, _)| count);
        }
    }
    Ok(found)
}

/// Takes such listeners out of the changes that restorations recorded. Nobody else may write or read them meanwhile.
pub(super) async fn redact(archive: &Archive, is_wanted: impl Fn(i64) -> bool) -> Result<()> {
    for path in archive.list(&changes_folder(SOURCE)).await? {
        let mut found = 0;
        let mut kept = Vec::new();
        for batch in batches(archive, &path).await? {
            match without(&path, &batch, &is_wanted)? {
                Some((count, without)) => {
                    found += count;
                    kept.push(without);
                }
                None => kept.push(batch),
            }
        }
        if found > 0 {
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

/// Changes without such listeners, and how many named one; nothing if none did.
fn without(
    path: &str,
    batch: &RecordBatch,
    is_wanted: impl Fn(i64) -> bool,
) -> Result<Option<(u64, RecordBatch)>> {
    let wrong = |what: &str| Error::damaged(path, what);
    let place = batch.schema_ref().index_of(CHANGE).ok();
    let place = place.ok_or_else(|| wrong("it has not the columns of changes"))?;
    let changes = batch.column(place).as_string_opt::<i32>();
    let changes = changes.ok_or_else(|| wrong("it has not the columns of changes"))?;
    let mut found = 0;
    let mut kept = Vec::new();
    for change in changes.iter().map(Option::unwrap_or_default) {
        let named: Map<String, Value> =
            serde_json::from_str(change).map_err(|_| wrong("a change in it is no JSON object"))?;
        if listener(&named).is_some_and(&is_wanted) {
            found += 1;
            kept.push(anonymous(named));
        } else {
            kept.push(change.to_owned());
        }
    }
    if found == 0 {
        return Ok(None);
    }
    let mut columns = batch.columns().to_vec();
    if let Some(column) = columns.get_mut(place) {
        *column = Arc::new(StringArray::from(kept)) as ArrayRef;
    }
    let batch = RecordBatch::try_new(batch.schema(), columns);
    Ok(Some((
        found,
        batch.map_err(|e| Error::fault("changes", e))?,
    )))
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
