//! Backfills: events of the past that never were in the log. They count as if they stood before its first record.
//!
//! A backfill reserves the number of the version in which it begins, and the names of all its files begin with that number.
//! One more version lists them and ends all reservations. A lease keeps two backfills apart, but nothing depends on it: of
//! several, the first that ends counts, and the others have lost their reservation.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use schemas::clock::Clock;
use schemas::source::Source;
use serde::Serialize;
use stores::archive::Archive;
use stores::erasures::{Suppressed, Suppressions};
use stores::lease::Held as Lease;

use super::file_entry::FileEntry;
use super::version::{Due, Version, collect_garbage, files_folder, new_path, objects};
use super::without;
use super::write::encoded;
use crate::run::lease_lost;
use crate::{Batch, Error, Result};

/// The result of a backfill.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BackfillReport {
    /// Its number, from 1 on; 0 if there was no event.
    pub backfill: u64,
    /// Events that were written.
    pub events: u64,
    /// Files that were written.
    pub files: u64,
}

/// An open backfill. Nothing of it counts before [`Backfill::finish`].
#[derive(Debug)]
pub struct Backfill {
    archive: Archive,
    source: Source,
    clock: Arc<dyn Clock>,
    /// The number that it reserved.
    reserved: u64,
    rows_max: usize,
    bytes_max: usize,
    buffer: Vec<RecordBatch>,
    files: Vec<FileEntry>,
    events: u64,
    /// Whether a version may list the files although the store reported an error.
    is_unknown: bool,
    /// The listeners whom its events do not name.
    suppressed: Arc<Suppressed>,
    suppressions: Suppressions,
    lease: Box<dyn Lease>,
}

impl Batch {
    /// Begins a backfill of an event source.
    ///
    /// # Errors
    /// [`Error::Busy`] if another one is open, and those of the stores.
    pub async fn backfill(&self, source: Source) -> Result<Backfill> {
        let lease = format!("backfill-{source}");
        let what = format!("a backfill is under way for {source}");
        let lease = self.acquire(&lease, &what).await?;
        let archive = self.ports.archive.clone();
        let clock = Arc::clone(&self.ports.clock);
        let reserved = async {
            let suppressed = self.ports.suppressions.now().await?;
            Ok((reserve(&archive, source, &*clock).await?, suppressed))
        };
        let (reserved, suppressed) = match reserved.await {
            Ok(reserved) => reserved,
            Err(error) => {
                lease.let_go().await;
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
            is_unknown: false,
            suppressed,
            suppressions: self.ports.suppressions.clone(),
            lease,
        })
    }
}

/// Reserves a number for the files of a backfill.
async fn reserve(archive: &Archive, source: Source, clock: &dyn Clock) -> Result<u64> {
    loop {
        let newest = Version::newest(archive, source).await?;
        expect_all_events(&newest, archive, source).await?;
        let mut next = newest.next(clock.now_ms());
        next.open_backfills.insert(next.number);
        if newest.commit(archive, source, &next).await? {
            return Ok(next.number);
        }
    }
}

impl Backfill {
    /// Adds events, with the columns of [`schemas::plays::schema`] and places in the log that no record has
    /// ([`schemas::plays::BEFORE_THE_LOG`]).
    ///
    /// # Errors
    /// Those of the archive, and a lost lease; only [`Backfill::abandon`] can follow.
    pub async fn add(&mut self, events: RecordBatch) -> Result<()> {
        self.expect_lease()?;
        self.events += events.num_rows() as u64;
        self.buffer.push(without(&self.suppressed, events));
        let rows: usize = self.buffer.iter().map(RecordBatch::num_rows).sum();
        let bytes = self.buffer.iter().map(RecordBatch::get_array_memory_size);
        if rows >= self.rows_max || bytes.sum::<usize>() >= self.bytes_max {
            self.write().await?;
        }
        Ok(())
    }

