//! Results: what a try of a run computed for a view. Their manifests, and which of them a table
//! holds.

use std::collections::{BTreeMap, BTreeSet};

use schemas::seam::{Cut, Epoch};
use schemas::source::Source;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stores::archive::Archive;
use stores::lease::Held as Lease;
use stores::views::TableResults;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::run::{expect_held, go_on};
use crate::{Result, manifest_file};

/// What is known of the rows that a view's table holds.
#[derive(Debug, Clone)]
pub(crate) struct Held<M> {
    /// The published result.
    pub(crate) published: Option<M>,
    /// Results that may have been published in part since.
    pub(crate) dirty: Vec<M>,
    /// Whether a result is missing that is among the rows: then the others are not given either.
    pub(crate) is_unknown: bool,
}

impl<M> Default for Held<M> {
    fn default() -> Self {
        Self {
            published: None,
            dirty: Vec::new(),
            is_unknown: false,
        }
    }
}

/// What names the rows of a view's result and the files that hold them.
pub(crate) trait Manifest: Serialize + DeserializeOwned {
    /// The view.
    fn view(&self) -> &str;
    /// The name of the result.
    fn result(&self) -> &str;
    /// The files.
    fn files(&self) -> BTreeSet<String>;
}

/// The name of the result of each view.
pub(crate) fn names_of<M: Manifest>(manifests: &BTreeMap<String, M>) -> BTreeMap<String, String> {
    let names = manifests.values();
    names
        .map(|manifest| (manifest.view().to_owned(), manifest.result().to_owned()))
        .collect()
}

/// The name of a new result.
pub(crate) fn result_name(epoch: Epoch) -> String {
    format!("{epoch:010}-{}", Uuid::new_v4())
}

/// The results of one source's views.
#[derive(Clone, Copy)]
pub(crate) struct Results<'a> {
    pub(crate) archive: &'a Archive,
    pub(crate) source: Source,
    /// What keeps other runs of the source away.
    pub(crate) lease: &'a dyn Lease,
}

/// What there was of results at one moment.
pub(crate) struct Listed {
    manifests: Vec<String>,
    files: Vec<String>,
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
    pub(crate) async fn create(&self, manifest: &impl Manifest) -> Result<()> {
        let path = self.manifest_path(manifest.view(), manifest.result());
        manifest_file::create(self.archive, &path, manifest).await
    }

    /// What is known of the rows of each view's table. Views without any are not there.
    pub(crate) async fn held<M: Manifest>(
        &self,
        tables: &BTreeMap<String, TableResults>,
    ) -> Result<BTreeMap<String, Held<M>>> {
        let files: BTreeSet<String> = self.files().await?.into_iter().collect();
        let mut held = BTreeMap::new();
        for (view, table) in tables {
            let mut of_view = Held::<M>::default();
            for result in table.published.iter().chain(&table.begun) {
                let manifest: Option<M> = self.load(view, result).await?;
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

    async fn load<M: Manifest>(&self, view: &str, result: &str) -> Result<Option<M>> {
        let path = self.manifest_path(view, result);
        let Some(bytes) = self.archive.get(&path).await? else {
            return Ok(None);
        };
        match manifest_file::from_bytes(&bytes) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(error) => {
                tracing::warn!(path, %error, "a result's manifest is damaged: everything is written anew");
                Ok(None)
            }
        }
    }

    /// The results that there are, before it is asked which of them a table holds. No other run has
    /// begun when they were listed.
    pub(crate) async fn listed(&self) -> Result<Listed> {
        let prefix = format!("results/{}/views", self.source);
        let listed = Listed {
            manifests: self.archive.list(&prefix).await?,
            files: self.files().await?,
        };
        expect_held(self.lease).await?;
        Ok(listed)
    }

    /// Deletes those of the results that no table holds rows of: those of tries that died before they
    /// published, of runs before, of views that are gone, of other databases. `held` is of a moment
    /// after the listing: a run that began since has made results that are not among these, and takes
    /// none of these over but what is held.
    pub(crate) async fn remove_others<M: Manifest>(
        &self,
        listed: Listed,
        held: &BTreeMap<String, Held<M>>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let named = self.named(held);
        let listed = listed.manifests.into_iter().chain(listed.files);
        for path in listed.filter(|path| !named.contains(path)) {
            go_on(stop)?;
            self.archive.delete(&path).await?;
        }
        Ok(())
    }

    /// The manifests and files that tables hold rows of. What is left of a table's results where one is missing is
    /// read by nobody.
    pub(crate) fn named<M: Manifest>(&self, held: &BTreeMap<String, Held<M>>) -> BTreeSet<String> {
        let mut named = BTreeSet::new();
        for held in held.values() {
            for manifest in held.published.iter().chain(&held.dirty) {
                named.insert(self.manifest_path(manifest.view(), manifest.result()));
                named.extend(manifest.files());
            }
        }
        named
    }

    async fn files(&self) -> Result<Vec<String>> {
        Ok(self.archive.list(&self.data_folder()).await?)
    }
}

/// The smaller cut of each partition.
pub(crate) fn earlier(least: Option<Vec<Cut>>, cuts: &[Cut]) -> Vec<Cut> {
    let Some(least) = least else {
        return cuts.to_vec();
    };
    let both = least.into_iter().zip(cuts);
    let least = both.map(|(a, b)| {
        if a.next_offset <= b.next_offset {
            a
        } else {
            *b
        }
    });
    least.collect()
}
