//! Publishes the change outbox of a partition, beside the worker that fills it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use schemas::seam::Offset;
use stores::live::PartitionId;
use stores::outbox_publisher::OutboxPublisher;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::pause::pause;
use crate::{Error, Result};

/// Maximum consecutive failed attempts if the worker must end at the end of the log.
const TRIES_MAX: u32 = 20;
const FIRST_PAUSE_MS: u64 = 50;
const PAUSE_MS_MAX: u64 = 5_000;
/// The number of configured intervals between two reads of an outbox that this process does not
/// fill.
const IDLE_READ_INTERVALS: u32 = 10;

/// The change outbox of one partition. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ChangeOutbox {
    id: PartitionId,
    publisher: OutboxPublisher,
    interval: Duration,
    shared: Arc<SharedOutbox>,
}

#[derive(Debug, Default)]
struct SharedOutbox {
    /// Notifies about new entries.
    filled: Notify,
    /// True if the checkpoint advanced since the last read of the outbox.
    has_advanced: AtomicBool,
    /// Approximate number of waiting entries.
    waiting_entries: AtomicU64,
    /// The offset below which changes are published, once it is known.
    published_end: Mutex<Option<Offset>>,
}

impl ChangeOutbox {
    /// Creates an outbox that is read at the latest `interval_ms` after the checkpoint advanced.
    pub(crate) fn new(id: PartitionId, publisher: OutboxPublisher, interval_ms: u64) -> Self {
        Self {
            id,
            publisher,
            interval: Duration::from_millis(interval_ms.max(1)),
            shared: Arc::default(),
        }
    }

    /// The approximate number of waiting entries.
    pub(crate) fn waiting_entries(&self) -> u64 {
        self.shared.waiting_entries.load(Ordering::Relaxed)
    }

    /// Records that the checkpoint advanced and this number of entries was added.
    pub(crate) fn record_advance(&self, entries: usize) {
        self.shared.has_advanced.store(true, Ordering::Relaxed);
        if entries > 0 {
            let waiting_entries = &self.shared.waiting_entries;
            waiting_entries.fetch_add(entries as u64, Ordering::Relaxed);
            self.shared.filled.notify_one();
        }
    }

    /// Publishes waiting entries until `done`. If the worker must end at the end of the log, returns
    /// an error after [`TRIES_MAX`] failed attempts.
    pub(crate) async fn watch(self, until_caught_up: bool, done: CancellationToken) -> Result<()> {
        let mut failures = 0;
        while !done.is_cancelled() {
            match self.publish().await {
                Ok(0) => {
                    failures = 0;
                    self.wait(&done).await;
                }
                Ok(_) => failures = 0,
                Err(error) => {
                    self.handle_failure(error, until_caught_up, &mut failures, &done)
                        .await?
                }
            }
        }
        Ok(())
    }

    /// Waits until entries may have been added, or until `done`.
    async fn wait(&self, done: &CancellationToken) {
        let wait_start = Instant::now();
        loop {
            tokio::select! {
                () = self.shared.filled.notified() => return,
                () = done.cancelled() => return,
                () = tokio::time::sleep(self.interval) => {}
            }
            let has_advanced = self.shared.has_advanced.load(Ordering::Relaxed);
            if has_advanced || wait_start.elapsed() >= self.interval * IDLE_READ_INTERVALS {
                return;
            }
        }
    }

    /// Publishes all waiting entries.
    pub(crate) async fn publish_all(self, stop: CancellationToken) -> Result<()> {
        let mut failures = 0;
        loop {
            match self.publish().await {
                Ok(0) => return Ok(()),
                Ok(_) => failures = 0,
                Err(error) => {
                    self.handle_failure(error, true, &mut failures, &stop)
                        .await?
                }
            }
        }
    }

    async fn handle_failure(
        &self,
        error: Error,
        until_caught_up: bool,
        failures: &mut u32,
        stop: &CancellationToken,
    ) -> Result<()> {
        *failures += 1;
        if !error.is_transient() || until_caught_up && *failures >= TRIES_MAX {
            return Err(error);
        }
        let wait_ms = PAUSE_MS_MAX.min(FIRST_PAUSE_MS << (*failures).min(10));
        let partition = self.id.partition;
        tracing::warn!(partition, %error, wait_ms, "board changes can't be published; trying again");
        pause(wait_ms, stop).await;
        Ok(())
    }

    /// Publishes the first entries and returns how many remain.
    async fn publish(&self) -> Result<u64> {
        let mut published_end = self.shared.published_end.lock().await;
        self.shared.has_advanced.store(false, Ordering::Relaxed);
        let remaining = self.publisher.publish(self.id, &mut published_end).await?;
        drop(published_end);
        self.shared
            .waiting_entries
            .store(remaining, Ordering::Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("backstitch_speed_outbox_entries", "source" => self.id.source.name(),
            "partition" => self.id.partition.to_string())
        .set(remaining as f64);
        Ok(remaining)
    }
}
