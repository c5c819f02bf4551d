//! Alerts of reconciliations that are to be delivered to a topic and to the webhook, each in a
//! record.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::notices::{Delivery, DeliveryOutcome, DeliveryPayload, DeliveryQueue, PendingCount};
use crate::records::{Record, Records, Scan, to_value};
use crate::{Error, Result};

/// The topic of alerts: JSON by the name of the schedule.
pub const RECONCILIATION_ALERTS: &str = "backstitch.reconciliation-alerts.v1";

/// The scope of pending alerts.
const SCOPE: &str = "alerts";
/// The number of alerts that are read at once; more wait until these are delivered.
const PAGE_RECORDS: usize = 1_000;

/// An alert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// Its unique id; the name of its record.
    pub id: String,
    /// The schedule.
    pub schedule: String,
    /// The message: JSON that contains the id.
    pub message: Value,
    /// When it was raised, in milliseconds since the Unix epoch.
    #[serde(rename = "made_at_ms")]
    pub created_at_ms: i64,
}

/// An alert with the state of its delivery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PendingAlert {
    alert: Alert,
    topic_at_ms: Option<i64>,
    tries: i64,
    last_error: Option<String>,
    next_try_ms: i64,
    claimed_until_ms: i64,
    /// The id of the newest claim.
    claim: String,
}

/// Adds an alert, unless one with its id is pending.
///
/// # Errors
/// Those of the store.
pub async fn add(records: &dyn Records, alert: &Alert) -> Result<()> {
    let pending = PendingAlert {
        alert: alert.clone(),
        topic_at_ms: None,
        tries: 0,
        last_error: None,
        next_try_ms: 0,
        claimed_until_ms: 0,
        claim: String::new(),
    };
    let value = to_value(SCOPE, &pending)?;
    records
        .compare_and_set(SCOPE, &alert.id, None, Some(&value))
        .await?;
    Ok(())
}

/// Delivers pending alerts.
#[derive(Debug, Clone)]
pub struct Alerts(Arc<dyn Records>);

impl Alerts {
    /// The alerts of a record store.
    #[must_use]
    pub fn new(records: Arc<dyn Records>) -> Self {
        Self(records)
    }

    /// Pending alerts, with the versions of their records.
    async fn pending(&self) -> Result<Vec<(u64, PendingAlert)>> {
        let scan = Scan {
            limit: PAGE_RECORDS,
            ..Scan::default()
        };
        let records = self.0.scan(SCOPE, scan).await?;
        let parse = |record: Record| Ok((record.version, record.parse(SCOPE)?));
        records.into_iter().map(parse).collect()
    }
}

#[async_trait]
impl DeliveryQueue for Alerts {
    fn topic(&self) -> &'static str {
        RECONCILIATION_ALERTS
    }

    fn label(&self) -> &'static str {
        "reconciliation alerts"
    }

    async fn pending_count(&self, now_ms: i64) -> Result<PendingCount> {
        let all = self.pending().await?;
        let due = all.iter().filter(|(_, pending)| pending.is_due(now_ms));
        Ok(PendingCount {
            all: all.len() as u64,
            due: due.count() as u64,
        })
    }

    async fn claim(&self, now_ms: i64, until_ms: i64, limit: usize) -> Result<Vec<Delivery>> {
        let mut due = self.pending().await?;
        due.retain(|(_, pending)| pending.is_due(now_ms));
        due.sort_by_key(|(_, pending)| (pending.next_try_ms, pending.alert.created_at_ms));
        let mut claimed = Vec::new();
        for (version, mut pending) in due.into_iter().take(limit) {
            pending.claimed_until_ms = until_ms;
            pending.claim = Uuid::new_v4().simple().to_string();
            let value = to_value(SCOPE, &pending)?;
            let change =
                self.0
                    .compare_and_set(SCOPE, &pending.alert.id, Some(version), Some(&value));
            if !change.await? {
                continue;
            }
            let body = serde_json::to_vec(&pending.alert.message).unwrap_or_default();
            claimed.push(Delivery {
                id: pending.alert.id,
                key: pending.alert.schedule,
                body,
                created_at_ms: pending.alert.created_at_ms,
                topic_at_ms: pending.topic_at_ms,
                webhook_at_ms: None,
                tries: pending.tries,
                last_error: pending.last_error,
                until_ms,
                payload: DeliveryPayload::Alert {
                    version: version + 1,
                    record: value,
                },
            });
        }
        Ok(claimed)
    }

    async fn settle(&self, delivery: &Delivery, outcome: &DeliveryOutcome) -> Result<()> {
        let DeliveryPayload::Alert { version, record } = &delivery.payload else {
            let reason = format!("delivery {} is not an alert", delivery.id);
            return Err(Error::Refused(reason));
        };
        let value = match outcome.is_done {
            true => None,
            false => {
                let pending = serde_json::from_value(record.clone());
                let mut pending: PendingAlert =
                    pending.map_err(|error| Error::broken("reading an alert", error))?;
                pending.topic_at_ms = outcome.topic_at_ms;
                pending.tries = outcome.tries;
                pending.last_error.clone_from(&outcome.last_error);
                pending.next_try_ms = outcome.next_try_ms;
                pending.claimed_until_ms = 0;
                Some(to_value(SCOPE, &pending)?)
            }
        };
        // If another process has claimed the alert since, this changes nothing.
        self.0
            .compare_and_set(SCOPE, &delivery.id, Some(*version), value.as_ref())
            .await?;
        Ok(())
    }
}

impl PendingAlert {
    const fn is_due(&self, now_ms: i64) -> bool {
        self.next_try_ms <= now_ms && self.claimed_until_ms <= now_ms
    }
}
