//! Results: the rows that an attempt of a run computed for each view, their manifests, and which
//! results a table contains.

use std::collections::{BTreeMap, BTreeSet};

use schemas::seam::{Cut, Epoch};
use schemas::source::Source;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stores::archive::Archive;
use stores::lease::LeaseGuard as Lease;
use stores::views::TableResults;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::lease::{check_stop, verify_lease};
use crate::{Result, manifest_file};

/// The results from which the rows of a view's table were written.
#[derive(Debug, Clone)]
pub(crate) struct PublishedState<M> {
    /// The published result.
    pub(crate) published: Option<M>,
    /// Results that a later run may have published in part.
    pub(crate) dirty: Vec<M>,
    /// True if one of these results is missing; then the other fields are empty.
    pub(crate) is_unknown: bool,
}

impl<M> Default for PublishedState<M> {
    fn default() -> Self {
        Self {
            published: None,
            dirty: Vec::new(),
            is_unknown: false,
        }
    }
}

/// The manifest of a view's result: names the result and its files.
pub(crate) trait Manifest: Serialize + DeserializeOwned {
    /// Returns the name of the view.
    fn view(&self) -> &str;
    /// Returns the name of the result.
    fn result(&self) -> &str;
    /// Returns the paths of the files.
    fn files(&self) -> BTreeSet<String>;
}

/// Returns the result's name for each view.
pub(crate) fn result_names<M: Manifest>(
    manifests: &BTreeMap<String, M>,
) -> BTreeMap<String, String> {
    let names = manifests.values();
    names
        .map(|manifest| (manifest.view().to_owned(), manifest.result().to_owned()))
        .collect()
}

/// Returns a name for a new result.
pub(crate) fn result_name(epoch: Epoch) -> String {
    format!("{epoch:010}-{}", Uuid::new_v4())
}

/// The results of one source's views.
#[derive(Clone, Copy)]
pub(crate) struct Results<'a> {
    pub(crate) archive: &'a Archive,
    pub(crate) source: Source,
    /// The lease that excludes other runs of the source.
    pub(crate) lease: &'a dyn Lease,
}

/// The manifests and files of results at one moment.
pub(crate) struct ResultListing {
    manifests: Vec<String>,
    files: Vec<String>,
}

impl Results<'_> {
    /// Returns the folder of result files.
    pub(crate) fn data_folder(&self) -> String {
        format!("results/{}/data", self.source)
    }

    fn manifests_folder(&self, view: &str) -> String {
        format!("results/{}/views/{view}/manifests", self.source)
    }

    fn manifest_path(&self, view: &str, result: &str) -> String {
        format!("{}/{result}.json", self.manifests_folder(view))
    }

    /// Stores a manifest.
    pub(crate) async fn create(&self, manifest: &impl Manifest) -> Result<()> {
        let path = self.manifest_path(manifest.view(), manifest.result());
        manifest_file::create(self.archive, &path, manifest).await
    }

    /// Returns the published state of each view that has published or started results.
    pub(crate) async fn read_published_states<M: Manifest>(
        &self,
        tables: &BTreeMap<String, TableResults>,
    ) -> Result<BTreeMap<String, PublishedState<M>>> {
        let files: BTreeSet<String> = self.list_files().await?.into_iter().collect();
        let mut states = BTreeMap::new();
        for (view, table) in tables {
            let mut state = PublishedState::<M>::default();
            for result in table.published.iter().chain(&table.begun) {
                let manifest: Option<M> = self.read_manifest(view, result).await?;
                let intact = manifest.filter(|manifest| manifest.files().is_subset(&files));
                match intact {
                    None => state.is_unknown = true,
                    intact if table.published.as_ref() == Some(result) => state.published = intact,
                    intact => state.dirty.extend(intact),
                }
            }
            if state.is_unknown {
                state.published = None;
                state.dirty.clear();
            }
            states.insert(view.clone(), state);
        }
        Ok(states)
    }

    async fn read_manifest<M: Manifest>(&self, view: &str, result: &str) -> Result<Option<M>> {
        let path = self.manifest_path(view, result);
        let Some(bytes) = self.archive.get(&path).await? else {
            return Ok(None);
        };
        match manifest_file::from_bytes(&bytes) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(error) => {
                tracing::warn!(path, %error, "the manifest of a result is damaged; the run writes all rows of the view again");
                Ok(None)
            }
        }
    }

    /// Lists all results. Call this before reading which results the tables refer to. The lease
    /// check at the end proves that no other run had started before the listing.
    pub(crate) async fn list(&self) -> Result<ResultListing> {
        let prefix = format!("results/{}/views", self.source);
        let listing = ResultListing {
            manifests: self.archive.list(&prefix).await?,
            files: self.list_files().await?,
        };
        verify_lease(self.lease).await?;
        Ok(listing)
    }

    /// Deletes listed results that no table refers to: those of failed attempts, earlier runs,
    /// deleted views, and other databases.
    ///
    /// `states` must have been read after the listing. A run that started since has its own
    /// results, which are not listed, and reuses only results in `states`.
    pub(crate) async fn delete_unreferenced<M: Manifest>(
        &self,
        listing: ResultListing,
        states: &BTreeMap<String, PublishedState<M>>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let referenced = self.referenced_paths(states);
        let paths = listing.manifests.into_iter().chain(listing.files);
        for path in paths.filter(|path| !referenced.contains(path)) {
            check_stop(stop)?;
            self.archive.delete(&path).await?;
        }
        Ok(())
    }

    /// Returns the paths of all manifests and files that tables refer to. If one result of a table
    /// is missing, its other results are unused.
    pub(crate) fn referenced_paths<M: Manifest>(
        &self,
        states: &BTreeMap<String, PublishedState<M>>,
    ) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        for state in states.values() {
            for manifest in state.published.iter().chain(&state.dirty) {
                paths.insert(self.manifest_path(manifest.view(), manifest.result()));
                paths.extend(manifest.files());
            }
        }
        paths
    }

    async fn list_files(&self) -> Result<Vec<String>> {
        Ok(self.archive.list(&self.data_folder()).await?)
    }
}

/// Returns the smaller cut of each partition.
pub(crate) fn earliest_cuts(earliest: Option<Vec<Cut>>, cuts: &[Cut]) -> Vec<Cut> {
    let Some(earliest) = earliest else {
        return cuts.to_vec();
    };
    let pairs = earliest.into_iter().zip(cuts);
    let earliest = pairs.map(|(a, b)| {
        if a.next_offset <= b.next_offset {
            a
        } else {
            *b
        }
    });
    earliest.collect()
}
