//! Snapshots: the rows of an entity source as Parquet, as of one moment.
//!
//! Rows are in key order, and a file contains all rows of its keys, so computing a key needs one
//! file. A snapshot is taken after the cut of its run. So a row may be newer than the run's epoch,
//! never older.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, SchemaRef};
use futures::TryStreamExt;
use parquet::arrow::ArrowWriter;
use schemas::entities;
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::Archive;
use stores::entities::EntityRead;
use stores::lease::LeaseGuard as Lease;
use stores::parquet_file;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::lease::{check_stop, verify_lease};
use crate::{Error, Progress, Result, manifest_file};

/// Rows that are read from the entity store at once.
const BATCH_ROWS: usize = 16_384;
const GROUP_ROWS_MAX: usize = 131_072;

/// The report of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SnapshotReport {
    /// Rows of the snapshot.
    pub rows: u64,
    /// Files of the snapshot.
    pub files: u64,
    /// The path of its manifest in the archive.
    pub manifest: String,
}

/// A file of a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotFile {
    pub(crate) path: String,
    pub(crate) row_groups: usize,
    pub(crate) rows: u64,
    /// The first and the last key.
    pub(crate) keys: (i64, i64),
}

/// A snapshot. Its manifest is only for inspection of the archive: a run keeps it in memory, and
/// the next run takes its own snapshot.
#[derive(Debug, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) source: Source,
    /// When it was started, in milliseconds since the Unix epoch.
    pub(crate) taken_at_ms: i64,
    /// True if it contains all keys.
    pub(crate) is_whole: bool,
    /// Rows that are neither hidden nor deleted nor revoked.
    pub(crate) visible_rows: u64,
    pub(crate) files: Vec<SnapshotFile>,
}

/// Takes snapshots of a source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnapshotTaker<'a> {
    pub(crate) entities: &'a dyn EntityRead,
    pub(crate) archive: &'a Archive,
    /// The lease that excludes other snapshots of the source.
    pub(crate) lease: &'a dyn Lease,
    pub(crate) source: Source,
    pub(crate) taken_at_ms: i64,
    /// Approximate rows of one file.
    pub(crate) rows_max: u64,
}

impl SnapshotTaker<'_> {
    /// Takes a snapshot of all keys, or of the given ones. The manifest is written last.
    pub(crate) async fn take(
        &self,
        keys: Option<&BTreeSet<i64>>,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<(Snapshot, SnapshotReport)> {
        let schema = entities::schema(self.source)
            .ok_or_else(|| Error::Fault(format!("{} is not an entity source", self.source)))?;
        let name = Uuid::new_v4();
        let mut writer = SnapshotWriter {
            taker: self,
            prefix: format!("{}/{name}", data_folder(self.source)),
            schema,
            file: None,
            done: Vec::new(),
        };
        let mut visible_rows = 0;
        let listed_keys: Option<Vec<i64>> = keys.map(|keys| keys.iter().copied().collect());
        let mut batches = self
            .entities
            .dump(self.source, listed_keys.as_deref(), BATCH_ROWS)
            .await?;
        while let Some(batch) = batches.try_next().await? {
            visible_rows += count_visible(&batch);
            writer.write(&batch).await?;
            progress.advance(batch.num_rows() as u64);
            check_stop(stop)?;
        }
        writer.end_file().await?;
        let snapshot = Snapshot {
            source: self.source,
            taken_at_ms: self.taken_at_ms,
            is_whole: keys.is_none(),
            visible_rows,
            files: writer.done,
        };
        let path = format!("{}/{name}.json", manifests_folder(self.source));
        manifest_file::create(self.archive, &path, &snapshot).await?;
        let report = SnapshotReport {
            rows: snapshot.rows(),
            files: snapshot.files.len() as u64,
            manifest: path,
        };
        Ok((snapshot, report))
    }

    /// Deletes all snapshots except `keep`, and the files of interrupted ones. They are listed
    /// while the lease is held, so a later snapshot of another process is not among them.
    pub(crate) async fn delete_others(
        &self,
        keep: &SnapshotReport,
        stop: &CancellationToken,
    ) -> Result<()> {
        let file = keep.manifest.rsplit('/').next().unwrap_or_default();
        let name = file.trim_end_matches(".json");
        let mut listed = self.archive.list(&manifests_folder(self.source)).await?;
        listed.extend(self.archive.list(&data_folder(self.source)).await?);
        verify_lease(self.lease).await?;
        for path in listed.iter().filter(|path| !path.contains(name)) {
            check_stop(stop)?;
            self.archive.delete(path).await?;
        }
        Ok(())
    }
}

