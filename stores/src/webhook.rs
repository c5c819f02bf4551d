//! The webhook that notices and alerts are posted to.

#[cfg(feature = "http")]
mod client;

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

#[cfg(feature = "http")]
pub use client::Webhook;

pub use crate::options::NoticesOptions;

/// What a webhook says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It has taken the message.
    Taken,
    /// It has not: why, and after how many seconds it wants to be asked again, if it says so.
    Later(String, Option<u64>),
    /// It wants no more messages.
    Gone,
}

/// Where messages are posted to.
#[async_trait]
pub trait Hook: Debug + Send + Sync {
    /// Posts a message once. That nobody answers is an answer too.
    async fn post(&self, id: &str, at_s: i64, body: &[u8]) -> Answer;

    /// How long one post may take.
    fn timeout(&self) -> Duration;
}
