//! Folds micro-batches: runs every job's query over a few thousand events.
//!
//! Each query is planned once and run repeatedly over a table whose rows are replaced, because
//! planning would cost more than running. A job that reads another job reads the rows that this job
//! has just computed from the same micro-batch.

mod aggregate;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::aggregate_view::AggregateView;
use crate::board::{Board, BoardRows};
use crate::job::Job;
use crate::plan::source_schema;
use crate::{Engine, Error, Result, check_rows, plan_job};
use arrow::array::AsArray;
use arrow::array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Int64Type, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream, collect};
use datafusion::prelude::SessionContext;

pub use aggregate::{AggregateFold, AggregateRows};

/// The rows that one job computes from a micro-batch.
#[derive(Debug, Clone)]
pub struct FoldOutput<K = AggregateView> {
    /// The job.
    pub job: Arc<Job<K>>,
    /// The rows, with the columns of [`Job::schema`].
    pub rows: RecordBatch,
}

impl FoldOutput<AggregateView> {
    /// Encodes the group keys and the row keys, and returns them with the counts.
    ///
    /// # Errors
    /// [`Error::Rows`] if a key can't be encoded.
    pub fn encode(&self) -> Result<(BinaryArray, BinaryArray, Int64Array)> {
        let groups = self.job.group().0.len();
        let keys = groups + self.job.row().0.len();
        let columns: &[ArrayRef] = self.rows.columns();
        let columns_in = |range: std::ops::Range<usize>| columns.get(range).unwrap_or_default();
        let encode_error = |error| rows_error(&self.job, error);
        let group_keys = self.job.group().encode(columns_in(0..groups));
        let row_keys = self.job.row().encode(columns_in(groups..keys));
        Ok((
            group_keys.map_err(encode_error)?,
            row_keys.map_err(encode_error)?,
            self.rows.column(keys).as_primitive::<Int64Type>().clone(),
        ))
    }
}

impl FoldOutput<Board> {
    /// Encodes the rows of a board.
    ///
    /// # Errors
    /// [`Error::Rows`] if a row can't be encoded.
    pub fn encode_board_rows(&self) -> Result<BoardRows> {
        BoardRows::encode(&self.job, &self.rows)
    }
}

/// The prepared plans of several jobs.
pub struct Fold<K = AggregateView> {
    steps: Vec<Step<K>>,
    context: SessionContext,
}

impl<K: fmt::Debug> fmt::Debug for Fold<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fold")
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Step<K> {
    job: Arc<Job<K>>,
    /// `None` if the query is not run.
    query: Option<PreparedQuery>,
    /// The step whose rows this one reads. `None` if it reads the events.
    base: Option<usize>,
}

/// A planned query and the table that it reads.
#[derive(Debug)]
struct PreparedQuery {
    input: Arc<InputTable>,
    plan: Arc<dyn ExecutionPlan>,
}

impl<K> Fold<K> {
    /// Plans the jobs of one source, in the order of [`crate::Catalog::jobs`].
    ///
    /// # Errors
    /// [`Error::Query`] if a query can't be planned; [`Error::Rows`] if a job reads from one that
    /// is not in `jobs`.
    pub async fn new(engine: &Engine, jobs: &[Arc<Job<K>>]) -> Result<Self> {
        Self::new_selected(engine, jobs, &find_bases(jobs)?, |_| true).await
    }

    /// Plans only the selected jobs. The jobs whose rows they read must be selected, too.
    async fn new_selected(
        engine: &Engine,
        jobs: &[Arc<Job<K>>],
        bases: &[Option<usize>],
        is_selected: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        let context = engine.create_session();
        let mut steps: Vec<Step<K>> = Vec::with_capacity(jobs.len());
        for (index, (job, base)) in jobs.iter().zip(bases).enumerate() {
            let schema = base
                .and_then(|step| steps.get(step))
                .map_or_else(|| source_schema(job.source()), |step| step.job.schema());
            let query = match is_selected(index) {
                true => Some(PreparedQuery::new(&context, job, schema).await?),
                false => None,
            };
            steps.push(Step {
                job: Arc::clone(job),
                query,
                base: *base,
            });
        }
        Ok(Self { steps, context })
    }

    /// Returns the views that the fold updates, as `name@version`.
    #[must_use]
    pub fn views(&self) -> Vec<&str> {
        self.steps.iter().map(|step| step.job.view()).collect()
    }

    /// Iterates over the jobs in their order.
    pub fn jobs(&self) -> impl Iterator<Item = &Arc<Job<K>>> {
        self.steps.iter().map(|step| &step.job)
    }

