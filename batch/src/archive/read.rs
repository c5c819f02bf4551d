//! Events of some days, each event once: the first one in the log counts. Or the other way round: the records that
//! repeat an event.

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
use schemas::plays::{self, EventIdentity, identities};
use schemas::seam::Offset;
use schemas::time::day_of;
use serde::{Deserialize, Serialize};
use stores::archive::Archive;

use super::FileEntry;
use super::expire::{ExpiredDays, hashes};
use crate::table::Rows;

const BATCH_ROWS: usize = 32_768;

/// What a stream of events held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DayTotals {
    /// By UTC day: the sum of the amounts.
    pub(crate) amounts: BTreeMap<i64, i128>,
    /// Events that counted.
    pub(crate) events: u64,
    /// Records that were passed over as duplicates.
    pub(crate) duplicates: u64,
}

/// What is there already of the days of which events are gone: of such a day only what stands in the log from
/// some offsets on comes, each event once that is neither among the hashes nor before these offsets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Base {
    /// The days.
    pub(crate) days: BTreeSet<i64>,
    /// By partition: below these offsets everything is held.
    pub(crate) since: Vec<Offset>,
    /// Files of identities and their row groups.
    identities: Vec<(String, Vec<usize>)>,
    /// The number of these identities.
    rows: u64,
}

impl Base {
    /// The base of those of some days of which events are gone.
    pub(crate) fn of(expired: &ExpiredDays, days: &[i64], since: Vec<Offset>) -> Self {
        let gone = days.iter().copied().filter(|day| expired.contains(*day));
        Self {
            days: gone.collect(),
            since,
            identities: expired.files(days),
            rows: expired.rows(days),
        }
    }

    /// Whether a record was counted before.
    fn holds(&self, day: i64, partition: Option<usize>, offset: Offset) -> bool {
        let since = partition.and_then(|partition| self.since.get(partition));
        self.days.contains(&day) && offset < since.copied().unwrap_or(0)
    }
}

/// Which records of the same event come.
#[derive(Debug, Clone)]
pub(crate) enum Keep {
    /// The first one.
    First,
    /// The first one, if it is from these offsets on, by partition; of a partition that is not named, always.
    FirstSince(Arc<Vec<Offset>>),
    /// The others, of those from these offsets on, by partition; of a partition that is not named, all.
    Repeats(Repeats, Arc<Vec<Offset>>),
}

/// Which records that repeat an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeats {
    /// All of them.
    All,
    /// Those in another partition than the event's first record.
    InOtherPartition,
}

/// The part of the memory of all queries that the identities of one task may take.
const IDENTITIES_SHARE: usize = 3;

/// The events that a stream has met.
#[derive(Debug)]
struct SeenEvents {
    /// Accounts for `events`.
    _memory: MemoryReservation,
    events: FxHashSet<EventIdentity>,
    /// The partition of each event's first record, where records in other partitions are wanted.
    partitions: FxHashMap<EventIdentity, i32>,
}

