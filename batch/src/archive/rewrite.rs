//! Rewrites the events of several files as one file without erased listeners. It processes one
//! batch of rows at a time, so memory holds one row group and the compressed file.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};
use bytes::Bytes;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::TryStreamExt;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use schemas::plays;
use stores::archive::Archive;
use stores::erasures::SuppressedPeople;
use stores::parquet_file;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::Xxh3Default;

use super::file_entry::{DayRows, FileEntry};
use super::remove_listeners;
use super::write::GROUP_ROWS_MAX;
use crate::lease::check_stop;
use crate::{Error, Result};

const BATCH_ROWS: usize = 32_768;

/// A rewritten file in memory.
pub(super) struct RewrittenFile {
    /// `None` if there is no event.
    pub(super) bytes: Option<Bytes>,
    pub(super) days: BTreeMap<i64, DayRows>,
    checksum: u64,
}

/// Rewrites files without erased listeners.
pub(super) struct Rewriter<'a> {
    pub(super) archive: &'a Archive,
    pub(super) suppressed: &'a SuppressedPeople,
    /// Accounts for the memory.
    pub(super) memory: &'a MemoryReservation,
    pub(super) stop: &'a CancellationToken,
}

impl Rewriter<'_> {
    /// Writes the events of `files` as one file, sorted by day and within a day in the order of the
    /// files.
    ///
    /// # Errors
    /// Errors of the archive, [`Error::Damaged`] if a file does not match its entry,
    /// [`Error::Stopped`], and exhausted memory.
    pub(super) async fn rewrite(&self, files: &[FileEntry]) -> Result<RewrittenFile> {
        let fault = |error: ParquetError| Error::fault("writing Parquet", error);
        let days = files.iter().flat_map(|file| file.days.keys().copied());
        let all_days: BTreeSet<i64> = days.collect();
        let mut writer = parquet_file::begin(plays::schema(), GROUP_ROWS_MAX).map_err(fault)?;
        let mut checksum = Checksum::new()?;
        let mut days = BTreeMap::new();
        for day in all_days {
            let (begin, mut rows) = (writer.flushed_row_groups().len(), 0);
            for file in files {
                let (Some(path), Some(day_rows)) = (&file.path, file.days.get(&day)) else {
                    continue;
                };
                check_stop(self.stop)?;
                let groups = day_rows.row_groups.clone().collect();
                let mut batches = self.archive.read_rows(path, groups, BATCH_ROWS).await?;
                let mut count = 0;
                while let Some(batch) = batches.try_next().await? {
                    count += batch.num_rows() as u64;
                    let batch = remove_listeners(self.suppressed, batch);
                    rows += batch.num_rows() as u64;
                    checksum.update(&batch)?;
                    writer = write(writer, Some(batch)).await?;
                    let bytes = writer.memory_size() + writer.inner().capacity();
                    self.memory.try_resize(bytes).map_err(|error| {
                        let operation = format!("rewriting {path} (raise query.memory_bytes)");
                        Error::fault(&operation, error)
                    })?;
                }
                if count != day_rows.rows {
                    let expected = day_rows.rows;
                    let damage = format!(
                        "it has {count} events of day {day}, but its entry says {expected}"
                    );
                    return Err(Error::damaged(path, damage));
                }
            }
            writer = write(writer, None).await?;
            let row_groups = begin..writer.flushed_row_groups().len();
            if rows > 0 {
                days.insert(day, DayRows { row_groups, rows });
            }
        }
        let bytes = match days.is_empty() {
            true => None,
            false => Some(parquet_file::finish(writer).map_err(fault)?),
        };
        Ok(RewrittenFile {
            bytes,
            days,
            checksum: checksum.finish(),
        })
    }
}

/// Writes a batch, or ends the row group, on a thread for blocking work.
async fn write(
    mut writer: ArrowWriter<Vec<u8>>,
    batch: Option<RecordBatch>,
) -> Result<ArrowWriter<Vec<u8>>> {
    let work = move || {
        match batch {
            Some(batch) => writer.write(&batch)?,
            None => writer.flush()?,
        }
        Ok(writer)
    };
    let written = tokio::task::spawn_blocking(work).await;
    let written = written.map_err(|error| Error::fault("the Parquet writer task failed", error))?;
    written.map_err(|error: ParquetError| Error::fault("writing Parquet", error))
}

impl RewrittenFile {
    /// Stores the file and verifies it by reading it back, because the files that it replaces will
    /// be deleted.
    ///
    /// # Errors
    /// Errors of the archive, and [`Error::Damaged`] if the stored file has other events.
    pub(super) async fn store(&self, archive: &Archive, path: &str) -> Result<()> {
        let Some(bytes) = &self.bytes else {
            return Ok(());
        };
        archive.put(path, bytes.clone()).await?;
        let mut checksum = Checksum::new()?;
        for day_rows in self.days.values() {
            let groups = day_rows.row_groups.clone().collect();
            let mut batches = archive.read_rows(path, groups, BATCH_ROWS).await?;
            while let Some(batch) = batches.try_next().await? {
                checksum.update(&batch)?;
            }
        }
        if checksum.finish() == self.checksum {
            return Ok(());
        }
        let damage = "its content differs from the data just written";
        Err(Error::damaged(path, damage))
    }
}

/// A checksum of rows in order, independent of their division into batches.
struct Checksum {
    rows: RowConverter,
    hash: Xxh3Default,
}

impl Checksum {
    fn new() -> Result<Self> {
        let schema = plays::schema();
        let fields = schema.fields().iter();
        let fields = fields.map(|field| SortField::new(field.data_type().clone()));
        Ok(Self {
            rows: RowConverter::new(fields.collect()).map_err(unreadable_error)?,
            hash: Xxh3Default::new(),
        })
    }

    fn update(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = self
            .rows
            .convert_columns(batch.columns())
            .map_err(unreadable_error)?;
        for row in &rows {
            self.hash.update(row.as_ref());
        }
        Ok(())
    }

    fn finish(self) -> u64 {
        self.hash.digest()
    }
}

fn unreadable_error(error: ArrowError) -> Error {
    Error::fault("reading rows of the archive", error)
}
