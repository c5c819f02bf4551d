//! Runs: the stages in order, and what happens when a run fails.

use schemas::source::{Source, SourceKind};
use schemas::traces;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::lease::run_under_lease;
use crate::report::{RunReport, Stages};
use crate::results::Results;
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
        let results = Results {
            archive: &with_cache.ports.archive,
            source,
            lease: &*lease,
        };
        let span = tracing::info_span!(
            target: traces::TARGET, "batch run", %source, otel.status_code = tracing::field::Empty,
        );
        let work = with_cache.run_with_lease(results, request, progress, &stop);
        let work = Box::pin(work).instrument(span.clone());
        let mut outcome = run_under_lease(&*lease, &stop, work).await;
        if outcome.is_err() {
            span.record("otel.status_code", "ERROR");
        }
        if !lease.lost().is_cancelled() {
            outcome = self.delete_damaged_file(outcome).await;
            if let Err(error) = &outcome
                && request.jobs.is_empty()
            {
                self.record_error(source, error).await;
            }
        }
        lease.release().await;
        outcome
    }

    /// Records the error in the report of the open run. A failure is only logged, since nothing
    /// depends on the record.
    async fn record_error(&self, source: Source, error: &Error) {
        if matches!(error, Error::Stopped) {
            return;
        }
        let recorded = async {
            let runs = self.ports.views.runs(source).await?.runs;
            let Some(run) = runs.open() else {
                return Ok(());
            };
            let report = RunReport {
                epoch: run.epoch,
                cuts: run.cuts.iter().map(|cut| cut.next_offset).collect(),
                error: Some(error.to_string()),
                ..RunReport::default()
            };
            self.record_report(source, &report).await
        };
        if let Err(error) = recorded.await {
            tracing::debug!(%source, %error, "cannot record the error of a run");
        }
    }

    /// Deletes the file that a failed run found damaged, if the next run can recompute it.
    async fn delete_damaged_file(&self, outcome: Result<RunReport>) -> Result<RunReport> {
        let Some((path, why)) = outcome.as_ref().err().and_then(Error::damaged_file) else {
            return outcome;
        };
        if self.delete_if_derived(&path).await? {
            return Err(Error::Request(format!(
                "{path} was damaged or missing and has been deleted; run again to recompute it"
            )));
        }
        // The context of the error is long and adds nothing.
        Err(stores::Error::DamagedFile { path, why }.into())
    }

    /// Deletes a damaged file if the next run recomputes it. Returns whether it was deleted.
    pub(crate) async fn delete_if_derived(&self, path: &str) -> Result<bool> {
        let plays_results = format!("results/{}/", Source::Plays);
        let is_derived = path.starts_with("results/") || path.starts_with("snapshots/");
        if !is_derived
            || path.starts_with(&plays_results)
                && self.expired_bounds(Source::Plays).await?.is_some()
        {
            // Expired events cannot be computed again, so the file must stay.
            return Ok(false);
        }
        self.ports.archive.delete(path).await?;
        Ok(true)
    }

    /// Executes a run while its lease is held.
    pub(crate) async fn run_with_lease(
        &self,
        results: Results<'_>,
        request: &RunRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        let source = results.source;
        let mut stages = Stages::new(progress);
        let mut report = match source.kind() {
            SourceKind::Events => {
                let run = self.run_tallies(&results, request, &mut stages, stop);
                run.await?
            }
            SourceKind::Entities => {
                self.run_boards(&results, request, &mut stages, stop)
                    .await?
            }
        };
        report.seconds = stages.end();
        report.emit(source);
        if request.jobs.is_empty() {
            self.record_report(source, &report).await?;
        }
        Ok(report)
    }
}
