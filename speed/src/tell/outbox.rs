//! Telling what waits in the outbox of a slot, beside the worker that fills it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use schemas::seam::Offset;
use stores::live::SlotId;
use stores::telling::Telling;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::worker::pause;
use crate::{Error, Result};

/// How often telling is tried where all must be told.
const TRIES: u32 = 20;
const PAUSE_MS_FIRST: u64 = 50;
const PAUSE_MS_MAX: u64 = 5_000;
/// An outbox into which this process put nothing is read every so many intervals.
const IDLE_INTERVALS: u32 = 10;

/// The outbox of one slot. A copy is of the same.
#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    slot: SlotId,
    telling: Telling,
    interval: Duration,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Something was put in.
    filled: Notify,
    /// The checkpoint moved since the outbox was read last.
    has_moved: AtomicBool,
    /// How many entries wait, about.
    waiting: AtomicU64,
    /// How far is noted to be told, once that is known.
    noted: Mutex<Option<Offset>>,
}

impl Outbox {
    /// An outbox that is read `interval_ms` after the checkpoint moved, at the latest.
    pub(crate) fn new(slot: SlotId, telling: Telling, interval_ms: u64) -> Self {
        Self {
            slot,
            telling,
            interval: Duration::from_millis(interval_ms.max(1)),
            shared: Arc::default(),
        }
    }

    /// How many entries wait, about.
    pub(crate) fn waiting(&self) -> u64 {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// The checkpoint moved, and so many entries were put in.
    pub(crate) fn moved(&self, entries: usize) {
        self.shared.has_moved.store(true, Ordering::Relaxed);
        if entries > 0 {
            let waiting = &self.shared.waiting;
            waiting.fetch_add(entries as u64, Ordering::Relaxed);
            self.shared.filled.notify_one();
        }
    }

    /// Tells what waits whenever there is something, until `over`. With `must_end` what can't be told
    /// for long is an error.
    pub(crate) async fn watch(self, must_end: bool, over: CancellationToken) -> Result<()> {
        let mut failures = 0;
        while !over.is_cancelled() {
            match self.tell().await {
                Ok(0) => {
                    failures = 0;
                    self.wait(&over).await;
                }
                Ok(_) => failures = 0,
                Err(error) => self.failed(error, must_end, &mut failures, &over).await?,
            }
        }
        Ok(())
    }

    /// Waits until something may have been put in, or until `over`.
    async fn wait(&self, over: &CancellationToken) {
        let since = Instant::now();
        loop {
            tokio::select! {
                () = self.shared.filled.notified() => return,
                () = over.cancelled() => return,
                () = tokio::time::sleep(self.interval) => {}
            }
            let has_moved = self.shared.has_moved.load(Ordering::Relaxed);
            if has_moved || since.elapsed() >= self.interval * IDLE_INTERVALS {
                return;
            }
        }
    }

    /// Tells everything that waits.
    pub(crate) async fn tell_all(self, stop: CancellationToken) -> Result<()> {
        let mut failures = 0;
        loop {
            match self.tell().await {
                Ok(0) => return Ok(()),
                Ok(_) => failures = 0,
                Err(error) => self.failed(error, true, &mut failures, &stop).await?,
            }
        }
    }

    async fn failed(
        &self,
        error: Error,
        must_end: bool,
        failures: &mut u32,
        stop: &CancellationToken,
    ) -> Result<()> {
        *failures += 1;
        if !error.may_pass() || must_end && *failures >= TRIES {
            return Err(error);
        }
        let wait_ms = PAUSE_MS_MAX.min(PAUSE_MS_FIRST << (*failures).min(10));
        let partition = self.slot.partition;
        tracing::warn!(partition, %error, wait_ms, "what changed on boards can't be told; trying again");
        pause(wait_ms, stop).await;
        Ok(())
    }

    async fn tell(&self) -> Result<u64> {
        let mut noted = self.shared.noted.lock().await;
        self.shared.has_moved.store(false, Ordering::Relaxed);
        let left = self.telling.tell(self.slot, &mut noted).await?;
        drop(noted);
        self.shared.waiting.store(left, Ordering::Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("backstitch_speed_outbox_entries", "source" => self.slot.source.name(),
            "partition" => self.slot.partition.to_string())
        .set(left as f64);
        Ok(left)
    }
}
