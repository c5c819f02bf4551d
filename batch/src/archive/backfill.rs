//! Backfills: past events that were never in the log. They count as if they preceded its first
//! record.
//!
//! A backfill reserves a version number, and the names of all its files begin with that number. One
//! later version lists these files and ends all reservations. A lease prevents concurrent
//! backfills, but correctness does not depend on it: the first backfill to finish counts, and the
//! others lose their reservation.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use schemas::clock::Clock;
use schemas::source::Source;
use serde::Serialize;
use stores::archive::Archive;
use stores::erasures::{SuppressedPeople, Suppressions};
use stores::lease::LeaseGuard as Lease;

use super::file_entry::FileEntry;
use super::garbage::{GarbageScope, collect_garbage};
use super::remove_listeners;
use super::version::{Version, files_folder, list_parquet_files, new_path};
use super::write::encode_events;
use crate::lease::lost_lease_error;
use crate::{Batch, Error, Result};

/// The report of a backfill.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BackfillReport {
    /// The number of the backfill, from 1; 0 if it had no event.
    pub backfill: u64,
    /// Events that were written.
    pub events: u64,
    /// Files that were written.
    pub files: u64,
}

/// An open backfill. Its events do not count before [`Backfill::finish`].
#[derive(Debug)]
pub struct Backfill {
    archive: Archive,
    source: Source,
    clock: Arc<dyn Clock>,
    /// The reserved version number.
    reserved: u64,
    rows_max: usize,
    bytes_max: usize,
    buffer: Vec<RecordBatch>,
    files: Vec<FileEntry>,
    events: u64,
    /// True if a version may list the files although the store returned an error.
    is_outcome_unknown: bool,
    /// The erased people that were removed from its events.
    suppressed: Arc<SuppressedPeople>,
    suppressions: Suppressions,
    lease: Box<dyn Lease>,
}

impl Batch {
    /// Starts a backfill of an event source.
    ///
    /// # Errors
    /// [`Error::Busy`] if another one is open, and those of the stores.
    pub async fn backfill(&self, source: Source) -> Result<Backfill> {
        let lease = format!("backfill-{source}");
        let work = format!("a backfill is under way for {source}");
        let lease = self.acquire_lease(&lease, &work).await?;
        let archive = self.ports.archive.clone();
        let clock = Arc::clone(&self.ports.clock);
        let reserved = async {
            let suppressed = self.ports.suppressions.current().await?;
            Ok((reserve(&archive, source, &*clock).await?, suppressed))
        };
        let (reserved, suppressed) = match reserved.await {
            Ok(reserved) => reserved,
            Err(error) => {
                lease.release().await;
                return Err(error);
            }
        };
        Ok(Backfill {
            archive,
            source,
            clock,
            reserved,
            rows_max: self.options.archive_rows_max,
            bytes_max: self.options.archive_bytes_max,
            buffer: Vec::new(),
            files: Vec::new(),
            events: 0,
            is_outcome_unknown: false,
            suppressed,
            suppressions: self.ports.suppressions.clone(),
            lease,
        })
    }
}

/// Reserves a version number for the files of a backfill.
async fn reserve(archive: &Archive, source: Source, clock: &dyn Clock) -> Result<u64> {
    loop {
        let newest = Version::read_newest(archive, source).await?;
        check_no_expired_events(&newest, archive, source).await?;
        let mut next = newest.next(clock.now_ms());
        next.open_backfills.insert(next.number);
        if newest.commit(archive, source, &next).await? {
            return Ok(next.number);
        }
    }
}

impl Backfill {
    /// Adds events with the columns of [`schemas::plays::schema`]. Their partition and offset must
    /// precede the log ([`schemas::plays::BEFORE_THE_LOG`]).
    ///
    /// # Errors
    /// Errors of the archive, and a lost lease. After an error only [`Backfill::abandon`] may be
    /// called.
    pub async fn add(&mut self, events: RecordBatch) -> Result<()> {
        self.check_lease()?;
        self.events += events.num_rows() as u64;
        self.buffer.push(remove_listeners(&self.suppressed, events));
        let rows: usize = self.buffer.iter().map(RecordBatch::num_rows).sum();
        let bytes = self.buffer.iter().map(RecordBatch::get_array_memory_size);
        if rows >= self.rows_max || bytes.sum::<usize>() >= self.bytes_max {
            self.write().await?;
        }
        Ok(())
    }

