//! Files of the archive that are missing or damaged, written anew from the log.

use std::collections::BTreeSet;

use schemas::source::Source;

use crate::archive::data_folder;
use crate::run::Batch;
use crate::{Error, Result};

impl Batch {
    /// The files of events that manifests name and that are not there.
    pub(crate) async fn missing_files(&self, source: Source) -> Result<Vec<String>> {
        let archiver = self.archiver(source).await?;
        let present = self.ports.archive.list(&data_folder(source)).await?;
        let present: BTreeSet<String> = present.into_iter().collect();
        let named = archiver.into_manifests().into_iter();
        let named = named.filter_map(|manifest| manifest.file);
        Ok(named.filter(|path| !present.contains(path)).collect())
    }

    /// Writes a file of the archive anew from the log.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the log does not give it any more, or it never came from there.
    pub(crate) async fn write_file_again(
        &self,
        source: Source,
        (path, why): (&str, &str),
    ) -> Result<()> {
        let mut archiver = self.archiver(source).await?;
        let mut manifests = archiver.manifests().iter();
        let manifest = manifests.find(|manifest| manifest.file.as_deref() == Some(path));
        let Some(manifest) = manifest.cloned() else {
            return Err(Error::damaged(path, why));
        };
        tracing::warn!(path, why, "a file of the archive is made anew from the log");
        let done = archiver.write_again(&manifest).await;
        done.map_err(|error| match error {
            Error::Request(log) => Error::damaged(
                path,
                format!("{why}, and can't be made anew from the log: {log}"),
            ),
            error => error,
        })
    }
}
