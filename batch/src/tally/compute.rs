//! Computing views: which pieces of time, from which input. What is here is what one task does, in whichever process;
//! which tasks there are is in [`super::tasks`].
//!
//! All inputs are streams, so memory is bounded by the query engine's pool and one task's duplicates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::functions_aggregate::expr_fn::sum;
use datafusion::prelude::{DataFrame, cast, ident};
use futures::TryStreamExt;
use futures::future::BoxFuture;
use jobs::tables::TableGeneration;
use jobs::{COUNT, Engine, Job, check_rows, plan_job};
use schemas::seam::{Cut, Epoch, Offset};
use schemas::source::Source;
use schemas::time::{BucketWidth, UnixSeconds};
use serde::{Deserialize, Serialize};
use stores::archive::Archive;
use stores::erasures::SuppressedPeople;

use super::held::{Held, Holder};
use super::result::{
    Diff, Piece, PieceWriter, Pieces, RowStream, Sorter, ViewManifest, Written, merge, takes_room,
};
use crate::archive::{DayTotals, EventStream, ExpiredBase, ExpiredDays, FileEntry, cut_offsets};
use crate::results::Results;
use crate::table::StreamTable;
use crate::{Error, Result, query_error};

const DAY_SECONDS: UnixSeconds = 86_400;
/// The rows of one view take no more than this part of a task's memory: the queries over them need the most of it.
const HELD_SHARE: usize = 4;
/// And rows that are sorted in memory no more than this part.
const SORTED_SHARE: usize = 2;

/// A view that a run computes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct View<J = Arc<Job>> {
    pub(crate) job: J,
    /// The table of its rows.
    pub(crate) table: String,
    /// The published result.
    pub(crate) published: Option<ViewManifest>,
    /// Where somebody was erased since: the published result of the table before, of which days are taken over whose
    /// events were let go.
    pub(crate) before: Option<ViewManifest>,
    /// Results that may have been published in part.
    pub(crate) dirty: Vec<ViewManifest>,
    /// Whether its table holds rows of a result that is missing: everything is written, and what
    /// the result does not have is taken out.
    pub(crate) is_unknown: bool,
    /// Whether this run computes it; else it is only read from.
    pub(crate) wanted: bool,
}

impl<J> View<J> {
    /// The same view, with its job in another form.
    pub(crate) fn with_job<K>(self, job: K) -> View<K> {
        View {
            job,
            table: self.table,
            published: self.published,
            before: self.before,
            dirty: self.dirty,
            is_unknown: self.is_unknown,
            wanted: self.wanted,
        }
    }
}

impl View {
    /// The result that days stand on whose events were let go.
    pub(crate) fn base(&self) -> Option<&ViewManifest> {
        self.published.as_ref().or(self.before.as_ref())
    }
}

/// What a run computes.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: Source,
    pub(crate) epoch: Epoch,
    pub(crate) cuts: Vec<Cut>,
    /// In the order of [`jobs::Catalog::jobs`].
    pub(crate) views: Vec<View>,
    /// The files of the archive.
    pub(crate) files: Vec<FileEntry>,
    /// The days without all their events.
    pub(crate) expired: ExpiredDays,
    /// The generation of the rows: the backfills among the files, and the newest erasure that the events respect.
    pub(crate) of: TableGeneration,
    /// The erased listeners.
    pub(crate) suppressed: Arc<SuppressedPeople>,
    /// Every piece of time, not only what was touched.
    pub(crate) full: bool,
    /// By touched day: the records in the archive.
    pub(crate) days: BTreeMap<i64, u64>,
}

/// What was computed: the manifests by job name, not yet written down, and what the events held.
#[derive(Debug, Default)]
pub(crate) struct Computed {
    pub(crate) manifests: Arc<Manifests>,
    pub(crate) totals: DayTotals,
}

impl Plan {
    /// The cuts' offsets.
    pub(crate) fn offsets(&self) -> Vec<Offset> {
        self.cuts.iter().map(|cut| cut.next_offset).collect()
    }

