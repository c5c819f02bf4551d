//! Publishing editions: of the keys whose boards differ from those that are there.

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

use super::drift::{Comparison, Replaced};
use super::editions::{Edition, Editions, empty};
use super::held_back::HeldBack;
use super::history::History;
use super::manifest::{BoardManifest, ResultFile};
use super::run::encoded_key;
use crate::pages::pages;
use crate::{BatchPorts, EditionOptions, Error, Progress, Result};

const READ_ROWS: usize = 32_768;
/// Keys and bytes that are written in one step, about.
const KEYS_MAX: usize = 256;
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Steps that wait to be written, at most.
const STEPS_WAITING: usize = 2;
/// Keys that are listed at once.
const LIST_KEYS: usize = 10_000;

/// What became of a view's editions.
#[derive(Debug, Default)]
pub(crate) struct Published<'a> {
    /// Rows of keys whose boards were written.
    pub(crate) written: u64,
    /// Rows of keys whose boards stayed as they were.
    pub(crate) skipped: u64,
    /// How they compare with what was counted live, if that is asked for.
    pub(crate) comparison: Option<Comparison<'a>>,
}

/// Where and as what editions are published.
#[derive(Debug)]
pub(crate) struct Publisher<'a> {
    pub(crate) ports: &'a BatchPorts,
    pub(crate) source: Source,
    pub(crate) epoch: Epoch,
    pub(crate) stamp_us: i64,
    /// Files that are built at the same time.
    pub(crate) threads: usize,
    pub(crate) editions: EditionOptions,
    /// What is kept of the counts of keys.
    pub(crate) history: Option<History>,
    /// Keys that are written in any case, encoded.
    pub(crate) rewrite: HashSet<Vec<u8>>,
    /// Whether these keep nothing of an earlier day.
    pub(crate) forget_earlier: bool,
}

