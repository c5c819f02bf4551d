//! One consistent read of the stores along a plan, as the seam demands it.
//!
//! The newest runs first, then the slots with all live parts in one step, then the rows. Where live
//! state and rows do not join, everything is read again; what does not become whole in time is an
//! error, never a sum.

use std::collections::BTreeSet;
use std::sync::Arc;

use jobs::merge::{Gap, LivePart, Merged, NotWhole, Seam, merge, merge_kept};
use jobs::tables::{Generation, kept_name, table_to_read};
use schemas::key::{KeyError, KeyValue};
use schemas::partition::partition_of;
use schemas::seam::{Epoch, Runs, Slot};
use schemas::source::Source;
use schemas::time::{Range, Seconds, SeriesError};
use stores::live::{LiveAnswer, LiveParts, LiveQuery};
use stores::views::{FoundRows, PartQuery, RunsSeen, TallyShape};
use tokio::time::Duration;

use crate::board::lookups::{BEHIND_MAX, Lookups};
use crate::kept::Keep;
use crate::metric::{Metric, log_key};
use crate::options::{ServingOptions, ServingPorts};
use crate::patience::Patience;
use crate::plan::{GROUPS_MAX, Lane, Layout, Plan, PlanError, SKETCHES_MAX, has_column};
use crate::question::{Prefer, Question, Segments, Time};
use crate::rows::{RowCache, RowsOf};
use crate::runs_seen::RunsCache;
use crate::slots_seen::SlotsCache;
use crate::tally::{Columns, Tally};
use crate::walk::{Walk, batch_rows, kept_rows, key_range, part_queries, sorted};

/// Table partitions of one call: bounds what is in memory at once. Few in tests, so that several
/// calls are joined.
const PARTS_MAX: usize = if cfg!(test) { 2 } else { 128 };

/// What a read found.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) segments: Segments,
    pub(crate) tally: Tally,
    pub(crate) standing: Standing,
    /// How far the newest run reaches, of which the batch rows are.
    pub(crate) run: Reach,
}

/// How far events are counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// By partition: the next offset.
    pub(crate) position: Vec<i64>,
    /// When the last of them was logged, in milliseconds since the Unix epoch.
    pub(crate) as_of_ms: Option<i64>,
}

impl Reach {
    /// How far a run reaches.
    pub(crate) fn of(runs: &Runs, epoch: Epoch) -> Self {
        let cuts = runs.get(epoch).map(|run| run.cuts.as_slice());
        let cuts = cuts.unwrap_or_default();
        let logged = cuts.iter().filter_map(|cut| Some(cut.last?.logged_at_ms));
        Self {
            position: cuts.iter().map(|cut| cut.next_offset).collect(),
            as_of_ms: logged.max(),
        }
    }
}

impl Keep for Reading {
    fn standing(&mut self) -> &mut Standing {
        &mut self.standing
    }

    fn bytes(&self) -> usize {
        self.tally.bytes() + self.segments.len() * size_of::<Range>()
    }
}

/// How far a read reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) source: Source,
    /// The newest complete epoch of the views that were read; the oldest of them where they differ.
    pub(crate) epoch: Epoch,
    /// When the last record before the position was logged, in milliseconds since the Unix epoch.
    pub(crate) as_of_ms: Option<i64>,
    /// By partition: the next offset.
    pub(crate) position: Vec<i64>,
    /// How many backfills the batch rows hold.
    pub(crate) backfills: u64,
    /// Whether no partition's live state is missing, or catching up after it began anew.
    pub(crate) complete: bool,
}

