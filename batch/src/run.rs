//! Runs: the public operations, and what happens when a run fails.

use schemas::source::{Source, SourceKind};
use schemas::traces;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::archive::Version;
use crate::board::run_boards;
use crate::lease::{check_stop, run_under_lease};
use crate::report::{RunReport, Stages};
use crate::results::Results;
use crate::run_steps::{RunContext, record_report};
use crate::snapshot::SnapshotReport;
use crate::tally::run_tallies;
use crate::view_tables::create_tables;
use crate::{Batch, Error, Progress, Result, RunRequest};

impl Batch {
    /// Executes a run: continues an interrupted one, or starts a new one.
    ///
    /// # Errors
    /// [`Error::Busy`] if another run is under way, [`Error::Check`] if the result failed its
    /// check, and those of the stores and of queries. Answers stay exact after any error, and the
    /// run can be repeated.
    pub async fn run(
        &self,
        source: Source,
        request: &RunRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        let lease = self.acquire_run_lease(source).await?;
        let stop = stop.child_token();
        let with_cache = self.with_file_cache();
        let context = RunContext {
            batch: &with_cache,
            results: Results {
                archive: &with_cache.ports.archive,
                source,
                lease: &*lease,
            },
            request,
            progress,
            stop: &stop,
        };
        let span = tracing::info_span!(
            target: traces::TARGET, "batch run", %source, otel.status_code = tracing::field::Empty,
        );
        let work = Box::pin(run_with_lease(&context)).instrument(span.clone());
        let mut outcome = run_under_lease(&*lease, &stop, work).await;
        if outcome.is_err() {
            span.record("otel.status_code", "ERROR");
        }
        if !lease.lost().is_cancelled() {
            outcome = delete_damaged_file(self, outcome).await;
            if let Err(error) = &outcome
                && request.jobs.is_empty()
            {
                record_error(self, source, error).await;
            }
        }
        lease.release().await;
        outcome
    }

    /// Takes a snapshot of all rows of an entity source.
    ///
    /// # Errors
    /// [`Error::Busy`] while a run is under way, which takes its own snapshot; those of the stores,
    /// and [`Error::Stopped`].
    pub async fn snapshot(
        &self,
        source: Source,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<SnapshotReport> {
        let lease = self.acquire_run_lease(source).await?;
        let stop = &stop.child_token();
        let work = async {
            let snapshot_taker = self.snapshot_taker(source, &*lease);
            progress.stage("snapshot", 0);
            let (_, report) = snapshot_taker.take(None, progress, stop).await?;
            check_stop(stop)?;
            snapshot_taker.delete_others(&report, stop).await?;
            Ok(report)
        };
        let outcome = run_under_lease(&*lease, stop, Box::pin(work)).await;
        lease.release().await;
        outcome
    }

    /// Creates the missing tables of a source's views.
    ///
    /// # Errors
    /// Errors of the views' store.
    pub async fn create_views(&self, source: Source) -> Result<()> {
        let version = Version::read_newest(&self.ports.archive, source).await?;
        let (generation, _) = self.read_generation(&version).await?;
        create_tables(self, source, generation).await
    }
}

/// Records the error in the report of the open run. A failure is only logged, since nothing depends
/// on the record.
async fn record_error(batch: &Batch, source: Source, error: &Error) {
    if matches!(error, Error::Stopped) {
        return;
    }
    let recorded = async {
        let runs = batch.ports.views.runs(source).await?.runs;
        let Some(run) = runs.open_run() else {
            return Ok(());
        };
        let report = RunReport {
            epoch: run.epoch,
            cuts: run.cuts.iter().map(|cut| cut.next_offset).collect(),
            error: Some(error.to_string()),
            ..RunReport::default()
        };
        record_report(batch, source, &report).await
    };
    if let Err(error) = recorded.await {
        tracing::debug!(%source, %error, "cannot record the error of a run");
    }
}

/// Deletes the file that a failed run found damaged, if the next run can recompute it.
async fn delete_damaged_file(batch: &Batch, outcome: Result<RunReport>) -> Result<RunReport> {
    let Some((path, reason)) = outcome.as_ref().err().and_then(Error::damaged_file) else {
        return outcome;
    };
    if delete_if_derived(batch, &path).await? {
        return Err(Error::Request(format!(
            "{path} was damaged or missing and has been deleted; run again to recompute it"
        )));
    }
    // The context of the error is long and adds nothing.
    Err(stores::Error::DamagedFile { path, reason }.into())
}

/// Deletes a damaged file if the next run recomputes it. Returns whether it was deleted.
pub(crate) async fn delete_if_derived(batch: &Batch, path: &str) -> Result<bool> {
    let plays_results = format!("results/{}/", Source::Plays);
    let is_derived = path.starts_with("results/") || path.starts_with("snapshots/");
    let is_of_plays = path.starts_with(&plays_results);
    if !is_derived || is_of_plays && batch.find_expired_bounds(Source::Plays).await?.is_some() {
        // Expired events cannot be computed again, so the file must stay.
        return Ok(false);
    }
    batch.ports.archive.delete(path).await?;
    Ok(true)
}

/// Executes a run while its lease is held.
pub(crate) async fn run_with_lease(context: &RunContext<'_>) -> Result<RunReport> {
    let source = context.results.source;
    let mut stages = Stages::new(context.progress);
    let mut report = match source.kind() {
        SourceKind::Events => run_tallies(context, &mut stages).await?,
        SourceKind::Entities => run_boards(context, &mut stages).await?,
    };
    report.seconds = stages.end();
    report.emit(source);
    if context.request.jobs.is_empty() {
        record_report(context.batch, source, &report).await?;
    }
    Ok(report)
}
