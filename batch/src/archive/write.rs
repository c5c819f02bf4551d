//! From the log to Parquet, a stretch of all partitions at a time.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use arrow::array::{AsArray, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{SchemaRef, TimestampMicrosecondType};
use arrow::error::ArrowError;
use bytes::Bytes;
use parquet::errors::ParquetError;
use schemas::avro::{Writers, is_framed};
use schemas::clock::Clock;
use schemas::plays::{self, Decoder, Line};
use schemas::seam::{Cut, LastRecord, Offset};
use schemas::source::Source;
use schemas::time::day_of;
use stores::archive::Archive;
use stores::dead_letters;
use stores::erasures::Suppressions;
use stores::log::{FetchLimit, LogRead, Recogniser, Records};
use stores::parquet_file;
use stores::registry::{Schemas, writers_of};
use tokio_util::sync::CancellationToken;

use super::file_entry::{DayRows, FileEntry};
use super::version::Version;
use super::{ArchiveReport, without};
use crate::error::lost_log;
use crate::{Error, Progress, Result};

/// Rows of one row group, at most.
pub(super) const GROUP_ROWS_MAX: usize = 262_144;
const FETCH_RECORDS: usize = 50_000;
const FETCH_BYTES: usize = 32 * 1024 * 1024;

/// How much goes into one file of the archive, about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileSize {
    /// Events, at most.
    pub(crate) rows_max: usize,
    /// Bytes of their records, at most.
    pub(crate) bytes_max: usize,
}

/// Copies one source's log into the archive.
pub(crate) struct Archiver<'a> {
    log: &'a dyn LogRead,
    archive: &'a Archive,
    schemas: &'a dyn Schemas,
    suppressions: &'a Suppressions,
    source: Source,
    size: FileSize,
    clock: &'a dyn Clock,
    /// The newest version, as far as it is known.
    version: Version,
    /// By partition.
    recognisers: Vec<Recogniser>,
}

/// A stretch of the log, decoded.
struct Stretch {
    from: Vec<Offset>,
    to: Vec<Cut>,
    /// What the log was known by: the last record before it, else its first one.
    known: Vec<Option<LastRecord>>,
    /// By partition, where there are records of Avro: those that have become dead letters.
    set_aside: BTreeMap<u32, BTreeSet<Offset>>,
    events: Vec<RecordBatch>,
    rejected: u64,
    /// The newest erasure of a listener, who is not in the events.
    suppressed: u64,
}

