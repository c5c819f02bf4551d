//! Divides the rows of a snapshot file into ranges of whole keys. A key's boards do not depend on
//! other keys, so ranges can be computed separately.

use std::ops::Range;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch};
use jobs::{Board, Job};

/// Rows that are computed together.
#[derive(Debug)]
pub(super) struct KeyRange {
    pub(super) rows: Vec<RecordBatch>,
    /// True if the rows are in key order, and no key has too many rows.
    pub(super) is_by_key: bool,
}

impl KeyRange {
    /// Returns all rows as one range without a known order.
    pub(super) fn unordered(rows: &[RecordBatch]) -> Self {
        Self {
            rows: rows.to_vec(),
            is_by_key: false,
        }
    }
}

/// Divides rows into ranges, in order: each key with more than `rows_max` rows, and the keys
/// between them. Rows that are not in key order are one range.
pub(super) fn split_by_key(
    job: &Job<Board>,
    rows: &[RecordBatch],
    rows_max: usize,
) -> Vec<KeyRange> {
    let Some(ranges) = find_key_ranges(job, rows, rows_max) else {
        return vec![KeyRange::unordered(rows)];
    };
    let key_ranges = ranges.into_iter().map(|(range, is_by_key)| KeyRange {
        rows: slice_batches(rows, &range),
        is_by_key,
    });
    key_ranges.collect()
}

/// Returns the key column, if the key is a single integer.
pub(super) fn find_key_column<'a>(
    job: &Job<Board>,
    rows: &'a RecordBatch,
) -> Option<&'a Int64Array> {
    let [key] = job.key().0.as_slice() else {
        return None;
    };
    rows.column_by_name(&key.name)?.as_primitive_opt()
}

/// Returns the rows of each range, and whether they are in key order; `None` if not all rows are.
fn find_key_ranges(
    job: &Job<Board>,
    rows: &[RecordBatch],
    rows_max: usize,
) -> Option<Vec<(Range<usize>, bool)>> {
    let mut ranges = Vec::new();
    // The start of the range, the start of its current key, and the current row.
    let (mut range_start, mut key_start, mut row) = (0, 0, 0);
    let mut last = i64::MIN;
    let mut end_key = |range_start: &mut usize, key_start: usize, row: usize| {
        if row - key_start > rows_max {
            ranges.push((*range_start..key_start, true));
            ranges.push((key_start..row, false));
            *range_start = row;
        }
    };
    for batch in rows {
        let column = find_key_column(job, batch)?;
        if column.null_count() > 0 {
            return None;
        }
        for key in column.values() {
            if *key < last {
                return None;
            }
            if *key > last {
                end_key(&mut range_start, key_start, row);
                (key_start, last) = (row, *key);
            }
            row += 1;
        }
    }
    end_key(&mut range_start, key_start, row);
    ranges.push((range_start..row, true));
    ranges.retain(|(range, _)| !range.is_empty());
    Some(ranges)
}

/// Returns a range of the rows of several batches.
fn slice_batches(batches: &[RecordBatch], range: &Range<usize>) -> Vec<RecordBatch> {
    let (mut slices, mut batch_start) = (Vec::new(), 0);
    for batch in batches {
        let batch_end = batch_start + batch.num_rows();
        let (from, to) = (range.start.max(batch_start), range.end.min(batch_end));
        if from < to {
            slices.push(batch.slice(from - batch_start, to - from));
        }
        batch_start = batch_end;
    }
    slices
}
