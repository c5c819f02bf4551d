//! From the log to Parquet, a stretch of all partitions at a time.

use std::collections::BTreeMap;

use arrow::array::{AsArray, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::TimestampMicrosecondType;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use schemas::plays::{self, Decoder, Line};
use schemas::seam::{Cut, LastRecord, Offset};
use schemas::source::Source;
use schemas::time::day_of;
use stores::archive::Archive;
use stores::log::{FetchLimit, LogRead, Records};
use uuid::Uuid;

use super::ArchiveReport;
use super::manifest::{DayRows, Manifest, create, read_all};
use crate::{Error, Progress, Result};

/// Rows of one row group, at most.
const GROUP_ROWS_MAX: usize = 262_144;
const FETCH_RECORDS: usize = 50_000;
const FETCH_BYTES: usize = 32 * 1024 * 1024;

/// Copies one source's log into the archive.
pub(crate) struct Archiver<'a> {
    pub(crate) log: &'a dyn LogRead,
    pub(crate) archive: &'a Archive,
    pub(crate) source: Source,
    /// Events in one file, about.
    pub(crate) rows_max: usize,
}

/// A stretch of the log, decoded.
struct Stretch {
    from: Vec<Offset>,
    to: Vec<Cut>,
    events: Vec<RecordBatch>,
    rejected: u64,
}

impl Archiver<'_> {
    /// Archives everything below `targets` (a position for each partition) that is not archived
    /// yet.
    pub(crate) async fn up_to(
        &self,
        targets: &[Offset],
        progress: &dyn Progress,
    ) -> Result<ArchiveReport> {
        let mut report = ArchiveReport::default();
        loop {
            let manifests = read_all(self.archive, self.source).await?;
            let seq = u64::try_from(manifests.len()).unwrap_or(u64::MAX);
            let mut from = manifests.last().map(|m| m.to.clone()).unwrap_or_default();
            from.resize(targets.len().max(from.len()), Cut::start());
            let behind = |(at, target): (&Cut, &Offset)| at.next_offset < *target;
            if !from.iter().zip(targets).any(behind) {
                return Ok(report);
            }
            let stretch = self.read(from, targets).await?;
            let rows: usize = stretch.events.iter().map(RecordBatch::num_rows).sum();
            let rejected = stretch.rejected;
            let name = format!(
                "archive/{}/data/{seq:010}-{}.parquet",
                self.source,
                Uuid::new_v4()
            );
            let (manifest, file) = write_file(seq, name, stretch).await?;
            if let (Some(path), Some(bytes)) = (&manifest.file, file) {
                self.archive.put(path, bytes).await?;
            }
            if create(self.archive, self.source, &manifest).await? {
                report.events += u64::try_from(rows).unwrap_or(u64::MAX);
                report.rejected += rejected;
                report.files += u64::from(manifest.file.is_some());
                progress.advance(u64::try_from(rows).unwrap_or(u64::MAX));
            } else if let Some(path) = &manifest.file {
                // Another archiver was first; what it wrote counts.
                self.archive.delete(path).await?;
            }
        }
    }

    /// Reads on in every partition, evenly, until there is enough for a file.
    async fn read(&self, from: Vec<Cut>, targets: &[Offset]) -> Result<Stretch> {
        let share = self.rows_max / targets.len().max(1) + 1;
        let mut stretch = Stretch {
            from: from.iter().map(|cut| cut.next_offset).collect(),
            to: from,
            events: Vec::new(),
            rejected: 0,
        };
        for (partition, target) in targets.iter().enumerate() {
            let mut taken = 0;
            while let Some(at) = stretch.to.get(partition).copied()
                && at.next_offset < *target
                && taken < share
            {
                let number = u32::try_from(partition).map_err(|e| Error::fault("partition", e))?;
                let (next, records) = self.fetch(number, at.next_offset, *target).await?;
                if next == at.next_offset {
                    let what = format!(
                        "{}/{partition}: the log ends at {next}, before the cut at {target}; was it made again?",
                        self.source.topic()
                    );
                    return Err(Error::Request(what));
                }
                taken += records.len();
                let last = last_record(&records).or(at.last);
                let decoded = decode(number, records).await?;
                stretch.rejected += u64::try_from(decoded.rejected.len()).unwrap_or(u64::MAX);
                stretch.events.push(decoded.events);
                if let Some(to) = stretch.to.get_mut(partition) {
                    *to = Cut {
                        next_offset: next,
                        last,
                    };
                }
            }
        }
        Ok(stretch)
    }

    async fn fetch(
        &self,
        partition: u32,
        from: Offset,
        target: Offset,
    ) -> Result<(Offset, Records)> {
        let limit = FetchLimit {
            records: FETCH_RECORDS,
            bytes: FETCH_BYTES,
        };
        let topic = self.source.topic();
        let fetched = self.log.fetch(topic, partition, from, limit).await?;
        if fetched.next_offset <= target {
            return Ok((fetched.next_offset, fetched.records));
        }
        let offsets = fetched.records.offsets.values();
        let below = offsets.partition_point(|offset| *offset < target);
        Ok((target, fetched.records.slice(0, below)))
    }
}

