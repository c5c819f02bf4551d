//! The steps that runs of all sources share, from selecting the run to pruning live epochs.

use std::collections::BTreeMap;

use schemas::seam::{Cut, Epoch, Offset, Run, RunState};
use schemas::source::Source;
use stores::live::PartitionId;
use tokio_util::sync::CancellationToken;

use crate::report::{RunReport, Stages};
use crate::results::{Manifest, Results};
use crate::seal::{seal_run, verify_cuts};
use crate::{Batch, Error, Result, RunRequest};

const GARBAGE_ROWS: usize = 20_000;

/// The tables that a run has published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PublishedTables<'a> {
    pub(crate) source: Source,
    pub(crate) epoch: Epoch,
    pub(crate) stamp_us: i64,
    pub(crate) tables: &'a [String],
}

impl Batch {
    /// Checks that all requested jobs exist.
    pub(crate) fn check_job_names(known: &[&str], request: &RunRequest) -> Result<()> {
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
    pub(crate) async fn select_run(
        &self,
        source: Source,
        request: &RunRequest,
        partitions: usize,
        stop: &CancellationToken,
    ) -> Result<Run> {
        let run = self.find_run(source, request, partitions, stop).await?;
        verify_cuts(&self.ports, source, &run.cuts).await?;
        Ok(run)
    }

    async fn find_run(
        &self,
        source: Source,
        request: &RunRequest,
        partitions: usize,
        stop: &CancellationToken,
    ) -> Result<Run> {
        let partitions = u32::try_from(partitions).map_err(|e| Error::fault("partitions", e))?;
        if request.jobs.is_empty() {
            return seal_run(&self.ports, &self.options, source, partitions, stop).await;
        }
        let runs = self.ports.views.runs(source).await?.runs;
        if let Some(open) = runs.open() {
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
        runs.get(runs.newest()).cloned().ok_or_else(|| {
            Error::Request(
                "single jobs use the cuts of a complete run, and there is none yet: run `backstitch batch run` first"
                    .to_owned(),
            )
        })
    }

    /// Accepts a result that has no faults or was forced. Otherwise abandons the run and deletes
    /// the result's files.
    pub(crate) async fn enforce_check<M: Manifest>(
        &self,
        results: &Results<'_>,
        request: &RunRequest,
        faults: Vec<String>,
        report: &mut RunReport,
        stop: &CancellationToken,
    ) -> Result<()> {
        if faults.is_empty() {
            return Ok(());
        }
        if request.force {
            report.warnings.extend(faults);
            return Ok(());
        }
        let (source, epoch, faults_text) = (results.source, report.epoch, faults.join("; "));
        let mut error = Error::Check {
            epoch,
            what: faults_text,
        };
        if request.jobs.is_empty() {
            report.warnings.extend(faults.iter().cloned());
            report.faults = faults;
            if let Err(abandon_error) = self.abandon(source, report).await {
                error = abandon_error;
            }
        }
        if let Err(error) = self.delete_unreferenced_results::<M>(results, stop).await {
            tracing::warn!(%source, %error, "cannot delete the result that failed its check; the next run does");
        }
        Err(error)
    }

    async fn abandon(&self, source: Source, report: &RunReport) -> Result<()> {
        self.record_report(source, report).await?;
        let (views, now_ms) = (&self.ports.views, self.ports.clock.now_ms());
        Ok(views.abandon(source, report.epoch, now_ms).await?)
    }

    pub(crate) async fn record_report(&self, source: Source, report: &RunReport) -> Result<()> {
        let value =
            serde_json::to_value(report).map_err(|e| Error::fault("writing a report", e))?;
        let views = &self.ports.views;
        Ok(views.set_report(source, report.epoch, &value).await?)
    }

    /// Records the published views as complete, and the run unless it computed single jobs.
    /// `results` has the result of each view.
    pub(crate) async fn complete(
        &self,
        source: Source,
        request: &RunRequest,
        epoch: Epoch,
        stamp_us: i64,
        results: &BTreeMap<String, String>,
    ) -> Result<()> {
        let (run_ends, now_ms) = (request.jobs.is_empty(), self.ports.clock.now_ms());
        let views = &self.ports.views;
        Ok(views
            .complete(source, (epoch, stamp_us), results, run_ends, now_ms)
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

    /// Starts the cleanup after publishing: unregisters all other tables of the source, and waits
    /// for the grace period of their readers. Returns false if the run must stop. Then the next run
    /// cleans up, since a stopping run may have lost its lease.
    pub(crate) async fn retire_tables(
        &self,
        request: &RunRequest,
        published: PublishedTables<'_>,
        report: &mut RunReport,
        stages: &mut Stages<'_>,
        stop: &CancellationToken,
    ) -> Result<bool> {
        stages.begin("drop", 0);
        if request.jobs.is_empty() {
            // The report is complete enough if the process ends within the grace period.
            report.seconds = stages.ended();
            self.record_report(published.source, report).await?;
        }
        if stop.is_cancelled() {
            return Ok(false);
        }
        let at = (published.epoch, published.stamp_us);
        let views = &self.ports.views;
        views
            .forget_views(published.source, at, published.tables)
            .await?;
        Ok(self.wait_grace_period(stop).await)
    }

    /// Prunes the live epochs that the rows of all `views` include.
    pub(crate) async fn prune_epochs(
        &self,
        source: Source,
        views: &[String],
        partitions: usize,
        stop: &CancellationToken,
    ) -> Result<()> {
        let runs = self.ports.views.runs(source).await?;
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
            self.ports.live.prune_through(id, epoch, cut).await?;
            while !stop.is_cancelled()
                && self.ports.live.collect_garbage(id, GARBAGE_ROWS).await? == GARBAGE_ROWS
            {
            }
        }
        Ok(())
    }
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
