//! What the events of the archive give, counted by the view's own queries and by nothing that a run left behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use jobs::{Catalog, Engine, Job, check_rows, plan_job};
use schemas::seam::{Cut, Offset};
use stores::archive::Archive;
use tokio_util::sync::CancellationToken;

use super::kept::Kept;
use super::side::Side;
use super::sides::Sides;
use crate::archive::{EventStream, FileEntry, RecordFilter, count_day_events, plan_day_tasks};
use crate::concurrency::run_concurrently;
use crate::query_error;
use crate::table::{RowSource, StreamTable};
use crate::{Error, Progress, Result};

/// The jobs from the one that reads the events up to `job`.
pub(crate) fn chain(catalog: &Catalog, job: &Arc<Job>) -> Result<Vec<Arc<Job>>> {
    let mut chain = vec![Arc::clone(job)];
    while let Some(below) = chain.last().and_then(|job| job.input_job()) {
        let found = catalog.jobs().iter().find(|job| job.name() == below);
        let found = found.ok_or_else(|| Error::Fault(format!("unknown job {below}")))?;
        chain.push(Arc::clone(found));
    }
    chain.reverse();
    Ok(chain)
}

/// What is counted: events, or rows of a result.
type Input = Arc<dyn RowSource>;

/// Counts events.
#[derive(Debug, Clone)]
pub(crate) struct Recount {
    pub(crate) engine: Engine,
    pub(crate) archive: Archive,
    pub(crate) files: Arc<Vec<FileEntry>>,
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
        count_day_events(&self.files, since, cuts, [])
    }

    pub(crate) fn events(&self, days: &[i64], to: &[Offset], keep: &RecordFilter) -> EventStream {
        EventStream::new(&self.archive, &self.files, days, to.to_vec())
            .with_base(self.kept.base(days))
            .with_filter(keep.clone())
    }

    /// Adds what the records of some days below `to` give to a side.
    pub(crate) async fn add(
        &self,
        (side, sides): (Side, &Arc<Sides>),
        days: &BTreeMap<i64, u64>,
        (to, keep): (&[Offset], &RecordFilter),
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<u64> {
        let tasks = plan_day_tasks(days, self.task_rows_max).into_iter();
        let tasks = tasks.map(|(of_task, rows)| {
            let (recount, sides) = (self.clone(), Arc::clone(sides));
            let events = self.events(&of_task, to, keep);
            // What a result holds came before everything that is counted from some offsets on.
            let kept = match keep {
                RecordFilter::First => self.kept.rows(&self.archive, &of_task),
                RecordFilter::FirstSince(_) | RecordFilter::Repeats(..) => None,
            };
            async move {
                let events = (&*recount.chain, Arc::new(events) as Input);
                let mut added = recount.add_rows(side, &sides, events).await?;
                if let (Some(kept), Some((_, others))) = (kept, recount.chain.split_first()) {
                    let kept = (others, Arc::new(kept) as Input);
                    added += recount.add_rows(side, &sides, kept).await?;
                }
                Ok((rows, added))
            }
        });
        let mut added = 0;
        let take = |(rows, of_task)| {
            added += of_task;
            progress.advance(rows);
            Ok(())
        };
        run_concurrently(self.engine.threads(), tasks, stop, take).await?;
        Ok(added)
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
        let context = self.engine.create_session();
        let failed = query_error(job);
        let mut batches = self.stream(&context, jobs, input).await?;
        while let Some(batch) = batches.try_next().await.map_err(failed)? {
            sides.add(side, &check_rows(job, &batch)?)?;
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
        let mut input: Arc<dyn TableProvider> = StreamTable::new(input);
        for job in jobs {
            input = plan_job(context, job, input).await?.into_view();
        }
        let frame = context.read_table(input).map_err(query_error(last))?;
        Ok(frame.execute_stream().await.map_err(query_error(last))?)
    }
}
