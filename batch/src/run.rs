//! The batch layer: runs, archiving, and the steps that all sources share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jobs::tables::TableGeneration;
use jobs::{Catalog, Engine, Layers};
use schemas::seam::{Cut, Epoch, Offset, Run, RunState};
use schemas::source::{Source, SourceKind};
use schemas::traces;
use stores::ErrorKind;
use stores::erasures::SuppressedPeople;
use stores::lease::LeaseGuard as Lease;
use stores::live::PartitionId;
use stores::views::ViewShape;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::archive::{
    ArchiveReport, Archiver, FileEntry, FileSize, GarbageScope, Version, collect_garbage,
};
use crate::error::lost_log_error;
use crate::executor::{Executor, Workers};
use crate::report::{RunReport, Stages};
use crate::results::{Manifest, PublishedState, Results};
use crate::seal::{seal_run, verify_cuts};
use crate::{BatchOptions, BatchPorts, Error, Progress, Result, RunRequest, board, tally};

const GARBAGE_ROWS: usize = 20_000;
/// Bytes of archive files that a run caches.
pub(crate) const FILE_CACHE_BYTES: u64 = 64 << 20;
const ARCHIVE_PAUSE: Duration = Duration::from_secs(1);

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

/// The tables that a run has published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PublishedTables<'a> {
    pub(crate) source: Source,
    pub(crate) epoch: Epoch,
    pub(crate) stamp_us: i64,
    pub(crate) tables: &'a [String],
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

    /// Migrates an archive that an older version of Backstitch wrote. Returns false if there is
    /// none.
    ///
    /// # Errors
    /// Errors of the archive, [`Error::Damaged`] if a record of the older layout is missing or
    /// damaged, and [`Error::Busy`] if a run or a backfill is under way.
    pub async fn migrate_archive(&self, source: Source) -> Result<bool> {
        if !Version::has_older_layout(&self.ports.archive, source).await? {
            return Ok(false);
        }
        let what = format!(
            "a run or a backfill of {source} is under way, and the archive cannot be migrated meanwhile"
        );
        let mut leases = Vec::new();
        for lease in [format!("batch-{source}"), format!("backfill-{source}")] {
            leases.push(self.acquire_lease(&lease, &what).await?);
        }
        let taken_over = Version::migrate(&self.ports.archive, source).await;
        for lease in leases {
            lease.release().await;
        }
        taken_over
    }

    /// Creates the missing tables of a source's views.
    ///
    /// # Errors
    /// Errors of the views' store.
    pub async fn create_views(&self, source: Source) -> Result<()> {
        let version = Version::newest(&self.ports.archive, source).await?;
        let (generation, _) = self.generation(&version).await?;
        self.create_tables(source, generation).await
    }

    /// Returns the generation of rows computed from `version` now, and the erased people.
    pub(crate) async fn generation(
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

    /// Deletes archive files that are no longer needed. With `redacted` also deletes those that may
    /// name an erased listener; the grace period of their readers must be over.
    pub(crate) async fn collect_archive_garbage(
        &self,
        source: Source,
        redacted: bool,
    ) -> Result<()> {
        let now_ms = self.ports.clock.now_ms();
        let wait_ms = i64::try_from(self.options.archive_merged_wait_ms).unwrap_or(i64::MAX);
        let due = GarbageScope {
            before_ms: now_ms.saturating_sub(wait_ms),
            redacted,
        };
        collect_garbage(&self.ports.archive, source, due, now_ms).await
    }

    /// Creates the missing tables of a source's views for a generation.
    pub(crate) async fn create_tables(
        &self,
        source: Source,
        generation: TableGeneration,
    ) -> Result<()> {
        let aggregates = self.catalog.jobs_in_layer(source, Layers::Batch);
        let boards = self.catalog.boards_in_layer(source, Layers::Batch);
        let shapes: Vec<ViewShape> = aggregates
            .flat_map(|job| {
                let mirror_shape = tally::kept_shape(job, generation);
                std::iter::once(tally::shape(job, generation)).chain(mirror_shape)
            })
            .chain(boards.map(|job| board::view_shape(job)))
            .collect();
        for shape in shapes {
            self.ports.views.ensure_view(source, &shape).await?;
        }
        Ok(())
    }

    /// Copies the log of a source to the archive until `shutdown`, or with `until_caught_up` up to
    /// the current end of the log. Writes a file when enough events are waiting, or when the oldest
    /// one has waited for `archive_wait_ms`.
    ///
    /// # Errors
    /// [`Error::Request`] if the archive was written from another log, and those of the stores.
    pub async fn archive(
        &self,
        source: Source,
        until_caught_up: bool,
        shutdown: CancellationToken,
    ) -> Result<ArchiveReport> {
        let mut report = ArchiveReport::default();
        let mut archiver = self.archiver(source).await?;
        if let Err(error) = self.collect_archive_garbage(source, false).await {
            tracing::warn!(%source, %error, "cannot delete unused archive files; the next archiver or run deletes them");
        }
        let longest_wait = Duration::from_millis(self.options.archive_wait_ms);
        // When the oldest unarchived event was first seen.
        let mut waiting_since: Option<Instant> = None;
        loop {
            let copied = async {
                let ends = self.partition_ends(source).await?;
                let lag = archiver.lag(&ends);
                if lag == 0 {
                    waiting_since = None;
                    return Ok(ArchiveReport::default());
                }
                let since = *waiting_since.get_or_insert_with(Instant::now);
                let is_enough = lag >= self.options.archive_rows_max as u64;
                if !until_caught_up && !is_enough && since.elapsed() < longest_wait {
                    return Ok(ArchiveReport::default());
                }
                let ends: Vec<Cut> = ends.into_iter().map(cut_at).collect();
                let copied = archiver.archive_up_to(&ends, &(), &shutdown).await?;
                waiting_since = None;
                Ok(copied)
            };
            match copied.await {
                Ok(copied) => report += copied,
                Err(Error::Store(error))
                    if !until_caught_up && error.kind() == ErrorKind::Retry =>
                {
                    tracing::warn!(%source, %error, "archiving failed, retrying");
                }
                Err(error) => return Err(error),
            }
            if until_caught_up {
                return Ok(report);
            }
            tokio::select! {
                () = tokio::time::sleep(ARCHIVE_PAUSE) => {}
                () = shutdown.cancelled() => return Ok(report),
            }
        }
    }

    /// Returns whether the log of a source has received any record. The topic of notifications may
    /// exist before it has one.
    ///
    /// # Errors
    /// Errors of the stores.
    pub async fn has_log(&self, source: Source) -> Result<bool> {
        let ends = self.partition_ends(source).await?;
        let runs = self.ports.views.runs(source).await?.runs;
        let has_records = match source.kind() {
            SourceKind::Events => !ends.is_empty(),
            SourceKind::Entities => ends.iter().any(|end| *end > 0),
        };
        Ok(has_records || runs.partitions() > 0)
    }

    /// Verifies that no listed archive file is missing and that the archive belongs to this log.
    /// Returns the numbers of files and events. Does not read the files.
    ///
    /// # Errors
    /// [`Error::Damaged`] for the first missing file, and [`Error::Request`] if the log is another
    /// one.
    pub async fn check_archive(&self, source: Source) -> Result<(usize, u64)> {
        let mut archiver = self.archiver(source).await?;
        archiver.verify_log().await?;
        let (archive, version) = (&self.ports.archive, archiver.version());
        if let Some(path) = version.missing_files(archive, source).await?.first() {
            return Err(Error::damaged(path, "it is missing"));
        }
        let (entries, _) = version.contents(archive, source).await?;
        let files = entries.iter().filter(|entry| entry.path.is_some()).count();
        let events = entries.iter().map(FileEntry::rows).sum();
        Ok((files, events))
    }

    /// Executes a run: continues an interrupted one, or starts a new one.
    ///
    /// # Errors
    /// [`Error::Busy`] if another run is under way, [`Error::Check`] if the result failed its
    /// check, and those of the stores and of queries. Answers stay exact after any error, and the
    /// run can be repeated.
    pub async fn run(
        &self,
        source: Source,
        request: &RunRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        let lease = self.acquire_run_lease(source).await?;
        let stop = stop.child_token();
        let with_cache = self.with_file_cache();
        let results = Results {
            archive: &with_cache.ports.archive,
            source,
            lease: &*lease,
        };
        let span = tracing::info_span!(
            target: traces::TARGET, "batch run", %source, otel.status_code = tracing::field::Empty,
        );
        let work = with_cache.run_with_lease(results, request, progress, &stop);
        let work = Box::pin(work).instrument(span.clone());
        let mut outcome = run_under_lease(&*lease, &stop, work).await;
        if outcome.is_err() {
            span.record("otel.status_code", "ERROR");
        }
        if !lease.lost().is_cancelled() {
            outcome = self.delete_damaged_file(outcome).await;
            if let Err(error) = &outcome
                && request.jobs.is_empty()
            {
                self.record_error(source, error).await;
            }
        }
        lease.release().await;
        outcome
    }

    /// Returns a copy that caches archive files: a view has many time partitions, and most are
    /// small and share a file with their neighbors.
    fn with_file_cache(&self) -> Self {
        let mut with_cache = self.clone();
        with_cache.ports.archive = self.ports.archive.with_cache(FILE_CACHE_BYTES);
        with_cache
    }

    /// Records the error in the report of the open run. A failure is only logged, since nothing
    /// depends on the record.
    async fn record_error(&self, source: Source, error: &Error) {
        if matches!(error, Error::Stopped) {
            return;
        }
        let recorded = async {
            let runs = self.ports.views.runs(source).await?.runs;
            let Some(run) = runs.open() else {
                return Ok(());
            };
            let report = RunReport {
                epoch: run.epoch,
                cuts: run.cuts.iter().map(|cut| cut.next_offset).collect(),
                error: Some(error.to_string()),
                ..RunReport::default()
            };
            self.record_report(source, &report).await
        };
        if let Err(error) = recorded.await {
            tracing::debug!(%source, %error, "cannot record the error of a run");
        }
    }

    /// Deletes the file that a failed run found damaged, if the next run can recompute it.
    async fn delete_damaged_file(&self, outcome: Result<RunReport>) -> Result<RunReport> {
        let Some((path, why)) = outcome.as_ref().err().and_then(Error::damaged_file) else {
            return outcome;
        };
        if self.delete_if_derived(&path).await? {
            return Err(Error::Request(format!(
                "{path} was damaged or missing and has been deleted; run again to recompute it"
            )));
        }
        // The context of the error is long and adds nothing.
        Err(stores::Error::DamagedFile { path, why }.into())
    }

    /// Deletes a damaged file if the next run recomputes it. Returns whether it was deleted.
    pub(crate) async fn delete_if_derived(&self, path: &str) -> Result<bool> {
        let plays_results = format!("results/{}/", Source::Plays);
        let is_derived = path.starts_with("results/") || path.starts_with("snapshots/");
        if !is_derived
            || path.starts_with(&plays_results)
                && self.expired_bounds(Source::Plays).await?.is_some()
        {
            // Expired events cannot be computed again, so the file must stay.
            return Ok(false);
        }
        self.ports.archive.delete(path).await?;
        Ok(true)
    }

    /// Returns the first and last day with expired events.
    pub(crate) async fn expired_bounds(&self, source: Source) -> Result<Option<(i64, i64)>> {
        let archive = &self.ports.archive;
        let version = Version::newest(archive, source).await?;
        version.expired_bounds(archive, source).await
    }

    /// Acquires the lease that keeps two runs of a source apart.
    pub(crate) async fn acquire_run_lease(&self, source: Source) -> Result<Box<dyn Lease>> {
        let lease = format!("batch-{source}");
        let what = format!("a batch run is under way for {source}");
        self.acquire_lease(&lease, &what).await
    }

    /// Acquires a lease. `what` describes the work of the current holder for the error message.
    pub(crate) async fn acquire_lease(&self, lease: &str, what: &str) -> Result<Box<dyn Lease>> {
        let (leases, holder) = (&self.ports.leases, &self.options.holder);
        let acquired = leases.acquire(lease, holder).await?;
        acquired.map_err(|holder| Error::Busy(format!("{what}: {holder}")))
    }

    /// Executes a run while its lease is held.
    pub(crate) async fn run_with_lease(
        &self,
        results: Results<'_>,
        request: &RunRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        let source = results.source;
        let mut stages = Stages::new(progress);
        let mut report = match source.kind() {
            SourceKind::Events => {
                let run = self.run_tallies(&results, request, &mut stages, stop);
                run.await?
            }
            SourceKind::Entities => {
                self.run_boards(&results, request, &mut stages, stop)
                    .await?
            }
        };
        report.seconds = stages.end();
        report.emit(source);
        if request.jobs.is_empty() {
            self.record_report(source, &report).await?;
        }
        Ok(report)
    }

    /// Adds a warning if the cleanup after publishing failed. The next run cleans up.
    pub(crate) fn add_cleanup_warning(source: Source, outcome: Result<()>, report: &mut RunReport) {
        if let Err(error) = outcome {
            tracing::warn!(%source, %error, "the run is published, but its cleanup failed; the next run repeats it");
            let warning = format!(
                "the run is published, but its cleanup failed and is repeated by the next run: {error}"
            );
            report.warnings.push(warning);
        }
    }

    /// Records the published views as complete, and the run unless it computed single jobs.
    /// `results` has the result of each view.
    pub(crate) async fn complete(
        &self,
        source: Source,
        request: &RunRequest,
        epoch: Epoch,
        stamp_us: i64,
        results: &BTreeMap<String, String>,
    ) -> Result<()> {
        let (run_ends, now_ms) = (request.jobs.is_empty(), self.ports.clock.now_ms());
        let views = &self.ports.views;
        Ok(views
            .complete(source, (epoch, stamp_us), results, run_ends, now_ms)
            .await?)
    }

    /// Accepts a result that has no faults or was forced. Otherwise abandons the run and deletes
    /// the result's files.
    pub(crate) async fn enforce_check<M: Manifest>(
        &self,
        results: &Results<'_>,
        request: &RunRequest,
        faults: Vec<String>,
        report: &mut RunReport,
        stop: &CancellationToken,
    ) -> Result<()> {
        if faults.is_empty() {
            return Ok(());
        }
        if request.force {
            report.warnings.extend(faults);
            return Ok(());
        }
        let (source, epoch, faults_text) = (results.source, report.epoch, faults.join("; "));
        let mut error = Error::Check {
            epoch,
            what: faults_text,
        };
        if request.jobs.is_empty() {
            report.warnings.extend(faults.iter().cloned());
            report.faults = faults;
            if let Err(abandon_error) = self.abandon(source, report).await {
                error = abandon_error;
            }
        }
        if let Err(error) = self.delete_unreferenced_results::<M>(results, stop).await {
            tracing::warn!(%source, %error, "cannot delete the result that failed its check; the next run does");
        }
        Err(error)
    }

    async fn abandon(&self, source: Source, report: &RunReport) -> Result<()> {
        self.record_report(source, report).await?;
        let (views, now_ms) = (&self.ports.views, self.ports.clock.now_ms());
        Ok(views.abandon(source, report.epoch, now_ms).await?)
    }

    pub(crate) async fn record_report(&self, source: Source, report: &RunReport) -> Result<()> {
        let value =
            serde_json::to_value(report).map_err(|e| Error::fault("writing a report", e))?;
        let views = &self.ports.views;
        Ok(views.set_report(source, report.epoch, &value).await?)
    }

    /// Returns the published state of each view.
    pub(crate) async fn published_states<M: Manifest>(
        &self,
        results: &Results<'_>,
    ) -> Result<BTreeMap<String, PublishedState<M>>> {
        let tables = self.ports.views.results(results.source).await?;
        results.published_states(&tables).await
    }

    /// Deletes the results that no table refers to. Returns the published state of each view.
    pub(crate) async fn delete_unreferenced_results<M: Manifest>(
        &self,
        results: &Results<'_>,
        stop: &CancellationToken,
    ) -> Result<BTreeMap<String, PublishedState<M>>> {
        let listing = results.list().await?;
        let states = self.published_states(results).await?;
        results.delete_unreferenced(listing, &states, stop).await?;
        Ok(states)
    }

    pub(crate) async fn archiver(&self, source: Source) -> Result<Archiver<'_>> {
        let size = FileSize {
            rows_max: self.options.archive_rows_max,
            bytes_max: self.options.archive_bytes_max,
        };
        Archiver::open(&self.ports, source, size).await
    }

    /// Returns the end offset of each log partition.
    pub(crate) async fn partition_ends(&self, source: Source) -> Result<Vec<Offset>> {
        let spans = self.ports.log.spans(source.topic()).await?;
        Ok(spans.iter().map(|span| span.end).collect())
    }

    /// Checks that all requested jobs exist.
    pub(crate) fn check_job_names(known: &[&str], request: &RunRequest) -> Result<()> {
        for name in &request.jobs {
            if !known.contains(&name.as_str()) {
                return Err(Error::Request(format!(
                    "unknown batch job {name:?}; the jobs are {}",
                    known.join(", ")
                )));
            }
        }
        Ok(())
    }

    pub(crate) async fn checked_log_ends(&self, source: Source) -> Result<Vec<Offset>> {
        let ends = self.partition_ends(source).await?;
        let recorded = self.ports.views.runs(source).await?.runs.partitions();
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

    /// Selects the run to execute: the sealed one, or for single jobs the newest complete one.
    /// Verifies that its cuts belong to this log.
    pub(crate) async fn select_run(
        &self,
        source: Source,
        request: &RunRequest,
        partitions: usize,
        stop: &CancellationToken,
    ) -> Result<Run> {
        let run = self.find_run(source, request, partitions, stop).await?;
        verify_cuts(&self.ports, source, &run.cuts).await?;
        Ok(run)
    }

    async fn find_run(
        &self,
        source: Source,
        request: &RunRequest,
        partitions: usize,
        stop: &CancellationToken,
    ) -> Result<Run> {
        let partitions = u32::try_from(partitions).map_err(|e| Error::fault("partitions", e))?;
        if request.jobs.is_empty() {
            return seal_run(&self.ports, &self.options, source, partitions, stop).await;
        }
        let runs = self.ports.views.runs(source).await?.runs;
        if let Some(open) = runs.open() {
            return Err(Error::Request(format!(
                "run {} is not complete: finish it with `backstitch batch run`, then run single jobs",
                open.epoch
            )));
        }
        if let Some(last) = runs.iter().next_back()
            && last.state == RunState::Abandoned
        {
            return Err(Error::Request(format!(
                "run {} failed its check, so single jobs cannot be added to an earlier run: run `backstitch batch run` first (with --force if the findings of the check are intended), then single jobs",
                last.epoch
            )));
        }
        runs.get(runs.newest()).cloned().ok_or_else(|| {
            Error::Request(
                "single jobs use the cuts of a complete run, and there is none yet: run `backstitch batch run` first"
                    .to_owned(),
            )
        })
    }

    /// Starts the cleanup after publishing: unregisters all other tables of the source, and waits
    /// for the grace period of their readers. Returns false if the run must stop. Then the next run
    /// cleans up, since a stopping run may have lost its lease.
    pub(crate) async fn retire_tables(
        &self,
        request: &RunRequest,
        published: PublishedTables<'_>,
        report: &mut RunReport,
        stages: &mut Stages<'_>,
        stop: &CancellationToken,
    ) -> Result<bool> {
        stages.begin("drop", 0);
        if request.jobs.is_empty() {
            // The report is complete enough if the process ends within the grace period.
            report.seconds = stages.ended();
            self.record_report(published.source, report).await?;
        }
        if stop.is_cancelled() {
            return Ok(false);
        }
        let at = (published.epoch, published.stamp_us);
        let views = &self.ports.views;
        views
            .forget_views(published.source, at, published.tables)
            .await?;
        Ok(self.wait_grace_period(stop).await)
    }

    /// Waits for the grace period, after which no reader uses what the run replaced. Returns false
    /// if the run must stop.
    pub(crate) async fn wait_grace_period(&self, stop: &CancellationToken) -> bool {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(self.options.grace_ms)) => true,
            () = stop.cancelled() => false,
        }
    }

    /// Prunes the live epochs that the rows of all `views` include.
    pub(crate) async fn prune_epochs(
        &self,
        source: Source,
        views: &[String],
        partitions: usize,
        stop: &CancellationToken,
    ) -> Result<()> {
        let runs = self.ports.views.runs(source).await?;
        let newest = |view: &String| runs.complete_epochs.get(view).copied().unwrap_or(0);
        let epoch = views.iter().map(newest).min().unwrap_or(0);
        if epoch == 0 {
            return Ok(());
        }
        for (index, partition) in (0..partitions).zip(0_u32..) {
            let id = PartitionId { source, partition };
            let Some(cut) = runs.runs.cut(epoch, index) else {
                continue;
            };
            self.ports.live.prune_through(id, epoch, cut).await?;
            while !stop.is_cancelled()
                && self.ports.live.collect_garbage(id, GARBAGE_ROWS).await? == GARBAGE_ROWS
            {
            }
        }
        Ok(())
    }
}

