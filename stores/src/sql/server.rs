//! A server and its connection pool.
//!
//! Every call has a client-side deadline in addition to the server's timeouts. A connection returns
//! to the pool only if its call succeeded or was rolled back. After a deadline or a cancelled call,
//! it may still have an open transaction or an unread response. So it is closed, and the server
//! rolls back.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::connection::{ConnectionPurpose, OwnedConnection, Sql, with_timeout};
use super::errors::to_store_error;
#[cfg(feature = "mysql")]
use super::mysql;
use super::pooled_connection::{IdleConnections, PooledConnection, ServerConnection};
#[cfg(feature = "postgres")]
use super::postgres;
use super::{SqlOptions, SqlServer};
use crate::namespace::Namespace;
use crate::retry::RetryPolicy;
use crate::{Error, Result, tls};

/// A server with the schema of an installation.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) options: SqlOptions,
    /// The schema; on MySQL the database.
    pub(crate) schema: String,
    /// Certificates of trusted authorities, as PEM.
    certificates: Option<Vec<u8>>,
    retry_policy: RetryPolicy,
    idle: Arc<IdleConnections>,
    /// Limits the connections that are in use.
    permits: Arc<Semaphore>,
    /// Tables that an app replaced by views of its own.
    pub(crate) views: BTreeSet<String>,
}

/// Connections that were idle for longer are closed, because a firewall or load balancer may have
/// dropped them.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

impl Server {
    /// A server without connections.
    pub(crate) fn new(options: &SqlOptions, namespace: &Namespace) -> Result<Self> {
        tls::install_crypto_provider();
        let from_millis = Duration::from_millis;
        let base = match (options.server, options.database.as_str()) {
            (SqlServer::Postgres, _) | (SqlServer::MySql, "") => "backstitch",
            (SqlServer::MySql, database) => database,
        };
        let schema = namespace.identifier(base);
        let name = format!(
            "{} at {}:{}, schema {schema}",
            options.server.name(),
            options.host(),
            options.port()
        );
        let (attempt_timeout, total_timeout) = (
            from_millis(options.request_timeout_ms),
            from_millis(options.retry_timeout_ms),
        );
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if schema.len() > 63 || !schema.bytes().all(is_allowed) {
            let reason =
                "the schema's name must consist of at most 63 letters, digits, '_' and '-'";
            return Err(Error::broken(format!("using {name}"), reason));
        }
        let connections_max = usize::try_from(options.connections_max.max(1)).unwrap_or(1);
        Ok(Self {
            options: options.clone(),
            schema,
            certificates: tls::read_certificates(&options.ca_file)?,
            retry_policy: RetryPolicy::new(name, attempt_timeout, total_timeout),
            idle: Arc::default(),
            permits: Arc::new(Semaphore::new(connections_max)),
            views: BTreeSet::new(),
        })
    }

    /// The server's name for messages.
    pub(crate) fn name(&self) -> &str {
        self.retry_policy.server()
    }

    /// Converts the error of a call.
    pub(crate) fn classify_error(&self, operation: &str, error: &sqlx::Error) -> Error {
        to_store_error(&self.retry_policy, &self.schema, operation, error)
    }

    /// Acquires an idle connection of the pool, or opens one.
    async fn acquire(&self) -> Sql<ServerConnection> {
        let wait = Duration::from_millis(self.options.acquire_timeout_ms);
        let permit = timeout(wait, Arc::clone(&self.permits).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(sqlx::Error::PoolTimedOut);
        };
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|(_, since)| since.elapsed() < IDLE_TIMEOUT);
            idle.pop()
        };
        let connection = match idle {
            Some((connection, _)) => connection,
            None => self.connect(ConnectionPurpose::Calls).await?,
        };
        Ok(ServerConnection {
            connection,
            idle: Arc::clone(&self.idle),
            _permit: permit,
        })
    }

    /// Opens a connection outside the pool.
    pub(crate) async fn connect(&self, purpose: ConnectionPurpose) -> Sql<OwnedConnection> {
        let connect_timeout = Duration::from_millis(self.options.connect_timeout_ms);
        let connect = async {
            let (options, schema) = (&self.options, self.schema.as_str());
            let trusted = self.certificates.as_deref();
            match options.server {
                #[cfg(feature = "postgres")]
                SqlServer::Postgres => {
                    Box::pin(postgres::connect(options, trusted, schema, purpose))
                        .await
                        .map(OwnedConnection::Postgres)
                }
                #[cfg(feature = "mysql")]
                SqlServer::MySql => Box::pin(mysql::connect(options, trusted, schema, purpose))
                    .await
                    .map(OwnedConnection::MySql),
                // Unreachable: [`crate::StoresOptions::missing_feature`] rejects such settings.
                #[cfg(not(all(feature = "postgres", feature = "mysql")))]
                server => Err(sqlx::Error::Configuration(
                    format!("this build has no client for {}", server.name()).into(),
                )),
            }
        };
        with_timeout(connect_timeout, connect).await
    }

    /// Retries a call until it succeeds, fails for good, or times out. Each call is idempotent, or
    /// recognizes its own commit after a lost response.
    pub(crate) async fn retry<T, F: Future<Output = Sql<T>>>(
        &self,
        operation: &str,
        mut call: impl FnMut() -> F,
    ) -> Result<T> {
        let try_once = || {
            let attempt = call();
            async move {
                attempt
                    .await
                    .map_err(|error| self.classify_error(operation, &error))
            }
        };
        self.retry_policy.retry(operation, try_once).await
    }

    /// See [`super::database::Database::read`].
    pub(crate) async fn read<T, F: Future<Output = (PooledConnection, Sql<T>)>>(
        &self,
        operation: &str,
        call: impl Fn(PooledConnection) -> F,
    ) -> Result<T> {
        self.retry(operation, || async {
            let connection = PooledConnection::Server(self.acquire().await?);
            let (connection, outcome) = call(connection).await;
            // After any error the connection is closed, which is cheap enough because errors are
            // rare.
            let value = outcome?;
            release_connection(connection);
            Ok(value)
        })
        .await
    }

    /// See [`super::database::Database::write`].
    pub(crate) async fn write<T, F: Future<Output = (PooledConnection, Sql<T>)>>(
        &self,
        operation: &str,
        call: impl Fn(PooledConnection) -> F,
    ) -> Result<T> {
        self.retry(operation, || async {
            let mut connection = self.acquire().await?;
            connection.borrow().execute_raw("BEGIN").await?;
            let (mut connection, outcome) = call(PooledConnection::Server(connection)).await;
            match outcome {
                Ok(value) => {
                    connection.borrow().execute_raw("COMMIT").await?;
                    release_connection(connection);
                    Ok(value)
                }
                Err(error) => {
                    let is_usable = matches!(error, sqlx::Error::Database(_));
                    if is_usable && connection.borrow().execute_raw("ROLLBACK").await.is_ok() {
                        release_connection(connection);
                    }
                    Err(error)
                }
            }
        })
        .await
    }
}

fn release_connection(pooled: PooledConnection) {
    if let PooledConnection::Server(connection) = pooled {
        connection.release();
    }
}
