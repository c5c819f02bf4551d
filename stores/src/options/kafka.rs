//! What can be set for the log on Kafka.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Secret;

/// How Kafka is reached, and how topics are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaOptions {
    /// Some brokers, `HOST:PORT` with commas between; the others are learnt from these.
    pub bootstrap_servers: String,
    /// What this program is called in the brokers' logs and quotas.
    pub client_id: String,
    /// `plaintext`, `ssl`, `sasl_plaintext` or `sasl_ssl`.
    pub security_protocol: String,
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub sasl_mechanism: String,
    /// The user.
    pub sasl_username: String,
    /// The user's password.
    pub sasl_password: Secret,
    /// A PEM file with the certificates of authorities to be trusted; those of the machine unless
    /// said.
    pub ca_file: String,
    /// On how many brokers each record of a new topic is; 0 for what the brokers are set to.
    pub replication_factor: u32,
    /// How many brokers must have a record of a new topic before it counts as written; 0 for what
    /// the brokers are set to.
    pub min_insync_replicas: u32,
    /// How long the records of a new topic are kept; -1 for ever. The log must reach back to the
    /// newest batch run, and as far as live state can be lost.
    pub retention_ms: i64,
    /// How large a record may be, in bytes, also in a new topic.
    pub record_bytes_max: u32,
    /// How long one request may take, and how long a fetch waits for records that are there.
    pub request_timeout_ms: u64,
    /// How long an append may take.
    pub delivery_timeout_ms: u64,
    /// How long a process that shares partitions may be silent before others take over.
    pub session_timeout_ms: u64,
    /// How many consumers one process keeps open, at most; one is needed for each partition that is
    /// read.
    pub consumers_max: usize,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        Self {
            bootstrap_servers: String::new(),
            client_id: "backstitch".to_owned(),
            security_protocol: String::new(),
            sasl_mechanism: String::new(),
            sasl_username: String::new(),
            sasl_password: Secret::default(),
            ca_file: String::new(),
            replication_factor: 0,
            min_insync_replicas: 0,
            retention_ms: -1,
            record_bytes_max: 16 << 20,
            request_timeout_ms: 10_000,
            delivery_timeout_ms: 30_000,
            session_timeout_ms: 10_000,
            consumers_max: 64,
        }
    }
}

impl KafkaOptions {
    pub(crate) const fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }

    pub(crate) const fn delivery_timeout(&self) -> Duration {
        Duration::from_millis(self.delivery_timeout_ms)
    }
}
