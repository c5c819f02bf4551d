//! The settings of Cassandra.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// The connection to Cassandra or ScyllaDB, which stores batch rows, run records and leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CassandraOptions {
    /// Some nodes of the cluster as `HOST:PORT`, separated by commas; the others are discovered.
    pub nodes: String,
    /// The user; empty for no authentication.
    pub user: String,
    /// The password of the user.
    pub password: Secret,
    /// True if to use TLS.
    pub tls: bool,
    /// A PEM file with the certificates of trusted authorities; required for TLS.
    pub ca_file: String,
    /// The data center of the nodes to contact; required if there are several.
    pub local_datacenter: String,
    /// The replication of the keyspace that `migrate` creates, as CQL: `{'class':
    /// 'NetworkTopologyStrategy', 'dc1': 3}`. The default is one copy on a cluster of one node,
    /// otherwise three in the local data center. For ScyllaDB, the default disables tablets,
    /// because keyspaces with tablets have no lightweight transactions in many of its versions. A
    /// value is used unchanged; for ScyllaDB write `{…} AND tablets = {'enabled': false}`.
    pub replication: String,
    /// The number of replicas that must answer: `local_quorum`, `quorum`, `local_one`, `one` or
    /// `all`. With fewer than a quorum, a read may miss earlier writes. If the keyspace has copies
    /// in several data centers, only `quorum` and `all` are accepted: quorums of different data
    /// centers don't overlap, and results would be wrong.
    pub consistency: String,
    /// The replicas that agree on a lightweight transaction: `local_serial`, or `serial` if batch
    /// runs start in several data centers.
    pub serial_consistency: String,
    /// The timeout of a connection attempt, in milliseconds.
    pub connect_timeout_ms: u64,
    /// The timeout of one request, in milliseconds.
    pub request_timeout_ms: u64,
    /// The total time to retry a request, in milliseconds.
    pub retry_timeout_ms: u64,
    /// The maximum number of concurrent requests; fewer while the servers are slow.
    pub in_flight_max: usize,
    /// The duration of a lease after its holder died, in milliseconds. A lease is renewed at a
    /// third of it.
    pub lease_ms: u64,
}

impl Default for CassandraOptions {
    fn default() -> Self {
        Self {
            nodes: String::new(),
            user: String::new(),
            password: Secret::default(),
            tls: false,
            ca_file: String::new(),
            local_datacenter: String::new(),
            replication: String::new(),
            consistency: "local_quorum".to_owned(),
            serial_consistency: "local_serial".to_owned(),
            connect_timeout_ms: 5_000,
            request_timeout_ms: 10_000,
            retry_timeout_ms: 30_000,
            in_flight_max: 256,
            lease_ms: 20_000,
        }
    }
}

impl CassandraOptions {
    /// The nodes of the list.
    pub(crate) fn node_list(&self) -> impl Iterator<Item = &str> {
        let nodes = self.nodes.split(',').map(str::trim);
        nodes.filter(|node| !node.is_empty())
    }
}
