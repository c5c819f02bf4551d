//! Delivers capacity notices and reconciliation alerts to the log and to the webhook.
//!
//! Messages wait in the store that created them. A deliverer claims a batch, so that no other
//! process delivers it. After a crash, the messages become available again when the claim expires.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use stores::alerts::Alerts;
use stores::log::{NewRecords, PartitionCounts};
use stores::notices::{CapacityNotices, Delivery, DeliveryOutcome, DeliveryQueue};
use stores::webhook::WebhookResponse;
use tokio_util::sync::CancellationToken;

use crate::pause::pause;
use crate::{Result, SpeedOptions, SpeedPorts};

/// Messages that are claimed and appended to the log together.
const CLAIM_BATCH: usize = 64;
/// Concurrent posts.
const POST_CONCURRENCY: usize = 8;
/// Time that a claim adds to the timeouts of its posts, for the log and for storing the results.
const CLAIM_MARGIN_MS: i64 = 60_000;
/// Minimum interval between checks for alerts.
const ALERTS_INTERVAL_MS: u64 = 5_000;
/// Pause before the first retry of a post. Each further pause doubles.
const FIRST_RETRY_PAUSE_MS: u64 = 1_000;
/// Maximum stored bytes of an error message.
const ERROR_BYTES_MAX: usize = 500;

/// Delivers messages of one kind.
#[derive(Debug, Clone)]
pub(crate) struct Deliverer {
    queue: Arc<dyn DeliveryQueue>,
    metrics: MetricNames,
    ports: SpeedPorts,
    partitions: PartitionCounts,
    look_interval_ms: u64,
    retry_max_ms: u64,
    give_up_after_ms: u64,
}

impl Deliverer {
    /// Creates a deliverer of capacity notices.
    pub(crate) fn for_capacities(ports: &SpeedPorts, options: &SpeedOptions) -> Self {
        let notices = CapacityNotices::new(Arc::clone(&ports.entities) as _);
        Self::new(Arc::new(notices), MetricNames::NOTICES, ports, options)
    }

    /// Creates a deliverer of reconciliation alerts. They are rare and may wait a
    /// few seconds.
    pub(crate) fn for_alerts(ports: &SpeedPorts, options: &SpeedOptions) -> Self {
        let alerts = Alerts::new(Arc::clone(&ports.records));
        let this = Self::new(Arc::new(alerts), MetricNames::ALERTS, ports, options);
        Self {
            look_interval_ms: this.look_interval_ms.max(ALERTS_INTERVAL_MS),
            ..this
        }
    }

    fn new(
        queue: Arc<dyn DeliveryQueue>,
        metric_names: MetricNames,
        ports: &SpeedPorts,
        options: &SpeedOptions,
    ) -> Self {
        Self {
            queue,
            metrics: metric_names,
            ports: ports.clone(),
            partitions: PartitionCounts::new(Arc::clone(&ports.log_writes), options.partitions),
            look_interval_ms: options.look_interval_ms.max(1),
            retry_max_ms: options.notice_retry_max_ms.max(FIRST_RETRY_PAUSE_MS),
            give_up_after_ms: options.notice_give_up_after_ms,
        }
    }

    /// Delivers waiting messages periodically, until `stop`. Errors are logged and retried;
    /// counting does not wait for them.
    pub(crate) async fn watch(self, stop: CancellationToken) -> Result<()> {
        while !stop.is_cancelled() {
            if let Err(error) = self.deliver(&stop).await {
                let kind = self.queue.label();
                tracing::warn!(%error, kind, "cannot deliver messages; retrying");
            }
            pause(self.look_interval_ms, &stop).await;
        }
        Ok(())
    }

