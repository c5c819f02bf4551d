//! Live parts of views that only the batch layer keeps.
//!
//! A roll-up by day, month or all time has few live parts of its own that those of a finer view
//! would not give at once: so live state counts only the finer ones, and a reader makes the parts of
//! the coarser view of them, by leaving out columns and making buckets coarser. That is the same as
//! what the view's query does, if the query is a plain roll-up: whether it is, is asked of its plan
//! when the definition is read.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray};
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use datafusion::logical_expr::{Expr, LogicalPlan};
use schemas::key::{KeyColumn, KeyError, KeyKind, KeyShape};
use schemas::time::Width;

use crate::job::{Job, Layers};
use crate::sketch::{self, cell_column, is_cell_column};
use crate::sums::{Sums, bare, bucket_of};
use crate::{BUCKET, COUNT};

/// How live parts of a finer view become those of a coarser one.
#[derive(Debug, Clone)]
pub struct Rollup {
    from: Arc<Job>,
    bucket: Width,
    row: KeyShape,
    takes: Vec<Take>,
}

/// Where a column of the coarser row comes from: a column of the finer one, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Take {
    Bucket(usize),
    Column(usize),
    Cell(usize),
}

impl Rollup {
    /// How the live parts of `job` come from those of the nearest view below it that the speed layer
    /// keeps; nothing if it has live parts of its own, or none can be made. `jobs` are all of them.
    #[must_use]
    pub fn of(job: &Job, jobs: &[Arc<Job>]) -> Option<Self> {
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
        let takes = to.row().0.iter().map(|column| take(from, column));
        Some(Self {
            takes: takes.collect::<Option<_>>()?,
            from: Arc::clone(from),
            bucket: to.bucket(),
            row: to.row().clone(),
        })
    }

    /// The view whose live parts are read.
    #[must_use]
    pub const fn from(&self) -> &Arc<Job> {
        &self.from
    }

    /// The row keys of the coarser view, one for each row key of the finer one: several may be the same.
    ///
    /// # Errors
    /// [`KeyError`] if a key does not decode.
    pub fn keys(&self, rows: &BinaryArray) -> Result<BinaryArray, KeyError> {
        let wanted = self.takes.iter().map(|take| match take {
            Take::Bucket(at) | Take::Column(at) | Take::Cell(at) => *at,
        });
        let wanted: Vec<usize> = wanted.collect();
        let found = self
            .from
            .row()
            .decode_some(rows.iter().flatten(), &wanted)?;
        let damaged = || KeyError::Damaged(self.from.name().to_owned());
        let column = |at: &usize| found.get(*at).and_then(Option::as_ref).ok_or_else(damaged);
        let columns = self.takes.iter().map(|take| {
            Ok(match take {
                Take::Column(at) => Arc::clone(column(at)?),
                Take::Cell(at) => {
                    Arc::new(sketch::cells(column(at)?.as_primitive::<Int64Type>())) as ArrayRef
                }
                Take::Bucket(at) => {
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

fn take(from: &Job, column: &KeyColumn) -> Option<Take> {
    let place = |name: &str, kind: KeyKind| {
        let mut columns = from.row().0.iter();
        columns.position(|found| found.name == name && found.kind == kind)
    };
    let same = place(&column.name, column.kind);
    if column.name == BUCKET {
        return same.map(Take::Bucket);
    }
    same.map(Take::Column).or_else(|| {
        let mut columns = from.row().0.iter();
        let value = columns.position(|value| {
            value.kind == KeyKind::Int && cell_column(&value.name) == column.name
        });
        value
            .filter(|_| is_cell_column(&column.name))
            .map(Take::Cell)
    })
}

/// Whether a query over another job's rows does nothing but make buckets coarser, leave columns out
/// or take the cells of one, and add the counts up.
pub(crate) fn is_rollup(plan: &LogicalPlan, bucket: Width) -> bool {
    let Some(sums) = Sums::of(plan) else {
        return false;
    };
    let groups = |expr: &Expr| match bare(expr) {
        Expr::Column(_) => true,
        Expr::ScalarFunction(call) if call.func.name() == sketch::FUNCTION => true,
        expr => bucket_of(expr).is_some_and(|(width, of)| width == bucket && of.name == BUCKET),
    };
    let cells = |name: &str| {
        sums.groups().iter().any(|expr| match bare(expr) {
            Expr::ScalarFunction(call) => call.args.iter().any(
                |arg| matches!(bare(arg), Expr::Column(column) if cell_column(&column.name) == name),
            ),
            _ => false,
        })
    };
    // Under its own name, all but what is made of others.
    let named = |(expr, name): &(&Expr, &str)| {
        let made = [BUCKET, COUNT].contains(name) || is_cell_column(name) && cells(name);
        matches!(bare(expr), Expr::Column(column) if made || column.name == *name)
    };
    sums.summed().all(|column| column.name == COUNT)
        && sums.columns.iter().all(named)
        && sums.groups().iter().all(groups)
}

#[cfg(test)]
#[path = "rollup_tests.rs"]
mod tests;