    /// By partition: what the views that read events hold already, where they all hold the same; from 0 on else.
    pub(crate) fn since(&self) -> Vec<Offset> {
        let views = self.wanted().filter(|view| view.job.input_job().is_none());
        let mut held = views.map(|view| view.base().map(|old| &old.cuts));
        let Some(Some(first)) = held.next() else {
            return Vec::new();
        };
        if held.any(|cuts| cuts != Some(first)) {
            return Vec::new();
        }
        cut_offsets(first)
    }

    /// The touched pieces of a job.
    pub(crate) fn touched(&self, view: &View) -> BTreeSet<UnixSeconds> {
        let piece = view.job.time_partition();
        let from_days = self.days.keys().map(|day| piece.floor(day * DAY_SECONDS));
        let from_dirty = view
            .dirty
            .iter()
            .flat_map(|other| other.touched.iter().copied());
        let published = view.published.iter().filter(|_| self.full);
        let gone = published.flat_map(|old| old.pieces.keys().copied());
        from_days.chain(from_dirty).chain(gone).collect()
    }

    /// The views that this run computes.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &View> {
        self.views.iter().filter(|view| view.wanted)
    }

    pub(super) fn view(&self, name: &str) -> Result<&View> {
        self.views
            .iter()
            .find(|view| view.job.name() == name)
            .ok_or_else(|| Error::Fault(format!("job {name} is not in the plan")))
    }
}

/// What tasks share.
#[derive(Debug)]
pub(crate) struct Compute {
    pub(crate) engine: Engine,
    pub(crate) archive: Archive,
    pub(crate) plan: Plan,
    pub(crate) task_rows_max: u64,
    /// How the paths of result files begin.
    pub(crate) files: String,
    /// Bytes of one of them, about.
    pub(crate) result_bytes_max: usize,
}

/// What some days gave.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct OfDays {
    /// By job name.
    pub(crate) written: BTreeMap<String, Written>,
    pub(crate) totals: DayTotals,
}

/// Manifests by job name.
pub(crate) type Manifests = BTreeMap<String, ViewManifest>;

impl Compute {
    /// Every view of some days. What other views read from is kept in memory where there is room for it.
    ///
    /// The engine's types are not seen in what is answered, here and below: that they may go to another thread takes the
    /// compiler seconds for each method of a trait that waits for it.
    pub(crate) fn day_task<'a>(&'a self, days: &'a [i64]) -> BoxFuture<'a, Result<OfDays>> {
        Box::pin(self.of_days(days))
    }

    async fn of_days(&self, days: &[i64]) -> Result<OfDays> {
        let mut outcome = OfDays::default();
        let mut held: BTreeMap<&str, Held> = BTreeMap::new();
        // What is added to a piece later is not among the rows of its query.
        let is_whole = !days.iter().any(|day| self.plan.expired.contains(*day));
        for view in &self.plan.views {
            if !view.wanted || view.job.time_partition() != BucketWidth::Day {
                continue;
            }
            let is_read = |other: &View| {
                let is_over = other.job.input_job() == Some(view.job.name());
                is_over && other.wanted && other.job.time_partition() == BucketWidth::Day
            };
            let is_held = is_whole && self.plan.views.iter().any(is_read);
            let mut holder = is_held.then(|| self.holder(&view.job));
            let written = if let Some(below) = view.job.input_job() {
                let input: Arc<dyn TableProvider> = match held.get(below) {
                    Some(held) => Arc::<MemTable>::clone(&held.table),
                    None => StreamTable::new(Arc::new(self.rows_of_days(
                        below,
                        days,
                        &outcome.written,
                    )?)),
                };
                self.query(&view.job, input, holder.as_mut()).await?
            } else {
                let events = Arc::new(self.events(days));
                let input = StreamTable::new(Arc::<EventStream>::clone(&events));
                let written = self.query(&view.job, input, holder.as_mut()).await?;
                outcome.totals = events.totals();
                self.upon_base(view, days, written).await?
            };
            let rows = holder.map(Holder::finish).transpose();
            if let Some(rows) = rows.map_err(query_error(&view.job))?.flatten() {
                held.insert(view.job.name(), rows);
            }
            outcome.written.insert(view.job.name().to_owned(), written);
        }
        Ok(outcome)
    }

