//! Chooses the views that answer a query, and the buckets to read from them.
//!
//! Pure functions of the views of a metric and the query. A view answers *directly* if the
//! filters determine all of its group columns and its columns include the other requested ones. If
//! no direct view is fine enough, a view of another group is *fanned out* over the groups that an
//! *index* view lists, for example the owners of a track. A plan reads the coarsest buckets that
//! make up the requested time. For tables that are partitioned by time, a *calendar* avoids reads
//! of empty partitions: a roll-up of the same group in a single partition, whose rows show which
//! partitions hold data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jobs::sketch::cell_column;
use jobs::{Job, Rollup};
use schemas::key::{KeyError, KeyValue};
use schemas::time::{BucketSpan, BucketWidth, CoverError, TimeRange, UnixSeconds, cover};

use crate::metric::{Metric, dimensions, format_group_columns, log_key};
use crate::stats_query::{Prefer, RequestedTime, StatsQuery, TimeSegments};

/// Maximum table partitions that are read without a calendar.
const PARTITIONS_WITHOUT_CALENDAR_MAX: i64 = 62;

/// Maximum points of a series of distinct counts, since each point holds a sketch.
pub(crate) const SKETCHES_MAX: usize = 1_000;
/// Maximum groups of one fan-out.
pub(crate) const GROUPS_MAX: usize = 10_000;

/// Reason why a query cannot be planned; the client can change the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("a filter on {0} is required: add it")]
    NoGroup(String),
    #[error("no view combines {0}: remove one of them")]
    NoView(String),
    #[error("this request needs a bounded range: set from and to, or another period")]
    Unbounded,
    #[error("this request covers more than {GROUPS_MAX} groups of events: add a filter on {0}")]
    TooManyGroups(String),
    #[error(
        "the series would have {0} points, but a series of distinct counts has at most {SKETCHES_MAX}: choose a longer interval or a shorter range"
    )]
    TooManySketches(usize),
    #[error(transparent)]
    Cover(#[from] CoverError),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The views that answer a query.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// One view per width, finest first.
    direct: Vec<Arc<Job>>,
    fan_out: Option<FanOut>,
    /// True if the fan-out is used: it is not if direct views are fine enough.
    uses_fan_out: bool,
    /// The views of the metric that may be used.
    views: Vec<Arc<Job>>,
    rollups: Arc<BTreeMap<String, Arc<Rollup>>>,
}

/// A view that is read once per group.
#[derive(Debug, Clone)]
struct FanOut {
    job: Arc<Job>,
    /// The view whose dimensions list the groups.
    index: Arc<Job>,
    /// The group columns that the filters do not determine.
    missing: Vec<String>,
}

/// Scan of the rows of one group of one view.
#[derive(Debug, Clone)]
pub(crate) struct ViewScan {
    pub(crate) job: Arc<Job>,
    /// Derives its live deltas, if the view has none itself.
    pub(crate) rollup: Option<Arc<Rollup>>,
    /// Values of the group columns.
    pub(crate) group: Vec<KeyValue>,
    /// The encoded group.
    pub(crate) key: Vec<u8>,
    /// Ranges of buckets, ascending and disjoint.
    pub(crate) spans: Vec<BucketSpan>,
    /// Index of the helper that lists the table partitions that hold data.
    pub(crate) calendar: Option<usize>,
}

/// All scans of one answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layout {
    /// Scans whose rows determine the other scans.
    pub(crate) helpers: Vec<ViewScan>,
    /// Index of the helper that lists the groups of the fan-out.
    pub(crate) index: Option<usize>,
    /// Indexes of the helpers that determine the first and last data of an open series.
    pub(crate) probes: Vec<usize>,
    /// Scans whose rows are counted.
    pub(crate) scans: Vec<ViewScan>,
}

/// Buckets to read, by width.
type Spans = BTreeMap<BucketWidth, Vec<BucketSpan>>;

