//! The database of the entity store: a server, or a file in the data folder.
//!
//! The first call connects to a server, so a process that needs no entities works without it.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use sqlx::SqliteConnection;
#[cfg(feature = "sql")]
use tokio::sync::OnceCell;

#[cfg(feature = "sql")]
use super::SqlOptions;
#[cfg(feature = "sql")]
use super::check;
#[cfg(feature = "sql")]
use super::connection::{ConnectionPurpose, OwnedConnection};
use super::connection::{FromSqlRow, Sql, SqlConnection, Value};
use super::pooled_connection::{PooledConnection, sql_call};
#[cfg(feature = "sql")]
use super::server::Server;
use crate::embedded::db::{DatabaseSpec, Db, OpenFile};
#[cfg(feature = "sql")]
use crate::namespace::Namespace;
use crate::{Error, Result};

/// A database. The first call connects to a server.
#[derive(Debug)]
pub(crate) enum Database {
    #[cfg(feature = "sql")]
    Server {
        options: SqlOptions,
        namespace: Namespace,
        opened: OnceCell<Arc<Server>>,
    },
    File(Db),
}

impl Database {
    #[cfg(feature = "sql")]
    pub(crate) fn on_server(options: &SqlOptions, namespace: &Namespace) -> Self {
        Self::Server {
            options: options.clone(),
            namespace: namespace.clone(),
            opened: OnceCell::new(),
        }
    }

    pub(crate) async fn open_file(folder: &Path, spec: &'static DatabaseSpec) -> Result<Self> {
        Ok(Self::File(Db::open(folder, spec).await?))
    }

    /// Opens the database for calls.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not respond; [`Error::Broken`] if it rejects the user, if
    /// the schema has another version than this program, or if the file was replaced.
    pub(crate) async fn open(&self) -> Result<OpenDatabase> {
        match self {
            #[cfg(feature = "sql")]
            Self::Server {
                options,
                namespace,
                opened,
            } => {
                let open = || async { check::open(options, namespace).await.map(Arc::new) };
                let server = opened.get_or_try_init(open).await?;
                Ok(OpenDatabase::Server(Arc::clone(server)))
            }
            Self::File(db) => Ok(OpenDatabase::File(db.current().await?)),
        }
    }

    /// Runs a call that reads. Its statements need not see the same state.
    pub(crate) async fn read<T, F: Future<Output = (PooledConnection, Sql<T>)>>(
        &self,
        operation: &str,
        call: impl Fn(PooledConnection) -> F,
    ) -> Result<T> {
        match self.open().await? {
            #[cfg(feature = "sql")]
            OpenDatabase::Server(server) => Box::pin(server.read(operation, call)).await,
            OpenDatabase::File(db) => {
                let reader = PooledConnection::Reader(db.reader().await?);
                let (_reader, outcome) = call(reader).await;
                outcome.map_err(db.error_mapper(operation))
            }
        }
    }

    /// Reads all rows of a result.
    pub(crate) async fn fetch_all<T: FromSqlRow>(
        &self,
        operation: &str,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<T>> {
        let call = sql_call!(connection => connection.fetch_all(statement, values));
        self.read(operation, call).await
    }

    /// Runs a call that changes rows, in one transaction. Each statement sees all earlier commits,
    /// so it reads the current state of a row that it locks.
    pub(crate) async fn write<T, F: Future<Output = (PooledConnection, Sql<T>)>>(
        &self,
        operation: &str,
        call: impl Fn(PooledConnection) -> F,
    ) -> Result<T> {
        match self.open().await? {
            #[cfg(feature = "sql")]
            OpenDatabase::Server(server) => Box::pin(server.write(operation, call)).await,
            OpenDatabase::File(db) => {
                let to_store_error = db.error_mapper(operation);
                let mut writer = db.writer().await?;
                writer.begin_write().await.map_err(to_store_error)?;
                let (mut connection, outcome) = call(PooledConnection::Writer(writer)).await;
                let value = outcome.map_err(to_store_error)?;
                if let PooledConnection::Writer(writer) = &mut connection {
                    writer.commit().await.map_err(to_store_error)?;
                }
                Ok(value)
            }
        }
    }
}

/// A database that is ready for calls.
#[derive(Debug, Clone)]
pub(crate) enum OpenDatabase {
    #[cfg(feature = "sql")]
    Server(Arc<Server>),
    File(Arc<OpenFile>),
}

impl OpenDatabase {
    /// Returns whether an app replaced a table by a view of its own.
    pub(crate) fn is_view(&self, table: &str) -> bool {
        match self {
            #[cfg(feature = "sql")]
            Self::Server(server) => server.views.contains(table),
            Self::File(_) => {
                let _ = table;
                false
            }
        }
    }

    /// Fails if a table is a view, because apps change the rows of their views themselves.
    pub(crate) fn check_writable(&self, table: &str) -> Result<()> {
        if !self.is_view(table) {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "cannot change {table}: it is a view of an app's own tables; change the rows there, and insert a row into `outbox`"
        )))
    }

    /// Converts the error of a call.
    pub(crate) fn classify_error(&self, operation: &str, error: sqlx::Error) -> Error {
        match self {
            #[cfg(feature = "sql")]
            Self::Server(server) => server.classify_error(operation, &error),
            Self::File(db) => db.error_mapper(operation)(error),
        }
    }

    /// Opens a connection for one call that may take long.
    pub(crate) async fn connect(&self, operation: &str) -> Result<DedicatedConnection> {
        match self {
            #[cfg(feature = "sql")]
            Self::Server(server) => {
                let connect = || server.connect(ConnectionPurpose::Dump);
                let connection = server.retry(operation, connect).await;
                connection.map(DedicatedConnection::Server)
            }
            Self::File(db) => {
                let _ = operation;
                db.read_only().await.map(DedicatedConnection::File)
            }
        }
    }
}

/// A connection outside the pool.
#[derive(Debug)]
pub(crate) enum DedicatedConnection {
    #[cfg(feature = "sql")]
    Server(OwnedConnection),
    File(SqliteConnection),
}

impl DedicatedConnection {
    pub(crate) const fn borrow(&mut self) -> SqlConnection<'_> {
        match self {
            #[cfg(feature = "sql")]
            Self::Server(connection) => connection.borrow(),
            Self::File(connection) => SqlConnection::Sqlite(connection),
        }
    }
}
