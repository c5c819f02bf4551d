//! Reading results: as a stream for queries, and row by row for comparing.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BinaryArray, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Int64Type, SchemaRef};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use jobs::Job;
use schemas::time::UnixSeconds;
use stores::archive::Archive;
use stores::erasures::SuppressedPeople;

use super::manifest::{Piece, Segment};
use crate::archive::remove_listeners;
use crate::table::RowSource;
use crate::{Error, Result};

const BATCH_ROWS: usize = 32_768;

/// Rows of a job with the columns of its schema, for the jobs that read from it.
#[derive(Clone)]
pub(crate) struct RowStream {
    archive: Archive,
    job: Arc<Job>,
    schema: SchemaRef,
    /// The places of its columns among those of the job.
    columns: Arc<[usize]>,
    /// Segments, and whether their counts are to be taken away instead of added.
    segments: Vec<(Segment, bool)>,
    /// Those of whom nothing is said; several rows may have one key then.
    suppressed: Arc<SuppressedPeople>,
}

impl RowStream {
    pub(crate) fn new<'a>(
        archive: &Archive,
        job: &Arc<Job>,
        pieces: impl Iterator<Item = (&'a Piece, bool)>,
    ) -> Self {
        let signed = pieces.flat_map(|(piece, away)| piece.segments.iter().map(move |s| (s, away)));
        let segments = joined(signed);
        Self {
            archive: archive.clone(),
            job: Arc::clone(job),
            schema: job.schema(),
            columns: (0..job.schema().fields().len()).collect(),
            segments,
            suppressed: Arc::default(),
        }
    }

    /// The same rows without those who are suppressed.
    pub(crate) fn without(self, suppressed: &Arc<SuppressedPeople>) -> Self {
        Self {
            suppressed: Arc::clone(suppressed),
            ..self
        }
    }
}

/// Segments, of which neighbours in one file are read in one go.
fn joined<'a>(all: impl Iterator<Item = (&'a Segment, bool)>) -> Vec<(Segment, bool)> {
    let mut segments: Vec<(Segment, bool)> = Vec::new();
    for (segment, away) in all {
        if let Some((last, sign)) = segments.last_mut()
            && *sign == away
            && last.file == segment.file
            && last.row_groups.1 == segment.row_groups.0
        {
            last.row_groups.1 = segment.row_groups.1;
        } else {
            segments.push((segment.clone(), away));
        }
    }
    segments
}

impl fmt::Debug for RowStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowStream")
            .field("job", &self.job.name())
            .finish_non_exhaustive()
    }
}

impl RowSource for RowStream {
    fn project(&self, columns: &[usize]) -> Result<Arc<dyn PartitionStream>, DataFusionError> {
        Ok(Arc::new(Self {
            schema: Arc::new(self.job.schema().project(columns)?),
            columns: columns.into(),
            ..self.clone()
        }))
    }
}

impl PartitionStream for RowStream {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let archive = self.archive.clone();
        let job = Arc::clone(&self.job);
        let suppressed = Arc::clone(&self.suppressed);
        let (schema, columns) = (Arc::clone(&self.schema), Arc::clone(&self.columns));
        let external = |error: Error| DataFusionError::External(Box::new(error));
        let rows = futures::stream::iter(self.segments.clone())
            .then(move |(segment, away)| {
                let archive = archive.clone();
                let (job, schema) = (Arc::clone(&job), Arc::clone(&schema));
                let columns = Arc::clone(&columns);
                async move {
                    let batches = open(&archive, &segment).await?;
                    Ok::<_, Error>(
                        batches.map(move |batch| decode(&job, (&schema, &columns), &batch?, away)),
                    )
                }
            })
            .try_flatten()
            .map_ok(move |rows| remove_listeners(&suppressed, rows))
            .map_err(external);
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            rows,
        ))
    }
}

async fn open(
    archive: &Archive,
    segment: &Segment,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let groups = (segment.row_groups.0..segment.row_groups.1).collect();
    let batches = archive.read_rows(&segment.file, groups, BATCH_ROWS).await?;
    Ok(batches.map_err(Error::from).boxed())
}

/// The three columns of a result's file.
fn columns(batch: &RecordBatch) -> Result<(&BinaryArray, &BinaryArray, &Int64Array)> {
    let wrong = || Error::Fault("a result file does not have the columns of a result".to_owned());
    let binary = |name: &str| {
        let column = batch.column_by_name(name);
        column
            .and_then(|c| c.as_binary_opt::<i32>())
            .ok_or_else(wrong)
    };
    let counts = batch
        .column_by_name("count")
        .and_then(|column| column.as_primitive_opt::<Int64Type>())
        .ok_or_else(wrong)?;
    Ok((binary("group")?, binary("row")?, counts))
}