impl Plan {
    /// Plans a query without the views `excluded`.
    pub(crate) fn new(
        metric: &Metric,
        query: &StatsQuery,
        excluded: &BTreeSet<String>,
    ) -> Result<Self, PlanError> {
        let views: Vec<Arc<Job>> = metric
            .views
            .iter()
            .filter(|job| !excluded.contains(job.view()))
            .cloned()
            .collect();
        let is_filtered = |column: &str| query.filters.contains_key(column);
        // Drift is stored only for views that read events directly.
        let is_usable = |job: &Job| query.prefer != Prefer::Realtime || job.input_job().is_none();
        let has_requested_columns =
            |job: &Job, query: &StatsQuery| is_usable(job) && has_requested_columns(job, query);
        let mut direct: BTreeMap<BucketWidth, &Arc<Job>> = BTreeMap::new();
        for job in &views {
            if !group_names(job).all(is_filtered) || !has_requested_columns(job, query) {
                continue;
            }
            let best = direct.entry(job.bucket()).or_insert(job);
            if size_order(job, query) < size_order(best, query) {
                *best = job;
            }
        }
        let direct: Vec<Arc<Job>> = direct.into_values().cloned().collect();
        let fan_out = views
            .iter()
            .filter(|job| !group_names(job).all(is_filtered) && has_requested_columns(job, query))
            .filter_map(|job| FanOut::for_view(job, &views, is_filtered))
            .min_by(|a, b| {
                let key = |fan: &FanOut| (fan.job.bucket(), dimensions(&fan.job).len());
                key(a).cmp(&key(b))
            });
        if direct.is_empty() && fan_out.is_none() {
            // Views that would answer the query with a filter on their groups.
            let unfiltered = views.iter().filter(|job| {
                !group_names(job).all(is_filtered) && self::has_requested_columns(job, query)
            });
            let group_columns = format_group_columns(unfiltered);
            if !group_columns.is_empty() {
                return Err(PlanError::NoGroup(group_columns));
            }
            let distinct = query.distinct.iter().map(String::as_str);
            let columns: Vec<&str> = requested_columns(query)
                .into_iter()
                .chain(distinct)
                .collect();
            return Err(PlanError::NoView(columns.join(", ")));
        }
        Ok(Self {
            uses_fan_out: direct.is_empty(),
            direct,
            fan_out,
            views,
            rollups: Arc::clone(&metric.rollups),
        })
    }

    /// Buckets that make up the segments: of direct views if they are fine enough, else also of the
    /// fan-out.
    fn cover_segments(&mut self, segments: &TimeSegments) -> Result<Spans, PlanError> {
        let direct_widths: Vec<BucketWidth> = self.direct.iter().map(|job| job.bucket()).collect();
        let mut widths = direct_widths.clone();
        widths.extend(self.fan_out.as_ref().map(|fan| fan.job.bucket()));
        let mut spans = Spans::new();
        for range in segments.ranges() {
            let covered = match cover(*range, &direct_widths) {
                Err(_) if widths.len() > direct_widths.len() => {
                    self.uses_fan_out = true;
                    cover(*range, &widths)?
                }
                covered => covered?,
            };
            for span in covered {
                push_merged(spans.entry(span.width).or_default(), span);
            }
        }
        Ok(spans)
    }

