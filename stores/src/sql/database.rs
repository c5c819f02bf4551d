//! The database of the entity store: a server, or a file in the data folder.
//!
//! A server is connected when the first call needs it, so a process that needs no entities works without it.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use sqlx::SqliteConnection;
#[cfg(feature = "sql")]
use tokio::sync::OnceCell;

#[cfg(feature = "sql")]
use super::SqlOptions;
#[cfg(feature = "sql")]
use super::connection::OwnedConnection;
use super::connection::{FromSqlRow, Sql, SqlConnection, Value};
#[cfg(feature = "sql")]
use super::server::{Server, ServerConnection};
use crate::embedded::db::{Db, Kind, Opened, Reader, Writer};
#[cfg(feature = "sql")]
use crate::namespace::Namespace;
use crate::{Error, Result};

/// A call on a connection: `sql_call!(connection => call(connection, …))`. The closure takes the pooled connection and returns
/// it with the outcome.
macro_rules! sql_call {
    ($connection:ident => $call:expr) => {
        |mut pooled: $crate::sql::database::PooledConnection| async move {
            let outcome = {
                let $connection = &mut pooled.borrow();
                $call.await
            };
            (pooled, outcome)
        }
    };
}

pub(crate) use sql_call;

/// A database. A server is connected by the first call that needs it.
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

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Short calls.
    Calls,
    /// One call that may take long, such as a dump.
    Dump,
    /// Creating tables, at a time when the schema may be missing.
    Migrate,
}

impl Database {
    #[cfg(feature = "sql")]
    pub(crate) fn server(options: &SqlOptions, namespace: &Namespace) -> Self {
        Self::Server {
            options: options.clone(),
            namespace: namespace.clone(),
            opened: OnceCell::new(),
        }
    }

    pub(crate) async fn file(folder: &Path, kind: &'static Kind) -> Result<Self> {
        Ok(Self::File(Db::open(folder, kind).await?))
    }

    /// The database, ready for calls.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not answer; [`Error::Broken`] if it refuses the user, if the schema is not the one of
    /// this version, or if the file was replaced.
    pub(crate) async fn open(&self) -> Result<OpenDatabase> {
        match self {
            #[cfg(feature = "sql")]
            Self::Server {
                options,
                namespace,
                opened,
            } => {
                let open = || async { Server::open(options, namespace).await.map(Arc::new) };
                let server = opened.get_or_try_init(open).await?;
                Ok(OpenDatabase::Server(Arc::clone(server)))
            }
            Self::File(db) => Ok(OpenDatabase::File(db.current().await?)),
        }
    }

    /// Runs a call that reads, by one statement or by several that need not see one state.
    pub(crate) async fn read<T, F: Future<Output = (PooledConnection, Sql<T>)>>(
        &self,
        doing: &str,
        call: impl Fn(PooledConnection) -> F,
    ) -> Result<T> {
        match self.open().await? {
            #[cfg(feature = "sql")]
            OpenDatabase::Server(server) => Box::pin(server.read(doing, call)).await,
            OpenDatabase::File(db) => {
                let reader = PooledConnection::Reader(db.reader().await?);
                let (_reader, outcome) = call(reader).await;
                outcome.map_err(db.fault(doing))
            }
        }
    }

    /// Reads all rows that a statement finds.
    pub(crate) async fn rows<T: FromSqlRow>(
        &self,
        doing: &str,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<T>> {
        let call = sql_call!(connection => connection.rows(statement, values));
        self.read(doing, call).await
    }

    /// Runs a call that changes rows, in one transaction. Each statement sees what was committed before it, so a row is
    /// read as it was when it was locked.
    pub(crate) async fn write<T, F: Future<Output = (PooledConnection, Sql<T>)>>(
        &self,
        doing: &str,
        call: impl Fn(PooledConnection) -> F,
    ) -> Result<T> {
        match self.open().await? {
            #[cfg(feature = "sql")]
            OpenDatabase::Server(server) => Box::pin(server.write(doing, call)).await,
            OpenDatabase::File(db) => {
                let fault = db.fault(doing);
                let mut writer = db.writer().await?;
                writer.begin_write().await.map_err(fault)?;
                let (mut connection, outcome) = call(PooledConnection::Writer(writer)).await;
                let done = outcome.map_err(fault)?;
                if let PooledConnection::Writer(writer) = &mut connection {
                    writer.commit().await.map_err(fault)?;
                }
                Ok(done)
            }
        }
    }
}

/// A database that is ready for calls.
#[derive(Debug, Clone)]
pub(crate) enum OpenDatabase {
    #[cfg(feature = "sql")]
    Server(Arc<Server>),
    File(Arc<Opened>),
}

impl OpenDatabase {
    /// Whether a view of an application's own tables takes the place of a table.
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

    /// Refuses to change the rows of an application's own tables.
    pub(crate) fn check_writable(&self, table: &str) -> Result<()> {
        if !self.is_view(table) {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "cannot change {table}: it is a view of an app's own tables; change the rows there, and insert a row into `outbox`"
        )))
    }

    /// The error of a call.
    pub(crate) fn fault(&self, doing: &str, error: sqlx::Error) -> Error {
        match self {
            #[cfg(feature = "sql")]
            Self::Server(server) => server.fault(doing, &error),
            Self::File(db) => db.fault(doing)(error),
        }
    }

    /// A connection for one call that may take long.
    pub(crate) async fn connect(&self, doing: &str) -> Result<DedicatedConnection> {
        match self {
            #[cfg(feature = "sql")]
            Self::Server(server) => {
                let connecting = || server.connect(Purpose::Dump);
                let connected = server.tried(doing, connecting).await;
                connected.map(DedicatedConnection::Server)
            }
            Self::File(db) => {
                let _ = doing;
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

/// A pooled connection while a call uses it.
#[derive(Debug)]
pub(crate) enum PooledConnection {
    #[cfg(feature = "sql")]
    Server(ServerConnection),
    Reader(Reader),
    Writer(Writer),
}

impl PooledConnection {
    pub(crate) fn borrow(&mut self) -> SqlConnection<'_> {
        let connection: &mut SqliteConnection = match self {
            #[cfg(feature = "sql")]
            Self::Server(connection) => return connection.borrow(),
            Self::Reader(connection) => connection,
            Self::Writer(connection) => connection,
        };
        SqlConnection::Sqlite(connection)
    }
}
