//! The batch layer of an installation: its ports and options, and the helpers that its stages
//! share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jobs::tables::TableGeneration;
use jobs::{Catalog, Engine};
use schemas::seam::Offset;
use schemas::source::{Source, SourceKind};
use stores::erasures::SuppressedPeople;
use stores::lease::LeaseGuard as Lease;
use tokio_util::sync::CancellationToken;

use crate::archive::{Archiver, FileSize, GarbageScope, Version, collect_garbage};
use crate::error::lost_log_error;
use crate::executor::{Executor, Workers};
use crate::results::{Manifest, PublishedState, Results};
use crate::snapshot::SnapshotTaker;
use crate::{BatchOptions, BatchPorts, Error, Result};

/// Bytes of archive files that a run caches.
pub(crate) const FILE_CACHE_BYTES: u64 = 64 << 20;

/// The batch layer.
#[derive(Debug, Clone)]
pub struct Batch {
    pub(crate) ports: BatchPorts,
    pub(crate) catalog: Catalog,
    pub(crate) engine: Engine,
    pub(crate) options: BatchOptions,
    /// Remote workers that run tasks; without them this process does.
    pub(crate) workers: Option<Arc<dyn Workers>>,
}

impl Batch {
    /// Creates the batch layer of an installation.
    #[must_use]
    pub const fn new(
        ports: BatchPorts,
        catalog: Catalog,
        engine: Engine,
        options: BatchOptions,
    ) -> Self {
        Self {
            ports,
            catalog,
            engine,
            options,
            workers: None,
        }
    }

    /// Runs the tasks of later runs on remote workers.
    #[must_use]
    pub fn with_workers(self, workers: Arc<dyn Workers>) -> Self {
        Self {
            workers: Some(workers),
            ..self
        }
    }

    /// Returns the executor of a run's tasks.
    pub(crate) fn executor(&self) -> Executor {
        match &self.workers {
            Some(workers) => Executor::Remote(Arc::clone(workers)),
            None => Executor::Local(self.engine.threads()),
        }
    }

    /// Returns the executor that writes the rows of aggregates.
    pub(crate) fn publishing_executor(&self) -> Executor {
        match self.executor() {
            Executor::Remote(workers) if self.options.executors_publish => {
                Executor::Remote(workers)
            }
            _ => Executor::Local(self.engine.threads().min(self.ports.views.publishers_max())),
        }
    }

    /// Returns a copy that caches archive files: a view has many time partitions, and most are
    /// small and share a file with their neighbors.
    pub(crate) fn with_file_cache(&self) -> Self {
        let mut with_cache = self.clone();
        with_cache.ports.archive = self.ports.archive.with_cache(FILE_CACHE_BYTES);
        with_cache
    }

    /// Returns the generation of rows computed from `version` now, and the erased people.
    pub(crate) async fn read_generation(
        &self,
        version: &Version,
    ) -> Result<(TableGeneration, Arc<SuppressedPeople>)> {
        let suppressed = self.ports.suppressions.current().await?;
        let generation = TableGeneration {
            backfills: version.backfills(),
            erasures: suppressed.newest_listener(),
        };
        Ok((generation, suppressed))
    }

    /// Returns the first and last day with expired events.
    pub(crate) async fn find_expired_bounds(&self, source: Source) -> Result<Option<(i64, i64)>> {
        let archive = &self.ports.archive;
        let version = Version::read_newest(archive, source).await?;
        version.find_expired_bounds(archive, source).await
    }

    /// Acquires the lease that keeps two runs of a source apart.
    pub(crate) async fn acquire_run_lease(&self, source: Source) -> Result<Box<dyn Lease>> {
        let lease = stores::lease::run_lease(source);
        let work = format!("a batch run is under way for {source}");
        self.acquire_lease(&lease, &work).await
    }

    /// Acquires a lease. `work` describes the work of the current holder for the error message.
    pub(crate) async fn acquire_lease(&self, lease: &str, work: &str) -> Result<Box<dyn Lease>> {
        let (leases, holder) = (&self.ports.leases, &self.options.holder);
        let acquired = leases.acquire(lease, holder).await?;
        acquired.map_err(|holder| Error::Busy(format!("{work}: {holder}")))
    }

