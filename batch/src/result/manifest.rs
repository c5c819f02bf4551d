//! Which rows a view has after a run, and which result is the published one.

use std::collections::{BTreeMap, BTreeSet};

use schemas::seam::{Cut, Epoch};
use schemas::source::Source;
use schemas::time::Seconds;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created};
use stores::views::TableResults;
use uuid::Uuid;

use crate::manifest_file::{from_bytes, to_bytes};
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
    /// The name of the result: its epoch and something that no other try has.
    pub(crate) result: String,
    pub(crate) cuts: Vec<Cut>,
    /// By start: every piece that has rows.
    pub(crate) pieces: BTreeMap<Seconds, Piece>,
    /// The pieces that the run computed.
    pub(crate) touched: BTreeSet<Seconds>,
}

/// What is known of the rows that a view's table holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    /// The published result.
    pub(crate) published: Option<ViewManifest>,
    /// Results that may have been published in part since.
    pub(crate) dirty: Vec<ViewManifest>,
    /// Whether a result is missing that is among the rows: then the others are not given either.
    pub(crate) is_unknown: bool,
}

/// The name of a new result.
pub(crate) fn result_name(epoch: Epoch) -> String {
    format!("{epoch:010}-{}", Uuid::new_v4())
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

    fn manifest_path(&self, view: &str, result: &str) -> String {
        format!("{}/{result}.json", self.manifests_folder(view))
    }

    /// Writes a manifest down.
    pub(crate) async fn create(&self, manifest: &ViewManifest) -> Result<()> {
        let path = self.manifest_path(&manifest.view, &manifest.result);
        match self.archive.create(&path, to_bytes(manifest)?).await? {
            Created::New => Ok(()),
            Created::Exists => Err(Error::Fault(format!("{path} is there already"))),
        }
    }

    /// What is known of the rows of each view's table. Views without any are not there.
    pub(crate) async fn held(
        &self,
        tables: &BTreeMap<String, TableResults>,
    ) -> Result<BTreeMap<String, Held>> {
        let files: BTreeSet<String> = self.files().await?.into_iter().collect();
        let mut held = BTreeMap::new();
        for (view, table) in tables {
            let mut of_view = Held::default();
            for result in table.published.iter().chain(&table.begun) {
                let manifest = self.load(view, result).await?;
                let whole = manifest.filter(|manifest| manifest.files().is_subset(&files));
                match whole {
                    None => of_view.is_unknown = true,
                    found if table.published.as_ref() == Some(result) => of_view.published = found,
                    found => of_view.dirty.extend(found),
                }
            }
            if of_view.is_unknown {
                of_view.published = None;
                of_view.dirty.clear();
            }
            held.insert(view.clone(), of_view);
        }
        Ok(held)
    }

    async fn load(&self, view: &str, result: &str) -> Result<Option<ViewManifest>> {
        let path = self.manifest_path(view, result);
        let Some(bytes) = self.archive.get(&path).await? else {
            return Ok(None);
        };
        match from_bytes(&bytes) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(error) => {
                tracing::warn!(path, %error, "a result's manifest is damaged: everything is written anew");
                Ok(None)
            }
        }
    }

    /// Deletes the results that no table holds rows of: those of tries that died before they
    /// published, of runs before, of views that are gone, of other databases.
    pub(crate) async fn remove_others(&self, held: &BTreeMap<String, Held>) -> Result<()> {
        let (mut results, mut files) = (BTreeSet::new(), BTreeSet::new());
        // What is left of a table's results where one is missing is read by nobody.
        for held in held.values() {
            for manifest in held.published.iter().chain(&held.dirty) {
                results.insert(self.manifest_path(&manifest.view, &manifest.result));
                files.extend(manifest.files());
            }
        }
        let prefix = format!("results/{}/views", self.source);
        for path in self.archive.list(&prefix).await? {
            if !results.contains(&path) {
                self.archive.delete(&path).await?;
            }
        }
        for path in self.files().await? {
            if !files.contains(&path) {
                self.archive.delete(&path).await?;
            }
        }
        Ok(())
    }

    async fn files(&self) -> Result<Vec<String>> {
        Ok(self.archive.list(&self.data_folder()).await?)
    }
}

impl ViewManifest {
    fn files(&self) -> BTreeSet<String> {
        let segments = self.pieces.values().flat_map(|piece| &piece.segments);
        segments.map(|segment| segment.file.clone()).collect()
    }
}
