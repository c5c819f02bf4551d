//! Live deltas of views that only the batch layer runs.
//!
//! Most deltas of a roll-up by day, month or all time would duplicate those of a finer view. So
//! live state counts only finer views. A reader derives the deltas of the coarser view: it drops
//! columns and coarsens buckets. This equals the view's query if the query is a plain roll-up,
//! which its plan shows when the definition is read.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray};
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use schemas::key::{KeyColumn, KeyError, KeyKind, KeyShape};
use schemas::time::Width;

use crate::columns::BUCKET;
use crate::job::{Job, Layers};
use crate::sketch::{self, cell_column, is_cell_column};

/// Derives the deltas of a coarser view from those of a finer one.
#[derive(Debug, Clone)]
pub struct Rollup {
    base: Arc<Job>,
    bucket: Width,
    row: KeyShape,
    columns: Vec<RowColumn>,
}

/// The source of a column of the coarser row: the index of a column of the finer row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowColumn {
    Bucket(usize),
    Column(usize),
    Cell(usize),
}

impl Rollup {
    /// Finds the nearest view below `job` that the speed layer runs. Returns `None` if `job` has
    /// live deltas itself, or none can be derived. `jobs` are all jobs.
    #[must_use]
    pub fn find(job: &Job, jobs: &[Arc<Job>]) -> Option<Self> {
        if job.layers() != Layers::Batch {
            return None;
        }
        let mut below = job;
        loop {
            if !below.is_rollup() {
                return None;
            }
            let name = below.over()?;
            let next = jobs.iter().find(|other| other.name() == name)?;
            if next.layers() == Layers::Both {
                return Self::between(next, job);
            }
            below = next;
        }
    }

    fn between(from: &Arc<Job>, to: &Job) -> Option<Self> {
        if from.group() != to.group() || from.bucket() > to.bucket() {
            return None;
        }
        let columns = to.row().0.iter().map(|column| row_column(from, column));
        Some(Self {
            columns: columns.collect::<Option<_>>()?,
            base: Arc::clone(from),
            bucket: to.bucket(),
            row: to.row().clone(),
        })
    }

    /// The view whose live deltas are read.
    #[must_use]
    pub const fn base(&self) -> &Arc<Job> {
        &self.base
    }

    /// Derives one row key of the coarser view for each row key of the finer one. Several may be
    /// equal.
    ///
    /// # Errors
    /// [`KeyError`] if a key does not decode.
    pub fn roll_up_keys(&self, rows: &BinaryArray) -> Result<BinaryArray, KeyError> {
        let wanted = self.columns.iter().map(|take| match take {
            RowColumn::Bucket(at) | RowColumn::Column(at) | RowColumn::Cell(at) => *at,
        });
        let wanted: Vec<usize> = wanted.collect();
        let found = self
            .base
            .row()
            .decode_columns(rows.iter().flatten(), &wanted)?;
        let damaged = || KeyError::Damaged(self.base.name().to_owned());
        let column = |at: &usize| found.get(*at).and_then(Option::as_ref).ok_or_else(damaged);
        let columns = self.columns.iter().map(|take| {
            Ok(match take {
                RowColumn::Column(at) => Arc::clone(column(at)?),
                RowColumn::Cell(at) => {
                    Arc::new(sketch::cells(column(at)?.as_primitive::<Int64Type>())) as ArrayRef
                }
                RowColumn::Bucket(at) => {
                    let millis = column(at)?.as_primitive::<TimestampMillisecondType>();
                    let floor =
                        |at: i64| self.bucket.floor(at.div_euclid(1000)).saturating_mul(1000);
                    let floored = millis.unary::<_, TimestampMillisecondType>(floor);
                    Arc::new(floored.with_data_type(KeyKind::Time.data_type())) as ArrayRef
                }
            })
        });
        let columns: Vec<ArrayRef> = columns.collect::<Result<_, KeyError>>()?;
        self.row.encode_rows(&columns, rows.len())
    }
}

fn row_column(from: &Job, column: &KeyColumn) -> Option<RowColumn> {
    let place = |name: &str, kind: KeyKind| {
        let mut columns = from.row().0.iter();
        columns.position(|found| found.name == name && found.kind == kind)
    };
    let same = place(&column.name, column.kind);
    if column.name == BUCKET {
        return same.map(RowColumn::Bucket);
    }
    same.map(RowColumn::Column).or_else(|| {
        let mut columns = from.row().0.iter();
        let value = columns.position(|value| {
            value.kind == KeyKind::Int && cell_column(&value.name) == column.name
        });
        value
            .filter(|_| is_cell_column(&column.name))
            .map(RowColumn::Cell)
    })
}

#[cfg(test)]
#[path = "rollup_tests.rs"]
mod tests;
