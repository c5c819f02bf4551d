//! The settings of the bucket of the archive.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// The connection to the object store of the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3Options {
    /// The bucket; its full name begins with the namespace.
    pub bucket: String,
    /// The folder within the bucket; empty for its root.
    pub prefix: String,
    /// The endpoint of a store other than Amazon S3, such as `http://127.0.0.1:9000`.
    pub endpoint: String,
    /// The region; by default `AWS_REGION`.
    pub region: String,
    /// The id of the access key; by default `AWS_ACCESS_KEY_ID` or a role of the machine.
    pub access_key_id: String,
    /// The secret of the access key; by default `AWS_SECRET_ACCESS_KEY`, if it belongs to the same
    /// key.
    pub secret_access_key: Secret,
    /// A PEM file with the certificates of trusted authorities, in addition to the usual ones.
    pub ca_file: String,
    /// The timeout of a connection attempt, in milliseconds.
    pub connect_timeout_ms: u64,
    /// The timeout of one request, in milliseconds.
    pub request_timeout_ms: u64,
    /// The total time to retry a request, in milliseconds.
    pub retry_timeout_ms: u64,
}

impl Default for S3Options {
    fn default() -> Self {
        Self {
            bucket: String::new(),
            prefix: String::new(),
            endpoint: String::new(),
            region: String::new(),
            access_key_id: String::new(),
            secret_access_key: Secret::default(),
            ca_file: String::new(),
            connect_timeout_ms: 5_000,
            request_timeout_ms: 60_000,
            retry_timeout_ms: 60_000,
        }
    }
}