    /// Without the lease another backfill most likely ends first.
    fn expect_lease(&self) -> Result<()> {
        if self.lease.lost().is_cancelled() {
            return Err(lease_lost(&*self.lease, "a backfill"));
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<()> {
        let (bytes, days) = encoded(std::mem::take(&mut self.buffer)).await?;
        let Some(bytes) = bytes else { return Ok(()) };
        let path = new_path(&files_folder(self.source), self.reserved);
        // The object may exist although the store reports an error.
        self.files.push(FileEntry {
            path: Some(path.clone()),
            days,
            redacted_through: self.suppressed.newest_listener(),
            ..FileEntry::default()
        });
        Ok(self.archive.put(&path, bytes).await?)
    }

    /// Ends the backfill: the next batch run counts its events.
    ///
    /// # Errors
    /// Those of the archive, and that another backfill began meanwhile or the lease was lost. Then nothing of this one
    /// counts, or the message says that this is unknown.
    pub async fn finish(mut self) -> Result<BackfillReport> {
        let backfill = match self.commit().await {
            Ok(backfill) => backfill,
            Err(error) => return Err(self.fail(error).await),
        };
        let now_ms = self.clock.now_ms();
        let collected = collect_garbage(&self.archive, self.source, Due::DEAD, now_ms).await;
        if let Err(error) = collected {
            tracing::warn!(%error, "files of backfills that did not end stay until the next run");
        }
        self.lease.let_go().await;
        Ok(BackfillReport {
            backfill,
            events: self.events,
            files: self.files.len() as u64,
        })
    }

    /// Deletes the files, unless a version may list them.
    async fn fail(self, error: Error) -> Error {
        if self.is_unknown {
            self.lease.let_go().await;
            return Error::Request(format!(
                "{error}; it is unknown whether this backfill counts: run it again, events that come twice count once"
            ));
        }
        self.abandon().await;
        error
    }

    fn is_listed(&self, version: &Version) -> bool {
        let mut files = self.files.iter();
        files.any(|file| version.files.iter().any(|listed| listed.path == file.path))
    }

    /// Gives the backfill up: nothing of it counts, and its files are deleted.
    pub async fn abandon(self) {
        for path in self.files.iter().filter_map(|file| file.path.as_ref()) {
            if let Err(error) = self.archive.delete(path).await {
                tracing::warn!(%error, path, "a file of an abandoned backfill stays until the next backfill ends");
            }
        }
        self.lease.let_go().await;
    }

    /// Creates the version that lists the files. Returns the number of the backfill; 0 if it has no event.
    async fn commit(&mut self) -> Result<u64> {
        self.expect_lease()?;
        self.write().await?;
        loop {
            let newest = Version::newest(&self.archive, self.source).await?;
            if self.is_listed(&newest) {
                return Ok(newest.backfills);
            }
            self.is_unknown = false;
            self.expect_committable(&newest).await?;
            let mut next = newest.next(self.clock.now_ms());
            if self.files.is_empty() {
                next.open_backfills.remove(&self.reserved);
            } else {
                next.open_backfills.clear();
                next.backfills += 1;
                let at = next.log_begins_at();
                drop(next.files.splice(at..at, self.files.iter().cloned()));
            }
            // Until the newest version is read again: another writer may already have built on this one.
            self.is_unknown = !self.files.is_empty();
            if newest.commit(&self.archive, self.source, &next).await? {
                return Ok(if self.files.is_empty() {
                    0
                } else {
                    next.backfills
                });
            }
        }
    }

    async fn expect_committable(&self, newest: &Version) -> Result<()> {
        if !newest.open_backfills.contains(&self.reserved) {
            return Err(Error::Request(
                "another backfill ended meanwhile, or another archive has taken the place of this one. Nothing of this backfill counts; run it again".to_owned(),
            ));
        }
        let present: BTreeSet<String> = objects(&self.archive, self.source)
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
                "{path} is gone, which this backfill has written: the archive was changed. Nothing of this backfill counts; run it again"
            )));
        }
        expect_all_events(newest, &self.archive, self.source).await?;
        // Listeners who were erased since it began may be in its files, and the erasure has searched the archive without them.
        let suppressed = self.suppressions.now().await?;
        if suppressed.newest_listener() != self.suppressed.newest_listener() {
            return Err(Error::Request(
                "a listener was erased while this backfill was written, and its files may name them. Nothing of it counts; run it again".to_owned(),
            ));
        }
        self.expect_lease()
    }
}

/// A backfill begins tables of its own from all events. Where some expired, no run could compute these.
async fn expect_all_events(version: &Version, archive: &Archive, source: Source) -> Result<()> {
    if version.expired_bounds(archive, source).await?.is_none() {
        return Ok(());
    }
    Err(Error::Request(format!(
        "a backfill counts all events of {source} again, and some are no longer in the archive: they expired by retention.archive_days. Restore from a copy the files that the newest object in archive/{source}/versions marks as expired; a small number of events can be ingested into the log instead"
    )))
}
