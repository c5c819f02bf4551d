//! Consistent reads of aggregate views, as described in docs/internals/seam.md.
//!
//! A read loads the newest run records, then all partition states and live deltas in one step, then
//! the batch rows. If live state and batch rows do not join, it starts again. A read that does not
//! become consistent in time fails; it never returns a partial sum.

use std::collections::BTreeSet;
use std::sync::Arc;

use jobs::merge::{
    LiveDelta, MergedRow, SeamGap, SeamMismatch, SeamSnapshot, merge, merge_with_drift,
};
use jobs::tables::{TableGeneration, drift_table_name, find_table_to_read};
use schemas::key::{KeyError, KeyValue};
use schemas::partition::partition_of;
use schemas::seam::{Epoch, PartitionState, Runs};
use schemas::source::Source;
use schemas::time::{TimeRange, UnixSeconds};
use stores::live::{DeltaQuery, LiveDeltas};
use stores::views::{AggregateShape, PartitionQuery, RunRecords, ViewRows};
use tokio::time::Duration;

use crate::aggregation::{Aggregation, RowColumns};
use crate::board::lookup_batcher::{LookupBatcher, PREVIOUS_CALL_WAIT_MAX};
use crate::metric::{Metric, log_key};
use crate::options::{ServingOptions, ServingPorts};
use crate::partition_state_cache::PartitionStateCache;
use crate::plan::{GROUPS_MAX, Layout, Plan, PlanError, SKETCHES_MAX, ViewScan, has_column};
use crate::read_error::ReadError;
use crate::read_position::ReadPosition;
use crate::retry_budget::RetryBudget;
use crate::row_cache::{RowCache, RowRequest};
use crate::run_record_cache::RunRecordCache;
use crate::scan::{
    PreparedScan, build_partition_queries, decode_drift_rows, encode_key_range, iter_batch_rows,
    sort_deltas,
};
use crate::stale_cache::Cacheable;
use crate::stats_query::{Prefer, RequestedTime, StatsQuery, TimeSegments};

/// Maximum table partitions per call, which bounds memory.
const PARTITIONS_PER_CALL_MAX: usize = 128;

/// Result of a read.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) segments: TimeSegments,
    pub(crate) aggregation: Aggregation,
    pub(crate) read_position: ReadPosition,
    /// Watermark of the newest run, which wrote the batch rows.
    pub(crate) run_watermark: Watermark,
}

/// End of the counted events in the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Watermark {
    /// Next offset by partition.
    pub(crate) position: Vec<i64>,
    /// Log time of the last counted event, in milliseconds since the Unix epoch.
    pub(crate) as_of_ms: Option<i64>,
}

impl Watermark {
    /// Watermark of the run of `epoch`.
    pub(crate) fn from_run(runs: &Runs, epoch: Epoch) -> Self {
        let cuts = runs.get(epoch).map(|run| run.cuts.as_slice());
        let cuts = cuts.unwrap_or_default();
        let logged_ms = cuts.iter().filter_map(|cut| Some(cut.last?.logged_at_ms));
        Self {
            position: cuts.iter().map(|cut| cut.next_offset).collect(),
            as_of_ms: logged_ms.max(),
        }
    }
}

impl Cacheable for Reading {
    fn read_position_mut(&mut self) -> &mut ReadPosition {
        &mut self.read_position
    }

    fn memory_bytes(&self) -> usize {
        self.aggregation.memory_bytes() + self.segments.len() * size_of::<TimeRange>()
    }
}

/// Outcome of one attempt.
enum Attempt {
    Complete(Box<Reading>),
    /// The layout was incomplete; the plan now includes the missing part.
    Incomplete,
    /// The reason, and the views whose live deltas start at a later offset than the read needs.
    SeamMismatch(SeamMismatch, BTreeSet<String>),
}

