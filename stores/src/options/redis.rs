//! How Redis is reached.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// Where Redis is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisOptions {
    /// The server as `host:port`, or some nodes of a cluster with commas between them. Whether it is a
    /// cluster is asked.
    pub nodes: String,
    /// The user; the default one unless said.
    pub user: String,
    /// The user's password.
    pub password: Secret,
    /// The number of the database; a cluster has only 0.
    pub database: i64,
    /// Whether to speak TLS.
    pub tls: bool,
    /// A file with the certificates of authorities to be trusted instead of the usual ones, as PEM.
    pub ca_file: String,
    /// How long to wait for a connection.
    pub connect_timeout_ms: u64,
    /// How long to wait for an answer.
    pub response_timeout_ms: u64,
    /// How long a call may be tried again, in all.
    pub call_timeout_ms: u64,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            nodes: String::new(),
            user: String::new(),
            password: Secret::default(),
            database: 0,
            tls: false,
            ca_file: String::new(),
            connect_timeout_ms: 2_000,
            response_timeout_ms: 5_000,
            call_timeout_ms: 15_000,
        }
    }
}
