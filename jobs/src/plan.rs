//! Plans a job's query over an input and checks the shape of its rows.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::empty::EmptyTable;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{SessionContext, cast, ident};
use futures::FutureExt;
use schemas::source::Source;
use schemas::{entities, plays};

use crate::columns::{BUCKET, COUNT};
use crate::engine::create_session;
use crate::job::Job;
use crate::{Error, Result};

/// The input of a query: a table of events or of another job's rows.
pub type Input = Arc<dyn TableProvider>;

/// Plans a job's query over `input`. The rows have the columns of [`Job::schema`], but may differ
/// in nullability. Pass them through [`check_rows`].
///
/// # Errors
/// [`Error::Query`] if the query can't be planned.
pub async fn plan_job<K>(
    context: &SessionContext,
    job: &Job<K>,
    input: Input,
) -> Result<DataFrame> {
    plan_job_rows(context, job, input)
        .await
        .map_err(|source| Error::Query {
            job: job.name().to_owned(),
            source,
        })
}

/// Checks that rows of a query have the job's shape, and returns them with its schema.
///
/// # Errors
/// [`Error::Rows`] if a required column is null.
pub fn check_rows<K>(job: &Job<K>, rows: &RecordBatch) -> Result<RecordBatch> {
    RecordBatch::try_new(job.schema(), rows.columns().to_vec()).map_err(|error| Error::Rows {
        job: job.name().to_owned(),
        reason: error.to_string(),
    })
}

async fn plan_job_rows<K>(
    context: &SessionContext,
    job: &Job<K>,
    input: Input,
) -> Result<DataFrame, DataFusionError> {
    let rows = plan_select(context, job.input_table(), input, job.sql()).await?;
    let columns = job
        .schema
        .fields()
        .iter()
        .map(|field| cast(ident(field.name()), field.data_type().clone()).alias(field.name()));
    rows.select(columns.collect::<Vec<_>>())
}

/// Plans a query over a table.
async fn plan_select(
    context: &SessionContext,
    table: &str,
    input: Input,
    sql: &str,
) -> Result<DataFrame, DataFusionError> {
    context.deregister_table(table)?;
    context.register_table(table, input)?;
    let only_queries = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false);
    context.sql_with_options(sql, only_queries).await
}

/// The query of a definition, and its file for messages.
pub(crate) struct QueryText<'a> {
    pub(crate) sql: &'a str,
    pub(crate) file: &'a str,
}

/// Plans a query of a definition over an empty table, to detect invalid queries at startup.
pub(crate) fn plan_over_empty_table(
    table: &str,
    input: &SchemaRef,
    query: &QueryText<'_>,
) -> Result<LogicalPlan> {
    let context = create_session(Arc::default());
    let input: Input = Arc::new(EmptyTable::new(Arc::clone(input)));
    let rows = poll_once(plan_select(&context, table, input, query.sql))
        .map_err(|error| planning_error(query.file, &error))?;
    Ok(rows.into_unoptimized_plan())
}

/// Infers the columns of a query's result.
pub(crate) fn infer_query_schema(
    table: &str,
    input: &SchemaRef,
    query: &QueryText<'_>,
) -> Result<SchemaRef> {
    Ok(Arc::clone(
        plan_over_empty_table(table, input, query)?.schema().inner(),
    ))
}

/// Returns the result of planning over an empty table. It never waits, so one poll completes it.
fn poll_once(
    plan: impl Future<Output = Result<DataFrame, DataFusionError>>,
) -> Result<DataFrame, DataFusionError> {
    plan.now_or_never()
        .unwrap_or_else(|| Err(DataFusionError::Plan("the query can't be planned".into())))
}

fn planning_error(file: &str, error: &DataFusionError) -> Error {
    query_definition_error(file, &error.strip_backtrace())
}

fn query_definition_error(file: &str, reason: &str) -> Error {
    Error::Definition {
        file: file.to_owned(),
        line: parse_line_number(reason).unwrap_or(1),
        reason: reason.lines().next().unwrap_or_default().to_owned(),
    }
}

/// Plans the job's query over an empty input, to detect nullable key columns at startup.
pub(crate) fn check_query(job: &Job, earlier_jobs: &[Arc<Job>], file: &str) -> Result<()> {
    let input = input_schema(job, earlier_jobs);
    let context = create_session(Arc::default());
    let input: Input = Arc::new(EmptyTable::new(input));
    let rows = poll_once(plan_job_rows(&context, job, input))
        .map_err(|error| planning_error(file, &error))?;
    for (column, field) in rows.schema().fields().iter().zip(job.schema.fields()) {
        // The engine can't infer that a sum over a group, or a bucket of a time, is never null.
        let is_computed = [COUNT, BUCKET].contains(&field.name().as_str());
        if column.is_nullable() && !field.is_nullable() && !is_computed {
            let reason = format!("column {:?} must not be nullable", field.name());
            return Err(query_definition_error(file, &reason));
        }
    }
    Ok(())
}

fn input_schema(job: &Job, earlier_jobs: &[Arc<Job>]) -> SchemaRef {
    job.input_job()
        .and_then(|name| earlier_jobs.iter().find(|other| other.name() == name))
        .map_or_else(|| source_schema(job.source()), |other| other.schema())
}

/// Returns the columns of a source's events, or of its rows.
pub(crate) fn source_schema(source: Source) -> SchemaRef {
    entities::schema(source).unwrap_or_else(plays::schema)
}

/// Parses the line number in a message of the SQL parser.
fn parse_line_number(message: &str) -> Option<usize> {
    let (_, after) = message.split_once("Line: ")?;
    after
        .chars()
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .ok()
}
