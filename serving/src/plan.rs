//! Which views answer a question, and which of their buckets.
//!
//! Pure: a plan follows from the views of a metric and the question alone. A view answers
//! *directly* if the filters give all of its group columns and its dimensions hold the others.
//! Where none is fine enough, a view of another group is *fanned out* over the groups that an
//! *index* names: a track's owners, say. The coarsest buckets that make up the time are read.
//! Tables that are divided by time are not asked for every day of an age: a *calendar*, a roll-up
//! of the same group in one piece, says in which there is anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jobs::sketch::cell_column;
use jobs::{Job, Rollup};
use schemas::key::{KeyError, KeyValue};
use schemas::time::{CoverError, Range, Seconds, Span, Width, cover};

use crate::metric::{Metric, dimensions, group_columns, log_key};
use crate::question::{Prefer, Question, Segments, Time};

/// Partitions of a table that are asked for without looking into a calendar first.
const DIRECT_PARTS_MAX: i64 = 62;

/// The most points of a series of different values: each holds the cells that are taken in it.
pub(crate) const SKETCHES_MAX: usize = 1_000;
/// The most groups that one question is fanned out over.
pub(crate) const GROUPS_MAX: usize = 10_000;

/// Why a question has no plan: each is the asker's to mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("at least {0} is needed: add it")]
    NoGroup(String),
    #[error("{0} can't be asked for together: leave out one of them")]
    NoView(String),
    #[error("this question needs a beginning and an end: give from and to, or another period")]
    Unbounded,
    #[error("this question is about more than {GROUPS_MAX} groups of events: add a filter on {0}")]
    TooManyGroups(String),
    #[error(
        "there would be {0} points, and a series of different ones has at most {SKETCHES_MAX}: choose a longer interval or a shorter range"
    )]
    TooManySketches(usize),
    #[error(transparent)]
    Cover(#[from] CoverError),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The views that answer a question.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// One view for each width, finest first.
    direct: Vec<Arc<Job>>,
    fan: Option<Fan>,
    /// Whether the fan is needed: it is not where direct views are fine enough.
    fanned: bool,
    /// The views of the metric that may be used.
    views: Vec<Arc<Job>>,
    rollups: Arc<BTreeMap<String, Arc<Rollup>>>,
}

/// A view that is asked for group by group.
#[derive(Debug, Clone)]
struct Fan {
    job: Arc<Job>,
    /// The view whose dimensions name the groups.
    index: Arc<Job>,
    /// The group columns that the question does not give.
    missing: Vec<String>,
}

/// Rows of one group of one view.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) job: Arc<Job>,
    /// How its live parts are made, where it has none of its own.
    pub(crate) rollup: Option<Arc<Rollup>>,
    /// The values of the view's group columns.
    pub(crate) group: Vec<KeyValue>,
    /// The same, encoded.
    pub(crate) key: Vec<u8>,
    /// The buckets, ascending and apart from each other.
    pub(crate) spans: Vec<Span>,
    /// The helper that says in which partitions of the table there is anything.
    pub(crate) calendar: Option<usize>,
}

/// All that is read for an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layout {
    /// What is read to know what to read.
    pub(crate) helpers: Vec<Lane>,
    /// The helper that names the groups of the fan.
    pub(crate) index: Option<usize>,
    /// The helpers that show where the data of an open series begins and ends.
    pub(crate) probes: Vec<usize>,
    /// What is counted.
    pub(crate) lanes: Vec<Lane>,
}

/// The buckets to read, by width.
type Spans = BTreeMap<Width, Vec<Span>>;

