//! The run of an entity source.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::Layers;
use jobs::tables::TableGeneration;

use super::check::check;
use super::compute::BoardComputation;
use super::daily_counts::CountWriter;
use super::drift::{Comparison, Stretch};
use super::manifest::BoardManifest;
use super::pending::{
    PendingByView, add_uncounted_groups, find_unsent_groups, read_pending_members,
};
use super::planning::{Plan, PlannedView, plan};
use super::publish::{PublishTotals, Publisher};
use super::speed_progress::{SpeedProgress, wait_for_speed};
use super::tasks;
use super::view::encode_keys;
use crate::Result;
use crate::drift::Drift;
use crate::lease::check_stop;
use crate::report::{RunReport, Stages};
use crate::results::result_name;
use crate::run_steps::{
    PlannedRun, PublishedTables, RunContext, add_cleanup_warning, begin_publishing,
    check_job_names, complete, enforce_check, lag_warnings, prune_epochs, retire_tables,
    select_run,
};
use crate::snapshot::{Snapshot, SnapshotReport, SnapshotTaker};
use crate::view_tables::create_tables;

/// Nodes that are deleted in one step, so that other writers get a turn in between.
const COLLECT_NODES: usize = 2_000;

/// The snapshot of a run, and its taker, which deletes the others after publishing.
struct RunSnapshot<'a> {
    taker: SnapshotTaker<'a>,
    snapshot: Snapshot,
    report: SnapshotReport,
}

/// Manifests by job name.
type Manifests = BTreeMap<String, BoardManifest>;

/// The outcome of publishing all boards of a run.
struct PublishedBoards {
    stamp_us: i64,
    rows_written: u64,
    rows_skipped: u64,
    drift: Drift,
}

/// Executes a run of the boards of a source.
pub(crate) async fn run_boards(
    context: &RunContext<'_>,
    stages: &mut Stages<'_>,
) -> Result<RunReport> {
    stages.begin("seal", 0);
    let PlannedRun { plan, mut report } = seal_and_plan(context).await?;
    stages.begin("snapshot", 0);
    let run_snapshot = take_snapshot(context, &plan).await?;
    let snapshot = &run_snapshot.snapshot;
    report.rows_read = snapshot.rows();
    stages.begin("compute", report.rows_read);
    let mut manifests = compute(context, &plan, snapshot).await?;
    stages.begin("check", 0);
    let (views, rows_min) = (
        &*context.batch.ports.views,
        context.batch.options.check_rows_min,
    );
    let faults = check(views, &plan, snapshot, &mut manifests, rows_min).await?;
    enforce_check::<BoardManifest>(context, faults, &mut report).await?;
    stages.begin("wait", 0);
    let pending = find_pending(context, &plan, &mut report.warnings).await?;
    record_results(context, &pending, &mut manifests).await?;
    stages.begin("publish", manifests.values().map(BoardManifest::rows).sum());
    let published = publish(context, &plan, &manifests, &pending).await?;
    complete(context, plan.run.epoch, published.stamp_us, &manifests).await?;
    report.rows_written = published.rows_written;
    report.rows_skipped = published.rows_skipped;
    report.drift = published.drift;
    stages.begin("drop", 0);
    report.seconds = stages.seconds();
    // The run is published, so a later failure is only a warning.
    let outcome = clean_up(context, &plan, &run_snapshot, published.stamp_us, &report).await;
    add_cleanup_warning(plan.source, outcome, &mut report);
    Ok(report)
}

/// Ends the epoch, and plans the run.
async fn seal_and_plan(context: &RunContext<'_>) -> Result<PlannedRun<Plan>> {
    let (batch, source) = (context.batch, context.results.source);
    let jobs = batch.catalog.boards_in_layer(source, Layers::Batch);
    let jobs: Vec<_> = jobs.map(Arc::clone).collect();
    check_job_names(&jobs, context.request)?;
    // Entities have no backfills.
    create_tables(batch, source, TableGeneration::default()).await?;
    let ends = batch.read_checked_log_ends(source).await?;
    let run = select_run(context, ends.len()).await?;
    // Delete results of failed attempts that were never published.
    let states = batch.delete_unreferenced_results(&context.results, context.stop);
    let states = states.await?;
    batch.ports.archive.remove_abandoned_files().await?;
    let plan = plan(context, run, jobs, states).await?;
    let names = plan.computed_views().map(|view| view.job.name().to_owned());
    let report = RunReport {
        epoch: plan.run.epoch,
        cuts: plan.run.cuts.iter().map(|cut| cut.next_offset).collect(),
        jobs: names.collect(),
        full: plan.keys.is_none(),
        warnings: lag_warnings(source, &plan.run.cuts, &ends),
        ..RunReport::default()
    };
    Ok(PlannedRun { plan, report })
}

