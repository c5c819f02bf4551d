//! The eraser: its stores, and the runs and leases that its steps need.

use std::sync::Arc;
use std::time::Duration;

use schemas::seam::Offset;
use schemas::source::Source;
use stores::achievements::AchievementsWrite;
use stores::embedded::DataFolder;
use stores::entities::{EntityErase, EntityWrite};
use stores::erasures::Attribution;
use stores::log::Log;
use stores::relay::OutboxRelay;
use tokio_util::sync::CancellationToken;

use crate::lease::run_under_lease;
use crate::{Batch, Error, Progress, Result, RunReport, RunRequest};

/// How long to wait before checking again whether another run has ended.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Erases people.
#[derive(Debug)]
pub struct Eraser {
    pub(super) batch: Batch,
    pub(super) log: Arc<dyn Log>,
    pub(super) entity_eraser: Arc<dyn EntityErase>,
    pub(super) relay: OutboxRelay,
    pub(super) achievements: Arc<dyn AchievementsWrite>,
    pub(super) data_folder: DataFolder,
}

/// The stores that an erasure changes, besides those of the batch layer.
#[derive(Debug, Clone)]
pub struct ErasePorts {
    /// The log that the batch layer reads.
    pub log: Arc<dyn Log>,
    /// The entity store without suppressed people.
    pub entities: Arc<dyn EntityWrite>,
    /// The entity store including suppressed people.
    pub entity_eraser: Arc<dyn EntityErase>,
    /// The achievements of athletes.
    pub achievements: Arc<dyn AchievementsWrite>,
    /// The folder of the embedded stores.
    pub data_folder: DataFolder,
    /// The partition count of topics that are created.
    pub partitions: u32,
}

/// The options of an erasure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EraseRequest {
    /// The requester and the reason.
    pub attribution: Attribution,
    /// Leaves the records of the log until its retention deletes them. They contain the
    /// person, but no process uses that.
    pub keep_log: bool,
}

impl Eraser {
    /// Creates an eraser for the stores of a batch layer.
    #[must_use]
    pub fn new(batch: Batch, ports: ErasePorts) -> Self {
        let clock = Arc::clone(&batch.ports.clock);
        let log = Arc::clone(&ports.log) as _;
        Self {
            relay: OutboxRelay::new(ports.entities, log, clock, ports.partitions),
            batch,
            log: ports.log,
            entity_eraser: ports.entity_eraser,
            achievements: ports.achievements,
            data_folder: ports.data_folder,
        }
    }

    /// Runs `work` under the run lease of a source, which excludes runs, reconciliations and other
    /// erasures. `work` must check the token that it gets. It must not wait for a run, which would
    /// need the same lease.
    pub(super) async fn with_run_lease<T>(
        &self,
        source: Source,
        stop: &CancellationToken,
        work: impl AsyncFnOnce(CancellationToken) -> Result<T>,
    ) -> Result<T> {
        let lease = loop {
            match self.batch.acquire_run_lease(source).await {
                Err(Error::Busy(reason)) => self.wait_for_holder(&reason, stop).await?,
                lease => break lease?,
            }
        };
        let stop = stop.child_token();
        let work = Box::pin(work(stop.clone()));
        let outcome = run_under_lease(&*lease, &stop, work).await;
        lease.release().await;
        outcome
    }

    /// Waits before another attempt to get the lease.
    async fn wait_for_holder(&self, reason: &str, stop: &CancellationToken) -> Result<()> {
        tracing::info!(reason, "waiting for the run lease");
        tokio::select! {
            () = tokio::time::sleep(RETRY_PAUSE) => Ok(()),
            () = stop.cancelled() => Err(Error::Stopped),
        }
    }

    /// Executes a batch run whose epoch ends after this call. Returns its cuts.
    pub(super) async fn run_with_new_epoch(
        &self,
        source: Source,
        request: &RunRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<Vec<Offset>> {
        let may_be_older = self.may_have_ended_epoch(source).await?;
        let mut report = self.run_when_free(source, request, progress, stop).await?;
        if may_be_older {
            // The cuts of the first run may precede the erasure, so a second one covers the later
            // records.
            report = self.run_when_free(source, request, progress, stop).await?;
        }
        Ok(report.cuts)
    }

    /// Returns whether an epoch that the next run covers may have ended already: a run is
    /// unfinished, or was interrupted before it was recorded.
    async fn may_have_ended_epoch(&self, source: Source) -> Result<bool> {
        let ports = &self.batch.ports;
        let runs = ports.views.runs(source).await?.runs;
        let partitions = ports.log.current_partition_count(source.topic()).await?;
        let states = ports.live.partition_states(source, 0..partitions).await?;
        let next = runs.next_epoch();
        let is_ahead = states.iter().flatten().any(|state| state.epoch > next);
        Ok(runs.open_run().is_some() || is_ahead)
    }

    /// Executes a batch run once no other one is under way.
    async fn run_when_free(
        &self,
        source: Source,
        request: &RunRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        loop {
            match self.batch.run(source, request, progress, stop).await {
                Err(Error::Busy(reason)) => self.wait_for_holder(&reason, stop).await?,
                outcome => return outcome,
            }
        }
    }
}
