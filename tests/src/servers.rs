//! The servers that tests use, as `deploy/servers up` starts them. They must be there: a test that
//! needs one fails without it. Ports come from the variables that `deploy/servers` reads too.

use stores::namespace::Namespace;
use uuid::Uuid;

/// The address of a server on this machine: the port of a variable, else `port`.
fn address(variable: &str, port: u16) -> String {
    let set = std::env::var(variable).ok();
    let port = set.map_or(port, |set| set.parse().expect("a port"));
    format!("127.0.0.1:{port}")
}

/// Kafka.
#[must_use]
pub fn kafka() -> String {
    address("KAFKA_PORT", 39092)
}

/// Cassandra.
#[must_use]
pub fn cassandra() -> String {
    address("CASSANDRA_PORT", 39042)
}

/// A Redis that is alone.
#[must_use]
pub fn redis() -> String {
    address("REDIS_PORT", 36379)
}

/// The first node of a Redis Cluster.
#[must_use]
pub fn redis_cluster() -> String {
    address("REDIS_CLUSTER_PORT", 36390)
}

/// PostgreSQL: user `backstitch`, no password.
#[must_use]
pub fn postgres() -> String {
    address("POSTGRES_PORT", 35432)
}

/// MariaDB: user `backstitch`, no password.
#[must_use]
pub fn mariadb() -> String {
    address("MARIADB_PORT", 33306)
}

/// S3: any key.
#[must_use]
pub fn s3() -> String {
    address("S3_PORT", 39000)
}

/// A namespace that nobody else has, so that tests share servers.
///
/// # Panics
/// Never: the name is one.
#[must_use]
pub fn namespace() -> Namespace {
    let id = Uuid::new_v4().simple().to_string();
    format!("t{}", &id[..12]).parse().expect("a namespace")
}
