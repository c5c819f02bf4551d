//! One node, and the connection to it that all calls share.
//!
//! A connection that gives no answer in time is thrown away, since every later call on it would wait
//! behind the first; the next call makes a new one. What was sent on it may still have its effect.

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
use super::{RedisOptions, fault};
use crate::patience::Patience;
use crate::{Error, Result, tls};

const PORT: u16 = 6379;

/// After a connection could not be made, so long nobody else tries: those who wait for the same node
/// share one failure instead of making one each.
const FAILED_FOR: Duration = Duration::from_millis(100);

/// The address of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Node {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Node {
    /// Reads `host:port` or `host`; an IPv6 address may stand in brackets.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => (host, port.parse().ok()?),
            _ => (text, PORT),
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

/// How connections are made.
pub(super) struct Dial {
    settings: RedisConnectionInfo,
    tls: bool,
    certificates: Option<Vec<u8>>,
    pub(super) connect_for: Duration,
    pub(super) respond_for: Duration,
}

impl Dial {
    pub(super) fn new(options: &RedisOptions) -> Result<Self> {
        tls::prepare();
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
            certificates: tls::certificates(&options.ca_file)?,
            connect_for: Duration::from_millis(options.connect_timeout_ms),
            respond_for: Duration::from_millis(options.response_timeout_ms),
        })
    }

    /// The number of the database.
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
        let to = address.into_connection_info()?;
        let to = to.set_redis_settings(self.settings.clone());
        match &self.certificates {
            Some(pem) if self.tls => {
                let certificates = TlsCertificates {
                    client_tls: None,
                    root_cert: Some(pem.clone()),
                };
                Client::build_with_tls(to, certificates)
            }
            _ => Client::open(to),
        }
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").finish_non_exhaustive()
    }
}

/// How often a server is asked whether it has begun to take keys away.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Held {
    /// Counts the connections, so that none is thrown away for the failure of the one before.
    number: u64,
    connection: Option<MultiplexedConnection>,
    failed: Option<(Instant, String)>,
    /// When the server was looked at, and how many keys it had taken away when it was first.
    looked: Option<(Instant, u64)>,
}

impl Held {
    /// Looks at what the server tells of itself: whether live state may be kept there, and was.
    fn look(&mut self, info: &Info) -> Result<(), Look> {
        if let Some(refusal) = info.refusal() {
            return Err(Look::Refused(refusal));
        }
        if let Some(behind) = info.is_behind() {
            return Err(Look::NotNow(behind));
        }
        let evicted = info.evicted();
        // A server that was started anew counts anew.
        let before = self
            .looked
            .map_or(evicted, |(_, before)| before.min(evicted));
        if evicted > before {
            return Err(Look::Refused(format!(
                "it has taken {} keys away since it was first asked, so counts may be missing; set its maxmemory-policy to noeviction and delete the live state (FLUSHALL if it is the server's only use): it is replayed from the log",
                evicted - before
            )));
        }
        self.looked = Some((Instant::now(), before));
        Ok(())
    }
}

/// Why a server is not used.
enum Look {
    Refused(String),
    NotNow(String),
}

/// A node and the connection to it.
pub(super) struct Link {
    pub(super) node: Node,
    held: Mutex<Held>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.node)
    }
}

impl Link {
    pub(super) fn new(node: Node) -> Self {
        Self {
            node,
            held: Mutex::default(),
        }
    }

    /// Sends commands in one go and answers their replies, errors of the server among them.
    ///
    /// # Errors
    /// Those of the connection; whether the commands had an effect is not known then.
    pub(super) async fn send(
        &self,
        dial: &Dial,
        patience: &Patience,
        doing: &str,
        commands: &Pipeline,
    ) -> Result<Vec<Value>> {
        let (number, mut connection) = self.connected(dial, patience, doing).await?;
        let sent = connection.send_packed_commands(commands, 0, commands.len());
        let failed = match timeout(dial.respond_for, sent).await {
            Ok(Ok(replies)) => return Ok(replies),
            Ok(Err(error)) => fault::of_client(patience, doing, &self.node.to_string(), &error),
            Err(_) => self.silent(patience, doing, dial.respond_for),
        };
        let mut held = self.held.lock().await;
        if held.number == number {
            held.connection = None;
        }
        Err(failed)
    }

    /// Throws the connection away.
    pub(super) async fn give_up(&self) {
        self.held.lock().await.connection = None;
    }

    /// What the server tells of itself.
    pub(super) async fn info(&self, dial: &Dial, patience: &Patience, doing: &str) -> Result<Info> {
        let client = dial.client(&self.node);
        let client = client.map_err(|error| self.fault(patience, doing, &error))?;
        let (_, info) = self.connect(&client, dial, patience, doing).await?;
        Ok(info)
    }

