//! Files of events that were let go: in the place of each one stays which events it held, as hashes of
//! 16 bytes by day. What the events count is in the results, which stay; with the hashes a record that comes later for such
//! a day is still told from one that repeats an event. What would need the events themselves is refused.
//!
//! The record of a file is there, durably, before the file goes, and both names follow from the file's: whoever
//! does the same at the same time writes the same. A file that is there counts, whatever is recorded:
//! who puts one back from a copy has its events again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeBinaryArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use schemas::plays::identities;
use schemas::seam::{Cut, Offset};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, StoredObject};

use super::manifest::{DayRows, Manifest, READS, data_folder};
use super::merged::merged_folder;
use super::scrub::{record, scrubbed_folder};
use super::write::encode_days;
use crate::manifest_file::{read_listed, to_bytes};
use crate::{Error, Result};

const BATCH_ROWS: usize = 32_768;
const HASH_BYTES: i32 = 16;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let hash = Field::new("identity", DataType::FixedSizeBinary(HASH_BYTES), false);
    Arc::new(Schema::new(vec![hash]))
});

/// What stays of a file that was let go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reduced {
    /// The file of events.
    pub(crate) file: String,
    /// The file of hashes.
    pub(crate) identities: String,
    /// By UTC day: where the hashes of its events are.
    pub(crate) days: BTreeMap<i64, DayRows>,
    /// How many bytes the file of events had.
    pub(crate) bytes: u64,
    /// When it was let go, in milliseconds since the Unix epoch.
    pub(crate) at_ms: i64,
}

/// The days of which the archive has not all events any more, and what it has of them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ReducedDays {
    /// By day: files of hashes and their row groups.
    days: BTreeMap<i64, Vec<(String, Vec<usize>)>>,
    /// Stretches of the log whose files are gone.
    gone: Vec<Manifest>,
}

impl ReducedDays {
    /// Whether events of a day are gone.
    pub(crate) fn contains(&self, day: i64) -> bool {
        self.days.contains_key(&day)
    }

    /// The first day of which events are gone, and the last one.
    pub(crate) fn bounds(&self) -> Option<(i64, i64)> {
        let first = self.days.first_key_value()?;
        let last = self.days.last_key_value()?;
        Some((*first.0, *last.0))
    }

    /// The first of some days of which events are gone, and the last one.
    pub(crate) fn within(&self, is_among: impl Fn(i64) -> bool) -> Option<(i64, i64)> {
        let mut days = self.days.keys().copied().filter(|day| is_among(*day));
        let first = days.next()?;
        Some((first, days.next_back().unwrap_or(first)))
    }

    /// Whether an event is gone that no result below these cuts holds.
    pub(crate) fn reaches_beyond(&self, since: &[Cut], cuts: &[Cut]) -> bool {
        self.gone
            .iter()
            .any(|manifest| manifest.overlaps(since, cuts))
    }

    /// The hashes of the events of some days that are gone.
    pub(crate) fn files(&self, days: &[i64]) -> Vec<(String, Vec<usize>)> {
        let mut files: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (path, groups) in days.iter().filter_map(|day| self.days.get(day)).flatten() {
            files.entry(path).or_default().extend(groups);
        }
        files
            .into_iter()
            .map(|(path, groups)| (path.to_owned(), groups))
            .collect()
    }
}

/// What is to be read of manifests: the files that stand in the place of those that somebody was taken out of,
/// without those that were let go; and which days are not whole any more.
pub(crate) async fn take_reduced(
    archive: &Archive,
    source: Source,
    manifests: Vec<Manifest>,
) -> Result<(Vec<Manifest>, ReducedDays)> {
    let mut manifests = record(archive, source).await?.applied(manifests);
    let records = read_all(archive, source).await?;
    let mut reduced = ReducedDays::default();
    if records.is_empty() {
        return Ok((manifests, reduced));
    }
    let present = event_files(archive, source).await?;
    for manifest in &mut manifests {
        let Some(path) = &manifest.file else { continue };
        if present.contains(path) {
            continue;
        }
        // A file that is missing and was not let go is lost: who reads it says so.
        let Some(record) = records.get(path) else {
            continue;
        };
        for (day, rows) in &record.days {
            let groups = rows.row_groups.clone().collect();
            let of_day = reduced.days.entry(*day).or_default();
            of_day.push((record.identities.clone(), groups));
        }
        manifest.file = None;
        reduced.gone.push(manifest.clone());
    }
    Ok((manifests, reduced))
}

