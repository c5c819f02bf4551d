//! Erasing listeners: the steps, each of which may be repeated.

use jobs::Layers;
use schemas::source::Source;
use stores::dead_letters::erase::rewrite;
use stores::erasures::Kind;
use tokio_util::sync::CancellationToken;

use super::{EraseRequest, Eraser, restorations};
use crate::archive::{backfilled, end_merging, merged, remove_merged, remove_replaced, scrub};
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
                self.batch.scrub_archive(SOURCE, &stop).await?;
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
    /// Takes those who are suppressed out of the files of the archive, and deletes what that replaces once
    /// nobody reads it any more. Nobody else may run or erase meanwhile.
    async fn scrub_archive(&self, source: Source, stop: &CancellationToken) -> Result<()> {
        let archive = &self.ports.archive;
        let suppressed = self.ports.suppressions.now().await?;
        let (_, mut manifests) = backfilled(archive, source).await?;
        end_merging(archive, source, self.ports.clock.now_ms()).await?;
        let archiver = self.archiver(source).await?;
        archiver.remove_orphans().await?;
        manifests.extend(archiver.into_manifests());
        let named: Vec<String> = manifests.iter().filter_map(|m| m.file.clone()).collect();
        let (_, scrubbed) = scrub(archive, source, manifests, &suppressed, stop).await?;
        let stays = merged(archive, source).await?.waits();
        if (scrubbed.rewritten > 0 || stays) && !self.grace(stop).await {
            return Err(Error::Stopped);
        }
        remove_replaced(archive, source, named.iter().map(String::as_str)).await?;
        // They may hold somebody who is in none of those that stand for them.
        remove_merged(archive, source, i64::MAX).await
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
