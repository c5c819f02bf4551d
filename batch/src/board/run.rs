//! The run of an entity source.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::tables::TableGeneration;
use jobs::{Board, Job, Layers};
use schemas::source::Source;
use stores::lease::LeaseGuard as Lease;
use tokio_util::sync::CancellationToken;

use super::check::check;
use super::compute::Compute;
use super::daily_counts::CountWriter;
use super::drift::{Comparison, Stretch};
use super::manifest::BoardManifest;
use super::pending::PendingByView;
use super::planning::{Plan, PlannedView, plan};
use super::publish::{PublishTotals, Publisher};
use super::speed_progress::SpeedProgress;
use super::tasks;
use super::view::encode_keys;
use crate::batch::Batch;
use crate::drift::Drift;
use crate::lease::{check_stop, run_under_lease};
use crate::report::{RunReport, Stages};
use crate::results::{Results, result_name, result_names};
use crate::run_steps::{PublishedTables, lag_warnings};
use crate::snapshot::{Snapshot, SnapshotReport, SnapshotTaker};
use crate::{Progress, Result, RunRequest};

/// Nodes that are deleted in one step, so that other writers get a turn in between.
const COLLECT_NODES: usize = 2_000;

/// The outcome of publishing all boards of a run.
struct PublishedBoards {
    stamp_us: i64,
    rows_written: u64,
    rows_skipped: u64,
    drift: Drift,
}

/// The cleanup of a published run of boards.
struct BoardCleanup<'a> {
    request: &'a RunRequest,
    plan: &'a Plan,
    stamp_us: i64,
    results: &'a Results<'a>,
    snapshot_taker: &'a SnapshotTaker<'a>,
    snapshot_report: &'a SnapshotReport,
}

impl Batch {
    /// Executes a run of the boards of a source.
    pub(crate) async fn run_boards(
        &self,
        results: &Results<'_>,
        request: &RunRequest,
        stages: &mut Stages<'_>,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        stages.begin("seal", 0);
        let (plan, mut report) = self.plan_boards(results, request, stop).await?;
        stages.begin("snapshot", 0);
        let snapshot_taker = self.snapshot_taker(results.source, results.lease);
        let (snapshot, snapshot_report) = snapshot_taker
            .take(plan.keys.as_ref(), stages.progress, stop)
            .await?;
        report.rows_read = snapshot.rows();
        stages.begin("compute", report.rows_read);
        let mut manifests = self
            .compute_boards(results, &plan, &snapshot, stages.progress, stop)
            .await?;
        stages.begin("check", 0);
        let (views, rows_min) = (&*self.ports.views, self.options.check_rows_min);
        let faults = check(views, &plan, &snapshot, &mut manifests, rows_min).await?;
        self.enforce_check::<BoardManifest>(results, request, faults, &mut report, stop)
            .await?;
        stages.begin("wait", 0);
        let pending = self.find_pending(&plan, &mut report, stop).await?;
        for manifest in manifests.values_mut() {
            let is_changed = pending
                .members
                .get(&manifest.view)
                .is_some_and(|members| !members.is_empty());
            // Pending members change the row count, so the next run counts the rows.
            manifest.view_rows = manifest.view_rows.filter(|_| !is_changed);
            results.create(manifest).await?;
        }
        stages.begin("publish", manifests.values().map(BoardManifest::rows).sum());
        let published = self
            .publish_boards(request, &plan, &manifests, &pending, stages.progress, stop)
            .await?;
        report.rows_written = published.rows_written;
        report.rows_skipped = published.rows_skipped;
        report.drift = published.drift;
        // The run is published, so a later failure is only a warning.
        let cleanup = BoardCleanup {
            request,
            plan: &plan,
            stamp_us: published.stamp_us,
            results,
            snapshot_taker: &snapshot_taker,
            snapshot_report: &snapshot_report,
        };
        let outcome = self
            .clean_up_boards(&cleanup, &mut report, stages, stop)
            .await;
        Self::add_cleanup_warning(results.source, outcome, &mut report);
        Ok(report)
    }