/// Why nothing was read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Series(#[from] SeriesError),
    #[error(transparent)]
    NotWhole(#[from] NotWhole),
    #[error(transparent)]
    Store(Arc<stores::Error>),
    #[error(transparent)]
    Damaged(#[from] KeyError),
    #[error("the batch rows of a board are being replaced; the next read sees the new ones")]
    Replaced,
    #[error("{0}")]
    DamagedBoard(String),
}

impl From<stores::Error> for ReadError {
    fn from(error: stores::Error) -> Self {
        Self::Store(Arc::new(error))
    }
}

/// What one try came to.
enum Attempt {
    Done(Box<Reading>),
    /// The layout lacked something; the next try has it.
    Widened,
    /// Why, and the views that are counted live only since a later offset.
    NotWhole(NotWhole, BTreeSet<String>),
}

/// Reads the answer to a question, trying again for up to `patience` after the first failure while live
/// state is not whole.
///
/// # Errors
/// [`ReadError`]; a 503 to the asker where it is [`ReadError::NotWhole`].
pub(crate) async fn read(
    (ports, memory): (&ServingPorts, &Memory),
    metric: &Metric,
    question: &Question,
    patience: Duration,
) -> Result<Reading, ReadError> {
    let mut excluded = BTreeSet::new();
    let mut plan = Plan::of(metric, question, &excluded)?;
    // The plan with all views, and why one of them had to be left out.
    let mut whole_plan: Option<(Plan, NotWhole)> = None;
    let mut groups = BTreeSet::new();
    let mut patience = Patience::of(patience);
    let mut anew = false;
    loop {
        let reader = Reader {
            ports,
            memory,
            anew,
            question,
            metric,
        };
        let not_whole = match (
            reader.attempt(&mut plan, &mut groups).await,
            whole_plan.take(),
        ) {
            (Ok(Attempt::Done(reading)), _) => return Ok(*reading),
            (Ok(Attempt::Widened), kept) => {
                whole_plan = kept;
                continue;
            }
            // A view that is counted live only since a later offset stays so until a batch run; a
            // finer one may hold the same counts. Run records that are too old are no reason.
            (Ok(Attempt::NotWhole(not_whole, uncounted)), kept)
                if anew && not_whole.gap == Gap::Uncounted =>
            {
                let before = excluded.len();
                excluded.extend(uncounted);
                let is_new = excluded.len() > before;
                match Plan::of(metric, question, &excluded) {
                    Ok(without) if is_new => {
                        groups.clear();
                        let before = std::mem::replace(&mut plan, without);
                        whole_plan = kept.or(Some((before, not_whole)));
                        continue;
                    }
                    _ => {
                        whole_plan = kept;
                        not_whole
                    }
                }
            }
            (Ok(Attempt::NotWhole(not_whole, _)), kept) => {
                whole_plan = kept;
                not_whole
            }
            // Without that view there is no way.
            (Err(ReadError::Plan(_)), Some((before, not_whole))) => {
                groups.clear();
                plan = before;
                not_whole
            }
            (Err(error), _) => return Err(error),
        };
        // What was read from memory and does not join live state is read anew, at once.
        let was_anew = std::mem::replace(&mut anew, true);
        if was_anew && !patience.wait(&not_whole).await {
            return Err(not_whole.into());
        }
    }
}

/// What was read before and may be right still.
#[derive(Debug)]
pub(crate) struct Memory {
    rows: RowCache,
    pub(crate) runs: RunsCache,
    pub(crate) slots: SlotsCache,
    pub(crate) lookups: Lookups,
}

impl Memory {
    pub(crate) fn new(options: &ServingOptions) -> Self {
        Self {
            rows: RowCache::new(options),
            runs: RunsCache::new(Duration::from_millis(options.runs_kept_for_ms)),
            slots: SlotsCache::new(),
            lookups: Lookups::new(BEHIND_MAX),
        }
    }
}

/// The run records and slots that one try found.
pub(crate) struct Seen {
    pub(crate) runs: Arc<RunsSeen>,
    pub(crate) slots: Vec<Option<Slot>>,
}

impl Seen {
    /// The seam between a view's batch rows and the live parts of `live`.
    pub(crate) fn seam<'a>(
        &'a self,
        (view, live): (&'a str, &'a str),
        newest: Epoch,
        only: Option<usize>,
    ) -> Seam<'a> {
        Seam {
            view,
            live,
            newest,
            runs: &self.runs.runs,
            slots: &self.slots,
            only,
        }
    }

    /// How far the try reaches.
    pub(crate) fn standing(&self, source: Source, epoch: Epoch) -> Standing {
        let slots = &self.slots;
        let cut = |partition| self.runs.runs.cut(epoch, partition);
        let last = |slot: &Slot| slot.position.last.map(|last| last.logged_at_ms);
        Standing {
            source,
            epoch,
            backfills: 0,
            complete: slots.iter().all(|slot| {
                let slot = slot.as_ref();
                slot.is_some_and(|slot| !slot.is_replaying())
            }),
            as_of_ms: slots.iter().flatten().filter_map(last).max(),
            position: slots
                .iter()
                .enumerate()
                .map(|(partition, slot)| match slot {
                    Some(slot) => slot.position.next_offset,
                    None => cut(partition).map_or(0, |cut| cut.next_offset),
                })
                .collect(),
        }
    }
}

