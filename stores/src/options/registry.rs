//! The settings of the schema registry.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// The connection to the schema registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegistryOptions {
    /// The URL of a registry with Confluent's protocol, such as `http://127.0.0.1:8081`.
    pub url: String,
    /// The user; empty for none.
    pub user: String,
    /// The user's password.
    pub password: Secret,
    /// A PEM file with the certificates of trusted authorities, in addition to the usual ones.
    pub ca_file: String,
    /// The timeout of one request, in milliseconds.
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
