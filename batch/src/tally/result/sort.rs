//! Rows of a query, put in the order of piece and key: by their encoded keys, whose order is that of their values.
//!
//! They are sorted in memory as long as there is room, with no more compared than their first bytes where these differ. Else
//! the query engine sorts them, which spills.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, RecordBatch};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimestampMillisecondType};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::ident;
use futures::{StreamExt, TryStreamExt};
use jobs::{Engine, Job, check_rows};
use schemas::time::{BucketWidth, UnixSeconds};

use super::write::{Keyed, PieceWriter};
use crate::query_error;
use crate::{Error, Result};

/// Rows that are written at once.
const OUT_ROWS: usize = 32_768;
/// The bytes of a key that are compared first.
const PREFIX_BYTES: usize = 16;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("start", DataType::Int64, false),
        Field::new("group", DataType::Binary, false),
        Field::new("row", DataType::Binary, false),
        Field::new("count", DataType::Int64, false),
    ]))
});

/// By piece and column, how many values are missing.
type Nulls = BTreeMap<UnixSeconds, BTreeMap<String, u64>>;

/// Rows with the start of the piece that each belongs to.
type Placed = (Int64Array, Keyed);

/// Where a row is that was taken, and how its key begins.
#[derive(Debug, Clone, Copy)]
struct Place {
    prefix: [u64; 2],
    chunk: u32,
    row: u32,
}

/// Takes rows in any order.
pub(crate) struct Sorter {
    job: Arc<Job>,
    room: MemoryReservation,
    bytes_max: usize,
    chunks: Vec<Placed>,
    by_piece: BTreeMap<UnixSeconds, Vec<Place>>,
    /// How many bytes all row keys of a piece have in common: those of its bucket, where it has but one.
    alike: usize,
    nulls: Nulls,
}

impl Sorter {
    /// A sorter that has at most so many bytes in memory.
    pub(crate) fn new(job: &Arc<Job>, engine: &Engine, bytes_max: usize) -> Self {
        Self {
            job: Arc::clone(job),
            room: engine.reserve_spillable_memory("sorting"),
            bytes_max,
            chunks: Vec::new(),
            by_piece: BTreeMap::new(),
            alike: match job.bucket() == job.time_partition() && job.bucket() != BucketWidth::All {
                true => size_of::<i64>(),
                false => 0,
            },
            nulls: Nulls::new(),
        }
    }

    /// Takes rows with the columns of the job's schema. Answers whether there is room for more: once there is none
    /// these and all others are for [`Sorter::spill`].
    pub(crate) fn take(&mut self, rows: &RecordBatch) -> Result<bool> {
        let placed = encoded(&self.job, rows, &mut self.nulls)?;
        let (starts, (groups, keys, counts)) = &placed;
        let bytes = bytes_of(&placed) + counts.len() * size_of::<Place>();
        let has_room =
            self.room.size() + bytes <= self.bytes_max && self.room.try_grow(bytes).is_ok();
        if has_room {
            let chunk = number(self.chunks.len())?;
            let mut piece: Option<(UnixSeconds, &mut Vec<Place>)> = None;
            let keys = groups.iter().flatten().zip(keys.iter().flatten());
            for ((row, start), (group, key)) in (0..).zip(starts.values()).zip(keys) {
                let place = Place {
                    prefix: prefix(group, key.get(self.alike..).unwrap_or_default()),
                    chunk,
                    row,
                };
                match &mut piece {
                    Some((of, places)) if of == start => places.push(place),
                    _ => {
                        let places = self.by_piece.entry(*start).or_default();
                        places.push(place);
                        piece = Some((*start, places));
                    }
                }
            }
        }
        self.chunks.push(placed);
        Ok(has_room)
    }

    /// Writes all rows that were taken.
    pub(crate) async fn write(mut self, writer: &mut PieceWriter<'_>) -> Result<()> {
        for (start, mut places) in std::mem::take(&mut self.by_piece) {
            self.sort(&mut places);
            for some in places.chunks(OUT_ROWS) {
                writer.write_keyed(start, &self.gathered(some)).await?;
            }
        }
        add_nulls(writer, self.nulls);
        Ok(())
    }

    fn key(&self, place: &Place) -> (&[u8], &[u8]) {
        let row = place.row as usize;
        let chunk = self.chunks.get(place.chunk as usize);
        chunk.map_or((&[], &[]), |(_, (groups, rows, _))| {
            (groups.value(row), rows.value(row))
        })
    }

