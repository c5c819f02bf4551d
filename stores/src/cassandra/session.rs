//! The session with the cluster: statements with deadlines, tried again where that is safe, and what
//! the driver's errors mean to a caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt, stream};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{
    DbError, ExecutionError, NewSessionError, PrepareError, RequestAttemptError, UseKeyspaceError,
};
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::response::query_result::{QueryResult, QueryRowsResult};
use scylla::response::{PagingState, PagingStateResponse};
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency, Statement};
use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::CassandraOptions;
use super::consistency::wrong;
use super::flight::{Flight, RequestOutcome};
use super::keyspace_flaws;
use crate::patience::Patience;
use crate::shared::Shared;
use crate::{Error, ErrorKind, Result, tls};

/// Statements that are kept prepared: more than the tables of all views need.
const PREPARED_MAX: usize = 1024;
/// Rows in a page.
pub(super) const PAGE_ROWS: i32 = 2_000;
/// What follows a request of the driver that is too slow is told by the driver, not by us.
const SLACK: Duration = Duration::from_secs(1);

/// What became of a lightweight transaction.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It was applied.
    Applied,
    /// Its condition did not hold.
    NotApplied(QueryRowsResult),
    /// Nobody knows: it may be applied, also later, until a serial read of the partition.
    Unknown(Error),
}

impl Outcome {
    /// Whether it was applied.
    pub(super) fn applied(self) -> Result<bool> {
        match self {
            Self::Applied => Ok(true),
            Self::NotApplied(_) => Ok(false),
            Self::Unknown(error) => Err(error),
        }
    }
}

/// A session that opens with the first request. If that fails, the next request tries again.
#[derive(Debug)]
pub(super) struct Cql {
    options: CassandraOptions,
    /// The keyspace to use, which is checked when the session opens.
    keyspace: Option<String>,
    patience: Patience,
    flight: Flight,
    opened: OnceCell<Arc<Opened>>,
}

/// An open session.
#[derive(Debug)]
pub(super) struct Opened {
    session: Shared<Session>,
    prepared: Shared<Mutex<HashMap<String, PreparedStatement>>>,
}

/// A call of the driver. Its type is forgotten, since whether it may go to another thread would be proven anew, through
/// all of the driver, for each of the many functions that wait for one.
type Call<'a, T, E = ExecutionError> = BoxFuture<'a, Result<T, E>>;

impl Cql {
    /// What it is called in messages, with its address.
    pub(super) fn server(&self) -> &str {
        self.patience.server()
    }

    pub(super) fn new(options: &CassandraOptions, keyspace: Option<String>) -> Self {
        let millis = Duration::from_millis;
        let request = millis(options.request_timeout_ms.max(1));
        let all = request.max(millis(options.retry_timeout_ms));
        let server = format!("Cassandra at {}", options.nodes);
        Self {
            options: options.clone(),
            keyspace,
            patience: Patience::new(server, request + SLACK, all + SLACK),
            flight: Flight::new(options.in_flight_max),
            opened: OnceCell::new(),
        }
    }

    /// The session, which is opened if it is not.
    pub(super) async fn opened(&self) -> Result<&Arc<Opened>> {
        self.opened.get_or_try_init(|| self.open()).await
    }

