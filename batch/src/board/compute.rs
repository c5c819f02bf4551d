//! Computes boards, in tasks of one snapshot file each, since a file contains all rows of its keys.
//! This module is one task, in whichever process it runs; [`super::tasks`] lists the tasks.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::SortOptions;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::MemTable;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::SortExpr;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::sorts::partial_sort::PartialSortExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, InputOrderMode, SendableRecordBatchStream,
    execute_stream,
};
use datafusion::prelude::ident;
use futures::TryStreamExt;
use futures::future::BoxFuture;
use jobs::{Board, Engine, Job, check_rows, plan_job};
use parquet::arrow::ArrowWriter;
use schemas::entities;
use stores::archive::Archive;
use stores::parquet_file;
use uuid::Uuid;

use super::key_ranges::{KeyRange, find_key_column, split_by_key};
use super::manifest::ResultFile;
use crate::snapshot::SnapshotFile;
use crate::{Error, Result, query_error};

const READ_ROWS: usize = 65_536;
const GROUP_ROWS_MAX: usize = 262_144;
/// Maximum rows of a key for the sort by key, whose memory is not accounted for. A suitable query
/// yields at most one row for each input row and branch of a union.
const KEY_ROWS_MAX: usize = 16_384;
/// Plan nodes, besides aggregates, that preserve the order of keys: they add no rows and change no
/// keys.
const KEY_PRESERVING_NODES: [&str; 7] = [
    "CoalescePartitionsExec",
    "CooperativeExec",
    "DataSourceExec",
    "FilterExec",
    "ProjectionExec",
    "SortPreservingMergeExec",
    "UnionExec",
];
/// The order of each column of a result.
const COLUMN_ORDER: SortOptions = SortOptions {
    descending: false,
    nulls_first: true,
};

/// The computation of boards: the input that all tasks of a run share.
#[derive(Debug)]
pub(crate) struct BoardComputation {
    pub(crate) engine: Engine,
    pub(crate) archive: Archive,
    /// The prefix of the paths of result files.
    pub(crate) files: String,
    /// Approximate bytes of a result file.
    pub(crate) result_bytes_max: usize,
    pub(crate) jobs: Vec<Arc<Job<Board>>>,
}

/// The result files of each job.
pub(crate) type JobFiles = Vec<Vec<ResultFile>>;

impl BoardComputation {
    /// Runs every job over one file of the snapshot. The future is boxed, because proving the
    /// engine's types `Send` takes the compiler seconds for each trait method that awaits them.
    pub(crate) fn compute<'a>(&'a self, file: &'a SnapshotFile) -> BoxFuture<'a, Result<JobFiles>> {
        Box::pin(self.compute_file(file))
    }

    async fn compute_file(&self, file: &SnapshotFile) -> Result<JobFiles> {
        let groups = (0..file.row_groups).collect();
        let rows = self
            .archive
            .read_rows(&file.path, groups, READ_ROWS)
            .await?;
        let rows: Vec<_> = rows.try_collect().await?;
        let mut written = Vec::new();
        for job in &self.jobs {
            let schema = entities::schema(job.source())
                .ok_or_else(|| Error::Fault(format!("{} has no rows", job.source())))?;
            if rows
                .iter()
                .any(|batch| batch.schema().fields() != schema.fields())
            {
                let damage = "its columns are not those of its source";
                return Err(Error::damaged(&file.path, damage));
            }
            let mut writer = RowWriter::new(self, job);
            for key_range in self
                .divide_by_key(job, &schema, &rows, KEY_ROWS_MAX)
                .await?
            {
                let mut batches = self.compute_sorted_rows(job, &schema, &key_range).await?;
                while let Some(batch) = batches.try_next().await.map_err(query_error(job))? {
                    writer.write(&check_rows(job, &batch)?).await?;
                }
            }
            written.push(writer.finish().await?);
        }
        Ok(written)
    }

    /// Divides rows into ranges that are computed separately; a key with more than `rows_max` rows
    /// is a range of its own. If the query does not preserve the order of keys, all rows are one
    /// range.
    async fn divide_by_key(
        &self,
        job: &Job<Board>,
        schema: &SchemaRef,
        rows: &[RecordBatch],
        rows_max: usize,
    ) -> Result<Vec<KeyRange>> {
        let first_batch = rows.get(..1).unwrap_or_default();
        match self.compute_rows_by_key(job, schema, first_batch).await? {
            Some(_) => Ok(split_by_key(job, rows, rows_max)),
            None => Ok(vec![KeyRange::unordered(rows)]),
        }
    }

    /// Runs a job's query on a range, and returns the rows in result order.
    async fn compute_sorted_rows(
        &self,
        job: &Job<Board>,
        schema: &SchemaRef,
        key_range: &KeyRange,
    ) -> Result<SendableRecordBatchStream> {
        if key_range.is_by_key
            && let Some(sorted) = self
                .compute_rows_by_key(job, schema, &key_range.rows)
                .await?
        {
            return Ok(sorted);
        }
        let failed = query_error(job);
        let rows = vec![key_range.rows.clone()];
        let table = MemTable::try_new(Arc::clone(schema), rows).map_err(failed)?;
        let frame = plan_job(&self.engine.create_session(), job, Arc::new(table)).await?;
        let frame = frame.sort(order_columns(job).map(to_sort_expr).collect());
        let sorted = frame.map_err(failed)?.execute_stream().await;
        Ok(sorted.map_err(failed)?)
    }

