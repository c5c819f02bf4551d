//! User queries: one SELECT in a read-only transaction with a time limit.
//!
//! The query becomes a subquery of an outer SELECT, so it cannot write. All values are cast to
//! text.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use sqlx::{
    AssertSqlSafe, Column, ColumnIndex, Database, Decode, Executor, Row, SqlSafeStr, SqlStr,
    Statement, Type,
};
use tokio::sync::mpsc::{self, Sender};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

#[cfg(feature = "sql")]
use super::connection::OwnedConnection;
use super::connection::{Dialect, Sql};
use super::database::{DedicatedConnection, OpenDatabase};
use super::task_stream::stream_from_tasks;
use crate::entities::{QueryResult, QueryRows};
use crate::{Error, Result};

/// Rows per block.
const BLOCK_ROWS: usize = 1_000;
/// Blocks buffered ahead of the reader.
const BUFFERED_BLOCKS: usize = 2;
const OPERATION: &str = "querying the entity store";

/// SQLite checks the deadline after this many steps of its virtual machine.
const STEPS_PER_CHECK: i32 = 10_000;

/// Runs a user's query for at most `timeout_ms`.
pub(super) async fn run(
    database: OpenDatabase,
    query: &str,
    timeout_ms: u64,
) -> Result<QueryResult> {
    let table = as_subquery(query)?;
    let deadline = Instant::now() + Duration::from_millis(timeout_ms);
    let mut connection = database.connect(OPERATION).await?;
    let to_store_error = move |error: sqlx::Error| database.classify_error(OPERATION, error);
    let columns = match begin(&mut connection, &table, timeout_ms, deadline).await {
        Ok(columns) => columns,
        Err(error) => return Err(classify_error(&to_store_error, error)),
    };
    let (sender, receiver) = mpsc::channel(BUFFERED_BLOCKS);
    let mut task = JoinSet::new();
    let column_names = columns.clone();
    task.spawn(async move {
        let blocks = BlockSender {
            sender: &sender,
            deadline,
        };
        let outcome = read(&mut connection, &table, &column_names, blocks).await;
        if let Err(error) = outcome {
            // The receiver may have been dropped.
            let error = classify_error(&to_store_error, error);
            sender.send(Err(error)).await.ok();
        }
    });
    Ok(QueryResult {
        columns,
        rows: stream_from_tasks(receiver, task, OPERATION),
    })
}

/// Begins a read-only transaction, and returns the columns of the query.
async fn begin(
    connection: &mut DedicatedConnection,
    table: &str,
    timeout_ms: u64,
    deadline: Instant,
) -> Sql<Vec<String>> {
    match connection {
        #[cfg(feature = "postgres")]
        DedicatedConnection::Server(OwnedConnection::Postgres(connection)) => {
            let begin = format!("BEGIN READ ONLY; SET LOCAL statement_timeout TO {timeout_ms}");
            sqlx::raw_sql(AssertSqlSafe(begin))
                .execute(&mut *connection)
                .await?;
            Ok(list_column_names(
                &(&mut *connection).prepare(build_select_all(table)).await?,
            ))
        }
        #[cfg(feature = "mysql")]
        DedicatedConnection::Server(OwnedConnection::MySql(connection)) => {
            let version: String = sqlx::query_scalar("SELECT version()")
                .fetch_one(&mut *connection)
                .await?;
            let limit = match version.to_ascii_lowercase().contains("mariadb") {
                true => format!("max_statement_time = {}", timeout_ms.div_ceil(1000)),
                false => format!("max_execution_time = {timeout_ms}"),
            };
            let begin = format!("SET SESSION {limit}; START TRANSACTION READ ONLY");
            sqlx::raw_sql(AssertSqlSafe(begin))
                .execute(&mut *connection)
                .await?;
            Ok(list_column_names(
                &(&mut *connection).prepare(build_select_all(table)).await?,
            ))
        }
        DedicatedConnection::File(connection) => {
            let _ = timeout_ms;
            let mut handle = connection.lock_handle().await?;
            handle.set_progress_handler(STEPS_PER_CHECK, move || Instant::now() < deadline);
            drop(handle);
            Ok(list_column_names(
                &(&mut *connection).prepare(build_select_all(table)).await?,
            ))
        }
    }
}

/// The channel for the blocks of a query, and the query's deadline.
#[derive(Clone, Copy)]
struct BlockSender<'a> {
    sender: &'a Sender<Result<QueryRows>>,
    deadline: Instant,
}

