//! Notices about the used capacity of an application, delivered to the log and to a webhook.
//!
//! A notice is created in the transaction that connects an athlete or changes a capacity, once for
//! each threshold and capacity. It is delivered first and marked afterwards, so a crash in between
//! repeats it with the same id. A sender claims it for a limited time, so that two processes don't
//! deliver it at once.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;

use crate::Result;

/// The topic of notices: JSON by the id of the application.
pub const CAPACITY_NOTICES: &str = "backstitch.capacity-notices.v1";

/// The used parts of a capacity, in percent, that create a notice.
pub const THRESHOLDS_PERCENT: [i64; 3] = [80, 90, 100];

/// A notice about a reached threshold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The ascending number.
    pub id: i64,
    /// The application.
    pub application_id: i64,
    /// The threshold in percent, one of [`THRESHOLDS_PERCENT`].
    pub threshold: i64,
    /// The capacity at that time.
    pub athlete_capacity: i64,
    /// The number of connected athletes at that time.
    pub connected: i64,
    /// When it was created, in milliseconds since the Unix epoch, by the clock of the database.
    pub created_at_ms: i64,
    /// When it was appended to the log.
    pub topic_at_ms: Option<i64>,
    /// When the webhook accepted it.
    pub webhook_at_ms: Option<i64>,
    /// When delivery to the webhook was given up.
    pub failed_at_ms: Option<i64>,
    /// The number of tries to deliver it to the webhook.
    pub tries: i64,
    /// The reason why the last try failed.
    pub last_error: Option<String>,
}

/// A notice that a process has claimed for delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedNotice {
    /// The notice.
    pub notice: Notice,
    /// The end of the claim, in milliseconds since the Unix epoch.
    pub until_ms: i64,
    /// The name of the application; empty if it does not exist any more.
    pub name: String,
    /// The owner of the application.
    pub owner: Value,
    /// True if the capacity is enforced.
    pub is_enforced: bool,
}

/// The message of a notice.
#[derive(Debug, Serialize)]
struct NoticeMessage<'a> {
    id: &'a str,
    r#type: &'static str,
    at: String,
    application_id: i64,
    name: &'a str,
    owner: &'a Value,
    threshold_percent: i64,
    connected_athletes: i64,
    athlete_capacity: i64,
    enforced: bool,
}

impl ClaimedNotice {
    /// The unique id of the message.
    #[must_use]
    pub fn message_id(&self) -> String {
        format!("capacity-notice-{}", self.notice.id)
    }

    /// The message as JSON, with the name, owner and enforcement at the time of the claim.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        let notice = &self.notice;
        let created_at =
            jiff::Timestamp::from_millisecond(notice.created_at_ms).unwrap_or_default();
        let message = NoticeMessage {
            id: &self.message_id(),
            r#type: "capacity.threshold",
            at: created_at.to_string(),
            application_id: notice.application_id,
            name: &self.name,
            owner: &self.owner,
            threshold_percent: notice.threshold,
            connected_athletes: notice.connected,
            athlete_capacity: notice.athlete_capacity,
            enforced: self.is_enforced,
        };
        // Texts and numbers can always be serialized.
        serde_json::to_vec(&message).unwrap_or_default()
    }
}

/// The result of a delivery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryOutcome {
    /// As in [`Notice`].
    pub topic_at_ms: Option<i64>,
    /// As in [`Notice`].
    pub webhook_at_ms: Option<i64>,
    /// As in [`Notice`].
    pub failed_at_ms: Option<i64>,
    /// As in [`Notice`].
    pub tries: i64,
    /// As in [`Notice`]; at most 1,024 bytes.
    pub last_error: Option<String>,
    /// When to try again.
    pub next_try_ms: i64,
    /// True if the delivery is finished.
    pub is_done: bool,
}

/// The number of messages to deliver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PendingCount {
    /// All messages.
    pub all: u64,
    /// Messages that are due now: not claimed, and not scheduled for later.
    pub due: u64,
}

