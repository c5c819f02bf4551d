//! Whether live state has come to what the log held when a comparison began.
//!
//! Whoever says what is expected may know of every event that is in the log. One that live state has not come to is in
//! what they say and in nothing that is compared: a correction would count it a second time.

use std::time::Duration;

use schemas::seam::Offset;
use schemas::source::Source;
use stores::log::LogRead;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Result;
use crate::batch::Batch;
use crate::lease::check_stop;

const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl Batch {
    /// Waits until live state has come to where the log ends now, for as long as it goes on, and answers where that is,
    /// by partition.
    pub(super) async fn wait_until_counted(
        &self,
        source: Source,
        stop: &CancellationToken,
    ) -> Result<Vec<Offset>> {
        let ends = self.read_checked_log_ends(source).await?;
        let partitions = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        let patience = Duration::from_millis(self.options.speed_wait_ms);
        let (mut stood, mut since) = (Vec::new(), Instant::now());
        loop {
            check_stop(stop)?;
            let slots = self
                .ports
                .live
                .partition_states(source, 0..partitions)
                .await?;
            let now = slots.iter().map(Option::as_ref);
            let now = now.map(|slot| slot.map_or(0, |slot| slot.position.next_offset));
            let now: Vec<Offset> = now.zip(&ends).map(|(at, end)| at.min(*end)).collect();
            if now == ends {
                return Ok(ends);
            }
            if now != stood {
                (stood, since) = (now, Instant::now());
            }
            if since.elapsed() >= patience {
                return Ok(ends);
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// The partitions that have records from what was counted up to these ends. Positions have holes, so that one is
    /// before the other says nothing.
    pub(super) async fn behind(
        &self,
        source: Source,
        counted: &[Offset],
        ends: &[Offset],
    ) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        for (partition, end) in (0_u32..).zip(ends) {
            let from = counted.get(partition as usize).copied().unwrap_or(0);
            if has_records(&*self.ports.log, (source, partition), from, *end).await? {
                found.push(partition);
            }
        }
        Ok(found)
    }
}

async fn has_records(
    log: &dyn LogRead,
    (source, partition): (Source, u32),
    mut from: Offset,
    end: Offset,
) -> Result<bool> {
    while from < end {
        let fetched = log.fetch_fresh(source.topic(), partition, from).await?;
        if let Some(first) = fetched.records.first() {
            return Ok(first.offset < end);
        }
        if fetched.next_offset <= from {
            return Ok(false);
        }
        from = fetched.next_offset;
    }
    Ok(false)
}
