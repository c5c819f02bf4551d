//! The session with the cluster: statements with deadlines and safe retries, and the classification
//! of the driver's errors.

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
use super::consistency::options_error;
use super::limiter::{ConcurrencyLimiter, RequestOutcome};
use crate::retry::RetryPolicy;
use crate::shared::Shared;
use crate::{Error, ErrorKind, Result, tls};

/// The maximum number of statements that remain prepared: more than the tables of all views need.
const PREPARED_MAX: usize = 1024;
/// The number of rows in a page.
pub(super) const PAGE_ROWS: i32 = 2_000;
/// Our deadlines are longer than the driver's by this time, so the driver reports slow requests.
const DRIVER_GRACE: Duration = Duration::from_secs(1);

/// The outcome of a lightweight transaction.
#[derive(Debug)]
pub(super) enum CasOutcome {
    /// The transaction was applied.
    Applied,
    /// The condition did not hold.
    NotApplied(QueryRowsResult),
    /// Unknown: it may be applied, even later, until a serial read of the partition.
    Unknown(Error),
}

impl CasOutcome {
    /// Returns whether it was applied, or the error if that is unknown.
    pub(super) fn into_applied(self) -> Result<bool> {
        match self {
            Self::Applied => Ok(true),
            Self::NotApplied(_) => Ok(false),
            Self::Unknown(error) => Err(error),
        }
    }
}

/// A keyspace, and the check that returns its problems when a session opens.
#[derive(Debug)]
pub(super) struct CheckedKeyspace {
    pub(super) name: String,
    pub(super) check: for<'a> fn(&'a Cql, &'a str) -> BoxFuture<'a, Result<Vec<String>>>,
}

/// A session that opens with the first request. After a failure, the next request tries again.
#[derive(Debug)]
pub(super) struct Cql {
    options: CassandraOptions,
    /// The keyspace to use.
    keyspace: Option<CheckedKeyspace>,
    retry_policy: RetryPolicy,
    limiter: ConcurrencyLimiter,
    opened: OnceCell<Arc<OpenSession>>,
}

/// An open session.
#[derive(Debug)]
pub(super) struct OpenSession {
    session: Shared<Session>,
    prepared: Shared<Mutex<HashMap<String, PreparedStatement>>>,
}

/// A call of the driver. The boxed type avoids proving again, for each of the many functions that
/// await it, that the driver's future is `Send`.
type Call<'a, T, E = ExecutionError> = BoxFuture<'a, Result<T, E>>;

impl Cql {
    /// Returns name and address for messages.
    pub(super) fn server(&self) -> &str {
        self.retry_policy.server()
    }

    pub(super) fn new(options: &CassandraOptions, keyspace: Option<CheckedKeyspace>) -> Self {
        let millis = Duration::from_millis;
        let request_timeout = millis(options.request_timeout_ms.max(1));
        let call_timeout = request_timeout.max(millis(options.retry_timeout_ms));
        let server = format!("Cassandra at {}", options.nodes);
        Self {
            options: options.clone(),
            keyspace,
            retry_policy: RetryPolicy::new(
                server,
                request_timeout + DRIVER_GRACE,
                call_timeout + DRIVER_GRACE,
            ),
            limiter: ConcurrencyLimiter::new(options.in_flight_max),
            opened: OnceCell::new(),
        }
    }

    /// Returns the session, and opens it if necessary.
    pub(super) async fn opened(&self) -> Result<&Arc<OpenSession>> {
        self.opened.get_or_try_init(|| self.open()).await
    }

