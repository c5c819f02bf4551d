//! Files of the archive that are missing or damaged, written anew from the log.

use schemas::source::Source;

use crate::archive::{event_files, record, take_reduced};
use crate::run::Batch;
use crate::{Error, Result};

impl Batch {
    /// The files of events that manifests name and that are not there.
    pub(crate) async fn missing_files(&self, source: Source) -> Result<Vec<String>> {
        let archiver = self.archiver(source).await?;
        let archive = &self.ports.archive;
        // What retention let go is not missing, nor what another file stands for since somebody was erased.
        let (manifests, _) = take_reduced(archive, source, archiver.into_manifests()).await?;
        let present = event_files(archive, source).await?;
        let named = manifests.into_iter();
        let named = named.filter_map(|manifest| manifest.file);
        Ok(named.filter(|path| !present.contains(path)).collect())
    }

    /// Writes a file of the archive anew from the log, without those who were erased.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the log does not give it any more, or it never came from there.
    pub(crate) async fn write_file_again(
        &self,
        source: Source,
        (path, why): (&str, &str),
    ) -> Result<()> {
        let mut archiver = self.archiver(source).await?;
        let record = record(&self.ports.archive, source).await?;
        // The same stretch of the log, whichever file it is in by now.
        let manifests = record.applied(archiver.manifests().to_vec());
        let mut manifests = manifests.iter();
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
