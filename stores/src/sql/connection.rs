//! Connections, and statements in a common dialect.
//!
//! A statement has a `?` for each value; a list of integers follows `IN`. The common dialect has
//! `CAST(… AS SIGNED)` and `FOR UPDATE`; [`SqlConnection`] translates both for each database. Other
//! differences are in the modules of the dialects.

use std::error::Error as StdError;
#[cfg(feature = "sql")]
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Encode, Row, SqliteConnection, Type};
#[cfg(feature = "mysql")]
use sqlx::{MySqlConnection, mysql::MySqlArguments, mysql::MySqlRow};
#[cfg(feature = "postgres")]
use sqlx::{PgConnection, postgres::PgArguments, postgres::PgRow};

pub(crate) type Sql<T> = Result<T, sqlx::Error>;

/// Upper limit of the ids of a statement.
pub(crate) const IDS_PER_STATEMENT: usize = 8192;

/// The error for a stored value that cannot be decoded.
pub(crate) fn decode_error(reason: impl Into<Box<dyn StdError + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::Decode(reason.into())
}

/// A parameter of a statement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Int(i64),
    IntOrNull(Option<i64>),
    Text(&'a str),
    TextOrNull(Option<&'a str>),
    /// A list, not empty and short enough for one statement.
    Ints(&'a [i64]),
}

/// The SQL dialect of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Postgres,
    /// MySQL and MariaDB.
    MySql,
    Sqlite,
}

/// A row of a result.
pub(crate) enum SqlRow<'r> {
    #[cfg(feature = "postgres")]
    Postgres(&'r PgRow),
    #[cfg(feature = "mysql")]
    MySql(&'r MySqlRow),
    Sqlite(&'r SqliteRow),
}

impl SqlRow<'_> {
    /// The value of a column.
    pub(crate) fn get<T: SqlValue>(&self, column: &str) -> Sql<T> {
        T::read_by_name(self, column)
    }
}

/// A type that is read from a row: tuples by column position, structs by column name.
pub(crate) trait FromSqlRow: Sized + Send {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self>;
}

/// A value type that every database supports.
pub(crate) trait SqlValue: Sized + Send {
    fn read_by_name(row: &SqlRow<'_>, column: &str) -> Sql<Self>;
    fn read_by_position(row: &SqlRow<'_>, column: usize) -> Sql<Self>;
}

macro_rules! read_value {
    ($row:ident, $column:ident) => {
        match $row {
            #[cfg(feature = "postgres")]
            SqlRow::Postgres(row) => row.try_get($column),
            #[cfg(feature = "mysql")]
            SqlRow::MySql(row) => row.try_get($column),
            SqlRow::Sqlite(row) => row.try_get($column),
        }
    };
}

macro_rules! sql_values {
    ($($value:ty),+) => {$(
        impl SqlValue for $value {
            fn read_by_name(row: &SqlRow<'_>, column: &str) -> Sql<Self> {
                read_value!(row, column)
            }

            fn read_by_position(row: &SqlRow<'_>, column: usize) -> Sql<Self> {
                read_value!(row, column)
            }
        }
    )+};
}

sql_values!(i64, bool, String, Vec<u8>);
sql_values!(Option<i64>, Option<f64>, Option<String>);

/// A row of one column.
impl<T: SqlValue> FromSqlRow for T {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        T::read_by_position(row, 0)
    }
}

macro_rules! sql_tuple {
    ($($position:literal $value:ident),+) => {
        impl<$($value: SqlValue),+> FromSqlRow for ($($value,)+) {
            fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
                Ok(($($value::read_by_position(row, $position)?,)+))
            }
        }
    };
}

sql_tuple!(0 A, 1 B);
sql_tuple!(0 A, 1 B, 2 C);
sql_tuple!(0 A, 1 B, 2 C, 3 D);
sql_tuple!(0 A, 1 B, 2 C, 3 D, 4 E, 5 F);

/// A borrowed connection that runs statements.
#[derive(Debug)]
pub(crate) enum SqlConnection<'a> {
    #[cfg(feature = "postgres")]
    Postgres(&'a mut PgConnection),
    #[cfg(feature = "mysql")]
    MySql(&'a mut MySqlConnection),
    Sqlite(&'a mut SqliteConnection),
}

impl SqlConnection<'_> {
    /// The connection, if its server is SQLite.
    pub(crate) fn as_sqlite(&mut self) -> Option<&mut SqliteConnection> {
        match self {
            Self::Sqlite(connection) => Some(connection),
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            _ => None,
        }
    }

    /// Runs a statement and returns how many rows it changed.
    pub(crate) async fn execute(&mut self, statement: &str, values: &[Value<'_>]) -> Sql<u64> {
        Ok(match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => {
                let (text, arguments) = postgres_statement(statement, values)?;
                let query = sqlx::query_with(AssertSqlSafe(text), arguments);
                query.execute(&mut **connection).await?.rows_affected()
            }
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => {
                let (text, arguments) = mysql_statement(statement, values)?;
                let query = sqlx::query_with(AssertSqlSafe(text), arguments);
                query.execute(&mut **connection).await?.rows_affected()
            }
            Self::Sqlite(connection) => {
                let (text, arguments) = sqlite_statement(statement, values)?;
                let query = sqlx::query_with(AssertSqlSafe(text), arguments);
                query.execute(&mut **connection).await?.rows_affected()
            }
        })
    }

    /// Returns all rows of a result. Decodes them as they arrive, because the driver's rows are
    /// larger.
    pub(crate) async fn fetch_all<T: FromSqlRow>(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Sql<Vec<T>> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => {
                let (text, arguments) = postgres_statement(statement, values)?;
                let query = sqlx::query_with(AssertSqlSafe(text), arguments);
                let rows = query.fetch(&mut **connection);
                let rows = rows.map(|row| T::from_row(&SqlRow::Postgres(&row?)));
                rows.try_collect().await
            }
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => {
                let (text, arguments) = mysql_statement(statement, values)?;
                let query = sqlx::query_with(AssertSqlSafe(text), arguments);
                let rows = query.fetch(&mut **connection);
                let rows = rows.map(|row| T::from_row(&SqlRow::MySql(&row?)));
                rows.try_collect().await
            }
            Self::Sqlite(connection) => {
                let (text, arguments) = sqlite_statement(statement, values)?;
                let query = sqlx::query_with(AssertSqlSafe(text), arguments);
                let rows = query.fetch(&mut **connection);
                let rows = rows.map(|row| T::from_row(&SqlRow::Sqlite(&row?)));
                rows.try_collect().await
            }
        }
    }

    /// Returns the first row of a result.
    pub(crate) async fn fetch_optional<T: FromSqlRow>(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Sql<Option<T>> {
        let rows = self.fetch_all(statement, values).await?;
        Ok(rows.into_iter().next())
    }

    /// Runs statements one after the other, without preparing them.
    pub(crate) async fn execute_raw(&mut self, statements: &str) -> Sql<()> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => statements.execute(&mut **connection).await.map(drop),
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => statements.execute(&mut **connection).await.map(drop),
            Self::Sqlite(connection) => statements.execute(&mut **connection).await.map(drop),
        }
    }

    pub(crate) const fn dialect(&self) -> Dialect {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Dialect::Postgres,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => Dialect::MySql,
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    /// Returns whether a write transaction excludes all others, so that no row needs a lock.
    pub(crate) const fn has_exclusive_writes(&self) -> bool {
        matches!(self.dialect(), Dialect::Sqlite)
    }
}

/// Translates a statement for PostgreSQL: `$1` for the first `?`, and `= ANY ($1)` for `IN ?`.
#[cfg(feature = "postgres")]
fn postgres_statement(statement: &str, values: &[Value<'_>]) -> Sql<(String, PgArguments)> {
    let statement = statement.replace(" AS SIGNED)", " AS bigint)");
    let add_list =
        |text: &mut String, arguments: &mut PgArguments, index: usize, values: &[i64]| {
            text.truncate(text.trim_end_matches("IN ").len());
            text.push_str(&format!("= ANY (${index})"));
            arguments.add(values).map_err(sqlx::Error::Encode)
        };
    build_statement(&statement, values, |index| format!("${index}"), add_list)
}

/// Translates a statement for MySQL: `IN (?,?)` for a list of two. A list is padded with its last
/// element to a power of two, so that few different statements are prepared.
#[cfg(feature = "mysql")]
fn mysql_statement(statement: &str, values: &[Value<'_>]) -> Sql<(String, MySqlArguments)> {
    let add_list = |text: &mut String, arguments: &mut MySqlArguments, _: usize, values: &[i64]| {
        let length = values.len().next_power_of_two();
        text.push_str(&format!("({})", vec!["?"; length].join(",")));
        let last = values.last().copied().into_iter().cycle();
        let mut values = values.iter().copied().chain(last).take(length);
        values.try_for_each(|value| add_value(arguments, Value::Int(value)))
    };
    build_statement(statement, values, |_| "?".to_owned(), add_list)
}

/// Translates a statement for SQLite: a list becomes one JSON value, and `FOR UPDATE` is removed.
fn sqlite_statement(statement: &str, values: &[Value<'_>]) -> Sql<(String, SqliteArguments)> {
    let statement = statement
        .replace(" AS SIGNED)", " AS INTEGER)")
        .replace(" FOR UPDATE", "");
    let add_list =
        |text: &mut String, arguments: &mut SqliteArguments, _: usize, values: &[i64]| {
            text.push_str("(SELECT value FROM json_each(?))");
            let array = to_json_array(values.iter().copied());
            arguments.add(array).map_err(sqlx::Error::Encode)
        };
    build_statement(&statement, values, |_| "?".to_owned(), add_list)
}

/// Builds a statement of a dialect and its arguments. `placeholder` returns the placeholder of a
/// value by its index, which starts at 1; `add_list` adds a list.
fn build_statement<A: Arguments + Default>(
    statement: &str,
    values: &[Value<'_>],
    placeholder: impl Fn(usize) -> String,
    add_list: impl Fn(&mut String, &mut A, usize, &[i64]) -> Sql<()>,
) -> Sql<(String, A)>
where
    Option<i64>: for<'q> Encode<'q, A::Database> + Type<A::Database>,
    for<'q> Option<&'q str>: Encode<'q, A::Database> + Type<A::Database>,
{
    let mut arguments = A::default();
    let mut text = String::with_capacity(statement.len() + 2 * values.len());
    for (index, part) in split_at_placeholders(statement, values)?.enumerate() {
        match index
            .checked_sub(1)
            .and_then(|previous| values.get(previous))
        {
            Some(Value::Ints(values)) => add_list(&mut text, &mut arguments, index, values)?,
            Some(value) => {
                text.push_str(&placeholder(index));
                add_value(&mut arguments, *value)?;
            }
            None => {}
        }
        text.push_str(part);
    }
    Ok((text, arguments))
}

/// Splits a statement at its placeholders.
fn split_at_placeholders<'a>(
    statement: &'a str,
    values: &[Value<'_>],
) -> Sql<std::str::Split<'a, char>> {
    let parts = statement.split('?');
    if parts.clone().count() == values.len() + 1 {
        return Ok(parts);
    }
    let message = format!(
        "statement has {} placeholders for {} values: {statement}",
        parts.count() - 1,
        values.len()
    );
    Err(sqlx::Error::Encode(message.into()))
}

/// Adds a single value.
fn add_value<A: Arguments>(arguments: &mut A, value: Value<'_>) -> Sql<()>
where
    Option<i64>: for<'q> Encode<'q, A::Database> + Type<A::Database>,
    for<'q> Option<&'q str>: Encode<'q, A::Database> + Type<A::Database>,
{
    let added = match value {
        Value::Int(value) => arguments.add(Some(value)),
        Value::IntOrNull(value) => arguments.add(value),
        Value::Text(value) => arguments.add(Some(value)),
        Value::TextOrNull(value) => arguments.add(value),
        Value::Ints(_) => Err("expected a single value, found a list".into()),
    };
    added.map_err(sqlx::Error::Encode)
}

/// Fails with a timeout error if a call takes longer than `timeout`.
#[cfg(feature = "sql")]
pub(crate) async fn with_timeout<T>(
    timeout: Duration,
    call: impl Future<Output = Sql<T>>,
) -> Sql<T> {
    let outcome = tokio::time::timeout(timeout, call).await;
    outcome.unwrap_or_else(|elapsed| Err(std::io::Error::from(elapsed).into()))
}

/// Sorts and deduplicates values, so that all calls acquire their locks in one order.
pub(crate) fn sort_unique<T: Ord>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.into_iter().collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Converts a limit to a value of a statement.
pub(crate) fn to_sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Formats integers as a JSON array: one parameter for SQLite's `json_each`.
pub(crate) fn to_json_array(numbers: impl Iterator<Item = i64>) -> String {
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

/// The purpose of a connection, which determines its timeouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPurpose {
    /// Short calls.
    Calls,
    /// One call that may take long, such as a dump.
    Dump,
    /// Creating tables, while the schema may be missing.
    Migrate,
}

/// An owned connection to a server. Dropping it closes it, and the server rolls back an open
/// transaction.
#[cfg(feature = "sql")]
#[derive(Debug)]
pub(crate) enum OwnedConnection {
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
    #[cfg(feature = "mysql")]
    MySql(MySqlConnection),
}

#[cfg(feature = "sql")]
impl OwnedConnection {
    pub(crate) const fn borrow(&mut self) -> SqlConnection<'_> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => SqlConnection::Postgres(connection),
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => SqlConnection::MySql(connection),
        }
    }
}

#[cfg(all(test, feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;

    #[test]
    fn translates_statements_for_each_database() {
        let statement =
            "SELECT CAST(a AS SIGNED) FROM t WHERE b = ? AND c IN ? AND d = ? FOR UPDATE";
        let values = [Value::Int(1), Value::Ints(&[1, 2, 3]), Value::Text("x")];
        let (text, arguments) = postgres_statement(statement, &values).expect("a statement");
        assert_eq!(
            text,
            "SELECT CAST(a AS bigint) FROM t WHERE b = $1 AND c = ANY ($2) AND d = $3 FOR UPDATE"
        );
        assert_eq!(arguments.len(), 3);
        let (text, arguments) = mysql_statement(statement, &values).expect("a statement");
        assert_eq!(
            text,
            "SELECT CAST(a AS SIGNED) FROM t WHERE b = ? AND c IN (?,?,?,?) AND d = ? FOR UPDATE"
        );
        assert_eq!(arguments.len(), 6);
        let (text, arguments) = sqlite_statement(statement, &values).expect("a statement");
        assert_eq!(
            text,
            "SELECT CAST(a AS INTEGER) FROM t WHERE b = ? AND c IN (SELECT value FROM json_each(?)) AND d = ?"
        );
        assert_eq!(arguments.len(), 3);
    }
}