impl Plan {
    /// The plan for a question, without the views `excluded`.
    pub(crate) fn of(
        metric: &Metric,
        question: &Question,
        excluded: &BTreeSet<String>,
    ) -> Result<Self, PlanError> {
        let views: Vec<Arc<Job>> = metric
            .views
            .iter()
            .filter(|job| !excluded.contains(job.view()))
            .cloned()
            .collect();
        let given = |column: &str| question.filters.contains_key(column);
        // What live state counted is kept by the rows of views that read the events themselves.
        let usable = |job: &Job| question.prefer != Prefer::Realtime || job.over().is_none();
        let holds = |job: &Job, question: &Question| usable(job) && holds(job, question);
        let mut direct: BTreeMap<Width, &Arc<Job>> = BTreeMap::new();
        for job in &views {
            if !group_names(job).all(given) || !holds(job, question) {
                continue;
            }
            let best = direct.entry(job.bucket()).or_insert(job);
            if size(job, question) < size(best, question) {
                *best = job;
            }
        }
        let direct: Vec<Arc<Job>> = direct.into_values().cloned().collect();
        let fan = views
            .iter()
            .filter(|job| !group_names(job).all(given) && holds(job, question))
            .filter_map(|job| Fan::over(job, &views, given))
            .min_by(|one, other| {
                let key = |fan: &Fan| (fan.job.bucket(), dimensions(&fan.job).len());
                key(one).cmp(&key(other))
            });
        if direct.is_empty() && fan.is_none() {
            // With their groups these would answer it.
            let others = views
                .iter()
                .filter(|job| !group_names(job).all(given) && self::holds(job, question));
            let needed = group_columns(others);
            if !needed.is_empty() {
                return Err(PlanError::NoGroup(needed));
            }
            let distinct = question.distinct.iter().map(String::as_str);
            let all: Vec<&str> = asked(question).into_iter().chain(distinct).collect();
            return Err(PlanError::NoView(all.join(", ")));
        }
        Ok(Self {
            fanned: direct.is_empty(),
            direct,
            fan,
            views,
            rollups: Arc::clone(&metric.rollups),
        })
    }

    /// The buckets that make up the segments: of direct views where they are fine enough, else with
    /// those of the fan.
    fn spans(&mut self, segments: &Segments) -> Result<Spans, PlanError> {
        let direct: Vec<Width> = self.direct.iter().map(|job| job.bucket()).collect();
        let mut all = direct.clone();
        all.extend(self.fan.as_ref().map(|fan| fan.job.bucket()));
        let mut spans = Spans::new();
        for range in segments.ranges() {
            let covered = match cover(*range, &direct) {
                Err(_) if all.len() > direct.len() => {
                    self.fanned = true;
                    cover(*range, &all)?
                }
                covered => covered?,
            };
            for span in covered {
                append(spans.entry(span.width).or_default(), span);
            }
        }
        Ok(spans)
    }

    /// What is read for the question if the fan's groups are `groups`.
    pub(crate) fn layout(
        &mut self,
        question: &Question,
        groups: &BTreeSet<Vec<KeyValue>>,
    ) -> Result<Layout, PlanError> {
        let spans = match &question.time {
            Time::Segments(segments) => Some(self.spans(segments)?),
            Time::Open(_) => None,
        };
        let mut layout = Layout::default();
        if let (true, Some(fan)) = (self.fanned, &self.fan) {
            let group = given_group(&fan.index, question);
            layout.index = Some(self.help(&mut layout, &fan.index, group, Range::ALL)?);
        }
        for (job, group) in self.targets(question, groups) {
            let spans = match (&question.time, &spans) {
                // All time is no part of a point.
                (Time::Open(_), _) if job.bucket() == Width::All => Vec::new(),
                (Time::Open(open), _) => vec![span_of(&job, open.range)],
                (_, Some(spans)) => spans.get(&job.bucket()).cloned().unwrap_or_default(),
                (_, None) => Vec::new(),
            };
            if spans.is_empty() {
                continue;
            }
            let calendar = self.calendar_for(&mut layout, &job, &group, &spans)?;
            layout.lanes.push(Lane {
                key: job.group().encode_values(&group)?,
                rollup: self.rollups.get(job.view()).cloned(),
                job,
                group,
                spans,
                calendar,
            });
        }
        if let Time::Open(open) = &question.time {
            self.add_probes(&mut layout, question, open.range)?;
        }
        Ok(layout)
    }

    /// Replaces the hull of an open series by the buckets of its points. Answers whether the lanes
    /// have them all: if not, the plan is changed, and a new layout has them.
    pub(crate) fn close(
        &mut self,
        layout: &mut Layout,
        segments: &Segments,
    ) -> Result<bool, PlanError> {
        let fanned = self.fanned;
        let spans = self.spans(segments)?;
        for lane in &mut layout.lanes {
            lane.spans = spans.get(&lane.job.bucket()).cloned().unwrap_or_default();
        }
        Ok(fanned == self.fanned)
    }

    /// The group columns that are looked up in the index, as a message shows them.
    pub(crate) fn missing(&self) -> String {
        let missing = self.fan.as_ref().map(|fan| fan.missing.join(" and "));
        missing.unwrap_or_default()
    }