impl Publisher<'_> {
    /// Publishes a view with the counts that are kept of it, but of members that are held back what stands of them.
    pub(crate) async fn publish(
        &self,
        job: &Arc<Job<Board>>,
        (manifest, held): (&BoardManifest, &Arc<HeldBack>),
        published: &mut Published<'_>,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<()> {
        let (send, mut steps) = mpsc::channel(STEPS_WAITING);
        let mut builders = self.builders(job, (manifest, held), send);
        let mut seen: HashSet<Vec<u8>> = HashSet::new();
        while let Some(step) = steps.recv().await {
            if stop.is_cancelled() {
                return Err(Error::Stopped);
            }
            seen.extend(step.iter().map(|edition: &Edition| edition.new.key.clone()));
            progress.advance(step.iter().map(|edition| edition.rows).sum());
            self.write(job, step, published).await?;
        }
        while let Some(ended) = builders.join_next().await {
            ended.map_err(|e| Error::fault("a task ended", e))??;
        }
        self.stand(job, held, &mut seen, published).await?;
        self.take_out(job, manifest, &seen, published).await?;
        if let Some(history) = &self.history {
            let has_all = manifest.keys.is_none();
            let views = &*self.ports.views;
            history.end(views, job, has_all, stop).await?;
        }
        Ok(())
    }

    /// Publishes the keys of which there are no rows but of members that are held back.
    async fn stand(
        &self,
        job: &Job<Board>,
        held: &HeldBack,
        seen: &mut HashSet<Vec<u8>>,
        published: &mut Published<'_>,
    ) -> Result<()> {
        let mut editions = Editions::new(job, self.editions, held);
        let mut step = Vec::new();
        for (key, members) in held {
            if seen.contains(key) || members.values().all(|state| state.places.is_empty()) {
                continue;
            }
            seen.insert(key.clone());
            editions.begin(key, &mut step)?;
            if is_full(&step) {
                self.write(job, std::mem::take(&mut step), published)
                    .await?;
            }
        }
        editions.end(&mut step)?;
        self.write(job, step, published).await
    }

    /// Starts to build the editions of all files. Files may end in the middle of a key, so those of
    /// one stretch of keys are built one after the other.
    fn builders(
        &self,
        job: &Arc<Job<Board>>,
        (manifest, held): (&BoardManifest, &Arc<HeldBack>),
        send: mpsc::Sender<Vec<Edition>>,
    ) -> JoinSet<Result<()>> {
        let mut builders = JoinSet::new();
        let threads = self.threads.max(1);
        let mut stretches: Vec<Vec<Vec<ResultFile>>> = vec![Vec::new(); threads];
        for (index, files) in manifest.stretches.iter().enumerate() {
            if let Some(of_thread) = stretches.get_mut(index % threads) {
                of_thread.push(files.clone());
            }
        }
        for of_thread in stretches {
            let (job, held, send) = (Arc::clone(job), Arc::clone(held), send.clone());
            let (archive, options) = (self.ports.archive.clone(), self.editions);
            builders.spawn(async move {
                for files in of_thread {
                    let editions = Editions::new(&job, options, &held);
                    build(&archive, editions, files, &send).await?;
                }
                Ok(())
            });
        }
        builders
    }

    /// Writes those of some editions that differ from what is there, after their counts.
    async fn write(
        &self,
        job: &Job<Board>,
        step: Vec<Edition>,
        published: &mut Published<'_>,
    ) -> Result<()> {
        if let Some(history) = &self.history {
            let whole = step.iter().filter(|edition| edition.new.head.is_some());
            let found = whole.map(|edition| (edition.new.key.as_slice(), edition.rows));
            history.keep(&found.collect::<Vec<_>>()).await?;
        }
        let views = &self.ports.views;
        let keys: Vec<Vec<u8>> = step.iter().map(|edition| edition.new.key.clone()).collect();
        let heads = views.heads(job.view(), &keys).await?.unwrap_or_default();
        let mut heads = heads.into_iter();
        let (mut new, mut replaced) = (Vec::new(), Vec::new());
        for mut edition in step {
            edition.new.is_anew = self.rewrite.contains(&edition.new.key);
            edition.new.is_alone = edition.new.is_anew && self.forget_earlier;
            let old = heads.next().flatten().map(|head| head.root);
            let root = edition.new.head.as_ref().map(|head| &head.root);
            if root.is_some() && old.as_ref() == root && !edition.new.is_anew {
                published.skipped += edition.rows;
                continue;
            }
            published.written += edition.rows;
            if let Some(root) = root {
                let (key, new) = (edition.new.key.clone(), root.clone());
                replaced.push(Replaced { key, old, new });
            }
            new.push(edition.new);
        }
        let at = (self.epoch, self.stamp_us);
        views
            .publish_editions(self.source, job.view(), at.0, at.1, &new)
            .await?;
        if let Some(comparison) = &mut published.comparison {
            comparison.compare(replaced).await;
        }
        Ok(())
    }

    /// Empties the boards of the keys that the result is about and has no rows of.
    async fn take_out(
        &self,
        job: &Job<Board>,
        manifest: &BoardManifest,
        seen: &HashSet<Vec<u8>>,
        published: &mut Published<'_>,
    ) -> Result<()> {
        // Once even without any key: a run that was overtaken must hear it.
        self.write(job, Vec::new(), published).await?;
        let Some(keys) = &manifest.keys else {
            return self.take_out_all(job, seen, published).await;
        };
        let mut gone = Vec::new();
        for key in keys {
            let key = encoded_key(job, *key)?;
            if !seen.contains(&key) {
                gone.push(key);
            }
        }
        for keys in gone.chunks(KEYS_MAX) {
            self.empty(job, keys, published).await?;
        }
        Ok(())
    }

    async fn take_out_all(
        &self,
        job: &Job<Board>,
        seen: &HashSet<Vec<u8>>,
        published: &mut Published<'_>,
    ) -> Result<()> {
        let read = |after| self.ports.views.keys(job.view(), after, LIST_KEYS);
        let mut pages = pin!(pages(read, Vec::clone));
        while let Some(keys) = pages.try_next().await? {
            let gone: Vec<Vec<u8>> = keys.into_iter().filter(|key| !seen.contains(key)).collect();
            for keys in gone.chunks(KEYS_MAX) {
                self.empty(job, keys, published).await?;
            }
        }
        Ok(())
    }

    /// Empties the boards of keys, where there are any.
    async fn empty(
        &self,
        job: &Job<Board>,
        keys: &[Vec<u8>],
        published: &mut Published<'_>,
    ) -> Result<()> {
        let heads = self.ports.views.heads(job.view(), keys).await?;
        let heads = heads.unwrap_or_default();
        let known = keys.iter().zip(heads).filter(|(_, head)| head.is_some());
        let step = known
            .map(|(key, _)| empty(job, key, self.editions))
            .collect();
        self.write(job, step, published).await
    }
}

/// Builds the editions of files that follow each other.
async fn build(
    archive: &Archive,
    mut editions: Editions<'_>,
    files: Vec<ResultFile>,
    send: &mpsc::Sender<Vec<Edition>>,
) -> Result<()> {
    let mut step = Vec::new();
    for file in files {
        let groups = (0..file.row_groups).collect();
        let mut batches = archive.rows(&file.path, groups, READ_ROWS).await?;
        while let Some(batch) = batches.try_next().await? {
            editions.push(&batch, &mut step)?;
            if is_full(&step) && send.send(std::mem::take(&mut step)).await.is_err() {
                return Ok(());
            }
        }
    }
    editions.end(&mut step)?;
    // Who does not take it has failed, and says so.
    drop(send.send(step).await);
    Ok(())
}

fn is_full(step: &[Edition]) -> bool {
    let nodes = step.iter().flat_map(|edition| &edition.new.nodes);
    let nodes: usize = nodes.map(|(_, bytes)| bytes.len()).sum();
    let heads = step.iter().filter_map(|edition| edition.new.head.as_ref());
    let roots: usize = heads.map(|head| head.root.len()).sum();
    step.len() >= KEYS_MAX || nodes + roots >= BYTES_MAX
}
