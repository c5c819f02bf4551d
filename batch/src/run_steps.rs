//! The stages that runs of all sources share, from selecting the run to pruning live epochs.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::Job;
use schemas::seam::{Cut, Epoch, Offset, Run, RunState};
use schemas::source::Source;
use stores::live::PartitionId;
use tokio_util::sync::CancellationToken;

use crate::report::RunReport;
use crate::results::{Manifest, Results, result_names};
use crate::seal::{seal_run, verify_cuts};
use crate::{Batch, Error, Progress, Result, RunRequest};

const GARBAGE_ROWS: usize = 20_000;

/// The input that all stages of a run share.
#[derive(Clone, Copy)]
pub(crate) struct RunContext<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) results: Results<'a>,
    pub(crate) request: &'a RunRequest,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) stop: &'a CancellationToken,
}

/// The plan of a run, and the report that its stages complete.
pub(crate) struct PlannedRun<P> {
    pub(crate) plan: P,
    pub(crate) report: RunReport,
}

/// The tables that a run has published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PublishedTables<'a> {
    pub(crate) epoch: Epoch,
    pub(crate) stamp_us: i64,
    pub(crate) tables: &'a [String],
}

/// Checks that all requested jobs exist.
pub(crate) fn check_job_names<K>(jobs: &[Arc<Job<K>>], request: &RunRequest) -> Result<()> {
    let known: Vec<&str> = jobs.iter().map(|job| job.name()).collect();
    for name in &request.jobs {
        if !known.contains(&name.as_str()) {
            return Err(Error::Request(format!(
                "unknown batch job {name:?}; the jobs are {}",
                known.join(", ")
            )));
        }
    }
    Ok(())
}

/// Selects the run to execute: the sealed one, or for single jobs the newest complete one.
/// Verifies that its cuts belong to this log.
pub(crate) async fn select_run(context: &RunContext<'_>, partitions: usize) -> Result<Run> {
    let run = find_run(context, partitions).await?;
    verify_cuts(&context.batch.ports, context.results.source, &run.cuts).await?;
    Ok(run)
}

async fn find_run(context: &RunContext<'_>, partitions: usize) -> Result<Run> {
    let (batch, source) = (context.batch, context.results.source);
    let partitions = u32::try_from(partitions).map_err(|e| Error::fault("partitions", e))?;
    if context.request.jobs.is_empty() {
        return seal_run(
            &batch.ports,
            &batch.options,
            source,
            partitions,
            context.stop,
        )
        .await;
    }
    let runs = batch.ports.views.runs(source).await?.runs;
    if let Some(open) = runs.open_run() {
        return Err(Error::Request(format!(
            "run {} is not complete: finish it with `backstitch batch run`, then run single jobs",
            open.epoch
        )));
    }
    if let Some(last) = runs.iter().next_back()
        && last.state == RunState::Abandoned
    {
        return Err(Error::Request(format!(
            "run {} failed its check, so single jobs cannot be added to an earlier run: run `backstitch batch run` first (with --force if the findings of the check are intended), then single jobs",
            last.epoch
        )));
    }
    runs.get(runs.newest_complete()).cloned().ok_or_else(|| {
        Error::Request(
            "single jobs use the cuts of a complete run, and there is none yet: run `backstitch batch run` first"
                .to_owned(),
        )
    })
}

/// Accepts a result that has no faults or was forced. Otherwise abandons the run and deletes the
/// result's files.
pub(crate) async fn enforce_check<M: Manifest>(
    context: &RunContext<'_>,
    faults: Vec<String>,
    report: &mut RunReport,
) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    if context.request.force {
        report.warnings.extend(faults);
        return Ok(());
    }
    let (batch, results) = (context.batch, &context.results);
    let (source, epoch, reason) = (results.source, report.epoch, faults.join("; "));
    let mut error = Error::Check { epoch, reason };
    if context.request.jobs.is_empty() {
        report.warnings.extend(faults.iter().cloned());
        report.faults = faults;
        if let Err(abandon_error) = abandon(batch, source, report).await {
            error = abandon_error;
        }
    }
    let deleted = batch.delete_unreferenced_results::<M>(results, context.stop);
    if let Err(error) = deleted.await {
        tracing::warn!(%source, %error, "cannot delete the result that failed its check; the next run does");
    }
    Err(error)
}

async fn abandon(batch: &Batch, source: Source, report: &RunReport) -> Result<()> {
    record_report(batch, source, report).await?;
    let (views, now_ms) = (&batch.ports.views, batch.ports.clock.now_ms());
    Ok(views.abandon(source, report.epoch, now_ms).await?)
}

