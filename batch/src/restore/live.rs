//! What is live of a view, and what the events give that live state had counted when it was read.
//!
//! Live state moves while it is read, page by page in the order of keys. Each page is of one moment of its slot, and says
//! where the fence stood: so a key counts the events below the fence of its own page. Those below the fence of a
//! partition's first page count for all keys; those between the fences of two pages only for keys after the first of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BinaryArray, BooleanArray, Int64Array, RecordBatch};
use arrow::compute::{filter, filter_record_batch};
use arrow::datatypes::{Int32Type, Int64Type};
use datafusion::physical_plan::streaming::PartitionStream;
use futures::TryStreamExt;
use jobs::{AggregateFold, AggregateRows, Catalog, Engine, Job, Rollup};
use schemas::seam::{Cut, Epoch, Offset, PartitionState, Runs, is_readable};
use schemas::source::Source;
use stores::live::PartitionId;
use stores::live_scan::ScanKey;
use tokio_util::sync::CancellationToken;

use super::recount::{Recount, chain};
use super::side::Side;
use super::sides::Sides;
use crate::archive::{RecordFilter, RepeatFilter, plan_day_tasks};
use crate::lease::check_stop;
use crate::{BatchPorts, Error, Progress, Result};

/// Events that may come while live state is read: they are held in memory.
const MOVED_EVENTS_MAX: usize = 2_000_000;

/// Where a fence stood, for the keys after one of them.
#[derive(Debug, Clone)]
struct Stood {
    /// The key after which it counts; nothing for all.
    after: Option<ScanKey>,
    position: Cut,
}

/// What is read of live state.
pub(crate) struct LiveSide<'a> {
    pub(crate) ports: &'a BatchPorts,
    pub(crate) source: Source,
    /// The run whose rows are compared.
    pub(crate) newest: Epoch,
    pub(crate) runs: &'a Runs,
    pub(crate) partitions: u32,
    /// Rows of a page.
    pub(crate) rows_max: usize,
    /// The view whose live parts are read, and how they become those of the view that is compared.
    pub(crate) from: Arc<Job>,
    pub(crate) rollup: Option<Rollup>,
}

/// What was read of live state: by partition, where the fences stood.
#[derive(Debug)]
pub(crate) struct LiveRead {
    stood: Vec<Vec<Stood>>,
}

impl LiveRead {
    /// By partition, where the fence stood first.
    pub(crate) fn first(&self) -> Vec<Offset> {
        self.firsts().map(|cut| cut.next_offset).collect()
    }

    fn firsts(&self) -> impl Iterator<Item = Cut> {
        let first = self.stood.iter().map(|stood| stood.first());
        first.map(|stood| stood.map_or_else(Cut::start, |stood| stood.position))
    }

    /// By partition, where it stood last.
    pub(crate) fn last(&self) -> Vec<Cut> {
        let last = self.stood.iter().map(|stood| stood.last());
        last.map(|stood| stood.map_or_else(Cut::start, |stood| stood.position))
            .collect()
    }
}