    /// Puts the groups together that the index names: the question's values and those of a row.
    pub(crate) fn fan_group(
        &self,
        question: &Question,
        found: &BTreeMap<&str, KeyValue>,
    ) -> Option<Vec<KeyValue>> {
        let fan = self.fan.as_ref()?;
        group_names(&fan.job)
            .map(|name| {
                question
                    .filters
                    .get(name)
                    .or_else(|| found.get(name))
                    .cloned()
            })
            .collect()
    }

    /// The columns of the index that name groups.
    pub(crate) fn fan_columns(&self) -> &[String] {
        self.fan.as_ref().map_or(&[], |fan| &fan.missing)
    }

    fn targets(
        &self,
        question: &Question,
        groups: &BTreeSet<Vec<KeyValue>>,
    ) -> Vec<(Arc<Job>, Vec<KeyValue>)> {
        let direct = self
            .direct
            .iter()
            .map(|job| (Arc::clone(job), given_group(job, question)));
        let fan = self.fan.as_ref().filter(|_| self.fanned);
        let fanned = fan.into_iter().flat_map(|fan| {
            groups
                .iter()
                .map(|group| (Arc::clone(&fan.job), group.clone()))
        });
        direct.chain(fanned).collect()
    }

    /// The calendar of a lane, if it needs one.
    fn calendar_for(
        &self,
        layout: &mut Layout,
        job: &Job,
        group: &[KeyValue],
        spans: &[Span],
    ) -> Result<Option<usize>, PlanError> {
        if job.partition() == Width::All {
            return Ok(None);
        }
        let parts = parts_count(job.partition(), spans);
        if parts.is_some_and(|parts| parts <= DIRECT_PARTS_MAX) {
            return Ok(None);
        }
        let calendar = self
            .views
            .iter()
            .filter(|view| view.group() == job.group() && view.partition() == Width::All)
            .filter(|view| view.bucket() <= job.partition())
            .max_by_key(|view| (view.bucket(), std::cmp::Reverse(dimensions(view).len())));
        match (calendar, parts) {
            (Some(calendar), _) => {
                let helper = self.help(layout, calendar, group.to_vec(), hull(spans))?;
                Ok(Some(helper))
            }
            (None, Some(_)) => Ok(None),
            (None, None) => Err(PlanError::Unbounded),
        }
    }

    /// Adds a helper to a layout, or widens the one that is there already.
    fn help(
        &self,
        layout: &mut Layout,
        job: &Arc<Job>,
        group: Vec<KeyValue>,
        range: Range,
    ) -> Result<usize, PlanError> {
        let key = job.group().encode_values(&group)?;
        let span = span_of(job, range);
        let mut helpers = layout.helpers.iter_mut().enumerate();
        let there = helpers.find(|(_, lane)| lane.job.view() == job.view() && lane.key == key);
        if let Some((index, lane)) = there {
            lane.spans.push(span);
            let range = hull(&lane.spans);
            lane.spans = vec![span_of(job, range)];
            return Ok(index);
        }
        layout.helpers.push(Lane {
            job: Arc::clone(job),
            rollup: self.rollups.get(job.view()).cloned(),
            group,
            key,
            spans: vec![span],
            calendar: None,
        });
        Ok(layout.helpers.len() - 1)
    }

    /// What shows where the data begins and ends: the finest direct view that is in one piece, else
    /// the calendars.
    fn add_probes(
        &self,
        layout: &mut Layout,
        question: &Question,
        range: Range,
    ) -> Result<(), PlanError> {
        let in_one_piece = self
            .direct
            .iter()
            .find(|job| job.partition() == Width::All && job.bucket() != Width::All);
        if let Some(job) = in_one_piece {
            let group = given_group(job, question);
            layout.probes = vec![self.help(layout, job, group, range)?];
            return Ok(());
        }
        let mut probes: Vec<usize> = layout
            .lanes
            .iter()
            .filter_map(|lane| lane.calendar)
            .collect();
        probes.dedup();
        if probes.is_empty() && !layout.lanes.is_empty() {
            return Err(PlanError::Unbounded);
        }
        layout.probes = probes;
        Ok(())
    }
}

impl Fan {
    fn over(job: &Arc<Job>, views: &[Arc<Job>], given: impl Fn(&str) -> bool) -> Option<Self> {
        let missing: Vec<String> = group_names(job)
            .filter(|name| !given(name))
            .map(str::to_owned)
            .collect();
        let index = views
            .iter()
            .filter(|view| view.partition() == Width::All && group_names(view).all(&given))
            .filter(|view| {
                let has = |name: &String| view.dimensions().any(|dimension| dimension == name);
                missing.iter().all(has)
            })
            .max_by_key(|view| view.bucket())?;
        Some(Self {
            job: Arc::clone(job),
            index: Arc::clone(index),
            missing,
        })
    }
}