impl Standing {
    /// That of an answer while there is no log yet.
    pub(crate) const fn nothing(source: Source, epoch: Epoch) -> Self {
        Self {
            source,
            epoch,
            as_of_ms: None,
            position: Vec::new(),
            backfills: 0,
            complete: true,
        }
    }

    /// How far two reads reach that were made one after the other: both hold what it says.
    pub(crate) fn least(mut self, other: &Self) -> Self {
        let partitions = self.position.len().max(other.position.len());
        let at = |position: &[i64], partition| position.get(partition).copied().unwrap_or(0);
        self.position = (0..partitions)
            .map(|partition| at(&self.position, partition).min(at(&other.position, partition)))
            .collect();
        self.epoch = self.epoch.min(other.epoch);
        self.backfills = self.backfills.min(other.backfills);
        self.as_of_ms = self.as_of_ms.min(other.as_of_ms);
        self.complete &= other.complete;
        self
    }
}

/// What one try found of a tally.
struct SeenParts {
    seen: Seen,
    parts: Vec<LiveParts>,
    /// The only partition that can hold what the filters let through, where that is certain.
    only: Option<usize>,
}

impl SeenParts {
    fn seam<'a>(&'a self, (view, live): (&'a str, &'a str)) -> Seam<'a> {
        let newest = newest_of(&self.seen.runs, view);
        self.seen.seam((view, live), newest, self.only)
    }
}

/// The newest complete epoch of a view.
pub(crate) fn newest_of(runs: &RunsSeen, view: &str) -> Epoch {
    table_to_read(&runs.newest, view).newest
}

struct Reader<'a> {
    ports: &'a ServingPorts,
    memory: &'a Memory,
    anew: bool,
    question: &'a Question,
    metric: &'a Metric,
}

