//! Notices that much of an application's capacity is in use: to the log and to a webhook.
//!
//! A notice is made in the transaction that connects an athlete or changes a capacity, once for each
//! threshold and capacity. It is delivered first and marked after: a crash in between delivers it once more, under the
//! same id. Who delivers claims it for a while, so two processes don't both do it.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;

use crate::Result;

/// The topic of notices: JSON by the id of the application.
pub const CAPACITY_NOTICES: &str = "backstitch.capacity-notices.v1";

/// Parts of a capacity, in percent, of which a notice is made.
pub const THRESHOLDS: [i64; 3] = [80, 90, 100];

/// That so much of a capacity came in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Its number, which rises.
    pub id: i64,
    /// Of which application.
    pub application_id: i64,
    /// In percent: one of [`THRESHOLDS`].
    pub threshold: i64,
    /// The capacity then.
    pub athlete_capacity: i64,
    /// How many athletes were connected.
    pub connected: i64,
    /// When, in milliseconds since 1970, by the clock of the database.
    pub made_at_ms: i64,
    /// Since when it is in the log.
    pub topic_at_ms: Option<i64>,
    /// When the webhook took it.
    pub webhook_at_ms: Option<i64>,
    /// When delivery to the webhook was given up.
    pub failed_at_ms: Option<i64>,
    /// How often delivery to the webhook was tried.
    pub tries: i64,
    /// Why the last try failed.
    pub last_error: Option<String>,
}

/// A notice that is to be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The notice.
    pub notice: Notice,
    /// Until when nobody else gets it, in milliseconds since 1970.
    pub until_ms: i64,
    /// The application's name; empty if it is gone.
    pub name: String,
    /// Whose it is.
    pub owner: Value,
    /// Whether the capacity is enforced.
    pub is_enforced: bool,
}

/// The message of a notice.
#[derive(Debug, Serialize)]
struct Message<'a> {
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

impl Claimed {
    /// By what it is known wherever it is delivered to.
    #[must_use]
    pub fn message_id(&self) -> String {
        format!("capacity-notice-{}", self.notice.id)
    }

    /// The message: JSON, with the name, owner and enforcement of the moment when it was claimed.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        let notice = &self.notice;
        let at = jiff::Timestamp::from_millisecond(notice.made_at_ms).unwrap_or_default();
        let message = Message {
            id: &self.message_id(),
            r#type: "capacity.threshold",
            at: at.to_string(),
            application_id: notice.application_id,
            name: &self.name,
            owner: &self.owner,
            threshold_percent: notice.threshold,
            connected_athletes: notice.connected,
            athlete_capacity: notice.athlete_capacity,
            enforced: self.is_enforced,
        };
        // Texts and numbers always can be written.
        serde_json::to_vec(&message).unwrap_or_default()
    }
}

/// What became of a notice that was claimed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
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
    /// When it is to be tried again.
    pub next_try_ms: i64,
    /// Whether there is nothing more to do.
    pub is_done: bool,
}

/// How many notices are to be delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoticesWaiting {
    /// Sooner or later.
    pub all: u64,
    /// Now: nobody has claimed them, and none of them is to be tried later.
    pub due: u64,
}

/// Where notices wait.
#[async_trait]
pub trait Notices: std::fmt::Debug + Send + Sync {
    /// Notices, of all applications or one, newest first, before the one with a number, at most `limit`.
    async fn notices(
        &self,
        application_id: Option<i64>,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Notice>>;

    /// How many are to be delivered.
    async fn notices_waiting(&self, now_ms: i64) -> Result<NoticesWaiting>;

    /// Takes notices to be delivered, those first that wait longest, at most `limit`: nobody else gets them until
    /// then.
    async fn claim_notices(&self, now_ms: i64, until_ms: i64, limit: usize)
    -> Result<Vec<Claimed>>;

    /// Writes down what became of a notice that was claimed, and lets go of it, unless somebody else has claimed it
    /// meanwhile.
    async fn settle_notice(&self, claimed: &Claimed, outcome: &Outcome) -> Result<()>;
}

/// A message that is claimed, to be brought into a topic and to the webhook.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// By what it is known wherever it is delivered to.
    pub id: String,
    /// The key of its record in the topic.
    pub key: String,
    /// What is said.
    pub body: Vec<u8>,
    /// As in [`Notice`].
    pub made_at_ms: i64,
    /// As in [`Notice`].
    pub topic_at_ms: Option<i64>,
    /// As in [`Notice`].
    pub webhook_at_ms: Option<i64>,
    /// As in [`Notice`].
    pub tries: i64,
    /// As in [`Notice`].
    pub last_error: Option<String>,
    /// Until when nobody else gets it.
    pub until_ms: i64,
    /// What it is made of.
    pub(crate) of: Of,
}

/// What a delivery is made of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Of {
    Capacity(Box<Claimed>),
    Alert { version: u64, waiting: Value },
}

/// Where messages wait that go to a topic and to the webhook. They are delivered first and marked after, so a crash in
/// between delivers one once more, under the same id.
#[async_trait]
pub trait Deliveries: std::fmt::Debug + Send + Sync {
    /// The topic that they go to.
    fn topic(&self) -> &'static str;

    /// What they are, for people.
    fn what(&self) -> &'static str;

    /// How many are to be delivered.
    async fn waiting(&self, now_ms: i64) -> Result<NoticesWaiting>;

    /// Takes some, as [`Notices::claim_notices`].
    async fn claim(&self, now_ms: i64, until_ms: i64, limit: usize) -> Result<Vec<Delivery>>;

    /// Writes down what became of one, as [`Notices::settle_notice`].
    async fn settle(&self, delivery: &Delivery, outcome: &Outcome) -> Result<()>;
}

/// Notices of capacities.
#[derive(Debug, Clone)]
pub struct CapacityNotices(Arc<dyn Notices>);

impl CapacityNotices {
    /// Those in a store.
    #[must_use]
    pub fn new(notices: Arc<dyn Notices>) -> Self {
        Self(notices)
    }
}

#[async_trait]
impl Deliveries for CapacityNotices {
    fn topic(&self) -> &'static str {
        CAPACITY_NOTICES
    }

    fn what(&self) -> &'static str {
        "notices of capacities"
    }

    async fn waiting(&self, now_ms: i64) -> Result<NoticesWaiting> {
        self.0.notices_waiting(now_ms).await
    }

    async fn claim(&self, now_ms: i64, until_ms: i64, limit: usize) -> Result<Vec<Delivery>> {
        let claimed = self.0.claim_notices(now_ms, until_ms, limit).await?;
        let delivery = |claimed: Claimed| Delivery {
            id: claimed.message_id(),
            key: claimed.notice.application_id.to_string(),
            body: claimed.message(),
            made_at_ms: claimed.notice.made_at_ms,
            topic_at_ms: claimed.notice.topic_at_ms,
            webhook_at_ms: claimed.notice.webhook_at_ms,
            tries: claimed.notice.tries,
            last_error: claimed.notice.last_error.clone(),
            until_ms: claimed.until_ms,
            of: Of::Capacity(Box::new(claimed)),
        };
        Ok(claimed.into_iter().map(delivery).collect())
    }

    async fn settle(&self, delivery: &Delivery, outcome: &Outcome) -> Result<()> {
        match &delivery.of {
            Of::Capacity(claimed) => self.0.settle_notice(claimed, outcome).await,
            Of::Alert { .. } => Err(crate::Error::Refused(
                "this is no notice of a capacity".to_owned(),
            )),
        }
    }
}
