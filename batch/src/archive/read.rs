//! Streams of archived events of some days: each event once, as its first record in the log, or
//! only the records that repeat an event.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int32Type, Int64Type, SchemaRef, TimestampMicrosecondType};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryReservation};
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::{StreamExt, TryStreamExt};
use rustc_hash::{FxHashMap, FxHashSet};
use schemas::plays::{self, EventIdentity, event_identities};
use schemas::seam::Offset;
use schemas::time::utc_day;
use serde::{Deserialize, Serialize};
use stores::archive::Archive;

use super::expire::read_identity_hashes;
use super::expired_days::ExpiredDays;
use super::file_entry::FileEntry;
use crate::table::RowSource;

const BATCH_ROWS: usize = 32_768;

/// Totals of a stream of events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DayTotals {
    /// By UTC day, the sum of the amounts.
    pub(crate) amounts: BTreeMap<i64, i128>,
    /// Events that were counted.
    pub(crate) events: u64,
    /// Records that were skipped as duplicates.
    pub(crate) duplicates: u64,
}

/// The published part of days with expired events. Of such a day, the stream yields only log
/// records from `since` on, each event once, without those whose identity is among the expired
/// ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpiredBase {
    /// The days.
    pub(crate) days: BTreeSet<i64>,
    /// By partition: the published result includes everything below these offsets.
    pub(crate) since: Vec<Offset>,
    /// Files of identities and their row groups.
    identities: Vec<(String, Vec<usize>)>,
    /// The number of identities in these files.
    rows: u64,
}

impl ExpiredBase {
    /// Creates the base of those `days` that have expired events.
    pub(crate) fn new(expired: &ExpiredDays, days: &[i64], since: Vec<Offset>) -> Self {
        let expired_days = days.iter().copied().filter(|day| expired.contains(*day));
        Self {
            days: expired_days.collect(),
            since,
            identities: expired.identity_files(days),
            rows: expired.count_identities(days),
        }
    }

    /// Returns whether the published result includes a record.
    fn includes(&self, day: i64, partition: Option<usize>, offset: Offset) -> bool {
        let since = partition.and_then(|partition| self.since.get(partition));
        self.days.contains(&day) && offset < since.copied().unwrap_or(0)
    }
}

/// Selects among the records of one event.
#[derive(Debug, Clone)]
pub(crate) enum RecordFilter {
    /// The first record.
    First,
    /// The first record, if it is not below these offsets of its partition. A partition without an
    /// offset has no limit.
    FirstSince(Arc<Vec<Offset>>),
    /// The repeated records that are not below these offsets of their partition. A partition
    /// without an offset has no limit.
    Repeats(RepeatFilter, Arc<Vec<Offset>>),
}

/// Selects among the repeated records of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepeatFilter {
    /// All repeated records.
    All,
    /// Records in another partition than the event's first one.
    InOtherPartition,
}

/// The identities of one task may use 1/3 of the query memory.
const IDENTITIES_MEMORY_DIVISOR: usize = 3;

/// The identities of the events that a stream has read.
#[derive(Debug)]
struct IdentitySet {
    /// Accounts for `events`.
    _memory: MemoryReservation,
    events: FxHashSet<EventIdentity>,
    /// The partition of each event's first record, for [`RepeatFilter::InOtherPartition`].
    partitions: FxHashMap<EventIdentity, i32>,
}

impl IdentitySet {
    /// Reserves memory for a number of events before their query starts, so that spilling operators
    /// get less.
    fn with_capacity(
        events: usize,
        filter: &RecordFilter,
        context: &TaskContext,
    ) -> Result<Self, DataFusionError> {
        let mut bytes = table_bytes::<EventIdentity>(events);
        if let RecordFilter::Repeats(RepeatFilter::InOtherPartition, _) = filter {
            bytes = bytes.saturating_add(table_bytes::<(EventIdentity, i32)>(events));
        }
        let pool = context.memory_pool();
        if let MemoryLimit::Finite(limit) = pool.memory_limit()
            && bytes > limit / IDENTITIES_MEMORY_DIVISOR
        {
            let needed = bytes.saturating_mul(IDENTITIES_MEMORY_DIVISOR);
            return Err(DataFusionError::ResourcesExhausted(format!(
                "the identities of the {events} events of a task need {bytes} bytes of memory; raise query.memory_bytes to at least {needed}"
            )));
        }
        let memory = MemoryConsumer::new("event identities").register(pool);
        memory.grow(bytes);
        Ok(Self {
            _memory: memory,
            events: FxHashSet::with_capacity_and_hasher(events, Default::default()),
            partitions: FxHashMap::default(),
        })
    }
}

