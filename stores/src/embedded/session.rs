//! A connection to a file for one purpose, which its errors name.

use std::sync::Arc;

use futures::TryStreamExt;
use sqlx::sqlite::{Sqlite, SqliteRow};
use sqlx::{Execute, Executor, FromRow, SqliteConnection};

use super::db::{BEGIN_WRITE, Db, FileConnection, Opened};
use crate::{Error, Result};

/// A connection in use. A transaction that is not committed is rolled back when this is dropped.
#[derive(Debug)]
pub(super) struct Session {
    /// What it is used for.
    doing: &'static str,
    file: Arc<Opened>,
    connection: FileConnection,
}

impl Db {
    /// A connection that reads.
    pub(super) async fn read(&self, doing: &'static str) -> Result<Session> {
        let file = self.current().await?;
        let connection = file.reader().await?;
        Ok(Session {
            doing,
            file,
            connection,
        })
    }

    /// A connection that reads in one transaction: it sees one moment of the whole file, however many statements it runs.
    pub(super) async fn snapshot(&self, doing: &'static str) -> Result<Session> {
        let mut session = self.read(doing).await?;
        session.begin("BEGIN").await?;
        Ok(session)
    }

    /// The connection that writes, each statement by itself.
    pub(super) async fn write(&self, doing: &'static str) -> Result<Session> {
        let file = self.current().await?;
        let connection = file.writer().await?;
        Ok(Session {
            doing,
            file,
            connection,
        })
    }

    /// The connection that writes, in a transaction that has the right to write.
    pub(super) async fn change(&self, doing: &'static str) -> Result<Session> {
        let mut session = self.write(doing).await?;
        session.begin(BEGIN_WRITE).await?;
        Ok(session)
    }
}

impl Session {
    async fn begin(&mut self, statement: &'static str) -> Result<()> {
        let begun = self.connection.begin_by(statement).await;
        begun.map_err(|error| self.fault(error))
    }

    pub(super) async fn commit(&mut self) -> Result<()> {
        let committed = self.connection.commit().await;
        committed.map_err(|error| self.fault(error))
    }

    /// Runs a statement. Returns how many rows it changed.
    pub(super) async fn execute<'q>(
        &mut self,
        query: impl Execute<'q, Sqlite> + 'q,
    ) -> Result<u64> {
        match (&mut *self.connection).execute(query).await {
            Ok(done) => Ok(done.rows_affected()),
            Err(error) => Err(self.fault(error)),
        }
    }

    /// The first row, if there is one.
    pub(super) async fn first<'q, T: for<'r> FromRow<'r, SqliteRow>>(
        &mut self,
        query: impl Execute<'q, Sqlite> + 'q,
    ) -> Result<Option<T>> {
        let found = (&mut *self.connection).fetch_optional(query).await;
        let found = found.and_then(|row| row.map(|row| T::from_row(&row)).transpose());
        found.map_err(|error| self.fault(error))
    }

    /// The only row.
    pub(super) async fn one<'q, T: for<'r> FromRow<'r, SqliteRow>>(
        &mut self,
        query: impl Execute<'q, Sqlite> + 'q,
    ) -> Result<T> {
        let found = self.first(query).await?;
        found.ok_or_else(|| self.fault(sqlx::Error::RowNotFound))
    }

    /// All rows.
    pub(super) async fn all<'q, T: for<'r> FromRow<'r, SqliteRow> + Send>(
        &mut self,
        query: impl Execute<'q, Sqlite> + 'q,
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        self.each(query, |row| {
            found.push(T::from_row(row)?);
            Ok(())
        })
        .await?;
        Ok(found)
    }

    /// Calls `take` with every row as it is read.
    pub(super) async fn each<'q>(
        &mut self,
        query: impl Execute<'q, Sqlite> + 'q,
        mut take: impl FnMut(&SqliteRow) -> Result<(), sqlx::Error> + Send,
    ) -> Result<()> {
        let (connection, file) = (&mut *self.connection, &self.file);
        let fault = file.fault(self.doing);
        let mut rows = connection.fetch(query);
        while let Some(row) = rows.try_next().await.map_err(fault)? {
            take(&row).map_err(fault)?;
        }
        Ok(())
    }

    /// Gives the connection back. Returns the file, for errors of what was read.
    pub(super) fn give_back(self) -> Arc<Opened> {
        self.file
    }

    /// The connection, and what makes of the error of a statement one of the ports.
    pub(super) fn split(
        &mut self,
    ) -> (
        &mut SqliteConnection,
        impl Fn(sqlx::Error) -> Error + Copy + '_,
    ) {
        (&mut self.connection, self.file.fault(self.doing))
    }

    /// The error of a statement in the terms of the ports.
    pub(super) fn fault(&self, error: sqlx::Error) -> Error {
        self.file.fault(self.doing)(error)
    }

    /// The error for content that is not what it should be.
    pub(super) fn damaged(&self, what: impl std::fmt::Display) -> Error {
        self.file.damaged(self.doing, what)
    }

    /// An error that a person must look at.
    pub(super) fn broken(&self, why: &str) -> Error {
        self.file.broken(self.doing, why)
    }
}
