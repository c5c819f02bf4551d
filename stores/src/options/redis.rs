//! The settings of Redis.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// The connection to Redis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisOptions {
    /// The server as `host:port`, or some nodes of a cluster, separated by commas. The cluster mode
    /// is detected.
    pub nodes: String,
    /// The user; by default the default user.
    pub user: String,
    /// The user's password.
    pub password: Secret,
    /// The number of the database; a cluster has only 0.
    pub database: i64,
    /// True if to use TLS.
    pub tls: bool,
    /// A PEM file with the certificates of trusted authorities, instead of the usual ones.
    pub ca_file: String,
    /// The timeout of a connection attempt, in milliseconds.
    pub connect_timeout_ms: u64,
    /// The timeout of a response, in milliseconds.
    pub response_timeout_ms: u64,
    /// The total time to retry a call, in milliseconds.
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