/// Returns the size of a hash table, which has one extra byte for each entry and is at most 7/8
/// full.
fn table_bytes<T>(entries: usize) -> usize {
    let slots = (entries.saturating_mul(8) / 7).next_power_of_two();
    slots.saturating_mul(size_of::<T>() + 1)
}

/// The events of some days below the cuts. Files are read in the version's order, and each has its
/// days in log order. The records of one event have the same partition and time, so the first one
/// in the log is read first.
#[derive(Clone)]
pub(crate) struct EventStream {
    archive: Archive,
    /// Paths with row groups.
    files: Vec<(String, Vec<usize>)>,
    /// The number of records in these files.
    rows: u64,
    cuts: Arc<Vec<Offset>>,
    schema: SchemaRef,
    /// The indices of its columns in the schema of plays.
    columns: Arc<[usize]>,
    filter: RecordFilter,
    base: Arc<ExpiredBase>,
    totals: Arc<Mutex<DayTotals>>,
}

impl EventStream {
    pub(crate) fn new(
        archive: &Archive,
        entries: &[FileEntry],
        days: &[i64],
        cuts: Vec<Offset>,
    ) -> Self {
        let files = entries
            .iter()
            .filter_map(|entry| {
                let groups: Vec<usize> = days
                    .iter()
                    .filter_map(|day| entry.days.get(day))
                    .flat_map(|rows| rows.row_groups.clone())
                    .collect();
                let path = entry.path.clone()?;
                (!groups.is_empty()).then_some((path, groups))
            })
            .collect();
        let present = entries.iter().filter(|entry| entry.path.is_some());
        let rows_by_day = present.flat_map(|entry| {
            let days = days.iter().filter_map(|day| entry.days.get(day));
            days.map(|of_day| of_day.rows)
        });
        Self {
            archive: archive.clone(),
            files,
            rows: rows_by_day.fold(0, u64::saturating_add),
            cuts: Arc::new(cuts),
            schema: plays::schema(),
            columns: (0..plays::schema().fields().len()).collect(),
            filter: RecordFilter::First,
            base: Arc::default(),
            totals: Arc::default(),
        }
    }

    /// Adds the published part of days with expired events.
    pub(crate) fn with_base(self, base: ExpiredBase) -> Self {
        Self {
            base: Arc::new(base),
            ..self
        }
    }

    /// Changes which records of each event are yielded.
    pub(crate) fn with_filter(self, filter: RecordFilter) -> Self {
        Self { filter, ..self }
    }

    /// Returns the totals after the stream was read to its end.
    pub(crate) fn totals(&self) -> DayTotals {
        self.totals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream")
            .field("files", &self.files.len())
            .finish_non_exhaustive()
    }
}

impl RowSource for EventStream {
    fn project(&self, columns: &[usize]) -> Result<Arc<dyn PartitionStream>, DataFusionError> {
        Ok(Arc::new(Self {
            schema: Arc::new(plays::schema().project(columns)?),
            columns: columns.into(),
            ..self.clone()
        }))
    }
}

impl PartitionStream for EventStream {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let archive = self.archive.clone();
        // Expired identities are read first, so that their late repetitions are recognized.
        let files = self.base.identities.iter().chain(&self.files).cloned();
        let files: Vec<(String, Vec<usize>)> = files.collect();
        let batches = futures::stream::iter(files)
            .then(move |(path, groups)| {
                let archive = archive.clone();
                async move { archive.read_rows(&path, groups, BATCH_ROWS).await }
            })
            .try_flatten()
            .map_err(|error| DataFusionError::External(Box::new(error)));
        let (cuts, record_filter) = (Arc::clone(&self.cuts), self.filter.clone());
        let base = Arc::clone(&self.base);
        let totals = Arc::clone(&self.totals);
        *totals.lock().unwrap_or_else(PoisonError::into_inner) = DayTotals::default();
        let (schema, columns) = (Arc::clone(&self.schema), Arc::clone(&self.columns));
        let rows = usize::try_from(self.rows.saturating_add(self.base.rows)).unwrap_or(usize::MAX);
        let mut identities = match IdentitySet::with_capacity(rows, &record_filter, &context) {
            Ok(identities) => identities,
            Err(error) => {
                let failed = futures::stream::once(std::future::ready(Err(error)));
                return Box::pin(RecordBatchStreamAdapter::new(schema, failed));
            }
        };
        let events = batches.and_then(move |batch| {
            let filter = filter_batch(
                &batch,
                &cuts,
                &record_filter,
                &base,
                &mut identities,
                &totals,
            );
            let events = filter.and_then(|filter| match filter {
                None => Ok(RecordBatch::new_empty(Arc::clone(&schema))),
                Some(filter) => Ok(filter_record_batch(&batch.project(&columns)?, &filter)?),
            });
            async move { events }
        });
        let schema = Arc::clone(&self.schema);
        Box::pin(RecordBatchStreamAdapter::new(schema, events))
    }
}

