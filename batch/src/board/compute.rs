//! Computing boards: each file of the snapshot by itself, since it holds all rows of its keys. What is here is what one
//! task does, in whichever process; which tasks there are is in [`super::tasks`].

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
use jobs::{Board, Engine, Job, checked, query};
use parquet::arrow::ArrowWriter;
use schemas::entities;
use stores::archive::Archive;
use stores::parquet_file;
use uuid::Uuid;

use super::manifest::ResultFile;
use super::stretches::{Stretch, cut, keys_of};
use crate::snapshot::SnapshotFile;
use crate::{Error, Result, failed_of};

const READ_ROWS: usize = 65_536;
const GROUP_ROWS_MAX: usize = 262_144;
/// Rows of a key that are grouped and sorted by themselves, at most. What a query makes of them is sorted in memory that is in no
/// account: of the queries that are let do so, as many rows as there are branches of a union.
const KEY_ROWS_MAX: usize = 16_384;
/// What such a query may be made of, besides groups: nothing that makes more rows, or other keys.
const BY_KEY: [&str; 7] = [
    "CoalescePartitionsExec",
    "CooperativeExec",
    "DataSourceExec",
    "FilterExec",
    "ProjectionExec",
    "SortPreservingMergeExec",
    "UnionExec",
];
/// How every column of a result is ordered.
const ORDER: SortOptions = SortOptions {
    descending: false,
    nulls_first: true,
};

/// What tasks share.
#[derive(Debug)]
pub(crate) struct Compute {
    pub(crate) engine: Engine,
    pub(crate) archive: Archive,
    /// How the paths of result files begin.
    pub(crate) files: String,
    /// Bytes of one of them, about.
    pub(crate) result_bytes_max: usize,
    pub(crate) jobs: Vec<Arc<Job<Board>>>,
}

/// By job: the files of its rows.
pub(crate) type Files = Vec<Vec<ResultFile>>;

impl Compute {
    /// Every job over one file of the snapshot. The engine's types are not seen in what is answered: that they may go to
    /// another thread takes the compiler seconds for each method of a trait that waits for it.
    pub(crate) fn file<'a>(&'a self, file: &'a SnapshotFile) -> BoxFuture<'a, Result<Files>> {
        Box::pin(self.ranked(file))
    }

    async fn ranked(&self, file: &SnapshotFile) -> Result<Files> {
        let groups = (0..file.row_groups).collect();
        let rows = self.archive.rows(&file.path, groups, READ_ROWS).await?;
        let rows: Vec<_> = rows.try_collect().await?;
        let mut written = Vec::new();
        for job in &self.jobs {
            let schema = entities::schema(job.source())
                .ok_or_else(|| Error::Fault(format!("{} has no rows", job.source())))?;
            if rows
                .iter()
                .any(|batch| batch.schema().fields() != schema.fields())
            {
                let what = "a snapshot's file has not the columns of its source";
                return Err(Error::damaged(&file.path, what));
            }
            let mut writer = RowWriter::new(self, job);
            for stretch in self.stretches(job, &schema, &rows, KEY_ROWS_MAX).await? {
                let mut batches = self.sorted(job, &schema, &stretch).await?;
                while let Some(batch) = batches.try_next().await.map_err(failed_of(job))? {
                    writer.write(&checked(job, &batch)?).await?;
                }
            }
            written.push(writer.finish().await?);
        }
        Ok(written)
    }

    /// The stretches that rows are computed in, keys of more than `rows_max` rows by themselves. A query that leaves the order of
    /// keys gets all rows at once.
    async fn stretches(
        &self,
        job: &Job<Board>,
        schema: &SchemaRef,
        rows: &[RecordBatch],
        rows_max: usize,
    ) -> Result<Vec<Stretch>> {
        let some = rows.get(..1).unwrap_or_default();
        match self.sorted_within_keys(job, schema, some).await? {
            Some(_) => Ok(cut(job, rows, rows_max)),
            None => Ok(vec![Stretch::whole(rows)]),
        }
    }

    /// What a job makes of rows, in the order of results.
    async fn sorted(
        &self,
        job: &Job<Board>,
        schema: &SchemaRef,
        stretch: &Stretch,
    ) -> Result<SendableRecordBatchStream> {
        if stretch.is_by_key
            && let Some(sorted) = self.sorted_within_keys(job, schema, &stretch.rows).await?
        {
            return Ok(sorted);
        }
        let failed = failed_of(job);
        let rows = vec![stretch.rows.clone()];
        let table = MemTable::try_new(Arc::clone(schema), rows).map_err(failed)?;
        let frame = query(&self.engine.session(), job, Arc::new(table)).await?;
        let frame = frame.sort(order(job).map(ordered).collect());
        let sorted = frame.map_err(failed)?.execute_stream().await;
        Ok(sorted.map_err(failed)?)
    }

