//! Batches of the log: how records are divided into them, and their encoding. A payload is an Arrow
//! IPC stream with one record batch of the columns `key` and `value`, compressed with LZ4.

use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, RecordBatch};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::ipc::{CompressionType, MetadataVersion};
use schemas::seam::Offset;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row};

use crate::log::{FetchLimit, NewRecords, Records};
use crate::{Error, Result};

/// The maximum number of records in a batch, so that a reader does not decode much more than it
/// requested.
const BATCH_RECORDS_MAX: usize = 10_000;

/// The maximum size of the values in a batch, unless a single value is larger.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Alignment of buffers. Events are small, so it is the smallest possible.
const ALIGNMENT_BYTES: usize = 8;

/// An encoded batch.
#[derive(Debug)]
pub(super) struct PackedBatch {
    pub(super) partition: u32,
    /// Number of records; zero only for an empty group.
    pub(super) records: i64,
    pub(super) value_bytes: i64,
    pub(super) crc: u32,
    pub(super) payload: Vec<u8>,
    /// True for the first batch of its group.
    pub(super) is_first: bool,
}

/// A batch as stored.
#[derive(Debug)]
pub(super) struct StoredBatch {
    pub(super) first_offset: Offset,
    pub(super) next_offset: Offset,
    pub(super) logged_at_ms: i64,
    pub(super) crc: i64,
    pub(super) payload: Vec<u8>,
}

impl FromRow<'_, SqliteRow> for StoredBatch {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            first_offset: row.try_get("first_offset")?,
            next_offset: row.try_get("next_offset")?,
            logged_at_ms: row.try_get("logged_at_ms")?,
            crc: row.try_get("crc")?,
            payload: row.try_get("payload")?,
        })
    }
}

/// Encodes groups as batches; those of a group are consecutive.
pub(super) fn pack(groups: &[NewRecords]) -> Result<Vec<PackedBatch>> {
    let broken = |error| Error::broken("encoding records for the log", error);
    let mut packed = Vec::with_capacity(groups.len());
    for group in groups {
        let (keys, values) = (&group.keys, &group.values);
        let nulls = keys.null_count() + values.null_count();
        if keys.len() != values.len() || nulls > 0 {
            return Err(Error::Refused(format!(
                "records for partition {} have {} keys and {} values, of which {nulls} are null; the \
                 numbers must be equal, without nulls",
                group.partition,
                keys.len(),
                values.len(),
            )));
        }
        for range in split_batches(values) {
            let keys = keys.slice(range.start, range.len());
            let values = values.slice(range.start, range.len());
            let payload = encode_payload(&keys, &values).map_err(broken)?;
            packed.push(PackedBatch {
                partition: group.partition,
                records: to_i64(range.len()),
                value_bytes: to_i64(value_bytes(&values)),
                crc: crc32fast::hash(&payload),
                payload,
                is_first: range.start == 0,
            });
        }
    }
    Ok(packed)
}

/// Divides records into batches. Returns at least one range, which is empty if there are no
/// records.
fn split_batches(values: &BinaryArray) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for record in 0..values.len() {
        let size = values.value(record).len();
        let is_full = record - from == BATCH_RECORDS_MAX || bytes + size > BATCH_BYTES_MAX;
        if is_full && record > from {
            ranges.push(from..record);
            (from, bytes) = (record, 0);
        }
        bytes += size;
    }
    ranges.push(from..values.len());
    ranges
}

/// Returns the total size of all values, in bytes.
pub(super) fn value_bytes(values: &BinaryArray) -> usize {
    let ends = values.value_offsets();
    match (ends.first(), ends.last()) {
        (Some(first), Some(last)) => to_usize(i64::from(last - first)),
        _ => 0,
    }
}

