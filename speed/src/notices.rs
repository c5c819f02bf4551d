//! Notices of capacities and alerts of reconciliations, on their way to the log and to the webhook.
//!
//! They wait where they were made. Whoever delivers claims some, so that no other process does the same;
//! what a crash left claimed is free again when the claim ends.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use stores::alerts::Alerts;
use stores::log::{NewRecords, Partitions};
use stores::notices::{CapacityNotices, Deliveries, Delivery, Outcome};
use stores::webhook::Answer;
use tokio_util::sync::CancellationToken;

use crate::worker::pause;
use crate::{Result, SpeedOptions, SpeedPorts};

/// Notices that are claimed, and brought into the log, at once.
const CLAIMED: usize = 64;
/// Notices that are posted side by side.
const AT_ONCE: usize = 8;
/// How much longer than posts may take they are claimed, in milliseconds: for the log and for what became of them.
const CLAIM_MORE_MS: i64 = 60_000;
/// How often it is looked for alerts, at most.
const ALERTS_INTERVAL_MS: u64 = 5_000;
/// The first pause before a notice is posted again; each is twice the one before.
const PAUSE_MS: u64 = 1_000;
/// Of why a post failed so many bytes are kept.
const ERROR_BYTES_MAX: usize = 500;

/// Delivers notices.
#[derive(Debug, Clone)]
pub(crate) struct Deliverer {
    waiting: Arc<dyn Deliveries>,
    told: Told,
    ports: SpeedPorts,
    partitions: Partitions,
    look_interval_ms: u64,
    retry_max_ms: u64,
    give_up_after_ms: u64,
}

impl Deliverer {
    /// Of notices of capacities.
    pub(crate) fn of_capacities(ports: &SpeedPorts, options: &SpeedOptions) -> Self {
        let waiting = CapacityNotices::new(Arc::clone(&ports.canon) as _);
        Self::new(Arc::new(waiting), Told::NOTICES, ports, options)
    }

    /// Of alerts of reconciliations. They are few, and nobody waits for the second.
    pub(crate) fn of_alerts(ports: &SpeedPorts, options: &SpeedOptions) -> Self {
        let waiting = Alerts::new(Arc::clone(&ports.records));
        let this = Self::new(Arc::new(waiting), Told::ALERTS, ports, options);
        Self {
            look_interval_ms: this.look_interval_ms.max(ALERTS_INTERVAL_MS),
            ..this
        }
    }

    fn new(
        waiting: Arc<dyn Deliveries>,
        told: Told,
        ports: &SpeedPorts,
        options: &SpeedOptions,
    ) -> Self {
        Self {
            waiting,
            told,
            ports: ports.clone(),
            partitions: Partitions::new(Arc::clone(&ports.log_writes), options.partitions),
            look_interval_ms: options.look_interval_ms.max(1),
            retry_max_ms: options.notice_retry_max_ms.max(PAUSE_MS),
            give_up_after_ms: options.notice_give_up_after_ms,
        }
    }

    /// Delivers what waits, now and then, until `stop`. Errors are told and tried again: counting does not
    /// wait for them.
    pub(crate) async fn watch(self, stop: CancellationToken) -> Result<()> {
        while !stop.is_cancelled() {
            if let Err(error) = self.deliver(&stop).await {
                let what = self.waiting.what();
                tracing::warn!(%error, what, "messages can't be delivered; trying again");
            }
            pause(self.look_interval_ms, &stop).await;
        }
        Ok(())
    }

    /// Tries everything that is to be delivered now, each once.
    pub(crate) async fn deliver(&self, stop: &CancellationToken) -> Result<()> {
        // What is to be tried again while this goes on has had its turn.
        let due_ms = self.ports.clock.now_ms();
        let waiting = self.waiting.waiting(due_ms).await?;
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!(self.told.waiting).set(waiting.all as f64);
        if waiting.due == 0 {
            return Ok(());
        }
        while !stop.is_cancelled() {
            let until_ms = self.ports.clock.now_ms().saturating_add(self.claim_ms());
            let claimed = self.waiting.claim(due_ms, until_ms, CLAIMED).await?;
            if claimed.is_empty() {
                return Ok(());
            }
            self.append(&claimed).await?;
            // Those that are under way come to their end whatever becomes of another one.
            let (mut delivering, mut outcome) = (FuturesUnordered::new(), Ok(()));
            for claimed in &claimed {
                if delivering.len() >= AT_ONCE {
                    outcome = outcome.and(delivering.next().await.unwrap_or(Ok(())));
                }
                delivering.push(self.one(claimed, stop));
            }
            while let Some(done) = delivering.next().await {
                outcome = outcome.and(done);
            }
            outcome?;
        }
        Ok(())
    }

    fn post_timeout_ms(&self) -> i64 {
        let timeout = self.ports.hook.as_ref().map(|hook| hook.timeout());
        let timeout_ms = timeout.unwrap_or_default().as_millis();
        i64::try_from(timeout_ms).unwrap_or(i64::MAX)
    }

