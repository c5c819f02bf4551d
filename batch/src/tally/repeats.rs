//! The records of a stretch of the log that repeat an event which stood before them: what live state counts once too often
//! where its window did not reach back so far.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use jobs::{FoldOutput, Job, check_rows};
use schemas::seam::Cut;
use tokio_util::sync::CancellationToken;

use super::compute::Compute;
use crate::Result;
use crate::archive::{RecordFilter, RepeatFilter, plan_day_tasks};
use crate::lease::check_stop;
use crate::query_error;
use crate::table::StreamTable;

impl Compute {
    /// Notes the rows of a view that the records give which repeat an event, of those from the cuts `since` on: group, row
    /// and count, in any order, a row perhaps more than once. Only of some days, if they are named.
    pub(crate) async fn repeats(
        &self,
        (job, which): (&Arc<Job>, RepeatFilter),
        (since, days): (&[Cut], Option<&BTreeSet<i64>>),
        mut note: impl FnMut(&[u8], &[u8], i64),
        stop: &CancellationToken,
    ) -> Result<()> {
        let failed = query_error(job);
        let since = since.iter().map(|cut| cut.next_offset).collect();
        let keep = RecordFilter::Repeats(which, Arc::new(since));
        for (mut of_task, _) in plan_day_tasks(&self.plan.days, self.task_rows_max) {
            check_stop(stop)?;
            of_task.retain(|day| days.is_none_or(|days| days.contains(day)));
            if of_task.is_empty() {
                continue;
            }
            let events = self.events(&of_task).with_filter(keep.clone());
            let rows = self.frame(job, StreamTable::new(Arc::new(events))).await?;
            let mut batches = rows.execute_stream().await.map_err(failed)?;
            while let Some(batch) = batches.try_next().await.map_err(failed)? {
                each(job, &batch, &mut note)?;
            }
        }
        Ok(())
    }
}

fn each(
    job: &Arc<Job>,
    batch: &RecordBatch,
    mut note: impl FnMut(&[u8], &[u8], i64),
) -> Result<()> {
    let folded = FoldOutput {
        job: Arc::clone(job),
        rows: check_rows(job, batch)?,
    };
    let (groups, rows, counts) = folded.encode()?;
    for ((group, row), count) in groups.iter().zip(rows.iter()).zip(counts.values()) {
        note(group.unwrap_or_default(), row.unwrap_or_default(), *count);
    }
    Ok(())
}