/// Returns [`Error::Stopped`] if the run must stop.
pub(crate) fn check_stop(stop: &CancellationToken) -> Result<()> {
    if stop.is_cancelled() {
        return Err(Error::Stopped);
    }
    Ok(())
}

/// Runs `work`, and cancels `stop` when the lease is lost: another process may hold the lease then.
/// `work` must check this `stop` at each safe point.
pub(crate) async fn run_under_lease<T>(
    lease: &dyn Lease,
    stop: &CancellationToken,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let lost = lease.lost();
    let mut work = std::pin::pin!(work);
    let outcome = tokio::select! {
        outcome = &mut work => return outcome,
        () = lost.cancelled() => {
            tracing::error!("lost the lease of a batch run; the run stops");
            stop.cancel();
            work.await
        }
    };
    match outcome {
        Err(error) => match error.split_applied() {
            (Error::Stopped, applied) => {
                Err(lost_lease_error(lease, "a run").with_applied(applied))
            }
            (error, applied) => Err(error.with_applied(applied)),
        },
        outcome => outcome,
    }
}

/// Verifies in the lease's store that the lease is held. Then no other process held it when earlier
/// reads were made, even if this process stalled since.
pub(crate) async fn verify_lease(lease: &dyn Lease) -> Result<()> {
    if lease.is_held().await? {
        return Ok(());
    }
    Err(lost_lease_error(lease, "a run"))
}

/// Returns the error of work that stopped because its lease was lost. `holder` names the work.
pub(crate) fn lost_lease_error(lease: &dyn Lease, holder: &str) -> Error {
    let reason = lease
        .loss_reason()
        .unwrap_or_else(|| "it expired".to_owned());
    Error::Store(stores::Error::Unavailable {
        what: format!("holding the lease of {holder}"),
        why: format!("it was lost: {reason}; run again"),
    })
}

/// Returns a cut without its last record.
const fn cut_at(next_offset: Offset) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}

/// Warns of records after the cuts, which the run does not include.
pub(crate) fn lag_warnings(source: Source, cuts: &[Cut], ends: &[Offset]) -> Vec<String> {
    let records: Offset = cuts
        .iter()
        .zip(ends)
        .map(|(cut, end)| end.saturating_sub(cut.next_offset).max(0))
        .sum();
    if records == 0 {
        return Vec::new();
    }
    vec![format!(
        "this run does not include {records} records of {source} that the speed layer has not processed yet; run `backstitch speed`, and the next run includes them"
    )]
}