    /// Attempts every due message once.
    pub(crate) async fn deliver(&self, stop: &CancellationToken) -> Result<()> {
        // A message whose next retry becomes due during this call has had its attempt.
        let due_ms = self.ports.clock.now_ms();
        let waiting = self.queue.pending_count(due_ms).await?;
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!(self.metrics.waiting).set(waiting.all as f64);
        if waiting.due == 0 {
            return Ok(());
        }
        while !stop.is_cancelled() {
            let claim_end_ms = self.ports.clock.now_ms().saturating_add(self.claim_ms());
            let claimed = self.queue.claim(due_ms, claim_end_ms, CLAIM_BATCH).await?;
            if claimed.is_empty() {
                return Ok(());
            }
            self.append(&claimed).await?;
            // Started deliveries finish even if another one fails.
            let (mut delivering, mut outcome) = (FuturesUnordered::new(), Ok(()));
            for delivery in &claimed {
                if delivering.len() >= POST_CONCURRENCY {
                    outcome = outcome.and(delivering.next().await.unwrap_or(Ok(())));
                }
                delivering.push(self.deliver_message(delivery, stop));
            }
            while let Some(result) = delivering.next().await {
                outcome = outcome.and(result);
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

    /// Duration of a claim: long enough for all posts.
    fn claim_ms(&self) -> i64 {
        let rounds = i64::try_from(CLAIM_BATCH.div_ceil(POST_CONCURRENCY)).unwrap_or(i64::MAX);
        let posts_ms = self.post_timeout_ms().saturating_mul(rounds);
        posts_ms.saturating_add(CLAIM_MARGIN_MS)
    }

    /// Appends messages to the log that are not in it.
    async fn append(&self, deliveries: &[Delivery]) -> Result<()> {
        let mut new_messages = Vec::new();
        for delivery in deliveries {
            if delivery.topic_at_ms.is_none() {
                new_messages.push((delivery.key.clone(), delivery.body.clone()));
            }
        }
        if new_messages.is_empty() {
            return Ok(());
        }
        let count = new_messages.len() as u64;
        let topic = self.queue.topic();
        let partitions = self.partitions.count(topic).await?;
        let records = NewRecords::by_key(new_messages, partitions);
        let now_ms = self.ports.clock.now_ms();
        let log_writes = &self.ports.log_writes;
        log_writes.append(topic, &records, now_ms).await?;
        self.metrics.count_delivered("topic", count);
        Ok(())
    }

    /// Posts one message that is in the log, if there is a webhook, and stores the result.
    async fn deliver_message(&self, delivery: &Delivery, stop: &CancellationToken) -> Result<()> {
        let now_ms = self.ports.clock.now_ms();
        let mut outcome = DeliveryOutcome {
            topic_at_ms: Some(delivery.topic_at_ms.unwrap_or(now_ms)),
            webhook_at_ms: delivery.webhook_at_ms,
            tries: delivery.tries,
            is_done: true,
            ..DeliveryOutcome::default()
        };
        if let (Some(_), true) = (&self.ports.hook, stop.is_cancelled()) {
            // The next deliverer can post it before the claim expires.
            outcome.is_done = false;
            outcome.last_error.clone_from(&delivery.last_error);
        } else if let Some(hook) = &self.ports.hook {
            if now_ms.saturating_add(self.post_timeout_ms()) > delivery.until_ms {
                // The claim would expire during the post. The next claimant posts it.
                return Ok(());
            }
            outcome.tries += 1;
            let sent_at_s = now_ms.div_euclid(1000);
            let response = hook.post(&delivery.id, sent_at_s, &delivery.body).await;
            self.record_response(delivery, response, &mut outcome);
        }
        Ok(self.queue.settle(delivery, &outcome).await?)
    }

    fn record_response(
        &self,
        delivery: &Delivery,
        response: WebhookResponse,
        outcome: &mut DeliveryOutcome,
    ) {
        let now_ms = self.ports.clock.now_ms();
        let (mut reason, retry_after_s) = match response {
            WebhookResponse::Accepted => {
                outcome.webhook_at_ms = Some(now_ms);
                self.metrics.count_delivered("webhook", 1);
                return;
            }
            WebhookResponse::Gone => ("the receiver rejects all messages (410)".to_owned(), None),
            WebhookResponse::Retry(reason, retry_after_s) => (reason, Some(retry_after_s)),
        };
        reason.truncate(reason.floor_char_boundary(ERROR_BYTES_MAX));
        let age_ms = now_ms.saturating_sub(delivery.created_at_ms);
        let is_old = u64::try_from(age_ms).is_ok_and(|age_ms| age_ms >= self.give_up_after_ms);
        let id = &delivery.id;
        match retry_after_s {
            Some(retry_after_s) if !is_old => {
                outcome.is_done = false;
                let doublings = u32::try_from(outcome.tries.saturating_sub(1)).unwrap_or(u32::MAX);
                let pause_ms = FIRST_RETRY_PAUSE_MS
                    .saturating_mul(2_u64.saturating_pow(doublings))
                    .max(retry_after_s.unwrap_or_default().saturating_mul(1000))
                    .min(self.retry_max_ms);
                let pause_ms = i64::try_from(pause_ms).unwrap_or(i64::MAX);
                outcome.next_try_ms = now_ms.saturating_add(pause_ms);
                metrics::counter!(self.metrics.failures).increment(1);
                tracing::warn!(
                    id,
                    reason,
                    tries = outcome.tries,
                    "the webhook did not accept a message; retrying"
                );
            }
            _ => {
                outcome.failed_at_ms = Some(now_ms);
                metrics::counter!(self.metrics.given_up).increment(1);
                tracing::error!(
                    id,
                    reason,
                    tries = outcome.tries,
                    "the webhook did not accept a message; giving up"
                );
            }
        }
        outcome.last_error = Some(reason);
    }
}

/// Metric names for one kind of message.
#[derive(Debug, Clone, Copy)]
struct MetricNames {
    waiting: &'static str,
    delivered: &'static str,
    failures: &'static str,
    given_up: &'static str,
}

impl MetricNames {
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

    fn count_delivered(&self, channel: &'static str, count: u64) {
        metrics::counter!(self.delivered, "channel" => channel).increment(count);
    }
}
