//! What a snapshot holds before the speed layer came to it is not told to anybody: the speed layer finds
//! it on the boards already. So a run that would publish such rows waits until it has come to them.

use std::time::Duration;

use jobs::Layers;
use schemas::seam::{Offset, Slot};
use schemas::source::Source;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Result;
use crate::run::Batch;

const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl Batch {
    /// Waits until the speed layer has come to where the log ends now, for as long as it goes on.
    pub(super) async fn wait_for_speed(
        &self,
        source: Source,
        stop: &CancellationToken,
    ) -> Result<()> {
        let mut told = self.catalog.boards_of_layer(source, Layers::Speed);
        if told.next().is_none() {
            return Ok(());
        }
        let ends = self.spans(source).await?;
        let partitions = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        let patience = Duration::from_millis(self.options.speed_wait_ms);
        let mut stands: Vec<Offset> = Vec::new();
        let mut since = Instant::now();
        while !stop.is_cancelled() {
            let seen = self.ports.live.read(source, partitions, &[]).await?;
            let position = |slot: Option<Slot>| slot.map_or(0, |slot| slot.position.next_offset);
            let now: Vec<Offset> = seen.slots.into_iter().map(position).collect();
            if now.iter().zip(&ends).all(|(now, end)| now >= end) {
                return Ok(());
            }
            if now != stands {
                (stands, since) = (now, Instant::now());
            }
            if since.elapsed() >= patience {
                tracing::info!(%source, "the speed layer does not come to the end of the log: what the run publishes of the rest is told to nobody");
                return Ok(());
            }
            sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }
}