    /// Fails if the lease is lost, because another backfill probably finishes first.
    fn check_lease(&self) -> Result<()> {
        if self.lease.lost().is_cancelled() {
            return Err(lost_lease_error(&*self.lease, "a backfill"));
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<()> {
        let (bytes, days) = encode_events(std::mem::take(&mut self.buffer)).await?;
        let Some(bytes) = bytes else { return Ok(()) };
        let path = new_path(&files_folder(self.source), self.reserved);
        // The object may exist although the store returns an error, so list the file first.
        self.files.push(FileEntry {
            path: Some(path.clone()),
            days,
            redacted_through: self.suppressed.newest_listener(),
            ..FileEntry::default()
        });
        Ok(self.archive.put(&path, bytes).await?)
    }

    /// Completes the backfill. The next batch run counts its events.
    ///
    /// # Errors
    /// Errors of the archive, a lost lease, and another backfill that started meanwhile. Then no
    /// event of this one counts, or the message says that this is unknown.
    pub async fn finish(mut self) -> Result<BackfillReport> {
        let backfill = match self.commit().await {
            Ok(backfill) => backfill,
            Err(error) => return Err(self.fail(error).await),
        };
        let now_ms = self.clock.now_ms();
        let collected =
            collect_garbage(&self.archive, self.source, GarbageScope::DEAD_ONLY, now_ms).await;
        if let Err(error) = collected {
            tracing::warn!(%error, "cannot delete files of unfinished backfills; the next run retries");
        }
        self.lease.release().await;
        Ok(BackfillReport {
            backfill,
            events: self.events,
            files: self.files.len() as u64,
        })
    }

    /// Deletes the files, unless a version may list them.
    async fn fail(self, error: Error) -> Error {
        if self.is_outcome_unknown {
            self.lease.release().await;
            return Error::Request(format!(
                "{error}. It is unknown whether this backfill counts; run it again, since repeated events count once"
            ));
        }
        self.abandon().await;
        error
    }

    fn is_listed(&self, version: &Version) -> bool {
        let mut files = self.files.iter();
        files.any(|file| version.files.iter().any(|listed| listed.path == file.path))
    }

    /// Abandons the backfill: its events do not count, and its files are deleted.
    pub async fn abandon(self) {
        for path in self.files.iter().filter_map(|file| file.path.as_ref()) {
            if let Err(error) = self.archive.delete(path).await {
                tracing::warn!(%error, path, "cannot delete a file of an abandoned backfill; the next backfill or run retries");
            }
        }
        self.lease.release().await;
    }

    /// Creates the version that lists the files. Returns the number of the backfill; 0 if it has no
    /// event.
    async fn commit(&mut self) -> Result<u64> {
        self.check_lease()?;
        self.write().await?;
        loop {
            let newest = Version::read_newest(&self.archive, self.source).await?;
            if self.is_listed(&newest) {
                return Ok(newest.backfills);
            }
            self.is_outcome_unknown = false;
            self.check_committable(&newest).await?;
            let mut next = newest.next(self.clock.now_ms());
            if self.files.is_empty() {
                next.open_backfills.remove(&self.reserved);
            } else {
                next.open_backfills.clear();
                next.backfills += 1;
                let index = next.log_start_index();
                drop(next.files.splice(index..index, self.files.iter().cloned()));
            }
            // The outcome is unknown until the newest version is read again, because another writer
            // may already have built on this one.
            self.is_outcome_unknown = !self.files.is_empty();
            if newest.commit(&self.archive, self.source, &next).await? {
                return Ok(if self.files.is_empty() {
                    0
                } else {
                    next.backfills
                });
            }
        }
    }

    async fn check_committable(&self, newest: &Version) -> Result<()> {
        if !newest.open_backfills.contains(&self.reserved) {
            return Err(Error::Request(
                "another backfill ended meanwhile, or the archive was replaced. No event of this backfill counts; run it again".to_owned(),
            ));
        }
        let present: BTreeSet<String> = list_parquet_files(&self.archive, self.source)
            .await?
            .into_keys()
            .collect();
        let is_missing = |file: &&FileEntry| {
            file.path
                .as_ref()
                .is_some_and(|path| !present.contains(path))
        };
        let missing = self.files.iter().find(is_missing);
        if let Some(path) = missing.and_then(|file| file.path.as_ref()) {
            return Err(Error::Request(format!(
                "{path}, a file of this backfill, was deleted: the archive was changed. No event of this backfill counts; run it again"
            )));
        }
        check_no_expired_events(newest, &self.archive, self.source).await?;
        // An erasure that started since the backfill began has not searched its files.
        let suppressed = self.suppressions.current().await?;
        if suppressed.newest_listener() != self.suppressed.newest_listener() {
            return Err(Error::Request(
                "a listener was erased during this backfill, and its files may name the listener. No event of this backfill counts; run it again".to_owned(),
            ));
        }
        self.check_lease()
    }
}

/// Fails if events expired: a backfill starts new tables, which are computed from all events.
async fn check_no_expired_events(
    version: &Version,
    archive: &Archive,
    source: Source,
) -> Result<()> {
    if version
        .find_expired_bounds(archive, source)
        .await?
        .is_none()
    {
        return Ok(());
    }
    Err(Error::Request(format!(
        "a backfill counts all events of {source} again, but some expired because of retention.archive_days. Restore from a copy the files that the newest object in archive/{source}/versions marks as expired, or ingest a small number of events into the log instead"
    )))
}
