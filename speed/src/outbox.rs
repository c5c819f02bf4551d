//! What was left in the outbox: notifications whose process ended before it told the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use schemas::source::Source;
use stores::canon::{CanonRead, Waiting};
use stores::relay::Relay;
use tokio_util::sync::CancellationToken;

use crate::worker::pause;
use crate::{Error, Result};

/// What was there at one look and is there so much later was left behind, or made by an app's own SQL: whoever else makes a
/// notification sends it at once. Its stamp says nothing, since clocks differ and are set. One that is sent twice does no harm.
const LEFT_BEHIND: Duration = Duration::from_millis(200);
/// The longest pause between two looks, and the one before the second look at waiting notifications. With the interval at
/// which a quiet log is read, changes by an application's own SQL are live within a second.
const LOOK_INTERVAL_MS_MAX: u64 = 430;
const SECOND_LOOK_INTERVAL_MS_MAX: u64 = 200;

/// How often sending is tried when what waits must be sent.
const TRIES: u32 = 20;
const PAUSE_MS: u64 = 200;

/// Brings notifications into the log of one source.
#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    pub(crate) canon: Arc<dyn CanonRead>,
    pub(crate) relay: Relay,
    pub(crate) source: Source,
    pub(crate) look_interval_ms: u64,
}

impl Outbox {
    /// Sends everything that waits now.
    pub(crate) async fn send_all(&self, stop: &CancellationToken) -> Result<()> {
        let mut tries = 0;
        while let Err(error) = self.send_waiting(stop).await {
            tries += 1;
            if !error.may_pass() || tries == TRIES || stop.is_cancelled() {
                return Err(error);
            }
            trying_again(&error);
            pause(PAUSE_MS, stop).await;
        }
        Ok(())
    }

    async fn send_waiting(&self, stop: &CancellationToken) -> Result<()> {
        let newest = self.look().await?.newest;
        self.send(newest, stop).await
    }

    /// Looks now and then, and sends what was left behind, until `stop`.
    pub(crate) async fn watch(self, stop: CancellationToken) -> Result<()> {
        let mut before = None;
        while !stop.is_cancelled() {
            match self.send_left(&mut before, &stop).await {
                Err(error) if error.may_pass() => trying_again(&error),
                sent => sent?,
            }
            let longest_ms = match before {
                Some(_) => SECOND_LOOK_INTERVAL_MS_MAX,
                None => LOOK_INTERVAL_MS_MAX,
            };
            pause(self.look_interval_ms.min(longest_ms), &stop).await;
        }
        Ok(())
    }

    /// Sends what was there `before`, if that was long enough ago.
    async fn send_left(
        &self,
        before: &mut Option<(Instant, i64)>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let now = self.look().await?;
        if let Some((since, newest)) = *before {
            if since.elapsed() < LEFT_BEHIND {
                return Ok(());
            }
            self.send(newest, stop).await?;
        }
        *before = (now.notifications > 0).then(|| (Instant::now(), now.newest));
        Ok(())
    }

    async fn look(&self) -> Result<Waiting> {
        let waiting = self.canon.waiting(self.source).await?;
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
                "notifications that were left in the outbox were sent"
            );
        }
        Ok(())
    }
}

fn trying_again(error: &Error) {
    tracing::warn!(%error, "what was left in the outbox can't be sent; trying again");
}