/// Reads the answer to a query. While live state does not join the batch rows, it retries for up
/// to `retry_for` after the first failure.
///
/// # Errors
/// [`ReadError`]; the API answers [`ReadError::SeamMismatch`] with status 503.
pub(crate) async fn read(
    ports: &ServingPorts,
    caches: &ReadCaches,
    metric: &Metric,
    query: &StatsQuery,
    retry_for: Duration,
) -> Result<Reading, ReadError> {
    let mut excluded = BTreeSet::new();
    let mut plan = Plan::new(metric, query, &excluded)?;
    // The plan with all views, and the reason why a view had to be excluded.
    let mut full_plan: Option<(Plan, SeamMismatch)> = None;
    let mut groups = BTreeSet::new();
    let mut budget = RetryBudget::new(retry_for);
    let mut ignores_cache = false;
    loop {
        let reader = AggregateReader {
            ports,
            caches,
            ignores_cache,
            query,
            metric,
        };
        let mismatch = match (
            reader.attempt(&mut plan, &mut groups).await,
            full_plan.take(),
        ) {
            (Ok(Attempt::Complete(reading)), _) => return Ok(*reading),
            (Ok(Attempt::Incomplete), previous) => {
                full_plan = previous;
                continue;
            }
            // A view whose live deltas start at a later offset stays so until the next batch run. A
            // finer view may hold the same counts. Outdated run records are no reason to exclude
            // it.
            (Ok(Attempt::SeamMismatch(mismatch, uncounted)), previous)
                if ignores_cache && mismatch.gap == SeamGap::Uncounted =>
            {
                let excluded_count = excluded.len();
                excluded.extend(uncounted);
                let is_new = excluded.len() > excluded_count;
                match Plan::new(metric, query, &excluded) {
                    Ok(reduced) if is_new => {
                        groups.clear();
                        let full = std::mem::replace(&mut plan, reduced);
                        full_plan = previous.or(Some((full, mismatch)));
                        continue;
                    }
                    _ => {
                        full_plan = previous;
                        mismatch
                    }
                }
            }
            (Ok(Attempt::SeamMismatch(mismatch, _)), previous) => {
                full_plan = previous;
                mismatch
            }
            // No other view can replace the excluded one.
            (Err(ReadError::Plan(_)), Some((full, mismatch))) => {
                groups.clear();
                plan = full;
                mismatch
            }
            (Err(error), _) => return Err(error),
        };
        // If cached data does not join live state, read it again at once.
        let ignored_cache = std::mem::replace(&mut ignores_cache, true);
        if ignored_cache && !budget.wait_before_retry(&mismatch).await {
            return Err(mismatch.into());
        }
    }
}

/// Caches shared by all reads.
#[derive(Debug)]
pub(crate) struct ReadCaches {
    rows: RowCache,
    pub(crate) runs: RunRecordCache,
    pub(crate) states: PartitionStateCache,
    pub(crate) lookups: LookupBatcher,
}

impl ReadCaches {
    pub(crate) fn new(options: &ServingOptions) -> Self {
        Self {
            rows: RowCache::new(options),
            runs: RunRecordCache::new(Duration::from_millis(options.runs_kept_for_ms)),
            states: PartitionStateCache::new(),
            lookups: LookupBatcher::new(PREVIOUS_CALL_WAIT_MAX),
        }
    }
}

/// Run records and partition states that one attempt read.
pub(crate) struct RunsAndStates {
    pub(crate) runs: Arc<RunRecords>,
    pub(crate) states: Vec<Option<PartitionState>>,
}

impl RunsAndStates {
    /// Seam between the batch rows of `view` and the live deltas of `live_view`.
    pub(crate) fn build_seam<'a>(
        &'a self,
        view: &'a str,
        live_view: &'a str,
        newest: Epoch,
        only_partition: Option<usize>,
    ) -> SeamSnapshot<'a> {
        SeamSnapshot {
            view,
            live_view,
            newest_epoch: newest,
            runs: &self.runs.runs,
            partition_states: &self.states,
            only_partition,
        }
    }

    /// Position that this attempt reflects.
    pub(crate) fn read_position(&self, source: Source, epoch: Epoch) -> ReadPosition {
        let states = &self.states;
        let cut = |partition| self.runs.runs.cut(epoch, partition);
        let last_logged_ms =
            |state: &PartitionState| state.position.last.map(|last| last.logged_at_ms);
        ReadPosition {
            source,
            epoch,
            backfills: 0,
            complete: states.iter().all(|state| {
                let state = state.as_ref();
                state.is_some_and(|state| !state.is_replaying())
            }),
            as_of_ms: states.iter().flatten().filter_map(last_logged_ms).max(),
            position: states
                .iter()
                .enumerate()
                .map(|(partition, state)| match state {
                    Some(state) => state.position.next_offset,
                    None => cut(partition).map_or(0, |cut| cut.next_offset),
                })
                .collect(),
        }
    }
}