    /// The rows that a view has of some days: those of its new result, if the run computes it, else those of the
    /// published one.
    fn rows_of_days(
        &self,
        view: &str,
        days: &[i64],
        new: &BTreeMap<String, Written>,
    ) -> Result<RowStream> {
        let under = self.plan.view(view)?;
        let new = new.get(view).map(|written| &written.pieces);
        let old = under.published.as_ref().map(|manifest| &manifest.pieces);
        let pieces = if under.wanted { new } else { old };
        let starts = days.iter().map(|day| day * DAY_SECONDS);
        let of_days = starts.filter_map(|start| Some((pieces?.get(&start)?, false)));
        Ok(RowStream::new(&self.archive, &under.job, of_days))
    }

    /// A job whose pieces are months, or all time, from what was computed before it.
    pub(crate) fn coarse<'a>(
        &'a self,
        name: &'a str,
        computed: &'a Manifests,
    ) -> BoxFuture<'a, Result<Written>> {
        Box::pin(self.of_coarse(name, computed))
    }

    async fn of_coarse(&self, name: &str, computed: &Manifests) -> Result<Written> {
        let view = self.plan.view(name)?;
        let job = &view.job;
        let touched = computed.get(name).map(|m| &m.touched);
        let Some(touched) = touched.filter(|touched| !touched.is_empty()) else {
            return Ok(Written::default());
        };
        let Some(below) = job.input_job() else {
            let within =
                |day: &&i64| touched.contains(&job.time_partition().floor(**day * DAY_SECONDS));
            let days: BTreeSet<i64> = self
                .plan
                .files
                .iter()
                .flat_map(|file| file.days.keys())
                .filter(within)
                .copied()
                .collect();
            let days: Vec<i64> = days.into_iter().collect();
            return self
                .query(job, StreamTable::new(Arc::new(self.events(&days))), None)
                .await;
        };
        let under = self.plan.view(below)?;
        let below = computed
            .get(below)
            .or(under.published.as_ref())
            .ok_or_else(|| Error::Fault(format!("job {name} reads from nothing")))?;
        let delta = match &view.published {
            Some(old) if !self.plan.full && view.dirty.is_empty() => {
                self.delta((view, old, touched), (under, below)).await?
            }
            _ => None,
        };
        if let Some(written) = delta {
            return Ok(written);
        }
        let mut within: BTreeMap<UnixSeconds, Vec<(&UnixSeconds, &Piece)>> = BTreeMap::new();
        for (start, piece) in &below.pieces {
            let of = job.time_partition().floor(*start);
            if touched.contains(&of) {
                within.entry(of).or_default().push((start, piece));
            }
        }
        let most = within.values().map(Vec::len).max().unwrap_or(0);
        let room = self.engine.reserve_memory("adding pieces up");
        if job.sums_time_partitions_of(&under.job) && takes_room(&room, most) {
            let mut writer = self.writer(job);
            for (start, pieces) in within {
                let of = (&*under.job, pieces.as_slice());
                merge(&self.archive, (job, start), of, &mut writer).await?;
            }
            return writer.finish().await;
        }
        let pieces = within.into_values().flatten();
        let pieces = pieces.map(|(_, piece)| (piece, false));
        let rows = RowStream::new(&self.archive, &under.job, pieces);
        self.query(job, StreamTable::new(Arc::new(rows)), None)
            .await
    }

    /// Touched pieces as their old values and what changed below them, new less old; nothing if that can't be
    /// done, since a row is no longer given by any event there, or if it is more than making them anew.
    async fn delta(
        &self,
        (view, old, touched): (&View, &ViewManifest, &BTreeSet<UnixSeconds>),
        (under, below): (&View, &ViewManifest),
    ) -> Result<Option<Written>> {
        let Some(before) = &under.published else {
            return Ok(None);
        };
        if before.epoch != old.epoch {
            return Ok(None);
        }
        let (now, then) = (below.among(&below.touched), before.among(&below.touched));
        let rows = |pieces: &Pieces<'_>| pieces.iter().map(|(_, piece)| piece.rows).sum::<u64>();
        let piece_of = |start: &UnixSeconds| view.job.time_partition().floor(*start);
        let anew = below.pieces.iter();
        let anew = anew.filter(|(start, _)| touched.contains(&piece_of(start)));
        let anew: u64 = anew.map(|(_, piece)| piece.rows).sum();
        // What changed is read twice, to see whether rows are gone and to add it up.
        if 2 * (rows(&now) + rows(&then)) >= anew {
            return Ok(None);
        }
        let mut diff = Diff::open(&self.archive, now, then, Vec::new()).await?;
        while let Some(change) = diff.next().await? {
            if change.now.is_none() {
                return Ok(None);
            }
        }
        let changed = below.touched.iter();
        let pieces = changed.flat_map(|start| {
            let now = below.pieces.get(start).map(|piece| (piece, false));
            let then = before.pieces.get(start).map(|piece| (piece, true));
            now.into_iter().chain(then)
        });
        let changes = RowStream::new(&self.archive, &under.job, pieces);
        let scratch = self
            .query(&view.job, StreamTable::new(Arc::new(changes)), None)
            .await?;
        let mut written = Written::default();
        for start in touched {
            let piece = match (old.pieces.get(start), scratch.pieces.get(start)) {
                (Some(held), Some(changes)) => {
                    let sum = self.added(&view.job, *start, held, changes).await?;
                    written.pieces.extend(sum.pieces);
                    continue;
                }
                (Some(piece), None) | (None, Some(piece)) => piece.clone(),
                (None, None) => continue,
            };
            written.pieces.insert(*start, piece);
        }
        Ok(Some(written))
    }

    /// A piece with changes added to its rows.
    async fn added(
        &self,
        job: &Job,
        start: UnixSeconds,
        held: &Piece,
        changes: &Piece,
    ) -> Result<Written> {
        let mut writer = self.writer(job);
        let both = [(&start, held), (&start, changes)];
        merge(&self.archive, (job, start), (job, &both), &mut writer).await?;
        writer.finish().await
    }

    /// The pieces of days of which events are gone: what the result before has of them, and what came since. Of other
    /// days the pieces stay as they are.
    async fn upon_base(&self, view: &View, days: &[i64], mut written: Written) -> Result<Written> {
        for day in days.iter().filter(|day| self.plan.expired.contains(**day)) {
            let start = day * DAY_SECONDS;
            let old = view.base().and_then(|old| old.pieces.get(&start));
            let anonymous = match old {
                Some(old) if view.published.is_none() => {
                    self.anonymous(&view.job, (start, old)).await?
                }
                _ => None,
            };
            let old = anonymous.as_ref().or(old);
            let came = written.pieces.get(&start);
            let (Some(old), Some(came)) = (old, came) else {
                if let Some(old) = old {
                    written.pieces.insert(start, old.clone());
                }
                continue;
            };
            let sum = self.added(&view.job, start, old, came).await?;
            written.pieces.extend(sum.pieces);
        }
        Ok(written)
    }

    /// A piece of the result before, of the same rows without those who are suppressed; nothing if it names no listener.
    async fn anonymous(
        &self,
        job: &Arc<Job>,
        (start, piece): (UnixSeconds, &Piece),
    ) -> Result<Option<Piece>> {
        if job.schema().index_of("listener_id").is_err() {
            return Ok(None);
        }
        let rows = RowStream::new(&self.archive, job, std::iter::once((piece, false)));
        let rows = rows.without(&self.plan.suppressed);
        let failed = query_error(job);
        let context = self.engine.create_session();
        let frame = context.read_table(StreamTable::new(Arc::new(rows)));
        let written = self.write_rows(job, summed(job, frame.map_err(failed)?)?, None);
        let mut pieces = written.await?.pieces;
        Ok(Some(pieces.remove(&start).unwrap_or_default()))
    }

    pub(crate) fn events(&self, days: &[i64]) -> EventStream {
        let plan = &self.plan;
        let base = ExpiredBase::new(&plan.expired, days, plan.since());
        EventStream::new(&self.archive, &plan.files, days, plan.offsets()).with_base(base)
    }

    fn writer<'a>(&'a self, job: &'a Job) -> PieceWriter<'a> {
        PieceWriter::new(
            &self.archive,
            self.files.clone(),
            job,
            self.result_bytes_max,
        )
    }

    /// A job's query over an input.
    pub(crate) async fn frame(
        &self,
        job: &Arc<Job>,
        input: Arc<dyn TableProvider>,
    ) -> Result<DataFrame> {
        let context = self.engine.create_session();
        Ok(plan_job(&context, job, input).await?)
    }

    /// Runs a job's query over an input and writes its rows in the order of piece and key.
    async fn query(
        &self,
        job: &Arc<Job>,
        input: Arc<dyn TableProvider>,
        holder: Option<&mut Holder>,
    ) -> Result<Written> {
        let rows = self.frame(job, input).await?;
        self.write_rows(job, rows, holder).await
    }

    fn holder(&self, job: &Job) -> Holder {
        let bytes_max = self.engine.memory_bytes_per_task() / HELD_SHARE;
        Holder::new(
            job.schema(),
            self.engine.reserve_memory(job.name()),
            bytes_max,
        )
    }

    /// Writes the rows of a job in the order of piece and key, and hands them on to who holds them.
    async fn write_rows(
        &self,
        job: &Arc<Job>,
        rows: DataFrame,
        mut holder: Option<&mut Holder>,
    ) -> Result<Written> {
        let failed = query_error(job);
        let mut batches = rows.execute_stream().await.map_err(failed)?;
        let mut writer = self.writer(job);
        let bytes_max = self.engine.memory_bytes_per_task() / SORTED_SHARE;
        let mut sorter = Sorter::new(job, &self.engine, bytes_max);
        while let Some(batch) = batches.try_next().await.map_err(failed)? {
            let rows = check_rows(job, &batch)?;
            if let Some(holder) = &mut holder {
                holder.take(&rows);
            }
            if !sorter.take(&rows)? {
                if let Some(holder) = holder {
                    holder.give_up();
                }
                sorter.spill(batches, &self.engine, &mut writer).await?;
                return writer.finish().await;
            }
        }
        // What the query needed is free before rows are sorted.
        drop(batches);
        sorter.write(&mut writer).await?;
        writer.finish().await
    }
}

