//! Reads the newest version of an archive. An archive of the older layout is migrated first.

use schemas::source::Source;
use stores::archive::Archive;

use super::legacy;
use super::version::{Version, versions_folder};
use crate::{Error, Result};

impl Version {
    /// Reads the newest version. Migrates a local archive of the older layout first, because no
    /// process of an older release uses the folder then. [`Version::migrate`] migrates an archive
    /// on a server.
    ///
    /// # Errors
    /// Errors of the archive, and [`Error::Damaged`].
    pub(crate) async fn read_newest(archive: &Archive, source: Source) -> Result<Self> {
        loop {
            let Some(path) = archive.list(&versions_folder(source)).await?.pop() else {
                if !legacy::has_records(archive, source).await? {
                    return Ok(Self::default());
                }
                if !archive.is_local() {
                    return Err(Error::Request(format!(
                        "the archive of {source} has the layout of an older release: run `backstitch migrate`"
                    )));
                }
                legacy::migrate(archive, source).await?;
                continue;
            };
            // If this version was deleted, a newer one exists.
            if let Some(bytes) = archive.get(&path).await? {
                return Self::parse(&path, &bytes);
            }
        }
    }

    /// Creates the first version of an archive of the older layout. Returns false if a version
    /// or no such archive exists. The caller must hold the leases of runs and backfills.
    ///
    /// # Errors
    /// The same as [`Version::read_newest`].
    pub(crate) async fn migrate(archive: &Archive, source: Source) -> Result<bool> {
        Ok(Self::has_older_layout(archive, source).await?
            && legacy::migrate(archive, source).await?)
    }

    /// Returns whether the archive has the older layout and no version.
    ///
    /// # Errors
    /// Errors of the archive.
    pub(crate) async fn has_older_layout(archive: &Archive, source: Source) -> Result<bool> {
        let has_version = !archive.list(&versions_folder(source)).await?.is_empty();
        Ok(!has_version && legacy::has_records(archive, source).await?)
    }

    /// Deletes the files of a writer whose version was not created. Returns the newest version.
    pub(super) async fn discard(
        archive: &Archive,
        source: Source,
        paths: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let newest = Self::read_newest(archive, source).await?;
        let listed = newest.listed_paths();
        for path in paths {
            let is_retired = newest.retired.iter().any(|retired| retired.path == path);
            if !is_retired && !listed.contains(path.as_str()) {
                archive.delete(&path).await?;
            }
        }
        Ok(newest)
    }
}