impl SeenEvents {
    /// Room for some events. It is accounted for before their query begins, and queries that spill get less.
    fn with_capacity(
        events: usize,
        keep: &Keep,
        context: &TaskContext,
    ) -> Result<Self, DataFusionError> {
        let mut bytes = table_bytes::<EventIdentity>(events);
        if let Keep::Repeats(Repeats::InOtherPartition, _) = keep {
            bytes = bytes.saturating_add(table_bytes::<(EventIdentity, i32)>(events));
        }
        let pool = context.memory_pool();
        if let MemoryLimit::Finite(limit) = pool.memory_limit()
            && bytes > limit / IDENTITIES_SHARE
        {
            let needed = bytes.saturating_mul(IDENTITIES_SHARE);
            return Err(DataFusionError::ResourcesExhausted(format!(
                "the identities of {events} events of one task take {bytes} bytes; raise query.memory_bytes to at least {needed}"
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

/// The size of a hash table: one byte beside each entry, and at most 7/8 full.
fn table_bytes<T>(entries: usize) -> usize {
    let slots = (entries.saturating_mul(8) / 7).next_power_of_two();
    slots.saturating_mul(size_of::<T>() + 1)
}

/// The events of some days below the cuts. Files come in the order of the version and hold
/// their days in the log's order, so of an event's records (which share partition and time) the
/// first one in the log is met first.
#[derive(Clone)]
pub(crate) struct EventStream {
    archive: Archive,
    /// Path and row groups.
    files: Vec<(String, Vec<usize>)>,
    /// The number of records in these files.
    rows: u64,
    cuts: Arc<Vec<Offset>>,
    schema: SchemaRef,
    /// The places of its columns among those of plays.
    columns: Arc<[usize]>,
    keep: Keep,
    base: Arc<Base>,
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
        let of_days = present.flat_map(|entry| {
            let days = days.iter().filter_map(|day| entry.days.get(day));
            days.map(|of_day| of_day.rows)
        });
        Self {
            archive: archive.clone(),
            files,
            rows: of_days.fold(0, u64::saturating_add),
            cuts: Arc::new(cuts),
            schema: plays::schema(),
            columns: (0..plays::schema().fields().len()).collect(),
            keep: Keep::First,
            base: Arc::default(),
            totals: Arc::default(),
        }
    }

    /// The same, where events of some of the days are gone.
    pub(crate) fn over(self, base: Base) -> Self {
        Self {
            base: Arc::new(base),
            ..self
        }
    }

    /// The same, of which other records come than the first of each event.
    pub(crate) fn keeping(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// What the stream held, once it was read to its end.
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

impl Rows for EventStream {
    fn narrowed(&self, columns: &[usize]) -> Result<Arc<dyn PartitionStream>, DataFusionError> {
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
        // What is gone comes before all that is there.
        let files = self.base.identities.iter().chain(&self.files).cloned();
        let files: Vec<(String, Vec<usize>)> = files.collect();
        let batches = futures::stream::iter(files)
            .then(move |(path, groups)| {
                let archive = archive.clone();
                async move { archive.rows(&path, groups, BATCH_ROWS).await }
            })
            .try_flatten()
            .map_err(|error| DataFusionError::External(Box::new(error)));
        let (cuts, keep) = (Arc::clone(&self.cuts), self.keep.clone());
        let base = Arc::clone(&self.base);
        let totals = Arc::clone(&self.totals);
        *totals.lock().unwrap_or_else(PoisonError::into_inner) = DayTotals::default();
        let (schema, columns) = (Arc::clone(&self.schema), Arc::clone(&self.columns));
        let rows = usize::try_from(self.rows.saturating_add(self.base.rows)).unwrap_or(usize::MAX);
        let mut seen = match SeenEvents::with_capacity(rows, &keep, &context) {
            Ok(seen) => seen,
            Err(error) => {
                let failed = futures::stream::once(std::future::ready(Err(error)));
                return Box::pin(RecordBatchStreamAdapter::new(schema, failed));
            }
        };
        let events = batches.and_then(move |batch| {
            let kept = kept(&batch, (&cuts, &keep, &base), &mut seen, &totals);
            let kept = kept.and_then(|filter| match filter {
                None => Ok(RecordBatch::new_empty(Arc::clone(&schema))),
                Some(filter) => Ok(filter_record_batch(&batch.project(&columns)?, &filter)?),
            });
            async move { kept }
        });
        let schema = Arc::clone(&self.schema);
        Box::pin(RecordBatchStreamAdapter::new(schema, events))
    }
}

/// Which records of a batch come; nothing if it holds hashes of events that are gone.
fn kept(
    batch: &RecordBatch,
    (cuts, keep, base): (&[Offset], &Keep, &Base),
    seen: &mut SeenEvents,
    totals: &Mutex<DayTotals>,
) -> Result<Option<BooleanArray>, DataFusionError> {
    if let Some(gone) = hashes(batch) {
        seen.events.extend(gone);
        return Ok(None);
    }
    let wrong =
        || DataFusionError::Execution("an archive file has not the columns of plays".into());
    if batch.schema_ref().fields() != plays::schema().fields() {
        return Err(wrong());
    }
    let column = |name: &str| batch.column_by_name(name).ok_or_else(wrong);
    let partitions = column("partition")?.as_primitive::<Int32Type>();
    let offsets = column("offset")?.as_primitive::<Int64Type>();
    let amounts = column("amount")?.as_primitive::<Int64Type>();
    let at = column("at")?.as_primitive::<TimestampMicrosecondType>();
    let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
    let filter: BooleanArray = identities(batch)
        .into_iter()
        .enumerate()
        .map(|(row, identity)| {
            let partition = usize::try_from(partitions.value(row)).ok();
            let cut = partition.and_then(|partition| cuts.get(partition));
            if cut.is_none_or(|cut| offsets.value(row) >= *cut) {
                return Some(false);
            }
            let day = day_of(at.value(row).div_euclid(1_000_000));
            let is_held = base.holds(day, partition, offsets.value(row));
            let is_since = |since: &[Offset]| {
                let since = partition.and_then(|partition| since.get(partition));
                since.is_none_or(|since| offsets.value(row) >= *since)
            };
            let of_partition = partitions.value(row);
            if !seen.events.insert(identity) {
                totals.duplicates += u64::from(!is_held);
                return Some(match keep {
                    Keep::First | Keep::FirstSince(_) => false,
                    Keep::Repeats(..) if is_held => false,
                    Keep::Repeats(Repeats::All, since) => is_since(since),
                    Keep::Repeats(Repeats::InOtherPartition, since) => {
                        let first = seen.partitions.get(&identity);
                        is_since(since) && first.is_some_and(|first| *first != of_partition)
                    }
                });
            }
            if let Keep::Repeats(Repeats::InOtherPartition, _) = keep {
                seen.partitions.insert(identity, of_partition);
            }
            if is_held {
                return Some(false);
            }
            totals.events += 1;
            *totals.amounts.entry(day).or_default() += i128::from(amounts.value(row));
            Some(match keep {
                Keep::First => true,
                Keep::FirstSince(since) => is_since(since),
                Keep::Repeats(..) => false,
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

    /// A million identities are accounted for before any file is read, and no more once the stream ends.
    #[tokio::test]
    async fn identities_are_accounted_for() {
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