/// The columns of a schema, which are those of a job at some places.
fn decode(
    job: &Job,
    (schema, places): (&SchemaRef, &[usize]),
    batch: &RecordBatch,
    away: bool,
) -> Result<RecordBatch> {
    let (groups, rows, counts) = columns(batch)?;
    let fault = |e| Error::fault("decoding keys", e);
    let (first, keys) = (job.group().0.len(), job.schema().fields().len() - 1);
    let within = |from: usize, to: usize| -> Vec<usize> {
        let places = places.iter().filter(|place| (from..to).contains(place));
        places.map(|place| place - from).collect()
    };
    let of_group = job
        .group()
        .decode_columns(groups.iter().flatten(), &within(0, first));
    let of_row = job
        .row()
        .decode_columns(rows.iter().flatten(), &within(first, keys));
    let (of_group, of_row) = (of_group.map_err(fault)?, of_row.map_err(fault)?);
    let decoded: Vec<Option<ArrayRef>> = of_group.into_iter().chain(of_row).collect();
    let column = |place: &usize| -> Option<ArrayRef> {
        if *place < keys {
            return decoded.get(*place).cloned().flatten();
        }
        Some(if away {
            Arc::new(counts.unary::<_, Int64Type>(i64::wrapping_neg))
        } else {
            Arc::new(counts.clone())
        })
    };
    let columns: Option<Vec<ArrayRef>> = places.iter().map(column).collect();
    let columns =
        columns.ok_or_else(|| Error::Fault("a result without a column of its job".to_owned()))?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .map_err(|e| Error::fault("decoding a result", e))
}

/// Where a row is: the start of its piece, the group key, the row key.
pub(crate) type RowAt<'a> = (UnixSeconds, &'a [u8], &'a [u8]);

/// Walks the rows of pieces in the order of time and of their keys. Pieces are many and often small, so
/// that neighbours in one file are read in one go.
pub(crate) struct Cursor {
    archive: Archive,
    segments: std::vec::IntoIter<Segment>,
    stream: Option<BoxStream<'static, Result<RecordBatch>>>,
    batch: Option<(BinaryArray, BinaryArray, Int64Array)>,
    index: usize,
    /// Pieces that come, by their starts, with their numbers of rows.
    pieces: std::vec::IntoIter<(UnixSeconds, u64)>,
    /// The piece of the row where it stands, and how many rows of it are left, that one included.
    piece: (UnixSeconds, u64),
}

impl Cursor {
    /// A cursor that stands at the first row of pieces, which are given with their starts, ascending.
    pub(crate) async fn open<'a>(
        archive: &Archive,
        pieces: impl IntoIterator<Item = (&'a UnixSeconds, &'a Piece)>,
    ) -> Result<Self> {
        let pieces: Vec<(&UnixSeconds, &Piece)> = pieces.into_iter().collect();
        let segments = pieces.iter().flat_map(|(_, piece)| &piece.segments);
        let segments = joined(segments.map(|segment| (segment, false))).into_iter();
        let segments: Vec<Segment> = segments.map(|(segment, _)| segment).collect();
        let rows = pieces.iter().map(|(start, piece)| (**start, piece.rows));
        let mut cursor = Self {
            archive: archive.clone(),
            segments: segments.into_iter(),
            stream: None,
            batch: None,
            index: 0,
            pieces: rows.collect::<Vec<_>>().into_iter(),
            piece: (0, 0),
        };
        cursor.fill().await?;
        cursor.enter()?;
        Ok(cursor)
    }

    /// The row where it stands, and its count; nothing after the last row.
    pub(crate) fn at(&self) -> Option<(RowAt<'_>, i64)> {
        let (groups, rows, counts) = self.batch.as_ref()?;
        let (group, row) = (groups.value(self.index), rows.value(self.index));
        Some(((self.piece.0, group, row), counts.value(self.index)))
    }

    /// Goes to the next row.
    pub(crate) async fn advance(&mut self) -> Result<()> {
        self.index += 1;
        self.piece.1 = self.piece.1.saturating_sub(1);
        let held = self.batch.as_ref().map_or(0, |(_, _, counts)| counts.len());
        if self.index >= held {
            self.fill().await?;
        }
        self.enter()
    }

    /// Goes on to the piece of the row where it stands.
    fn enter(&mut self) -> Result<()> {
        while self.piece.1 == 0 && self.batch.is_some() {
            let wrong = || Error::Fault("a result has more rows than its manifest says".to_owned());
            self.piece = self.pieces.next().ok_or_else(wrong)?;
        }
        Ok(())
    }

    async fn fill(&mut self) -> Result<()> {
        self.index = 0;
        self.batch = None;
        loop {
            if let Some(stream) = &mut self.stream {
                if let Some(batch) = stream.try_next().await? {
                    if batch.num_rows() == 0 {
                        continue;
                    }
                    let (groups, rows, counts) = columns(&batch)?;
                    self.batch = Some((groups.clone(), rows.clone(), counts.clone()));
                    return Ok(());
                }
                self.stream = None;
            }
            let Some(segment) = self.segments.next() else {
                return Ok(());
            };
            self.stream = Some(open(&self.archive, &segment).await?);
        }
    }
}
