//! Folding a micro-batch: every job's query over a few thousand events.
//!
//! The plans are made once and run again and again over a table whose rows are exchanged, since
//! planning would cost more than the work. A job that reads another one's rows is given what that
//! one has just made of the micro-batch.

mod tally;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::board::{Board, BoardRows};
use crate::job::Job;
use crate::plan::source_schema;
use crate::tally::Tally;
use crate::{Engine, Error, Result, checked, query};
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

pub use tally::{TallyFold, TallyRows};

/// What one job makes of a micro-batch.
#[derive(Debug, Clone)]
pub struct Folded<K = Tally> {
    /// The job.
    pub job: Arc<Job<K>>,
    /// Its rows, with the columns of [`Job::schema`].
    pub rows: RecordBatch,
}

impl Folded<Tally> {
    /// The encoded group keys, the encoded row keys and the counts of the rows.
    ///
    /// # Errors
    /// [`Error::Rows`] if a key can't be encoded.
    pub fn encoded(&self) -> Result<(BinaryArray, BinaryArray, Int64Array)> {
        let groups = self.job.group().0.len();
        let keys = groups + self.job.row().0.len();
        let columns: &[ArrayRef] = self.rows.columns();
        let part = |range: std::ops::Range<usize>| columns.get(range).unwrap_or_default();
        let wrong = |error| wrong(&self.job, error);
        Ok((
            self.job.group().encode(part(0..groups)).map_err(wrong)?,
            self.job.row().encode(part(groups..keys)).map_err(wrong)?,
            self.rows.column(keys).as_primitive::<Int64Type>().clone(),
        ))
    }
}

impl Folded<Board> {
    /// The rows, encoded.
    ///
    /// # Errors
    /// [`Error::Rows`] if a row can't be encoded.
    pub fn board_rows(&self) -> Result<BoardRows> {
        BoardRows::encode(&self.job, &self.rows)
    }
}

/// The prepared plans of some jobs.
pub struct Fold<K = Tally> {
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
    /// Nothing where the query is not run.
    planned: Option<Planned>,
    /// The step whose rows this one reads, where it does not read the events.
    reads: Option<usize>,
}

/// A query that was planned, and what it reads.
#[derive(Debug)]
struct Planned {
    input: Arc<Exchange>,
    plan: Arc<dyn ExecutionPlan>,
}

impl<K> Fold<K> {
    /// Plans the jobs of one source, which come in the order of [`crate::Catalog::jobs`].
    ///
    /// # Errors
    /// [`Error::Query`] if a query can't be planned; [`Error::Rows`] if a job reads from one that
    /// is not among them.
    pub async fn new(engine: &Engine, jobs: &[Arc<Job<K>>]) -> Result<Self> {
        Self::of_those(engine, jobs, &reads(jobs)?, |_| true).await
    }

    /// The same, but of the jobs at these places alone, among which are those whose rows they read.
    async fn of_those(
        engine: &Engine,
        jobs: &[Arc<Job<K>>],
        reads: &[Option<usize>],
        is_planned: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        let context = engine.session();
        let mut steps: Vec<Step<K>> = Vec::with_capacity(jobs.len());
        for (place, (job, reads)) in jobs.iter().zip(reads).enumerate() {
            let schema = reads
                .and_then(|step| steps.get(step))
                .map_or_else(|| source_schema(job.source()), |step| step.job.schema());
            let planned = match is_planned(place) {
                true => Some(Planned::new(&context, job, schema).await?),
                false => None,
            };
            steps.push(Step {
                job: Arc::clone(job),
                planned,
                reads: *reads,
            });
        }
        Ok(Self { steps, context })
    }

    /// The views that the fold keeps, as `name@version`.
    #[must_use]
    pub fn views(&self) -> Vec<&str> {
        self.steps.iter().map(|step| step.job.view()).collect()
    }

    /// The jobs, in their order.
    pub fn jobs(&self) -> impl Iterator<Item = &Arc<Job<K>>> {
        self.steps.iter().map(|step| &step.job)
    }

