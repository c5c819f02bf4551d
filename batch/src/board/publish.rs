//! Publishes a new version for each key whose boards differ from the stored ones.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use futures::TryStreamExt;
use jobs::{Board, Job};
use schemas::seam::Epoch;
use schemas::source::Source;
use stores::archive::Archive;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::daily_counts::CountWriter;
use super::drift::{Comparison, Replaced};
use super::manifest::{BoardManifest, ResultFile};
use super::pending::PendingMembers;
use super::versions::{KeyVersion, VersionBuilder, build_empty};
use super::view::encode_key;
use crate::pages::stream_pages;
use crate::{BatchPorts, Error, Progress, Result, VersionOptions};

const READ_ROWS: usize = 32_768;
/// Approximate keys and bytes that are written in one step.
const KEYS_MAX: usize = 256;
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum steps that wait to be written.
const STEPS_WAITING: usize = 2;
/// Keys that are listed at once.
const LIST_KEYS: usize = 10_000;

/// Totals of publishing a view.
#[derive(Debug, Default)]
pub(crate) struct PublishTotals<'a> {
    /// Rows of keys whose boards were written.
    pub(crate) written: u64,
    /// Rows of keys whose boards were unchanged.
    pub(crate) skipped: u64,
    /// The comparison with live state, if requested.
    pub(crate) comparison: Option<Comparison<'a>>,
}

/// Publishes the versions of a view.
#[derive(Debug)]
pub(crate) struct Publisher<'a> {
    pub(crate) ports: &'a BatchPorts,
    pub(crate) source: Source,
    pub(crate) epoch: Epoch,
    pub(crate) stamp_us: i64,
    /// Files that are processed at the same time.
    pub(crate) threads: usize,
    pub(crate) versions: VersionOptions,
    /// Writes the counts of keys by day.
    pub(crate) count_writer: Option<CountWriter>,
    /// Encoded keys to write even if they seem unchanged.
    pub(crate) rewrite: HashSet<Vec<u8>>,
    /// True if the heads of these keys drop the root of the earlier day.
    pub(crate) forget_earlier: bool,
}