/// Run records, partition states and live deltas that one attempt read.
struct LiveSnapshot {
    base: RunsAndStates,
    deltas: Vec<LiveDeltas>,
    /// The only partition that can hold matching events, if that is certain.
    only_partition: Option<usize>,
}

impl LiveSnapshot {
    fn build_seam<'a>(&'a self, view: &'a str, live_view: &'a str) -> SeamSnapshot<'a> {
        let newest = newest_epoch(&self.base.runs, view);
        self.base
            .build_seam(view, live_view, newest, self.only_partition)
    }
}

/// Newest complete epoch of a view.
pub(crate) fn newest_epoch(runs: &RunRecords, view: &str) -> Epoch {
    find_table_to_read(&runs.complete_epochs, view).newest
}

struct AggregateReader<'a> {
    ports: &'a ServingPorts,
    caches: &'a ReadCaches,
    ignores_cache: bool,
    query: &'a StatsQuery,
    metric: &'a Metric,
}

impl AggregateReader<'_> {
    async fn attempt(
        &self,
        plan: &mut Plan,
        groups: &mut BTreeSet<Vec<KeyValue>>,
    ) -> Result<Attempt, ReadError> {
        let (views, source) = (&*self.ports.views, self.metric.source);
        let mut layout = plan.build_layout(self.query, groups)?;
        let (partitions, runs) = tokio::try_join!(
            self.ports.log.partition_count(source.topic()),
            self.caches.runs.get(views, source, self.ignores_cache)
        )?;
        let tables = layout
            .all_scans()
            .map(|scan| find_table_to_read(&runs.complete_epochs, scan.job.view()));
        let oldest = tables.map(|table| (table.newest, table.generation.backfills));
        let (epoch, backfills) = oldest
            .min()
            .unwrap_or_else(|| (runs.runs.newest_complete(), 0));
        let cut_count = runs.runs.get(epoch).map_or(0, |run| run.cuts.len());
        // If the log was lost, partition states may exist for more partitions than it has now.
        let mut partitions = (partitions as usize).max(runs.runs.partition_count());
        let mut has_misrouted = false;
        let (live, only_partition) = loop {
            // If partitions were added since the run, the events of one key may be in two
            // partitions. With a producer that partitions differently, they may be in any
            // partition.
            let known_partitions =
                (cut_count == partitions && !has_misrouted).then_some(partitions);
            let only_partition =
                known_partitions.and_then(|count| self.find_filtered_partition(count));
            let queries: Vec<DeltaQuery> = layout
                .all_scans()
                .map(|scan| self.build_delta_query(scan, only_partition, known_partitions))
                .collect::<Result<_, _>>()?;
            let count = u32::try_from(partitions + 1).unwrap_or(u32::MAX);
            let store = &self.ports.live;
            let mut live = store.read_deltas(source, count, &queries).await?;
            if pop_probed_partition(&mut live.partition_states) {
                partitions += 1;
            } else if known_partitions.is_some()
                && has_misrouted_records(&live.partition_states, epoch)
            {
                has_misrouted = true;
            } else {
                break (live, only_partition);
            }
        };
        if partitions == 0 {
            return self.build_empty_result(epoch);
        }
        let bytes = live.deltas.iter().map(measure_deltas).sum::<u64>();
        metrics::counter!("backstitch_serving_read_bytes_total", "from" => "live").increment(bytes);
        let snapshot = LiveSnapshot {
            base: RunsAndStates {
                runs,
                states: live.partition_states,
            },
            deltas: live.deltas,
            only_partition,
        };
        match self.sum_rows(plan, &mut layout, groups, &snapshot).await {
            Ok(None) => Ok(Attempt::Incomplete),
            Ok(Some((segments, aggregation))) => Ok(Attempt::Complete(Box::new(Reading {
                segments,
                aggregation,
                read_position: ReadPosition {
                    backfills,
                    ..snapshot.base.read_position(source, epoch)
                },
                run_watermark: Watermark::from_run(&snapshot.base.runs.runs, epoch),
            }))),
            Err(ReadError::SeamMismatch(mismatch)) => {
                let uncounted = self.find_uncounted_views(&snapshot, &mismatch);
                Ok(Attempt::SeamMismatch(mismatch, uncounted))
            }
            Err(error) => Err(error),
        }
    }

    /// Views of the metric whose live deltas start at a later offset than a reader needs, including
    /// the one of `mismatch`.
    fn find_uncounted_views(
        &self,
        snapshot: &LiveSnapshot,
        mismatch: &SeamMismatch,
    ) -> BTreeSet<String> {
        let uncounted = self.metric.views.iter().filter(|job| {
            let seam = snapshot.build_seam(job.view(), self.metric.live_view(job));
            seam.check(seam.newest_epoch)
                .is_err_and(|error| error.gap == SeamGap::Uncounted)
        });
        let mismatched_view = (mismatch.gap == SeamGap::Uncounted).then(|| mismatch.view.clone());
        uncounted
            .map(|job| job.view().to_owned())
            .chain(mismatched_view)
            .collect()
    }

    /// Reads and sums the rows; returns `None` if the layout is incomplete.
    async fn sum_rows(
        &self,
        plan: &mut Plan,
        layout: &mut Layout,
        groups: &mut BTreeSet<Vec<KeyValue>>,
        snapshot: &LiveSnapshot,
    ) -> Result<Option<(TimeSegments, Aggregation)>, ReadError> {
        let mut starts: Vec<BTreeSet<UnixSeconds>> = Vec::new();
        let mut has_new_groups = false;
        for (index, scan) in layout.helpers.iter().enumerate() {
            let deltas = snapshot.deltas.get(index);
            let mut scan_starts = BTreeSet::new();
            let mut index_groups = BTreeSet::new();
            let prepared = PreparedScan {
                scan,
                deltas,
                calendar: None,
            };
            self.run_scan(&prepared, snapshot, |values, _| {
                let columns = RowColumns::decode(scan, self.query, values, plan.fan_out_columns())?;
                for row in (0..values.len()).filter(|row| columns.matches(*row)) {
                    scan_starts.extend(columns.bucket(row));
                    if layout.index == Some(index) {
                        let names = plan.fan_out_columns().iter();
                        let values = names
                            .filter_map(|name| Some((&**name, columns.value(scan, name, row)?)))
                            .collect();
                        index_groups.extend(plan.fan_out_group(self.query, &values));
                    }
                }
                Ok(())
            })
            .await?;
            starts.push(scan_starts);
            let group_count = groups.len();
            groups.extend(index_groups);
            has_new_groups |= groups.len() > group_count;
        }
        if groups.len() > GROUPS_MAX {
            return Err(PlanError::TooManyGroups(plan.missing_columns()).into());
        }
        if has_new_groups {
            return Ok(None);
        }
        let segments = match &self.query.time {
            RequestedTime::Segments(segments) => segments.clone(),
            RequestedTime::Open(open) => {
                let extent = if probes_have_filter_columns(layout, self.query) {
                    find_data_extent(layout, &starts)
                } else {
                    self.read_extent(layout, &starts, snapshot).await?
                };
                let segments = open.close(extent)?;
                if !plan.close_series(layout, &segments)? {
                    return Ok(None);
                }
                segments
            }
        };
        if self.query.distinct.is_some() && segments.len() > SKETCHES_MAX {
            return Err(PlanError::TooManySketches(segments.len()).into());
        }
        let mut aggregation = Aggregation::new(self.query, segments.len());
        for (index, scan) in layout.scans.iter().enumerate() {
            if scan.spans.is_empty() {
                continue;
            }
            let prepared = PreparedScan::new(index, scan, layout, &starts, &snapshot.deltas);
            self.run_scan(&prepared, snapshot, |values, live| {
                aggregation.add(scan, self.query, &segments, values, live)
            })
            .await?;
        }
        Ok(Some((segments, aggregation)))
    }

    /// First and last instant of the rows that match the query, read from the finest buckets,
    /// which cover every event. Needed if no helper has all columns that the query filters by.
    async fn read_extent(
        &self,
        layout: &Layout,
        starts: &[BTreeSet<UnixSeconds>],
        snapshot: &LiveSnapshot,
    ) -> Result<Option<(UnixSeconds, UnixSeconds)>, ReadError> {
        let Some(finest) = layout.scans.iter().map(|scan| scan.job.bucket()).min() else {
            return Ok(None);
        };
        let mut extent: Option<(UnixSeconds, UnixSeconds)> = None;
        for (index, scan) in layout.scans.iter().enumerate() {
            if scan.job.bucket() != finest {
                continue;
            }
            let prepared = PreparedScan::new(index, scan, layout, starts, &snapshot.deltas);
            self.run_scan(&prepared, snapshot, |values, _| {
                let columns = RowColumns::decode(scan, self.query, values, &[])?;
                let rows = (0..values.len()).filter(|row| columns.matches(*row));
                for start in rows.filter_map(|row| columns.bucket(row)) {
                    let (first, last) = extent.get_or_insert((start, start));
                    (*first, *last) = (start.min(*first), start.max(*last));
                }
                Ok(())
            })
            .await?;
        }
        Ok(extent.map(|(first, last)| (first, finest.next(last).map_or(last, |end| end - 1))))
    }

    /// Reads the rows of a scan, a limited number of table partitions at a time, and passes them to
    /// `consume` merged with the live deltas, together with these deltas in key order.
    async fn run_scan(
        &self,
        prepared: &PreparedScan<'_>,
        snapshot: &LiveSnapshot,
        mut consume: impl FnMut(&[MergedRow<'_>], &[LiveDelta<'_>]) -> Result<(), KeyError>,
    ) -> Result<(), ReadError> {
        let view = prepared.scan.job.view();
        let table = find_table_to_read(&snapshot.base.runs.complete_epochs, view);
        let run = snapshot.base.runs.runs.get(table.newest);
        let request = RowRequest {
            table: &table.name,
            newest: (table.newest, run.map_or(0, |run| run.stamp_us)),
            ignores_cache: self.ignores_cache,
        };
        let seam = snapshot.build_seam(view, prepared.scan.live_view().view());
        let queries = build_partition_queries(prepared.scan, prepared.calendar)?;
        let live_keys = prepared.live_keys()?;
        let live = sort_deltas(live_keys.as_ref(), prepared.deltas);
        let mut remaining = &live[..];
        let mut chunks = queries.chunks(PARTITIONS_PER_CALL_MAX).peekable();
        if chunks.peek().is_none() {
            // Without rows to read, missing live state still has to be an error.
            consume(&merge(&seam, [], remaining.iter().copied())?, remaining)?;
        }
        let drift = self.read_drift(prepared, request, table.generation).await?;
        let mut drift = decode_drift_rows(drift.as_ref().as_ref())?;
        while let Some(chunk) = chunks.next() {
            let chunk_queries: Vec<PartitionQuery> =
                chunk.iter().map(|(query, _)| query.clone()).collect();
            let chunk_rows = self
                .caches
                .rows
                .read(&*self.ports.views, request, &chunk_queries)
                .await?;
            seam.check_table(chunk_rows.is_some())?;
            // Live deltas are merged with the rows of the same time.
            let split = match chunks.peek().and_then(|next| next.first()) {
                Some((_, begin)) => remaining.partition_point(|delta| delta.key < &begin[..]),
                None => remaining.len(),
            };
            let (deltas, later_deltas) = remaining.split_at(split);
            remaining = later_deltas;
            let rows = chunk_rows.iter().flat_map(iter_batch_rows);
            // Drift rows are not divided by time: there are few, and equal keys are summed.
            let drift = std::mem::take(&mut drift);
            consume(
                &merge_with_drift(&seam, rows, deltas.iter().copied(), drift)?,
                deltas,
            )?;
        }
        Ok(())
    }

    /// Reads the drift of a scan's rows if the query prefers live counts.
    async fn read_drift(
        &self,
        prepared: &PreparedScan<'_>,
        request: RowRequest<'_>,
        generation: TableGeneration,
    ) -> Result<Arc<Option<ViewRows>>, ReadError> {
        let scan = prepared.scan;
        if self.query.prefer != Prefer::Realtime || scan.job.input_job().is_some() {
            return Ok(Arc::default());
        }
        let table = drift_table_name(scan.job.view(), generation);
        let queries = scan.spans.iter().map(|span| {
            Ok(PartitionQuery {
                partition: AggregateShape::encode_partition_key(0, &scan.key),
                range: encode_key_range(&scan.job, span)?,
            })
        });
        let queries: Vec<PartitionQuery> = queries.collect::<Result<_, KeyError>>()?;
        let request = RowRequest {
            table: &table,
            ..request
        };
        Ok(self
            .caches
            .rows
            .read(&*self.ports.views, request, &queries)
            .await?)
    }

    fn build_delta_query(
        &self,
        scan: &ViewScan,
        only_partition: Option<usize>,
        partitions: Option<usize>,
    ) -> Result<DeltaQuery, KeyError> {
        // The group of the scan may determine the partition where the query does not.
        let groups = scan.job.group().0.iter().zip(&scan.group);
        let key = log_key(self.metric.source);
        let group_partition = groups
            .filter(|(column, _)| column.name == key)
            .find_map(|(_, value)| Some(find_partition(value, partitions?)));
        let live = scan.live_view();
        let ranges = scan.spans.iter().map(|span| encode_key_range(live, span));
        Ok(DeltaQuery {
            view: live.view().to_owned(),
            group: scan.key.clone(),
            ranges: ranges.collect::<Result<_, _>>()?,
            partition: only_partition
                .or(group_partition)
                .and_then(|partition| u32::try_from(partition).ok()),
        })
    }

    /// The only partition with events that match the filters, if a filter determines it.
    fn find_filtered_partition(&self, partitions: usize) -> Option<usize> {
        let value = self.query.filters.get(log_key(self.metric.source))?;
        Some(find_partition(value, partitions))
    }

    /// The answer while the log does not exist yet.
    fn build_empty_result(&self, epoch: Epoch) -> Result<Attempt, ReadError> {
        let segments = match &self.query.time {
            RequestedTime::Segments(segments) => segments.clone(),
            RequestedTime::Open(open) => open.close(None)?,
        };
        Ok(Attempt::Complete(Box::new(Reading {
            aggregation: Aggregation::new(self.query, segments.len()),
            segments,
            read_position: ReadPosition::empty(self.metric.source, epoch),
            run_watermark: Watermark::default(),
        })))
    }
}

