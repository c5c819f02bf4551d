//! Folds aggregate views. A view whose query only sums is folded without the query engine.
//!
//! For a micro-batch of a few thousand events, the engine costs more than the sums. It builds
//! columns for each view, hashes them value by value, and its output still has to be encoded. The
//! plan shows whether a query only sums. If so, its keys are assembled from columns that are
//! encoded once for all views, and counts are summed by key. A view over such a view sums one event
//! for each row of that view. Other queries run in the engine.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, Int64Array, RecordBatch};
use arrow::datatypes::{
    DataType, Int64Type, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
};
use foldhash::fast::RandomState;
use schemas::key::{KeyColumn, KeyKind, KeyShape};
use schemas::time::BucketWidth;

use super::{Fold, FoldOutput, find_bases, rows_error};
use crate::aggregate_view::AggregateView;
use crate::job::Job;
use crate::sums::SourceColumn;
use crate::{Engine, Result};

/// The encoded rows that one job computes from a micro-batch.
#[derive(Debug, Clone)]
pub struct AggregateRows {
    /// The job.
    pub job: Arc<Job>,
    /// The encoded group key of each row.
    pub groups: BinaryArray,
    /// The encoded row key of each row.
    pub rows: BinaryArray,
    /// The count of each row.
    pub counts: Int64Array,
}

/// Folds several aggregate views.
#[derive(Debug)]
pub struct AggregateFold {
    fold: Fold<AggregateView>,
    steps: Vec<AggregateStep>,
}

/// The way one job is folded.
#[derive(Debug)]
enum AggregateStep {
    /// Runs the query.
    Query,
    /// Sums without the engine.
    Sum(SumStep),
}

impl AggregateStep {
    const fn is_query(&self) -> bool {
        matches!(self, Self::Query)
    }
}

/// A job that is summed without the engine.
#[derive(Debug)]
struct SumStep {
    input: SumInput,
    /// The index of the job whose rows it sums, if that job is summed without the engine, too.
    base: Option<usize>,
    /// For each key column, its source column in the input.
    sources: Vec<SourceColumn>,
    /// The key columns, those of the group first.
    keys: Vec<KeyColumn>,
    group_columns: usize,
    /// The column of the input to sum, if all rows of the input are summed.
    summed: usize,
}

/// The rows from which keys are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum SumInput {
    Events,
    /// The rows of the job with this index, which runs its query.
    Rows(usize),
}

/// A column encoded for keys: the input, the source column, and whether the key column is nullable.
type EncodedColumn = (SumInput, SourceColumn, bool);

/// The sums of one job.
#[derive(Debug)]
struct SummedRows {
    /// For each key, the first row of the input that has it.
    first_rows: Vec<usize>,
    counts: Int64Array,
    groups: BinaryArray,
    rows: BinaryArray,
}

impl AggregateFold {
    /// Prepares the jobs of one source, in the order of [`crate::Catalog::jobs`].
    ///
    /// # Errors
    /// As [`Fold::new`].
    pub async fn new(engine: &Engine, jobs: &[Arc<Job>]) -> Result<Self> {
        let bases = find_bases(jobs)?;
        let steps = plan_steps(jobs, &bases, &vec![false; jobs.len()]);
        // A query reads rows, so the job that it reads must run its query, too. A job comes after
        // the job that it reads.
        let mut queries: Vec<bool> = steps.iter().map(AggregateStep::is_query).collect();
        for (index, base) in bases.iter().enumerate().rev() {
            let is_query = queries.get(index).copied().unwrap_or(true);
            if let (true, Some(base)) = (is_query, *base)
                && let Some(base_is_query) = queries.get_mut(base)
            {
                *base_is_query = true;
            }
        }
        let steps = plan_steps(jobs, &bases, &queries);
        let is_query = |index: usize| steps.get(index).is_some_and(AggregateStep::is_query);
        let fold = Fold::new_selected(engine, jobs, &bases, is_query).await?;
        Ok(Self { fold, steps })
    }

    /// Returns the views that the fold updates, as `name@version`.
    #[must_use]
    pub fn views(&self) -> Vec<&str> {
        self.fold.views()
    }

