//! Erasing listeners: the steps, each of which may be repeated.

use jobs::Layers;
use schemas::source::Source;
use stores::dead_letters::erase::rewrite;
use stores::erasures::Kind;
use tokio_util::sync::CancellationToken;

use super::{EraseRequest, Eraser, restorations};
use crate::archive::{Due, collect_garbage, fence_writers, redact};
use crate::run::go_on;
use crate::{Batch, Error, Progress, Result, RunRequest};

/// The source whose events have listeners.
pub(super) const SOURCE: Source = Source::Plays;

impl Eraser {
    /// Takes all listeners who are suppressed out of every store.
    pub(super) async fn erase_listeners(
        &self,
        request: &EraseRequest,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<()> {
        let mut cuts = None;
        if self.batch.has_log(SOURCE).await? {
            // Whoever took lines with an older list has written them by now, or almost certainly.
            self.batch.grace(stop).await;
            let run = RunRequest::default();
            cuts = Some(self.run_since(SOURCE, &run, (progress, stop)).await?);
        }
        self.under_lease(SOURCE, stop, async |stop| {
            if let Some(cuts) = &cuts {
                // Of an archiver that had begun before.
                self.batch.redact_archive(SOURCE, &stop).await?;
                if !request.keep_log {
                    progress.stage("log", 0);
                    // What a slot that begins anew needs comes after them.
                    self.log.trim(SOURCE.topic(), cuts).await?;
                }
            }
            self.redact_listeners((progress, &stop)).await
        })
        .await?;
        Ok(self.data_folder.truncate_wals().await?)
    }

    /// Takes them out of what is left beside log, archive and views. Nobody else may run or erase meanwhile.
    async fn redact_listeners(
        &self,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<()> {
        let (ports, kind) = (&self.batch.ports, Kind::Listener);
        let suppressed = ports.suppressions.now().await?;
        let is_gone = |id: i64| suppressed.has_listener(id);
        go_on(stop)?;
        progress.stage("restorations", 0);
        restorations::redact(&ports.archive, is_gone).await?;
        go_on(stop)?;
        progress.stage("dead letters", 0);
        let now_ms = ports.clock.now_ms();
        rewrite(&*self.log, SOURCE, &suppressed, now_ms, stop).await?;
        go_on(stop)?;
        self.redact_reports(SOURCE, kind, is_gone).await?;
        self.redact_comparisons(SOURCE, kind, is_gone).await
    }
}

impl Batch {
    /// Removes erased listeners from the files of the archive, and deletes the replaced files once no reader needs them. No
    /// run and no other erasure may work meanwhile.
    async fn redact_archive(&self, source: Source, stop: &CancellationToken) -> Result<()> {
        let (archive, now_ms) = (&self.ports.archive, self.ports.clock.now_ms());
        let suppressed = self.ports.suppressions.now().await?;
        // Files of writers that have not committed yet are deleted below.
        fence_writers(archive, source, now_ms).await?;
        let memory = self.engine.room("redaction");
        let version = redact(archive, source, &suppressed, (&memory, now_ms), stop).await?;
        if version.has_retired_files() && !self.grace(stop).await {
            return Err(Error::Stopped);
        }
        collect_garbage(archive, source, Due::ALL, now_ms).await
    }

    /// The views of a source whose rows name a listener, by name.
    pub(super) fn views_of_listeners(&self) -> Vec<std::sync::Arc<jobs::Job>> {
        let jobs = self.catalog.of_layer(SOURCE, Layers::Both);
        let others = self.catalog.of_layer(SOURCE, Layers::Batch);
        let mut found: Vec<std::sync::Arc<jobs::Job>> = Vec::new();
        for job in jobs.chain(others) {
            let columns = job.group().0.iter().chain(&job.row().0);
            let is_new = found.iter().all(|known| known.name() != job.name());
            if is_new
                && columns
                    .into_iter()
                    .any(|column| column.name == "listener_id")
            {
                found.push(std::sync::Arc::clone(job));
            }
        }
        found
    }
}
