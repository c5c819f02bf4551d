//! The settings of the webhook of notices.

use serde::{Deserialize, Serialize};

use crate::Secret;

/// The webhook that receives notices in addition to the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NoticesOptions {
    /// The URL that notices are posted to, such as `https://example.com/hooks`; empty for none.
    pub webhook_url: Secret,
    /// The secret that signs notices: `whsec_` and 24 to 64 bytes in base64.
    pub webhook_secret: Secret,
    /// The previous secret, while both are in use; empty for none.
    pub webhook_secret_before: Secret,
    /// A PEM file with the certificates of trusted authorities, in addition to the usual ones.
    pub ca_file: String,
    /// The timeout of one delivery, in milliseconds.
    pub request_timeout_ms: u64,
    /// The maximum pause before a retry, in milliseconds. The first pause is a second, and each
    /// pause is twice the one before.
    pub retry_max_ms: u64,
    /// The age after which delivery of a notice is given up, in milliseconds.
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