    /// The same of rows that come by key, without having more than a few keys in memory: the engine has the groups of few keys in memory
    /// at a time, where it would spill those of all. Nothing where what the query makes of them does not come by key.
    async fn sorted_within_keys(
        &self,
        job: &Job<Board>,
        schema: &SchemaRef,
        rows: &[RecordBatch],
    ) -> Result<Option<SendableRecordBatchStream>> {
        let [key] = job.key().0.as_slice() else {
            return Ok(None);
        };
        let failed = failed_of(job);
        let table = MemTable::try_new(Arc::clone(schema), vec![rows.to_vec()]).map_err(failed)?;
        let table = table.with_sort_order(vec![vec![ordered(&key.name)]]);
        let frame = query(&self.engine.session(), job, Arc::new(table)).await?;
        let of_task = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await.map_err(failed)?;
        let Some(plan) = sorted_by_key(job, plan).map_err(failed)? else {
            return Ok(None);
        };
        let sorted = execute_stream(Arc::new(plan), of_task).map_err(failed)?;
        Ok(Some(sorted))
    }
}

/// What a query gives in the order of results, sorted within each key; nothing if it does not come by key.
fn sorted_by_key(
    job: &Job<Board>,
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Option<PartialSortExec>, DataFusionError> {
    let by = |name: &str| {
        let column = col(name, &plan.schema())?;
        Ok::<_, DataFusionError>(PhysicalSortExpr::new(column, ORDER))
    };
    let key = job.key().0.iter().map(|column| by(&column.name));
    let key = key.collect::<Result<Vec<_>, _>>()?;
    let length = key.len();
    let is_one = plan.output_partitioning().partition_count() == 1;
    if !is_one || !stays_by_key(&plan) || !plan.equivalence_properties().ordering_satisfy(key)? {
        return Ok(None);
    }
    let whole = order(job).map(by).collect::<Result<Vec<_>, _>>()?;
    let whole = LexOrdering::new(whole);
    Ok(whole.map(|whole| PartialSortExec::new(whole, plan, length)))
}

/// Whether a query over rows that come by key is made of nothing that puts keys into another order. Groups are right only where the
/// key is what is grouped by first (spilled ones come in the order of what is grouped by), and for one set of groups
/// (apache/datafusion#24421).
fn stays_by_key(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_known = match plan.downcast_ref::<AggregateExec>() {
        Some(groups) => {
            let is_first = match groups.input_order_mode() {
                InputOrderMode::PartiallySorted(columns) => *columns == [0],
                InputOrderMode::Sorted => true,
                InputOrderMode::Linear => false,
            };
            is_first && groups.group_expr().is_single()
        }
        None => BY_KEY.contains(&plan.name()),
    };
    is_known && plan.children().into_iter().all(stays_by_key)
}

/// The order of results: key, board, score, member.
fn order(job: &Job<Board>) -> impl Iterator<Item = &str> {
    [job.key(), job.boards(), job.score(), job.member()]
        .into_iter()
        .flat_map(|shape| &shape.0)
        .map(|column| column.name.as_str())
}

fn ordered(column: &str) -> SortExpr {
    ident(column).sort(!ORDER.descending, ORDER.nulls_first)
}

/// Writes the rows of one job over one file of a snapshot.
struct RowWriter<'a> {
    compute: &'a Compute,
    job: &'a Job<Board>,
    file: Option<(ArrowWriter<Vec<u8>>, u64)>,
    /// The key of the last row.
    last: i64,
    done: Vec<ResultFile>,
}

impl<'a> RowWriter<'a> {
    const fn new(compute: &'a Compute, job: &'a Job<Board>) -> Self {
        Self {
            compute,
            job,
            file: None,
            last: i64::MIN,
            done: Vec::new(),
        }
    }

    async fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let fault = |error| Error::fault("writing a result", error);
        self.goes_on(rows)?;
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

    /// That keys rise: a key that comes again would take the place of its own rows.
    fn goes_on(&mut self, rows: &RecordBatch) -> Result<()> {
        let keys = keys_of(self.job, rows).into_iter();
        for key in keys.flat_map(|keys| keys.values()) {
            if *key < self.last {
                let job = self.job.name();
                return Err(Error::Fault(format!("rows of {job} came out of order")));
            }
            self.last = *key;
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