/// Returns the filter of a batch of records; `None` if it has identities of expired events.
fn filter_batch(
    batch: &RecordBatch,
    cuts: &[Offset],
    record_filter: &RecordFilter,
    base: &ExpiredBase,
    identities: &mut IdentitySet,
    totals: &Mutex<DayTotals>,
) -> Result<Option<BooleanArray>, DataFusionError> {
    if let Some(expired) = read_identity_hashes(batch) {
        identities.events.extend(expired);
        return Ok(None);
    }
    let schema_error = || {
        let message = "an archive file does not have the columns of plays";
        DataFusionError::Execution(message.into())
    };
    if batch.schema_ref().fields() != plays::schema().fields() {
        return Err(schema_error());
    }
    let column = |name: &str| batch.column_by_name(name).ok_or_else(schema_error);
    let partitions = column("partition")?.as_primitive::<Int32Type>();
    let offsets = column("offset")?.as_primitive::<Int64Type>();
    let amounts = column("amount")?.as_primitive::<Int64Type>();
    let times_us = column("at")?.as_primitive::<TimestampMicrosecondType>();
    let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
    let filter: BooleanArray = event_identities(batch)
        .into_iter()
        .enumerate()
        .map(|(row, identity)| {
            let partition = usize::try_from(partitions.value(row)).ok();
            let cut = partition.and_then(|partition| cuts.get(partition));
            if cut.is_none_or(|cut| offsets.value(row) >= *cut) {
                return Some(false);
            }
            let day = utc_day(times_us.value(row).div_euclid(1_000_000));
            let is_included = base.includes(day, partition, offsets.value(row));
            let is_since = |since: &[Offset]| {
                let since = partition.and_then(|partition| since.get(partition));
                since.is_none_or(|since| offsets.value(row) >= *since)
            };
            let record_partition = partitions.value(row);
            if !identities.events.insert(identity) {
                totals.duplicates += u64::from(!is_included);
                return Some(match record_filter {
                    RecordFilter::First | RecordFilter::FirstSince(_) => false,
                    RecordFilter::Repeats(..) if is_included => false,
                    RecordFilter::Repeats(RepeatFilter::All, since) => is_since(since),
                    RecordFilter::Repeats(RepeatFilter::InOtherPartition, since) => {
                        let first = identities.partitions.get(&identity);
                        is_since(since) && first.is_some_and(|first| *first != record_partition)
                    }
                });
            }
            if let RecordFilter::Repeats(RepeatFilter::InOtherPartition, _) = record_filter {
                identities.partitions.insert(identity, record_partition);
            }
            if is_included {
                return Some(false);
            }
            totals.events += 1;
            *totals.amounts.entry(day).or_default() += i128::from(amounts.value(row));
            Some(match record_filter {
                RecordFilter::First => true,
                RecordFilter::FirstSince(since) => is_since(since),
                RecordFilter::Repeats(..) => false,
            })
        })
        .collect();
    drop(totals);
    Ok(Some(filter))
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool as _};
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;

    use super::super::file_entry::DayRows;
    use super::*;

    /// The memory of a million identities is reserved before any file is read, and released when
    /// the stream ends.
    #[tokio::test]
    async fn reserves_memory_for_identities_while_the_stream_lives() {
        let folder = tempfile::tempdir().expect("a folder");
        let archive = Archive::local(folder.path()).expect("an archive");
        let of_day = DayRows {
            row_groups: 0..1,
            rows: 1_000_000,
        };
        let entry = FileEntry {
            path: Some("archive/plays/files/missing.parquet".to_owned()),
            days: BTreeMap::from([(7, of_day)]),
            ..FileEntry::default()
        };
        let failure = async |memory_bytes: usize| {
            let pool = Arc::new(GreedyMemoryPool::new(memory_bytes));
            let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool) as _);
            let runtime = runtime.build_arc().expect("a runtime");
            let context = TaskContext::default().with_runtime(runtime);
            let events = EventStream::new(&archive, std::slice::from_ref(&entry), &[7], vec![]);
            let mut stream = events.execute(Arc::new(context));
            let reserved = pool.reserved();
            let error = stream
                .next()
                .await
                .expect("an outcome")
                .expect_err("no file");
            drop(stream);
            assert_eq!(pool.reserved(), 0);
            (reserved, error.to_string())
        };
        let (reserved, error) = failure(256 << 20).await;
        assert!(
            reserved >= 1_000_000 * size_of::<EventIdentity>(),
            "{reserved}"
        );
        assert!(error.contains("missing.parquet"), "{error}");
        let (reserved, error) = failure(64 << 20).await;
        assert_eq!(reserved, 0);
        assert!(
            error.contains("raise query.memory_bytes to at least"),
            "{error}"
        );
    }
}
