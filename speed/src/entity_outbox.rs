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

/// A notification that is found by two reads this far apart is sent: its writer ended, or an
/// application's own SQL inserted it. Other writers send their notifications immediately.
/// Timestamps cannot be used, because clocks differ. Sending twice is harmless.
const LEFTOVER_AGE_MIN: Duration = Duration::from_millis(200);
/// Maximum pause between two reads: if the last read found no notifications, and if it found some.
/// Together with the read interval of a quiet log, changes by an application's own SQL are live
/// within a second.
const CHECK_INTERVAL_MS_MAX: u64 = 430;
const RECHECK_INTERVAL_MS_MAX: u64 = 200;

/// Maximum attempts of [`EntityOutbox::send_all`].
const TRIES_MAX: u32 = 20;
const RETRY_PAUSE_MS: u64 = 200;

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
            if !error.is_transient() || tries == TRIES_MAX || stop.is_cancelled() {
                return Err(error);
            }
            log_retry(&error);
            pause(RETRY_PAUSE_MS, stop).await;
        }
        Ok(())
    }

    async fn send_waiting(&self, stop: &CancellationToken) -> Result<()> {
        let newest_id = self.read_status().await?.newest;
        self.send(newest_id, stop).await
    }

    /// Reads the outbox periodically and sends leftovers, until `stop`.
    pub(crate) async fn watch(self, stop: CancellationToken) -> Result<()> {
        let mut previous = None;
        while !stop.is_cancelled() {
            match self.send_leftovers(&mut previous, &stop).await {
                Err(error) if error.is_transient() => log_retry(&error),
                sent => sent?,
            }
            let interval_ms_max = match previous {
                Some(_) => RECHECK_INTERVAL_MS_MAX,
                None => CHECK_INTERVAL_MS_MAX,
            };
            pause(self.look_interval_ms.min(interval_ms_max), &stop).await;
        }
        Ok(())
    }

    /// Sends the notifications that the previous read found, if that read is old enough.
    async fn send_leftovers(
        &self,
        previous: &mut Option<(Instant, i64)>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let status = self.read_status().await?;
        if let Some((read_at, newest_id)) = *previous {
            if read_at.elapsed() < LEFTOVER_AGE_MIN {
                return Ok(());
            }
            self.send(newest_id, stop).await?;
        }
        *previous = (status.notifications > 0).then(|| (Instant::now(), status.newest));
        Ok(())
    }

    async fn read_status(&self) -> Result<OutboxStatus> {
        let status = self.entities.outbox_status(self.source).await?;
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("backstitch_speed_outbox_notifications", "source" => self.source.name())
            .set(status.notifications as f64);
        Ok(status)
    }

    async fn send(&self, newest_id: i64, stop: &CancellationToken) -> Result<()> {
        let sent = self.relay.drain(self.source, newest_id, stop).await?;
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
