//! The webhook that notices and alerts are posted to.

#[cfg(feature = "http")]
mod client;

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

#[cfg(feature = "http")]
pub use client::Webhook;

pub use crate::options::NoticesOptions;

/// The response of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookResponse {
    /// The message was accepted.
    Accepted,
    /// The message was not accepted: the reason, and the requested delay in seconds, if any.
    Retry(String, Option<u64>),
    /// The webhook does not want messages any more.
    Gone,
}

/// Sends messages to a webhook.
#[async_trait]
pub trait WebhookSender: Debug + Send + Sync {
    /// Posts a message once. A failure to connect is a response too.
    async fn post(&self, id: &str, timestamp_s: i64, body: &[u8]) -> WebhookResponse;

    /// The deadline of one post.
    fn timeout(&self) -> Duration;
}
