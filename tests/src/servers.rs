//! Addresses, options and clients of the servers that all tests share. A server starts when its
//! address is first requested (`shared_servers`). Ports come from the variables of
//! `deploy/servers`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use stores::StoresOptions;
use stores::cassandra::{Cassandra, CassandraOptions};
use stores::kafka::KafkaOptions;
use stores::namespace::Namespace;
use stores::redis::RedisOptions;
use stores::registry::RegistryOptions;
use stores::s3::S3Options;
use stores::sql::SqlOptions;
use stores::webhook::NoticesOptions;
use uuid::Uuid;

use crate::shared_servers::SharedServer;

fn port_of(address: &str) -> u16 {
    let port = address
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok());
    port.expect("a port")
}

/// Returns the address of Kafka.
#[must_use]
pub fn kafka() -> String {
    SharedServer::Kafka.start()
}

/// Returns the address of Cassandra.
#[must_use]
pub fn cassandra() -> String {
    SharedServer::Cassandra.start()
}

/// Returns the address of a single Redis.
#[must_use]
pub fn redis() -> String {
    SharedServer::Redis.start()
}

/// Returns the address of the first node of a Redis Cluster.
#[must_use]
pub fn redis_cluster() -> String {
    SharedServer::RedisCluster.start()
}

/// Returns the address of PostgreSQL: user `backstitch`, no password.
#[must_use]
pub fn postgres() -> String {
    SharedServer::Postgres.start()
}

/// Returns the address of MariaDB: user `backstitch`, no password.
#[must_use]
pub fn mariadb() -> String {
    SharedServer::MariaDb.start()
}

/// Runs statements on PostgreSQL as an application would; returns the values, one line for each
/// row.
///
/// # Errors
/// The server's message.
pub fn run_on_postgres(statements: &str) -> Result<String, String> {
    run_client(&mut psql(), statements)
}

/// Runs statements on MariaDB, as [`run_on_postgres`] does.
///
/// # Errors
/// The server's message.
pub fn run_on_mariadb(statements: &str) -> Result<String, String> {
    run_client(&mut mariadb_client(), statements)
}

/// Opens a session on PostgreSQL.
#[must_use]
pub fn session_on_postgres() -> Session {
    Session::spawn(&mut psql())
}

/// Opens a session on MariaDB.
#[must_use]
pub fn session_on_mariadb() -> Session {
    Session::spawn(&mut mariadb_client())
}

fn psql() -> Command {
    let address = postgres();
    let (host, port) = address.split_once(':').unwrap_or_default();
    let mut client = Command::new("psql");
    client
        .args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            "backstitch",
        ])
        .args(["-h", host, "-p", port, "-d", "postgres", "-f", "-"])
        .env("PGOPTIONS", "--client-min-messages=warning");
    client
}

fn mariadb_client() -> Command {
    let address = mariadb();
    let (host, port) = address.split_once(':').unwrap_or_default();
    let mut client = Command::new("mariadb");
    client
        .args([
            "--no-defaults",
            "--unbuffered",
            "-N",
            "-B",
            "-u",
            "backstitch",
        ])
        .args(["-h", host, "-P", port]);
    client
}