    async fn connected(
        &self,
        dial: &Dial,
        patience: &Patience,
        doing: &str,
    ) -> Result<(u64, MultiplexedConnection)> {
        let mut held = self.held.lock().await;
        if let Some(connection) = held.connection.clone() {
            let is_due = held
                .looked
                .is_none_or(|(at, _)| at.elapsed() >= LOOK_INTERVAL);
            if !is_due {
                return Ok((held.number, connection));
            }
            // How a server is set may change while connections to it last.
            let asked = timeout(dial.respond_for, ask_info(connection.clone())).await;
            match asked {
                Ok(Ok(replies)) => {
                    let info = read_info(patience, doing, replies)?;
                    if let Err(look) = held.look(&info) {
                        held.connection = None;
                        return Err(self.unfit(patience, doing, look));
                    }
                    return Ok((held.number, connection));
                }
                // A new one is made.
                Ok(Err(_)) => held.connection = None,
                Err(_) => {
                    held.connection = None;
                    return Err(self.silent(patience, doing, dial.respond_for));
                }
            }
        }
        if let Some((at, why)) = &held.failed
            && at.elapsed() < FAILED_FOR
        {
            return Err(patience.unavailable(doing, why));
        }
        let client = dial.client(&self.node);
        let client = client.map_err(|error| self.fault(patience, doing, &error))?;
        let connection = match self.connect(&client, dial, patience, doing).await {
            Ok((connection, info)) => {
                if let Err(look) = held.look(&info) {
                    return Err(self.unfit(patience, doing, look));
                }
                connection
            }
            Err(error) => {
                if let Error::Unavailable { why, .. } = &error {
                    held.failed = Some((Instant::now(), why.clone()));
                }
                return Err(error);
            }
        };
        held.number += 1;
        held.failed = None;
        held.connection = Some(connection.clone());
        Ok((held.number, connection))
    }

    async fn connect(
        &self,
        client: &Client,
        dial: &Dial,
        patience: &Patience,
        doing: &str,
    ) -> Result<(MultiplexedConnection, Info)> {
        // Deadlines are ours: what runs out of time must be thrown away.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(dial.connect_for))
            .set_response_timeout(None);
        let connecting = async {
            let made = client.get_multiplexed_async_connection_with_config(&config);
            let connection = made.await?;
            let replies = ask_info(connection.clone()).await?;
            Ok((connection, replies))
        };
        let (connection, replies) = match timeout(dial.connect_for, connecting).await {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => return Err(self.fault(patience, doing, &error)),
            Err(_) => return Err(self.silent(patience, doing, dial.connect_for)),
        };
        Ok((connection, read_info(patience, doing, replies)?))
    }

    fn unfit(&self, patience: &Patience, doing: &str, look: Look) -> Error {
        match look {
            Look::Refused(why) => {
                Error::broken(patience.what(doing), format!("{}: {why}", self.node))
            }
            Look::NotNow(why) => patience.unavailable(doing, format!("{}: {why}", self.node)),
        }
    }

    fn fault(&self, patience: &Patience, doing: &str, error: &redis::RedisError) -> Error {
        fault::of_client(patience, doing, &self.node.to_string(), error)
    }

    fn silent(&self, patience: &Patience, doing: &str, waited: Duration) -> Error {
        let waited = waited.as_secs_f64();
        let why = format!("{} gave no answer within {waited:.1} s", self.node);
        patience.unavailable(doing, why)
    }
}

async fn ask_info(mut connection: MultiplexedConnection) -> redis::RedisResult<Vec<Value>> {
    let mut commands = Pipeline::new();
    commands.add_command(redis::cmd("INFO"));
    connection.send_packed_commands(&commands, 0, 1).await
}

fn read_info(patience: &Patience, doing: &str, replies: Vec<Value>) -> Result<Info> {
    match replies.into_iter().next() {
        Some(Value::BulkString(text)) => {
            let text = String::from_utf8_lossy(&text).into_owned();
            Ok(Info::new(text))
        }
        Some(Value::VerbatimString { text, .. }) => Ok(Info::new(text)),
        Some(Value::ServerError(error)) => Err(fault::of_server(patience, doing, &error)),
        _ => Err(fault::strange(patience, doing)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let read = |text| Node::parse(text).map(|node| (node.host, node.port));
        let some = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(read("redis:7000"), some("redis", 7000));
        assert_eq!(read("redis"), some("redis", PORT));
        assert_eq!(read("[::1]:7000"), some("::1", 7000));
        assert_eq!(read("[::1]"), some("::1", PORT));
        assert_eq!(read("redis:port"), None);
        assert_eq!(read(""), None);
    }
}
