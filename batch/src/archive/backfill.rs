//! Events of the past that never were in the log: files of their own, named by one manifest for each
//! backfill, numbered, create-only. They count as if they stood before the log's first record.
//!
//! A lease keeps two backfills apart, but nothing rests on it: a holder that lost it may go on for a
//! while. A backfill takes its number when it begins. The names of its files begin with it, and it
//! creates the manifest of this number or none. So a file is dead, for ever and whoever wrote it, once
//! the manifest of its number is there and does not name it; nothing else is deleted. What a backfill
//! leaves behind that died goes when the next one ends.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created};
use stores::erasures::{Suppressed, Suppressions};
use stores::lease::Held as Lease;
use uuid::Uuid;

use super::manifest::{DayRows, Manifest, READS};
use super::reduced::reduced_days;
use super::scrub::record;
use super::without;
use super::write::encoded;
use crate::manifest_file::{read_listed, to_bytes};
use crate::run::lease_lost;
use crate::{Batch, Error, Result};

/// One file of a backfill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct File {
    path: String,
    /// By UTC day of the events' time.
    days: BTreeMap<i64, DayRows>,
}

/// One backfill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct BackfillManifest {
    /// The number, from 1 on.
    seq: u64,
    files: Vec<File>,
    /// The number of the newest erasure of a listener that its writer knew of.
    #[serde(default)]
    suppressed: u64,
}

/// What a backfill brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BackfillReport {
    /// Its number, from 1 on; 0 if there was no event.
    pub backfill: u64,
    /// Events that were written.
    pub events: u64,
    /// Files that were written.
    pub files: u64,
}

/// A backfill that is being written. Nothing of it counts before [`Backfill::finish`].
#[derive(Debug)]
pub struct Backfill {
    archive: Archive,
    source: Source,
    /// Its number, if it is the next one that ends.
    seq: u64,
    /// Makes the names of its files its own.
    id: Uuid,
    rows_max: usize,
    bytes_max: usize,
    waiting: Vec<RecordBatch>,
    files: Vec<File>,
    events: u64,
    /// Whom its events don't name.
    suppressed: Arc<Suppressed>,
    suppressions: Suppressions,
    lease: Box<dyn Lease>,
}

/// What became of a manifest.
enum Ended {
    /// It is there.
    Counts,
    /// It never will be.
    Never(Error),
    /// Nobody knows.
    Unknown(Error),
}

impl Batch {
    /// Begins a backfill of a source of facts.
    ///
    /// # Errors
    /// [`Error::Busy`] if another one is under way, and those of the stores.
    pub async fn backfill(&self, source: Source) -> Result<Backfill> {
        let lease = format!("backfill-{source}");
        let what = format!("a backfill is under way for {source}");
        let lease = self.acquire(&lease, &what).await?;
        let archive = self.ports.archive.clone();
        let begun = async {
            expect_all_events(&archive, source).await?;
            let suppressed = self.ports.suppressions.now().await?;
            Ok((tidied(&archive, source).await?, suppressed))
        };
        let (manifests, suppressed) = match begun.await {
            Ok(begun) => begun,
            Err(error) => {
                lease.let_go().await;
                return Err(error);
            }
        };
        Ok(Backfill {
            archive,
            source,
            seq: manifests.len() as u64 + 1,
            id: Uuid::new_v4(),
            rows_max: self.options.archive_rows_max,
            bytes_max: self.options.archive_bytes_max,
            waiting: Vec::new(),
            files: Vec::new(),
            events: 0,
            suppressed,
            suppressions: self.ports.suppressions.clone(),
            lease,
        })
    }
}

impl Backfill {
    /// Takes events, with the columns of [`schemas::plays::schema`] and places in the log that no
    /// record has ([`schemas::plays::BEFORE_THE_LOG`]).
    ///
    /// # Errors
    /// Those of the archive, and that the lease was lost; [`Backfill::abandon`] is all that can follow.
    pub async fn add(&mut self, events: RecordBatch) -> Result<()> {
        self.go_on()?;
        self.events += events.num_rows() as u64;
        self.waiting.push(without(&self.suppressed, events));
        let rows: usize = self.waiting.iter().map(RecordBatch::num_rows).sum();
        let bytes = self.waiting.iter().map(RecordBatch::get_array_memory_size);
        if rows >= self.rows_max || bytes.sum::<usize>() >= self.bytes_max {
            self.write().await?;
        }
        Ok(())
    }