    /// Opens a session. The check of the keyspace needs one, so this function is recursive.
    fn open(&self) -> BoxFuture<'_, Result<Arc<OpenSession>>> {
        Box::pin(async move {
            let Some(keyspace) = &self.keyspace else {
                return self.connect().await.map(Arc::new);
            };
            let unchecked = Self::new(&self.options, None);
            let diagnostics = (keyspace.check)(&unchecked, &keyspace.name).await?;
            match diagnostics.into_iter().next() {
                None => Ok(Arc::clone(unchecked.opened().await?)),
                Some(reason) => Err(Error::broken(self.server(), reason)),
            }
        })
    }

    async fn connect(&self) -> Result<OpenSession> {
        let (options, retry_policy) = (&self.options, &self.retry_policy);
        let millis = Duration::from_millis;
        let request_timeout = millis(options.request_timeout_ms.max(1));
        let connect_timeout = millis(options.connect_timeout_ms.max(1));
        let (consistency, serial_consistency_level) = (
            options.read_consistency()?,
            options.serial_consistency_level()?,
        );
        if options.node_list().next().is_none() {
            return Err(options_error("`nodes` is empty; set it to HOST:PORT"));
        }
        let mut balancing = DefaultPolicy::builder().token_aware(true);
        if !options.local_datacenter.is_empty() {
            balancing = balancing.prefer_datacenter(options.local_datacenter.clone());
        }
        let profile = ExecutionProfile::builder()
            .request_timeout(Some(request_timeout))
            .consistency(consistency)
            .serial_consistency(Some(serial_consistency_level))
            .load_balancing_policy(balancing.build())
            .build();
        let mut builder = SessionBuilder::new()
            .known_nodes(options.node_list())
            .connection_timeout(connect_timeout)
            .hostname_resolution_timeout(Some(connect_timeout))
            .metadata_request_clientside_timeout(request_timeout + DRIVER_GRACE)
            .schema_agreement_timeout(request_timeout)
            // The replication of keyspaces is needed to route requests, their tables are not.
            .fetch_full_schema_metadata(false)
            .metadata_request_serverside_timeout(request_timeout)
            .default_execution_profile_handle(profile.into_handle());
        if !options.user.is_empty() {
            builder = builder.user(&options.user, options.password.reveal());
        }
        if options.tls {
            builder = builder.tls_context(Some(tls_config(options)?));
        }
        let operation = "connecting";
        let building: Call<'_, _, _> = Box::pin(builder.build());
        let session =
            tokio::time::timeout(connect_timeout + request_timeout + DRIVER_GRACE, building).await;
        let session = session
            .map_err(|_| retry_policy.unavailable(operation, "no node answered in time"))?
            .map_err(|error| classify_connect_error(retry_policy, operation, &error))?;
        Ok(OpenSession {
            session: Shared::new(session),
            prepared: Shared::new(Mutex::new(HashMap::new())),
        })
    }

    pub(super) async fn session(&self) -> Result<&Session> {
        Ok(&self.opened().await?.session)
    }

    pub(super) const fn retry_policy(&self) -> &RetryPolicy {
        &self.retry_policy
    }

    pub(super) fn consistency(&self) -> Result<Consistency> {
        self.options.read_consistency()
    }

    /// Selects a keyspace. Returns false if it does not exist.
    pub(super) async fn use_keyspace(&self, keyspace: &str) -> Result<bool> {
        let operation = "finding the keyspace";
        let text = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?";
        let rows = self.read(operation, text, (keyspace,)).await?;
        if rows.rows_num() == 0 {
            return Ok(false);
        }
        let session = self.session().await?;
        self.retry_policy
            .retry(operation, || async {
                let selecting: Call<'_, _, _> = Box::pin(session.use_keyspace(keyspace, false));
                selecting.await.map_err(|error| match error {
                    UseKeyspaceError::RequestTimeout(_) => {
                        self.retry_policy.unavailable(operation, &error)
                    }
                    // The keyspace exists, but this node is still creating it.
                    UseKeyspaceError::RequestError(
                        error @ RequestAttemptError::DbError(DbError::Invalid, _),
                    ) => self.retry_policy.unavailable(operation, &error),
                    UseKeyspaceError::RequestError(error) => {
                        self.classify_attempt_error(operation, &error)
                    }
                    error => self.broken(operation, &error),
                })
            })
            .await?;
        Ok(true)
    }

    /// Runs an idempotent schema change, and waits until all nodes have it.
    pub(super) async fn run_ddl(&self, operation: &str, text: &str) -> Result<()> {
        let session = self.session().await?;
        self.retry_policy
            .retry(operation, || async {
                let mut statement = Statement::new(text);
                statement.set_is_idempotent(true);
                let running: Call<'_, _> = Box::pin(session.query_unpaged(statement, ()));
                running
                    .await
                    .map(drop)
                    .map_err(|error| self.classify_error(operation, &error))
            })
            .await
    }

    pub(super) async fn prepare(&self, operation: &str, text: &str) -> Result<PreparedStatement> {
        let opened = self.opened().await?;
        if let Some(prepared) = opened.statements().get(text) {
            return Ok(prepared.clone());
        }
        let mut prepared = self
            .retry_policy
            .retry(operation, || async {
                let prepared: Call<'_, _, _> = Box::pin(opened.session.prepare(text));
                prepared
                    .await
                    .map_err(|error| self.classify_prepare_error(operation, &error))
            })
            .await?;
        prepared.set_is_idempotent(true);
        prepared.set_page_size(PAGE_ROWS);
        let mut statements = opened.statements();
        if statements.len() >= PREPARED_MAX {
            statements.clear();
        }
        statements.insert(text.to_owned(), prepared.clone());
        Ok(prepared)
    }

    /// Reads a result that fits in one page.
    pub(super) async fn read(
        &self,
        operation: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<QueryRowsResult> {
        let statement = self.prepare(operation, text).await?;
        let (page, _) = self
            .read_page(operation, &statement, &values, PagingState::start())
            .await?;
        Ok(page)
    }

    /// Prepares a read of a partition that lightweight transactions change. The server first
    /// completes transactions in progress.
    pub(super) async fn prepare_serial(
        &self,
        operation: &str,
        text: &str,
    ) -> Result<PreparedStatement> {
        let mut statement = self.prepare(operation, text).await?;
        statement.set_consistency(match self.options.serial_consistency_level()? {
            SerialConsistency::Serial => Consistency::Serial,
            SerialConsistency::LocalSerial => Consistency::LocalSerial,
        });
        Ok(statement)
    }

    /// Reads a page of a result, and the position of the next one.
    pub(super) async fn read_page(
        &self,
        operation: &str,
        statement: &PreparedStatement,
        values: &(impl SerializeRow + Sync),
        from: PagingState,
    ) -> Result<(QueryRowsResult, Option<PagingState>)> {
        let session = self.session().await?;
        let (result, next) = self
            .retry_policy
            .retry_with_permit(
                operation,
                || self.acquire_permit(operation),
                |permit| {
                    let from = from.clone();
                    let page = session.execute_single_page(statement, values, from);
                    self.run_request(operation, Some(permit), Box::pin(page))
                },
            )
            .await?;
        let rows = result
            .into_rows_result()
            .map_err(|error| self.broken(operation, &error))?;
        let next = match next {
            PagingStateResponse::HasMorePages { state } => Some(state),
            PagingStateResponse::NoMorePages => None,
        };
        Ok((rows, next))
    }

    /// Writes rows of one partition with one statement, in one step.
    pub(super) async fn write<V: SerializeRow + Sync>(
        &self,
        operation: &str,
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
        self.retry_policy
            .retry_with_permit(
                operation,
                || self.acquire_permit(operation),
                |permit| {
                    self.run_request(
                        operation,
                        Some(permit),
                        Box::pin(session.batch(&batch, values)),
                    )
                },
            )
            .await
            .map(drop)
    }

    /// Writes one row.
    pub(super) async fn write_one(
        &self,
        operation: &str,
        text: &str,
        values: impl SerializeRow + Sync,
    ) -> Result<()> {
        let statement = self.prepare(operation, text).await?;
        self.write(operation, &statement, &[values]).await
    }

    /// Repeats a lightweight transaction until its outcome is known, so it must be idempotent.
    /// Returns whether the last attempt was applied.
    pub(super) async fn compare_and_set_until_known(
        &self,
        operation: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<bool> {
        let tries = || async {
            self.compare_and_set(operation, text, &values)
                .await?
                .into_applied()
        };
        self.retry_policy.retry_steps(operation, tries).await
    }

    /// Runs a lightweight transaction once.
    pub(super) async fn compare_and_set(
        &self,
        operation: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<CasOutcome> {
        let permit = self.acquire_permit(operation).await?;
        self.compare_and_set_with(operation, Some(permit), text, values)
            .await
    }

    /// Runs a lightweight transaction once, ahead of all requests that wait for a permit: waiting
    /// must not end a lease.
    pub(super) async fn compare_and_set_at_once(
        &self,
        operation: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<CasOutcome> {
        self.compare_and_set_with(operation, None, text, values)
            .await
    }

    async fn compare_and_set_with(
        &self,
        operation: &str,
        permit: Option<OwnedSemaphorePermit>,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<CasOutcome> {
        let mut statement = self.prepare(operation, text).await?;
        statement.set_is_idempotent(false);
        let session = self.session().await?;
        let tried = self.retry_policy.try_once(operation, async {
            let tried = session.execute_unpaged(&statement, &values);
            self.run_request(operation, permit, Box::pin(tried)).await
        });
        self.to_cas_outcome(operation, tried.await)
    }

    /// Runs a lightweight transaction of several statements once.
    pub(super) async fn compare_and_set_batch(
        &self,
        operation: &str,
        statements: Vec<PreparedStatement>,
        values: impl scylla::serialize::batch::BatchValues + Send + Sync,
    ) -> Result<CasOutcome> {
        let mut batch = Batch::new(BatchType::Unlogged);
        for statement in statements {
            batch.append_statement(statement);
        }
        let session = self.session().await?;
        let permit = self.acquire_permit(operation).await?;
        let tried = self.retry_policy.try_once(operation, async {
            let tried = session.batch(&batch, values);
            self.run_request(operation, Some(permit), Box::pin(tried))
                .await
        });
        self.to_cas_outcome(operation, tried.await)
    }

    fn to_cas_outcome(&self, operation: &str, tried: Result<QueryResult>) -> Result<CasOutcome> {
        let result = match tried {
            Ok(result) => result,
            Err(error) if error.kind() == ErrorKind::Retry => {
                return Ok(CasOutcome::Unknown(error));
            }
            Err(error) => return Err(error),
        };
        let rows = result
            .into_rows_result()
            .map_err(|error| self.broken(operation, &error))?;
        let applied = find_column(&rows, "[applied]").and_then(|index| read_flag(&rows, index));
        match applied {
            Some(true) => Ok(CasOutcome::Applied),
            Some(false) => Ok(CasOutcome::NotApplied(rows)),
            None => Err(self.broken(operation, "the result does not contain `[applied]`")),
        }
    }

    /// Waits for a permit of the concurrency limiter. The wait does not count as part of a
    /// request's time.
    async fn acquire_permit(&self, operation: &str) -> Result<OwnedSemaphorePermit> {
        let silent_for = self.retry_policy.call_timeout();
        self.limiter.acquire(silent_for).await.ok_or_else(|| {
            let (limit, seconds) = (self.limiter.limit(), silent_for.as_secs_f64());
            let reason = format!(
                "all {limit} concurrent requests were without a response for {seconds:.1} s"
            );
            self.retry_policy.unavailable(operation, reason)
        })
    }

    async fn run_request<T>(
        &self,
        operation: &str,
        permit: Option<OwnedSemaphorePermit>,
        call: Call<'_, T>,
    ) -> Result<T> {
        let result = call.await;
        let outcome = result
            .as_ref()
            .map_or_else(classify_outcome, |_| RequestOutcome::Answered);
        self.limiter.release(permit, outcome);
        result.map_err(|error| self.classify_error(operation, &error))
    }

    pub(super) fn broken(&self, operation: &str, reason: impl ToString) -> Error {
        Error::broken(self.retry_policy.describe(operation), reason)
    }

    fn classify_prepare_error(&self, operation: &str, error: &PrepareError) -> Error {
        match error {
            PrepareError::AllAttemptsFailed { first_attempt } => {
                self.classify_attempt_error(operation, first_attempt)
            }
            PrepareError::ConnectionPoolError(error) => {
                self.retry_policy.unavailable(operation, error)
            }
            error => self.broken(operation, error),
        }
    }

    /// Converts an error of the driver.
    fn classify_error(&self, operation: &str, error: &ExecutionError) -> Error {
        match error {
            ExecutionError::LastAttemptError(error) => {
                self.classify_attempt_error(operation, error)
            }
            ExecutionError::PrepareError(error) => self.classify_prepare_error(operation, error),
            ExecutionError::ConnectionPoolError(_)
            | ExecutionError::EmptyPlan
            | ExecutionError::RequestTimeout(_)
            | ExecutionError::SchemaAgreementError(_)
            | ExecutionError::MetadataError(_) => self.retry_policy.unavailable(operation, error),
            error => self.broken(operation, error),
        }
    }

    fn classify_attempt_error(&self, operation: &str, error: &RequestAttemptError) -> Error {
        let RequestAttemptError::DbError(kind, message) = error else {
            return match error {
                RequestAttemptError::BrokenConnectionError(_)
                | RequestAttemptError::UnableToAllocStreamId => {
                    self.retry_policy.unavailable(operation, error)
                }
                error => self.broken(operation, error),
            };
        };
        match kind {
            DbError::Invalid | DbError::ConfigError if is_missing_table(message) => {
                Error::Refused(format!(
                    "{}: {message}; the view was deleted meanwhile",
                    self.retry_policy.describe(operation)
                ))
            }
            DbError::Unauthorized => {
                let advice = "grant the right to the user that `user` names";
                self.broken(operation, format!("{message}; {advice}"))
            }
            DbError::AuthenticationError => self.broken(
                operation,
                "the user or password is wrong; check `user` and `password`",
            ),
            DbError::SyntaxError
            | DbError::Invalid
            | DbError::AlreadyExists { .. }
            | DbError::FunctionFailure { .. }
            | DbError::ConfigError
            | DbError::ProtocolError => self.broken(operation, error),
            _ => self.retry_policy.unavailable(operation, error),
        }
    }
}

impl OpenSession {
    fn statements(&self) -> MutexGuard<'_, HashMap<String, PreparedStatement>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the server reports a missing table.
fn is_missing_table(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    message.contains("unconfigured table")
        || (message.contains("table") && message.contains("does not exist"))
}

fn classify_outcome(error: &ExecutionError) -> RequestOutcome {
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

fn classify_connect_error(
    retry_policy: &RetryPolicy,
    operation: &str,
    error: &NewSessionError,
) -> Error {
    let text = format!("{error:?}");
    if text.contains("AuthenticationError") || text.contains("MissingAuthentication") {
        let reason = "the user or password is missing or wrong; check `user` and `password`";
        return Error::broken(retry_policy.describe(operation), reason);
    }
    // Retrying does not help with an untrusted certificate.
    if error.to_string().contains("certificate") {
        let reason = format!("{error}; set `ca_file` to the certificate authority of the nodes");
        return Error::broken(retry_policy.describe(operation), reason);
    }
    match error {
        NewSessionError::IllegalConfig(_) | NewSessionError::EmptyKnownNodesList => {
            Error::broken(retry_policy.describe(operation), error)
        }
        error => retry_policy.unavailable(
            operation,
            format!("{error}; check that Cassandra is running and that `nodes` is correct"),
        ),
    }
}

fn tls_config(options: &CassandraOptions) -> Result<Arc<rustls::ClientConfig>> {
    tls::install_crypto_provider();
    let Some(pem) = tls::read_certificates(&options.ca_file)? else {
        return Err(options_error(
            "`tls` requires `ca_file`, the certificates of the authority that signed those of the nodes",
        ));
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| {
            let context = format!("reading the certificates in {}", options.ca_file);
            Error::broken(context, format!("{error:?}"))
        })?;
        roots.add(certificate).map_err(options_error)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(options_error)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Runs calls with limited concurrency. The results are in the order of the calls.
pub(super) async fn run_concurrently<T>(
    concurrency_max: usize,
    calls: Vec<impl Future<Output = Result<T>> + Send>,
) -> Result<Vec<T>> {
    stream::iter(calls)
        .buffered(concurrency_max)
        .try_collect()
        .await
}

/// Returns the index of a column in a result.
pub(super) fn find_column(rows: &QueryRowsResult, name: &str) -> Option<usize> {
    rows.column_specs()
        .get_by_name(name)
        .map(|(index, _)| index)
}

fn read_flag(rows: &QueryRowsResult, index: usize) -> Option<bool> {
    let row = rows.first_row::<scylla::value::Row>().ok()?;
    row.columns.get(index)?.as_ref()?.as_boolean()
}

/// Returns a number in the first row of a result.
pub(super) fn read_number(rows: &QueryRowsResult, name: &str) -> Option<i64> {
    let index = find_column(rows, name)?;
    let row = rows.maybe_first_row::<scylla::value::Row>().ok()??;
    row.columns.get(index)?.as_ref()?.as_bigint()
}