/// The first and the last day of which events were let go. Without any, results can be made anew.
pub(crate) async fn reduced_days(archive: &Archive, source: Source) -> Result<Option<(i64, i64)>> {
    if archive.list(&records_folder(source)).await?.is_empty() {
        return Ok(None);
    }
    // A record alone says nothing: another file may stand in the place of the one that was let go.
    let (_, mut manifests) = super::backfilled(archive, source).await?;
    manifests.extend(super::manifest::read_all(archive, source).await?);
    let (_, reduced) = take_reduced(archive, source, manifests).await?;
    Ok(reduced.bounds())
}

/// Where files of events are.
fn event_folders(source: Source) -> [String; 4] {
    [
        data_folder(source),
        merged_folder(source),
        super::backfill::data_folder(source),
        scrubbed_folder(source),
    ]
}

/// The files of events that are there, by their paths.
pub(crate) async fn event_objects(
    archive: &Archive,
    source: Source,
) -> Result<BTreeMap<String, StoredObject>> {
    let mut objects = BTreeMap::new();
    for folder in event_folders(source) {
        let found = archive.objects(&folder).await?.into_iter();
        objects.extend(found.map(|object| (object.path.clone(), object)));
    }
    Ok(objects)
}

/// The files of events that are there: those of the log, those of backfills, and those that stand for others.
pub(crate) async fn event_files(archive: &Archive, source: Source) -> Result<BTreeSet<String>> {
    let mut present: BTreeSet<String> = BTreeSet::new();
    for folder in event_folders(source) {
        present.extend(archive.list(&folder).await?);
    }
    Ok(present)
}

/// What was let go, by the file of events.
pub(crate) async fn read_all(
    archive: &Archive,
    source: Source,
) -> Result<BTreeMap<String, Reduced>> {
    let paths = archive.list(&records_folder(source)).await?;
    let read = async |path: String| {
        let record: Reduced = read_listed(archive, &path).await?;
        Ok::<_, Error>((record.file.clone(), record))
    };
    futures::stream::iter(paths)
        .map(read)
        .buffered(READS)
        .try_collect()
        .await
}

/// Writes down durably which events a file holds, so that it may go. Nothing is deleted.
///
/// # Errors
/// Those of the archive, and [`Error::Damaged`] if what was written does not read as it should.
pub(crate) async fn write_identities(
    archive: &Archive,
    source: Source,
    manifest: &Manifest,
    (path, bytes, at_ms): (&str, u64, i64),
) -> Result<Reduced> {
    let mut by_day = BTreeMap::new();
    for (day, rows) in &manifest.days {
        let groups = rows.row_groups.clone().collect();
        let batches = archive.rows(path, groups, BATCH_ROWS).await?;
        let hashes: Vec<Vec<u128>> = batches
            .map_ok(|batch| identities(&batch))
            .try_collect()
            .await?;
        let hashes = hashes.concat();
        if hashes.len() as u64 != rows.rows {
            let what = "it holds another number of events than its manifest says";
            return Err(Error::damaged(path, what));
        }
        by_day.insert(*day, hashes);
    }
    let stem = stem_of(path);
    let identities = format!("{}/{stem}.parquet", identities_folder(source));
    let encoded = tokio::task::spawn_blocking(move || encode(&by_day)).await;
    let encoded = encoded.map_err(|e| Error::fault("writing Parquet ended", e))?;
    let (encoded, days) = encoded.map_err(|e| Error::fault("writing Parquet", e))?;
    archive.put(&identities, encoded).await?;
    let record = Reduced {
        file: path.to_owned(),
        identities,
        days,
        bytes,
        at_ms,
    };
    verify(archive, &record, manifest).await?;
    let at = format!("{}/{stem}.json", records_folder(source));
    archive.put(&at, to_bytes(&record)?).await?;
    Ok(record)
}