    /// Opens a session. The check of the keyspace needs one, so this function is recursive.
    fn open(&self) -> BoxFuture<'_, Result<Arc<Opened>>> {
        Box::pin(async move {
            let Some(keyspace) = &self.keyspace else {
                return self.connect().await.map(Arc::new);
            };
            let unchecked = Self::new(&self.options, None);
            let flaws = keyspace_flaws(&unchecked, keyspace).await?;
            match flaws.into_iter().next() {
                None => Ok(Arc::clone(unchecked.opened().await?)),
                Some(why) => Err(Error::broken(self.server(), why)),
            }
        })
    }

    async fn connect(&self) -> Result<Opened> {
        let (options, patience) = (&self.options, &self.patience);
        let millis = Duration::from_millis;
        let request = millis(options.request_timeout_ms.max(1));
        let connect = millis(options.connect_timeout_ms.max(1));
        let (consistency, agreement) = (options.read_consistency()?, options.agreement()?);
        if options.node_list().next().is_none() {
            return Err(wrong("no node is named; give `nodes` as HOST:PORT"));
        }
        let mut balancing = DefaultPolicy::builder().token_aware(true);
        if !options.local_datacenter.is_empty() {
            balancing = balancing.prefer_datacenter(options.local_datacenter.clone());
        }
        let profile = ExecutionProfile::builder()
            .request_timeout(Some(request))
            .consistency(consistency)
            .serial_consistency(Some(agreement))
            .load_balancing_policy(balancing.build())
            .build();
        let mut builder = SessionBuilder::new()
            .known_nodes(options.node_list())
            .connection_timeout(connect)
            .hostname_resolution_timeout(Some(connect))
            .metadata_request_clientside_timeout(request + SLACK)
            .schema_agreement_timeout(request)
            // How keyspaces are replicated is needed to ask the right nodes, their tables are not.
            .fetch_full_schema_metadata(false)
            .metadata_request_serverside_timeout(request)
            .default_execution_profile_handle(profile.into_handle());
        if !options.user.is_empty() {
            builder = builder.user(&options.user, options.password.reveal());
        }
        if options.tls {
            builder = builder.tls_context(Some(tls_config(options)?));
        }
        let doing = "connecting";
        let building: Call<'_, _, _> = Box::pin(builder.build());
        let session = tokio::time::timeout(connect + request + SLACK, building).await;
        let session = session
            .map_err(|_| patience.unavailable(doing, "no answer in time"))?
            .map_err(|error| no_session(patience, doing, &error))?;
        Ok(Opened {
            session: Shared::new(session),
            prepared: Shared::new(Mutex::new(HashMap::new())),
        })
    }

    pub(super) async fn session(&self) -> Result<&Session> {
        Ok(&self.opened().await?.session)
    }

    pub(super) const fn patience(&self) -> &Patience {
        &self.patience
    }

    pub(super) fn consistency(&self) -> Result<Consistency> {
        self.options.read_consistency()
    }

    /// Uses a keyspace; false if it is not there.
    pub(super) async fn use_keyspace(&self, keyspace: &str) -> Result<bool> {
        let doing = "looking for the keyspace";
        let found = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?";
        let found = self.read(doing, found, (keyspace,)).await?;
        if found.rows_num() == 0 {
            return Ok(false);
        }
        let session = self.session().await?;
        self.patience
            .repeated(doing, || async {
                let used: Call<'_, _, _> = Box::pin(session.use_keyspace(keyspace, false));
                used.await.map_err(|error| match error {
                    UseKeyspaceError::RequestTimeout(_) => self.patience.unavailable(doing, &error),
                    // It was found just now: the node is still making it.
                    UseKeyspaceError::RequestError(
                        error @ RequestAttemptError::DbError(DbError::Invalid, _),
                    ) => self.patience.unavailable(doing, &error),
                    UseKeyspaceError::RequestError(error) => self.fault_of(doing, &error),
                    error => self.broken(doing, &error),
                })
            })
            .await?;
        Ok(true)
    }

    /// Makes, changes or drops something of the schema, which may be done again, and waits until all
    /// nodes have it.
    pub(super) async fn define(&self, doing: &str, text: &str) -> Result<()> {
        let session = self.session().await?;
        self.patience
            .repeated(doing, || async {
                let mut statement = Statement::new(text);
                statement.set_is_idempotent(true);
                let done: Call<'_, _> = Box::pin(session.query_unpaged(statement, ()));
                done.await
                    .map(drop)
                    .map_err(|error| self.fault(doing, &error))
            })
            .await
    }

    pub(super) async fn prepare(&self, doing: &str, text: &str) -> Result<PreparedStatement> {
        let opened = self.opened().await?;
        if let Some(prepared) = opened.known().get(text) {
            return Ok(prepared.clone());
        }
        let mut prepared = self
            .patience
            .repeated(doing, || async {
                let prepared: Call<'_, _, _> = Box::pin(opened.session.prepare(text));
                prepared
                    .await
                    .map_err(|error| self.unprepared(doing, &error))
            })
            .await?;
        prepared.set_is_idempotent(true);
        prepared.set_page_size(PAGE_ROWS);
        let mut known = opened.known();
        if known.len() >= PREPARED_MAX {
            known.clear();
        }
        known.insert(text.to_owned(), prepared.clone());
        Ok(prepared)
    }

    /// One answer that fits in a page.
    pub(super) async fn read(
        &self,
        doing: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<QueryRowsResult> {
        let statement = self.prepare(doing, text).await?;
        let (page, _) = self
            .page(doing, &statement, &values, PagingState::start())
            .await?;
        Ok(page)
    }

    /// Prepares a read of a partition that lightweight transactions change: the server first decides those whose
    /// outcome is open.
    pub(super) async fn prepare_serial(
        &self,
        doing: &str,
        text: &str,
    ) -> Result<PreparedStatement> {
        let mut statement = self.prepare(doing, text).await?;
        statement.set_consistency(match self.options.agreement()? {
            SerialConsistency::Serial => Consistency::Serial,
            SerialConsistency::LocalSerial => Consistency::LocalSerial,
        });
        Ok(statement)
    }

    /// A page of an answer, and where the next one begins.
    pub(super) async fn page(
        &self,
        doing: &str,
        statement: &PreparedStatement,
        values: &(impl SerializeRow + Sync),
        from: PagingState,
    ) -> Result<(QueryRowsResult, Option<PagingState>)> {
        let session = self.session().await?;
        let (result, next) = self
            .patience
            .repeated_in_turn(
                doing,
                || self.turn(doing),
                |turn| {
                    let from = from.clone();
                    let page = session.execute_single_page(statement, values, from);
                    self.flown(doing, Some(turn), Box::pin(page))
                },
            )
            .await?;
        let rows = result
            .into_rows_result()
            .map_err(|error| self.broken(doing, &error))?;
        let next = match next {
            PagingStateResponse::HasMorePages { state } => Some(state),
            PagingStateResponse::NoMorePages => None,
        };
        Ok((rows, next))
    }

    /// Writes of one partition, all by the same statement, in one step.
    pub(super) async fn write<V: SerializeRow + Sync>(
        &self,
        doing: &str,
        statement: &PreparedStatement,
        values: &[V],
    ) -> Result<()> {
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_is_idempotent(true);
        for _ in values {
            batch.append_statement(statement.clone());
        }
        let batch = Arc::new(batch);
        let session = self.session().await?;
        self.patience
            .repeated_in_turn(
                doing,
                || self.turn(doing),
                |turn| self.flown(doing, Some(turn), Box::pin(session.batch(&batch, values))),
            )
            .await
            .map(drop)
    }

    /// Writes one row.
    pub(super) async fn write_one(
        &self,
        doing: &str,
        text: &str,
        values: impl SerializeRow + Sync,
    ) -> Result<()> {
        let statement = self.prepare(doing, text).await?;
        self.write(doing, &statement, &[values]).await
    }

    /// Tries a lightweight transaction until its outcome is known, so it must be one that may be repeated. Returns whether
    /// the last try was applied.
    pub(super) async fn agree_again(
        &self,
        doing: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<bool> {
        let tries = || async { self.agree(doing, text, &values).await?.applied() };
        self.patience.repeated_steps(doing, tries).await
    }

    /// Tries a lightweight transaction once.
    pub(super) async fn agree(
        &self,
        doing: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<Outcome> {
        let turn = self.turn(doing).await?;
        self.agree_in_turn(doing, Some(turn), (text, values)).await
    }

    /// Tries a lightweight transaction once, before all requests that wait for their turn: a lease must not end because of
    /// those.
    pub(super) async fn agree_at_once(
        &self,
        doing: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<Outcome> {
        self.agree_in_turn(doing, None, (text, values)).await
    }

    async fn agree_in_turn(
        &self,
        doing: &str,
        turn: Option<OwnedSemaphorePermit>,
        (text, values): (&str, impl SerializeRow + Send + Sync),
    ) -> Result<Outcome> {
        let mut statement = self.prepare(doing, text).await?;
        statement.set_is_idempotent(false);
        let session = self.session().await?;
        let tried = self.patience.once(doing, async {
            let tried = session.execute_unpaged(&statement, &values);
            self.flown(doing, turn, Box::pin(tried)).await
        });
        self.outcome(doing, tried.await)
    }

    /// Tries a lightweight transaction of several statements once.
    pub(super) async fn agree_all(
        &self,
        doing: &str,
        statements: Vec<PreparedStatement>,
        values: impl scylla::serialize::batch::BatchValues + Send + Sync,
    ) -> Result<Outcome> {
        let mut batch = Batch::new(BatchType::Unlogged);
        for statement in statements {
            batch.append_statement(statement);
        }
        let session = self.session().await?;
        let turn = self.turn(doing).await?;
        let tried = self.patience.once(doing, async {
            let tried = session.batch(&batch, values);
            self.flown(doing, Some(turn), Box::pin(tried)).await
        });
        self.outcome(doing, tried.await)
    }

    fn outcome(&self, doing: &str, tried: Result<QueryResult>) -> Result<Outcome> {
        let result = match tried {
            Ok(result) => result,
            Err(error) if error.kind() == ErrorKind::Retry => return Ok(Outcome::Unknown(error)),
            Err(error) => return Err(error),
        };
        let rows = result
            .into_rows_result()
            .map_err(|error| self.broken(doing, &error))?;
        let applied = column(&rows, "[applied]").and_then(|index| flag(&rows, index));
        match applied {
            Some(true) => Ok(Outcome::Applied),
            Some(false) => Ok(Outcome::NotApplied(rows)),
            None => Err(self.broken(doing, "the server does not say whether it was applied")),
        }
    }

    /// Waits until one more request may be under way. That is our own limit: the wait is no part of a request's time.
    async fn turn(&self, doing: &str) -> Result<OwnedSemaphorePermit> {
        let silent_for = self.patience.call_for();
        self.flight.take(silent_for).await.ok_or_else(|| {
            let (limit, seconds) = (self.flight.limit(), silent_for.as_secs_f64());
            let why = format!(
                "{limit} requests may be under way at once, and none was answered for {seconds:.1} s"
            );
            self.patience.unavailable(doing, why)
        })
    }

    async fn flown<T>(
        &self,
        doing: &str,
        turn: Option<OwnedSemaphorePermit>,
        call: Call<'_, T>,
    ) -> Result<T> {
        let done = call.await;
        let outcome = done
            .as_ref()
            .map_or_else(outcome_of, |_| RequestOutcome::Answered);
        self.flight.give_back(turn, outcome);
        done.map_err(|error| self.fault(doing, &error))
    }

    pub(super) fn broken(&self, doing: &str, why: impl ToString) -> Error {
        Error::broken(self.patience.what(doing), why)
    }

    fn unprepared(&self, doing: &str, error: &PrepareError) -> Error {
        match error {
            PrepareError::AllAttemptsFailed { first_attempt } => {
                self.fault_of(doing, first_attempt)
            }
            PrepareError::ConnectionPoolError(error) => self.patience.unavailable(doing, error),
            error => self.broken(doing, error),
        }
    }

    /// What an error of the driver means to a caller.
    fn fault(&self, doing: &str, error: &ExecutionError) -> Error {
        match error {
            ExecutionError::LastAttemptError(error) => self.fault_of(doing, error),
            ExecutionError::PrepareError(error) => self.unprepared(doing, error),
            ExecutionError::ConnectionPoolError(_)
            | ExecutionError::EmptyPlan
            | ExecutionError::RequestTimeout(_)
            | ExecutionError::SchemaAgreementError(_)
            | ExecutionError::MetadataError(_) => self.patience.unavailable(doing, error),
            error => self.broken(doing, error),
        }
    }

    fn fault_of(&self, doing: &str, error: &RequestAttemptError) -> Error {
        let RequestAttemptError::DbError(kind, said) = error else {
            return match error {
                RequestAttemptError::BrokenConnectionError(_)
                | RequestAttemptError::UnableToAllocStreamId => {
                    self.patience.unavailable(doing, error)
                }
                error => self.broken(doing, error),
            };
        };
        match kind {
            DbError::Invalid | DbError::ConfigError if is_gone(said) => Error::Refused(format!(
                "{}: {said}; the view was forgotten meanwhile",
                self.patience.what(doing)
            )),
            DbError::Unauthorized => {
                let advice = "give the user of `user` the right to it";
                self.broken(doing, format!("{said}; {advice}"))
            }
            DbError::AuthenticationError => self.broken(
                doing,
                "user or password is wrong; set `user` and `password`",
            ),
            DbError::SyntaxError
            | DbError::Invalid
            | DbError::AlreadyExists { .. }
            | DbError::FunctionFailure { .. }
            | DbError::ConfigError
            | DbError::ProtocolError => self.broken(doing, error),
            _ => self.patience.unavailable(doing, error),
        }
    }
}

impl Opened {
    fn known(&self) -> MutexGuard<'_, HashMap<String, PreparedStatement>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the server says that a table is not there.
fn is_gone(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    said.contains("unconfigured table")
        || (said.contains("table") && said.contains("does not exist"))
}

fn outcome_of(error: &ExecutionError) -> RequestOutcome {
    match error {
        ExecutionError::RequestTimeout(_)
        | ExecutionError::LastAttemptError(RequestAttemptError::UnableToAllocStreamId) => {
            RequestOutcome::Overloaded
        }
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(kind, _)) => match kind {
            DbError::Overloaded
            | DbError::ReadTimeout { .. }
            | DbError::WriteTimeout { .. }
            | DbError::RateLimitReached { .. } => RequestOutcome::Overloaded,
            _ => RequestOutcome::Answered,
        },
        _ => RequestOutcome::Failed,
    }
}

fn no_session(patience: &Patience, doing: &str, error: &NewSessionError) -> Error {
    let told = format!("{error:?}");
    if told.contains("AuthenticationError") || told.contains("MissingAuthentication") {
        let why = "user or password is missing or wrong; set `user` and `password`";
        return Error::broken(patience.what(doing), why);
    }
    // A node that is not what it says it is does not become it by waiting.
    if error.to_string().contains("certificate") {
        let why = format!("{error}; name the authority of the nodes' certificates in `ca_file`");
        return Error::broken(patience.what(doing), why);
    }
    match error {
        NewSessionError::IllegalConfig(_) | NewSessionError::EmptyKnownNodesList => {
            Error::broken(patience.what(doing), error)
        }
        error => patience.unavailable(
            doing,
            format!("{error}; is it running, and is `nodes` right?"),
        ),
    }
}

fn tls_config(options: &CassandraOptions) -> Result<Arc<rustls::ClientConfig>> {
    tls::prepare();
    let Some(pem) = tls::certificates(&options.ca_file)? else {
        return Err(wrong(
            "`tls` needs `ca_file`, the certificates of the authority that signed those of the nodes",
        ));
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| {
            let what = format!("reading the certificates in {}", options.ca_file);
            Error::broken(what, format!("{error:?}"))
        })?;
        roots.add(certificate).map_err(wrong)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The answers to some calls, in their order, with at most `at_once` of them under way.
pub(super) async fn together<T>(
    at_once: usize,
    calls: Vec<impl Future<Output = Result<T>> + Send>,
) -> Result<Vec<T>> {
    stream::iter(calls).buffered(at_once).try_collect().await
}

/// The place of a column in an answer.
pub(super) fn column(rows: &QueryRowsResult, name: &str) -> Option<usize> {
    rows.column_specs()
        .get_by_name(name)
        .map(|(index, _)| index)
}

fn flag(rows: &QueryRowsResult, index: usize) -> Option<bool> {
    let row = rows.first_row::<scylla::value::Row>().ok()?;
    row.columns.get(index)?.as_ref()?.as_boolean()
}

/// A number in the first row of an answer.
pub(super) fn number(rows: &QueryRowsResult, name: &str) -> Option<i64> {
    let index = column(rows, name)?;
    let row = rows.maybe_first_row::<scylla::value::Row>().ok()??;
    row.columns.get(index)?.as_ref()?.as_bigint()
}