    /// The scans for a query, with `groups` as the groups of the fan-out.
    pub(crate) fn build_layout(
        &mut self,
        query: &StatsQuery,
        groups: &BTreeSet<Vec<KeyValue>>,
    ) -> Result<Layout, PlanError> {
        let spans = match &query.time {
            RequestedTime::Segments(segments) => Some(self.cover_segments(segments)?),
            RequestedTime::Open(_) => None,
        };
        let mut layout = Layout::default();
        if let (true, Some(fan)) = (self.uses_fan_out, &self.fan_out) {
            let group = group_values(&fan.index, query);
            layout.index = Some(self.add_helper(&mut layout, &fan.index, group, TimeRange::ALL)?);
        }
        for (job, group) in self.scan_targets(query, groups) {
            let spans = match (&query.time, &spans) {
                // A row of all time belongs to no point.
                (RequestedTime::Open(_), _) if job.bucket() == BucketWidth::All => Vec::new(),
                (RequestedTime::Open(open), _) => vec![covering_span(&job, open.range)],
                (_, Some(spans)) => spans.get(&job.bucket()).cloned().unwrap_or_default(),
                (_, None) => Vec::new(),
            };
            if spans.is_empty() {
                continue;
            }
            let calendar = self.add_calendar(&mut layout, &job, &group, &spans)?;
            layout.scans.push(ViewScan {
                key: job.group().encode_values(&group)?,
                rollup: self.rollups.get(job.view()).cloned(),
                job,
                group,
                spans,
                calendar,
            });
        }
        if let RequestedTime::Open(open) = &query.time {
            self.add_probes(&mut layout, query, open.range)?;
        }
        Ok(layout)
    }

    /// Replaces the outer range of an open series by the buckets of its points. Returns false if
    /// the scans do not cover them: then the plan has changed, and a new layout covers them.
    pub(crate) fn close_series(
        &mut self,
        layout: &mut Layout,
        segments: &TimeSegments,
    ) -> Result<bool, PlanError> {
        let used_fan_out = self.uses_fan_out;
        let spans = self.cover_segments(segments)?;
        for scan in &mut layout.scans {
            scan.spans = spans.get(&scan.job.bucket()).cloned().unwrap_or_default();
        }
        Ok(used_fan_out == self.uses_fan_out)
    }

    /// Group columns that the index has to provide, for error messages.
    pub(crate) fn missing_columns(&self) -> String {
        let missing = self.fan_out.as_ref().map(|fan| fan.missing.join(" and "));
        missing.unwrap_or_default()
    }

    /// Builds a group of the fan-out from the filters and the values of an index row.
    pub(crate) fn fan_out_group(
        &self,
        query: &StatsQuery,
        index_values: &BTreeMap<&str, KeyValue>,
    ) -> Option<Vec<KeyValue>> {
        let fan = self.fan_out.as_ref()?;
        group_names(&fan.job)
            .map(|name| {
                query
                    .filters
                    .get(name)
                    .or_else(|| index_values.get(name))
                    .cloned()
            })
            .collect()
    }

    /// Columns of the index that list the groups.
    pub(crate) fn fan_out_columns(&self) -> &[String] {
        self.fan_out.as_ref().map_or(&[], |fan| &fan.missing)
    }

    fn scan_targets(
        &self,
        query: &StatsQuery,
        groups: &BTreeSet<Vec<KeyValue>>,
    ) -> Vec<(Arc<Job>, Vec<KeyValue>)> {
        let direct = self
            .direct
            .iter()
            .map(|job| (Arc::clone(job), group_values(job, query)));
        let fan = self.fan_out.as_ref().filter(|_| self.uses_fan_out);
        let fan_out_targets = fan.into_iter().flat_map(|fan| {
            groups
                .iter()
                .map(|group| (Arc::clone(&fan.job), group.clone()))
        });
        direct.chain(fan_out_targets).collect()
    }

    /// Adds the calendar of a scan if it needs one.
    fn add_calendar(
        &self,
        layout: &mut Layout,
        job: &Job,
        group: &[KeyValue],
        spans: &[BucketSpan],
    ) -> Result<Option<usize>, PlanError> {
        if job.table_partition() == BucketWidth::All {
            return Ok(None);
        }
        let partitions = count_partitions(job.table_partition(), spans);
        if partitions.is_some_and(|partitions| partitions <= PARTITIONS_WITHOUT_CALENDAR_MAX) {
            return Ok(None);
        }
        let calendar = self
            .views
            .iter()
            .filter(|view| {
                view.group() == job.group() && view.table_partition() == BucketWidth::All
            })
            .filter(|view| view.bucket() <= job.table_partition())
            .max_by_key(|view| (view.bucket(), std::cmp::Reverse(dimensions(view).len())));
        match (calendar, partitions) {
            (Some(calendar), _) => {
                let helper =
                    self.add_helper(layout, calendar, group.to_vec(), outer_range(spans))?;
                Ok(Some(helper))
            }
            (None, Some(_)) => Ok(None),
            (None, None) => Err(PlanError::Unbounded),
        }
    }

