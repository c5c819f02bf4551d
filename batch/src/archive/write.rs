//! The archiver: copies the log to Parquet files, an offset range of all partitions at a time.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use arrow::array::{AsArray, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{SchemaRef, TimestampMicrosecondType};
use arrow::error::ArrowError;
use bytes::Bytes;
use parquet::errors::ParquetError;
use schemas::avro::{WriterSchemas, is_framed};
use schemas::clock::Clock;
use schemas::plays::{self, Decoder, Line};
use schemas::seam::{Cut, LastRecord, Offset};
use schemas::source::Source;
use schemas::time::utc_day;
use stores::archive::Archive;
use stores::dead_letters;
use stores::erasures::Suppressions;
use stores::log::{FetchLimit, LogIdentityVerifier, LogRead, Records};
use stores::parquet_file;
use stores::registry::{SchemaSource, read_writer_schemas};
use tokio_util::sync::CancellationToken;

use super::file_entry::{DayRows, FileEntry};
use super::version::Version;
use super::{ArchiveReport, remove_listeners};
use crate::error::lost_log_error;
use crate::{BatchPorts, Error, Progress, Result};

/// Maximum rows of a row group.
pub(super) const GROUP_ROWS_MAX: usize = 262_144;
const FETCH_RECORDS: usize = 50_000;
const FETCH_BYTES: usize = 32 * 1024 * 1024;

/// The approximate size of an archive file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileSize {
    /// Maximum number of events.
    pub(crate) rows_max: usize,
    /// Maximum bytes of their records.
    pub(crate) bytes_max: usize,
}

/// Copies the log of one source into the archive.
pub(crate) struct Archiver<'a> {
    log: &'a dyn LogRead,
    archive: &'a Archive,
    schemas: &'a dyn SchemaSource,
    suppressions: &'a Suppressions,
    source: Source,
    size: FileSize,
    clock: &'a dyn Clock,
    /// The newest known version.
    version: Version,
    /// Verify the log's identity, by partition.
    verifiers: Vec<LogIdentityVerifier>,
}

/// A decoded offset range of the log.
struct DecodedRange {
    from: Vec<Offset>,
    to: Vec<Cut>,
    /// By partition: the record that identifies the log, which is the last one before the range or
    /// else its first one.
    known: Vec<Option<LastRecord>>,
    /// By partition with Avro records: the offsets that became dead letters.
    dead_letters: BTreeMap<u32, BTreeSet<Offset>>,
    events: Vec<RecordBatch>,
    rejected: u64,
    /// The newest erasure of a listener that was applied to the events.
    suppressed: u64,
}

impl<'a> Archiver<'a> {
    /// Opens an archiver that continues at the end of the archive.
    pub(crate) async fn open(
        ports: &'a BatchPorts,
        source: Source,
        size: FileSize,
    ) -> Result<Self> {
        Ok(Self {
            log: &*ports.log,
            archive: &ports.archive,
            schemas: &*ports.schemas,
            suppressions: &ports.suppressions,
            source,
            size,
            clock: &*ports.clock,
            version: Version::read_newest(&ports.archive, source).await?,
            verifiers: Vec::new(),
        })
    }

    /// Returns the newest known version.
    pub(crate) const fn version(&self) -> &Version {
        &self.version
    }

    /// Rewrites a file from the log, without erased listeners.
    ///
    /// # Errors
    /// [`Error::Request`] if the version does not list the file as part of the log, or if the log
    /// is another one or has other events.
    pub(crate) async fn rewrite_file(&mut self, path: &str) -> Result<()> {
        self.verify_log().await?;
        let files = self.version.log_files();
        let is_requested = |file: &FileEntry| file.path.as_deref() == Some(path);
        let index = files.iter().position(is_requested);
        let Some((index, file)) = index.and_then(|index| Some((index, files.get(index)?.clone())))
        else {
            return Err(Error::Request(
                "it is not a listed file of the log".to_owned(),
            ));
        };
        let targets: Vec<Offset> = file.to.iter().map(|cut| cut.next_offset).collect();
        // A partition without records in this file ends as in the previous file.
        let previous = index.checked_sub(1).and_then(|index| files.get(index));
        let last = |partition: usize| previous.and_then(|file| file.to.get(partition)?.last);
        let from = (0..targets.len()).map(|partition| Cut {
            next_offset: file.from.get(partition).copied().unwrap_or(0),
            last: last(partition),
        });
        let unlimited = FileSize {
            rows_max: usize::MAX,
            bytes_max: usize::MAX,
        };
        let range = self.read(from.collect(), &targets, unlimited).await;
        let range = range.map_err(|error| match error {
            Error::Store(stores::Error::OffsetOutOfRange { start, .. }) => Error::Request(format!(
                "the log no longer has its records: it begins at offset {start} now, because of its retention or an erasure. Restore the file from a copy"
            )),
            error => error,
        })?;
        let (rewritten, bytes) = encode_range(range).await?;
        let lasts = |file: &FileEntry| -> Vec<_> { file.to.iter().map(|cut| cut.last).collect() };
        let is_same = rewritten.days == file.days && lasts(&rewritten) == lasts(&file);
        match bytes {
            Some(bytes) if is_same => Ok(self.archive.put(path, bytes).await?),
            _ => Err(Error::Request(
                "the log has other events at these offsets; restore the file from a copy"
                    .to_owned(),
            )),
        }
    }

