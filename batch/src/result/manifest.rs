//! Which rows a view has after a run, and which result is the published one.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use schemas::seam::{Cut, Epoch};
use schemas::source::Source;
use schemas::time::Seconds;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created};

use crate::{Error, Result};

/// Row groups of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) file: String,
    /// The first row group, and the one after the last.
    pub(crate) row_groups: (usize, usize),
}

/// Where the rows of one stretch of time are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) segments: Vec<Segment>,
    pub(crate) rows: u64,
    /// The sum of the counts.
    pub(crate) total: i128,
    /// Of each nullable dimension, how many rows have none.
    pub(crate) nulls: BTreeMap<String, u64>,
}

/// The result of a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ViewManifest {
    pub(crate) view: String,
    pub(crate) epoch: Epoch,
    /// Which try of the run this is.
    pub(crate) attempt: u32,
    pub(crate) cuts: Vec<Cut>,
    /// By start: every piece that has rows.
    pub(crate) pieces: BTreeMap<Seconds, Piece>,
    /// The pieces that the run computed.
    pub(crate) touched: BTreeSet<Seconds>,
}

/// The published result of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Pointer {
    epoch: Epoch,
    attempt: u32,
}

/// The results of one source's views.
pub(crate) struct Results<'a> {
    pub(crate) archive: &'a Archive,
    pub(crate) source: Source,
}

impl Results<'_> {
    /// Where a run's files go.
    pub(crate) fn data_folder(&self) -> String {
        format!("results/{}/data", self.source)
    }

    fn manifests_folder(&self, view: &str) -> String {
        format!("results/{}/views/{view}/manifests", self.source)
    }

    fn pointer_path(&self, view: &str) -> String {
        format!("results/{}/views/{view}/published.json", self.source)
    }

    fn manifest_path(&self, view: &str, epoch: Epoch, attempt: u32) -> String {
        format!(
            "{}/{epoch:010}-{attempt:06}.json",
            self.manifests_folder(view)
        )
    }

    /// Writes a manifest, with the number of a try that no other one of the run had: the published
    /// one is the last.
    pub(crate) async fn create(&self, manifest: &mut ViewManifest) -> Result<()> {
        let pointer = self.pointer(&manifest.view).await?;
        let published = pointer.filter(|at| at.epoch == manifest.epoch);
        let begin = format!(
            "{}/{:010}-",
            self.manifests_folder(&manifest.view),
            manifest.epoch
        );
        let paths = self
            .archive
            .list(&self.manifests_folder(&manifest.view))
            .await?;
        let tries = paths.iter().filter_map(|path| {
            let attempt = path.strip_prefix(&begin)?.strip_suffix(".json")?;
            attempt.parse::<u32>().ok()
        });
        let last = tries.chain(published.map(|at| at.attempt)).max();
        manifest.attempt = last.map_or(0, |last| last + 1);
        loop {
            let path = self.manifest_path(&manifest.view, manifest.epoch, manifest.attempt);
            let bytes = to_json(manifest)?;
            if self.archive.create(&path, bytes).await? == Created::New {
                return Ok(());
            }
            manifest.attempt += 1;
        }
    }

    /// The published result of a view and every other one that may have published something since.
    ///
    /// `newest` is the view's newest complete epoch: a pointer beyond it belongs to rows that are
    /// no longer there.
    pub(crate) async fn of_view(
        &self,
        view: &str,
        newest: Epoch,
    ) -> Result<(Option<ViewManifest>, Vec<ViewManifest>)> {
        let pointer = self.pointer(view).await?;
        let pointer = pointer.filter(|pointer| pointer.epoch <= newest);
        let mut published = None;
        let mut others = Vec::new();
        for path in self.archive.list(&self.manifests_folder(view)).await? {
            let bytes = self
                .archive
                .get(&path)
                .await?
                .ok_or_else(|| Error::damaged(&path, "it was listed, and is gone"))?;
            let manifest: ViewManifest = from_json(&path, &bytes)?;
            let stands = (manifest.epoch, manifest.attempt);
            match pointer {
                Some(at) if stands == (at.epoch, at.attempt) => published = Some(manifest),
                Some(at) if stands < (at.epoch, at.attempt) => {}
                _ => others.push(manifest),
            }
        }
        Ok((published, others))
    }

    /// Records that a result is the published one.
    pub(crate) async fn point_to(&self, manifest: &ViewManifest) -> Result<()> {
        let pointer = Pointer {
            epoch: manifest.epoch,
            attempt: manifest.attempt,
        };
        let path = self.pointer_path(&manifest.view);
        Ok(self.archive.put(&path, to_json(&pointer)?).await?)
    }

    /// The views that have results.
    pub(crate) async fn views(&self) -> Result<BTreeSet<String>> {
        let prefix = format!("results/{}/views/", self.source);
        let paths = self.archive.list(&prefix).await?;
        let views = paths.iter().filter_map(|path| {
            let (view, _) = path.strip_prefix(&prefix)?.split_once('/')?;
            Some(view.to_owned())
        });
        Ok(views.collect())
    }

    /// Deletes all manifests of a view, whose rows are gone.
    pub(crate) async fn forget(&self, view: &str) -> Result<()> {
        for path in self.archive.list(&self.manifests_folder(view)).await? {
            self.archive.delete(&path).await?;
        }
        Ok(self.archive.delete(&self.pointer_path(view)).await?)
    }

    /// Deletes manifests older than the published ones and then the files that are no longer named.
    /// `newest` are the views' newest complete epochs: a pointer beyond them belongs to rows that
    /// are no longer there, and says nothing.
    pub(crate) async fn remove_old(&self, newest: &BTreeMap<String, Epoch>) -> Result<()> {
        for view in self.views().await? {
            let newest = newest.get(&view).copied().unwrap_or(0);
            let pointer = self.pointer(&view).await?;
            let Some(at) = pointer.filter(|at| at.epoch <= newest) else {
                continue;
            };
            let published = self.manifest_path(&view, at.epoch, at.attempt);
            for path in self.archive.list(&self.manifests_folder(&view)).await? {
                // Numbers have a fixed width, so that paths are in the order of epoch and try.
                if path < published {
                    self.archive.delete(&path).await?;
                }
            }
        }
        self.remove_unnamed().await
    }

    /// Deletes the files that no manifest names.
    pub(crate) async fn remove_unnamed(&self) -> Result<()> {
        let mut named = BTreeSet::new();
        for view in self.views().await? {
            for path in self.archive.list(&self.manifests_folder(&view)).await? {
                let Some(bytes) = self.archive.get(&path).await? else {
                    continue;
                };
                let manifest: ViewManifest = from_json(&path, &bytes)?;
                let pieces = manifest.pieces.into_values();
                let segments = pieces.flat_map(|piece| piece.segments);
                named.extend(segments.map(|segment| segment.file));
            }
        }
        for path in self.archive.list(&self.data_folder()).await? {
            if !named.contains(&path) {
                self.archive.delete(&path).await?;
            }
        }
        Ok(())
    }

    async fn pointer(&self, view: &str) -> Result<Option<Pointer>> {
        let path = self.pointer_path(view);
        match self.archive.get(&path).await? {
            None => Ok(None),
            Some(bytes) => Ok(Some(from_json(&path, &bytes)?)),
        }
    }
}

fn to_json(value: &impl Serialize) -> Result<Bytes> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|e| Error::fault("writing a manifest", e))
}

fn from_json<T: serde::de::DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::damaged(path, format!("not a manifest: {e}")))
}
