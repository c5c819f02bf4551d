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
use schemas::time::BucketWidth;

use crate::columns::BUCKET;
use crate::job::{Job, Layers};
use crate::sketch::{self, cell_column, is_cell_column};

/// Derives the deltas of a coarser view from those of a finer one.
#[derive(Debug, Clone)]
pub struct Rollup {
    base: Arc<Job>,
    bucket: BucketWidth,
    row: KeyShape,
    columns: Vec<RowColumn>,
}

/// The source of a column of the coarser row. The number is the index of a column of the finer row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowColumn {
    /// The coarsened bucket.
    Bucket(usize),
    /// The unchanged column.
    Column(usize),
    /// The sketch cells of the column.
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
        let mut finer = job;
        loop {
            if !finer.is_rollup() {
                return None;
            }
            let name = finer.input_job()?;
            let input = jobs.iter().find(|other| other.name() == name)?;
            if input.layers() == Layers::Both {
                return Self::derive(input, job);
            }
            finer = input;
        }
    }

    fn derive(base: &Arc<Job>, job: &Job) -> Option<Self> {
        if base.group() != job.group() || base.bucket() > job.bucket() {
            return None;
        }
        let columns = job
            .row()
            .0
            .iter()
            .map(|column| find_row_column(base, column));
        Some(Self {
            columns: columns.collect::<Option<_>>()?,
            base: Arc::clone(base),
            bucket: job.bucket(),
            row: job.row().clone(),
        })
    }

    /// Returns the view whose live deltas are read.
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
        let indexes = self.columns.iter().map(|row_column| match row_column {
            RowColumn::Bucket(index) | RowColumn::Column(index) | RowColumn::Cell(index) => *index,
        });
        let indexes: Vec<usize> = indexes.collect();
        let base_columns = self
            .base
            .row()
            .decode_columns(rows.iter().flatten(), &indexes)?;
        let damaged = || KeyError::Damaged(self.base.name().to_owned());
        let column = |index: &usize| {
            base_columns
                .get(*index)
                .and_then(Option::as_ref)
                .ok_or_else(damaged)
        };
        let columns = self.columns.iter().map(|row_column| {
            Ok(match row_column {
                RowColumn::Column(index) => Arc::clone(column(index)?),
                RowColumn::Cell(index) => Arc::new(sketch::map_to_cells(
                    column(index)?.as_primitive::<Int64Type>(),
                )) as ArrayRef,
                RowColumn::Bucket(index) => {
                    let millis = column(index)?.as_primitive::<TimestampMillisecondType>();
                    let floor = |at_ms: i64| {
                        self.bucket
                            .floor(at_ms.div_euclid(1000))
                            .saturating_mul(1000)
                    };
                    let floored = millis.unary::<_, TimestampMillisecondType>(floor);
                    Arc::new(floored.with_data_type(KeyKind::Time.data_type())) as ArrayRef
                }
            })
        });
        let columns: Vec<ArrayRef> = columns.collect::<Result<_, KeyError>>()?;
        self.row.encode_rows(&columns, rows.len())
    }
}

fn find_row_column(base: &Job, column: &KeyColumn) -> Option<RowColumn> {
    let find_index = |name: &str, kind: KeyKind| {
        let mut columns = base.row().0.iter();
        columns.position(|column| column.name == name && column.kind == kind)
    };
    let same_column = find_index(&column.name, column.kind);
    if column.name == BUCKET {
        return same_column.map(RowColumn::Bucket);
    }
    same_column.map(RowColumn::Column).or_else(|| {
        let mut columns = base.row().0.iter();
        let value_index = columns.position(|value| {
            value.kind == KeyKind::Int && cell_column(&value.name) == column.name
        });
        value_index
            .filter(|_| is_cell_column(&column.name))
            .map(RowColumn::Cell)
    })
}

#[cfg(test)]
#[path = "rollup_tests.rs"]
mod tests;