    /// How long notices are claimed: as long as all of them may take.
    fn claim_ms(&self) -> i64 {
        let rounds = i64::try_from(CLAIMED.div_ceil(AT_ONCE)).unwrap_or(i64::MAX);
        let posts_ms = self.post_timeout_ms().saturating_mul(rounds);
        posts_ms.saturating_add(CLAIM_MORE_MS)
    }

    /// Brings those into the log that are not in it.
    async fn append(&self, claimed: &[Delivery]) -> Result<()> {
        let mut told = Vec::new();
        for claimed in claimed {
            if claimed.topic_at_ms.is_none() {
                told.push((claimed.key.clone(), claimed.body.clone()));
            }
        }
        if told.is_empty() {
            return Ok(());
        }
        let count = told.len() as u64;
        let topic = self.waiting.topic();
        let partitions = self.partitions.of(topic).await?;
        let records = NewRecords::by_key(told, partitions);
        let now_ms = self.ports.clock.now_ms();
        self.ports
            .log_writes
            .append(topic, &records, now_ms)
            .await?;
        self.told.to("topic", count);
        Ok(())
    }

    /// Posts one that is in the log, if it is to be posted, and writes down what became of it.
    async fn one(&self, claimed: &Delivery, stop: &CancellationToken) -> Result<()> {
        let now_ms = self.ports.clock.now_ms();
        let mut outcome = Outcome {
            topic_at_ms: Some(claimed.topic_at_ms.unwrap_or(now_ms)),
            webhook_at_ms: claimed.webhook_at_ms,
            tries: claimed.tries,
            is_done: true,
            ..Outcome::default()
        };
        if let (Some(_), true) = (&self.ports.hook, stop.is_cancelled()) {
            // Whoever comes next posts it, without waiting for the claim's end.
            outcome.is_done = false;
            outcome.last_error.clone_from(&claimed.last_error);
        } else if let Some(hook) = &self.ports.hook {
            if now_ms.saturating_add(self.post_timeout_ms()) > claimed.until_ms {
                // The claim would end meanwhile: whoever claims it next posts it.
                return Ok(());
            }
            outcome.tries += 1;
            let at_s = now_ms.div_euclid(1000);
            let answer = hook.post(&claimed.id, at_s, &claimed.body).await;
            self.answered(claimed, answer, &mut outcome);
        }
        Ok(self.waiting.settle(claimed, &outcome).await?)
    }

    fn answered(&self, claimed: &Delivery, answer: Answer, outcome: &mut Outcome) {
        let now_ms = self.ports.clock.now_ms();
        let (mut why, after_s) = match answer {
            Answer::Taken => {
                outcome.webhook_at_ms = Some(now_ms);
                self.told.to("webhook", 1);
                return;
            }
            Answer::Gone => ("it wants no more messages (410)".to_owned(), None),
            Answer::Later(why, after_s) => (why, Some(after_s)),
        };
        why.truncate(why.floor_char_boundary(ERROR_BYTES_MAX));
        let age_ms = now_ms.saturating_sub(claimed.made_at_ms);
        let is_old = u64::try_from(age_ms).is_ok_and(|age_ms| age_ms >= self.give_up_after_ms);
        let id = &claimed.id;
        match after_s {
            Some(after_s) if !is_old => {
                outcome.is_done = false;
                let doubled = u32::try_from(outcome.tries.saturating_sub(1)).unwrap_or(u32::MAX);
                let pause_ms = PAUSE_MS
                    .saturating_mul(2_u64.saturating_pow(doubled))
                    .max(after_s.unwrap_or_default().saturating_mul(1000))
                    .min(self.retry_max_ms);
                let pause_ms = i64::try_from(pause_ms).unwrap_or(i64::MAX);
                outcome.next_try_ms = now_ms.saturating_add(pause_ms);
                metrics::counter!(self.told.failures).increment(1);
                tracing::warn!(
                    id,
                    why,
                    tries = outcome.tries,
                    "the webhook did not take a notice; trying again"
                );
            }
            _ => {
                outcome.failed_at_ms = Some(now_ms);
                metrics::counter!(self.told.given_up).increment(1);
                tracing::error!(
                    id,
                    why,
                    tries = outcome.tries,
                    "the webhook did not take a notice; it is given up"
                );
            }
        }
        outcome.last_error = Some(why);
    }
}

/// What metrics call them.
#[derive(Debug, Clone, Copy)]
struct Told {
    waiting: &'static str,
    delivered: &'static str,
    failures: &'static str,
    given_up: &'static str,
}

impl Told {
    const NOTICES: Self = Self {
        waiting: "backstitch_speed_notices_waiting",
        delivered: "backstitch_speed_notices_total",
        failures: "backstitch_speed_notice_failures_total",
        given_up: "backstitch_speed_notices_given_up_total",
    };
    const ALERTS: Self = Self {
        waiting: "backstitch_reconcile_alerts_waiting",
        delivered: "backstitch_reconcile_alerts_delivered_total",
        failures: "backstitch_reconcile_alert_failures_total",
        given_up: "backstitch_reconcile_alerts_given_up_total",
    };

    fn to(&self, channel: &'static str, count: u64) {
        metrics::counter!(self.delivered, "channel" => channel).increment(count);
    }
}
