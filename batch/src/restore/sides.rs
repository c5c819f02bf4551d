//! The sides of a comparison: keys with what each side says of them, on the local disk, divided by the
//! hash of the key so that each file can be compared by itself.

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use arrow::array::{
    Array, ArrayRef, BinaryArray, BinaryBuilder, BooleanArray, Int64Array, Int64Builder,
    RecordBatch, UInt8Builder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use jobs::Job;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use stores::views::AggregateShape;
use xxhash_rust::xxh3::xxh3_64;

use super::scope::Scope;
use super::side::Side;
use super::stray;
use crate::{Error, Result};

/// Rows of one file that are written together.
const BLOCK_ROWS: usize = 16_384;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("key", DataType::Binary, false),
        Field::new("side", DataType::UInt8, false),
        Field::new("count", DataType::Int64, false),
    ]))
});

/// Where the sides are collected.
#[derive(Debug)]
pub(crate) struct Sides {
    job: Arc<Job>,
    scope: Arc<Scope>,
    files: Vec<Mutex<Part>>,
}

/// The file of some keys.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    writer: Option<ArrowWriter<File>>,
    keys: BinaryBuilder,
    sides: UInt8Builder,
    counts: Int64Builder,
    buffered: usize,
}

impl Sides {
    /// Collects in a folder, in so many files.
    pub(crate) fn new(
        job: &Arc<Job>,
        scope: &Arc<Scope>,
        folder: &Path,
        files: NonZeroUsize,
    ) -> Self {
        let part = |number: usize| Part {
            path: folder.join(format!("{number:04}.parquet")),
            writer: None,
            keys: BinaryBuilder::new(),
            sides: UInt8Builder::new(),
            counts: Int64Builder::new(),
            buffered: 0,
        };
        Self {
            job: Arc::clone(job),
            scope: Arc::clone(scope),
            files: (0..files.get())
                .map(|number| Mutex::new(part(number)))
                .collect(),
        }
    }

    /// Adds rows of the view, with the columns of [`Job::schema`].
    pub(crate) fn add(&self, side: Side, rows: &RecordBatch) -> Result<()> {
        let rows = self.scope.rows(rows)?;
        let (keys, counts) = self.scope.keyed(&rows)?;
        self.add_keyed(side, &keys, counts)
    }

    /// The view.
    pub(crate) fn job(&self) -> &Job {
        &self.job
    }

    /// Adds rows that lie where none of the view can lie, by their places. What can't be read may be of any key, and is
    /// looked at whichever are asked for; a sample leaves none out.
    pub(crate) fn add_strays(
        &self,
        side: Side,
        (parts, rows): (&BinaryArray, &BinaryArray),
        counts: &Int64Array,
    ) -> Result<()> {
        let is_asked = match side {
            Side::Misplaced => self.are_asked(parts, rows, counts)?,
            _ => None,
        };
        let is_asked = |row: usize| is_asked.as_ref().is_none_or(|asked| asked.value(row));
        let places = parts.iter().flatten().zip(rows.iter().flatten());
        let keys = stray::keys(places);
        let asked = (0..keys.len()).filter(|row| is_asked(*row));
        self.append(side, &keys, counts, asked)
    }

    /// Which rows with readable keys are asked for; nothing if all are.
    fn are_asked(
        &self,
        parts: &BinaryArray,
        rows: &BinaryArray,
        counts: &Int64Array,
    ) -> Result<Option<BooleanArray>> {
        if self.scope.has_all_rows() {
            return Ok(None);
        }
        let groups = parts
            .iter()
            .flatten()
            .filter_map(AggregateShape::split_partition_key);
        let groups = BinaryArray::from_iter_values(groups.map(|(_, group)| group));
        self.scope.asked(&self.decoded(&groups, rows, counts)?)
    }

    fn decoded(
        &self,
        groups: &BinaryArray,
        rows: &BinaryArray,
        counts: &Int64Array,
    ) -> Result<RecordBatch> {
        let (job, fault) = (&self.job, |e| Error::fault("decoding keys", e));
        let mut all: Vec<ArrayRef> = job.group().decode(groups.iter().flatten()).map_err(fault)?;
        all.extend(job.row().decode(rows.iter().flatten()).map_err(fault)?);
        all.push(Arc::new(counts.clone()));
        let rows = RecordBatch::try_new(job.schema(), all);
        rows.map_err(|e| Error::fault("decoding rows", e))
    }