    /// Adds a helper to a layout, or extends an existing one.
    fn add_helper(
        &self,
        layout: &mut Layout,
        job: &Arc<Job>,
        group: Vec<KeyValue>,
        range: TimeRange,
    ) -> Result<usize, PlanError> {
        let key = job.group().encode_values(&group)?;
        let span = covering_span(job, range);
        let mut helpers = layout.helpers.iter_mut().enumerate();
        let existing = helpers.find(|(_, scan)| scan.job.view() == job.view() && scan.key == key);
        if let Some((index, scan)) = existing {
            scan.spans.push(span);
            let range = outer_range(&scan.spans);
            scan.spans = vec![covering_span(job, range)];
            return Ok(index);
        }
        layout.helpers.push(ViewScan {
            job: Arc::clone(job),
            rollup: self.rollups.get(job.view()).cloned(),
            group,
            key,
            spans: vec![span],
            calendar: None,
        });
        Ok(layout.helpers.len() - 1)
    }

    /// Adds the helpers that determine the first and last data: the finest direct view with a
    /// single partition, else the calendars.
    fn add_probes(
        &self,
        layout: &mut Layout,
        query: &StatsQuery,
        range: TimeRange,
    ) -> Result<(), PlanError> {
        let unpartitioned = self.direct.iter().find(|job| {
            job.table_partition() == BucketWidth::All && job.bucket() != BucketWidth::All
        });
        if let Some(job) = unpartitioned {
            let group = group_values(job, query);
            layout.probes = vec![self.add_helper(layout, job, group, range)?];
            return Ok(());
        }
        let mut probes: Vec<usize> = layout
            .scans
            .iter()
            .filter_map(|scan| scan.calendar)
            .collect();
        probes.dedup();
        if probes.is_empty() && !layout.scans.is_empty() {
            return Err(PlanError::Unbounded);
        }
        layout.probes = probes;
        Ok(())
    }
}

impl FanOut {
    fn for_view(
        job: &Arc<Job>,
        views: &[Arc<Job>],
        is_filtered: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let missing: Vec<String> = group_names(job)
            .filter(|name| !is_filtered(name))
            .map(str::to_owned)
            .collect();
        let index = views
            .iter()
            .filter(|view| {
                view.table_partition() == BucketWidth::All && group_names(view).all(&is_filtered)
            })
            .filter(|view| {
                let has_dimension =
                    |name: &String| view.dimensions().any(|dimension| dimension == name);
                missing.iter().all(has_dimension)
            })
            .max_by_key(|view| view.bucket())?;
        Some(Self {
            job: Arc::clone(job),
            index: Arc::clone(index),
            missing,
        })
    }
}

impl ViewScan {
    /// The view whose live deltas belong to the scan.
    pub(crate) fn live_view(&self) -> &Arc<Job> {
        self.rollup
            .as_ref()
            .map_or(&self.job, |rollup| rollup.base())
    }
}

impl Layout {
    /// Iterates over all scans, helpers first, in the order of the live queries.
    pub(crate) fn all_scans(&self) -> impl Iterator<Item = &ViewScan> {
        self.helpers.iter().chain(&self.scans)
    }
}

fn group_names(job: &Job) -> impl Iterator<Item = &str> {
    job.group().0.iter().map(|column| column.name.as_str())
}

