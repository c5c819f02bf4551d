//! A pooled connection while a call uses it, to a server or to a file in the data folder.

#[cfg(feature = "sql")]
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::SqliteConnection;
#[cfg(feature = "sql")]
use tokio::sync::OwnedSemaphorePermit;
#[cfg(feature = "sql")]
use tokio::time::Instant;

#[cfg(feature = "sql")]
use super::connection::OwnedConnection;
use super::connection::SqlConnection;
use crate::embedded::db::{Reader, Writer};

/// A call on a connection: `sql_call!(connection => call(connection, …))`. The closure takes the
/// pooled connection and returns it with the outcome.
macro_rules! sql_call {
    ($connection:ident => $call:expr) => {
        |mut pooled: $crate::sql::pooled_connection::PooledConnection| async move {
            let outcome = {
                let $connection = &mut pooled.borrow();
                $call.await
            };
            (pooled, outcome)
        }
    };
}

pub(crate) use sql_call;

/// Idle connections, and since when they are idle.
#[cfg(feature = "sql")]
pub(super) type IdleConnections = Mutex<Vec<(OwnedConnection, Instant)>>;

/// A pooled connection to a server while a call uses it.
#[cfg(feature = "sql")]
#[derive(Debug)]
pub(crate) struct ServerConnection {
    pub(super) connection: OwnedConnection,
    pub(super) idle: Arc<IdleConnections>,
    pub(super) _permit: OwnedSemaphorePermit,
}

#[cfg(feature = "sql")]
impl ServerConnection {
    pub(crate) const fn borrow(&mut self) -> SqlConnection<'_> {
        self.connection.borrow()
    }

    /// Returns the connection to the pool. It must have no open transaction.
    pub(super) fn release(self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((self.connection, Instant::now()));
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