/// Converts a stored size. A negative one is damage, and becomes zero.
pub(super) fn to_usize(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

fn to_i64(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// Decodes the records from `from` on within the limit, or describes the damage.
pub(super) fn unpack(
    batches: &[StoredBatch],
    from: Offset,
    limit: FetchLimit,
) -> Result<Records, String> {
    let (mut keys, mut values) = (Vec::<ArrayRef>::new(), Vec::<ArrayRef>::new());
    let (mut offsets, mut times) = (Vec::new(), Vec::new());
    let mut bytes_left = limit.bytes;
    let mut offset = from;
    for batch in batches {
        let records = to_usize(batch.next_offset - batch.first_offset);
        let skip = to_usize(offset - batch.first_offset);
        if batch.first_offset > offset || batch.next_offset <= offset {
            return Err(format!("the records from offset {offset} are missing"));
        }
        let damage = |reason: &dyn std::fmt::Display| {
            format!(
                "the batch at offset {} is damaged: {reason}",
                batch.first_offset
            )
        };
        if i64::from(crc32fast::hash(&batch.payload)) != batch.crc {
            return Err(damage(&"its checksum does not match"));
        }
        let (batch_keys, batch_values) =
            decode_payload(&batch.payload).map_err(|error| damage(&error))?;
        if batch_keys.len() != records || batch_values.len() != records {
            return Err(damage(&"its number of records does not match"));
        }
        let records_left = limit.records - offsets.len();
        let ends = batch_values.value_offsets();
        let begin = ends.get(skip).copied().unwrap_or_default();
        let fits = |end: &i32| to_usize(i64::from(end - begin)) <= bytes_left;
        let fitting = ends
            .iter()
            .skip(skip + 1)
            .take_while(|end| fits(end))
            .count();
        let count = fitting
            .max(usize::from(offsets.is_empty()))
            .min(records_left);
        let end = ends.get(skip + count).copied().unwrap_or(begin);
        bytes_left = bytes_left.saturating_sub(to_usize(i64::from(end - begin)));
        keys.push(Arc::new(batch_keys.slice(skip, count)));
        values.push(Arc::new(batch_values.slice(skip, count)));
        times.resize(offsets.len() + count, batch.logged_at_ms);
        offsets.extend((offset..batch.next_offset).take(count));
        offset = batch.next_offset;
        if skip + count < records {
            break;
        }
    }
    Ok(Records {
        offsets: Int64Array::from(offsets),
        logged_at_ms: Int64Array::from(times),
        keys: concat_arrays(&keys)?,
        values: concat_arrays(&values)?,
    })
}

fn concat_arrays(arrays: &[ArrayRef]) -> Result<BinaryArray, String> {
    let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    match arrays.as_slice() {
        [] => Ok(BinaryArray::from_iter_values(std::iter::empty::<&[u8]>())),
        [array] => Ok(array.as_binary::<i32>().clone()),
        arrays => concat(arrays)
            .map(|joined| joined.as_binary::<i32>().clone())
            .map_err(|error| error.to_string()),
    }
}

/// Encodes keys and values.
fn encode_payload(keys: &BinaryArray, values: &BinaryArray) -> Result<Vec<u8>, ArrowError> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("key", DataType::Binary, false),
        Field::new("value", DataType::Binary, false),
    ]));
    let columns: Vec<ArrayRef> = vec![Arc::new(keys.clone()), Arc::new(values.clone())];
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns)?;
    let options = IpcWriteOptions::try_new(ALIGNMENT_BYTES, false, MetadataVersion::V5)?
        .try_with_compression(Some(CompressionType::LZ4_FRAME))?;
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options)?;
    writer.write(&batch)?;
    writer.finish()?;
    writer.into_inner()
}

/// Decodes keys and values.
fn decode_payload(payload: &[u8]) -> Result<(BinaryArray, BinaryArray), ArrowError> {
    let damage =
        || ArrowError::IpcError("the payload is not one batch of keys and values".to_owned());
    let mut reader = StreamReader::try_new(Cursor::new(payload), None)?;
    let batch = reader.next().ok_or_else(damage)??;
    let [keys, values] = batch.columns() else {
        return Err(damage());
    };
    match (keys.as_binary_opt::<i32>(), values.as_binary_opt::<i32>()) {
        (Some(keys), Some(values)) => Ok((keys.clone(), values.clone())),
        _ => Err(damage()),
    }
}