    /// Computes the rows of every job, in the jobs' order. A key occurs once, unless a query
    /// returns it several times.
    ///
    /// # Errors
    /// [`crate::Error::Query`] or [`crate::Error::Rows`] if a query fails or its rows have the
    /// wrong shape; then discard the whole micro-batch.
    pub async fn run(&self, events: &RecordBatch) -> Result<Vec<AggregateRows>> {
        let folded = self.fold.run_selected(events).await?;
        let mut encoder = ColumnEncoder {
            events,
            outputs: &folded,
            encoded: HashMap::new(),
        };
        let mut sums: Vec<Option<SummedRows>> = Vec::with_capacity(self.steps.len());
        let mut rows = Vec::with_capacity(self.steps.len());
        for ((step, fold_step), folded) in self.steps.iter().zip(&self.fold.steps).zip(&folded) {
            let job = Arc::clone(&fold_step.job);
            let (groups, keys, counts) = match (step, folded) {
                (AggregateStep::Query, Some(folded)) => {
                    sums.push(None);
                    folded.encode()?
                }
                (AggregateStep::Query, None) => {
                    return Err(rows_error(&job, "its query was not run"));
                }
                (AggregateStep::Sum(step), _) => {
                    let base = step.base.and_then(|index| sums.get(index)?.as_ref());
                    let summed = encoder.sum_rows(&job, step, base)?;
                    // Arrays are shared, so cloning copies no data.
                    let SummedRows {
                        groups,
                        rows,
                        counts,
                        ..
                    } = &summed;
                    let keys = (groups.clone(), rows.clone(), counts.clone());
                    sums.push(Some(summed));
                    keys
                }
            };
            rows.push(AggregateRows {
                job,
                groups,
                rows: keys,
                counts,
            });
        }
        Ok(rows)
    }
}

/// Decides how each job is folded. The jobs marked in `queries` run their queries.
fn plan_steps(jobs: &[Arc<Job>], bases: &[Option<usize>], queries: &[bool]) -> Vec<AggregateStep> {
    let mut steps: Vec<AggregateStep> = Vec::with_capacity(jobs.len());
    for ((job, base), is_query) in jobs.iter().zip(bases).zip(queries) {
        let step = (!is_query).then(|| plan_sum_step(job, *base, &steps));
        steps.push(
            step.flatten()
                .map_or(AggregateStep::Query, AggregateStep::Sum),
        );
    }
    steps
}

/// Plans to sum a job without the engine. Returns `None` if its query must run. `steps` are the
/// steps of earlier jobs.
fn plan_sum_step(job: &Job, base_index: Option<usize>, steps: &[AggregateStep]) -> Option<SumStep> {
    let mapping = job.sum_mapping()?;
    let base = base_index.and_then(|index| match steps.get(index)? {
        AggregateStep::Sum(base) => Some((index, base)),
        AggregateStep::Query => None,
    });
    let (input, sources) = match (&base, base_index) {
        (None, None) => (SumInput::Events, mapping.keys.clone()),
        (None, Some(index)) => (SumInput::Rows(index), mapping.keys.clone()),
        (Some((_, base)), _) => {
            // The count follows the keys; no other column of the base can be summed.
            if mapping.summed != base.sources.len() {
                return None;
            }
            let resolve_source = |source: &SourceColumn| {
                let base_source = base.sources.get(source.column)?;
                Some(SourceColumn {
                    column: base_source.column,
                    // A bucket lies within one coarser bucket.
                    width: source.width.max(base_source.width),
                })
            };
            let sources = mapping
                .keys
                .iter()
                .map(resolve_source)
                .collect::<Option<_>>()?;
            (base.input, sources)
        }
    };
    Some(SumStep {
        input,
        base: base.map(|(index, _)| index),
        sources,
        keys: job.group().0.iter().chain(&job.row().0).cloned().collect(),
        group_columns: job.group().0.len(),
        summed: mapping.summed,
    })
}

/// The columns of a micro-batch, each encoded once for all jobs.
struct ColumnEncoder<'a> {
    events: &'a RecordBatch,
    outputs: &'a [Option<FoldOutput<AggregateView>>],
    encoded: HashMap<EncodedColumn, BinaryArray>,
}

