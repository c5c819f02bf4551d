//! Alerts of reconciliations, on their way to a topic and to the webhook: notes beside the records of comparisons.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::notices::{Deliveries, Delivery, NoticesWaiting, Of, Outcome};
use crate::reconciliations::{Note, Reconciliations};
use crate::{Error, Result};

/// The topic of alerts: JSON by the name of the schedule.
pub const RECONCILIATION_ALERTS: &str = "backstitch.reconciliation-alerts.v1";

/// The scope of their notes.
const SCOPE: &str = "alerts";
/// Alerts that are looked at, at most; more wait for these.
const LOOK: usize = 1_000;

/// An alert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// By what it is known wherever it is delivered to.
    pub id: String,
    /// The schedule.
    pub schedule: String,
    /// What is said: JSON, the id among it.
    pub message: Value,
    /// When it was made, in milliseconds since the Unix epoch.
    pub made_at_ms: i64,
}

/// An alert as it waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Waiting {
    alert: Alert,
    topic_at_ms: Option<i64>,
    tries: i64,
    last_error: Option<String>,
    next_try_ms: i64,
    claimed_until_ms: i64,
    /// Who has claimed it.
    claim: String,
}

/// Makes an alert, unless one of its id waits already.
///
/// # Errors
/// Those of the store.
pub async fn make(kept: &dyn Reconciliations, alert: &Alert) -> Result<()> {
    let waiting = Waiting {
        alert: alert.clone(),
        topic_at_ms: None,
        tries: 0,
        last_error: None,
        next_try_ms: 0,
        claimed_until_ms: 0,
        claim: String::new(),
    };
    let value = written(&waiting)?;
    kept.change_note(SCOPE, &alert.id, None, Some(&value))
        .await?;
    Ok(())
}

/// Where alerts wait.
#[derive(Debug, Clone)]
pub struct Alerts(Arc<dyn Reconciliations>);

impl Alerts {
    /// Those in a store.
    #[must_use]
    pub fn new(kept: Arc<dyn Reconciliations>) -> Self {
        Self(kept)
    }

    async fn all(&self) -> Result<Vec<(String, u64, Waiting)>> {
        let notes = self.0.notes(SCOPE, None, LOOK).await?;
        let read = |(name, note): (String, Note)| {
            let waiting = serde_json::from_value(note.value);
            let waiting = waiting.map_err(|error| Error::broken("reading alerts", error))?;
            Ok((name, note.version, waiting))
        };
        notes.into_iter().map(read).collect()
    }
}

#[async_trait]
impl Deliveries for Alerts {
    fn topic(&self) -> &'static str {
        RECONCILIATION_ALERTS
    }

    fn what(&self) -> &'static str {
        "alerts of reconciliations"
    }

    async fn waiting(&self, now_ms: i64) -> Result<NoticesWaiting> {
        let all = self.all().await?;
        let due = all.iter().filter(|(.., waiting)| waiting.is_due(now_ms));
        Ok(NoticesWaiting {
            all: all.len() as u64,
            due: due.count() as u64,
        })
    }

    async fn claim(&self, now_ms: i64, until_ms: i64, limit: usize) -> Result<Vec<Delivery>> {
        let mut due = self.all().await?;
        due.retain(|(.., waiting)| waiting.is_due(now_ms));
        due.sort_by_key(|(.., waiting)| (waiting.next_try_ms, waiting.alert.made_at_ms));
        let mut claimed = Vec::new();
        for (name, version, mut waiting) in due.into_iter().take(limit) {
            waiting.claimed_until_ms = until_ms;
            waiting.claim = Uuid::new_v4().simple().to_string();
            let value = written(&waiting)?;
            let change = self
                .0
                .change_note(SCOPE, &name, Some(version), Some(&value));
            if !change.await? {
                continue;
            }
            let body = serde_json::to_vec(&waiting.alert.message).unwrap_or_default();
            claimed.push(Delivery {
                id: waiting.alert.id.clone(),
                key: waiting.alert.schedule.clone(),
                body,
                made_at_ms: waiting.alert.made_at_ms,
                topic_at_ms: waiting.topic_at_ms,
                webhook_at_ms: None,
                tries: waiting.tries,
                last_error: waiting.last_error.clone(),
                until_ms,
                of: Of::Alert {
                    version: version + 1,
                    waiting: value,
                },
            });
        }
        Ok(claimed)
    }

    async fn settle(&self, delivery: &Delivery, outcome: &Outcome) -> Result<()> {
        let Of::Alert { version, waiting } = &delivery.of else {
            return Err(Error::Refused("this is no alert".to_owned()));
        };
        // What is done has been told of; its record says the rest.
        let value = match outcome.is_done {
            true => None,
            false => {
                let waiting = serde_json::from_value(waiting.clone());
                let mut waiting: Waiting =
                    waiting.map_err(|error| Error::broken("reading alerts", error))?;
                waiting.topic_at_ms = outcome.topic_at_ms;
                waiting.tries = outcome.tries;
                waiting.last_error.clone_from(&outcome.last_error);
                waiting.next_try_ms = outcome.next_try_ms;
                waiting.claimed_until_ms = 0;
                Some(written(&waiting)?)
            }
        };
        // A claim that somebody else has taken over by now is let be.
        self.0
            .change_note(SCOPE, &delivery.id, Some(*version), value.as_ref())
            .await?;
        Ok(())
    }
}

impl Waiting {
    const fn is_due(&self, now_ms: i64) -> bool {
        self.next_try_ms <= now_ms && self.claimed_until_ms <= now_ms
    }
}

fn written(waiting: &Waiting) -> Result<Value> {
    serde_json::to_value(waiting).map_err(|error| Error::broken("writing an alert", error))
}