    /// Runs every job over the events or rows of its source, in the jobs' order.
    ///
    /// # Errors
    /// [`Error::Query`] or [`Error::Rows`] if a query fails; then discard the whole micro-batch.
    pub async fn run(&self, events: &RecordBatch) -> Result<Vec<FoldOutput<K>>> {
        let folded = self.run_selected(events).await?;
        Ok(folded.into_iter().flatten().collect())
    }

    /// Runs the planned jobs. The result has `None` for every other job.
    async fn run_selected(&self, events: &RecordBatch) -> Result<Vec<Option<FoldOutput<K>>>> {
        let mut folded: Vec<Option<FoldOutput<K>>> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let Some(query) = &step.query else {
                folded.push(None);
                continue;
            };
            let input = match step.base {
                None => events,
                Some(index) => match folded.get(index) {
                    Some(Some(base)) => &base.rows,
                    _ => {
                        return Err(rows_error(
                            &step.job,
                            "the rows that it reads were not computed",
                        ));
                    }
                },
            };
            let batches = query
                .run(&self.context, input)
                .await
                .map_err(|source| query_error(&step.job, source))?;
            let rows = match batches.first() {
                None => RecordBatch::new_empty(step.job.schema()),
                Some(first) => {
                    let all = concat_batches(&first.schema(), &batches)
                        .map_err(|error| query_error(&step.job, error.into()))?;
                    check_rows(&step.job, &all)?
                }
            };
            folded.push(Some(FoldOutput {
                job: Arc::clone(&step.job),
                rows,
            }));
        }
        Ok(folded)
    }
}

/// Finds the index of the job that each job reads; `None` if it reads the events.
fn find_bases<K>(jobs: &[Arc<Job<K>>]) -> Result<Vec<Option<usize>>> {
    let bases = jobs.iter().enumerate().map(|(index, job)| {
        let Some(name) = job.input_job() else {
            return Ok(None);
        };
        let mut earlier_jobs = jobs.iter().take(index);
        let base = earlier_jobs.position(|other| other.name() == name);
        let missing = || format!("it reads from {name:?}, which this layer does not run");
        base.map(Some).ok_or_else(|| rows_error(job, missing()))
    });
    bases.collect()
}

impl PreparedQuery {
    async fn new<K>(context: &SessionContext, job: &Job<K>, schema: SchemaRef) -> Result<Self> {
        let input = Arc::new(InputTable {
            schema: Arc::clone(&schema),
            rows: Mutex::default(),
        });
        let stream: Arc<dyn PartitionStream> = Arc::<InputTable>::clone(&input);
        let table = StreamingTable::try_new(schema, vec![stream]);
        let table = table.map_err(|source| query_error(job, source))?;
        let plan = plan_job(context, job, Arc::new(table))
            .await?
            .create_physical_plan()
            .await
            .map_err(|source| query_error(job, source))?;
        Ok(Self { input, plan })
    }

    /// Runs the plan over rows.
    async fn run(
        &self,
        context: &SessionContext,
        rows: &RecordBatch,
    ) -> Result<Vec<RecordBatch>, DataFusionError> {
        self.input.set(rows.clone());
        // Resets state and metrics. The metrics of a plan that is never reset would grow without
        // limit.
        let plan = reset_plan_states(Arc::clone(&self.plan))?;
        let batches = collect(plan, context.task_ctx()).await?;
        self.input.clear();
        Ok(batches)
    }
}

fn rows_error<K>(job: &Job<K>, reason: impl ToString) -> Error {
    Error::Rows {
        job: job.name().to_owned(),
        reason: reason.to_string(),
    }
}

fn query_error<K>(job: &Job<K>, source: DataFusionError) -> Error {
    Error::Query {
        job: job.name().to_owned(),
        source,
    }
}

/// A table of one batch, which is replaced between runs.
struct InputTable {
    schema: SchemaRef,
    rows: Mutex<Option<RecordBatch>>,
}

impl InputTable {
    fn set(&self, rows: RecordBatch) {
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = Some(rows);
    }

    fn rows(&self) -> Option<RecordBatch> {
        let rows = self.rows.lock();
        rows.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn clear(&self) {
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl fmt::Debug for InputTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputTable").finish_non_exhaustive()
    }
}

impl PartitionStream for InputTable {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        // A query may read its table more than once; the rows are shared, not copied.
        let rows = futures::stream::iter(self.rows().map(Ok));
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            rows,
        ))
    }
}
