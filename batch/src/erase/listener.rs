//! The steps of erasing listeners. Each may be repeated.

use std::sync::Arc;

use jobs::{Job, Layers};
use schemas::source::Source;
use stores::dead_letters::erase::rewrite;
use stores::erasures::PersonKind;
use tokio_util::sync::CancellationToken;

use super::eraser::{EraseRequest, Eraser};
use super::repair_records;
use super::sources::LISTENER_SOURCE;
use crate::archive::{GarbageScope, collect_garbage, fence_writers, redact};
use crate::lease::check_stop;
use crate::{Error, Progress, Result, RunRequest};

impl Eraser {
    /// Removes all suppressed listeners from every store.
    pub(super) async fn erase_listeners(
        &self,
        request: &EraseRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<()> {
        let mut cuts = None;
        if self.batch.has_log(LISTENER_SOURCE).await? {
            // After the grace period, writers that used an older list have almost certainly
            // finished.
            self.batch.wait_grace_period(stop).await;
            let run = RunRequest::default();
            cuts = Some(
                self.run_with_new_epoch(LISTENER_SOURCE, &run, progress, stop)
                    .await?,
            );
        }
        self.with_run_lease(LISTENER_SOURCE, stop, async |stop| {
            if let Some(cuts) = &cuts {
                // An archiver that started earlier may have written more files.
                self.redact_archive(LISTENER_SOURCE, &stop).await?;
                if !request.keep_log {
                    progress.stage("log", 0);
                    // A rebuilt partition state only needs records after the cuts.
                    self.log.trim(LISTENER_SOURCE.topic(), cuts).await?;
                }
            }
            self.redact_listeners(progress, &stop).await
        })
        .await?;
        Ok(self.data_folder.truncate_wals().await?)
    }

    /// Removes listeners from records of repairs, dead letters and reports. The caller must hold
    /// the run lease.
    async fn redact_listeners(
        &self,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<()> {
        let (ports, kind) = (&self.batch.ports, PersonKind::Listener);
        let suppressed = ports.suppressions.current().await?;
        let is_erased = |id: i64| suppressed.contains_listener(id);
        check_stop(stop)?;
        progress.stage("restorations", 0);
        repair_records::redact(&ports.archive, is_erased).await?;
        check_stop(stop)?;
        progress.stage("dead letters", 0);
        let now_ms = ports.clock.now_ms();
        rewrite(&*self.log, LISTENER_SOURCE, &suppressed, now_ms, stop).await?;
        check_stop(stop)?;
        self.redact_reports(LISTENER_SOURCE, kind, is_erased)
            .await?;
        self.redact_comparisons(LISTENER_SOURCE, kind, is_erased)
            .await
    }

    /// Removes erased listeners from the archive's files, and deletes the replaced files after the
    /// grace period. The caller must hold the run lease.
    async fn redact_archive(&self, source: Source, stop: &CancellationToken) -> Result<()> {
        let ports = &self.batch.ports;
        let (archive, now_ms) = (&ports.archive, ports.clock.now_ms());
        let suppressed = ports.suppressions.current().await?;
        // Uncommitted files of other writers are dead after this, and are deleted below.
        fence_writers(archive, source, now_ms).await?;
        let memory = self.batch.engine.reserve_memory("redaction");
        let version = redact(archive, source, &suppressed, &memory, now_ms, stop).await?;
        if version.has_retired_files() && !self.batch.wait_grace_period(stop).await {
            return Err(Error::Stopped);
        }
        collect_garbage(archive, source, GarbageScope::ALL, now_ms).await
    }

    /// Returns the aggregate views whose keys contain a listener.
    pub(super) fn list_listener_views(&self) -> Vec<Arc<Job>> {
        let catalog = &self.batch.catalog;
        let jobs = catalog.jobs_in_layer(LISTENER_SOURCE, Layers::Both);
        let batch_jobs = catalog.jobs_in_layer(LISTENER_SOURCE, Layers::Batch);
        let mut views: Vec<Arc<Job>> = Vec::new();
        for job in jobs.chain(batch_jobs) {
            let columns = job.group().0.iter().chain(&job.row().0);
            let is_new = views.iter().all(|known| known.name() != job.name());
            if is_new
                && columns
                    .into_iter()
                    .any(|column| column.name == "listener_id")
            {
                views.push(Arc::clone(job));
            }
        }
        views
    }
}
