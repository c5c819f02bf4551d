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
use crate::engine::session;
use crate::job::Job;
use crate::{Error, Result};

/// The input of a query: a table of events or of another job's rows.
pub type Input = Arc<dyn TableProvider>;

/// Plans a job's query over `input`. The rows have the columns of [`Job::schema`], but may differ
/// in nullability. Pass them through [`check_rows`].
///
/// # Errors
/// [`Error::Query`] if the query can't be planned.
pub async fn plan_query<K>(
    context: &SessionContext,
    job: &Job<K>,
    input: Input,
) -> Result<DataFrame> {
    plan_job(context, job, input)
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
        what: error.to_string(),
    })
}

async fn plan_job<K>(
    context: &SessionContext,
    job: &Job<K>,
    input: Input,
) -> Result<DataFrame, DataFusionError> {
    let rows = select(context, job.table(), input, job.sql()).await?;
    let columns = job
        .schema
        .fields()
        .iter()
        .map(|field| cast(ident(field.name()), field.data_type().clone()).alias(field.name()));
    rows.select(columns.collect::<Vec<_>>())
}

/// Runs a query over a table.
async fn select(
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

/// Plans a query over an empty table, to detect invalid queries at startup.
pub(crate) fn query_plan(
    table: &str,
    input: &SchemaRef,
    query: &QueryText<'_>,
) -> Result<LogicalPlan> {
    let context = session(Arc::default());
    let input: Input = Arc::new(EmptyTable::new(Arc::clone(input)));
    let rows = poll_once(select(&context, table, input, query.sql))
        .map_err(|error| planning_error(query.file, &error))?;
    Ok(rows.into_unoptimized_plan())
}

/// The columns that a query returns over an empty table.
pub(crate) fn query_schema(
    table: &str,
    input: &SchemaRef,
    query: &QueryText<'_>,
) -> Result<SchemaRef> {
    Ok(Arc::clone(
        query_plan(table, input, query)?.schema().inner(),
    ))
}

/// Planning over an empty table never waits, so one poll completes it.
fn poll_once(
    plan: impl Future<Output = Result<DataFrame, DataFusionError>>,
) -> Result<DataFrame, DataFusionError> {
    plan.now_or_never()
        .unwrap_or_else(|| Err(DataFusionError::Plan("the query can't be planned".into())))
}

fn planning_error(file: &str, error: &DataFusionError) -> Error {
    query_definition_error(file, &error.strip_backtrace())
}

fn query_definition_error(file: &str, what: &str) -> Error {
    Error::Definition {
        file: file.to_owned(),
        line: parse_line_number(what).unwrap_or(1),
        what: what.lines().next().unwrap_or_default().to_owned(),
    }
}

/// Plans the query over an empty input, to detect invalid queries and nullable columns at startup.
pub(crate) fn check_query(job: &Job, before: &[Arc<Job>], file: &str) -> Result<()> {
    let input = input_schema(job, before);
    let context = session(Arc::default());
    let input: Input = Arc::new(EmptyTable::new(input));
    let rows =
        poll_once(plan_job(&context, job, input)).map_err(|error| planning_error(file, &error))?;
    for (found, field) in rows.schema().fields().iter().zip(job.schema.fields()) {
        // The engine can't infer that a sum over a group, or a bucket of a time, is never null.
        let derived = [COUNT, BUCKET].contains(&field.name().as_str());
        if found.is_nullable() && !field.is_nullable() && !derived {
            let what = format!("column {:?} must not be nullable", field.name());
            return Err(query_definition_error(file, &what));
        }
    }
    Ok(())
}

fn input_schema(job: &Job, before: &[Arc<Job>]) -> SchemaRef {
    job.over()
        .and_then(|name| before.iter().find(|other| other.name() == name))
        .map_or_else(|| source_schema(job.source()), |other| other.schema())
}

/// The columns of a source's events, or of its rows.
pub(crate) fn source_schema(source: Source) -> SchemaRef {
    entities::schema(source).unwrap_or_else(plays::schema)
}

/// The line number in a message of the SQL parser.
fn parse_line_number(message: &str) -> Option<usize> {
    let (_, after) = message.split_once("Line: ")?;
    after
        .chars()
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .ok()
}