    /// Whether it is worth going on: who has the lease now ends first, most likely.
    fn go_on(&self) -> Result<()> {
        if self.lease.lost().is_cancelled() {
            return Err(lease_lost(&*self.lease, "a backfill"));
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let (_, (bytes, days)) = encoded(waiting).await?;
        let Some(bytes) = bytes else { return Ok(()) };
        let (folder, number) = (data_folder(self.source), self.files.len());
        let path = format!("{folder}/{:010}-{}-{number:06}.parquet", self.seq, self.id);
        // It may be there without an answer that says so.
        self.files.push(File {
            path: path.clone(),
            days,
        });
        Ok(self.archive.put(&path, bytes).await?)
    }

    /// Ends it: the next batch run has its events.
    ///
    /// # Errors
    /// Those of the archive, and that another backfill ended meanwhile or the lease was lost. Then
    /// nothing of it counts, or the message says that this is not known.
    pub async fn finish(mut self) -> Result<BackfillReport> {
        let report = match self.end().await {
            Ended::Counts => BackfillReport {
                backfill: if self.files.is_empty() { 0 } else { self.seq },
                events: self.events,
                files: self.files.len() as u64,
            },
            Ended::Never(error) => {
                self.abandon().await;
                return Err(error);
            }
            Ended::Unknown(error) => {
                self.lease.let_go().await;
                return Err(error);
            }
        };
        if let Err(error) = tidied(&self.archive, self.source).await {
            tracing::warn!(%error, "files of backfills that died stay until the next backfill");
        }
        self.lease.let_go().await;
        Ok(report)
    }

    /// Gives it up: nothing of it counts, and its files are deleted.
    pub async fn abandon(self) {
        for file in &self.files {
            if let Err(error) = self.archive.delete(&file.path).await {
                tracing::warn!(%error, "a file of a backfill that was given up stays until the next one ends");
            }
        }
        self.lease.let_go().await;
    }

    /// Creates the manifest, unless there is no event.
    async fn end(&mut self) -> Ended {
        let bytes = match self.manifest().await {
            Ok(None) => return Ended::Counts,
            Ok(Some(bytes)) => bytes,
            Err(error) => return Ended::Never(error),
        };
        let path = path(self.source, self.seq);
        let error = match self.archive.create(&path, bytes.clone()).await {
            Ok(Created::New) => return Ended::Counts,
            Ok(Created::Exists) => return Ended::Never(overtaken(self.seq)),
            Err(error) => error,
        };
        match self.archive.get(&path).await {
            Ok(Some(there)) if there == bytes => Ended::Counts,
            Ok(Some(_)) => Ended::Never(overtaken(self.seq)),
            Ok(None) | Err(_) => Ended::Unknown(Error::Request(format!(
                "{error}; whether this backfill counts is not known: run it again, what comes twice counts once"
            ))),
        }
    }

    /// Whoever was erased since it began may be in its files, and an erasure has looked at the archive without them.
    async fn expect_nobody_erased(&self) -> Result<()> {
        let now = self.suppressions.now().await?;
        if now.newest_listener() == self.suppressed.newest_listener() {
            return Ok(());
        }
        Err(Error::Request(
            "somebody was erased while this backfill was written, and its files may name them. Nothing of it counts; run it again".to_owned(),
        ))
    }

    /// The manifest, if it may be created: what it names is there, and it is the next one.
    async fn manifest(&mut self) -> Result<Option<Bytes>> {
        self.go_on()?;
        self.write().await?;
        if self.files.is_empty() {
            return Ok(None);
        }
        let present = self.archive.list(&data_folder(self.source)).await?;
        let present: BTreeSet<String> = present.into_iter().collect();
        for file in &self.files {
            if !present.contains(&file.path) {
                return Err(Error::Request(format!(
                    "{} is gone, which this backfill has written: another one ended meanwhile, or the archive was changed. Nothing of it counts; run it again",
                    file.path
                )));
            }
        }
        let before = read_all(&self.archive, self.source).await?.len() as u64;
        if before >= self.seq {
            return Err(overtaken(self.seq));
        }
        if before + 1 < self.seq {
            return Err(Error::Request(format!(
                "the archive holds {before} backfills, and held {} when this one began: another archive has taken its place. Nothing of this backfill counts; run it again",
                self.seq - 1
            )));
        }
        expect_all_events(&self.archive, self.source).await?;
        self.expect_nobody_erased().await?;
        self.go_on()?;
        let manifest = BackfillManifest {
            seq: self.seq,
            files: self.files.clone(),
            suppressed: self.suppressed.newest_listener(),
        };
        to_bytes(&manifest).map(Some)
    }
}

/// A backfill fills tables of its own from all events: where some were let go, no run could take it in.
async fn expect_all_events(archive: &Archive, source: Source) -> Result<()> {
    if reduced_days(archive, source).await?.is_none() {
        return Ok(());
    }
    Err(Error::Request(format!(
        "a backfill counts all events of {source} anew, and some are no longer in the archive: retention.archive_days let them go. Put the files that archive/{source}/reduced/manifests names back from a copy first; events that are not too many can be ingested into the log instead"
    )))
}

fn overtaken(seq: u64) -> Error {
    Error::Request(format!(
        "another backfill ended meanwhile and is number {seq} now. Nothing of this one counts; run it again"
    ))
}

/// All manifests, after dead files were deleted.
async fn tidied(archive: &Archive, source: Source) -> Result<Vec<BackfillManifest>> {
    let manifests = read_all(archive, source).await?;
    let files = manifests.iter().flat_map(|manifest| &manifest.files);
    let record = record(archive, source).await?;
    let paths = files.map(|file| file.path.as_str());
    let named: HashSet<&str> = paths.filter(|path| !record.replaces(path)).collect();
    let folder = data_folder(source);
    for path in archive.list(&folder).await? {
        let name = path.trim_start_matches(&folder).trim_start_matches('/');
        let (seq, _) = name.split_once('-').unwrap_or_default();
        let is_over = |seq: u64| (1..=manifests.len() as u64).contains(&seq);
        if seq.parse().is_ok_and(is_over) && !named.contains(path.as_str()) {
            archive.delete(&path).await?;
        }
    }
    Ok(manifests)
}

/// How many backfills there are, and their files, as manifests without a stretch of the log.
pub(crate) async fn backfilled(archive: &Archive, source: Source) -> Result<(u64, Vec<Manifest>)> {
    let manifests = read_all(archive, source).await?;
    let count = manifests.len() as u64;
    let files = manifests.into_iter().flat_map(|manifest| {
        let (seq, suppressed) = (manifest.seq, manifest.suppressed);
        manifest.files.into_iter().map(move |file| Manifest {
            seq,
            first: None,
            from: Vec::new(),
            to: Vec::new(),
            file: Some(file.path),
            days: file.days,
            rejected: 0,
            suppressed,
        })
    });
    Ok((count, files.collect()))
}

fn folder(source: Source) -> String {
    format!("archive/{source}/backfill/manifests")
}

/// Where the files of events of backfills are.
pub(crate) fn data_folder(source: Source) -> String {
    format!("archive/{source}/backfill/data")
}

fn path(source: Source, seq: u64) -> String {
    format!("{}/{seq:010}.json", folder(source))
}

/// All manifests, in order.
async fn read_all(archive: &Archive, source: Source) -> Result<Vec<BackfillManifest>> {
    let paths = archive.list(&folder(source)).await?;
    let read = async |(seq, path): (u64, String)| {
        let manifest: BackfillManifest = read_listed(archive, &path).await?;
        if manifest.seq != seq {
            let what = format!("expected backfill {seq} here: one is missing");
            return Err(Error::damaged(&path, what));
        }
        Ok(manifest)
    };
    futures::stream::iter((1_u64..).zip(paths))
        .map(read)
        .buffered(READS)
        .try_collect()
        .await
}