impl Reader<'_> {
    async fn attempt(
        &self,
        plan: &mut Plan,
        groups: &mut BTreeSet<Vec<KeyValue>>,
    ) -> Result<Attempt, ReadError> {
        let mut layout = plan.layout(self.question, groups)?;
        let (partitions, runs) = tokio::try_join!(
            self.ports.log.partitions(self.metric.source.topic()),
            self.memory
                .runs
                .seen(&*self.ports.views, self.metric.source, self.anew)
        )?;
        let tables = layout
            .all()
            .map(|lane| table_to_read(&runs.newest, lane.job.view()));
        let read = tables.map(|table| (table.newest, table.of.backfills)).min();
        let (epoch, backfills) = read.unwrap_or_else(|| (runs.runs.newest(), 0));
        let cuts = runs.runs.get(epoch).map_or(0, |run| run.cuts.len());
        // A log that was lost still has its slots: they say whether all is there.
        let mut partitions = (partitions as usize).max(runs.runs.partitions());
        let mut strays = false;
        let (live, only) = loop {
            // Where partitions were added since the run, an owner's events may be in two of them; and
            // anywhere with a producer that divides owners in another way.
            let known = (cuts == partitions && !strays).then_some(partitions);
            let only = known.and_then(|partitions| self.only_partition(partitions));
            let queries: Vec<LiveQuery> = layout
                .all()
                .map(|lane| self.live_query(lane, only, known))
                .collect::<Result<_, _>>()?;
            let count = u32::try_from(partitions + 1).unwrap_or(u32::MAX);
            let mut live = self
                .ports
                .live
                .read(self.metric.source, count, &queries)
                .await?;
            if is_one_more(&mut live.slots) {
                partitions += 1;
            } else if known.is_some() && has_strays(&live.slots, epoch) {
                strays = true;
            } else {
                break (live, only);
            }
        };
        if partitions == 0 {
            return self.nothing(epoch);
        }
        let LiveAnswer { slots, parts } = live;
        let bytes = parts.iter().map(live_bytes).sum::<u64>();
        metrics::counter!("backstitch_serving_read_bytes_total", "from" => "live").increment(bytes);
        let seen = SeenParts {
            seen: Seen { runs, slots },
            parts,
            only,
        };
        match self.count(plan, &mut layout, groups, &seen).await {
            Ok(None) => Ok(Attempt::Widened),
            Ok(Some((segments, tally))) => Ok(Attempt::Done(Box::new(Reading {
                segments,
                tally,
                standing: Standing {
                    backfills,
                    ..seen.seen.standing(self.metric.source, epoch)
                },
                run: Reach::of(&seen.seen.runs.runs, epoch),
            }))),
            Err(ReadError::NotWhole(not_whole)) => {
                let uncounted = self.uncounted(&seen, &not_whole);
                Ok(Attempt::NotWhole(not_whole, uncounted))
            }
            Err(error) => Err(error),
        }
    }

    /// The views of the metric that are counted live only since a later offset than a reader needs, at
    /// least the one that was met.
    fn uncounted(&self, seen: &SeenParts, met: &NotWhole) -> BTreeSet<String> {
        let all = self.metric.views.iter().filter(|job| {
            let seam = seen.seam((job.view(), self.metric.live(job)));
            seam.check(seam.newest)
                .is_err_and(|not_whole| not_whole.gap == Gap::Uncounted)
        });
        let met = (met.gap == Gap::Uncounted).then(|| met.view.clone());
        all.map(|job| job.view().to_owned()).chain(met).collect()
    }

    /// Reads and adds up the rows; nothing if the layout lacks something.
    async fn count(
        &self,
        plan: &mut Plan,
        layout: &mut Layout,
        groups: &mut BTreeSet<Vec<KeyValue>>,
        seen: &SeenParts,
    ) -> Result<Option<(Segments, Tally)>, ReadError> {
        let mut starts: Vec<BTreeSet<Seconds>> = Vec::new();
        let mut widened = false;
        for (index, lane) in layout.helpers.iter().enumerate() {
            let parts = seen.parts.get(index);
            let mut found = BTreeSet::new();
            let mut named = BTreeSet::new();
            let walk = Walk {
                lane,
                parts,
                calendar: None,
            };
            self.walk(&walk, seen, |values, _| {
                let columns = Columns::of(lane, self.question, values, plan.fan_columns())?;
                for row in (0..values.len()).filter(|row| columns.passes(*row)) {
                    found.extend(columns.bucket(row));
                    if layout.index == Some(index) {
                        let names = plan.fan_columns().iter();
                        let values = names
                            .filter_map(|n| Some((n.as_str(), columns.value(lane, n, row)?)))
                            .collect();
                        named.extend(plan.fan_group(self.question, &values));
                    }
                }
                Ok(())
            })
            .await?;
            starts.push(found);
            let before = groups.len();
            groups.extend(named);
            widened |= groups.len() > before;
        }
        if groups.len() > GROUPS_MAX {
            return Err(PlanError::TooManyGroups(plan.missing()).into());
        }
        if widened {
            return Ok(None);
        }
        let segments = match &self.question.time {
            Time::Segments(segments) => segments.clone(),
            Time::Open(open) => {
                let extent = if has_filters(layout, self.question) {
                    extent(layout, &starts)
                } else {
                    self.extent_of_rows(layout, &starts, seen).await?
                };
                let segments = open.close(extent)?;
                if !plan.close(layout, &segments)? {
                    return Ok(None);
                }
                segments
            }
        };
        if self.question.distinct.is_some() && segments.len() > SKETCHES_MAX {
            return Err(PlanError::TooManySketches(segments.len()).into());
        }
        let mut tally = Tally::new(self.question, segments.len());
        for (index, lane) in layout.lanes.iter().enumerate() {
            if lane.spans.is_empty() {
                continue;
            }
            let walk = Walk::of((index, lane), layout, &starts, &seen.parts);
            self.walk(&walk, seen, |values, live| {
                tally.add(lane, self.question, &segments, (values, live))
            })
            .await?;
        }
        Ok(Some((segments, tally)))
    }

    /// The first and the last instant of the rows that the question is about, where no helper has all of
    /// the columns that it filters by: looked for in the finest buckets, which hold every event.
    async fn extent_of_rows(
        &self,
        layout: &Layout,
        starts: &[BTreeSet<Seconds>],
        seen: &SeenParts,
    ) -> Result<Option<(Seconds, Seconds)>, ReadError> {
        let Some(finest) = layout.lanes.iter().map(|lane| lane.job.bucket()).min() else {
            return Ok(None);
        };
        let mut extent: Option<(Seconds, Seconds)> = None;
        for (index, lane) in layout.lanes.iter().enumerate() {
            if lane.job.bucket() != finest {
                continue;
            }
            let walk = Walk::of((index, lane), layout, starts, &seen.parts);
            self.walk(&walk, seen, |values, _| {
                let columns = Columns::of(lane, self.question, values, &[])?;
                let rows = (0..values.len()).filter(|row| columns.passes(*row));
                for at in rows.filter_map(|row| columns.bucket(row)) {
                    let (first, last) = extent.get_or_insert((at, at));
                    (*first, *last) = (at.min(*first), at.max(*last));
                }
                Ok(())
            })
            .await?;
        }
        Ok(extent.map(|(first, last)| (first, finest.next(last).map_or(last, |end| end - 1))))
    }

    /// Reads a lane's rows, some table partitions at a time, and hands them on merged, with the live parts in the order of
    /// their keys that they were merged with.
    async fn walk(
        &self,
        walk: &Walk<'_>,
        seen: &SeenParts,
        mut take: impl FnMut(&[Merged<'_>], &[LivePart<'_>]) -> Result<(), KeyError>,
    ) -> Result<(), ReadError> {
        let view = walk.lane.job.view();
        let table = table_to_read(&seen.seen.runs.newest, view);
        let run = seen.seen.runs.runs.get(table.newest);
        let of = RowsOf {
            table: &table.name,
            newest: (table.newest, run.map_or(0, |run| run.stamp_us)),
            anew: self.anew,
        };
        let seam = seen.seam((view, walk.lane.live().view()));
        let queries = part_queries(walk.lane, walk.calendar)?;
        let keys = walk.live_keys()?;
        let live = sorted(keys.as_ref(), walk.parts);
        let mut rest = &live[..];
        let mut chunks = queries.chunks(PARTS_MAX).peekable();
        if chunks.peek().is_none() {
            // Nothing to read is an answer only if nothing is missing.
            take(&merge(&seam, [], rest.iter().copied())?, rest)?;
        }
        let kept = self.kept(walk, (of, table.of)).await?;
        let mut kept = kept_rows(kept.as_ref().as_ref())?;
        while let Some(chunk) = chunks.next() {
            let asked: Vec<PartQuery> = chunk.iter().map(|(query, _)| query.clone()).collect();
            let found = self
                .memory
                .rows
                .read(&*self.ports.views, of, &asked)
                .await?;
            seam.check_table(found.is_some())?;
            // Live parts go with the rows of their time.
            let here = match chunks.peek().and_then(|next| next.first()) {
                Some((_, begin)) => rest.partition_point(|part| part.key < &begin[..]),
                None => rest.len(),
            };
            let (now, later) = rest.split_at(here);
            rest = later;
            let rows = found.iter().flat_map(batch_rows);
            // Of any time: what is kept is little, and a key that comes twice is added up.
            let kept = std::mem::take(&mut kept);
            take(&merge_kept(&seam, rows, now.iter().copied(), kept)?, now)?;
        }
        Ok(())
    }

    /// What was kept of earlier live counts, where that is asked for.
    async fn kept(
        &self,
        walk: &Walk<'_>,
        (of, generation): (RowsOf<'_>, Generation),
    ) -> Result<Arc<Option<FoundRows>>, ReadError> {
        let lane = walk.lane;
        if self.question.prefer != Prefer::Realtime || lane.job.over().is_some() {
            return Ok(Arc::default());
        }
        let table = kept_name(lane.job.view(), generation);
        let queries = lane.spans.iter().map(|span| {
            Ok(PartQuery {
                part: TallyShape::part(0, &lane.key),
                range: key_range(&lane.job, span)?,
            })
        });
        let queries: Vec<PartQuery> = queries.collect::<Result<_, KeyError>>()?;
        let of = RowsOf {
            table: &table,
            ..of
        };
        Ok(self
            .memory
            .rows
            .read(&*self.ports.views, of, &queries)
            .await?)
    }

    fn live_query(
        &self,
        lane: &Lane,
        only: Option<usize>,
        partitions: Option<usize>,
    ) -> Result<LiveQuery, KeyError> {
        // The lane's own group may name the partition where the question does not.
        let groups = lane.job.group().0.iter().zip(&lane.group);
        let key = log_key(self.metric.source);
        let of_group = groups
            .filter(|(column, _)| column.name == key)
            .find_map(|(_, value)| Some(partition_for(value, partitions?)));
        let live = lane.live();
        let ranges = lane.spans.iter().map(|span| key_range(live, span));
        Ok(LiveQuery {
            view: live.view().to_owned(),
            group: lane.key.clone(),
            ranges: ranges.collect::<Result<_, _>>()?,
            partition: only
                .or(of_group)
                .and_then(|partition| u32::try_from(partition).ok()),
        })
    }

    fn only_partition(&self, partitions: usize) -> Option<usize> {
        let value = self.question.filters.get(log_key(self.metric.source))?;
        Some(partition_for(value, partitions))
    }

    /// The answer while there is no log yet.
    fn nothing(&self, epoch: Epoch) -> Result<Attempt, ReadError> {
        let segments = match &self.question.time {
            Time::Segments(segments) => segments.clone(),
            Time::Open(open) => open.close(None)?,
        };
        Ok(Attempt::Done(Box::new(Reading {
            tally: Tally::new(self.question, segments.len()),
            segments,
            standing: Standing::nothing(self.metric.source, epoch),
            run: Reach::default(),
        })))
    }
}