    fn sort(&self, places: &mut [Place]) {
        places.sort_unstable_by_key(|place| place.prefix);
        for same in places.chunk_by_mut(|one, next| one.prefix == next.prefix) {
            if same.len() > 1 {
                same.sort_unstable_by(|one, other| self.key(one).cmp(&self.key(other)));
            }
        }
    }

    fn gathered(&self, places: &[Place]) -> Keyed {
        let keys = || places.iter().map(|place| self.key(place));
        let counts = places.iter().filter_map(|place| {
            let (_, (.., counts)) = self.chunks.get(place.chunk as usize)?;
            Some(counts.value(place.row as usize))
        });
        (
            joined(keys().map(|(group, _)| group)),
            joined(keys().map(|(_, row)| row)),
            counts.collect::<Vec<_>>().into(),
        )
    }

    /// Writes all rows that were taken and those that are still to come: sorted by the query engine.
    pub(crate) async fn spill(
        self,
        rest: SendableRecordBatchStream,
        engine: &Engine,
        writer: &mut PieceWriter<'_>,
    ) -> Result<()> {
        let failed = query_error(&self.job);
        let nulls = Arc::new(Mutex::new(self.nulls));
        let (job, of_rest) = (Arc::clone(&self.job), Arc::clone(&nulls));
        let rest = rest.map(move |rows| {
            let mut nulls = of_rest.lock().unwrap_or_else(PoisonError::into_inner);
            let placed = check_rows(&job, &rows?).map_err(Error::from);
            let placed = placed.and_then(|rows| encoded(&job, &rows, &mut nulls));
            batch(placed.map_err(|error| DataFusionError::External(Box::new(error)))?)
        });
        // What was noted of rows is not needed, and of the rows themselves the query engine accounts one by one.
        drop(self.by_piece);
        let room = self.room;
        let left: usize = self.chunks.iter().map(bytes_of).sum();
        room.shrink(room.size().saturating_sub(left));
        let taken = self.chunks.into_iter().map(move |placed| {
            room.shrink(bytes_of(&placed).min(room.size()));
            batch(placed)
        });
        let taken = futures::stream::iter(taken);
        let input: Arc<dyn PartitionStream> = Arc::new(Once::of(taken.chain(rest)));
        let input = StreamingTable::try_new(Arc::clone(&SCHEMA), vec![input]).map_err(failed)?;
        let order = ["start", "group", "row"].map(|name| ident(name).sort(true, true));
        let sorted = engine
            .create_session()
            .read_table(Arc::new(input))
            .map_err(failed)?;
        let sorted = sorted.sort(order.to_vec()).map_err(failed)?;
        let mut sorted = sorted.execute_stream().await.map_err(failed)?;
        while let Some(rows) = sorted.try_next().await.map_err(failed)? {
            let starts = rows.column(0).as_primitive::<Int64Type>().values();
            let mut from = 0;
            for same in starts.chunk_by(|one, next| one == next) {
                let Some(start) = same.first() else { continue };
                let part = rows.slice(from, same.len());
                let keyed = (
                    part.column(1).as_binary::<i32>().clone(),
                    part.column(2).as_binary::<i32>().clone(),
                    part.column(3).as_primitive::<Int64Type>().clone(),
                );
                writer.write_keyed(*start, &keyed).await?;
                from += same.len();
            }
        }
        drop(sorted);
        let mut nulls = nulls.lock().unwrap_or_else(PoisonError::into_inner);
        add_nulls(writer, std::mem::take(&mut nulls));
        Ok(())
    }
}

fn add_nulls(writer: &mut PieceWriter<'_>, nulls: Nulls) {
    for (start, columns) in nulls {
        for (column, count) in columns {
            writer.add_nulls(start, column, count);
        }
    }
}

/// What rows take in memory.
fn bytes_of((starts, (groups, rows, counts)): &Placed) -> usize {
    starts.get_array_memory_size()
        + groups.get_array_memory_size()
        + rows.get_array_memory_size()
        + counts.get_array_memory_size()
}

fn number(chunks: usize) -> Result<u32> {
    u32::try_from(chunks).map_err(|error| Error::fault("sorting rows", error))
}

/// Values as one array.
fn joined<'a>(values: impl Iterator<Item = &'a [u8]> + Clone) -> BinaryArray {
    let lengths = OffsetBuffer::from_lengths(values.clone().map(<[u8]>::len));
    let mut bytes = Vec::with_capacity(values.clone().map(<[u8]>::len).sum());
    for value in values {
        bytes.extend_from_slice(value);
    }
    BinaryArray::new(lengths, bytes.into(), None)
}

