//! Statements that write rows of any width, many at once.

use std::sync::Arc;

use sqlx::error::BoxDynError;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments, AssertSqlSafe, SqliteConnection};

use crate::canon_sql::session::{Fetched, Sql, Statements, Value};

/// The numbers of rows that a statement may have, largest first. Its text depends only on this
/// number, so a few sizes make up every number and stay prepared. At the largest, rows of ten
/// values stay well below the 32,766 that SQLite lets a statement have.
const SIZES: [usize; 4] = [512, 64, 8, 1];

/// A statement that takes rows of `width` values, by number of rows.
#[derive(Debug)]
pub(super) struct RowsOf {
    width: usize,
    texts: [Arc<str>; SIZES.len()],
}

impl RowsOf {
    /// The statement `INSERT INTO table (columns) SELECT * FROM rows WHERE true conflict`.
    pub(super) fn insert(table: &str, columns: &[&str], conflict: &str) -> Self {
        let width = columns.len();
        let row = format!("({})", vec!["?"; width].join(","));
        let columns = columns.join(", ");
        // Without `WHERE true` the parser takes `ON` for a part of a join.
        let texts = SIZES.map(|size| {
            let rows = vec![row.as_str(); size].join(",");
            let text = format!(
                "INSERT INTO {table} ({columns}) SELECT * FROM (VALUES {rows}) WHERE true {conflict}"
            );
            Arc::from(text)
        });
        Self { width, texts }
    }

    /// Runs the statement for all rows, in their order. `bind` adds the values of a row.
    pub(super) async fn run<T: Sync>(
        &self,
        connection: &mut SqliteConnection,
        rows: &[T],
        bind: impl Fn(&mut SqliteArguments, &T) -> Result<(), BoxDynError> + Send,
    ) -> Result<(), sqlx::Error> {
        let mut left = rows;
        for (size, text) in SIZES.into_iter().zip(&self.texts) {
            while let Some((now, later)) = left.split_at_checked(size) {
                let mut arguments = SqliteArguments::default();
                arguments.reserve(size * self.width, 0);
                for row in now {
                    bind(&mut arguments, row).map_err(sqlx::Error::Encode)?;
                }
                sqlx::query_with(AssertSqlSafe(Arc::clone(text)), arguments)
                    .execute(&mut *connection)
                    .await?;
                left = later;
            }
        }
        Ok(())
    }
}

/// A connection to `canon.db` for statements that all databases understand.
#[derive(Debug)]
pub(super) struct Embedded<'a>(pub(super) &'a mut SqliteConnection);

impl Statements for Embedded<'_> {
    async fn run(&mut self, statement: &str, values: &[Value<'_>]) -> Sql<u64> {
        let (text, arguments) = prepared(statement, values)?;
        let done = sqlx::query_with(AssertSqlSafe(text), arguments).execute(&mut *self.0);
        Ok(done.await?.rows_affected())
    }

    async fn rows<T: Fetched>(&mut self, statement: &str, values: &[Value<'_>]) -> Sql<Vec<T>> {
        let (text, arguments) = prepared(statement, values)?;
        sqlx::query_as_with(AssertSqlSafe(text), arguments)
            .fetch_all(&mut *self.0)
            .await
    }

    /// A transaction that writes is alone here.
    async fn hold(&mut self, _: i64) -> Sql<()> {
        Ok(())
    }
}

/// The statement as SQLite writes it, with its values: a list of numbers is one of them.
fn prepared(statement: &str, values: &[Value<'_>]) -> Sql<(String, SqliteArguments)> {
    let statement = statement.replace(" AS SIGNED)", " AS INTEGER)");
    let mut text = String::with_capacity(statement.len());
    let mut arguments = SqliteArguments::default();
    let mut parts = statement.split('?');
    text.push_str(parts.next().unwrap_or_default());
    for (part, value) in parts.zip(values) {
        let added = match value {
            Value::Int(value) => arguments.add(*value),
            Value::IntOrNull(value) => arguments.add(*value),
            Value::Text(value) => arguments.add((*value).to_owned()),
            Value::TextOrNull(value) => arguments.add(value.map(str::to_owned)),
            Value::Ints(values) => arguments.add(json(values.iter().copied())),
        };
        added.map_err(sqlx::Error::Encode)?;
        text.push_str(match value {
            Value::Ints(_) => "(SELECT value FROM json_each(?))",
            _ => "?",
        });
        text.push_str(part);
    }
    Ok((text, arguments))
}

/// Numbers as a JSON array: a list of any length in one parameter, for SQLite's `json_each`.
pub(super) fn json(numbers: impl Iterator<Item = i64>) -> String {
    let mut text = String::from("[");
    for number in numbers {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&number.to_string());
    }
    text.push(']');
    text
}