    /// Runs every job over the events or rows of its source, in the jobs' order.
    ///
    /// # Errors
    /// [`Error::Query`] or [`Error::Rows`] if a query fails; then nothing of the micro-batch counts.
    pub async fn run(&self, events: &RecordBatch) -> Result<Vec<Folded<K>>> {
        let folded = self.run_those(events).await?;
        Ok(folded.into_iter().flatten().collect())
    }

    /// Runs those jobs that are planned; nothing stands in the places of others.
    async fn run_those(&self, events: &RecordBatch) -> Result<Vec<Option<Folded<K>>>> {
        let mut folded: Vec<Option<Folded<K>>> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let Some(planned) = &step.planned else {
                folded.push(None);
                continue;
            };
            let input = match step.reads {
                None => events,
                Some(index) => match folded.get(index) {
                    Some(Some(before)) => &before.rows,
                    _ => return Err(wrong(&step.job, "the rows that it reads were not made")),
                },
            };
            let batches = planned
                .run(&self.context, input)
                .await
                .map_err(|source| failed(&step.job, source))?;
            let rows = match batches.first() {
                None => RecordBatch::new_empty(step.job.schema()),
                Some(first) => {
                    let all = concat_batches(&first.schema(), &batches)
                        .map_err(|error| failed(&step.job, error.into()))?;
                    checked(&step.job, &all)?
                }
            };
            folded.push(Some(Folded {
                job: Arc::clone(&step.job),
                rows,
            }));
        }
        Ok(folded)
    }
}

/// Which job's rows each job reads, by its place, where it does not read the events.
fn reads<K>(jobs: &[Arc<Job<K>>]) -> Result<Vec<Option<usize>>> {
    let reads = jobs.iter().enumerate().map(|(place, job)| {
        let Some(name) = job.over() else {
            return Ok(None);
        };
        let mut before = jobs.iter().take(place);
        let found = before.position(|other| other.name() == name);
        let missing = || format!("it reads from {name:?}, which this layer does not run");
        found.map(Some).ok_or_else(|| wrong(job, missing()))
    });
    reads.collect()
}

impl Planned {
    async fn new<K>(context: &SessionContext, job: &Job<K>, schema: SchemaRef) -> Result<Self> {
        let input = Arc::new(Exchange {
            schema: Arc::clone(&schema),
            rows: Mutex::default(),
        });
        let stream: Arc<dyn PartitionStream> = Arc::<Exchange>::clone(&input);
        let table = StreamingTable::try_new(schema, vec![stream]);
        let table = table.map_err(|source| failed(job, source))?;
        let plan = query(context, job, Arc::new(table))
            .await?
            .create_physical_plan()
            .await
            .map_err(|source| failed(job, source))?;
        Ok(Self { input, plan })
    }

    /// Runs the plan over some rows.
    async fn run(
        &self,
        context: &SessionContext,
        rows: &RecordBatch,
    ) -> Result<Vec<RecordBatch>, DataFusionError> {
        self.input.put(rows.clone());
        // Fresh state and fresh metrics: those of a plan that runs for ever would grow.
        let plan = reset_plan_states(Arc::clone(&self.plan))?;
        let batches = collect(plan, context.task_ctx()).await?;
        self.input.clear();
        Ok(batches)
    }
}

fn wrong<K>(job: &Job<K>, what: impl ToString) -> Error {
    Error::Rows {
        job: job.name().to_owned(),
        what: what.to_string(),
    }
}

fn failed<K>(job: &Job<K>, source: DataFusionError) -> Error {
    Error::Query {
        job: job.name().to_owned(),
        source,
    }
}

/// A table of one batch that is exchanged between runs.
struct Exchange {
    schema: SchemaRef,
    rows: Mutex<Option<RecordBatch>>,
}

impl Exchange {
    fn put(&self, rows: RecordBatch) {
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

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").finish_non_exhaustive()
    }
}

impl PartitionStream for Exchange {
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
