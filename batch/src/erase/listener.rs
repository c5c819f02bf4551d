//! Erasing listeners: the steps, each of which may be repeated.

use jobs::Layers;
use schemas::seam::Offset;
use schemas::source::Source;
use serde_json::Value;
use stores::dead_letters::erase::rewrite;
use tokio_util::sync::CancellationToken;

use super::{EraseRequest, Eraser};
use crate::archive::{ArchiveScrubbed, backfilled, remove_replaced, scrub};
use crate::restore::redact_record;
use crate::{Batch, Progress, Result};

/// The source whose events have listeners.
pub(super) const SOURCE: Source = Source::Plays;
/// Stories of runs that are read at once.
const STORIES: usize = 200;

impl Eraser {
    /// Takes all listeners who are suppressed out of every store.
    pub(super) async fn erase_listeners(
        &self,
        request: &EraseRequest,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<()> {
        let ports = &self.batch.ports;
        if self.batch.has_log(SOURCE).await? {
            // Whoever took lines with an older list has written them by now, or almost certainly.
            self.batch.grace(stop).await;
            let was_rolled = self.may_be_rolled().await?;
            let mut report = self.run_when_free(SOURCE, (progress, stop)).await?;
            if was_rolled {
                // That run's cuts may be older than the erasure: what was counted after them as well.
                report = self.run_when_free(SOURCE, (progress, stop)).await?;
            }
            // Of an archiver that had begun before.
            self.batch.scrub_archive(SOURCE, stop).await?;
            if !request.keep_log {
                progress.stage("log", 0);
                self.trim(&report.cuts).await?;
            }
        }
        progress.stage("restorations", 0);
        self.redact_restorations(SOURCE, stop).await?;
        progress.stage("dead letters", 0);
        let suppressed = ports.suppressions.now().await?;
        let now_ms = ports.clock.now_ms();
        rewrite(&*self.log, SOURCE, &suppressed, now_ms).await?;
        self.redact_reports().await?;
        self.redact_comparisons().await?;
        Ok(ports.suppressions.tidy().await?)
    }

    /// Whether an epoch may have ended already that the next run covers: a run was not finished, or died
    /// before it was recorded.
    async fn may_be_rolled(&self) -> Result<bool> {
        let ports = &self.batch.ports;
        let runs = ports.views.runs(SOURCE).await?.runs;
        let partitions = ports.log.partitions_now(SOURCE.topic()).await?;
        let slots = ports.live.read(SOURCE, partitions, &[]).await?.slots;
        let next = runs.next_epoch();
        let is_ahead = slots.iter().flatten().any(|slot| slot.epoch > next);
        Ok(runs.open().is_some() || is_ahead)
    }

    /// Deletes the records that the run holds. What a slot that begins anew needs comes after them.
    async fn trim(&self, cuts: &[Offset]) -> Result<()> {
        Ok(self.log.trim(SOURCE.topic(), cuts).await?)
    }

    /// Takes out of the reports of runs which keys had drifted, where they name a listener who is
    /// suppressed.
    async fn redact_reports(&self) -> Result<()> {
        let ports = &self.batch.ports;
        let suppressed = ports.suppressions.now().await?;
        let mut before = None;
        loop {
            let stories = ports.views.stories(SOURCE, before, STORIES).await?;
            let Some(last) = stories.last() else {
                return Ok(());
            };
            before = Some(last.run.epoch);
            for mut story in stories {
                if redact(&mut story.report, |id| suppressed.has_listener(id)) {
                    let views = &ports.views;
                    views.report(SOURCE, story.run.epoch, &story.report).await?;
                }
            }
        }
    }
}

impl Eraser {
    /// Takes out of the records of comparisons who is suppressed.
    async fn redact_comparisons(&self) -> Result<()> {
        let ports = &self.batch.ports;
        let suppressed = ports.suppressions.now().await?;
        let kept = &ports.reconciliations;
        let mut before = None;
        loop {
            let records = kept.reconciliations(SOURCE, before, STORIES).await?;
            let Some(last) = records.last() else {
                return Ok(());
            };
            before = Some(last.number);
            for mut one in records {
                let is_wanted =
                    |column: &str, id| column == "listener_id" && suppressed.has_listener(id);
                if redact_record(&mut one.record, is_wanted) {
                    kept.replace(SOURCE, one.number, &one.record).await?;
                }
            }
        }
    }
}

/// Takes keys out of a report that name such a listener; answers whether there were any.
fn redact(report: &mut Value, is_wanted: impl Fn(i64) -> bool) -> bool {
    let worst = report.pointer_mut("/drift/worst");
    let Some(worst) = worst.and_then(Value::as_array_mut) else {
        return false;
    };
    let before = worst.len();
    worst.retain(|key| !names(key, &is_wanted));
    worst.len() < before
}

/// How many of the keys that a report names are of such a listener.
pub(super) fn named(report: &Value, is_wanted: impl Fn(i64) -> bool) -> u64 {
    let worst = report.pointer("/drift/worst").and_then(Value::as_array);
    let keys = worst.into_iter().flatten();
    keys.filter(|key| names(key, &is_wanted)).count() as u64
}

fn names(key: &Value, is_wanted: &impl Fn(i64) -> bool) -> bool {
    let key = key.get("key").and_then(Value::as_str).unwrap_or_default();
    let ids = key
        .split(' ')
        .filter_map(|pair| pair.strip_prefix("listener_id="));
    ids.filter_map(|id| id.parse().ok()).any(is_wanted)
}

impl Batch {
    /// Takes those who are suppressed out of the files of the archive, and deletes what that replaces once
    /// nobody reads it any more.
    ///
    /// # Errors
    /// Those of the archive, and [`crate::Error::Stopped`].
    pub async fn scrub_archive(
        &self,
        source: Source,
        stop: &CancellationToken,
    ) -> Result<ArchiveScrubbed> {
        let archive = &self.ports.archive;
        let suppressed = self.ports.suppressions.now().await?;
        let (_, mut manifests) = backfilled(archive, source).await?;
        let archiver = self.archiver(source).await?;
        archiver.remove_orphans().await?;
        manifests.extend(archiver.into_manifests());
        let named: Vec<String> = manifests.iter().filter_map(|m| m.file.clone()).collect();
        let (_, scrubbed) = scrub(archive, source, manifests, &suppressed, stop).await?;
        if scrubbed.rewritten > 0 && !self.grace(stop).await {
            return Ok(scrubbed);
        }
        remove_replaced(archive, source, named.iter().map(String::as_str)).await?;
        Ok(scrubbed)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_do_not_name_the_listener() {
        let mut report = serde_json::json!({"drift": {"worst": [
            {"key": "owner_id=7 bucket=1 listener_id=42"},
            {"key": "owner_id=42 bucket=1 listener_id=7"},
            {"key": "owner_id=42 bucket=1"},
        ]}});
        assert_eq!(named(&report, |id| id == 42), 1);
        assert!(redact(&mut report, |id| id == 42));
        assert_eq!(named(&report, |id| id == 42), 0);
        assert_eq!(report["drift"]["worst"].as_array().map(Vec::len), Some(2));
        assert!(!redact(&mut report, |id| id == 42));
    }
}