/// Takes a snapshot of the keys to compute.
async fn take_snapshot<'a>(context: &RunContext<'a>, plan: &Plan) -> Result<RunSnapshot<'a>> {
    let taker = context
        .batch
        .snapshot_taker(plan.source, context.results.lease);
    let (snapshot, report) = taker
        .take(plan.keys.as_ref(), context.progress, context.stop)
        .await?;
    Ok(RunSnapshot {
        taker,
        snapshot,
        report,
    })
}

/// Computes the views.
async fn compute(context: &RunContext<'_>, plan: &Plan, snapshot: &Snapshot) -> Result<Manifests> {
    let (batch, epoch) = (context.batch, plan.run.epoch);
    let compute = Arc::new(BoardComputation {
        engine: batch.engine.clone(),
        archive: batch.ports.archive.clone(),
        files: format!("{}/{epoch:010}", context.results.data_folder()),
        result_bytes_max: batch.options.result_bytes_max,
        jobs: plan
            .computed_views()
            .map(|view| Arc::clone(&view.job))
            .collect(),
    });
    let (executor, progress) = (batch.executor(), context.progress);
    let files = tasks::compute(&compute, &executor, snapshot, progress, context.stop).await?;
    let manifests = compute.jobs.iter().zip(files).map(|(job, key_ranges)| {
        let manifest = BoardManifest {
            view: job.view().to_owned(),
            epoch,
            result: result_name(epoch),
            cuts: plan.run.cuts.clone(),
            keys: plan.keys.clone(),
            key_ranges,
            view_rows: None,
        };
        (job.name().to_owned(), manifest)
    });
    Ok(manifests.collect())
}

/// Waits for the speed layer, and returns the pending members.
async fn find_pending(
    context: &RunContext<'_>,
    plan: &Plan,
    warnings: &mut Vec<String>,
) -> Result<PendingByView> {
    let (batch, source, cuts) = (context.batch, plan.source, &plan.run.cuts);
    // Read these before the log's end: then each group is in one of both.
    let unsent = find_unsent_groups(batch, source).await?;
    let SpeedProgress {
        counted,
        ends,
        warnings: speed_warnings,
    } = wait_for_speed(batch, source, cuts, context.stop).await?;
    check_stop(context.stop)?;
    warnings.extend(speed_warnings);
    let groups = add_uncounted_groups(batch, source, &counted, &ends, unsent).await?;
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
    let suppressed = batch.ports.suppressions.current().await?;
    groups.retain(|group| !suppressed.contains_athlete(group.member));
    let mut members = BTreeMap::new();
    let live_views = plan
        .computed_views()
        .filter(|view| view.job.layers() == Layers::Both);
    for view in live_views.filter(|_| !groups.is_empty()) {
        let pending = read_pending_members(context, plan, &view.job, &groups).await?;
        unknown_reason = unknown_reason.or(pending.unknown_reason);
        members.insert(view.job.view().to_owned(), Arc::new(pending.members));
    }
    if let Some(reason) = &unknown_reason {
        tracing::warn!(%source, reason, "a run may publish board changes that the speed layer has not processed; these will not be announced");
        warnings.push(format!(
            "this run may publish board changes that the speed layer has not processed, and these will not be announced: {reason}"
        ));
    }
    Ok(PendingByView {
        members,
        unknown_reason,
    })
}