    /// Waits for the speed layer, and returns the pending members.
    async fn find_pending(
        &self,
        plan: &Plan,
        report: &mut RunReport,
        stop: &CancellationToken,
    ) -> Result<PendingByView> {
        let (source, cuts) = (plan.source, &plan.run.cuts);
        // Read these before the log's end: then each group is in one of both.
        let unsent = self.unsent_groups(source).await?;
        let SpeedProgress {
            counted,
            ends,
            warnings,
        } = self.wait_for_speed(source, cuts, stop).await?;
        check_stop(stop)?;
        report.warnings.extend(warnings);
        let groups = self
            .add_uncounted_groups(source, &counted, &ends, unsent)
            .await?;
        let mut unknown_reason = groups
            .is_none()
            .then(|| "too many notifications are pending".to_owned());
        let mut partitions = counted.iter().zip(&ends).zip(cuts);
        if partitions.any(|((counted, end), cut)| counted.is_none() && *end > cut.next_offset) {
            unknown_reason = Some("a partition has no live state".to_owned());
        }
        if ends.len() > cuts.len() {
            unknown_reason = Some("partitions were added during the run".to_owned());
        }
        let groups = groups.filter(|_| ends.len() <= cuts.len());
        let mut groups = groups.unwrap_or_default();
        // Erased athletes are never kept pending.
        let suppressed = self.ports.suppressions.current().await?;
        groups.retain(|group| !suppressed.contains_athlete(group.member));
        let mut members = BTreeMap::new();
        let live_views = plan
            .computed_views()
            .filter(|view| view.job.layers() == Layers::Both);
        for view in live_views.filter(|_| !groups.is_empty()) {
            let pending = self.pending_members(&view.job, plan, &groups, stop).await?;
            unknown_reason = unknown_reason.or(pending.unknown_reason);
            members.insert(view.job.view().to_owned(), Arc::new(pending.members));
        }
        if let Some(reason) = &unknown_reason {
            tracing::warn!(%source, reason, "a run may publish board changes that the speed layer has not processed; these will not be announced");
            report.warnings.push(format!(
                "this run may publish board changes that the speed layer has not processed, and these will not be announced: {reason}"
            ));
        }
        Ok(PendingByView {
            members,
            unknown_reason,
        })
    }

    /// Publishes the computed views, and records the run as complete.
    async fn publish_boards(
        &self,
        request: &RunRequest,
        plan: &Plan,
        manifests: &BTreeMap<String, BoardManifest>,
        pending: &PendingByView,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<PublishedBoards> {
        let (source, epoch) = (plan.source, plan.run.epoch);
        let names = result_names(manifests);
        let now_ms = self.ports.clock.now_ms();
        let stamp_us = self
            .ports
            .views
            .begin_publishing(source, epoch, &names, now_ms)
            .await?;
        let (mut rows_written, mut rows_skipped) = (0, 0);
        let mut drift: Option<Drift> = None;
        for view in plan.computed_views() {
            let Some(manifest) = manifests.get(view.job.name()) else {
                continue;
            };
            let publisher = self.publisher(request, plan, view, stamp_us).await?;
            let members = pending.members.get(view.job.view()).map(Arc::clone);
            let members = members.unwrap_or_default();
            let mut totals = PublishTotals::default();
            if request.jobs.is_empty() && view.job.layers() == Layers::Both {
                let run = Stretch {
                    source,
                    epoch,
                    cuts: &plan.run.cuts,
                    is_again: view.is_dirty,
                };
                let unknown_reason = pending.unknown_reason.as_deref();
                let comparison = Comparison::begin(&self.ports, &view.job, run, unknown_reason);
                totals.comparison = Some(comparison.await?);
            }
            publisher
                .publish(&view.job, manifest, &members, &mut totals, progress, stop)
                .await?;
            rows_written += totals.written;
            rows_skipped += totals.skipped;
            if let Some(comparison) = totals.comparison {
                let (view_drift, worst) = comparison.end().await;
                drift.get_or_insert_with(Drift::none).add(view_drift, worst);
            }
        }
        self.complete(source, request, epoch, stamp_us, &names)
            .await?;
        Ok(PublishedBoards {
            stamp_us,
            rows_written,
            rows_skipped,
            drift: drift.unwrap_or_default(),
        })
    }

    /// Creates the publisher of a view.
    async fn publisher(
        &self,
        request: &RunRequest,
        plan: &Plan,
        view: &PlannedView,
        stamp_us: i64,
    ) -> Result<Publisher<'_>> {
        let (job, source, epoch) = (&view.job, plan.source, plan.run.epoch);
        let count_writer =
            CountWriter::begin(&self.ports, job, source, epoch, stamp_us, view.is_dirty).await?;
        Ok(Publisher {
            ports: &self.ports,
            source,
            epoch,
            stamp_us,
            threads: self.engine.threads(),
            versions: self.options.versions,
            count_writer,
            rewrite: encode_keys(job, &request.rewrite)?,
            forget_earlier: request.forget_earlier,
        })
    }