/// Keys, epochs and counts of live parts, in bytes.
fn live_bytes(parts: &LiveParts) -> u64 {
    (parts.rows.value_data().len() + parts.counts.len() * 16) as u64
}

/// Whether the last slot that was asked for is there, of a partition that nobody had told of: who is asked
/// how many there are may not have heard of the newest. If not, it is left out.
pub(crate) fn is_one_more(slots: &mut Vec<Option<Slot>>) -> bool {
    slots.pop().flatten().is_some()
}

/// Whether a slot holds records, counted after `epoch`, whose keys belong to another partition.
fn has_strays(slots: &[Option<Slot>], epoch: Epoch) -> bool {
    let newest = slots.iter().flatten().filter_map(|slot| slot.strays).max();
    newest.is_some_and(|strays| strays > epoch)
}

fn partition_for(value: &KeyValue, partitions: usize) -> usize {
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

/// Whether the probes have all columns that the question filters by.
fn has_filters(layout: &Layout, question: &Question) -> bool {
    let probes = layout.probes.iter();
    let mut lanes = probes.filter_map(|probe| layout.helpers.get(*probe));
    lanes.all(|lane| {
        question
            .filters
            .keys()
            .all(|name| has_column(&lane.job, name))
    })
}

/// The first and the last instant that the probes found data at.
fn extent(layout: &Layout, starts: &[BTreeSet<Seconds>]) -> Option<(Seconds, Seconds)> {
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
        .filter_map(|(lane, starts)| lane.job.bucket().next(*starts.last()?))
        .max()?;
    Some((first, last - 1))
}
