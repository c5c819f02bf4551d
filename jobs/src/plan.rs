//! From a job and its input to rows of the job's shape.

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

use crate::engine::session;
use crate::job::Job;
use crate::{Error, Result};

/// What a job's query reads: a table of events or of another job's rows.
pub type Input = Arc<dyn TableProvider>;

/// The rows that a job's query gives over `input`, with the columns of [`Job::schema`] but for
/// their nullability: pass what comes out through [`checked`].
///
/// # Errors
/// [`Error::Query`] if the query can't be planned.
pub async fn query<K>(context: &SessionContext, job: &Job<K>, input: Input) -> Result<DataFrame> {
    plan(context, job, input)
        .await
        .map_err(|source| Error::Query {
            job: job.name().to_owned(),
            source,
        })
}

/// Rows of a job as they come out of its query, made certain to be of the job's shape.
///
/// # Errors
/// [`Error::Rows`] if a column that may not be null is.
pub fn checked<K>(job: &Job<K>, rows: &RecordBatch) -> Result<RecordBatch> {
    RecordBatch::try_new(job.schema(), rows.columns().to_vec()).map_err(|error| Error::Rows {
        job: job.name().to_owned(),
        what: error.to_string(),
    })
}

async fn plan<K>(
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

/// What a query gives over a table.
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

/// The plan of a query over an empty table, so that a wrong one is found at start.
pub(crate) fn output(table: &str, input: &SchemaRef, sql: &str, file: &str) -> Result<LogicalPlan> {
    let context = session(Arc::default());
    let input: Input = Arc::new(EmptyTable::new(Arc::clone(input)));
    let rows = at_once(select(&context, table, input, sql)).map_err(|error| wrong(file, &error))?;
    Ok(rows.into_unoptimized_plan())
}

/// The columns that a query gives over an empty table.
pub(crate) fn output_schema(
    table: &str,
    input: &SchemaRef,
    sql: &str,
    file: &str,
) -> Result<SchemaRef> {
    Ok(Arc::clone(
        output(table, input, sql, file)?.schema().inner(),
    ))
}

/// Planning over an empty table waits for nothing, so it is done at the first poll.
fn at_once(
    plan: impl Future<Output = Result<DataFrame, DataFusionError>>,
) -> Result<DataFrame, DataFusionError> {
    plan.now_or_never()
        .unwrap_or_else(|| Err(DataFusionError::Plan("the query can't be planned".into())))
}

fn wrong(file: &str, error: &DataFusionError) -> Error {
    wrong_query(file, &error.strip_backtrace())
}

fn wrong_query(file: &str, what: &str) -> Error {
    Error::Definition {
        file: file.to_owned(),
        line: line_of(what).unwrap_or(1),
        what: what.lines().next().unwrap_or_default().to_owned(),
    }
}

/// Plans the query over an empty input, so that a wrong one is found at start.
pub(crate) fn check_query(job: &Job, before: &[Arc<Job>], file: &str) -> Result<()> {
    let input = input_schema(job, before);
    let context = session(Arc::default());
    let input: Input = Arc::new(EmptyTable::new(input));
    let rows = at_once(plan(&context, job, input)).map_err(|error| wrong(file, &error))?;
    for (got, field) in rows.schema().fields().iter().zip(job.schema.fields()) {
        // The engine can't tell that a sum over a group, or a bucket of a time, is never null.
        let derived = [crate::COUNT, crate::BUCKET].contains(&field.name().as_str());
        if got.is_nullable() && !field.is_nullable() && !derived {
            let what = format!("column {:?} may be null here", field.name());
            return Err(wrong_query(file, &what));
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

/// The line that a message of the SQL parser names.
fn line_of(message: &str) -> Option<usize> {
    let (_, after) = message.split_once("Line: ")?;
    after
        .chars()
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .ok()
}
