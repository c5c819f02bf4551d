//! Writing rows that come in the order of piece and key.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use jobs::Job;
use parquet::arrow::ArrowWriter;
use schemas::time::UnixSeconds;
use serde::{Deserialize, Serialize};
use stores::archive::Archive;
use stores::parquet_file;
use uuid::Uuid;

use super::manifest::{Piece, Segment};
use crate::{Error, Result};

const GROUP_ROWS_MAX: usize = 262_144;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("group", DataType::Binary, false),
        Field::new("row", DataType::Binary, false),
        Field::new("count", DataType::Int64, false),
    ]))
});

/// Encoded group keys, encoded row keys and counts.
pub(crate) type Keyed = (BinaryArray, BinaryArray, Int64Array);

/// What was written of a view.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Written {
    /// By start.
    pub(crate) pieces: BTreeMap<UnixSeconds, Piece>,
}

/// Writes the rows of one job.
pub(crate) struct PieceWriter<'a> {
    archive: &'a Archive,
    /// How the paths of files begin.
    files: String,
    job: &'a Job,
    file: Option<(String, ArrowWriter<Vec<u8>>)>,
    /// The piece that is being written, by its start.
    piece: Option<UnixSeconds>,
    /// The row group with which its rows begin in the present file.
    stretch: Option<usize>,
    last: (Vec<u8>, Vec<u8>),
    written: Written,
    /// A file is ended once it is this large, so that little is held in memory.
    file_bytes: usize,
}

impl<'a> PieceWriter<'a> {
    pub(crate) fn new(
        archive: &'a Archive,
        files: String,
        job: &'a Job,
        file_bytes: usize,
    ) -> Self {
        Self {
            archive,
            files,
            job,
            file: None,
            piece: None,
            stretch: None,
            last: Default::default(),
            written: Written::default(),
            file_bytes,
        }
    }

    /// Says how many values are missing in a column of a piece.
    pub(crate) fn add_nulls(&mut self, start: UnixSeconds, column: String, count: u64) {
        let piece = self.written.pieces.entry(start).or_default();
        *piece.nulls.entry(column).or_default() += count;
    }

    /// Takes rows of one piece whose keys are encoded already.
    pub(crate) async fn write_keyed(&mut self, start: UnixSeconds, keyed: &Keyed) -> Result<()> {
        self.open(start)?;
        self.append(start, keyed).await
    }

    /// Ends the last file.
    pub(crate) async fn finish(mut self) -> Result<Written> {
        self.end_stretch()?;
        self.end_file().await?;
        Ok(self.written)
    }

    async fn append(&mut self, start: UnixSeconds, (groups, rows, counts): &Keyed) -> Result<()> {
        let mut last = (self.last.0.as_slice(), self.last.1.as_slice());
        for (group, row) in groups.iter().zip(rows.iter()) {
            let key = (group.unwrap_or_default(), row.unwrap_or_default());
            if key <= last && !last.1.is_empty() {
                return Err(Error::Fault(format!(
                    "job {}: its query gives two rows with one key, or keys out of order",
                    self.job.name()
                )));
            }
            last = key;
        }
        self.last = (last.0.to_vec(), last.1.to_vec());
        let piece = self.written.pieces.entry(start).or_default();
        piece.rows += counts.len() as u64;
        piece.total += counts.values().iter().map(|n| i128::from(*n)).sum::<i128>();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(groups.clone()),
            Arc::new(rows.clone()),
            Arc::new(counts.clone()),
        ];
        let (_, writer) = self
            .file
            .as_mut()
            .ok_or_else(|| Error::Fault("a result without a file".to_owned()))?;
        RecordBatch::try_new(Arc::clone(&SCHEMA), columns)
            .map_err(parquet::errors::ParquetError::from)
            .and_then(|batch| writer.write(&batch))
            .map_err(|e| Error::fault("writing a result", e))?;
        // A piece may be larger than a file should be: it goes on in the next one.
        if writer.bytes_written() + writer.in_progress_size() > self.file_bytes {
            self.end_stretch()?;
            self.end_file().await?;
        }
        Ok(())
    }

    /// Makes sure that rows of a piece can be written.
    fn open(&mut self, start: UnixSeconds) -> Result<()> {
        if self.piece.is_some_and(|piece| piece > start) {
            return Err(Error::Fault("pieces of a result out of order".to_owned()));
        }
        if self.piece != Some(start) {
            self.end_stretch()?;
            self.last = Default::default();
            self.piece = Some(start);
        }
        if self.file.is_none() {
            let path = format!(
                "{}-{}-{}.parquet",
                self.files,
                self.job.name(),
                Uuid::new_v4()
            );
            self.file = Some((path, new_file()?));
        }
        if self.stretch.is_none() {
            let groups = |(_, writer): &(_, ArrowWriter<_>)| writer.flushed_row_groups().len();
            self.stretch = self.file.as_ref().map(groups);
        }
        Ok(())
    }

    /// Ends the stretch of row groups that are of one piece.
    fn end_stretch(&mut self) -> Result<()> {
        if let (Some(first), Some(start), Some((path, writer))) =
            (self.stretch.take(), self.piece, &mut self.file)
        {
            writer
                .flush()
                .map_err(|e| Error::fault("writing a result", e))?;
            let piece = self.written.pieces.entry(start).or_default();
            piece.segments.push(Segment {
                file: path.clone(),
                row_groups: (first, writer.flushed_row_groups().len()),
            });
        }
        Ok(())
    }

    async fn end_file(&mut self) -> Result<()> {
        if let Some((path, writer)) = self.file.take() {
            let bytes =
                parquet_file::finish(writer).map_err(|e| Error::fault("writing a result", e))?;
            self.archive.put(&path, bytes).await?;
        }
        Ok(())
    }
}

fn new_file() -> Result<ArrowWriter<Vec<u8>>> {
    parquet_file::begin_sorted(Arc::clone(&SCHEMA), GROUP_ROWS_MAX, &["group", "row"])
        .map_err(|e| Error::fault("writing a result", e))
}