    /// Adds rows of the view by their encoded keys.
    pub(crate) fn add_encoded(
        &self,
        side: Side,
        groups: &BinaryArray,
        rows: &BinaryArray,
        counts: &Int64Array,
    ) -> Result<()> {
        if groups.is_empty() {
            return Ok(());
        }
        if self.scope.is_all_of(&self.job) {
            return self.add_keyed(side, &joined(groups, rows), counts);
        }
        self.add(side, &self.decoded(groups, rows, counts)?)
    }

    /// Adds counts by the keys that are compared.
    pub(crate) fn add_keyed(
        &self,
        side: Side,
        keys: &BinaryArray,
        counts: &Int64Array,
    ) -> Result<()> {
        let sampled = (0..keys.len()).filter(|row| self.scope.is_sampled(keys.value(*row)));
        self.append(side, keys, counts, sampled)
    }

    fn append(
        &self,
        side: Side,
        keys: &BinaryArray,
        counts: &Int64Array,
        rows: impl Iterator<Item = usize>,
    ) -> Result<()> {
        let mut of_file: Vec<Vec<usize>> = vec![Vec::new(); self.files.len()];
        for row in rows {
            let file = xxh3_64(keys.value(row)) % (self.files.len() as u64);
            if let Some(rows) = usize::try_from(file).ok().and_then(|f| of_file.get_mut(f)) {
                rows.push(row);
            }
        }
        for (file, rows) in self.files.iter().zip(of_file) {
            if rows.is_empty() {
                continue;
            }
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            for row in rows {
                file.keys.append_value(keys.value(row));
                file.sides.append_value(side as u8);
                file.counts.append_value(counts.value(row));
                file.buffered += 1;
                if file.buffered == BLOCK_ROWS {
                    file.write()?;
                }
            }
        }
        Ok(())
    }

    /// Ends the files; those that there are.
    pub(crate) fn end(&self) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for file in &self.files {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.write()?;
            if let Some(writer) = file.writer.take() {
                writer.close().map_err(|e| scratch(&file.path, e))?;
                paths.push(file.path.clone());
            }
        }
        Ok(paths)
    }
}

/// Keys of all columns: columns follow each other in a key, so the row's are simply behind those of the group.
fn joined(groups: &BinaryArray, rows: &BinaryArray) -> BinaryArray {
    let bytes = groups.value_data().len() + rows.value_data().len();
    let mut keys = BinaryBuilder::with_capacity(rows.len(), bytes);
    let mut key = Vec::with_capacity(64);
    for (group, row) in groups.iter().zip(rows) {
        key.clear();
        key.extend_from_slice(group.unwrap_or_default());
        key.extend_from_slice(row.unwrap_or_default());
        keys.append_value(&key);
    }
    keys.finish()
}

impl Part {
    fn write(&mut self) -> Result<()> {
        if self.buffered == 0 {
            return Ok(());
        }
        self.buffered = 0;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.keys.finish()),
            Arc::new(self.sides.finish()),
            Arc::new(self.counts.finish()),
        ];
        let rows = RecordBatch::try_new(Arc::clone(&SCHEMA), columns)
            .map_err(|e| Error::fault("rows to compare", e))?;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => {
                let file = File::create_new(&self.path).map_err(|e| scratch(&self.path, e))?;
                let properties = WriterProperties::builder()
                    .set_compression(Compression::ZSTD(ZstdLevel::default()))
                    .set_dictionary_enabled(false)
                    .set_max_row_group_row_count(Some(BLOCK_ROWS))
                    .build();
                let writer = ArrowWriter::try_new(file, Arc::clone(&SCHEMA), Some(properties));
                none.insert(writer.map_err(|e| scratch(&self.path, e))?)
            }
        };
        writer.write(&rows).map_err(|e| scratch(&self.path, e))
    }
}

/// What went wrong on the disk where comparisons are made.
pub(crate) fn scratch(path: &Path, error: impl std::fmt::Display) -> Error {
    Error::Request(format!(
        "{}: {error}; the spill folder of queries needs space for the compressed keys of both sides",
        path.display()
    ))
}