    /// Returns how many offsets below `targets` (one for each partition) are not archived yet.
    pub(crate) fn lag(&self, targets: &[Offset]) -> u64 {
        let ends = self.archived_ends(targets.len());
        let missing = ends.iter().zip(targets).map(|(end, target)| {
            let missing = target.saturating_sub(end.next_offset);
            u64::try_from(missing).unwrap_or(0)
        });
        missing.sum()
    }

    /// Archives everything below `targets`. After `stop` is cancelled, only the file in progress is
    /// finished. A `last` record of a target must be in the log.
    ///
    /// # Errors
    /// [`Error::Request`] if the log is not the one that was archived before. Then nothing is
    /// written.
    pub(crate) async fn archive_up_to(
        &mut self,
        targets: &[Cut],
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<ArchiveReport> {
        let cuts = targets;
        let targets: Vec<Offset> = cuts.iter().map(|cut| cut.next_offset).collect();
        self.verify_log().await?;
        let mut report = ArchiveReport::default();
        while self.lag(&targets) > 0 && !stop.is_cancelled() {
            let from = self.archived_ends(targets.len());
            let range = self.read(from, &targets, self.size).await?;
            // The log may have been recreated meanwhile, even during the read.
            let known = cuts.iter().zip(&range.known);
            let known: Vec<_> = known.map(|(cut, known)| cut.last.or(*known)).collect();
            self.verify_records(&known).await?;
            let (entry, bytes) = encode_range(range).await?;
            let (events, rejected) = (entry.rows(), entry.rejected);
            if self.append(entry, bytes.as_ref()).await? {
                report.events += events;
                report.rejected += rejected;
                report.files += u64::from(bytes.is_some());
                progress.advance(events + rejected);
            }
        }
        Ok(report)
    }

    /// Adds an entry and its file in a new version. Returns false if the archive no longer ends
    /// where the entry begins: another archiver was faster, or the archive is another one.
    async fn append(&mut self, mut entry: FileEntry, bytes: Option<&Bytes>) -> Result<bool> {
        loop {
            let mut next = self.version.next(self.clock.now_ms());
            entry.path = bytes.map(|_| next.new_file_path(self.source));
            if let (Some(path), Some(bytes)) = (&entry.path, bytes) {
                self.archive.put(path, bytes.clone()).await?;
            }
            next.files.push(entry.clone());
            if self
                .version
                .commit(self.archive, self.source, &next)
                .await?
            {
                self.version = next;
                return Ok(true);
            }
            let written = entry.path.take();
            self.version = Version::discard(self.archive, self.source, written).await?;
            let end = self.archived_ends(entry.from.len());
            let end = end.iter().map(|cut| cut.next_offset);
            let suppressed = self.suppressions.current().await?.newest_listener();
            // After a new erasure, the file may name its listener.
            if suppressed != entry.redacted_through || !end.eq(entry.from.iter().copied()) {
                self.verifiers.clear();
                return Ok(false);
            }
        }
    }

    /// Returns the end of the archived log in at least `partitions` partitions.
    fn archived_ends(&self, partitions: usize) -> Vec<Cut> {
        let mut ends = self.version.end().to_vec();
        ends.resize(partitions.max(ends.len()), Cut::start());
        ends
    }

    /// Verifies that the log still has the last archived records. Otherwise its offsets would
    /// identify other events than the archived ones.
    ///
    /// # Errors
    /// [`Error::Request`] if the log is another one.
    pub(crate) async fn verify_log(&mut self) -> Result<()> {
        let lasts: Vec<_> = self.archived_ends(0).iter().map(|end| end.last).collect();
        self.verify_records(&lasts).await
    }

    /// Verifies that the log has these records, by partition.
    async fn verify_records(&mut self, known: &[Option<LastRecord>]) -> Result<()> {
        let topic = self.source.topic();
        let partitions = known.len().max(self.verifiers.len());
        self.verifiers
            .resize_with(partitions, LogIdentityVerifier::default);
        let known = known.iter().zip(&mut self.verifiers);
        for (partition, (known, verifier)) in (0_u32..).zip(known) {
            let Some(known) = *known else { continue };
            let verified = verifier.verify(self.log, topic, partition, known);
            let other = match verified.await {
                Ok(Ok(())) => continue,
                Ok(Err(other)) => other.to_string(),
                Err(stores::Error::Refused(reason)) => reason,
                Err(error) => return Err(error.into()),
            };
            return Err(lost_log_error(format!(
                "the archive was written from another log than {topic}/{partition}: {other}. Nothing was archived"
            )));
        }
        Ok(())
    }

    /// Reads every partition evenly until there is enough for a file.
    async fn read(
        &self,
        from: Vec<Cut>,
        targets: &[Offset],
        size: FileSize,
    ) -> Result<DecodedRange> {
        let partitions = targets.len().max(1);
        let rows_max = (size.rows_max / partitions).saturating_add(1);
        let bytes_max = (size.bytes_max / partitions).saturating_add(1);
        let suppressed = self.suppressions.current().await?;
        let mut range = DecodedRange {
            from: from.iter().map(|cut| cut.next_offset).collect(),
            known: from.iter().map(|cut| cut.last).collect(),
            to: from,
            dead_letters: BTreeMap::new(),
            events: Vec::new(),
            rejected: 0,
            suppressed: suppressed.newest_listener(),
        };
        for (partition, target) in targets.iter().enumerate() {
            let (mut rows, mut bytes) = (0, 0);
            while let Some(position) = range.to.get(partition).copied()
                && position.next_offset < *target
                && rows < rows_max
                && bytes < bytes_max
            {
                let number = u32::try_from(partition).map_err(|e| Error::fault("partition", e))?;
                let offsets = position.next_offset..*target;
                let (next, records) = self.fetch(number, offsets, bytes_max).await?;
                if next == position.next_offset {
                    return Err(lost_log_error(format!(
                        "{}/{partition}: the log ends at offset {next}, before the cut at {target}: records were lost, or the topic was recreated",
                        self.source.topic()
                    )));
                }
                rows += records.len();
                bytes += records.value_bytes();
                let last = records.last().or(position.last);
                if let Some(known) = range.known.get_mut(partition) {
                    *known = known.or(records.first());
                }
                let decoded = self.decode(number, records, &mut range.dead_letters);
                let (decoded, excluded) = decoded.await?;
                range.rejected += (decoded.rejected.len() + excluded) as u64;
                range
                    .events
                    .push(remove_listeners(&suppressed, decoded.events));
                if let Some(to) = range.to.get_mut(partition) {
                    *to = Cut {
                        next_offset: next,
                        last,
                    };
                }
            }
        }
        Ok(range)
    }

    async fn fetch(
        &self,
        partition: u32,
        offsets: Range<Offset>,
        bytes_max: usize,
    ) -> Result<(Offset, Records)> {
        let limit = FetchLimit {
            records: FETCH_RECORDS,
            bytes: FETCH_BYTES.min(bytes_max),
        };
        let (from, target) = (offsets.start, offsets.end);
        let topic = self.source.topic();
        let fetched = self.log.fetch(topic, partition, from, limit).await?;
        if fetched.next_offset <= target {
            return Ok((fetched.next_offset, fetched.records));
        }
        let offsets = fetched.records.offsets.values();
        let below = offsets.partition_point(|offset| *offset < target);
        Ok((target, fetched.records.slice(0, below)))
    }

    /// Decodes records, and returns the events and the number of records left out. The speed layer,
    /// which is ahead, decides which Avro records count: a record that it could not read stays a
    /// dead letter, even if the registry knows the schema by now.
    async fn decode(
        &self,
        partition: u32,
        records: Records,
        dead_letters: &mut BTreeMap<u32, BTreeSet<Offset>>,
    ) -> Result<(plays::DecodedPlays, usize)> {
        let writers = read_writer_schemas(self.schemas, &records.values).await?;
        let mut not_counted = None;
        if records.values.iter().flatten().any(is_framed) {
            let offsets: &BTreeSet<Offset> = match dead_letters.entry(partition) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let since_ms = records.first().map_or(0, |first| first.logged_at_ms);
                    let offsets = dead_letters::find_dead_lettered_offsets(
                        self.log,
                        self.source,
                        partition,
                        since_ms,
                    );
                    entry.insert(offsets.await?)
                }
            };
            not_counted = Some(offsets);
            self.check_schemas_known(partition, &records, &writers, offsets)?;
        }
        let work = move || {
            let lines = (0..records.len()).map(|index| Line {
                offset: records.offsets.value(index),
                logged_at_ms: records.logged_at_ms.value(index),
                bytes: records.values.value(index),
            });
            Decoder::new(partition).decode_records(lines, &writers)
        };
        let decoded = tokio::task::spawn_blocking(work)
            .await
            .map_err(|e| Error::fault("decoding ended", e))?;
        let mut decoded = decoded.map_err(|e| Error::fault("decoding", e))?;
        let excluded = match not_counted {
            Some(not_counted) => decoded.exclude_offsets(not_counted),
            None => Ok(0),
        };
        let excluded = excluded.map_err(|e| Error::fault("leaving dead letters out", e))?;
        Ok((decoded, excluded))
    }

    /// Refuses a record with an unknown schema that is not a dead letter yet. The schema may be
    /// known when the speed layer reaches the record, and then it counts.
    fn check_schemas_known(
        &self,
        partition: u32,
        records: &Records,
        writers: &WriterSchemas,
        dead_letters: &BTreeSet<Offset>,
    ) -> Result<()> {
        for (offset, bytes) in records.offsets.values().iter().zip(records.values.iter()) {
            if let Some(reason) = bytes.and_then(|bytes| writers.schema_error(bytes))
                && !dead_letters.contains(offset)
            {
                let topic = self.source.topic();
                return Err(Error::Store(stores::Error::Unavailable {
                    operation: format!("archiving {topic}/{partition} at offset {offset}"),
                    reason: format!(
                        "{reason}, and the record is not a dead letter yet. Run `backstitch speed`, which decides; if it has already counted the record, restore the schema in the registry"
                    ),
                }));
            }
        }
        Ok(())
    }
}