    /// Runs the query on rows in key order with few keys in memory at a time, where a full sort
    /// would spill. Returns `None` if the query does not preserve the order of keys.
    async fn compute_rows_by_key(
        &self,
        job: &Job<Board>,
        schema: &SchemaRef,
        rows: &[RecordBatch],
    ) -> Result<Option<SendableRecordBatchStream>> {
        let [key] = job.key().0.as_slice() else {
            return Ok(None);
        };
        let failed = query_error(job);
        let table = MemTable::try_new(Arc::clone(schema), vec![rows.to_vec()]).map_err(failed)?;
        let table = table.with_sort_order(vec![vec![to_sort_expr(&key.name)]]);
        let frame = plan_job(&self.engine.create_session(), job, Arc::new(table)).await?;
        let task_context = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await.map_err(failed)?;
        let Some(plan) = sort_within_keys(job, plan).map_err(failed)? else {
            return Ok(None);
        };
        let sorted = execute_stream(Arc::new(plan), task_context).map_err(failed)?;
        Ok(Some(sorted))
    }
}

/// Sorts a plan's output within each key into result order; `None` if the plan does not preserve
/// the order of keys.
fn sort_within_keys(
    job: &Job<Board>,
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Option<PartialSortExec>, DataFusionError> {
    let sort_by = |name: &str| {
        let column = col(name, &plan.schema())?;
        Ok::<_, DataFusionError>(PhysicalSortExpr::new(column, COLUMN_ORDER))
    };
    let key = job.key().0.iter().map(|column| sort_by(&column.name));
    let key = key.collect::<Result<Vec<_>, _>>()?;
    let key_columns = key.len();
    let is_single = plan.output_partitioning().partition_count() == 1;
    if !is_single
        || !preserves_key_order(&plan)
        || !plan.equivalence_properties().ordering_satisfy(key)?
    {
        return Ok(None);
    }
    let full_order = order_columns(job)
        .map(sort_by)
        .collect::<Result<Vec<_>, _>>()?;
    let full_order = LexOrdering::new(full_order);
    Ok(full_order.map(|full_order| PartialSortExec::new(full_order, plan, key_columns)))
}

/// Returns whether a plan preserves the order of keys. An aggregate does so only if the key is its
/// first group column (spilled groups are sorted by the group columns), and it has one set of
/// groups (apache/datafusion#24421).
fn preserves_key_order(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_known = match plan.downcast_ref::<AggregateExec>() {
        Some(groups) => {
            let is_first = match groups.input_order_mode() {
                InputOrderMode::PartiallySorted(columns) => *columns == [0],
                InputOrderMode::Sorted => true,
                InputOrderMode::Linear => false,
            };
            is_first && groups.group_expr().is_single()
        }
        None => KEY_PRESERVING_NODES.contains(&plan.name()),
    };
    is_known && plan.children().into_iter().all(preserves_key_order)
}

/// Returns the columns of the result order: key, board, score, member.
fn order_columns(job: &Job<Board>) -> impl Iterator<Item = &str> {
    [job.key(), job.board_columns(), job.score(), job.member()]
        .into_iter()
        .flat_map(|shape| &shape.0)
        .map(|column| column.name.as_str())
}

fn to_sort_expr(column: &str) -> SortExpr {
    ident(column).sort(!COLUMN_ORDER.descending, COLUMN_ORDER.nulls_first)
}

/// Writes the rows of one job for one file of the snapshot.
struct RowWriter<'a> {
    compute: &'a BoardComputation,
    job: &'a Job<Board>,
    file: Option<(ArrowWriter<Vec<u8>>, u64)>,
    /// The key of the last row.
    last_key: i64,
    done: Vec<ResultFile>,
}

impl<'a> RowWriter<'a> {
    const fn new(compute: &'a BoardComputation, job: &'a Job<Board>) -> Self {
        Self {
            compute,
            job,
            file: None,
            last_key: i64::MIN,
            done: Vec::new(),
        }
    }

    async fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let fault = |error| Error::fault("writing a result", error);
        self.check_key_order(rows)?;
        if self.file.is_none() {
            let writer = parquet_file::begin(self.job.schema(), GROUP_ROWS_MAX);
            self.file = Some((writer.map_err(fault)?, 0));
        }
        let Some((writer, count)) = &mut self.file else {
            return Ok(());
        };
        writer.write(rows).map_err(fault)?;
        *count += rows.num_rows() as u64;
        if writer.bytes_written() + writer.in_progress_size() > self.compute.result_bytes_max {
            self.end_file().await?;
        }
        Ok(())
    }

    /// Checks that keys ascend: a repeated key would replace its own earlier rows.
    fn check_key_order(&mut self, rows: &RecordBatch) -> Result<()> {
        let keys = find_key_column(self.job, rows).into_iter();
        for key in keys.flat_map(|keys| keys.values()) {
            if *key < self.last_key {
                let job = self.job.name();
                return Err(Error::Fault(format!("rows of {job} are out of key order")));
            }
            self.last_key = *key;
        }
        Ok(())
    }

    async fn end_file(&mut self) -> Result<()> {
        let fault = |error| Error::fault("writing a result", error);
        if let Some((mut writer, rows)) = self.file.take() {
            let id = Uuid::new_v4();
            let path = format!("{}-{}-{id}.parquet", self.compute.files, self.job.name());
            writer.flush().map_err(fault)?;
            let row_groups = writer.flushed_row_groups().len();
            let bytes = parquet_file::finish(writer).map_err(fault)?;
            self.compute.archive.put(&path, bytes).await?;
            self.done.push(ResultFile {
                path,
                row_groups,
                rows,
            });
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<Vec<ResultFile>> {
        self.end_file().await?;
        Ok(self.done)
    }
}

#[cfg(test)]
#[path = "compute_tests.rs"]
mod tests;
