//! Rows that lie where no row of the view can lie: in the partition of another time than their own, or under a key that is
//! none of the view's. No run writes them, and none deletes them; who asks for a long time may read them all the same.
//!
//! A comparison knows each by its place in the table and not by the key that is compared: the right row of that key may be
//! there, too.

use arrow::array::BinaryArray;
use jobs::{BUCKET, Job};
use schemas::json_value;
use schemas::key::KeyValue;
use serde_json::{Map, Value};
use stores::views::{AggregateShape, RowKeys};
use xxhash_rust::xxh3::xxh3_64;

use super::cause::Cause;
use super::side::Side;
use crate::{Error, Result};

/// What the key of a stray begins with among those that are compared.
const MARK: [u8; 16] = *b"\xff\xfestray row\xff\xfe\xff\xfe\xff";
/// What the bytes of a place's partition are told by.
const LENGTH_BYTES: usize = 4;

/// What is wrong with the place of a row.
pub(super) fn side_of(job: &Job, part: &[u8], row: &[u8]) -> Option<Side> {
    let Some((time, group)) = AggregateShape::split_partition_key(part) else {
        return Some(Side::Unreadable);
    };
    if !job.group().is_key(group) || !job.row().is_key(row) {
        return Some(Side::Unreadable);
    }
    let first = job.row().0.first();
    let start = match first.is_some_and(|first| first.name == BUCKET) {
        true => job.row().decode_first_time(row).unwrap_or(0),
        false => 0,
    };
    (job.table_partition().floor(start) != time).then_some(Side::Misplaced)
}

/// The keys by which strays are compared.
pub(super) fn keys<'a>(places: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> BinaryArray {
    let keys = places.map(|(part, row)| {
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes();
        [MARK.as_slice(), length.as_slice(), part, row].concat()
    });
    BinaryArray::from_iter_values(keys)
}

/// Partition and row key of a stray, by the key by which it is compared.
pub(super) fn place(key: &[u8]) -> Result<(&[u8], &[u8])> {
    let place = key.strip_prefix(MARK.as_slice()).and_then(|rest| {
        let (length, rest) = rest.split_first_chunk::<LENGTH_BYTES>()?;
        rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)
    });
    place.ok_or_else(|| Error::Fault("an invalid location of a row".to_owned()))
}

/// A stray for people: the columns of its key and the time of the partition that it lies in; or the bytes of its place.
pub(super) fn named((job, cause): (&Job, Cause), key: &[u8]) -> Result<Map<String, Value>> {
    let (part, row) = place(key)?;
    if cause == Cause::UnreadableRow {
        let hex = |bytes: &[u8]| Value::String(bytes.iter().map(|b| format!("{b:02x}")).collect());
        return Ok(Map::from_iter([
            ("part".to_owned(), hex(part)),
            ("row".to_owned(), hex(row)),
        ]));
    }
    let fault = |e| Error::fault("the key of a row in another location", e);
    let (time, group) = AggregateShape::split_partition_key(part).unwrap_or_default();
    let mut named = Map::new();
    for (shape, bytes) in [(job.group(), group), (job.row(), row)] {
        let values = shape.decode_values(bytes).map_err(fault)?;
        let names = shape.0.iter().map(|column| column.name.clone());
        named.extend(names.zip(values.iter().map(json_value::from_key)));
    }
    let time = json_value::from_key(&KeyValue::Time(time));
    named.insert("partition".to_owned(), time);
    Ok(named)
}

/// A stray as it is recorded. What can't be read may name anybody: it is known again by its hash.
pub(super) fn recorded(of: (&Job, Cause), key: &[u8]) -> Result<Map<String, Value>> {
    if of.1 != Cause::UnreadableRow {
        return named(of, key);
    }
    let hash = format!("{:016x}", xxh3_64(key));
    Ok(Map::from_iter([("unreadable".to_owned(), hash.into())]))
}

/// Places of rows, to be deleted.
#[derive(Debug, Default)]
pub(super) struct Places(Vec<(Vec<u8>, Vec<u8>)>);

impl Places {
    /// Notes a stray by the key by which it is compared.
    pub(super) fn add(&mut self, key: &[u8]) -> Result<()> {
        let (part, row) = place(key)?;
        self.0.push((part.to_vec(), row.to_vec()));
        Ok(())
    }

    /// All that were noted, so many at a time.
    pub(super) fn take(&mut self, rows_max: usize) -> Vec<RowKeys> {
        let places = std::mem::take(&mut self.0);
        let some = places.chunks(rows_max).map(|some| RowKeys {
            partitions: BinaryArray::from_iter_values(some.iter().map(|(part, _)| part)),
            rows: BinaryArray::from_iter_values(some.iter().map(|(_, row)| row)),
        });
        some.collect()
    }
}
