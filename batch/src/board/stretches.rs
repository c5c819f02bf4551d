//! The rows of a snapshot's file in stretches of whole keys: what a job makes of a key does not depend on other keys.

use std::ops::Range;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch};
use jobs::{Board, Job};

/// Rows that are computed by themselves.
#[derive(Debug)]
pub(super) struct Stretch {
    pub(super) rows: Vec<RecordBatch>,
    /// Whether they come in the order of their keys, with no key in too many of them.
    pub(super) is_by_key: bool,
}

impl Stretch {
    /// All rows, in whatever order they are.
    pub(super) fn whole(rows: &[RecordBatch]) -> Self {
        Self {
            rows: rows.to_vec(),
            is_by_key: false,
        }
    }
}

/// Cuts rows into stretches, in their order: keys of more than `rows_max` rows by themselves, and what is between them. Rows that do not come by
/// key are one stretch.
pub(super) fn cut(job: &Job<Board>, rows: &[RecordBatch], rows_max: usize) -> Vec<Stretch> {
    let Some(ranges) = ranges(job, rows, rows_max) else {
        return vec![Stretch::whole(rows)];
    };
    let stretches = ranges.into_iter().map(|(range, is_by_key)| Stretch {
        rows: slices(rows, &range),
        is_by_key,
    });
    stretches.collect()
}

/// The keys of rows, where a board has one that is a number.
pub(super) fn keys_of<'a>(job: &Job<Board>, rows: &'a RecordBatch) -> Option<&'a Int64Array> {
    let [key] = job.key().0.as_slice() else {
        return None;
    };
    rows.column_by_name(&key.name)?.as_primitive_opt()
}

/// Which rows each stretch has, and whether they come by key; nothing where not all do.
fn ranges(
    job: &Job<Board>,
    rows: &[RecordBatch],
    rows_max: usize,
) -> Option<Vec<(Range<usize>, bool)>> {
    let mut ranges = Vec::new();
    // Where the stretch begins, and the key within it; how many rows there were so far.
    let (mut from, mut begin, mut at) = (0, 0, 0);
    let mut last = i64::MIN;
    let mut end_key = |from: &mut usize, begin: usize, at: usize| {
        if at - begin > rows_max {
            ranges.push((*from..begin, true));
            ranges.push((begin..at, false));
            *from = at;
        }
    };
    for batch in rows {
        let column = keys_of(job, batch)?;
        if column.null_count() > 0 {
            return None;
        }
        for key in column.values() {
            if *key < last {
                return None;
            }
            if *key > last {
                end_key(&mut from, begin, at);
                (begin, last) = (at, *key);
            }
            at += 1;
        }
    }
    end_key(&mut from, begin, at);
    ranges.push((from..at, true));
    ranges.retain(|(range, _)| !range.is_empty());
    Some(ranges)
}

/// Some rows of batches.
fn slices(batches: &[RecordBatch], range: &Range<usize>) -> Vec<RecordBatch> {
    let (mut slices, mut before) = (Vec::new(), 0);
    for batch in batches {
        let after = before + batch.num_rows();
        let (from, to) = (range.start.max(before), range.end.min(after));
        if from < to {
            slices.push(batch.slice(from - before, to - from));
        }
        before = after;
    }
    slices
}