/// Encodes a range as a Parquet file, sorted by day and then in log order. Returns the file with
/// its entry, which has no path yet.
async fn encode_range(range: DecodedRange) -> Result<(FileEntry, Option<Bytes>)> {
    let (bytes, days) = encode_events(range.events).await?;
    let entry = FileEntry {
        from: range.from,
        to: range.to,
        path: None,
        days,
        rejected: range.rejected,
        redacted_through: range.suppressed,
        expired: None,
    };
    Ok((entry, bytes))
}

/// Returns the rows of each UTC day, in order.
fn group_rows_by_day(events: &RecordBatch) -> BTreeMap<i64, UInt32Array> {
    let mut by_day: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    if let Some(times_us) = events.column_by_name("at") {
        let times_us = times_us.as_primitive::<TimestampMicrosecondType>().values();
        for (row, time_us) in (0_u32..).zip(times_us.iter()) {
            by_day
                .entry(utc_day(time_us.div_euclid(1_000_000)))
                .or_default()
                .push(row);
        }
    }
    let by_day = by_day.into_iter();
    by_day.map(|(day, rows)| (day, rows.into())).collect()
}

pub(super) type EncodedEvents = (Option<Bytes>, BTreeMap<i64, DayRows>);

/// Encodes events as a Parquet file, sorted by day and then in order, on a thread for blocking
/// work.
pub(super) async fn encode_events(events: Vec<RecordBatch>) -> Result<EncodedEvents> {
    let encoded = tokio::task::spawn_blocking(move || encode(&events)).await;
    let encoded = encoded.map_err(|e| Error::fault("the Parquet writer task failed", e))?;
    encoded.map_err(|e| Error::fault("writing Parquet", e))
}

