//! Files of the archive that are missing or damaged, written again from the log.

use schemas::source::Source;

use crate::archive::Version;
use crate::batch::Batch;
use crate::{Error, Result};

impl Batch {
    /// The files of events that the archive lists and that are missing.
    pub(crate) async fn missing_files(&self, source: Source) -> Result<Vec<String>> {
        let archive = &self.ports.archive;
        let version = Version::read_newest(archive, source).await?;
        version.missing_files(archive, source).await
    }

    /// Writes a file of the archive again from the log, without erased listeners.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the log does not hold its events any more, or never did.
    pub(crate) async fn write_file_again(
        &self,
        source: Source,
        (path, why): (&str, &str),
    ) -> Result<()> {
        let mut archiver = self.archiver(source).await?;
        let files = archiver.version().files();
        let is_of_log = |path: &str| {
            let mut files = files.iter().filter(|file| !file.is_backfill());
            files.any(|file| file.path.as_deref() == Some(path))
        };
        if !is_of_log(path) {
            return Err(Error::damaged(path, why));
        }
        tracing::warn!(path, why, "rewriting an archive file from the log");
        let done = archiver.rewrite_file(path).await;
        done.map_err(|error| match error {
            Error::Request(log) => Error::damaged(
                path,
                format!("{why}, and it cannot be rewritten from the log: {log}"),
            ),
            error => error,
        })
    }
}