/// Records the results, which may be published in part from now on.
async fn record_results(
    context: &RunContext<'_>,
    pending: &PendingByView,
    manifests: &mut Manifests,
) -> Result<()> {
    for manifest in manifests.values_mut() {
        let members = pending.members.get(&manifest.view);
        let is_changed = members.is_some_and(|members| !members.is_empty());
        // Pending members change the row count, so the next run counts the rows.
        manifest.view_rows = manifest.view_rows.filter(|_| !is_changed);
        context.results.create(manifest).await?;
    }
    Ok(())
}

/// Publishes the computed views.
async fn publish(
    context: &RunContext<'_>,
    plan: &Plan,
    manifests: &Manifests,
    pending: &PendingByView,
) -> Result<PublishedBoards> {
    let (source, epoch) = (plan.source, plan.run.epoch);
    let stamp_us = begin_publishing(context, epoch, manifests).await?;
    let (mut rows_written, mut rows_skipped) = (0, 0);
    let mut drift: Option<Drift> = None;
    for view in plan.computed_views() {
        let Some(manifest) = manifests.get(view.job.name()) else {
            continue;
        };
        let publisher = create_publisher(context, plan, view, stamp_us).await?;
        let members = pending.members.get(view.job.view()).map(Arc::clone);
        let members = members.unwrap_or_default();
        let mut totals = PublishTotals::default();
        if context.request.jobs.is_empty() && view.job.layers() == Layers::Both {
            let run = Stretch {
                source,
                epoch,
                cuts: &plan.run.cuts,
                is_again: view.is_dirty,
            };
            let (ports, unknown_reason) = (&context.batch.ports, pending.unknown_reason.as_deref());
            let comparison = Comparison::begin(ports, &view.job, run, unknown_reason);
            totals.comparison = Some(comparison.await?);
        }
        let (progress, stop) = (context.progress, context.stop);
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
    Ok(PublishedBoards {
        stamp_us,
        rows_written,
        rows_skipped,
        drift: drift.unwrap_or_default(),
    })
}

/// Creates the publisher of a view.
async fn create_publisher<'a>(
    context: &RunContext<'a>,
    plan: &Plan,
    view: &PlannedView,
    stamp_us: i64,
) -> Result<Publisher<'a>> {
    let (batch, request) = (context.batch, context.request);
    let (job, source, epoch) = (&view.job, plan.source, plan.run.epoch);
    let count_writer =
        CountWriter::begin(&batch.ports, job, source, epoch, stamp_us, view.is_dirty).await?;
    Ok(Publisher {
        ports: &batch.ports,
        source,
        epoch,
        stamp_us,
        threads: batch.engine.threads(),
        versions: batch.options.versions,
        count_writer,
        rewrite: encode_keys(job, &request.rewrite)?,
        forget_earlier: request.forget_earlier,
    })
}

/// Deletes what the published run replaced.
async fn clean_up(
    context: &RunContext<'_>,
    plan: &Plan,
    snapshot: &RunSnapshot<'_>,
    stamp_us: i64,
    report: &RunReport,
) -> Result<()> {
    let (stop, tables) = (context.stop, plan.view_names());
    let published = PublishedTables {
        epoch: plan.run.epoch,
        stamp_us,
        tables: &tables,
    };
    if !retire_tables(context, published, report).await? {
        return Ok(());
    }
    delete_stale_nodes(context, published).await?;
    prune_epochs(context, &tables, plan.run.cuts.len()).await?;
    if stop.is_cancelled() {
        return Ok(());
    }
    snapshot.taker.delete_others(&snapshot.report, stop).await?;
    let (batch, results) = (context.batch, &context.results);
    let deleted = batch.delete_unreferenced_results::<BoardManifest>(results, stop);
    deleted.await.map(drop)
}

/// Deletes nodes that no head leads to, also those that earlier runs left.
async fn delete_stale_nodes(
    context: &RunContext<'_>,
    published: PublishedTables<'_>,
) -> Result<()> {
    let (views, source) = (&context.batch.ports.views, context.results.source);
    let version = (published.epoch, published.stamp_us);
    for view in published.tables {
        while !context.stop.is_cancelled()
            && views
                .collect_garbage(source, view, version, COLLECT_NODES)
                .await?
                == COLLECT_NODES
        {}
    }
    Ok(())
}
