//! A server and the connections to it.
//!
//! Every call has a deadline here, besides those that the server was told. A connection goes back to
//! the others only after its call went well, or was taken back: one whose call ended in another way
//! (a deadline, a caller who left) may still hold a transaction or an answer that nobody waits
//! for. It is closed, and the server takes back what was not committed.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::check;
use super::connection::{OwnedConnection, Sql, SqlConnection, in_time};
use super::database::{PooledConnection, Purpose};
use super::fault::fault;
#[cfg(feature = "mysql")]
use super::mysql;
#[cfg(feature = "postgres")]
use super::postgres;
use super::{SqlOptions, SqlServer};
use crate::namespace::Namespace;
use crate::patience::Patience;
use crate::{Error, Result, tls};

/// A server with the schema of an installation.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) options: SqlOptions,
    /// The schema; on MySQL the database.
    pub(crate) schema: String,
    /// Of authorities that are trusted, as PEM.
    certificates: Option<Vec<u8>>,
    patience: Patience,
    /// Free connections, and since when they are.
    idle: Arc<Idle>,
    places: Arc<Semaphore>,
    /// Names that are views of an application's own tables.
    pub(crate) views: BTreeSet<String>,
}

type Idle = Mutex<Vec<(OwnedConnection, Instant)>>;

/// A connection that was free for longer is closed: something between here and the server may have
/// forgotten it.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A pooled connection to a server while a call uses it.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    own: OwnedConnection,
    idle: Arc<Idle>,
    _permit: OwnedSemaphorePermit,
}

impl ServerConnection {
    pub(crate) const fn borrow(&mut self) -> SqlConnection<'_> {
        self.own.borrow()
    }

    /// Returns the connection to the pool. It must have no open transaction.
    fn give_back(self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((self.own, Instant::now()));
    }
}

impl Server {
    /// A server whose schema is of this version.
    pub(crate) async fn open(options: &SqlOptions, namespace: &Namespace) -> Result<Self> {
        let mut server = Self::new(options, namespace)?;
        server.views = check::opened(&server).await?;
        Ok(server)
    }

    /// A server to which no connection was made yet.
    pub(crate) fn new(options: &SqlOptions, namespace: &Namespace) -> Result<Self> {
        tls::prepare();
        let millis = Duration::from_millis;
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
        let (once, all) = (
            millis(options.request_timeout_ms),
            millis(options.retry_timeout_ms),
        );
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if schema.len() > 63 || !schema.bytes().all(plain) {
            let why = "a name of at most 63 letters, digits, '_' and '-' is expected";
            return Err(Error::broken(format!("using {name}"), why));
        }
        let places = usize::try_from(options.connections_max.max(1)).unwrap_or(1);
        Ok(Self {
            options: options.clone(),
            schema,
            certificates: tls::certificates(&options.ca_file)?,
            patience: Patience::new(name, once, all),
            idle: Arc::default(),
            places: Arc::new(Semaphore::new(places)),
            views: BTreeSet::new(),
        })
    }

    /// The server as people know it.
    pub(crate) fn name(&self) -> &str {
        self.patience.server()
    }

    /// The error of a call.
    pub(crate) fn fault(&self, doing: &str, error: &sqlx::Error) -> Error {
        fault(&self.patience, &self.schema, doing, error)
    }

    /// A free connection of the pool, or a new one.
    async fn take(&self) -> Sql<ServerConnection> {
        let wait = Duration::from_millis(self.options.acquire_timeout_ms);
        let permit = timeout(wait, Arc::clone(&self.places).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(sqlx::Error::PoolTimedOut);
        };
        let free = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|(_, since)| since.elapsed() < IDLE_MAX);
            idle.pop()
        };
        let own = match free {
            Some((own, _)) => own,
            None => self.connect(Purpose::Calls).await?,
        };
        Ok(ServerConnection {
            own,
            idle: Arc::clone(&self.idle),
            _permit: permit,
        })
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self, purpose: Purpose) -> Sql<OwnedConnection> {
        let wait = Duration::from_millis(self.options.connect_timeout_ms);
        let connecting = async {
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
                // [`crate::StoresOptions::missing_feature`] finds this before a connection is needed.
                #[cfg(not(all(feature = "postgres", feature = "mysql")))]
                server => Err(sqlx::Error::Configuration(
                    format!("this build has no client for {}", server.name()).into(),
                )),
            }
        };
        in_time(wait, connecting).await
    }

    /// Repeats a call until it succeeds or its time is over. Each call is idempotent, or recognizes its own commit after a lost
    /// answer.
    pub(crate) async fn tried<T, F: Future<Output = Sql<T>>>(
        &self,
        doing: &str,
        mut call: impl FnMut() -> F,
    ) -> Result<T> {
        let once = || {
            let trying = call();
            async move { trying.await.map_err(|error| self.fault(doing, &error)) }
        };
        self.patience.repeated(doing, once).await
    }

    /// See [`super::database::Database::read`].
    pub(crate) async fn read<T, F: Future<Output = (PooledConnection, Sql<T>)>>(
        &self,
        doing: &str,
        call: impl Fn(PooledConnection) -> F,
    ) -> Result<T> {
        self.tried(doing, || async {
            let taken = PooledConnection::Server(self.take().await?);
            let (pooled, outcome) = call(taken).await;
            // After any error the connection is closed: a call that always fails is rare.
            let done = outcome?;
            give_back(pooled);
            Ok(done)
        })
        .await
    }

    /// See [`super::database::Database::write`].
    pub(crate) async fn write<T, F: Future<Output = (PooledConnection, Sql<T>)>>(
        &self,
        doing: &str,
        call: impl Fn(PooledConnection) -> F,
    ) -> Result<T> {
        self.tried(doing, || async {
            let mut taken = self.take().await?;
            taken.borrow().raw("BEGIN").await?;
            let (mut pooled, outcome) = call(PooledConnection::Server(taken)).await;
            match outcome {
                Ok(done) => {
                    pooled.borrow().raw("COMMIT").await?;
                    give_back(pooled);
                    Ok(done)
                }
                Err(error) => {
                    let serves = matches!(error, sqlx::Error::Database(_));
                    if serves && pooled.borrow().raw("ROLLBACK").await.is_ok() {
                        give_back(pooled);
                    }
                    Err(error)
                }
            }
        })
        .await
    }
}

fn give_back(pooled: PooledConnection) {
    if let PooledConnection::Server(connection) = pooled {
        connection.give_back();
    }
}
