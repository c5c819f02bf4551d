//! User queries: one SELECT in a read-only transaction with a time limit.
//!
//! The query becomes a subquery of an outer SELECT, so it cannot write. All values are cast to text.

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
use super::task_stream::task_stream;
use crate::canon::{Answered, AnsweredRows};
use crate::{Error, Result};

/// Rows of a block.
const BLOCK_ROWS: usize = 1_000;
/// Blocks buffered ahead of the reader.
const BLOCKS_AHEAD: usize = 2;
const DOING: &str = "querying the entity store";

/// SQLite checks the deadline after this many steps.
const STEPS: i32 = 10_000;

/// Runs a user's query, at most `wait_ms` milliseconds.
pub(super) async fn ask(database: OpenDatabase, query: &str, wait_ms: u64) -> Result<Answered> {
    let table = as_table(query)?;
    let until = Instant::now() + Duration::from_millis(wait_ms);
    let mut connection = database.connect(DOING).await?;
    let fault = move |error: sqlx::Error| database.fault(DOING, error);
    let columns = match begin(&mut connection, &table, (wait_ms, until)).await {
        Ok(columns) => columns,
        Err(error) => return Err(refused(&fault, error)),
    };
    let (sender, receiver) = mpsc::channel(BLOCKS_AHEAD);
    let mut task = JoinSet::new();
    let named = columns.clone();
    task.spawn(async move {
        let read = read(&mut connection, &table, &named, (&sender, until)).await;
        if let Err(error) = read {
            // The receiver may be gone.
            sender.send(Err(refused(&fault, error))).await.ok();
        }
    });
    Ok(Answered {
        columns,
        rows: task_stream(receiver, task, DOING),
    })
}

/// Begins a transaction that cannot write, and returns the columns of the query.
async fn begin(
    connection: &mut DedicatedConnection,
    table: &str,
    (wait_ms, until): (u64, Instant),
) -> Sql<Vec<String>> {
    match connection {
        #[cfg(feature = "postgres")]
        DedicatedConnection::Server(OwnedConnection::Postgres(connection)) => {
            let begin = format!("BEGIN READ ONLY; SET LOCAL statement_timeout TO {wait_ms}");
            sqlx::raw_sql(AssertSqlSafe(begin))
                .execute(&mut *connection)
                .await?;
            Ok(names(&(&mut *connection).prepare(naming(table)).await?))
        }
        #[cfg(feature = "mysql")]
        DedicatedConnection::Server(OwnedConnection::MySql(connection)) => {
            let version: String = sqlx::query_scalar("SELECT version()")
                .fetch_one(&mut *connection)
                .await?;
            let limit = match version.to_ascii_lowercase().contains("mariadb") {
                true => format!("max_statement_time = {}", wait_ms.div_ceil(1000)),
                false => format!("max_execution_time = {wait_ms}"),
            };
            let begin = format!("SET SESSION {limit}; START TRANSACTION READ ONLY");
            sqlx::raw_sql(AssertSqlSafe(begin))
                .execute(&mut *connection)
                .await?;
            Ok(names(&(&mut *connection).prepare(naming(table)).await?))
        }
        DedicatedConnection::File(connection) => {
            let _ = wait_ms;
            let mut handle = connection.lock_handle().await?;
            handle.set_progress_handler(STEPS, move || Instant::now() < until);
            drop(handle);
            Ok(names(&(&mut *connection).prepare(naming(table)).await?))
        }
    }
}

async fn read(
    connection: &mut DedicatedConnection,
    table: &str,
    columns: &[String],
    to: (&Sender<Result<AnsweredRows>>, Instant),
) -> Sql<()> {
    let statement = AssertSqlSafe(as_texts(table, columns, connection.borrow().dialect()));
    match connection {
        #[cfg(feature = "postgres")]
        DedicatedConnection::Server(OwnedConnection::Postgres(connection)) => {
            let rows = sqlx::query(statement).persistent(false).fetch(connection);
            pour::<sqlx::Postgres>(rows, columns.len(), to).await
        }
        #[cfg(feature = "mysql")]
        DedicatedConnection::Server(OwnedConnection::MySql(connection)) => {
            let rows = sqlx::query(statement).persistent(false).fetch(connection);
            pour::<sqlx::MySql>(rows, columns.len(), to).await
        }
        DedicatedConnection::File(connection) => {
            let rows = sqlx::query(statement).persistent(false).fetch(connection);
            pour::<sqlx::Sqlite>(rows, columns.len(), to).await
        }
    }
}

/// The query as a table, without the end of its statement.
///
/// # Errors
/// [`Error::Refused`] for more than one statement.
fn as_table(query: &str) -> Result<String> {
    let query = query.trim().trim_end_matches(';').trim_end();
    if query.is_empty() || query.contains(';') {
        return Err(Error::Refused(
            "a query of the entity store is one SELECT without a semicolon".to_owned(),
        ));
    }
    // The line break ends a comment.
    Ok(format!("(\n{query}\n) AS asked"))
}

/// The statement that reads the columns of such a table as texts.
fn as_texts(table: &str, columns: &[String], dialect: Dialect) -> String {
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

/// The statement whose columns are those of the table.
fn naming(table: &str) -> SqlStr {
    AssertSqlSafe(format!("SELECT * FROM {table}")).into_sql_str()
}

/// The names of the columns of a statement.
fn names(prepared: &impl Statement) -> Vec<String> {
    let columns = prepared.columns().iter();
    columns.map(|column| column.name().to_owned()).collect()
}

/// Sends rows until the query ends, the receiver closes, or the deadline passes.
async fn pour<DB: Database>(
    mut rows: BoxStream<'_, Sql<DB::Row>>,
    columns: usize,
    (sender, until): (&Sender<Result<AnsweredRows>>, Instant),
) -> Sql<()>
where
    for<'r> String: Decode<'r, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    let mut block: AnsweredRows = Vec::new();
    loop {
        let late = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
        let row = timeout_at(until, rows.next()).await.map_err(late)?;
        if let Some(row) = &row {
            let row = row.as_ref().map_err(|error| {
                sqlx::Error::Protocol(format!("{error}; a query may only read, and has its time"))
            })?;
            let value = |at| row.try_get_unchecked::<Option<String>, _>(at);
            block.push((0..columns).map(value).collect::<Sql<_>>()?);
        }
        if block.len() == BLOCK_ROWS || row.is_none() {
            let is_last = row.is_none();
            if sender.send(Ok(std::mem::take(&mut block))).await.is_err() || is_last {
                return Ok(());
            }
        }
    }
}

/// Errors of the query are `Refused`; other errors are the store's.
fn refused(fault: &impl Fn(sqlx::Error) -> Error, error: sqlx::Error) -> Error {
    match error {
        sqlx::Error::Database(said) => Error::Refused(format!("{DOING}: {said}")),
        sqlx::Error::Protocol(said) => Error::Refused(format!("{DOING}: {said}")),
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            Error::Refused(format!("{DOING}: the query took longer than it may"))
        }
        error => fault(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_one_statement() {
        assert!(as_table(" SELECT 1 AS a -- all; of them").is_err());
        let table = as_table(" SELECT 1 AS a -- all\n ;").expect("a table");
        assert_eq!(table, "(\nSELECT 1 AS a -- all\n) AS asked");
        for query in ["", ";", "DELETE FROM efforts; SELECT 1"] {
            assert!(as_table(query).is_err(), "{query}");
        }
        assert_eq!(
            as_texts("t", &["a\"b".to_owned()], Dialect::Postgres),
            "SELECT CAST(\"a\"\"b\" AS text) FROM t"
        );
    }
}
