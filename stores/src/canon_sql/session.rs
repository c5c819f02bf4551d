//! Statements that every database understands.
//!
//! A statement has `?` for each value; a value that is a list of numbers stands after `IN`. Statements
//! that differ between servers are in `crate::postgres` and `crate::mysql`.

use std::error::Error as StdError;

use sqlx::FromRow;
#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlRow;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;

pub(crate) type Sql<T> = Result<T, sqlx::Error>;

/// The error of a stored value that cannot be decoded.
pub(crate) fn undecodable(why: impl Into<Box<dyn StdError + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::Decode(why.into())
}

/// A value of a statement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    Int(i64),
    IntOrNull(Option<i64>),
    Text(&'a str),
    TextOrNull(Option<&'a str>),
    /// Not empty, and few enough for one statement.
    Ints(&'a [i64]),
}

/// Rows of every database that is built in.
pub(crate) trait Fetched:
    FromPostgres + FromMySql + for<'r> FromRow<'r, SqliteRow> + Send + Unpin
{
}

impl<T> Fetched for T where
    T: FromPostgres + FromMySql + for<'r> FromRow<'r, SqliteRow> + Send + Unpin
{
}

/// Rows of PostgreSQL; every type if PostgreSQL is not built in.
#[cfg(feature = "postgres")]
pub(crate) trait FromPostgres: for<'r> FromRow<'r, PgRow> {}
#[cfg(feature = "postgres")]
impl<T: for<'r> FromRow<'r, PgRow>> FromPostgres for T {}
#[cfg(not(feature = "postgres"))]
pub(crate) trait FromPostgres {}
#[cfg(not(feature = "postgres"))]
impl<T> FromPostgres for T {}

/// Rows of MySQL; every type if MySQL is not built in.
#[cfg(feature = "mysql")]
pub(crate) trait FromMySql: for<'r> FromRow<'r, MySqlRow> {}
#[cfg(feature = "mysql")]
impl<T: for<'r> FromRow<'r, MySqlRow>> FromMySql for T {}
#[cfg(not(feature = "mysql"))]
pub(crate) trait FromMySql {}
#[cfg(not(feature = "mysql"))]
impl<T> FromMySql for T {}

/// What runs statements that all databases understand, within one transaction.
pub(crate) trait Statements: Send {
    /// Runs a statement; answers how many rows it changed.
    fn run(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Sql<u64>> + Send;

    /// All rows that a statement finds.
    fn rows<T: Fetched>(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Sql<Vec<T>>> + Send;

    /// Holds the counter of an application until the commit.
    fn hold(&mut self, application: i64) -> impl Future<Output = Sql<()>> + Send;
}
