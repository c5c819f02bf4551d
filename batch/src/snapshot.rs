//! Snapshots: the rows of a source of entities as Parquet, as of one moment.
//!
//! Rows come in the order of their keys, and every file holds all rows of a stretch of keys: what is
//! computed by key needs one file and no other. A snapshot is taken after the cut of its run, so a
//! row is never older than the run's epoch, and may be newer.

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
use stores::canon::CanonRead;
use stores::lease::Held as Lease;
use stores::parquet_file;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::run::{expect_held, go_on};
use crate::{Error, Progress, Result, manifest_file};

/// Rows that come from the canonical store at once.
const BATCH_ROWS: usize = 16_384;
const GROUP_ROWS_MAX: usize = 131_072;

/// What a snapshot is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SnapshotReport {
    /// Rows that it holds.
    pub rows: u64,
    /// Files that it consists of.
    pub files: u64,
    /// Its manifest, as a path within the archive.
    pub manifest: String,
}

/// A file of a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotFile {
    pub(crate) path: String,
    pub(crate) row_groups: usize,
    pub(crate) rows: u64,
    /// The first key and the last one.
    pub(crate) keys: (i64, i64),
}

/// A snapshot. Its manifest is for whoever looks at the archive: a run goes on with what it has in
/// memory, and a run after it takes a snapshot of its own.
#[derive(Debug, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) source: Source,
    /// When it was begun, in milliseconds since the Unix epoch.
    pub(crate) taken_at_ms: i64,
    /// Whether it holds all keys, or only some.
    pub(crate) is_whole: bool,
    /// Rows that are neither hidden nor deleted nor taken back.
    pub(crate) visible_rows: u64,
    pub(crate) files: Vec<SnapshotFile>,
}

/// Where snapshots come from and go to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taking<'a> {
    pub(crate) canon: &'a dyn CanonRead,
    pub(crate) archive: &'a Archive,
    /// What keeps other takers away.
    pub(crate) lease: &'a dyn Lease,
    pub(crate) source: Source,
    pub(crate) taken_at_ms: i64,
    /// Rows of one file, about.
    pub(crate) rows_max: u64,
}

impl Taking<'_> {
    /// Takes a snapshot of all keys, or of some. It is there once its manifest is.
    pub(crate) async fn take(
        &self,
        keys: Option<&BTreeSet<i64>>,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<(Snapshot, SnapshotReport)> {
        let schema = entities::schema(self.source)
            .ok_or_else(|| Error::Fault(format!("{} has no rows to take", self.source)))?;
        let name = Uuid::new_v4();
        let mut files = Files {
            taking: self,
            prefix: format!("{}/{name}", data_folder(self.source)),
            schema,
            file: None,
            done: Vec::new(),
        };
        let mut visible_rows = 0;
        let asked: Option<Vec<i64>> = keys.map(|keys| keys.iter().copied().collect());
        let mut batches = self
            .canon
            .dump(self.source, asked.as_deref(), BATCH_ROWS)
            .await?;
        while let Some(batch) = batches.try_next().await? {
            visible_rows += visible(&batch);
            files.write(&batch).await?;
            progress.advance(batch.num_rows() as u64);
            go_on(stop)?;
        }
        files.end_file().await?;
        let snapshot = Snapshot {
            source: self.source,
            taken_at_ms: self.taken_at_ms,
            is_whole: keys.is_none(),
            visible_rows,
            files: files.done,
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

    /// Deletes all snapshots but one, and what takers left behind that died. They are listed while
    /// nobody else takes one, so what somebody takes later is not among them.
    pub(crate) async fn remove_others(
        &self,
        keep: &SnapshotReport,
        stop: &CancellationToken,
    ) -> Result<()> {
        let file = keep.manifest.rsplit('/').next().unwrap_or_default();
        let name = file.trim_end_matches(".json");
        let mut listed = self.archive.list(&manifests_folder(self.source)).await?;
        listed.extend(self.archive.list(&data_folder(self.source)).await?);
        expect_held(self.lease).await?;
        for path in listed.iter().filter(|path| !path.contains(name)) {
            go_on(stop)?;
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

/// How many rows no column gives a reason to leave out: neither one that is yes or no (hidden,
/// deleted), nor the moment at which it was taken back.
fn visible(batch: &RecordBatch) -> u64 {
    let columns = batch.columns().iter();
    let reasons: Vec<_> = columns
        .filter_map(|column| column.as_boolean_opt())
        .collect();
    let taken_back = batch.column_by_name("revoked_at");
    let is_visible = |row: &usize| {
        !reasons.iter().any(|is_left_out| is_left_out.value(*row))
            && taken_back.is_none_or(|at| at.is_null(*row))
    };
    (0..batch.num_rows()).filter(is_visible).count() as u64
}

fn manifests_folder(source: Source) -> String {
    format!("snapshots/{source}/manifests")
}

fn data_folder(source: Source) -> String {
    format!("snapshots/{source}/data")
}

/// The files of a snapshot while they are written.
struct Files<'a> {
    taking: &'a Taking<'a>,
    prefix: String,
    schema: SchemaRef,
    file: Option<Open>,
    done: Vec<SnapshotFile>,
}

struct Open {
    path: String,
    writer: ArrowWriter<Vec<u8>>,
    rows: u64,
    keys: (i64, i64),
}

impl Files<'_> {
    async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let column = entities::key_column(self.taking.source);
        let keys = batch
            .column_by_name(column)
            .and_then(|column| column.as_primitive_opt::<Int64Type>())
            .ok_or_else(|| Error::Fault(format!("rows without {column}")))?
            .values();
        let mut from = 0;
        while let Some(first) = keys.get(from).copied() {
            // A file that is full goes on until its last key ends.
            if let Some(open) = &self.file
                && open.rows >= self.taking.rows_max
                && open.keys.1 != first
            {
                self.end_file().await?;
            }
            let room = self.file.as_ref().map_or(self.taking.rows_max, |open| {
                self.taking.rows_max.saturating_sub(open.rows)
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
            self.file = Some(Open {
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
            self.taking.archive.put(&open.path, bytes).await?;
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