impl Lane {
    /// The view whose live parts belong to it.
    pub(crate) fn live(&self) -> &Arc<Job> {
        self.rollup
            .as_ref()
            .map_or(&self.job, |rollup| rollup.from())
    }
}

impl Layout {
    /// Every lane, helpers first: the order of the live queries.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Lane> {
        self.helpers.iter().chain(&self.lanes)
    }
}

fn group_names(job: &Job) -> impl Iterator<Item = &str> {
    job.group().0.iter().map(|column| column.name.as_str())
}

/// Whether a view has a column, of its group or as a dimension.
pub(crate) fn has_column(job: &Job, name: &str) -> bool {
    group_names(job).any(|column| column == name)
        || job.dimensions().any(|dimension| dimension == name)
}

/// Whether a view's columns hold all that the question filters and counts by.
fn holds(job: &Job, question: &Question) -> bool {
    let has = |name: &str| has_column(job, name);
    let distinct = question.distinct.as_deref();
    asked(question).into_iter().all(has)
        && distinct.is_none_or(|name| has(name) || has(&cell_column(name)))
}

fn asked(question: &Question) -> Vec<&str> {
    let filters = question.filters.keys().map(String::as_str);
    filters.chain(question.by.as_deref()).collect()
}

/// How many rows a group of a view has, roughly: the fewer dimensions the fewer. The column by which the log
/// is divided stands for the most events, and there are fewer cells than values.
fn size<'a>(job: &'a Job, question: &Question) -> (bool, usize, bool, &'a str) {
    let cells = question.distinct.as_deref().map(cell_column);
    let has_cells = |cells: String| job.dimensions().any(|dimension| dimension == cells);
    let is_log_key = group_names(job).eq([log_key(job.source())]);
    (
        !cells.is_none_or(has_cells),
        dimensions(job).len(),
        is_log_key,
        job.name(),
    )
}

fn given_group(job: &Job, question: &Question) -> Vec<KeyValue> {
    group_names(job)
        .filter_map(|name| question.filters.get(name).cloned())
        .collect()
}

/// The buckets of a view that overlap a range.
fn span_of(job: &Job, range: Range) -> Span {
    let width = job.bucket();
    if width == Width::All {
        return Span {
            width,
            from: None,
            to: None,
        };
    }
    Span {
        width,
        from: range.from.map(|from| width.floor(from)),
        to: range.to.and_then(|to| width.ceil(to)),
    }
}

fn hull(spans: &[Span]) -> Range {
    let from = spans.iter().map(|span| span.from).min().flatten();
    let open = spans.iter().any(|span| span.to.is_none());
    let to = spans.iter().filter_map(|span| span.to).max();
    Range {
        from,
        to: if open { None } else { to },
    }
}

/// Adds a span after those before, as one where they meet.
fn append(spans: &mut Vec<Span>, span: Span) {
    match spans.last_mut() {
        Some(last) if last.to.is_some() && last.to == span.from => last.to = span.to,
        _ => spans.push(span),
    }
}

/// About how many partitions of that width hold the spans; nothing where a span has no end.
fn parts_count(partition: Width, spans: &[Span]) -> Option<i64> {
    spans.iter().try_fold(0_i64, |count, span| {
        let (from, to) = (span.from?, span.to?);
        let length = partition.next(from)?.saturating_sub(partition.floor(from));
        let parts = to.saturating_sub(from) / length.max(1) + 1;
        Some(count.saturating_add(parts))
    })
}

/// The starts of the partitions of a table that hold a span, in order. The span has both ends, or
/// `known` has all starts there are.
pub(crate) fn part_starts(
    partition: Width,
    span: &Span,
    known: Option<&BTreeSet<Seconds>>,
) -> Vec<Seconds> {
    if partition == Width::All {
        return vec![0];
    }
    let first = span.from.map(|from| partition.floor(from));
    if let Some(known) = known {
        let from = first.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Included);
        let to = span
            .to
            .map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        return known.range((from, to)).copied().collect();
    }
    let end = span.to.unwrap_or(i64::MIN);
    std::iter::successors(first, |start| partition.next(*start))
        .take_while(|start| *start < end)
        .collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