/// An application's session that stays open between statements. Dropping it ends the session and
/// rolls back uncommitted work.
#[derive(Debug)]
pub struct Session {
    client: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Session {
    fn spawn(client: &mut Command) -> Self {
        let mut client = client
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server's client is installed");
        Self {
            input: client.stdin.take(),
            output: BufReader::new(client.stdout.take().expect("an output")),
            client,
        }
    }

    /// Runs statements; returns the values, one line for each row.
    ///
    /// # Panics
    /// If one fails.
    pub fn run(&mut self, statements: &str) -> String {
        const END_MARKER: &str = "that is all";
        let input = self.input.as_mut().expect("an input");
        writeln!(input, "{statements}\nSELECT '{END_MARKER}';").expect("a client");
        input.flush().expect("a client");
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let bytes = self.output.read_line(&mut line).expect("a reply");
            assert!(bytes > 0, "the client ended: {statements}");
            if line.trim_end() == END_MARKER {
                return lines.join("\n");
            }
            lines.push(line.trim_end().to_owned());
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ended = self.client.wait();
    }
}

fn run_client(client: &mut Command, statements: &str) -> Result<String, String> {
    let mut client = client
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the server's client is installed");
    let mut input = client.stdin.take().expect("an input");
    // A client that ends early reports the reason itself.
    let _written = input.write_all(statements.as_bytes());
    drop(input);
    let output = client.wait_with_output().expect("an output");
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns the address of S3, which accepts any key.
#[must_use]
pub fn s3() -> String {
    SharedServer::S3.start()
}

/// Returns a new namespace, so that tests can share servers.
///
/// # Panics
/// Never: the name is valid.
#[must_use]
pub fn namespace() -> Namespace {
    let id = Uuid::new_v4().simple().to_string();
    format!("t{}", &id[..12]).parse().expect("a namespace")
}

/// The addresses of the servers.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// Kafka.
    pub kafka: String,
    /// Redis.
    pub redis: String,
    /// Cassandra.
    pub cassandra: String,
    /// PostgreSQL.
    pub postgres: String,
    /// S3; without it, the archive is in the data folder.
    pub s3: Option<String>,
}

/// The shared servers.
impl Default for Addresses {
    fn default() -> Self {
        Self {
            kafka: kafka(),
            redis: redis(),
            cassandra: cassandra(),
            postgres: postgres(),
            s3: Some(s3()),
        }
    }
}

/// Returns options with all stores on servers, in a new namespace; the rest is in the folder.
#[must_use]
pub fn options(folder: &Path, addresses: &Addresses) -> StoresOptions {
    StoresOptions {
        registry: RegistryOptions::default(),
        notices: NoticesOptions::default(),
        data_dir: folder.to_owned(),
        namespace: namespace(),
        kafka: KafkaOptions {
            bootstrap_servers: addresses.kafka.clone(),
            ..KafkaOptions::default()
        },
        redis: RedisOptions {
            nodes: addresses.redis.clone(),
            ..RedisOptions::default()
        },
        cassandra: cassandra_options(&addresses.cassandra),
        database: SqlOptions {
            host: "127.0.0.1".to_owned(),
            port: port_of(&addresses.postgres),
            user: "backstitch".to_owned(),
            ..SqlOptions::default()
        },
        s3: addresses.s3.as_deref().map(s3_options).unwrap_or_default(),
    }
}

/// Returns the options of a Cassandra. Keyspaces of the shared server bypass its commit log:
/// otherwise each dropped table would flush the tables of all others.
#[must_use]
pub fn cassandra_options(address: &str) -> CassandraOptions {
    CassandraOptions {
        nodes: address.to_owned(),
        replication: replication(address).to_owned(),
        ..CassandraOptions::default()
    }
}

fn replication(address: &str) -> &'static str {
    if address == SharedServer::Cassandra.address() {
        "{'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = false"
    } else {
        ""
    }
}

fn s3_options(address: &str) -> S3Options {
    S3Options {
        bucket: "backstitch".to_owned(),
        endpoint: format!("http://{address}"),
        region: "us-east-1".to_owned(),
        access_key_id: "test".to_owned(),
        secret_access_key: "test".to_owned().into(),
        ..S3Options::default()
    }
}

/// Returns the same options as a configuration file, to which lines may be appended, with this many
/// partitions for new topics.
#[must_use]
pub fn configuration(namespace: &Namespace, addresses: &Addresses, partitions: u32) -> String {
    let Addresses {
        kafka,
        redis,
        cassandra,
        s3,
        ..
    } = addresses;
    let postgres = port_of(&addresses.postgres);
    let archive = s3.as_deref().map(s3_configuration).unwrap_or_default();
    let replication = replication(cassandra);
    format!(
        r#"
namespace = "{namespace}"
log.partitions = {partitions}
kafka.bootstrap_servers = "{kafka}"
redis.nodes = "{redis}"
cassandra.nodes = "{cassandra}"
cassandra.replication = "{replication}"
database.host = "127.0.0.1"
database.port = {postgres}
database.user = "backstitch"
{archive}"#
    )
}