impl<'a> LiveSide<'a> {
    /// The live side of a view.
    pub(crate) fn of(
        (ports, catalog): (&'a BatchPorts, &Catalog),
        job: &Arc<Job>,
        (newest, runs): (Epoch, &'a Runs),
        (partitions, rows_max): (u32, usize),
    ) -> Self {
        let rollup = Rollup::find(job, catalog.jobs());
        let from = rollup.as_ref().map_or(job, Rollup::base);
        Self {
            ports,
            source: job.source(),
            newest,
            runs,
            partitions,
            rows_max: rows_max.max(1),
            from: Arc::clone(from),
            rollup,
        }
    }

    /// Adds what is live after the run; or says why that can't be compared.
    pub(crate) async fn add(
        &self,
        sides: &Sides,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<std::result::Result<LiveRead, String>> {
        let mut stood = Vec::new();
        for partition in 0..self.partitions {
            match self.add_slot(partition, sides, (progress, stop)).await? {
                Ok(of_slot) => stood.push(of_slot),
                Err(why) => return Ok(Err(why)),
            }
        }
        Ok(Ok(LiveRead { stood }))
    }

    async fn add_slot(
        &self,
        partition: u32,
        sides: &Sides,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<std::result::Result<Vec<Stood>, String>> {
        let slot = PartitionId {
            source: self.source,
            partition,
        };
        let mut stood: Vec<Stood> = Vec::new();
        let mut generation = None;
        let mut after = None;
        loop {
            check_stop(stop)?;
            let (live, view) = (&self.ports.live, self.from.view());
            let epochs = (self.newest + 1, Epoch::MAX >> 1);
            let page = live
                .scan_deltas(slot, view, epochs, after.clone(), self.rows_max)
                .await?;
            let found = match self.whole(partition, page.state) {
                Ok(found) => found,
                Err(why) => return Ok(Err(why)),
            };
            if *generation.get_or_insert(found.generation) != found.generation {
                return Ok(Err(format!(
                    "live state of partition {partition} was rebuilt while it was read"
                )));
            }
            if stood
                .last()
                .is_none_or(|last| last.position != found.position)
            {
                let position = found.position;
                stood.push(Stood { after, position });
            }
            let deltas = &page.deltas;
            let rows = self.rows(&deltas.rows)?;
            sides.add_encoded(Side::Live, &deltas.groups, &rows, &deltas.counts)?;
            progress.advance(rows.len() as u64);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(Ok(stood)),
            }
        }
    }

    /// The slot, if its live parts join the rows of the run; else why not.
    fn whole(
        &self,
        partition: u32,
        slot: Option<PartitionState>,
    ) -> std::result::Result<PartitionState, String> {
        let Some(slot) = slot else {
            return Err(format!(
                "partition {partition} has no live state: run `backstitch speed`"
            ));
        };
        let place = usize::try_from(partition).unwrap_or(usize::MAX);
        if !is_readable(&slot, place, self.newest, self.runs, self.from.view()) {
            return Err(format!(
                "live state of partition {partition} does not start at the cut of run {}: run `backstitch speed`, which rebuilds it",
                self.newest
            ));
        }
        Ok(slot)
    }

    /// Row keys of the view that is compared.
    fn rows(&self, rows: &BinaryArray) -> Result<BinaryArray> {
        match &self.rollup {
            None => Ok(rows.clone()),
            Some(rollup) => rollup
                .roll_up_keys(rows)
                .map_err(|e| Error::fault("a key of live state", e)),
        }
    }

    /// Adds what the events after the run give that live state had counted when it was read. The archive has
    /// them all. Answers false if too many came meanwhile.
    pub(crate) async fn add_events(
        &self,
        (engine, catalog): (&Engine, &Catalog),
        recount: &Recount,
        (read, cuts): (&LiveRead, &[Cut]),
        sides: &Arc<Sides>,
        told: (&dyn Progress, &CancellationToken),
    ) -> Result<bool> {
        let since: Arc<Vec<Offset>> = Arc::new(cuts.iter().map(|cut| cut.next_offset).collect());
        let (first, last) = (read.first(), read.last());
        let days = recount.days(Some(cuts), &last);
        let keep = RecordFilter::FirstSince(Arc::clone(&since));
        let side = (Side::EventsLive, sides);
        recount.add(side, &days, (&first, &keep), told).await?;
        let ends: Vec<Offset> = last.iter().map(|cut| cut.next_offset).collect();
        for (side, which) in [
            (Side::Repeated, RepeatFilter::All),
            (Side::RepeatedElsewhere, RepeatFilter::InOtherPartition),
        ] {
            let keep = RecordFilter::Repeats(which, Arc::clone(&since));
            let side = (side, sides);
            if recount.add(side, &days, (&ends, &keep), told).await? == 0 {
                break;
            }
        }
        if first == ends {
            return Ok(true);
        }
        let from: Vec<Cut> = read.firsts().collect();
        let days = recount.days(Some(&from), &last);
        let moved = moved(recount, engine, days, (&first, &ends));
        let Some(moved) = moved.await? else {
            return Ok(false);
        };
        let fold = AggregateFold::new(engine, &chain(catalog, &self.from)?).await?;
        for (partition, stood) in read.stood.iter().enumerate() {
            for pair in stood.windows(2) {
                check_stop(told.1)?;
                if let [before, then] = pair {
                    let stretch = (before.position.next_offset, then.position.next_offset);
                    let events = of_stretch(&moved, partition, stretch)?;
                    self.add_moved(&fold, &events, then.after.as_ref(), sides)
                        .await?;
                }
            }
        }
        Ok(true)
    }

    /// Adds events that came between two pages, for keys after the first of them.
    async fn add_moved(
        &self,
        fold: &AggregateFold,
        events: &RecordBatch,
        after: Option<&ScanKey>,
        sides: &Sides,
    ) -> Result<()> {
        if events.num_rows() == 0 {
            return Ok(());
        }
        let Some(folded) = fold.run(events).await?.pop() else {
            return Ok(());
        };
        let AggregateRows {
            groups,
            rows,
            counts,
            ..
        } = folded;
        let is_after = |(group, row): (Option<&[u8]>, Option<&[u8]>)| {
            let place = (group.unwrap_or_default(), row.unwrap_or_default());
            let after = after.map(|(group, row)| (group.as_slice(), row.as_slice()));
            Some(after.is_none_or(|after| place > after))
        };
        let kept: BooleanArray = groups.iter().zip(rows.iter()).map(is_after).collect();
        let fault = |e| Error::fault("leaving rows out", e);
        let groups = BinaryArray::from(filter(&groups, &kept).map_err(fault)?.to_data());
        let rows = BinaryArray::from(filter(&rows, &kept).map_err(fault)?.to_data());
        let counts = Int64Array::from(filter(&counts, &kept).map_err(fault)?.to_data());
        sides.add_encoded(Side::EventsLive, &groups, &self.rows(&rows)?, &counts)
    }
}

/// The events between two places of the log; nothing if they are too many to be held.
async fn moved(
    recount: &Recount,
    engine: &Engine,
    days: BTreeMap<i64, u64>,
    (from, to): (&[Offset], &[Offset]),
) -> Result<Option<Vec<RecordBatch>>> {
    let keep = RecordFilter::FirstSince(Arc::new(from.to_vec()));
    let (mut moved, mut rows) = (Vec::new(), 0);
    let fault = |e| Error::fault("reading events", e);
    for (days, _) in plan_day_tasks(&days, recount.task_rows_max) {
        let events = recount.events(&days, to, &keep);
        let mut batches = events.execute(engine.create_session().task_ctx());
        while let Some(batch) = batches.try_next().await.map_err(fault)? {
            rows += batch.num_rows();
            if rows > MOVED_EVENTS_MAX {
                return Ok(None);
            }
            moved.push(batch);
        }
    }
    Ok(Some(moved))
}

/// Those of one partition between two offsets.
fn of_stretch(
    moved: &[RecordBatch],
    partition: usize,
    (from, to): (Offset, Offset),
) -> Result<RecordBatch> {
    let fault = |e| Error::fault("events between two pages", e);
    let mut parts = Vec::new();
    for batch in moved {
        let wrong = || Error::Fault("events without a partition and offset".to_owned());
        let column = |name: &str| batch.column_by_name(name).ok_or_else(wrong);
        let partitions = column("partition")?.as_primitive::<Int32Type>();
        let offsets = column("offset")?.as_primitive::<Int64Type>();
        let is_within = |(at, offset): (&i32, &i64)| {
            let is_of = usize::try_from(*at).is_ok_and(|at| at == partition);
            Some(is_of && (from..to).contains(offset))
        };
        let kept = partitions.values().iter().zip(offsets.values());
        let kept: BooleanArray = kept.map(is_within).collect();
        parts.push(filter_record_batch(batch, &kept).map_err(fault)?);
    }
    let schema = schemas::plays::schema();
    arrow::compute::concat_batches(&schema, &parts).map_err(fault)
}
