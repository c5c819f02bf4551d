//! The settings of the log on Kafka.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Secret;

/// The connection to Kafka, and the properties of new topics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaOptions {
    /// Some brokers as `HOST:PORT`, separated by commas; the others are discovered.
    pub bootstrap_servers: String,
    /// The name of this program in the brokers' logs and quotas.
    pub client_id: String,
    /// `plaintext`, `ssl`, `sasl_plaintext` or `sasl_ssl`.
    pub security_protocol: String,
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub sasl_mechanism: String,
    /// The user.
    pub sasl_username: String,
    /// The user's password.
    pub sasl_password: Secret,
    /// A PEM file with the certificates of trusted authorities; by default those of the machine.
    pub ca_file: String,
    /// The replication factor of a new topic; 0 for the default of the brokers.
    pub replication_factor: u32,
    /// The number of brokers that must store a record of a new topic before it counts as written; 0
    /// for the default of the brokers.
    pub min_insync_replicas: u32,
    /// The retention of a new topic; -1 for no limit. The log must reach back to the newest batch
    /// run, and as far as live state can be lost.
    pub retention_ms: i64,
    /// The maximum size of a record in bytes, also in a new topic.
    pub record_bytes_max: u32,
    /// The timeout of one request, and of a fetch of existing records, in milliseconds.
    pub request_timeout_ms: u64,
    /// The timeout of an append, in milliseconds.
    pub delivery_timeout_ms: u64,
    /// The time after which other processes take over the partitions of a silent process, in
    /// milliseconds.
    pub session_timeout_ms: u64,
    /// The maximum number of open consumers of a process. Each partition that is read needs one.
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
