//! Writes rows to each database.

#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlArguments;
use sqlx::sqlite::SqliteArguments;

use super::connection::{Dialect, Sql, SqlConnection};
#[cfg(feature = "postgres")]
use super::postgres;
use super::rows::{Conflict, TableRows};

pub(crate) async fn write(
    connection: &mut SqlConnection<'_>,
    rows: &TableRows,
    conflict: Conflict,
) -> Sql<()> {
    if rows.count == 0 {
        return Ok(());
    }
    match connection {
        #[cfg(feature = "postgres")]
        SqlConnection::Postgres(connection) => postgres::write(connection, rows, conflict).await,
        #[cfg(feature = "mysql")]
        SqlConnection::MySql(connection) => {
            for insert in rows.insert_statements(Dialect::MySql, conflict) {
                let arguments = insert.arguments::<MySqlArguments>()?;
                let query = sqlx::query_with(insert.statement(), arguments);
                query.execute(&mut **connection).await?;
            }
            Ok(())
        }
        SqlConnection::Sqlite(connection) => {
            for insert in rows.insert_statements(Dialect::Sqlite, conflict) {
                let arguments = insert.arguments::<SqliteArguments>()?;
                let query = sqlx::query_with(insert.statement(), arguments);
                query.execute(&mut **connection).await?;
            }
            Ok(())
        }
    }
}
