//! The archive commands: copying the log outside of runs, checking the archive, and migrating it.

use std::time::{Duration, Instant};

use schemas::seam::{Cut, Offset};
use schemas::source::Source;
use stores::ErrorKind;
use tokio_util::sync::CancellationToken;

use super::ArchiveReport;
use super::file_entry::FileEntry;
use super::version::Version;
use crate::{Batch, Error, Result};

const ARCHIVE_PAUSE: Duration = Duration::from_secs(1);

impl Batch {
    /// Copies the log of a source to the archive until `shutdown`, or with `until_caught_up` up to
    /// the current end of the log. Writes a file when enough events are waiting, or when the oldest
    /// one has waited for `archive_wait_ms`.
    ///
    /// # Errors
    /// [`Error::Request`] if the archive was written from another log, and those of the stores.
    pub async fn archive(
        &self,
        source: Source,
        until_caught_up: bool,
        shutdown: CancellationToken,
    ) -> Result<ArchiveReport> {
        let mut report = ArchiveReport::default();
        let mut archiver = self.archiver(source).await?;
        if let Err(error) = self.collect_archive_garbage(source, false).await {
            tracing::warn!(%source, %error, "cannot delete unused archive files; the next archiver or run deletes them");
        }
        let longest_wait = Duration::from_millis(self.options.archive_wait_ms);
        // When the oldest unarchived event was first seen.
        let mut waiting_since: Option<Instant> = None;
        loop {
            let copied = async {
                let ends = self.read_partition_ends(source).await?;
                let lag = archiver.lag(&ends);
                if lag == 0 {
                    waiting_since = None;
                    return Ok(ArchiveReport::default());
                }
                let since = *waiting_since.get_or_insert_with(Instant::now);
                let is_file_full = lag >= self.options.archive_rows_max as u64;
                if !until_caught_up && !is_file_full && since.elapsed() < longest_wait {
                    return Ok(ArchiveReport::default());
                }
                let ends: Vec<Cut> = ends.into_iter().map(cut_without_record).collect();
                let copied = archiver.archive_up_to(&ends, &(), &shutdown).await?;
                waiting_since = None;
                Ok(copied)
            };
            match copied.await {
                Ok(copied) => report += copied,
                Err(Error::Store(error))
                    if !until_caught_up && error.kind() == ErrorKind::Retry =>
                {
                    tracing::warn!(%source, %error, "archiving failed, retrying");
                }
                Err(error) => return Err(error),
            }
            if until_caught_up {
                return Ok(report);
            }
            tokio::select! {
                () = tokio::time::sleep(ARCHIVE_PAUSE) => {}
                () = shutdown.cancelled() => return Ok(report),
            }
        }
    }

    /// Verifies that no listed archive file is missing and that the archive belongs to this log.
    /// Returns the numbers of files and events. Does not read the files.
    ///
    /// # Errors
    /// [`Error::Damaged`] for the first missing file, and [`Error::Request`] if the log is another
    /// one.
    pub async fn check_archive(&self, source: Source) -> Result<(usize, u64)> {
        let mut archiver = self.archiver(source).await?;
        archiver.verify_log().await?;
        let (archive, version) = (&self.ports.archive, archiver.version());
        if let Some(path) = version.missing_files(archive, source).await?.first() {
            return Err(Error::damaged(path, "it is missing"));
        }
        let (entries, _) = version.read_contents(archive, source).await?;
        let files = entries.iter().filter(|entry| entry.path.is_some()).count();
        let events = entries.iter().map(FileEntry::rows).sum();
        Ok((files, events))
    }

    /// Migrates an archive that an older version of Backstitch wrote. Returns false if there is
    /// none.
    ///
    /// # Errors
    /// Errors of the archive, [`Error::Damaged`] if a record of the older layout is missing or
    /// damaged, and [`Error::Busy`] if a run or a backfill is under way.
    pub async fn migrate_archive(&self, source: Source) -> Result<bool> {
        if !Version::has_older_layout(&self.ports.archive, source).await? {
            return Ok(false);
        }
        let work = format!(
            "a run or a backfill of {source} is under way, and the archive cannot be migrated meanwhile"
        );
        let mut leases = Vec::new();
        for lease in [format!("batch-{source}"), format!("backfill-{source}")] {
            leases.push(self.acquire_lease(&lease, &work).await?);
        }
        let migrated = Version::migrate(&self.ports.archive, source).await;
        for lease in leases {
            lease.release().await;
        }
        migrated
    }
}

/// Returns a cut without its last record.
const fn cut_without_record(next_offset: Offset) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}