impl<'a> Archiver<'a> {
    /// An archiver that continues where the archive ends.
    pub(crate) async fn open(
        (log, schemas, suppressions): (&'a dyn LogRead, &'a dyn Schemas, &'a Suppressions),
        (archive, source): (&'a Archive, Source),
        size: FileSize,
        clock: &'a dyn Clock,
    ) -> Result<Self> {
        Ok(Self {
            log,
            archive,
            schemas,
            suppressions,
            source,
            size,
            clock,
            version: Version::newest(archive, source).await?,
            recognisers: Vec::new(),
        })
    }

    /// The newest version that it knows.
    pub(crate) const fn version(&self) -> &Version {
        &self.version
    }

    /// Writes a file again from the log, without erased listeners.
    ///
    /// # Errors
    /// [`Error::Request`] if the version lists no such file of the log, or the log is another one or gives other events.
    pub(crate) async fn write_again(&mut self, path: &str) -> Result<()> {
        self.recognise_log().await?;
        let files = self.version.log_files();
        let is_it = |file: &FileEntry| file.path.as_deref() == Some(path);
        let index = files.iter().position(is_it);
        let Some((index, file)) = index.and_then(|index| Some((index, files.get(index)?.clone())))
        else {
            return Err(Error::Request("it holds no part of the log".to_owned()));
        };
        let targets: Vec<Offset> = file.to.iter().map(|cut| cut.next_offset).collect();
        // A partition without records in this file ends as in the file before.
        let before = index.checked_sub(1).and_then(|index| files.get(index));
        let last = |partition: usize| before.and_then(|before| before.to.get(partition)?.last);
        let from = (0..targets.len()).map(|partition| Cut {
            next_offset: file.from.get(partition).copied().unwrap_or(0),
            last: last(partition),
        });
        let all = FileSize {
            rows_max: usize::MAX,
            bytes_max: usize::MAX,
        };
        let stretch = self.read(from.collect(), &targets, all).await;
        let stretch = stretch.map_err(|error| match error {
            Error::Store(stores::Error::OffsetOutOfRange { start, .. }) => Error::Request(format!(
                "its records are gone from there, which begins at {start} now (its own retention, or an erasure, deleted them). Put the file back from a copy"
            )),
            error => error,
        })?;
        let (again, bytes) = encode_stretch(stretch).await?;
        let lasts = |file: &FileEntry| -> Vec<_> { file.to.iter().map(|cut| cut.last).collect() };
        let is_same = again.days == file.days && lasts(&again) == lasts(&file);
        match bytes {
            Some(bytes) if is_same => Ok(self.archive.put(path, bytes).await?),
            _ => Err(Error::Request(
                "the log gives other events in its place: records are gone from it".to_owned(),
            )),
        }
    }

    /// How many records below `targets` (a position for each partition) are not archived yet.
    pub(crate) fn behind(&self, targets: &[Offset]) -> u64 {
        let ends = self.ends(targets.len());
        let missing = ends.iter().zip(targets).map(|(at, target)| {
            let missing = target.saturating_sub(at.next_offset);
            u64::try_from(missing).unwrap_or(0)
        });
        missing.sum()
    }

    /// Archives everything below `targets` that is not archived yet; on `stop` only what is under
    /// way. The last records before them are those that were counted, where they are known.
    ///
    /// # Errors
    /// [`Error::Request`] if the log is not the one that was archived before: then nothing is
    /// written.
    pub(crate) async fn up_to(
        &mut self,
        targets: &[Cut],
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<ArchiveReport> {
        let counted = targets;
        let targets: Vec<Offset> = counted.iter().map(|cut| cut.next_offset).collect();
        self.recognise_log().await?;
        let mut report = ArchiveReport::default();
        while self.behind(&targets) > 0 && !stop.is_cancelled() {
            let from = self.ends(targets.len());
            let stretch = self.read(from, &targets, self.size).await?;
            // The log may have been recreated since, also while it was read.
            let known = counted.iter().zip(&stretch.known);
            let known: Vec<_> = known.map(|(cut, known)| cut.last.or(*known)).collect();
            self.recognise(&known).await?;
            let (entry, bytes) = encode_stretch(stretch).await?;
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

    /// Lists a stretch and its file in a new version. Returns false if the archive does not end where the stretch begins any
    /// more: another archiver was faster, or the archive is another one.
    async fn append(&mut self, mut entry: FileEntry, bytes: Option<&Bytes>) -> Result<bool> {
        loop {
            let mut next = self.version.next(self.clock.now_ms());
            entry.path = bytes.map(|_| next.new_file(self.source));
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
            let end = self.ends(entry.from.len());
            let end = end.iter().map(|cut| cut.next_offset);
            let suppressed = self.suppressions.now().await?.newest_listener();
            // Another erasure may have begun meanwhile, and the file may name its listener.
            if suppressed != entry.redacted_through || !end.eq(entry.from.iter().copied()) {
                self.recognisers.clear();
                return Ok(false);
            }
        }
    }

    /// Where the archive ends, in so many partitions at least.
    fn ends(&self, partitions: usize) -> Vec<Cut> {
        let mut ends = self.version.end().to_vec();
        ends.resize(partitions.max(ends.len()), Cut::start());
        ends
    }

    /// Checks that the log still holds the records that were archived last. Else its offsets would
    /// be taken for those of the archived events.
    ///
    /// # Errors
    /// [`Error::Request`] if it does not.
    pub(crate) async fn recognise_log(&mut self) -> Result<()> {
        let lasts: Vec<_> = self.ends(0).iter().map(|end| end.last).collect();
        self.recognise(&lasts).await
    }

    /// Checks that the log holds these records, by partition.
    async fn recognise(&mut self, known: &[Option<LastRecord>]) -> Result<()> {
        let topic = self.source.topic();
        let partitions = known.len().max(self.recognisers.len());
        self.recognisers
            .resize_with(partitions, Recogniser::default);
        let known = known.iter().zip(&mut self.recognisers);
        for (partition, (known, recogniser)) in (0_u32..).zip(known) {
            let Some(known) = *known else { continue };
            let found = recogniser.recognise(self.log, topic, partition, known);
            let other = match found.await {
                Ok(Ok(())) => continue,
                Ok(Err(other)) => other.to_string(),
                Err(stores::Error::Refused(why)) => why,
                Err(error) => return Err(error.into()),
            };
            return Err(lost_log(format!(
                "the archive was made from another log than {topic}/{partition}: {other}. Nothing was archived"
            )));
        }
        Ok(())
    }

    /// Reads on in every partition, evenly, until there is enough for a file.
    async fn read(&self, from: Vec<Cut>, targets: &[Offset], size: FileSize) -> Result<Stretch> {
        let partitions = targets.len().max(1);
        let rows_max = (size.rows_max / partitions).saturating_add(1);
        let bytes_max = (size.bytes_max / partitions).saturating_add(1);
        let suppressed = self.suppressions.now().await?;
        let mut stretch = Stretch {
            from: from.iter().map(|cut| cut.next_offset).collect(),
            known: from.iter().map(|cut| cut.last).collect(),
            to: from,
            set_aside: BTreeMap::new(),
            events: Vec::new(),
            rejected: 0,
            suppressed: suppressed.newest_listener(),
        };
        for (partition, target) in targets.iter().enumerate() {
            let (mut rows, mut bytes) = (0, 0);
            while let Some(at) = stretch.to.get(partition).copied()
                && at.next_offset < *target
                && rows < rows_max
                && bytes < bytes_max
            {
                let number = u32::try_from(partition).map_err(|e| Error::fault("partition", e))?;
                let part = (number, at.next_offset..*target);
                let (next, records) = self.fetch(part, bytes_max).await?;
                if next == at.next_offset {
                    return Err(lost_log(format!(
                        "{}/{partition}: the log ends at {next}, before the cut at {target}: records were lost, or the topic was made again",
                        self.source.topic()
                    )));
                }
                rows += records.len();
                bytes += records.value_bytes();
                let last = records.last().or(at.last);
                if let Some(known) = stretch.known.get_mut(partition) {
                    *known = known.or(records.first());
                }
                let decoded = self.decode(number, records, &mut stretch.set_aside);
                let (decoded, left_out) = decoded.await?;
                stretch.rejected += (decoded.rejected.len() + left_out) as u64;
                stretch.events.push(without(&suppressed, decoded.events));
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
        (partition, offsets): (u32, Range<Offset>),
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

    /// The events of records, and how many were left out. Which of Avro count is decided by the speed layer, which comes first: what it
    /// could not read is a dead letter, whatever the registry knows by now.
    async fn decode(
        &self,
        partition: u32,
        records: Records,
        set_aside: &mut BTreeMap<u32, BTreeSet<Offset>>,
    ) -> Result<(plays::Decoded, usize)> {
        let writers = writers_of(self.schemas, &records.values).await?;
        let mut not_counted = None;
        if records.values.iter().flatten().any(is_framed) {
            let found: &BTreeSet<Offset> = match set_aside.entry(partition) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(none) => {
                    let since_ms = records.first().map_or(0, |first| first.logged_at_ms);
                    let found = dead_letters::set_aside(self.log, self.source, partition, since_ms);
                    none.insert(found.await?)
                }
            };
            not_counted = Some(found);
            self.must_be_decided(partition, &records, &writers, found)?;
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
        let left_out = match not_counted {
            Some(not_counted) => decoded.leave_out(not_counted),
            None => Ok(0),
        };
        let left_out = left_out.map_err(|e| Error::fault("leaving dead letters out", e))?;
        Ok((decoded, left_out))
    }

    /// Refuses a record whose schema is not known, and that the speed layer has not set aside: once it comes
    /// to it the schema may be known, and then the record counts.
    fn must_be_decided(
        &self,
        partition: u32,
        records: &Records,
        writers: &Writers,
        set_aside: &BTreeSet<Offset>,
    ) -> Result<()> {
        for (offset, bytes) in records.offsets.values().iter().zip(records.values.iter()) {
            if let Some(why) = bytes.and_then(|bytes| writers.unreadable(bytes))
                && !set_aside.contains(offset)
            {
                let topic = self.source.topic();
                return Err(Error::Store(stores::Error::Unavailable {
                    what: format!("archiving {topic}/{partition} at offset {offset}"),
                    why: format!(
                        "{why}, and the speed layer has not set the record aside: start it; if it has counted the record, give the schema back to the registry"
                    ),
                }));
            }
        }
        Ok(())
    }
}

/// The Parquet file of a stretch, sorted by day and then as in the log, and its entry without a path.
async fn encode_stretch(stretch: Stretch) -> Result<(FileEntry, Option<Bytes>)> {
    let (bytes, days) = encoded(stretch.events).await?;
    let entry = FileEntry {
        from: stretch.from,
        to: stretch.to,
        path: None,
        days,
        rejected: stretch.rejected,
        redacted_through: stretch.suppressed,
        expired: None,
    };
    Ok((entry, bytes))
}

/// By UTC day: which rows are its events, in their order.
fn by_day(events: &RecordBatch) -> BTreeMap<i64, UInt32Array> {
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
    let by_day = by_day.into_iter();
    by_day.map(|(day, rows)| (day, rows.into())).collect()
}

pub(super) type Encoded = (Option<Bytes>, BTreeMap<i64, DayRows>);

/// The Parquet file of some events, sorted by day and then in their order. Blocks no other work.
pub(super) async fn encoded(events: Vec<RecordBatch>) -> Result<Encoded> {
    let encoded = tokio::task::spawn_blocking(move || encode(&events)).await;
    let encoded = encoded.map_err(|e| Error::fault("writing Parquet ended", e))?;
    encoded.map_err(|e| Error::fault("writing Parquet", e))
}

fn encode(events: &[RecordBatch]) -> Result<Encoded, ParquetError> {
    let events = concat_batches(&plays::schema(), events)?;
    if events.num_rows() == 0 {
        return Ok((None, BTreeMap::new()));
    }
    let of_days = by_day(&events).into_iter();
    let of_days = of_days.map(|(day, rows)| (day, take_record_batch(&events, &rows)));
    let (bytes, days) = encode_days(plays::schema(), of_days)?;
    Ok((Some(bytes), days))
}

/// A Parquet file of the rows of days, in row groups of their own.
pub(super) fn encode_days(
    schema: SchemaRef,
    of_days: impl Iterator<Item = (i64, Result<RecordBatch, ArrowError>)>,
) -> Result<(Bytes, BTreeMap<i64, DayRows>), ParquetError> {
    let mut writer = parquet_file::begin(schema, GROUP_ROWS_MAX)?;
    let mut days = BTreeMap::new();
    for (day, batch) in of_days {
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
