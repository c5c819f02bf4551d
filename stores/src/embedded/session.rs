//! A connection for one operation, whose errors contain the name of the operation.

use std::sync::Arc;

use futures::TryStreamExt;
use sqlx::sqlite::{Sqlite, SqliteRow};
use sqlx::{Execute, Executor, FromRow, SqliteConnection};

use super::db::{BEGIN_WRITE, Db, FileConnection, OpenFile};
use crate::{Error, Result};

/// A connection in use. Dropping it rolls back an uncommitted transaction.
#[derive(Debug)]
pub(super) struct Session {
    /// The operation, for error messages.
    operation: &'static str,
    file: Arc<OpenFile>,
    connection: FileConnection,
}

impl Db {
    /// Gets a reading connection.
    pub(super) async fn read(&self, operation: &'static str) -> Result<Session> {
        let file = self.current().await?;
        let connection = file.reader().await?;
        Ok(Session {
            operation,
            file,
            connection,
        })
    }

    /// Gets a reading connection in a transaction: all its statements see the file at one moment.
    pub(super) async fn begin_read(&self, operation: &'static str) -> Result<Session> {
        let mut session = self.read(operation).await?;
        session.begin("BEGIN").await?;
        Ok(session)
    }

    /// Gets the writing connection, without a transaction.
    pub(super) async fn write(&self, operation: &'static str) -> Result<Session> {
        let file = self.current().await?;
        let connection = file.writer().await?;
        Ok(Session {
            operation,
            file,
            connection,
        })
    }

    /// Gets the writing connection in a transaction that holds the write lock.
    pub(super) async fn begin_write(&self, operation: &'static str) -> Result<Session> {
        let mut session = self.write(operation).await?;
        session.begin(BEGIN_WRITE).await?;
        Ok(session)
    }
}

impl Session {
    async fn begin(&mut self, statement: &'static str) -> Result<()> {
        let result = self.connection.begin_with(statement).await;
        result.map_err(|error| self.error_for(error))
    }

    pub(super) async fn commit(&mut self) -> Result<()> {
        let result = self.connection.commit().await;
        result.map_err(|error| self.error_for(error))
    }

    /// Runs a statement, and returns the number of changed rows.
    pub(super) async fn execute<'q>(
        &mut self,
        query: impl Execute<'q, Sqlite> + 'q,
    ) -> Result<u64> {
        match (&mut *self.connection).execute(query).await {
            Ok(result) => Ok(result.rows_affected()),
            Err(error) => Err(self.error_for(error)),
        }
    }

    /// Returns the first row, if there is one.
    pub(super) async fn fetch_first<'q, T: for<'r> FromRow<'r, SqliteRow>>(
        &mut self,
        query: impl Execute<'q, Sqlite> + 'q,
    ) -> Result<Option<T>> {
        let row = (&mut *self.connection).fetch_optional(query).await;
        let row = row.and_then(|row| row.map(|row| T::from_row(&row)).transpose());
        row.map_err(|error| self.error_for(error))
    }

    /// Returns the only row.
    pub(super) async fn fetch_one<'q, T: for<'r> FromRow<'r, SqliteRow>>(
        &mut self,
        query: impl Execute<'q, Sqlite> + 'q,
    ) -> Result<T> {
        let row = self.fetch_first(query).await?;
        row.ok_or_else(|| self.error_for(sqlx::Error::RowNotFound))
    }

    /// Returns all rows.
    pub(super) async fn fetch_all<'q, T: for<'r> FromRow<'r, SqliteRow> + Send>(
        &mut self,
        query: impl Execute<'q, Sqlite> + 'q,
    ) -> Result<Vec<T>> {
        let mut rows = Vec::new();
        self.for_each_row(query, |row| {
            rows.push(T::from_row(row)?);
            Ok(())
        })
        .await?;
        Ok(rows)
    }

    /// Calls `each` with every row as it is read.
    pub(super) async fn for_each_row<'q>(
        &mut self,
        query: impl Execute<'q, Sqlite> + 'q,
        mut each: impl FnMut(&SqliteRow) -> Result<(), sqlx::Error> + Send,
    ) -> Result<()> {
        let (connection, file) = (&mut *self.connection, &self.file);
        let to_error = file.error_mapper(self.operation);
        let mut rows = connection.fetch(query);
        while let Some(row) = rows.try_next().await.map_err(to_error)? {
            each(&row).map_err(to_error)?;
        }
        Ok(())
    }

    /// Releases the connection, and returns the file for errors about the rows that were read.
    pub(super) fn release(self) -> Arc<OpenFile> {
        self.file
    }

    /// Returns the connection, and a function that converts statement errors to errors of the
    /// ports.
    pub(super) fn split(
        &mut self,
    ) -> (
        &mut SqliteConnection,
        impl Fn(sqlx::Error) -> Error + Copy + '_,
    ) {
        (&mut self.connection, self.file.error_mapper(self.operation))
    }

    /// Converts a statement error to an error of the ports.
    pub(super) fn error_for(&self, error: sqlx::Error) -> Error {
        self.file.error_mapper(self.operation)(error)
    }

    /// Error for content that does not decode.
    pub(super) fn damaged(&self, damage: impl std::fmt::Display) -> Error {
        self.file.damaged(self.operation, damage)
    }

    /// Error that requires an operator.
    pub(super) fn broken(&self, reason: &str) -> Error {
        self.file.broken(self.operation, reason)
    }
}
