//! Queries that somebody else wrote: read in a transaction that can't write, one statement, for so long at most.
//!
//! What is asked becomes a table of an outer query, so it can be nothing but a query, and every value comes as a text.

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use sqlx::{
    AssertSqlSafe, Column, ColumnIndex, Database, Decode, Row, SqlSafeStr, SqlStr, Statement, Type,
};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::session::Sql;
use crate::canon::AnsweredRows;
use crate::{Error, Result};

/// Rows that go on together.
const BLOCK_ROWS: usize = 1_000;
/// Blocks that may wait for whoever takes them.
const BLOCKS_AHEAD: usize = 2;
pub(crate) const DOING: &str = "asking the canonical store";

/// How a database writes what all of them understand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect {
    pub(crate) quote: char,
    pub(crate) text: &'static str,
}

/// The query as a table, without the end of its statement.
///
/// # Errors
/// [`Error::Refused`] for more than one statement.
pub(crate) fn as_table(query: &str) -> Result<String> {
    let query = query.trim().trim_end_matches(';').trim_end();
    if query.is_empty() || query.contains(';') {
        return Err(Error::Refused(
            "a query of the canonical store is one SELECT, without a semicolon in it".to_owned(),
        ));
    }
    // A comment at its end ends with its line.
    Ok(format!("(\n{query}\n) AS asked"))
}

/// What reads the columns of such a table as texts.
pub(crate) fn as_texts(table: &str, columns: &[String], dialect: Dialect) -> String {
    let Dialect { quote, text } = dialect;
    let columns = columns.iter().map(|name| {
        let name = name.replace(quote, &format!("{quote}{quote}"));
        format!("CAST({quote}{name}{quote} AS {text})")
    });
    let columns = columns.collect::<Vec<_>>().join(", ");
    format!("SELECT {columns} FROM {table}")
}

/// What tells which columns a table has, once it is prepared.
pub(crate) fn naming(table: &str) -> SqlStr {
    AssertSqlSafe(format!("SELECT * FROM {table}")).into_sql_str()
}

/// The names of the columns of a statement.
pub(crate) fn names(prepared: &impl Statement) -> Vec<String> {
    let columns = prepared.columns().iter();
    columns.map(|column| column.name().to_owned()).collect()
}

/// Hands rows on until there are no more, nobody wants them, or it is too late.
pub(crate) async fn pour<DB: Database>(
    mut rows: BoxStream<'_, Sql<DB::Row>>,
    columns: usize,
    (sender, until): (&Sender<Sql<AnsweredRows>>, Instant),
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

/// Rows as they come.
pub(crate) fn streamed(
    receiver: Receiver<Sql<AnsweredRows>>,
    task: JoinSet<()>,
    fault: impl Fn(sqlx::Error) -> Error + Send + 'static,
) -> BoxStream<'static, Result<AnsweredRows>> {
    let next = |state: Option<(Receiver<_>, JoinSet<()>, _)>| async move {
        let (mut receiver, mut task, fault) = state?;
        match receiver.recv().await {
            Some(Ok(rows)) => Some((Ok(rows), Some((receiver, task, fault)))),
            Some(Err(error)) => Some((Err(refused(&fault, error)), None)),
            None => match task.join_next().await {
                Some(Err(error)) => Some((Err(Error::broken(DOING, error)), None)),
                _ => None,
            },
        }
    };
    stream::unfold(Some((receiver, task, fault)), next).boxed()
}

/// What the database says of a query is the asker's business; anything else is the store's.
pub(crate) fn refused(fault: &impl Fn(sqlx::Error) -> Error, error: sqlx::Error) -> Error {
    match error {
        sqlx::Error::Database(said) => Error::Refused(format!("{DOING}: {said}")),
        sqlx::Error::Protocol(said) => Error::Refused(format!("{DOING}: {said}")),
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            Error::Refused(format!("{DOING}: the query took longer than it may"))
        }
        error => fault(error),
    }
}

/// A channel for rows.
pub(crate) fn channel() -> (Sender<Sql<AnsweredRows>>, Receiver<Sql<AnsweredRows>>) {
    mpsc::channel(BLOCKS_AHEAD)
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
        let dialect = Dialect {
            quote: '"',
            text: "text",
        };
        assert_eq!(
            as_texts("t", &["a\"b".to_owned()], dialect),
            "SELECT CAST(\"a\"\"b\" AS text) FROM t"
        );
    }
}