/// The rows of a job, those of the same key added up.
fn summed(job: &Job, rows: DataFrame) -> Result<DataFrame> {
    let failed = query_error(job);
    let schema = job.schema();
    let names = schema.fields().iter().map(|field| field.name().as_str());
    let key: Vec<_> = names
        .clone()
        .filter(|name| *name != COUNT)
        .map(ident)
        .collect();
    // Sums of 64-bit integers wrap silently; a cast that does not fit fails.
    let wide = cast(ident(COUNT), DataType::Decimal128(38, 0));
    let rows = rows.aggregate(key, vec![sum(wide).alias(COUNT)]);
    let columns = schema.fields().iter();
    let columns = columns
        .map(|field| cast(ident(field.name()), field.data_type().clone()).alias(field.name()));
    let rows = rows.map_err(failed)?.select(columns.collect::<Vec<_>>());
    Ok(rows.map_err(failed)?)
}

/// Writes down every manifest before anything of it is published.
pub(crate) async fn record(results: &Results<'_>, computed: &Computed) -> Result<()> {
    for manifest in computed.manifests.values() {
        results.create(manifest).await?;
    }
    Ok(())
}

/// The rows of a piece that a manifest has, or none.
pub(crate) fn rows_of(manifest: &ViewManifest) -> u64 {
    manifest
        .pieces
        .values()
        .map(|piece: &Piece| piece.rows)
        .sum()
}
