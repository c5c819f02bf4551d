//! The connection to one node, which all calls share.
//!
//! A connection that does not answer in time is closed, because later calls would wait behind the
//! first one. The next call opens a new connection. Commands that were already sent may still take
//! effect.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, Pipeline,
    RedisConnectionInfo, TlsCertificates, Value,
};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::info::Info;
use super::{RedisOptions, errors};
use crate::retry::RetryPolicy;
use crate::{Error, Result, tls};

const DEFAULT_PORT: u16 = 6379;

/// After a failed connection attempt, further attempts fail at once for this time. So callers that
/// wait for the same node share one failure.
const FAILURE_BACKOFF: Duration = Duration::from_millis(100);

/// The address of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Node {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Node {
    /// Parses `host:port` or `host`; an IPv6 address may be in brackets.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => (host, port.parse().ok()?),
            _ => (text, DEFAULT_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (!host.is_empty()).then(|| Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Options for new connections.
pub(super) struct ConnectionConfig {
    settings: RedisConnectionInfo,
    tls: bool,
    certificates: Option<Vec<u8>>,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
}

impl ConnectionConfig {
    pub(super) fn new(options: &RedisOptions) -> Result<Self> {
        tls::install_crypto_provider();
        let mut settings = RedisConnectionInfo::default()
            .set_db(options.database)
            .set_skip_set_lib_name();
        if !options.user.is_empty() {
            settings = settings.set_username(&options.user);
        }
        if !options.password.is_empty() {
            settings = settings.set_password(options.password.reveal());
        }
        Ok(Self {
            settings,
            tls: options.tls,
            certificates: tls::read_certificates(&options.ca_file)?,
            connect_timeout: Duration::from_millis(options.connect_timeout_ms),
            response_timeout: Duration::from_millis(options.response_timeout_ms),
        })
    }

    /// Number of the database.
    pub(super) fn database(&self) -> i64 {
        self.settings.db()
    }

    fn client(&self, node: &Node) -> redis::RedisResult<Client> {
        let (host, port) = (node.host.clone(), node.port);
        let address = if self.tls {
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let connection_info = address.into_connection_info()?;
        let connection_info = connection_info.set_redis_settings(self.settings.clone());
        match &self.certificates {
            Some(pem) if self.tls => {
                let certificates = TlsCertificates {
                    client_tls: None,
                    root_cert: Some(pem.clone()),
                };
                Client::build_with_tls(connection_info, certificates)
            }
            _ => Client::open(connection_info),
        }
    }
}

impl fmt::Debug for ConnectionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionConfig").finish_non_exhaustive()
    }
}

/// Interval of the checks for evicted keys and a changed configuration.
const INFO_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default)]
struct ConnectionState {
    /// The number of the connection, so that a failure of an earlier one does not close it.
    number: u64,
    connection: Option<MultiplexedConnection>,
    last_failure: Option<(Instant, String)>,
    /// When the server was checked last, and the lowest number of evicted keys that it has
    /// reported.
    last_check: Option<(Instant, u64)>,
}

impl ConnectionState {
    /// Checks from `INFO` whether the server can hold live state and has not evicted keys.
    fn check(&mut self, info: &Info) -> Result<(), UnusableServer> {
        if let Some(refusal_reason) = info.refusal_reason() {
            return Err(UnusableServer::Permanent(refusal_reason));
        }
        if let Some(reason) = info.unavailable_reason() {
            return Err(UnusableServer::Temporary(reason));
        }
        let evicted = info.evicted_keys();
        // The counter starts at 0 after a restart.
        let lowest = self
            .last_check
            .map_or(evicted, |(_, lowest)| lowest.min(evicted));
        if evicted > lowest {
            return Err(UnusableServer::Permanent(format!(
                "it has evicted {} keys since the first check, so counts may be missing; set maxmemory-policy to noeviction and delete the live state (FLUSHALL if the server has no other use); it is then rebuilt from the log",
                evicted - lowest
            )));
        }
        self.last_check = Some((Instant::now(), lowest));
        Ok(())
    }
}

/// Why a server cannot be used.
enum UnusableServer {
    Permanent(String),
    Temporary(String),
}

/// A node and its connection.
pub(super) struct NodeConnection {
    pub(super) node: Node,
    state: Mutex<ConnectionState>,
}

impl fmt::Debug for NodeConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeConnection({})", self.node)
    }
}

impl NodeConnection {
    pub(super) fn new(node: Node) -> Self {
        Self {
            node,
            state: Mutex::default(),
        }
    }

    /// Sends a pipeline and returns the replies, which may be errors of the server.
    ///
    /// # Errors
    /// An error of the connection. Then it is unknown whether the commands took effect.
    pub(super) async fn send(
        &self,
        config: &ConnectionConfig,
        retry_policy: &RetryPolicy,
        operation: &str,
        commands: &Pipeline,
    ) -> Result<Vec<Value>> {
        let (number, mut connection) = self.connected(config, retry_policy, operation).await?;
        let sent = connection.send_packed_commands(commands, 0, commands.len());
        let failure = match timeout(config.response_timeout, sent).await {
            Ok(Ok(replies)) => return Ok(replies),
            Ok(Err(error)) => {
                errors::from_client_error(retry_policy, operation, &self.node.to_string(), &error)
            }
            Err(_) => self.timeout_error(retry_policy, operation, config.response_timeout),
        };
        let mut state = self.state.lock().await;
        if state.number == number {
            state.connection = None;
        }
        Err(failure)
    }

    /// Closes the connection.
    pub(super) async fn disconnect(&self) {
        self.state.lock().await.connection = None;
    }