impl<'a> ColumnEncoder<'a> {
    fn input(&self, input: SumInput) -> Option<&'a RecordBatch> {
        match input {
            SumInput::Events => Some(self.events),
            SumInput::Rows(index) => self.outputs.get(index)?.as_ref().map(|folded| &folded.rows),
        }
    }

    /// Sums a job: all rows of its input, or one row of the input for each summed row of its base.
    fn sum_rows(
        &mut self,
        job: &Job,
        step: &SumStep,
        base: Option<&SummedRows>,
    ) -> Result<SummedRows> {
        let input = self
            .input(step.input)
            .ok_or_else(|| rows_error(job, "its input was not computed"))?;
        let mut columns = Vec::with_capacity(step.keys.len());
        for (key, source) in step.keys.iter().zip(&step.sources) {
            let column_key = (step.input, *source, key.nullable);
            let encoded = match self.encoded.get(&column_key) {
                Some(encoded) => encoded.clone(),
                None => {
                    let encoded = encode_column(job, input, key, *source)?;
                    self.encoded.insert(column_key, encoded.clone());
                    encoded
                }
            };
            columns.push(encoded);
        }
        match base {
            Some(base) => {
                let rows = base
                    .first_rows
                    .iter()
                    .copied()
                    .zip(base.counts.values().iter().copied());
                Ok(sum_by_key(&columns, step.group_columns, rows))
            }
            None => {
                let summed = input.column(step.summed);
                let summed = summed
                    .as_primitive_opt::<Int64Type>()
                    .filter(|summed| summed.null_count() == 0)
                    .ok_or_else(|| {
                        rows_error(job, "the summed column must hold integers without nulls")
                    })?;
                let rows = summed.values().iter().copied().enumerate();
                Ok(sum_by_key(&columns, step.group_columns, rows))
            }
        }
    }
}

/// Encodes one key column.
fn encode_column(
    job: &Job,
    input: &RecordBatch,
    key: &KeyColumn,
    source: SourceColumn,
) -> Result<BinaryArray> {
    let column = input
        .columns()
        .get(source.column)
        .ok_or_else(|| rows_error(job, "its input lacks a column of its keys"))?;
    let column = match source.width {
        None => Arc::clone(column),
        Some(width) => floor_to_buckets(column, width)
            .ok_or_else(|| rows_error(job, "the column of its buckets is not a timestamp"))?,
    };
    KeyShape(vec![key.clone()])
        .encode(&[column])
        .map_err(|error| rows_error(job, error))
}

/// Returns the start of the bucket that contains each instant.
fn floor_to_buckets(instants: &ArrayRef, width: BucketWidth) -> Option<ArrayRef> {
    let floor_ms = |seconds: i64| width.floor(seconds).saturating_mul(1_000);
    let starts = match instants.data_type() {
        DataType::Timestamp(TimeUnit::Microsecond, _) => instants
            .as_primitive::<TimestampMicrosecondType>()
            .unary::<_, TimestampMillisecondType>(|at_us| floor_ms(at_us.div_euclid(1_000_000))),
        DataType::Timestamp(TimeUnit::Millisecond, _) => instants
            .as_primitive::<TimestampMillisecondType>()
            .unary::<_, TimestampMillisecondType>(|at_ms| floor_ms(at_ms.div_euclid(1_000))),
        _ => return None,
    };
    Some(Arc::new(starts.with_data_type(KeyKind::Time.data_type())))
}

/// Sums by key. `rows` are row indexes with the count of each row.
fn sum_by_key(
    columns: &[BinaryArray],
    group_columns: usize,
    rows: impl ExactSizeIterator<Item = (usize, i64)> + Clone,
) -> SummedRows {
    let length = rows.len();
    let (mut bytes, mut ends) = (Vec::with_capacity(length * 48), Vec::with_capacity(length));
    for (row, _) in rows.clone() {
        let mut group_end = bytes.len();
        for (index, column) in columns.iter().enumerate() {
            bytes.extend_from_slice(column.value(row));
            if index + 1 == group_columns {
                group_end = bytes.len();
            }
        }
        ends.push((group_end, bytes.len()));
    }
    let mut indexes: HashMap<&[u8], usize, RandomState> =
        HashMap::with_capacity_and_hasher(length, RandomState::default());
    let (mut first_rows, mut counts) = (
        Vec::with_capacity(length),
        Vec::<i64>::with_capacity(length),
    );
    let (mut group_keys, mut row_keys) = (
        BinaryBuilder::with_capacity(length, length * 16),
        BinaryBuilder::with_capacity(length, length * 40),
    );
    let mut start = 0;
    for ((row, count), (group_end, end)) in rows.zip(ends) {
        let bytes_in = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
        let next = counts.len();
        let index = *indexes.entry(bytes_in(start..end)).or_insert(next);
        match counts.get_mut(index) {
            Some(sum) => {
                // Wraps on overflow, as the query engine does.
                *sum = sum.wrapping_add(count);
            }
            None => {
                first_rows.push(row);
                counts.push(count);
                group_keys.append_value(bytes_in(start..group_end));
                row_keys.append_value(bytes_in(group_end..end));
            }
        }
        start = end;
    }
    SummedRows {
        first_rows,
        counts: counts.into(),
        groups: group_keys.finish(),
        rows: row_keys.finish(),
    }
}

#[cfg(test)]
#[path = "aggregate_tests.rs"]
mod tests;
