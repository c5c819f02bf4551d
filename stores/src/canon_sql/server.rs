//! A server and the connections to it.
//!
//! Every call has a deadline here, besides those that the server was told. A connection goes back to
//! the others only after its call went well, or was taken back: one whose call ended in another way
//! (a deadline, a caller who left) may still hold a transaction or an answer that nobody waits
//! for. It is closed, and the server takes back what was not committed.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::connection::{Link, Own};
use super::fault::fault;
use super::session::Sql;
use super::{SqlOptions, SqlServer};
#[cfg(feature = "mysql")]
use crate::mysql;
use crate::namespace::Namespace;
use crate::patience::Patience;
#[cfg(feature = "postgres")]
use crate::postgres;
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
}

type Idle = Mutex<Vec<(Own, Instant)>>;

/// A connection that was free for longer is closed: something between here and the server may have
/// forgotten it.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A connection while a call has it.
#[derive(Debug)]
pub(crate) struct Taken {
    own: Own,
    idle: Arc<Idle>,
    _place: OwnedSemaphorePermit,
}

impl Taken {
    pub(crate) const fn link(&mut self) -> Link<'_> {
        self.own.link()
    }

    /// Lets others have it. It must hold no transaction.
    pub(crate) fn give_back(self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((self.own, Instant::now()));
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Calls.
    Calls,
    /// One dump, whose rows come for as long as somebody takes them.
    Dump,
    /// Making tables: it is for a time when the schema may not be there.
    Migrate,
}

impl Server {
    /// A server; nothing is asked of it yet.
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

    /// Takes a connection that is free, or makes one.
    pub(crate) async fn take(&self) -> Sql<Taken> {
        let wait = Duration::from_millis(self.options.acquire_timeout_ms);
        let place = timeout(wait, Arc::clone(&self.places).acquire_owned()).await;
        let Ok(Ok(place)) = place else {
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
        Ok(Taken {
            own,
            idle: Arc::clone(&self.idle),
            _place: place,
        })
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self, purpose: Purpose) -> Sql<Own> {
        let wait = Duration::from_millis(self.options.connect_timeout_ms);
        let connecting = async {
            let (options, schema) = (&self.options, self.schema.as_str());
            let trusted = self.certificates.as_deref();
            match options.server {
                #[cfg(feature = "postgres")]
                SqlServer::Postgres => {
                    Box::pin(postgres::connect(options, trusted, schema, purpose))
                        .await
                        .map(Own::Postgres)
                }
                #[cfg(feature = "mysql")]
                SqlServer::MySql => Box::pin(mysql::connect(options, trusted, schema, purpose))
                    .await
                    .map(Own::MySql),
                // [`crate::StoresOptions::missing_feature`] finds this before a connection is needed.
                #[cfg(not(all(feature = "postgres", feature = "mysql")))]
                server => Err(sqlx::Error::Configuration(
                    format!("this build has no client for {}", server.name()).into(),
                )),
            }
        };
        match timeout(wait, connecting).await {
            Ok(done) => done,
            Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        }
    }

    /// Tries a call until it goes through. Each of ours may be repeated: what a try did whose end was
    /// not heard of is found there by the next one.
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

    /// Runs a call that reads, in one statement or in some that need not be of one moment.
    pub(crate) async fn read<T, F: Future<Output = (Taken, Sql<T>)>>(
        &self,
        doing: &str,
        call: impl Fn(Taken) -> F,
    ) -> Result<T> {
        self.tried(doing, || async {
            let (taken, outcome) = call(self.take().await?).await;
            // After any error the connection is closed: a call that is wrong for ever is rare.
            let done = outcome?;
            taken.give_back();
            Ok(done)
        })
        .await
    }

    /// Runs a call that changes rows, in one transaction. It sees what was committed before each of
    /// its statements, so that what it locked is what it reads.
    pub(crate) async fn write<T, F: Future<Output = (Taken, Sql<T>)>>(
        &self,
        doing: &str,
        call: impl Fn(Taken) -> F,
    ) -> Result<T> {
        self.tried(doing, || async {
            let mut taken = self.take().await?;
            taken.link().raw("BEGIN").await?;
            let (mut taken, outcome) = call(taken).await;
            match outcome {
                Ok(done) => {
                    taken.link().raw("COMMIT").await?;
                    taken.give_back();
                    Ok(done)
                }
                Err(error) => {
                    let serves = matches!(error, sqlx::Error::Database(_));
                    if serves && taken.link().raw("ROLLBACK").await.is_ok() {
                        taken.give_back();
                    }
                    Err(error)
                }
            }
        })
        .await
    }
}

/// What is to be done with a connection: `on!(link => call(link, …))`. The call takes the connection
/// and brings it back.
macro_rules! on {
    ($link:ident => $call:expr) => {
        |mut taken: $crate::canon_sql::server::Taken| async move {
            let done = {
                let $link = &mut taken.link();
                $call.await
            };
            (taken, done)
        }
    };
}

pub(crate) use on;