fn s3_configuration(address: &str) -> String {
    format!(
        r#"
s3.bucket = "backstitch"
s3.endpoint = "http://{address}"
s3.region = "us-east-1"
s3.access_key_id = "test"
s3.secret_access_key = "test"
"#
    )
}

/// Deletes an installation's topics, tables and live state from the shared servers, so that they
/// stay fast. Failures are ignored.
pub fn delete_installation(options: &StoresOptions) {
    let options = options.clone();
    // The caller may drop it inside a runtime.
    let work = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            if options.cassandra.nodes == SharedServer::Cassandra.address() {
                let removed = Cassandra::remove(&options.cassandra, &options.namespace);
                drop(removed.await);
            }
            if options.kafka.bootstrap_servers == SharedServer::Kafka.address() {
                delete_topics(&options.namespace).await;
            }
        });
        if options.redis.nodes == SharedServer::Redis.address() {
            delete_live_state_of(&options.namespace);
        }
        let postgres = SharedServer::Postgres.address();
        if format!("{}:{}", options.database.host, options.database.port) == postgres {
            let schema = options.namespace.identifier("backstitch");
            drop(run_on_postgres(&format!(
                "DROP SCHEMA IF EXISTS {schema} CASCADE"
            )));
        }
    });
    drop(work.join());
}

/// Returns a Kafka admin client.
///
/// # Panics
/// If the client cannot be created.
#[must_use]
pub fn kafka_admin() -> AdminClient<DefaultClientContext> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka());
    config.create().expect("a client of Kafka")
}

/// Deletes the topics of an installation.
///
/// # Panics
/// If Kafka does not list them or refuses.
pub async fn delete_topics(namespace: &Namespace) {
    let admin = kafka_admin();
    let prefix = namespace.topic("");
    let metadata = admin.inner().fetch_metadata(None, Duration::from_secs(20));
    let metadata = metadata.expect("the topics");
    let names = metadata.topics().iter().map(|topic| topic.name());
    let names: Vec<&str> = names.filter(|name| name.starts_with(&prefix)).collect();
    if !names.is_empty() {
        let deleted = admin.delete_topics(&names, &AdminOptions::new()).await;
        deleted.expect("deleting");
    }
}

/// Deletes the records of each partition of a topic before an offset, as Kafka's retention does.
///
/// # Panics
/// If Kafka refuses.
pub async fn delete_records(topic: &str, before: &[i64]) {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in (0..).zip(before) {
        list.add_partition_offset(topic, partition, Offset::Offset(*offset))
            .expect("an offset");
    }
    // Lives until the reply arrives: a dropped client never gets it.
    let admin = kafka_admin();
    let deleted = admin.delete_records(&list, &AdminOptions::new()).await;
    deleted.expect("deleting");
}

/// Deletes the live state of an installation, as `FLUSHALL` on a dedicated Redis would.
///
/// # Panics
/// If Redis is unavailable.
pub fn delete_live_state_of(namespace: &Namespace) {
    let deleted = delete_keys(&format!("{{{namespace}:*"));
    assert!(deleted >= 0, "a number of keys");
}

/// Deletes Redis keys by a pattern; returns their number.
///
/// # Panics
/// If the server fails.
pub fn delete_keys(pattern: &str) -> i64 {
    // Keys are arbitrary bytes, so they stay on the server.
    let script = "local cursor, deleted = '0', 0 repeat \
        local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000) cursor = page[1] \
        for _, key in ipairs(page[2]) do deleted = deleted + redis.call('UNLINK', key) end \
        until cursor == '0' return deleted";
    let deleted = run_redis_command(&["EVAL", script, "0", pattern]);
    deleted.trim().parse().expect("a number of keys")
}

/// Runs a Redis command and returns the reply.
///
/// # Panics
/// If Redis is unavailable or refuses.
#[must_use]
pub fn run_redis_command(command: &[&str]) -> String {
    let address = redis();
    let port = address.rsplit(':').next().expect("a port");
    let output = Command::new("redis-cli")
        .args(["-e", "-p", port])
        .args(command)
        .output();
    let output = output.expect("redis-cli");
    assert!(output.status.success(), "redis-cli: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
