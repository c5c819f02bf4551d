//! Adding pieces up to a coarser one, or to one of the same view, where rows of each come in the order of its keys already:
//! side by side from the first key to the last, with no row decoded and none sorted.

use arrow::array::{BinaryBuilder, Int64Builder};
use datafusion::execution::memory_pool::MemoryReservation;
use jobs::Job;
use schemas::key::KeyValue;
use schemas::time::{BucketWidth, UnixSeconds};
use stores::archive::Archive;

use super::manifest::Piece;
use super::read::Cursor;
use super::sort::prefix;
use super::write::{Keyed, PieceWriter};
use crate::{Error, Result};

const BATCH_ROWS: usize = 32_768;
/// Pieces that are read side by side, at most.
const PIECES_MAX: usize = 64;
/// What each of them takes in memory, about: compressed chunks of a row group, and the rows that were decoded.
const INPUT_BYTES: usize = 6 << 20;

/// Takes the memory that so many pieces need which are read side by side; answers whether there is so much.
pub(crate) fn takes_room(room: &MemoryReservation, pieces: usize) -> bool {
    pieces <= PIECES_MAX && room.try_grow(pieces * INPUT_BYTES).is_ok()
}

/// A row: group, dimensions and count.
type Row<'a> = (&'a [u8], &'a [u8], i64);

/// The rows of one piece, by what their keys are in the sum but for its bucket.
struct Input {
    cursor: Cursor,
    /// How its row keys begin, if another bucket takes the place of theirs: all of them are of one then.
    bucket: Vec<u8>,
    /// How the key begins of the row where it stands.
    prefix: [u64; 2],
}

impl Input {
    /// The row where it stands; nothing after the last one.
    fn row(&self) -> Option<Row<'_>> {
        let ((_, group, row), count) = self.cursor.at()?;
        Some((group, row.get(self.bucket.len()..)?, count))
    }

    fn key(&self) -> Option<(&[u8], &[u8])> {
        self.row().map(|(group, dimensions, _)| (group, dimensions))
    }

    /// Goes to the next row; answers whether there is one.
    async fn advance(&mut self) -> Result<bool> {
        self.cursor.advance().await?;
        self.look()
    }

    /// Looks at the row where it stands; answers whether there is one.
    fn look(&mut self) -> Result<bool> {
        let Some(((_, group, row), _)) = self.cursor.at() else {
            return Ok(false);
        };
        let Some(dimensions) = row.strip_prefix(self.bucket.as_slice()) else {
            let of_another = "a row of another bucket than its piece";
            return Err(Error::Fault(of_another.to_owned()));
        };
        self.prefix = prefix(group, dimensions);
        Ok(true)
    }

    fn is_before(&self, other: &Self) -> bool {
        let by_prefix = self.prefix.cmp(&other.prefix);
        by_prefix.then_with(|| self.key().cmp(&other.key())).is_lt()
    }
}

/// Writes the piece of `job` that begins at `start`: the sum of these pieces of the job `under`, whose pieces it
/// adds up ([`Job::sums_time_partitions_of`]), or which is the same one.
pub(crate) async fn merge(
    archive: &Archive,
    (job, start): (&Job, UnixSeconds),
    (under, pieces): (&Job, &[(&UnixSeconds, &Piece)]),
    writer: &mut PieceWriter<'_>,
) -> Result<()> {
    let is_same = job.name() == under.name();
    let bucket = |job: &Job, start| match is_same {
        true => Ok(Vec::new()),
        false => bucket_of(job, start),
    };
    let mut inputs = Vec::with_capacity(pieces.len());
    for (of, piece) in pieces {
        let mut input = Input {
            cursor: Cursor::open(archive, [(*of, *piece)]).await?,
            bucket: bucket(under, **of)?,
            prefix: [0; 2],
        };
        if input.look()? {
            inputs.push(input);
        }
    }
    inputs.sort_by(|one, other| one.key().cmp(&other.key()));
    let mut sums = Sums::new(bucket(job, start)?);
    while let Some(first) = inputs.first_mut() {
        let Some((group, dimensions, count)) = first.row() else {
            return Err(Error::Fault("a piece without rows".to_owned()));
        };
        sums.add(group, dimensions, count)?;
        if !first.advance().await? {
            inputs.swap_remove(0);
        }
        sink(&mut inputs);
        if let Some(full) = sums.full() {
            writer.write_keyed(start, &full).await?;
        }
    }
    if let Some(last) = sums.finish() {
        writer.write_keyed(start, &last).await?;
    }
    Ok(())
}

/// Brings the first of a heap to its place.
fn sink(inputs: &mut [Input]) {
    let mut at = 0;
    loop {
        let (left, right) = (2 * at + 1, 2 * at + 2);
        let Some(mut child) = inputs.get(left) else {
            return;
        };
        let mut least = left;
        if let Some(other) = inputs.get(right).filter(|other| other.is_before(child)) {
            (child, least) = (other, right);
        }
        if !inputs.get(at).is_some_and(|parent| child.is_before(parent)) {
            return;
        }
        inputs.swap(at, least);
        at = least;
    }
}

/// How the row keys of a piece begin that is of one bucket.
fn bucket_of(job: &Job, start: UnixSeconds) -> Result<Vec<u8>> {
    if job.bucket() == BucketWidth::All {
        return Ok(Vec::new());
    }
    let bucket = job.row().encode_values(&[KeyValue::Time(start)]);
    bucket.map_err(|e| Error::fault("encoding keys", e))
}

/// Rows of which those of one key are added up.
struct Sums {
    bucket: Vec<u8>,
    groups: BinaryBuilder,
    rows: BinaryBuilder,
    counts: Int64Builder,
    /// The key that is being added up, with its bucket, and its sum.
    group: Vec<u8>,
    row: Vec<u8>,
    sum: Option<i64>,
    held: usize,
}

impl Sums {
    fn new(bucket: Vec<u8>) -> Self {
        Self {
            bucket,
            groups: BinaryBuilder::new(),
            rows: BinaryBuilder::new(),
            counts: Int64Builder::new(),
            group: Vec::new(),
            row: Vec::new(),
            sum: None,
            held: 0,
        }
    }

    fn add(&mut self, group: &[u8], dimensions: &[u8], count: i64) -> Result<()> {
        let of_key = self.row.get(self.bucket.len()..).unwrap_or_default();
        if let Some(sum) = &mut self.sum
            && self.group == group
            && of_key == dimensions
        {
            *sum = sum.checked_add(count).ok_or_else(|| {
                Error::Fault("a count is beyond the range of 64-bit integers".to_owned())
            })?;
            return Ok(());
        }
        self.end();
        self.group.clear();
        self.group.extend_from_slice(group);
        self.row.clear();
        self.row.extend_from_slice(&self.bucket);
        self.row.extend_from_slice(dimensions);
        self.sum = Some(count);
        Ok(())
    }

    /// Ends the key that is being added up.
    fn end(&mut self) {
        if let Some(sum) = self.sum.take() {
            self.groups.append_value(&self.group);
            self.rows.append_value(&self.row);
            self.counts.append_value(sum);
            self.held += 1;
        }
    }

    /// Rows that are ready, once they are many.
    fn full(&mut self) -> Option<Keyed> {
        (self.held >= BATCH_ROWS).then(|| self.take())
    }

    fn take(&mut self) -> Keyed {
        self.held = 0;
        (
            self.groups.finish(),
            self.rows.finish(),
            self.counts.finish(),
        )
    }

    fn finish(mut self) -> Option<Keyed> {
        self.end();
        (self.held > 0).then(|| self.take())
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
