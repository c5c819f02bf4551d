//! How the bucket of the archive is reached.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// Where the archive is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3Options {
    /// The bucket; the namespace stands before its name.
    pub bucket: String,
    /// The folder within the bucket; empty for its root.
    pub prefix: String,
    /// The address of another store than Amazon's, such as `http://127.0.0.1:9000`.
    pub endpoint: String,
    /// The region; `AWS_REGION` unless said.
    pub region: String,
    /// The id of the access key; `AWS_ACCESS_KEY_ID` or a role of the machine unless said.
    pub access_key_id: String,
    /// The secret of the access key; `AWS_SECRET_ACCESS_KEY`, if that is of the same key, unless said.
    pub secret_access_key: Secret,
    /// A file with the certificates of authorities to be trusted besides the usual ones, as PEM.
    pub ca_file: String,
    /// How long to wait for a connection.
    pub connect_timeout_ms: u64,
    /// How long one request may take.
    pub request_timeout_ms: u64,
    /// How long a request may be tried again, in all.
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
