//! Batch runs within a reconciliation.

use std::collections::BTreeSet;

use schemas::seam::{Epoch, RunState, Runs};
use tokio_util::sync::CancellationToken;

use super::request::Expected;
use crate::batch::Batch;
use crate::results::Results;
use crate::run::{delete_if_derived, run_with_lease};
use crate::run_steps::RunContext;
use crate::{Error, Progress, Result, RunRequest};

impl Batch {
    /// Finishes a run that died or failed. Rows are written anew for the newest run, so that one has to be complete; for
    /// corrections it is enough that no row is of another one.
    pub(super) async fn finish_run(
        &self,
        results: &Results<'_>,
        expected: &Expected,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<()> {
        let runs = self.ports.views.runs(results.source).await?.runs;
        let is_in_the_way = match expected.is_claimed() {
            false => !is_last_complete(&runs),
            true => runs
                .open_run()
                .is_some_and(|run| run.state == RunState::Sealed),
        };
        if is_in_the_way {
            let again = RunRequest::default();
            self.run_again(results, &again, (progress, stop)).await?;
        }
        Ok(())
    }

    /// Carries a run out under the lease that is held. Damaged results that it comes upon are deleted, and made anew by
    /// the run that begins again.
    pub(super) async fn run_again(
        &self,
        results: &Results<'_>,
        request: &RunRequest,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<Epoch> {
        let mut deleted = BTreeSet::new();
        loop {
            let context = RunContext {
                batch: self,
                results: *results,
                request,
                progress,
                stop,
            };
            let run = Box::pin(run_with_lease(&context)).await;
            let damaged = run.as_ref().err().and_then(Error::damaged_file);
            match (run, damaged) {
                (Err(_), Some((path, _)))
                    if delete_if_derived(self, &path).await? && deleted.insert(path.clone()) => {}
                (run, _) => return Ok(run?.epoch),
            }
        }
    }
}

/// Whether the newest run is complete, or there is none.
pub(super) fn is_last_complete(runs: &Runs) -> bool {
    runs.iter()
        .next_back()
        .is_none_or(|run| run.state == RunState::Complete)
}