fn encode(events: &[RecordBatch]) -> Result<EncodedEvents, ParquetError> {
    let events = concat_batches(&plays::schema(), events)?;
    if events.num_rows() == 0 {
        return Ok((None, BTreeMap::new()));
    }
    let batches = group_rows_by_day(&events).into_iter();
    let batches = batches.map(|(day, rows)| (day, take_record_batch(&events, &rows)));
    let (bytes, days) = encode_days(plays::schema(), batches)?;
    Ok((Some(bytes), days))
}

/// Encodes a Parquet file with separate row groups for each day.
pub(super) fn encode_days(
    schema: SchemaRef,
    batches: impl Iterator<Item = (i64, Result<RecordBatch, ArrowError>)>,
) -> Result<(Bytes, BTreeMap<i64, DayRows>), ParquetError> {
    let mut writer = parquet_file::begin(schema, GROUP_ROWS_MAX)?;
    let mut days = BTreeMap::new();
    for (day, batch) in batches {
        let batch = batch?;
        let first = writer.flushed_row_groups().len();
        writer.write(&batch)?;
        writer.flush()?;
        let row_groups = first..writer.flushed_row_groups().len();
        let rows = batch.num_rows() as u64;
        days.insert(day, DayRows { row_groups, rows });
    }
    Ok((parquet_file::finish(writer)?, days))
}
