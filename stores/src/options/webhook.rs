//! How the webhook of notices is reached.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// Where notices go, besides the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NoticesOptions {
    /// The address that notices are posted to, such as `https://example.com/hooks`; none if it is empty.
    pub webhook_url: Secret,
    /// The secret that they are signed with: `whsec_` and 24 to 64 bytes in base64.
    pub webhook_secret: Secret,
    /// The secret of before, while both are in use; empty for none.
    pub webhook_secret_before: Secret,
    /// A file with the certificates of authorities to be trusted besides the usual ones, as PEM.
    pub ca_file: String,
    /// How long one delivery may take.
    pub request_timeout_ms: u64,
    /// The longest pause before a delivery is tried again; the first one is a second, each is twice the one before.
    pub retry_max_ms: u64,
    /// How old a notice may become before its delivery is given up.
    pub give_up_after_ms: u64,
}

impl Default for NoticesOptions {
    fn default() -> Self {
        Self {
            webhook_url: Secret::default(),
            webhook_secret: Secret::default(),
            webhook_secret_before: Secret::default(),
            ca_file: String::new(),
            request_timeout_ms: 10_000,
            retry_max_ms: 3_600_000,
            give_up_after_ms: 3 * 86_400_000,
        }
    }
}
