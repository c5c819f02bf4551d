//! How to reach Cassandra.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// Where batch rows, run records and leases are: Cassandra, or ScyllaDB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CassandraOptions {
    /// Some nodes of the cluster, `HOST:PORT` with commas between them; the others are found.
    pub nodes: String,
    /// The user; empty where none is asked for.
    pub user: String,
    /// The password of the user.
    pub password: Secret,
    /// Whether to speak TLS.
    pub tls: bool,
    /// A file with the certificates of authorities that are trusted, as PEM; needed for TLS.
    pub ca_file: String,
    /// The data center whose nodes are asked; needed where there are several.
    pub local_datacenter: String,
    /// The replication of the keyspace that `migrate` makes, as CQL:
    /// `{'class': 'NetworkTopologyStrategy', 'dc1': 3}`. Unless said, one copy on a cluster of one
    /// node, else three in the local data center, for ScyllaDB without tablets: keyspaces with
    /// tablets have no lightweight transactions in many of its versions. What is said here is taken as it
    /// is; for ScyllaDB write `{…} AND tablets = {'enabled': false}`.
    pub replication: String,
    /// How many replicas must answer: `local_quorum`, `quorum`, `local_one`, `one` or `all`.
    /// With fewer than a quorum a read may miss what was written. Where the keyspace has copies in
    /// several data centers only `quorum` and `all` are taken: quorums of one data center each have
    /// nothing in common, and answers would be wrong.
    pub consistency: String,
    /// Among whom a lightweight transaction is agreed: `local_serial`, or `serial` where batch
    /// runs start in several data centers.
    pub serial_consistency: String,
    /// How long to wait for a connection.
    pub connect_timeout_ms: u64,
    /// How long one request may take.
    pub request_timeout_ms: u64,
    /// How long a request may be tried again, in all.
    pub retry_timeout_ms: u64,
    /// Requests that are under way at the same time, at most; fewer while the servers are slow.
    pub in_flight_max: usize,
    /// How long a lease lasts whose holder died; it is renewed at a third of it.
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
    /// The nodes, one by one.
    pub(crate) fn node_list(&self) -> impl Iterator<Item = &str> {
        let nodes = self.nodes.split(',').map(str::trim);
        nodes.filter(|node| !node.is_empty())
    }
}