fn last_record(records: &Records) -> Option<LastRecord> {
    let index = records.len().checked_sub(1)?;
    Some(LastRecord {
        offset: records.offsets.value(index),
        checksum: records.checksum(index),
        logged_at_ms: records.logged_at_ms.value(index),
    })
}

async fn decode(partition: u32, records: Records) -> Result<plays::Decoded> {
    let work = move || {
        let lines = (0..records.len()).map(|index| Line {
            offset: records.offsets.value(index),
            logged_at_ms: records.logged_at_ms.value(index),
            bytes: records.values.value(index),
        });
        Decoder::new(partition).decode(lines)
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Error::fault("decoding ended", e))?
        .map_err(|e| Error::fault("decoding", e))
}

/// The Parquet file of a stretch, sorted by day and then as in the log, and its manifest.
async fn write_file(seq: u64, name: String, stretch: Stretch) -> Result<(Manifest, Option<Bytes>)> {
    let work = move || {
        let (bytes, days) =
            encode(&stretch.events).map_err(|e| Error::fault("writing Parquet", e))?;
        let manifest = Manifest {
            seq,
            from: stretch.from,
            to: stretch.to,
            file: bytes.is_some().then_some(name),
            days,
            rejected: stretch.rejected,
        };
        Ok((manifest, bytes))
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Error::fault("writing Parquet ended", e))?
}

type Encoded = (Option<Bytes>, BTreeMap<i64, DayRows>);

fn encode(events: &[RecordBatch]) -> Result<Encoded, parquet::errors::ParquetError> {
    let events = concat_batches(&plays::schema(), events)?;
    if events.num_rows() == 0 {
        return Ok((None, BTreeMap::new()));
    }
    let mut by_day: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    if let Some(at) = events.column_by_name("at") {
        let at = at.as_primitive::<TimestampMicrosecondType>().values();
        for (row, micros) in (0_u32..).zip(at.iter()) {
            by_day
                .entry(day_of(micros.div_euclid(1_000_000)))
                .or_default()
                .push(row);
        }
    }
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_max_row_group_row_count(Some(GROUP_ROWS_MAX))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), plays::schema(), Some(properties))?;
    let mut days = BTreeMap::new();
    for (day, rows) in by_day {
        let first = writer.flushed_row_groups().len();
        let count = rows.len() as u64;
        writer.write(&take_record_batch(&events, &UInt32Array::from(rows))?)?;
        writer.flush()?;
        let row_groups = first..writer.flushed_row_groups().len();
        days.insert(
            day,
            DayRows {
                row_groups,
                rows: count,
            },
        );
    }
    Ok((Some(Bytes::from(writer.into_inner()?)), days))
}