    pub(crate) async fn archiver(&self, source: Source) -> Result<Archiver<'_>> {
        let size = FileSize {
            rows_max: self.options.archive_rows_max,
            bytes_max: self.options.archive_bytes_max,
        };
        Archiver::open(&self.ports, source, size).await
    }

    pub(crate) fn snapshot_taker<'a>(
        &'a self,
        source: Source,
        lease: &'a dyn Lease,
    ) -> SnapshotTaker<'a> {
        SnapshotTaker {
            entities: &*self.ports.entities,
            archive: &self.ports.archive,
            lease,
            source,
            taken_at_ms: self.ports.clock.now_ms(),
            rows_max: self.options.snapshot_rows_max,
        }
    }

    /// Deletes archive files that are no longer needed. With `includes_unredacted` also deletes
    /// those that may name an erased listener; the grace period of their readers must be over.
    pub(crate) async fn collect_archive_garbage(
        &self,
        source: Source,
        includes_unredacted: bool,
    ) -> Result<()> {
        let now_ms = self.ports.clock.now_ms();
        let wait_ms = i64::try_from(self.options.archive_merged_wait_ms).unwrap_or(i64::MAX);
        let scope = GarbageScope {
            before_ms: now_ms.saturating_sub(wait_ms),
            includes_unredacted,
        };
        collect_garbage(&self.ports.archive, source, scope, now_ms).await
    }

    /// Returns the published state of each view.
    pub(crate) async fn read_published_states<M: Manifest>(
        &self,
        results: &Results<'_>,
    ) -> Result<BTreeMap<String, PublishedState<M>>> {
        let tables = self.ports.views.results(results.source).await?;
        results.read_published_states(&tables).await
    }

    /// Deletes the results that no table refers to. Returns the published state of each view.
    pub(crate) async fn delete_unreferenced_results<M: Manifest>(
        &self,
        results: &Results<'_>,
        stop: &CancellationToken,
    ) -> Result<BTreeMap<String, PublishedState<M>>> {
        let listing = results.list().await?;
        let states = self.read_published_states(results).await?;
        results.delete_unreferenced(listing, &states, stop).await?;
        Ok(states)
    }

    /// Returns whether the log of a source has received any record. The topic of notifications may
    /// exist before it has one.
    ///
    /// # Errors
    /// Errors of the stores.
    pub async fn has_log(&self, source: Source) -> Result<bool> {
        let ends = self.read_partition_ends(source).await?;
        let runs = self.ports.views.runs(source).await?.runs;
        let has_records = match source.kind() {
            SourceKind::Events => !ends.is_empty(),
            SourceKind::Entities => ends.iter().any(|end| *end > 0),
        };
        Ok(has_records || runs.partition_count() > 0)
    }

    /// Returns the end offset of each log partition.
    pub(crate) async fn read_partition_ends(&self, source: Source) -> Result<Vec<Offset>> {
        let spans = self.ports.log.spans(source.topic()).await?;
        Ok(spans.iter().map(|span| span.end).collect())
    }

    pub(crate) async fn read_checked_log_ends(&self, source: Source) -> Result<Vec<Offset>> {
        let ends = self.read_partition_ends(source).await?;
        let recorded = self.ports.views.runs(source).await?.runs.partition_count();
        if ends.is_empty() && recorded == 0 {
            return Err(Error::Request(format!(
                "the log of {source} does not exist yet: run `backstitch ingest {source} FILE` first"
            )));
        }
        if ends.len() < recorded {
            return Err(lost_log_error(format!(
                "the log of {source} has {} partitions, but a recorded run has cuts in {recorded}: the log was lost",
                ends.len()
            )));
        }
        Ok(ends)
    }

    /// Waits for the grace period, after which no reader uses what the run replaced. Returns false
    /// if the run must stop.
    pub(crate) async fn wait_grace_period(&self, stop: &CancellationToken) -> bool {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(self.options.grace_ms)) => true,
            () = stop.cancelled() => false,
        }
    }
}