impl Snapshot {
    pub(crate) fn rows(&self) -> u64 {
        self.files.iter().map(|file| file.rows).sum()
    }
}

/// Counts the rows that are visible: no boolean column (hidden, deleted) is true, and `revoked_at`
/// is null.
fn count_visible(batch: &RecordBatch) -> u64 {
    let columns = batch.columns().iter();
    let flags: Vec<_> = columns
        .filter_map(|column| column.as_boolean_opt())
        .collect();
    let revoked_at = batch.column_by_name("revoked_at");
    let is_visible = |row: &usize| {
        !flags.iter().any(|flag| flag.value(*row)) && revoked_at.is_none_or(|at| at.is_null(*row))
    };
    (0..batch.num_rows()).filter(is_visible).count() as u64
}

fn manifests_folder(source: Source) -> String {
    format!("snapshots/{source}/manifests")
}

fn data_folder(source: Source) -> String {
    format!("snapshots/{source}/data")
}

/// Writes the files of a snapshot.
struct SnapshotWriter<'a> {
    taker: &'a SnapshotTaker<'a>,
    prefix: String,
    schema: SchemaRef,
    file: Option<OpenFile>,
    done: Vec<SnapshotFile>,
}

struct OpenFile {
    path: String,
    writer: ArrowWriter<Vec<u8>>,
    rows: u64,
    keys: (i64, i64),
}

impl SnapshotWriter<'_> {
    async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let column = entities::key_column(self.taker.source);
        let keys = batch
            .column_by_name(column)
            .and_then(|column| column.as_primitive_opt::<Int64Type>())
            .ok_or_else(|| Error::Fault(format!("rows without {column}")))?
            .values();
        let mut from = 0;
        while let Some(first) = keys.get(from).copied() {
            // A full file continues until its last key ends.
            if let Some(open) = &self.file
                && open.rows >= self.taker.rows_max
                && open.keys.1 != first
            {
                self.end_file().await?;
            }
            let room = self.file.as_ref().map_or(self.taker.rows_max, |open| {
                self.taker.rows_max.saturating_sub(open.rows)
            });
            let room = usize::try_from(room).unwrap_or(usize::MAX).max(1);
            let mut to = keys.len().min(from.saturating_add(room));
            while keys.get(to) == to.checked_sub(1).and_then(|last| keys.get(last))
                && to < keys.len()
            {
                to += 1;
            }
            let last = to.checked_sub(1).and_then(|last| keys.get(last)).copied();
            self.append(
                &batch.slice(from, to - from),
                (first, last.unwrap_or(first)),
            )?;
            from = to;
        }
        Ok(())
    }

    fn append(&mut self, rows: &RecordBatch, keys: (i64, i64)) -> Result<()> {
        let fault = |error| Error::fault("writing a snapshot", error);
        if self.file.is_none() {
            let writer = parquet_file::begin(Arc::clone(&self.schema), GROUP_ROWS_MAX);
            self.file = Some(OpenFile {
                path: format!("{}-{:06}.parquet", self.prefix, self.done.len()),
                writer: writer.map_err(fault)?,
                rows: 0,
                keys,
            });
        }
        if let Some(open) = &mut self.file {
            open.writer.write(rows).map_err(fault)?;
            open.rows += rows.num_rows() as u64;
            open.keys.1 = keys.1;
        }
        Ok(())
    }

    async fn end_file(&mut self) -> Result<()> {
        let fault = |error| Error::fault("writing a snapshot", error);
        if let Some(mut open) = self.file.take() {
            open.writer.flush().map_err(fault)?;
            let row_groups = open.writer.flushed_row_groups().len();
            let bytes = parquet_file::finish(open.writer).map_err(fault)?;
            self.taker.archive.put(&open.path, bytes).await?;
            self.done.push(SnapshotFile {
                path: open.path,
                row_groups,
                rows: open.rows,
                keys: open.keys,
            });
        }
        Ok(())
    }
}