/// Size of live deltas (keys, epochs and counts) in bytes.
fn measure_deltas(deltas: &LiveDeltas) -> u64 {
    (deltas.rows.value_data().len() + deltas.counts.len() * 16) as u64
}

/// Removes the last element, which was read beyond the known number of partitions. Returns whether
/// that partition exists: the cached number of partitions may lag behind the log.
pub(crate) fn pop_probed_partition(states: &mut Vec<Option<PartitionState>>) -> bool {
    states.pop().flatten().is_some()
}

/// True if a partition state holds misrouted records that were counted after `epoch`.
fn has_misrouted_records(states: &[Option<PartitionState>], epoch: Epoch) -> bool {
    let newest = states
        .iter()
        .flatten()
        .filter_map(|state| state.misrouted_epoch)
        .max();
    newest.is_some_and(|misrouted| misrouted > epoch)
}

fn find_partition(value: &KeyValue, partitions: usize) -> usize {
    let count = u32::try_from(partitions).unwrap_or(u32::MAX);
    let partition = match value {
        KeyValue::Int(n) | KeyValue::Time(n) | KeyValue::Instant(n) => {
            partition_of(n.to_string().as_bytes(), count)
        }
        KeyValue::Text(text) => partition_of(text.as_bytes(), count),
        KeyValue::Null => partition_of(b"", count),
    };
    partition as usize
}

/// True if the probes have all columns that the query filters by.
fn probes_have_filter_columns(layout: &Layout, query: &StatsQuery) -> bool {
    let probes = layout.probes.iter();
    let mut scans = probes.filter_map(|probe| layout.helpers.get(*probe));
    scans.all(|scan| query.filters.keys().all(|name| has_column(&scan.job, name)))
}

/// First and last instant at which the probes found data.
fn find_data_extent(
    layout: &Layout,
    starts: &[BTreeSet<UnixSeconds>],
) -> Option<(UnixSeconds, UnixSeconds)> {
    let probes = || {
        layout
            .probes
            .iter()
            .filter_map(|probe| Some((layout.helpers.get(*probe)?, starts.get(*probe)?)))
    };
    let first = probes()
        .filter_map(|(_, starts)| starts.first().copied())
        .min()?;
    let last = probes()
        .filter_map(|(scan, starts)| scan.job.bucket().next(*starts.last()?))
        .max()?;
    Some((first, last - 1))
}