async fn read(
    connection: &mut DedicatedConnection,
    table: &str,
    columns: &[String],
    blocks: BlockSender<'_>,
) -> Sql<()> {
    let statement = AssertSqlSafe(build_text_select(
        table,
        columns,
        connection.borrow().dialect(),
    ));
    match connection {
        #[cfg(feature = "postgres")]
        DedicatedConnection::Server(OwnedConnection::Postgres(connection)) => {
            let rows = sqlx::query(statement).persistent(false).fetch(connection);
            send_blocks::<sqlx::Postgres>(rows, columns.len(), blocks).await
        }
        #[cfg(feature = "mysql")]
        DedicatedConnection::Server(OwnedConnection::MySql(connection)) => {
            let rows = sqlx::query(statement).persistent(false).fetch(connection);
            send_blocks::<sqlx::MySql>(rows, columns.len(), blocks).await
        }
        DedicatedConnection::File(connection) => {
            let rows = sqlx::query(statement).persistent(false).fetch(connection);
            send_blocks::<sqlx::Sqlite>(rows, columns.len(), blocks).await
        }
    }
}

/// Converts the query to a subquery, without its final semicolon.
///
/// # Errors
/// [`Error::Refused`] for more than one statement.
fn as_subquery(query: &str) -> Result<String> {
    let query = query.trim().trim_end_matches(';').trim_end();
    if query.is_empty() || query.contains(';') {
        return Err(Error::Refused(
            "a query of the entity store must be one SELECT without a semicolon".to_owned(),
        ));
    }
    // The line break ends a trailing comment.
    Ok(format!("(\n{query}\n) AS user_query"))
}

/// Builds the statement that reads the columns of the subquery as text.
fn build_text_select(table: &str, columns: &[String], dialect: Dialect) -> String {
    let (quote, text) = match dialect {
        Dialect::Postgres => ('"', "text"),
        Dialect::MySql => ('`', "CHAR"),
        Dialect::Sqlite => ('"', "TEXT"),
    };
    let columns = columns.iter().map(|name| {
        let name = name.replace(quote, &format!("{quote}{quote}"));
        format!("CAST({quote}{name}{quote} AS {text})")
    });
    let columns = columns.collect::<Vec<_>>().join(", ");
    format!("SELECT {columns} FROM {table}")
}

/// Builds the statement that selects all columns of the subquery.
fn build_select_all(table: &str) -> SqlStr {
    AssertSqlSafe(format!("SELECT * FROM {table}")).into_sql_str()
}

/// Lists the names of the columns of a statement.
fn list_column_names(prepared: &impl Statement) -> Vec<String> {
    let columns = prepared.columns().iter();
    columns.map(|column| column.name().to_owned()).collect()
}

/// Sends rows until the query ends, the receiver closes, or the deadline passes.
async fn send_blocks<DB: Database>(
    mut rows: BoxStream<'_, Sql<DB::Row>>,
    columns: usize,
    blocks: BlockSender<'_>,
) -> Sql<()>
where
    for<'r> String: Decode<'r, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    let mut block: QueryRows = Vec::new();
    loop {
        let to_timeout_error = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
        let row = timeout_at(blocks.deadline, rows.next())
            .await
            .map_err(to_timeout_error)?;
        if let Some(row) = &row {
            let row = row.as_ref().map_err(|error| {
                sqlx::Error::Protocol(format!(
                    "{error}; a query is read-only and has a time limit"
                ))
            })?;
            let value = |index| row.try_get_unchecked::<Option<String>, _>(index);
            block.push((0..columns).map(value).collect::<Sql<_>>()?);
        }
        if block.len() == BLOCK_ROWS || row.is_none() {
            let is_last = row.is_none();
            let sent = blocks.sender.send(Ok(std::mem::take(&mut block))).await;
            if sent.is_err() || is_last {
                return Ok(());
            }
        }
    }
}

/// Converts errors of the query to [`Error::Refused`], and other errors with `to_store_error`.
fn classify_error(to_store_error: &impl Fn(sqlx::Error) -> Error, error: sqlx::Error) -> Error {
    match error {
        sqlx::Error::Database(error) => Error::Refused(format!("{OPERATION}: {error}")),
        sqlx::Error::Protocol(reason) => Error::Refused(format!("{OPERATION}: {reason}")),
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            Error::Refused(format!("{OPERATION}: the query exceeded its time limit"))
        }
        error => to_store_error(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_one_statement() {
        assert!(as_subquery(" SELECT 1 AS a -- all; of them").is_err());
        let table = as_subquery(" SELECT 1 AS a -- all\n ;").expect("a table");
        assert_eq!(table, "(\nSELECT 1 AS a -- all\n) AS user_query");
        for query in ["", ";", "DELETE FROM efforts; SELECT 1"] {
            assert!(as_subquery(query).is_err(), "{query}");
        }
        assert_eq!(
            build_text_select("t", &["a\"b".to_owned()], Dialect::Postgres),
            "SELECT CAST(\"a\"\"b\" AS text) FROM t"
        );
    }
}
