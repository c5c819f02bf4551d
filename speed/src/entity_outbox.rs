//! Sends leftover notifications of the entity store's outbox: the process that wrote them ended
//! before it sent them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use schemas::source::Source;
use stores::entities::{EntityRead, OutboxStatus};
use stores::relay::OutboxRelay;
use tokio_util::sync::CancellationToken;

use crate::pause::pause;
use crate::{Error, Result};

/// A notification that two reads this far apart find is a leftover, or an application's own SQL
/// inserted it. Any other writer sends its notifications immediately. Timestamps cannot be used,
/// because clocks differ. Sending twice is harmless.
const STRAY_NOTIFICATION_AGE: Duration = Duration::from_millis(200);
/// Maximum pause between two reads: if the last read found no notifications, and if it found some.
/// Together with the read interval of a quiet log, changes by an application's own SQL are live
/// within a second.
const CHECK_INTERVAL_MS_MAX: u64 = 430;
const RECHECK_INTERVAL_MS_MAX: u64 = 200;

/// Maximum attempts of [`EntityOutbox::send_all`].
const TRIES: u32 = 20;
const PAUSE_MS: u64 = 200;

/// Sends notifications to the log of one source.
#[derive(Debug, Clone)]
pub(crate) struct EntityOutbox {
    pub(crate) entities: Arc<dyn EntityRead>,
    pub(crate) relay: OutboxRelay,
    pub(crate) source: Source,
    pub(crate) look_interval_ms: u64,
}

impl EntityOutbox {
    /// Sends all waiting notifications.
    pub(crate) async fn send_all(&self, stop: &CancellationToken) -> Result<()> {
        let mut tries = 0;
        while let Err(error) = self.send_waiting(stop).await {
            tries += 1;
            if !error.is_transient() || tries == TRIES || stop.is_cancelled() {
                return Err(error);
            }
            log_retry(&error);
            pause(PAUSE_MS, stop).await;
        }
        Ok(())
    }

    async fn send_waiting(&self, stop: &CancellationToken) -> Result<()> {
        let newest = self.read_waiting().await?.newest;
        self.send(newest, stop).await
    }

    /// Reads the outbox periodically and sends leftovers, until `stop`.
    pub(crate) async fn watch(self, stop: CancellationToken) -> Result<()> {
        let mut before = None;
        while !stop.is_cancelled() {
            match self.send_leftovers(&mut before, &stop).await {
                Err(error) if error.is_transient() => log_retry(&error),
                sent => sent?,
            }
            let longest_ms = match before {
                Some(_) => RECHECK_INTERVAL_MS_MAX,
                None => CHECK_INTERVAL_MS_MAX,
            };
            pause(self.look_interval_ms.min(longest_ms), &stop).await;
        }
        Ok(())
    }

    /// Sends the notifications that the previous read found, if that read is old enough.
    async fn send_leftovers(
        &self,
        before: &mut Option<(Instant, i64)>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let now = self.read_waiting().await?;
        if let Some((since, newest)) = *before {
            if since.elapsed() < STRAY_NOTIFICATION_AGE {
                return Ok(());
            }
            self.send(newest, stop).await?;
        }
        *before = (now.notifications > 0).then(|| (Instant::now(), now.newest));
        Ok(())
    }

    async fn read_waiting(&self) -> Result<OutboxStatus> {
        let waiting = self.entities.outbox_status(self.source).await?;
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("backstitch_speed_outbox_notifications", "source" => self.source.name())
            .set(waiting.notifications as f64);
        Ok(waiting)
    }

    async fn send(&self, newest: i64, stop: &CancellationToken) -> Result<()> {
        let sent = self.relay.drain(self.source, newest, stop).await?;
        if sent > 0 {
            tracing::info!(
                source = self.source.name(),
                sent,
                "sent leftover notifications of the outbox"
            );
        }
        Ok(())
    }
}

fn log_retry(error: &Error) {
    tracing::warn!(%error, "cannot send leftover notifications of the outbox; retrying");
}
