//! From a job and its input to rows of the job's shape.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::empty::EmptyTable;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::{SessionContext, cast, ident};
use futures::FutureExt;
use schemas::plays;

use crate::job::Job;
use crate::{Error, Result};

/// What a job's query reads: a table of events or of another job's rows.
pub type Input = Arc<dyn TableProvider>;

/// The rows that a job's query gives over `input`, with the columns of [`Job::schema`] but for
/// their nullability: pass what comes out through [`checked`].
///
/// # Errors
/// [`Error::Query`] if the query can't be planned.
pub async fn query(context: &SessionContext, job: &Job, input: Input) -> Result<DataFrame> {
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
pub fn checked(job: &Job, rows: &RecordBatch) -> Result<RecordBatch> {
    RecordBatch::try_new(job.schema(), rows.columns().to_vec()).map_err(|error| Error::Rows {
        job: job.name().to_owned(),
        what: error.to_string(),
    })
}

async fn plan(
    context: &SessionContext,
    job: &Job,
    input: Input,
) -> Result<DataFrame, DataFusionError> {
    context.deregister_table(job.table())?;
    context.register_table(job.table(), input)?;
    let only_queries = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false);
    let rows = context.sql_with_options(job.sql(), only_queries).await?;
    let columns = job
        .schema
        .fields()
        .iter()
        .map(|field| cast(ident(field.name()), field.data_type().clone()).alias(field.name()));
    rows.select(columns.collect::<Vec<_>>())
}

/// Plans the query over an empty input, so that a wrong one is found at start.
pub(crate) fn check_query(job: &Job, before: &[Arc<Job>], file: &str) -> Result<()> {
    let wrong = |what: String| Error::Definition {
        file: file.to_owned(),
        line: line_of(&what).unwrap_or(1),
        what: what.lines().next().unwrap_or_default().to_owned(),
    };
    let input = input_schema(job, before);
    let context = SessionContext::new();
    // Planning over an empty table waits for nothing, so it is done at the first poll.
    let rows = plan(&context, job, Arc::new(EmptyTable::new(input)))
        .now_or_never()
        .unwrap_or_else(|| Err(DataFusionError::Plan("the query can't be planned".into())))
        .map_err(|error| wrong(error.strip_backtrace()))?;
    for (got, field) in rows.schema().fields().iter().zip(job.schema.fields()) {
        // The engine can't tell that a sum over a group, or a bucket of a time, is never null.
        let derived = [crate::COUNT, crate::BUCKET].contains(&field.name().as_str());
        if got.is_nullable() && !field.is_nullable() && !derived {
            return Err(wrong(format!("column {:?} may be null here", field.name())));
        }
    }
    Ok(())
}

fn input_schema(job: &Job, before: &[Arc<Job>]) -> SchemaRef {
    job.over()
        .and_then(|name| before.iter().find(|other| other.name() == name))
        .map_or_else(plays::schema, |other| other.schema())
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