    /// Takes a snapshot of all rows of an entity source.
    ///
    /// # Errors
    /// [`crate::Error::Busy`] while a run is under way, which takes its own snapshot; those of the
    /// stores, and [`crate::Error::Stopped`].
    pub async fn snapshot(
        &self,
        source: Source,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<SnapshotReport> {
        let lease = self.acquire_run_lease(source).await?;
        let stop = &stop.child_token();
        let work = async {
            let snapshot_taker = self.snapshot_taker(source, &*lease);
            progress.stage("snapshot", 0);
            let (_, report) = snapshot_taker.take(None, progress, stop).await?;
            check_stop(stop)?;
            snapshot_taker.delete_others(&report, stop).await?;
            Ok(report)
        };
        let outcome = run_under_lease(&*lease, stop, Box::pin(work)).await;
        lease.release().await;
        outcome
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

    /// Ends the epoch, and plans the run.
    async fn plan_boards(
        &self,
        results: &Results<'_>,
        request: &RunRequest,
        stop: &CancellationToken,
    ) -> Result<(Plan, RunReport)> {
        let source = results.source;
        let jobs = self.catalog.boards_in_layer(source, Layers::Batch);
        let jobs: Vec<Arc<Job<Board>>> = jobs.map(Arc::clone).collect();
        let names: Vec<&str> = jobs.iter().map(|job| job.name()).collect();
        Self::check_job_names(&names, request)?;
        // Entities have no backfills.
        self.create_tables(source, TableGeneration::default())
            .await?;
        let ends = self.checked_log_ends(source).await?;
        let run = self.select_run(source, request, ends.len(), stop).await?;
        // Delete results of failed attempts that were never published.
        let mut states = self.delete_unreferenced_results(results, stop).await?;
        self.ports.archive.remove_abandoned_files().await?;
        let (log, schemas) = (&*self.ports.log, &*self.ports.schemas);
        let plan = plan(log, schemas, source, request, run, jobs, &mut states).await?;
        let names = plan.computed_views().map(|view| view.job.name().to_owned());
        let report = RunReport {
            epoch: plan.run.epoch,
            cuts: plan.run.cuts.iter().map(|cut| cut.next_offset).collect(),
            jobs: names.collect(),
            full: plan.keys.is_none(),
            warnings: lag_warnings(source, &plan.run.cuts, &ends),
            ..RunReport::default()
        };
        Ok((plan, report))
    }

    /// Computes the views. Returns the manifests by job name.
    async fn compute_boards(
        &self,
        results: &Results<'_>,
        plan: &Plan,
        snapshot: &Snapshot,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<BTreeMap<String, BoardManifest>> {
        let compute = Arc::new(Compute {
            engine: self.engine.clone(),
            archive: self.ports.archive.clone(),
            files: format!("{}/{:010}", results.data_folder(), plan.run.epoch),
            result_bytes_max: self.options.result_bytes_max,
            jobs: plan
                .computed_views()
                .map(|view| Arc::clone(&view.job))
                .collect(),
        });
        let executor = self.executor();
        let files = tasks::compute(&compute, &executor, snapshot, progress, stop).await?;
        let manifests = compute.jobs.iter().zip(files).map(|(job, key_ranges)| {
            let manifest = BoardManifest {
                view: job.view().to_owned(),
                epoch: plan.run.epoch,
                result: result_name(plan.run.epoch),
                cuts: plan.run.cuts.clone(),
                keys: plan.keys.clone(),
                key_ranges,
                view_rows: None,
            };
            (job.name().to_owned(), manifest)
        });
        Ok(manifests.collect())
    }

    /// Deletes what the published run replaced.
    async fn clean_up_boards(
        &self,
        cleanup: &BoardCleanup<'_>,
        report: &mut RunReport,
        stages: &mut Stages<'_>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let (source, plan) = (cleanup.plan.source, cleanup.plan);
        let keep = plan.view_names();
        let published = PublishedTables {
            source,
            epoch: plan.run.epoch,
            stamp_us: cleanup.stamp_us,
            tables: &keep,
        };
        if !self
            .retire_tables(cleanup.request, published, report, stages, stop)
            .await?
        {
            return Ok(());
        }
        self.delete_stale_nodes(plan, cleanup.stamp_us, stop)
            .await?;
        let partitions = plan.run.cuts.len();
        self.prune_epochs(source, &keep, partitions, stop).await?;
        if stop.is_cancelled() {
            return Ok(());
        }
        cleanup
            .snapshot_taker
            .delete_others(cleanup.snapshot_report, stop)
            .await?;
        self.delete_unreferenced_results::<BoardManifest>(cleanup.results, stop)
            .await?;
        Ok(())
    }

    /// Deletes nodes that no head leads to, also those that earlier runs left.
    async fn delete_stale_nodes(
        &self,
        plan: &Plan,
        stamp_us: i64,
        stop: &CancellationToken,
    ) -> Result<()> {
        let (views, at) = (&self.ports.views, (plan.run.epoch, stamp_us));
        for view in plan.view_names() {
            while !stop.is_cancelled()
                && views
                    .collect_garbage(plan.source, &view, at, COLLECT_NODES)
                    .await?
                    == COLLECT_NODES
            {}
        }
        Ok(())
    }
}
