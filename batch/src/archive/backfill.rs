//! Events of the past that never were in the log: files of their own, named by one manifest for each
//! backfill, numbered, create-only. They count as if they stood before the log's first record.

use std::collections::{BTreeMap, HashSet};

use arrow::array::RecordBatch;
use futures::{StreamExt, TryStreamExt};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created};
use stores::lease::Held as Lease;
use uuid::Uuid;

use super::manifest::{DayRows, Manifest, READS};
use super::write::encode;
use crate::manifest_file::{from_bytes, to_bytes};
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
    rows_max: usize,
    bytes_max: usize,
    waiting: Vec<RecordBatch>,
    files: Vec<File>,
    events: u64,
    lease: Box<dyn Lease>,
}

impl Batch {
    /// Begins a backfill of a source of facts.
    ///
    /// # Errors
    /// [`Error::Busy`] if another one is under way, and those of the stores.
    pub async fn backfill(&self, source: Source) -> Result<Backfill> {
        let lease = self.acquire(&format!("backfill-{source}")).await?;
        let archive = self.ports.archive.clone();
        // What a backfill left behind that died.
        let manifests = read_all(&archive, source).await?;
        let files = manifests.iter().flat_map(|manifest| &manifest.files);
        let named: HashSet<&str> = files.map(|file| file.path.as_str()).collect();
        for path in archive.list(&data_folder(source)).await? {
            if !named.contains(path.as_str()) {
                archive.delete(&path).await?;
            }
        }
        Ok(Backfill {
            archive,
            source,
            rows_max: self.options.archive_rows_max,
            bytes_max: self.options.archive_bytes_max,
            waiting: Vec::new(),
            files: Vec::new(),
            events: 0,
            lease,
        })
    }
}

impl Backfill {
    /// Takes events, with the columns of [`schemas::plays::schema`] and places in the log that no
    /// record has ([`schemas::plays::BEFORE_THE_LOG`]).
    ///
    /// # Errors
    /// Those of the archive.
    pub async fn add(&mut self, events: RecordBatch) -> Result<()> {
        self.events += events.num_rows() as u64;
        self.waiting.push(events);
        let rows: usize = self.waiting.iter().map(RecordBatch::num_rows).sum();
        let bytes = self.waiting.iter().map(RecordBatch::get_array_memory_size);
        if rows >= self.rows_max || bytes.sum::<usize>() >= self.bytes_max {
            self.write().await?;
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let encoded = tokio::task::spawn_blocking(move || encode(&waiting)).await;
        let encoded = encoded.map_err(|e| Error::fault("writing Parquet ended", e))?;
        let (bytes, days) = encoded.map_err(|e| Error::fault("writing Parquet", e))?;
        let Some(bytes) = bytes else { return Ok(()) };
        let path = format!("{}/{}.parquet", data_folder(self.source), Uuid::new_v4());
        self.archive.put(&path, bytes).await?;
        self.files.push(File { path, days });
        Ok(())
    }

    /// Ends it: the next batch run has its events.
    ///
    /// # Errors
    /// Those of the archive; then nothing of it counts.
    pub async fn finish(mut self) -> Result<BackfillReport> {
        self.write().await?;
        let mut report = BackfillReport {
            backfill: 0,
            events: self.events,
            files: self.files.len() as u64,
        };
        if self.files.is_empty() {
            return Ok(report);
        }
        let mut manifest = BackfillManifest {
            seq: read_all(&self.archive, self.source).await?.len() as u64 + 1,
            files: self.files,
        };
        // Under the lease nobody else should take a number, but one may have been lost.
        loop {
            let path = path(self.source, manifest.seq);
            let created = self.archive.create(&path, to_bytes(&manifest)?).await?;
            if created == Created::New {
                report.backfill = manifest.seq;
                drop(self.lease);
                return Ok(report);
            }
            manifest.seq += 1;
        }
    }
}

/// How many backfills there are, and their files, as manifests without a stretch of the log.
pub(crate) async fn backfilled(archive: &Archive, source: Source) -> Result<(u64, Vec<Manifest>)> {
    let manifests = read_all(archive, source).await?;
    let count = manifests.len() as u64;
    let files = manifests.into_iter().flat_map(|manifest| {
        let seq = manifest.seq;
        manifest.files.into_iter().map(move |file| Manifest {
            seq,
            from: Vec::new(),
            to: Vec::new(),
            file: Some(file.path),
            days: file.days,
            rejected: 0,
        })
    });
    Ok((count, files.collect()))
}

fn folder(source: Source) -> String {
    format!("archive/{source}/backfill/manifests")
}

fn data_folder(source: Source) -> String {
    format!("archive/{source}/backfill/data")
}

fn path(source: Source, seq: u64) -> String {
    format!("{}/{seq:010}.json", folder(source))
}

/// All manifests, in order.
async fn read_all(archive: &Archive, source: Source) -> Result<Vec<BackfillManifest>> {
    let paths = archive.list(&folder(source)).await?;
    let read = async |(seq, path): (u64, String)| {
        let found = archive.get(&path).await?;
        let bytes = found.ok_or_else(|| Error::damaged(&path, "it was listed, and is gone"))?;
        let manifest: BackfillManifest =
            from_bytes(&bytes).map_err(|what| Error::damaged(&path, what))?;
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