pub(crate) async fn record_report(batch: &Batch, source: Source, report: &RunReport) -> Result<()> {
    let value = serde_json::to_value(report).map_err(|e| Error::fault("writing a report", e))?;
    let views = &batch.ports.views;
    Ok(views.set_report(source, report.epoch, &value).await?)
}

/// Records that the results are about to be published. Returns the stamp of their rows.
pub(crate) async fn begin_publishing<M: Manifest>(
    context: &RunContext<'_>,
    epoch: Epoch,
    manifests: &BTreeMap<String, M>,
) -> Result<i64> {
    let (names, now_ms) = (result_names(manifests), context.batch.ports.clock.now_ms());
    let (views, source) = (&context.batch.ports.views, context.results.source);
    Ok(views
        .begin_publishing(source, epoch, &names, now_ms)
        .await?)
}

/// Records the published views as complete, and the run unless it computed single jobs.
/// `manifests` has the result of each view.
pub(crate) async fn complete<M: Manifest>(
    context: &RunContext<'_>,
    epoch: Epoch,
    stamp_us: i64,
    manifests: &BTreeMap<String, M>,
) -> Result<()> {
    let (names, now_ms) = (result_names(manifests), context.batch.ports.clock.now_ms());
    let (views, source) = (&context.batch.ports.views, context.results.source);
    let run_ends = context.request.jobs.is_empty();
    Ok(views
        .complete(source, (epoch, stamp_us), &names, run_ends, now_ms)
        .await?)
}

/// Adds a warning if the cleanup after publishing failed. The next run cleans up.
pub(crate) fn add_cleanup_warning(source: Source, outcome: Result<()>, report: &mut RunReport) {
    if let Err(error) = outcome {
        tracing::warn!(%source, %error, "the run is published, but its cleanup failed; the next run repeats it");
        let warning = format!(
            "the run is published, but its cleanup failed and is repeated by the next run: {error}"
        );
        report.warnings.push(warning);
    }
}

/// Starts the cleanup after publishing: unregisters all other tables of the source, and waits for
/// the grace period of their readers. Returns false if the run must stop. Then the next run cleans
/// up, since a stopping run may have lost its lease.
pub(crate) async fn retire_tables(
    context: &RunContext<'_>,
    published: PublishedTables<'_>,
    report: &RunReport,
) -> Result<bool> {
    let (batch, source) = (context.batch, context.results.source);
    if context.request.jobs.is_empty() {
        // The report is complete enough if the process ends within the grace period.
        record_report(batch, source, report).await?;
    }
    if context.stop.is_cancelled() {
        return Ok(false);
    }
    let version = (published.epoch, published.stamp_us);
    let views = &batch.ports.views;
    views
        .forget_views(source, version, published.tables)
        .await?;
    Ok(batch.wait_grace_period(context.stop).await)
}

/// Prunes the live epochs that the rows of all `views` include.
pub(crate) async fn prune_epochs(
    context: &RunContext<'_>,
    views: &[String],
    partitions: usize,
) -> Result<()> {
    let (ports, source) = (&context.batch.ports, context.results.source);
    let runs = ports.views.runs(source).await?;
    let newest = |view: &String| runs.complete_epochs.get(view).copied().unwrap_or(0);
    let epoch = views.iter().map(newest).min().unwrap_or(0);
    if epoch == 0 {
        return Ok(());
    }
    for (index, partition) in (0..partitions).zip(0_u32..) {
        let id = PartitionId { source, partition };
        let Some(cut) = runs.runs.cut(epoch, index) else {
            continue;
        };
        ports.live.prune_through(id, epoch, cut).await?;
        while !context.stop.is_cancelled()
            && ports.live.collect_garbage(id, GARBAGE_ROWS).await? == GARBAGE_ROWS
        {}
    }
    Ok(())
}

/// Warns of records after the cuts, which the run does not include.
pub(crate) fn lag_warnings(source: Source, cuts: &[Cut], ends: &[Offset]) -> Vec<String> {
    let records: Offset = cuts
        .iter()
        .zip(ends)
        .map(|(cut, end)| end.saturating_sub(cut.next_offset).max(0))
        .sum();
    if records == 0 {
        return Vec::new();
    }
    vec![format!(
        "this run does not include {records} records of {source} that the speed layer has not processed yet; run `backstitch speed`, and the next run includes them"
    )]
}