/// True if a view has a group column or dimension of this name.
pub(crate) fn has_column(job: &Job, name: &str) -> bool {
    group_names(job).any(|column| column == name)
        || job.dimensions().any(|dimension| dimension == name)
}

/// True if a view has all columns that the query filters and counts by.
fn has_requested_columns(job: &Job, query: &StatsQuery) -> bool {
    let has = |name: &str| has_column(job, name);
    let distinct = query.distinct.as_deref();
    requested_columns(query).into_iter().all(has)
        && distinct.is_none_or(|name| has(name) || has(&cell_column(name)))
}

fn requested_columns(query: &StatsQuery) -> Vec<&str> {
    let filters = query.filters.keys().map(String::as_str);
    filters.chain(query.by.as_deref()).collect()
}

/// Sort key for the estimated number of rows in a group. Fewer dimensions have fewer rows, and
/// sketch cells have fewer rows than values. A group by the log's key holds the most events.
fn size_order<'a>(job: &'a Job, query: &StatsQuery) -> (bool, usize, bool, &'a str) {
    let cells = query.distinct.as_deref().map(cell_column);
    let has_cells = |cells: String| job.dimensions().any(|dimension| dimension == cells);
    let is_log_key = group_names(job).eq([log_key(job.source())]);
    (
        !cells.is_none_or(has_cells),
        dimensions(job).len(),
        is_log_key,
        job.name(),
    )
}

fn group_values(job: &Job, query: &StatsQuery) -> Vec<KeyValue> {
    group_names(job)
        .filter_map(|name| query.filters.get(name).cloned())
        .collect()
}

/// The buckets of a view that overlap a range.
fn covering_span(job: &Job, range: TimeRange) -> BucketSpan {
    let width = job.bucket();
    if width == BucketWidth::All {
        return BucketSpan {
            width,
            from: None,
            to: None,
        };
    }
    BucketSpan {
        width,
        from: range.from.map(|from| width.floor(from)),
        to: range.to.and_then(|to| width.ceil(to)),
    }
}

fn outer_range(spans: &[BucketSpan]) -> TimeRange {
    let from = spans.iter().map(|span| span.from).min().flatten();
    let is_open = spans.iter().any(|span| span.to.is_none());
    let to = spans.iter().filter_map(|span| span.to).max();
    TimeRange {
        from,
        to: if is_open { None } else { to },
    }
}

/// Appends a span, merged with the last one if they are adjacent.
fn push_merged(spans: &mut Vec<BucketSpan>, span: BucketSpan) {
    match spans.last_mut() {
        Some(last) if last.to.is_some() && last.to == span.from => last.to = span.to,
        _ => spans.push(span),
    }
}

/// Approximate number of partitions that hold the spans; `None` if a span has no end.
fn count_partitions(partition: BucketWidth, spans: &[BucketSpan]) -> Option<i64> {
    spans.iter().try_fold(0_i64, |count, span| {
        let (from, to) = (span.from?, span.to?);
        let length = partition.next(from)?.saturating_sub(partition.floor(from));
        let partitions = to.saturating_sub(from) / length.max(1) + 1;
        Some(count.saturating_add(partitions))
    })
}

/// Starts of the table partitions that hold a span, in ascending order. Either the span is bounded,
/// or `known_starts` lists all existing starts.
pub(crate) fn partition_starts(
    partition: BucketWidth,
    span: &BucketSpan,
    known_starts: Option<&BTreeSet<UnixSeconds>>,
) -> Vec<UnixSeconds> {
    if partition == BucketWidth::All {
        return vec![0];
    }
    let first = span.from.map(|from| partition.floor(from));
    if let Some(known_starts) = known_starts {
        let from = first.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Included);
        let to = span
            .to
            .map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        return known_starts.range((from, to)).copied().collect();
    }
    let end = span.to.unwrap_or(i64::MIN);
    std::iter::successors(first, |start| partition.next(*start))
        .take_while(|start| *start < end)
        .collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
