//! Expiry of event files. An expired file is replaced by the identities of its events, which are
//! hashes of 16 bytes, by day.
//!
//! Results still count these events, and the identities distinguish a late record from a repeated
//! one. Work that needs the events themselves is refused. An expired file that is restored from a
//! copy counts again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeBinaryArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use futures::TryStreamExt;
use schemas::plays::event_identities;
use schemas::seam::{Cut, Offset};
use schemas::source::Source;
use stores::archive::Archive;

use super::file_entry::{DayRows, ExpiredFile, FileEntry};
use super::version::Version;
use super::write::encode_days;
use crate::{Error, Result};

const BATCH_ROWS: usize = 32_768;
const HASH_BYTES: i32 = 16;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let hash = Field::new("identity", DataType::FixedSizeBinary(HASH_BYTES), false);
    Arc::new(Schema::new(vec![hash]))
});

/// Replaces event files, given with their sizes in bytes, by the identities of their events, in one
/// new version. Skips files that are no longer listed, and does nothing if the number of backfills
/// is not `backfills`. Returns the paths of the replaced files, which the caller deletes.
///
/// # Errors
/// Errors of the archive, and [`Error::Damaged`] if a file does not match its entry.
pub(crate) async fn expire(
    archive: &Archive,
    source: Source,
    files: &BTreeMap<String, u64>,
    backfills: u64,
    now_ms: i64,
) -> Result<BTreeSet<String>> {
    loop {
        let newest = Version::read_newest(archive, source).await?;
        let mut next = newest.next(now_ms);
        let (mut replaced, mut written) = (BTreeSet::new(), Vec::new());
        if newest.backfills != backfills {
            return Ok(replaced);
        }
        for index in 0..newest.files.len() {
            let Some(file) = newest.files.get(index) else {
                break;
            };
            let Some((path, size_bytes)) = file
                .path
                .as_ref()
                .and_then(|path| files.get_key_value(path))
            else {
                continue;
            };
            let identities = next.new_identities_path(source);
            let days = write_identities(archive, file, path, &identities).await?;
            written.push(identities.clone());
            if let Some(entry) = next.files.get_mut(index) {
                entry.expired = Some(ExpiredFile {
                    identities,
                    days,
                    size_bytes: *size_bytes,
                    at_ms: now_ms,
                });
                replaced.insert(path.clone());
            }
        }
        if written.is_empty() || newest.commit(archive, source, &next).await? {
            return Ok(replaced);
        }
        Version::discard(archive, source, written).await?;
    }
}

/// Writes the identities of a file's events, by day, and verifies them by reading them back: they
/// are the only copy once the file is deleted.
async fn write_identities(
    archive: &Archive,
    file: &FileEntry,
    path: &str,
    target: &str,
) -> Result<BTreeMap<i64, DayRows>> {
    let mut by_day = BTreeMap::new();
    for (day, rows) in &file.days {
        let groups = rows.row_groups.clone().collect();
        let batches = archive.read_rows(path, groups, BATCH_ROWS).await?;
        let hashes = batches.map_ok(|batch| event_identities(&batch));
        let hashes: Vec<Vec<u128>> = hashes.try_collect().await?;
        let hashes = hashes.concat();
        if hashes.len() as u64 != rows.rows {
            let damage = "its number of events differs from its entry";
            return Err(Error::damaged(path, damage));
        }
        by_day.insert(*day, hashes);
    }
    let encoded = tokio::task::spawn_blocking(move || encode(&by_day)).await;
    let encoded = encoded.map_err(|e| Error::fault("the Parquet writer task failed", e))?;
    let (encoded, days) = encoded.map_err(|e| Error::fault("writing Parquet", e))?;
    archive.put(target, encoded).await?;
    for (day, rows) in &file.days {
        let groups = days.get(day).map(|rows| rows.row_groups.clone());
        let groups = groups.unwrap_or_default().collect();
        let batches = archive.read_rows(target, groups, BATCH_ROWS).await?;
        let counts = batches.map_ok(|batch| batch.num_rows());
        let counts: Vec<usize> = counts.try_collect().await?;
        if counts.iter().sum::<usize>() as u64 != rows.rows {
            let damage = "its content differs from the data just written";
            return Err(Error::damaged(target, damage));
        }
    }
    Ok(days)
}

fn encode(
    by_day: &BTreeMap<i64, Vec<u128>>,
) -> Result<(Bytes, BTreeMap<i64, DayRows>), parquet::errors::ParquetError> {
    let rows = |hashes: &Vec<u128>| {
        let bytes = hashes.iter().map(|hash| hash.to_le_bytes());
        let column: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter(bytes)?);
        RecordBatch::try_new(Arc::clone(&SCHEMA), vec![column])
    };
    let batches = by_day.iter().map(|(day, hashes)| (*day, rows(hashes)));
    encode_days(Arc::clone(&SCHEMA), batches)
}

/// Returns the identities in a batch; `None` if it is not from a file of identities.
pub(super) fn read_identity_hashes(batch: &RecordBatch) -> Option<Vec<u128>> {
    if batch.schema_ref().fields() != SCHEMA.fields() {
        return None;
    }
    let column = batch.column(0).as_fixed_size_binary();
    let hashes = (0..column.len()).map(|row| <[u8; 16]>::try_from(column.value(row)).ok());
    hashes.map(|hash| hash.map(u128::from_le_bytes)).collect()
}

/// Returns the offsets of cuts, by partition.
pub(crate) fn cut_offsets(cuts: &[Cut]) -> Vec<Offset> {
    cuts.iter().map(|cut| cut.next_offset).collect()
}

/// Formats a day since the Unix epoch as a date.
pub(crate) fn format_day(day: i64) -> String {
    let time = jiff::Timestamp::from_second(day.saturating_mul(86_400));
    time.map_or_else(
        |_| format!("day {day}"),
        |time| time.strftime("%Y-%m-%d").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_round_trip_through_parquet() {
        let by_day = BTreeMap::from([(-3, vec![1, u128::MAX]), (20_000, vec![7])]);
        let (bytes, days) = encode(&by_day).expect("a file");
        let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(bytes);
        let reader = reader.expect("a file").build().expect("a reader");
        let hashes: Vec<u128> = reader
            .flat_map(|batch| read_identity_hashes(&batch.expect("rows")).expect("hashes"))
            .collect();
        assert_eq!(hashes, [1, u128::MAX, 7]);
        let rows: Vec<(i64, u64)> = days.iter().map(|(day, rows)| (*day, rows.rows)).collect();
        assert_eq!(rows, [(-3, 2), (20_000, 1)]);
    }
}