/// The queue of notices.
#[async_trait]
pub trait Notices: std::fmt::Debug + Send + Sync {
    /// Notices of all applications or one, newest first, before the one with a number, at most
    /// `limit`.
    async fn notices(
        &self,
        application_id: Option<i64>,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Notice>>;

    /// Counts the notices to deliver.
    async fn pending_notices(&self, now_ms: i64) -> Result<PendingCount>;

    /// Claims notices until `until_ms`, the longest waiting first, at most `limit`.
    async fn claim_notices(
        &self,
        now_ms: i64,
        until_ms: i64,
        limit: usize,
    ) -> Result<Vec<ClaimedNotice>>;

    /// Records the result of a claimed notice and ends the claim, unless another process has
    /// claimed the notice since.
    async fn settle_notice(&self, claimed: &ClaimedNotice, outcome: &DeliveryOutcome)
    -> Result<()>;
}

/// A claimed message, to be delivered to a topic and to the webhook.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// The unique id of the message.
    pub id: String,
    /// The key of its record in the topic.
    pub key: String,
    /// The message.
    pub body: Vec<u8>,
    /// As in [`Notice`].
    pub created_at_ms: i64,
    /// As in [`Notice`].
    pub topic_at_ms: Option<i64>,
    /// As in [`Notice`].
    pub webhook_at_ms: Option<i64>,
    /// As in [`Notice`].
    pub tries: i64,
    /// As in [`Notice`].
    pub last_error: Option<String>,
    /// The end of the claim, in milliseconds since the Unix epoch.
    pub until_ms: i64,
    /// The record behind the message.
    pub(crate) payload: DeliveryPayload,
}

/// The record behind a message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum DeliveryPayload {
    Capacity(Box<ClaimedNotice>),
    Alert { version: u64, record: Value },
}

/// A queue of messages for a topic and the webhook. A message is delivered first and marked
/// afterwards, so a crash in between repeats it with the same id.
#[async_trait]
pub trait DeliveryQueue: std::fmt::Debug + Send + Sync {
    /// The topic of the messages.
    fn topic(&self) -> &'static str;

    /// The kind of message, for logs.
    fn label(&self) -> &'static str;

    /// Counts the messages to deliver.
    async fn pending_count(&self, now_ms: i64) -> Result<PendingCount>;

    /// Claims messages, like [`Notices::claim_notices`].
    async fn claim(&self, now_ms: i64, until_ms: i64, limit: usize) -> Result<Vec<Delivery>>;

    /// Records the result of a message, like [`Notices::settle_notice`].
    async fn settle(&self, delivery: &Delivery, outcome: &DeliveryOutcome) -> Result<()>;
}

/// The queue of capacity notices.
#[derive(Debug, Clone)]
pub struct CapacityNotices(Arc<dyn Notices>);

impl CapacityNotices {
    /// The notices of a store.
    #[must_use]
    pub fn new(notices: Arc<dyn Notices>) -> Self {
        Self(notices)
    }
}

#[async_trait]
impl DeliveryQueue for CapacityNotices {
    fn topic(&self) -> &'static str {
        CAPACITY_NOTICES
    }

    fn label(&self) -> &'static str {
        "capacity notices"
    }

    async fn pending_count(&self, now_ms: i64) -> Result<PendingCount> {
        self.0.pending_notices(now_ms).await
    }

    async fn claim(&self, now_ms: i64, until_ms: i64, limit: usize) -> Result<Vec<Delivery>> {
        let claimed = self.0.claim_notices(now_ms, until_ms, limit).await?;
        let to_delivery = |claimed: ClaimedNotice| Delivery {
            id: claimed.message_id(),
            key: claimed.notice.application_id.to_string(),
            body: claimed.message(),
            created_at_ms: claimed.notice.created_at_ms,
            topic_at_ms: claimed.notice.topic_at_ms,
            webhook_at_ms: claimed.notice.webhook_at_ms,
            tries: claimed.notice.tries,
            last_error: claimed.notice.last_error.clone(),
            until_ms: claimed.until_ms,
            payload: DeliveryPayload::Capacity(Box::new(claimed)),
        };
        Ok(claimed.into_iter().map(to_delivery).collect())
    }

    async fn settle(&self, delivery: &Delivery, outcome: &DeliveryOutcome) -> Result<()> {
        match &delivery.payload {
            DeliveryPayload::Capacity(claimed) => self.0.settle_notice(claimed, outcome).await,
            DeliveryPayload::Alert { .. } => Err(crate::Error::Refused(
                "this delivery is not a capacity notice".to_owned(),
            )),
        }
    }
}