impl Publisher<'_> {
    /// Publishes a view with its counts. Pending members keep their present entries.
    pub(crate) async fn publish(
        &self,
        job: &Arc<Job<Board>>,
        manifest: &BoardManifest,
        pending: &Arc<PendingMembers>,
        totals: &mut PublishTotals<'_>,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<()> {
        let (send, mut steps) = mpsc::channel(STEPS_WAITING);
        let mut builders = self.spawn_builders(job, manifest, pending, send);
        let mut written_keys: HashSet<Vec<u8>> = HashSet::new();
        while let Some(step) = steps.recv().await {
            if stop.is_cancelled() {
                return Err(Error::Stopped);
            }
            written_keys.extend(
                step.iter()
                    .map(|version: &KeyVersion| version.new.key.clone()),
            );
            progress.advance(step.iter().map(|version| version.rows).sum());
            self.write(job, step, totals).await?;
        }
        while let Some(ended) = builders.join_next().await {
            ended.map_err(|e| Error::fault("a task ended", e))??;
        }
        self.publish_pending_only(job, pending, &mut written_keys, totals)
            .await?;
        self.publish_empty_keys(job, manifest, &written_keys, totals)
            .await?;
        if let Some(count_writer) = &self.count_writer {
            let has_all = manifest.keys.is_none();
            let views = &*self.ports.views;
            count_writer.end(views, job, has_all, stop).await?;
        }
        Ok(())
    }

    /// Publishes the keys that have rows of pending members only.
    async fn publish_pending_only(
        &self,
        job: &Job<Board>,
        pending: &PendingMembers,
        written_keys: &mut HashSet<Vec<u8>>,
        totals: &mut PublishTotals<'_>,
    ) -> Result<()> {
        let mut builder = VersionBuilder::new(job, self.versions, pending);
        let mut step = Vec::new();
        for (key, members) in pending {
            if written_keys.contains(key)
                || members.values().all(|member| member.entries.is_empty())
            {
                continue;
            }
            written_keys.insert(key.clone());
            builder.begin(key, &mut step)?;
            if is_full(&step) {
                self.write(job, std::mem::take(&mut step), totals).await?;
            }
        }
        builder.end(&mut step)?;
        self.write(job, step, totals).await
    }

    /// Starts building the versions of all files. A key may span several files, so the files of one
    /// key range are processed one after the other.
    fn spawn_builders(
        &self,
        job: &Arc<Job<Board>>,
        manifest: &BoardManifest,
        pending: &Arc<PendingMembers>,
        send: mpsc::Sender<Vec<KeyVersion>>,
    ) -> JoinSet<Result<()>> {
        let mut builders = JoinSet::new();
        let threads = self.threads.max(1);
        let mut key_ranges: Vec<Vec<Vec<ResultFile>>> = vec![Vec::new(); threads];
        for (index, files) in manifest.key_ranges.iter().enumerate() {
            if let Some(thread_ranges) = key_ranges.get_mut(index % threads) {
                thread_ranges.push(files.clone());
            }
        }
        for thread_ranges in key_ranges {
            let (job, pending, send) = (Arc::clone(job), Arc::clone(pending), send.clone());
            let (archive, options) = (self.ports.archive.clone(), self.versions);
            builders.spawn(async move {
                for files in thread_ranges {
                    let builder = VersionBuilder::new(&job, options, &pending);
                    build_versions(&archive, builder, files, &send).await?;
                }
                Ok(())
            });
        }
        builders
    }

    /// Writes the counts of versions, and then those versions that differ from the stored ones.
    async fn write(
        &self,
        job: &Job<Board>,
        step: Vec<KeyVersion>,
        totals: &mut PublishTotals<'_>,
    ) -> Result<()> {
        if let Some(count_writer) = &self.count_writer {
            let complete = step.iter().filter(|version| version.new.head.is_some());
            let counts = complete.map(|version| (version.new.key.as_slice(), version.rows));
            count_writer.write(&counts.collect::<Vec<_>>()).await?;
        }
        let views = &self.ports.views;
        let keys: Vec<Vec<u8>> = step.iter().map(|version| version.new.key.clone()).collect();
        let heads = views.heads(job.view(), &keys).await?.unwrap_or_default();
        let mut heads = heads.into_iter();
        let (mut new, mut replaced) = (Vec::new(), Vec::new());
        for mut version in step {
            version.new.rewrites_nodes = self.rewrite.contains(&version.new.key);
            version.new.drops_earlier_root = version.new.rewrites_nodes && self.forget_earlier;
            let old = heads.next().flatten().map(|head| head.root);
            let root = version.new.head.as_ref().map(|head| &head.root);
            if root.is_some() && old.as_ref() == root && !version.new.rewrites_nodes {
                totals.skipped += version.rows;
                continue;
            }
            totals.written += version.rows;
            if let Some(root) = root {
                let (key, new) = (version.new.key.clone(), root.clone());
                replaced.push(Replaced { key, old, new });
            }
            new.push(version.new);
        }
        views
            .publish_versions(self.source, job.view(), self.epoch, self.stamp_us, &new)
            .await?;
        if let Some(comparison) = &mut totals.comparison {
            comparison.compare(replaced).await;
        }
        Ok(())
    }

    /// Publishes empty boards for the computed keys without rows.
    async fn publish_empty_keys(
        &self,
        job: &Job<Board>,
        manifest: &BoardManifest,
        written_keys: &HashSet<Vec<u8>>,
        totals: &mut PublishTotals<'_>,
    ) -> Result<()> {
        // Write even without keys, so that an overtaken run is refused.
        self.write(job, Vec::new(), totals).await?;
        let Some(keys) = &manifest.keys else {
            return self.publish_all_empty_keys(job, written_keys, totals).await;
        };
        let mut empty_keys = Vec::new();
        for key in keys {
            let key = encode_key(job, *key)?;
            if !written_keys.contains(&key) {
                empty_keys.push(key);
            }
        }
        for keys in empty_keys.chunks(KEYS_MAX) {
            self.publish_empty(job, keys, totals).await?;
        }
        Ok(())
    }

    async fn publish_all_empty_keys(
        &self,
        job: &Job<Board>,
        written_keys: &HashSet<Vec<u8>>,
        totals: &mut PublishTotals<'_>,
    ) -> Result<()> {
        let read = |after| self.ports.views.keys(job.view(), after, LIST_KEYS);
        let mut pages = pin!(stream_pages(read, Vec::clone));
        while let Some(keys) = pages.try_next().await? {
            let empty_keys: Vec<Vec<u8>> = keys
                .into_iter()
                .filter(|key| !written_keys.contains(key))
                .collect();
            for keys in empty_keys.chunks(KEYS_MAX) {
                self.publish_empty(job, keys, totals).await?;
            }
        }
        Ok(())
    }

    /// Publishes empty boards for those keys that have a head.
    async fn publish_empty(
        &self,
        job: &Job<Board>,
        keys: &[Vec<u8>],
        totals: &mut PublishTotals<'_>,
    ) -> Result<()> {
        let heads = self.ports.views.heads(job.view(), keys).await?;
        let heads = heads.unwrap_or_default();
        let known = keys.iter().zip(heads).filter(|(_, head)| head.is_some());
        let step = known
            .map(|(key, _)| build_empty(job, key, self.versions))
            .collect();
        self.write(job, step, totals).await
    }
}

/// Builds the versions of consecutive files.
async fn build_versions(
    archive: &Archive,
    mut builder: VersionBuilder<'_>,
    files: Vec<ResultFile>,
    send: &mpsc::Sender<Vec<KeyVersion>>,
) -> Result<()> {
    let mut step = Vec::new();
    for file in files {
        let groups = (0..file.row_groups).collect();
        let mut batches = archive.read_rows(&file.path, groups, READ_ROWS).await?;
        while let Some(batch) = batches.try_next().await? {
            builder.push(&batch, &mut step)?;
            if is_full(&step) && send.send(std::mem::take(&mut step)).await.is_err() {
                return Ok(());
            }
        }
    }
    builder.end(&mut step)?;
    // A closed channel means that the receiver has failed and returns its own error.
    drop(send.send(step).await);
    Ok(())
}

fn is_full(step: &[KeyVersion]) -> bool {
    let nodes = step.iter().flat_map(|version| &version.new.nodes);
    let nodes: usize = nodes.map(|(_, bytes)| bytes.len()).sum();
    let heads = step.iter().filter_map(|version| version.new.head.as_ref());
    let roots: usize = heads.map(|head| head.root.len()).sum();
    step.len() >= KEYS_MAX || nodes + roots >= BYTES_MAX
}