    /// Reads `INFO` over a new connection.
    pub(super) async fn info(
        &self,
        config: &ConnectionConfig,
        retry_policy: &RetryPolicy,
        operation: &str,
    ) -> Result<Info> {
        let client = config.client(&self.node);
        let client = client.map_err(|error| self.client_error(retry_policy, operation, &error))?;
        let (_, info) = self
            .connect(&client, config, retry_policy, operation)
            .await?;
        Ok(info)
    }

    async fn connected(
        &self,
        config: &ConnectionConfig,
        retry_policy: &RetryPolicy,
        operation: &str,
    ) -> Result<(u64, MultiplexedConnection)> {
        let mut state = self.state.lock().await;
        if let Some(connection) = state.connection.clone() {
            let is_due = state
                .last_check
                .is_none_or(|(checked_at, _)| checked_at.elapsed() >= INFO_INTERVAL);
            if !is_due {
                return Ok((state.number, connection));
            }
            // The configuration may change while a connection is open.
            let reply = timeout(config.response_timeout, request_info(connection.clone())).await;
            match reply {
                Ok(Ok(replies)) => {
                    let info = parse_info(retry_policy, operation, replies)?;
                    if let Err(problem) = state.check(&info) {
                        state.connection = None;
                        return Err(self.unusable_error(retry_policy, operation, problem));
                    }
                    return Ok((state.number, connection));
                }
                // A new connection is opened below.
                Ok(Err(_)) => state.connection = None,
                Err(_) => {
                    state.connection = None;
                    return Err(self.timeout_error(
                        retry_policy,
                        operation,
                        config.response_timeout,
                    ));
                }
            }
        }
        if let Some((failed_at, reason)) = &state.last_failure
            && failed_at.elapsed() < FAILURE_BACKOFF
        {
            return Err(retry_policy.unavailable(operation, reason));
        }
        let client = config.client(&self.node);
        let client = client.map_err(|error| self.client_error(retry_policy, operation, &error))?;
        let connection = match self.connect(&client, config, retry_policy, operation).await {
            Ok((connection, info)) => {
                if let Err(problem) = state.check(&info) {
                    return Err(self.unusable_error(retry_policy, operation, problem));
                }
                connection
            }
            Err(error) => {
                if let Error::Unavailable { reason, .. } = &error {
                    state.last_failure = Some((Instant::now(), reason.clone()));
                }
                return Err(error);
            }
        };
        state.number += 1;
        state.last_failure = None;
        state.connection = Some(connection.clone());
        Ok((state.number, connection))
    }

    async fn connect(
        &self,
        client: &Client,
        config: &ConnectionConfig,
        retry_policy: &RetryPolicy,
        operation: &str,
    ) -> Result<(MultiplexedConnection, Info)> {
        // This module enforces the deadlines, because it must close a connection that exceeds them.
        let client_config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(None);
        let connecting = async {
            let opening = client.get_multiplexed_async_connection_with_config(&client_config);
            let connection = opening.await?;
            let replies = request_info(connection.clone()).await?;
            Ok((connection, replies))
        };
        let (connection, replies) = match timeout(config.connect_timeout, connecting).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return Err(self.client_error(retry_policy, operation, &error)),
            Err(_) => {
                return Err(self.timeout_error(retry_policy, operation, config.connect_timeout));
            }
        };
        Ok((connection, parse_info(retry_policy, operation, replies)?))
    }

    fn unusable_error(
        &self,
        retry_policy: &RetryPolicy,
        operation: &str,
        problem: UnusableServer,
    ) -> Error {
        match problem {
            UnusableServer::Permanent(reason) => Error::broken(
                retry_policy.describe(operation),
                format!("{}: {reason}", self.node),
            ),
            UnusableServer::Temporary(reason) => {
                retry_policy.unavailable(operation, format!("{}: {reason}", self.node))
            }
        }
    }

    fn client_error(
        &self,
        retry_policy: &RetryPolicy,
        operation: &str,
        error: &redis::RedisError,
    ) -> Error {
        errors::from_client_error(retry_policy, operation, &self.node.to_string(), error)
    }

    fn timeout_error(
        &self,
        retry_policy: &RetryPolicy,
        operation: &str,
        waited: Duration,
    ) -> Error {
        let waited = waited.as_secs_f64();
        let reason = format!("{} did not answer within {waited:.1} s", self.node);
        retry_policy.unavailable(operation, reason)
    }
}

async fn request_info(mut connection: MultiplexedConnection) -> redis::RedisResult<Vec<Value>> {
    let mut commands = Pipeline::new();
    commands.add_command(redis::cmd("INFO"));
    connection.send_packed_commands(&commands, 0, 1).await
}

fn parse_info(retry_policy: &RetryPolicy, operation: &str, replies: Vec<Value>) -> Result<Info> {
    match replies.into_iter().next() {
        Some(Value::BulkString(text)) => {
            let text = String::from_utf8_lossy(&text).into_owned();
            Ok(Info::new(text))
        }
        Some(Value::VerbatimString { text, .. }) => Ok(Info::new(text)),
        Some(Value::ServerError(error)) => {
            Err(errors::from_server_error(retry_policy, operation, &error))
        }
        _ => Err(errors::unexpected_reply(retry_policy, operation)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_addresses() {
        let parse = |text| Node::parse(text).map(|node| (node.host, node.port));
        let address = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(parse("redis:7000"), address("redis", 7000));
        assert_eq!(parse("redis"), address("redis", DEFAULT_PORT));
        assert_eq!(parse("[::1]:7000"), address("::1", 7000));
        assert_eq!(parse("[::1]"), address("::1", DEFAULT_PORT));
        assert_eq!(parse("redis:port"), None);
        assert_eq!(parse(""), None);
    }
}
