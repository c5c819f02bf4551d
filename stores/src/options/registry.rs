//! How the schema registry is reached.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// Where the schema registry is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegistryOptions {
    /// The address of a registry that speaks Confluent's protocol, such as `http://127.0.0.1:8081`.
    pub url: String,
    /// The user; empty for none.
    pub user: String,
    /// The user's password.
    pub password: Secret,
    /// A file with the certificates of authorities to be trusted besides the usual ones, as PEM.
    pub ca_file: String,
    /// How long one request may take.
    pub request_timeout_ms: u64,
}

impl Default for RegistryOptions {
    fn default() -> Self {
        Self {
            url: String::new(),
            user: String::new(),
            password: Secret::default(),
            ca_file: String::new(),
            request_timeout_ms: 5_000,
        }
    }
}