/// How a key begins, as numbers that compare as its bytes do. No group's key is the beginning of another's, so both
/// parts of a key are compared as one.
pub(super) fn prefix(group: &[u8], row: &[u8]) -> [u64; 2] {
    let mut bytes = [0; PREFIX_BYTES];
    let both = group.iter().chain(row);
    for (byte, of_key) in bytes.iter_mut().zip(both) {
        *byte = *of_key;
    }
    let number = u128::from_be_bytes(bytes);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    [(number >> 64) as u64, number as u64]
}

fn batch((starts, (groups, rows, counts)): Placed) -> Result<RecordBatch, DataFusionError> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(starts),
        Arc::new(groups),
        Arc::new(rows),
        Arc::new(counts),
    ];
    Ok(RecordBatch::try_new(Arc::clone(&SCHEMA), columns)?)
}

/// Rows with the columns of the job's schema, encoded; counts the values that are missing.
fn encoded(job: &Job, rows: &RecordBatch, nulls: &mut Nulls) -> Result<Placed> {
    let groups = job.group().0.len();
    let keys = groups + job.row().0.len();
    let columns = rows.columns();
    let part = |range: std::ops::Range<usize>| columns.get(range).unwrap_or_default();
    let fault = |e| Error::fault("encoding keys", e);
    let keyed = (
        job.group().encode(part(0..groups)).map_err(fault)?,
        job.row().encode(part(groups..keys)).map_err(fault)?,
        // A copy: these may be a part of the numbers of many more rows.
        Int64Array::from(
            rows.column(keys)
                .as_primitive::<Int64Type>()
                .values()
                .to_vec(),
        ),
    );
    let starts = piece_starts(job, rows)?;
    for (column, array) in job.row().0.iter().zip(part(groups..keys)) {
        if column.nullable {
            let mut from = 0;
            for same in starts.values().chunk_by(|one, next| one == next) {
                let Some(start) = same.first() else { continue };
                let missing = array.slice(from, same.len()).null_count() as u64;
                let of_piece = nulls.entry(*start).or_default();
                *of_piece.entry(column.name.clone()).or_default() += missing;
                from += same.len();
            }
        }
    }
    Ok((starts, keyed))
}

/// The start of the piece that each row belongs to.
fn piece_starts(job: &Job, rows: &RecordBatch) -> Result<Int64Array> {
    if job.bucket() == BucketWidth::All {
        return Ok(Int64Array::from_value(0, rows.num_rows()));
    }
    let buckets = rows
        .column_by_name(jobs::BUCKET)
        .and_then(|column| column.as_primitive_opt::<TimestampMillisecondType>())
        .ok_or_else(|| Error::Fault("a result without buckets".to_owned()))?;
    // Many rows that follow each other are of one bucket.
    let (mut last, mut start) = (None, 0);
    let starts = buckets.values().iter().map(|millis| {
        if last != Some(*millis) {
            last = Some(*millis);
            let seconds = millis.div_euclid(1000);
            if job.bucket().floor(seconds) != seconds {
                return Err(no_bucket(job, seconds));
            }
            start = job.time_partition().floor(seconds);
        }
        Ok(start)
    });
    Ok(starts.collect::<Result<Vec<_>>>()?.into())
}

fn no_bucket(job: &Job, seconds: UnixSeconds) -> Error {
    Error::Fault(format!(
        "job {}: its query gives the bucket {seconds} (seconds since 1970), at which no bucket of a {} begins; let the query \
         make it coarser, as date_bin and date_trunc do",
        job.name(),
        job.bucket()
    ))
}

/// Batches that are read once.
struct Once {
    batches: Mutex<Option<SendableRecordBatchStream>>,
}

impl Once {
    fn of(
        batches: impl futures::Stream<Item = Result<RecordBatch, DataFusionError>> + Send + 'static,
    ) -> Self {
        let stream = RecordBatchStreamAdapter::new(Arc::clone(&SCHEMA), batches);
        Self {
            batches: Mutex::new(Some(Box::pin(stream))),
        }
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").finish_non_exhaustive()
    }
}

impl PartitionStream for Once {
    fn schema(&self) -> &SchemaRef {
        &SCHEMA
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let twice = || {
            let error = DataFusionError::Internal("rows to sort are read twice".to_owned());
            let stream = futures::stream::iter([Err(error)]);
            Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&SCHEMA), stream)) as _
        };
        batches.take().unwrap_or_else(twice)
    }
}

#[cfg(test)]
#[path = "sort_tests.rs"]
mod tests;