/// Reads the hashes back: after the file of events is gone nothing else has them.
async fn verify(archive: &Archive, record: &Reduced, manifest: &Manifest) -> Result<()> {
    for (day, rows) in &manifest.days {
        let written = record.days.get(day);
        let groups = written.map(|rows| rows.row_groups.clone());
        let groups = groups.unwrap_or_default().collect();
        let batches = archive.rows(&record.identities, groups, BATCH_ROWS).await?;
        let found: Vec<usize> = batches
            .map_ok(|batch| batch.num_rows())
            .try_collect()
            .await?;
        if found.iter().sum::<usize>() as u64 != rows.rows {
            let what = "it was just written, and does not hold what was written";
            return Err(Error::damaged(&record.identities, what));
        }
    }
    Ok(())
}

fn encode(
    by_day: &BTreeMap<i64, Vec<u128>>,
) -> Result<(Bytes, BTreeMap<i64, DayRows>), parquet::errors::ParquetError> {
    let rows = |hashes: &Vec<u128>| {
        let bytes = hashes.iter().map(|hash| hash.to_le_bytes());
        let column: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter(bytes)?);
        RecordBatch::try_new(Arc::clone(&SCHEMA), vec![column])
    };
    let of_days = by_day.iter().map(|(day, hashes)| (*day, rows(hashes)));
    encode_days(Arc::clone(&SCHEMA), of_days)
}

/// The hashes of a batch of a file of hashes; nothing of a batch of another file.
pub(super) fn hashes(batch: &RecordBatch) -> Option<Vec<u128>> {
    if batch.schema_ref().fields() != SCHEMA.fields() {
        return None;
    }
    let column = batch.column(0).as_fixed_size_binary();
    let hashes = (0..column.len()).map(|row| <[u8; 16]>::try_from(column.value(row)).ok());
    hashes.map(|hash| hash.map(u128::from_le_bytes)).collect()
}

/// By partition, where the stretch ends that a result holds.
pub(crate) fn offsets(cuts: &[Cut]) -> Vec<Offset> {
    cuts.iter().map(|cut| cut.next_offset).collect()
}

/// A day, from that of the Unix epoch on, as people write it.
pub(crate) fn shown_day(day: i64) -> String {
    let at = jiff::Timestamp::from_second(day.saturating_mul(86_400));
    at.map_or_else(
        |_| format!("day {day}"),
        |at| at.strftime("%Y-%m-%d").to_string(),
    )
}

fn stem_of(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.trim_end_matches(".parquet")
}

/// Where it is written what was let go.
pub(crate) fn records_folder(source: Source) -> String {
    format!("archive/{source}/reduced/manifests")
}

/// Where hashes are.
pub(crate) fn identities_folder(source: Source) -> String {
    format!("archive/{source}/reduced/identities")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_come_back() {
        let by_day = BTreeMap::from([(-3, vec![1, u128::MAX]), (20_000, vec![7])]);
        let (bytes, days) = encode(&by_day).expect("a file");
        let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(bytes);
        let reader = reader.expect("a file").build().expect("a reader");
        let found: Vec<u128> = reader
            .flat_map(|batch| hashes(&batch.expect("rows")).expect("hashes"))
            .collect();
        assert_eq!(found, [1, u128::MAX, 7]);
        let rows: Vec<(i64, u64)> = days.iter().map(|(day, rows)| (*day, rows.rows)).collect();
        assert_eq!(rows, [(-3, 2), (20_000, 1)]);
    }

    #[test]
    fn names_follow_from_the_file() {
        assert_eq!(
            stem_of("archive/plays/data/0000000001-a.parquet"),
            "0000000001-a"
        );
    }
}
