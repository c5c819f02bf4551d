//! What the events of the archive give, counted by the view's own queries and by nothing that a run left behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use jobs::{Catalog, Engine, Job, checked, query};
use schemas::seam::{Cut, Offset};
use stores::archive::Archive;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::kept::Kept;
use super::sides::{Side, Sides};
use crate::archive::{EventStream, Manifest, Repeats};
use crate::failed_of;
use crate::run::go_on;
use crate::table::{Rows, Table};
use crate::{Error, Progress, Result};

/// The jobs from the one that reads the events up to `job`.
pub(crate) fn chain(catalog: &Catalog, job: &Arc<Job>) -> Result<Vec<Arc<Job>>> {
    let mut chain = vec![Arc::clone(job)];
    while let Some(below) = chain.last().and_then(|job| job.over()) {
        let found = catalog.jobs().iter().find(|job| job.name() == below);
        let found = found.ok_or_else(|| Error::Fault(format!("there is no job {below}")))?;
        chain.push(Arc::clone(found));
    }
    chain.reverse();
    Ok(chain)
}

/// Which records count.
#[derive(Debug, Clone)]
pub(crate) enum Records {
    /// Of each event the first one.
    First,
    /// The same, of those from these offsets on, by partition.
    FirstSince(Vec<Offset>),
    /// The records that repeat an event, from these offsets on.
    RepeatsSince(Repeats, Vec<Offset>),
}

/// What is counted: events, or rows of a result.
type Input = Arc<dyn Rows>;

/// Counts events.
#[derive(Debug, Clone)]
pub(crate) struct Recount {
    pub(crate) engine: Engine,
    pub(crate) archive: Archive,
    pub(crate) manifests: Arc<Vec<Manifest>>,
    /// What stands in the place of events that are gone.
    pub(crate) kept: Arc<Kept>,
    /// From the job that reads the events up to the one that is counted.
    pub(crate) chain: Vec<Arc<Job>>,
    /// Records that one task reads, about.
    pub(crate) task_rows_max: u64,
}

impl Recount {
    /// The days of the records between two places of the log, with how many records the archive has of
    /// them; of all records, if there is no first place.
    pub(crate) fn days(&self, since: Option<&[Cut]>, cuts: &[Cut]) -> BTreeMap<i64, u64> {
        let mut days = BTreeMap::new();
        for manifest in self.manifests.iter() {
            if since.is_none_or(|since| manifest.overlaps(since, cuts)) {
                days.extend(manifest.days.keys().map(|day| (*day, 0)));
            }
        }
        for manifest in self.manifests.iter() {
            for (day, held) in &manifest.days {
                if let Some(rows) = days.get_mut(day) {
                    *rows += held.rows;
                }
            }
        }
        days
    }

    pub(crate) fn events(&self, days: &[i64], to: &[Offset], records: &Records) -> EventStream {
        let events = EventStream::new(&self.archive, &self.manifests, days, to.to_vec());
        let events = events.over(self.kept.base(days));
        match records {
            Records::First => events,
            Records::FirstSince(since) => events.since(since.clone()),
            Records::RepeatsSince(which, since) => events.repeats(*which, since.clone()),
        }
    }

    /// Adds what the records of some days below `to` give to a side.
    pub(crate) async fn add(
        &self,
        (side, sides): (Side, &Arc<Sides>),
        days: &BTreeMap<i64, u64>,
        (to, records): (&[Offset], &Records),
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<u64> {
        let mut added = 0;
        let mut waiting = tasks(days, self.task_rows_max).into_iter();
        let mut running: JoinSet<Result<(u64, u64)>> = JoinSet::new();
        loop {
            go_on(stop)?;
            while running.len() < self.engine.threads() {
                let Some((of_task, rows)) = waiting.next() else {
                    break;
                };
                let (recount, sides) = (self.clone(), Arc::clone(sides));
                let events = self.events(&of_task, to, records);
                // What a result holds came before everything that is counted from some offsets on.
                let kept = match records {
                    Records::First => self.kept.rows(&self.archive, &of_task),
                    Records::FirstSince(_) | Records::RepeatsSince(..) => None,
                };
                running.spawn(async move {
                    let events = (&*recount.chain, Arc::new(events) as Input);
                    let mut added = recount.add_rows(side, &sides, events).await?;
                    if let (Some(kept), Some((_, others))) = (kept, recount.chain.split_first()) {
                        let kept = (others, Arc::new(kept) as Input);
                        added += recount.add_rows(side, &sides, kept).await?;
                    }
                    Ok((rows, added))
                });
            }
            let Some(ended) = running.join_next().await else {
                return Ok(added);
            };
            let (rows, of_task) = ended.map_err(|e| Error::fault("a task ended", e))??;
            added += of_task;
            progress.advance(rows);
        }
    }

    /// Adds the rows of jobs over an input, one after the other. Returns their number.
    async fn add_rows(
        &self,
        side: Side,
        sides: &Sides,
        (jobs, input): (&[Arc<Job>], Input),
    ) -> Result<u64> {
        let mut added = 0;
        let Some(job) = self.chain.last() else {
            return Ok(added);
        };
        let context = self.engine.session();
        let failed = failed_of(job);
        let mut batches = self.stream(&context, jobs, input).await?;
        while let Some(batch) = batches.try_next().await.map_err(failed)? {
            sides.add(side, &checked(job, &batch)?)?;
            added += batch.num_rows() as u64;
        }
        Ok(added)
    }

    /// The last job's rows over an input; without jobs what comes in.
    async fn stream(
        &self,
        context: &SessionContext,
        jobs: &[Arc<Job>],
        input: Input,
    ) -> Result<SendableRecordBatchStream> {
        let Some(last) = jobs.last() else {
            return Ok(input.execute(context.task_ctx()));
        };
        let mut input: Arc<dyn TableProvider> = Table::of(input);
        for job in jobs {
            input = query(context, job, input).await?.into_view();
        }
        let frame = context.read_table(input).map_err(failed_of(last))?;
        Ok(frame.execute_stream().await.map_err(failed_of(last))?)
    }
}

/// Days that are counted together, and their records.
pub(crate) fn tasks(days: &BTreeMap<i64, u64>, rows_max: u64) -> Vec<(Vec<i64>, u64)> {
    let mut tasks: Vec<(Vec<i64>, u64)> = Vec::new();
    for (day, rows) in days {
        match tasks.last_mut() {
            Some((days, held)) if *held + rows <= rows_max => {
                days.push(*day);
                *held += rows;
            }
            _ => tasks.push((vec![*day], *rows)),
        }
    }
    tasks
}
