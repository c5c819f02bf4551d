//! A run of a source of facts, from beginning to end.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::tables::{TableGeneration, drift_table_name, encode_drift_key};
use jobs::{Job, Layers};
use schemas::seam::{Cut, Offset, Run};
use schemas::source::Source;
use stores::erasures::SuppressedPeople;
use stores::views::AggregateShape;

use super::check::check;
use super::compute::{Compute, Computed, Plan, View, record};
use super::drift::{Compared, Difference, Differences, Stretch};
use super::fingerprint::Fingerprint;
use super::loading::load;
use super::planning::{Archived, plan, refusal, whole_days};
use super::publish::{Edition, NewRow, Publisher, new_rows};
use super::result::ViewManifest;
use super::tables::compared;
use super::tasks;
use crate::archive::{Archiver, CompactedSize, CompactionLimits, RepeatFilter, compact, redact};
use crate::batch::Batch;
use crate::drift::{Between, Drift};
use crate::lease::{check_stop, verify_lease};
use crate::report::{RunReport, Stages};
use crate::run_steps::{
    PlannedRun, PublishedTables, RunContext, add_cleanup_warning, begin_publishing,
    check_job_names, complete, enforce_check, lag_warnings, prune_epochs, retire_tables,
    select_run,
};
use crate::view_tables::create_tables;
use crate::{Error, Result};

/// A file takes a part of the bytes of its records.
const PARQUET_PART: u64 = 4;

/// A sealed run, and the archiver of its events.
struct SealedRun<'a> {
    run: Run,
    cuts: Vec<Offset>,
    jobs: Vec<Arc<Job>>,
    /// The ends of the log before the run was sealed.
    ends: Vec<Offset>,
    archiver: Archiver<'a>,
    of: TableGeneration,
    suppressed: Arc<SuppressedPeople>,
}

/// The computed views of a run.
struct ComputedRun {
    compute: Arc<Compute>,
    computed: Computed,
}

/// The outcome of publishing every view.
#[derive(Default)]
struct PublishedRun {
    stamp_us: i64,
    rows_written: u64,
    rows_skipped: u64,
    /// The fingerprints of the views that read the events, by job name.
    prints: BTreeMap<String, Fingerprint>,
}

/// Runs the tallies of a source.
pub(crate) async fn run_tallies(
    context: &RunContext<'_>,
    stages: &mut Stages<'_>,
) -> Result<RunReport> {
    stages.begin("seal", 0);
    let sealed = seal(context).await?;
    stages.begin("archive", sealed.archiver.lag(&sealed.cuts));
    let PlannedRun { plan, mut report } = archive_and_plan(context, sealed).await?;
    stages.begin("compute", report.rows_read);
    let run = compute(context, plan).await?;
    let (plan, manifests) = (&run.compute.plan, &run.computed.manifests);
    report.duplicates = run.computed.totals.duplicates;
    stages.begin("check", 0);
    let faults = check(plan, &run.computed);
    enforce_check::<ViewManifest>(context, faults, &mut report).await?;
    record(&context.results, &run.computed).await?;
    let touched = manifests.values().map(|m| m.touched.len() as u64);
    stages.begin("publish", touched.sum());
    let published = publish(context, &run).await?;
    report.rows_written = published.rows_written;
    report.rows_skipped = published.rows_skipped;
    if context.request.jobs.is_empty() {
        stages.begin("drift", 0);
        report_drift(
            context,
            &run,
            published.prints,
            published.stamp_us,
            &mut report,
        )
        .await;
        check_stop(context.stop)?;
    }
    complete(context, plan.epoch, published.stamp_us, manifests).await?;
    stages.begin("drop", 0);
    report.seconds = stages.seconds();
    // Whatever fails from here on, the run is published, and the next one tidies up.
    let outcome = clean_up(context, plan, published.stamp_us, &report).await;
    add_cleanup_warning(plan.source, outcome, &mut report);
    Ok(report)
}

/// Ends the epoch, and opens the archive for the events below the cuts.
async fn seal<'a>(context: &RunContext<'a>) -> Result<SealedRun<'a>> {
    let (batch, source) = (context.batch, context.results.source);
    let jobs = batch.catalog.jobs_in_layer(source, Layers::Batch);
    let jobs: Vec<Arc<Job>> = jobs.map(Arc::clone).collect();
    check_job_names(&jobs, context.request)?;
    if let Some(why) = whole_days(context.request) {
        refuse_without_events(batch, source, &why).await?;
    }
    let ends = batch.read_checked_log_ends(source).await?;
    let mut archiver = batch.archiver(source).await?;
    // Once for the whole run. The next run handles later erasures.
    let (of, suppressed) = batch.read_generation(archiver.version()).await?;
    create_tables(batch, source, of).await?;
    // Before anything is recorded that would rest on the offsets of another log.
    archiver.verify_log().await?;
    let run = select_run(context, ends.len()).await?;
    Ok(SealedRun {
        cuts: run.cuts.iter().map(|cut| cut.next_offset).collect(),
        run,
        jobs,
        ends,
        archiver,
        of,
        suppressed,
    })
}

/// Archives what lies below the cuts, and plans what is to be computed.
async fn archive_and_plan(
    context: &RunContext<'_>,
    sealed: SealedRun<'_>,
) -> Result<PlannedRun<Plan>> {
    let (batch, stop) = (context.batch, context.stop);
    let (source, results) = (context.results.source, &context.results);
    let SealedRun {
        run,
        cuts,
        jobs,
        ends,
        mut archiver,
        mut of,
        suppressed,
    } = sealed;
    archiver
        .archive_up_to(&run.cuts, context.progress, stop)
        .await?;
    check_stop(stop)?;
    let archive = &batch.ports.archive;
    let memory = batch.engine.reserve_memory("redaction");
    let now_ms = batch.ports.clock.now_ms();
    let version = redact(archive, source, &suppressed, &memory, now_ms, stop).await?;
    drop(memory);
    if version.backfills() != of.backfills {
        // A backfill ended meanwhile.
        of.backfills = version.backfills();
        create_tables(batch, source, of).await?;
    }
    let (files, expired) = version.read_contents(archive, source).await?;
    // What a try that died had not begun to publish is deleted.
    let held = batch.delete_unreferenced_results(results, stop).await?;
    archive.remove_abandoned_files().await?;
    let archived = Archived { of, files, expired };
    let mut plan = plan(source, context.request, &run, jobs, archived, held)?;
    plan.suppressed = suppressed;
    let names = plan.wanted().map(|view| view.job.name().to_owned());
    let report = RunReport {
        epoch: run.epoch,
        cuts,
        jobs: names.collect(),
        full: plan.full,
        rows_read: plan.days.values().sum(),
        warnings: warnings(&plan, &run.cuts, &ends),
        ..RunReport::default()
    };
    Ok(PlannedRun { plan, report })
}

/// Refuses, before anything is recorded, what needs events that were let go.
async fn refuse_without_events(batch: &Batch, source: Source, why: &str) -> Result<()> {
    let gone = batch.find_expired_bounds(source).await?;
    gone.map_or(Ok(()), |bounds| Err(refusal(source, bounds, why)))
}

/// Computes every view.
async fn compute(context: &RunContext<'_>, plan: Plan) -> Result<ComputedRun> {
    let batch = context.batch;
    let compute = Arc::new(Compute {
        engine: batch.engine.clone(),
        archive: batch.ports.archive.clone(),
        files: format!("{}/{:010}", context.results.data_folder(), plan.epoch),
        task_rows_max: batch.options.task_rows_max,
        result_bytes_max: batch.options.result_bytes_max,
        plan,
    });
    let told = (context.progress, context.stop);
    let computed = tasks::compute(&compute, &batch.executor(), told).await?;
    Ok(ComputedRun { compute, computed })
}

/// Publishes every view.
async fn publish(context: &RunContext<'_>, run: &ComputedRun) -> Result<PublishedRun> {
    let (batch, plan) = (context.batch, &run.compute.plan);
    let manifests = &run.computed.manifests;
    let stamp_us = begin_publishing(context, plan.epoch, manifests).await?;
    let publisher = Publisher {
        views: Arc::clone(&batch.ports.views),
        archive: batch.ports.archive.clone(),
        edition: Edition {
            source: plan.source,
            epoch: plan.epoch,
            stamp_us,
            rows_max: batch.options.publish_rows.max(1),
        },
        stop: context.stop.clone(),
    };
    let (executor, told) = (
        batch.publishing_executor(),
        (context.progress, context.stop),
    );
    let loaded = load(
        &run.compute,
        &executor,
        &run.computed,
        publisher.clone(),
        told,
    );
    let mut loaded = loaded.await?;
    let mut outcome = PublishedRun {
        stamp_us,
        ..PublishedRun::default()
    };
    for view in plan.wanted() {
        let name = view.job.name();
        let (Some(manifest), Some(published)) = (manifests.get(name), loaded.remove(name)) else {
            continue;
        };
        outcome.rows_written += published.written;
        if view.is_unknown {
            outcome.rows_written += publisher.take_out(view).await?;
        }
        let touched = manifest.touched.iter();
        let touched = touched.filter_map(|start| manifest.pieces.get(start));
        let touched: u64 = touched.map(|piece| piece.rows).sum();
        let all: u64 = manifest.pieces.values().map(|piece| piece.rows).sum();
        outcome.rows_skipped += published.skipped + all.saturating_sub(touched);
        if let Some(print) = published.fingerprint {
            outcome.prints.insert(name.to_owned(), print);
        }
    }
    Ok(outcome)
}

/// Measures the drift. The rows are right whether or not it can be told.
async fn report_drift(
    context: &RunContext<'_>,
    run: &ComputedRun,
    prints: BTreeMap<String, Fingerprint>,
    stamp_us: i64,
    report: &mut RunReport,
) {
    match measure_drift(context, run, prints, stamp_us, &mut report.warnings).await {
        Ok(drift) => report.drift = drift,
        Err(error) => {
            let source = context.results.source;
            tracing::warn!(%source, %error, "cannot determine the drift of a run");
            report.drift.unknown = Some(error.to_string());
            let warning = format!("the drift is unknown: {error}");
            report.warnings.push(warning);
        }
    }
}

/// Measures the drift, and keeps what live state counted otherwise beside the batch rows: once its
/// epoch is let go, nothing else tells.
async fn measure_drift(
    context: &RunContext<'_>,
    run: &ComputedRun,
    mut prints: BTreeMap<String, Fingerprint>,
    stamp_us: i64,
    warnings: &mut Vec<String>,
) -> Result<Drift> {
    let (plan, ports) = (&run.compute.plan, &context.batch.ports);
    let source = plan.source;
    let runs = &ports.views.runs(source).await?.runs;
    let mut all = Drift::none();
    let views: Vec<&View> = plan.wanted().filter(|view| compared(view)).collect();
    let begins = views.iter().all(|view| view.published.is_none());
    if plan.of != TableGeneration::default() && begins {
        all.total = None;
        all.unknown = Some(match plan.of.erasures {
            0 => "the run includes a backfill, which live state never counted".to_owned(),
            _ => {
                "the tables were filled from scratch because of an erasure or a backfill".to_owned()
            }
        });
        return Ok(all);
    }
    for view in views {
        let name = view.job.name();
        let (Some(print), Some(manifest)) = (prints.remove(name), run.computed.manifests.get(name))
        else {
            continue;
        };
        let stretch = Stretch {
            ports,
            source,
            between: Between {
                runs,
                since: view.published.as_ref().map_or(0, |old| old.epoch),
                until: manifest.epoch,
                cuts: &plan.cuts,
            },
            partitions: u32::try_from(manifest.cuts.len()).unwrap_or(u32::MAX),
        };
        let mut found = stretch.compare(view, manifest, print).await?;
        if let Compared::Keys(keys) = &mut found
            && !keys.all.is_empty()
        {
            keep(context, plan, view, stamp_us, &keys.all).await?;
            find_causes(context, &run.compute, view, keys, warnings).await;
        }
        let (drift, worst) = found.told(&view.job)?;
        if drift.is_lower_bound {
            tracing::warn!(job = name, "cannot store all differing keys");
        }
        all.add(drift, worst);
    }
    Ok(all)
}

/// Notes which of the differing keys records repeat; adds a warning if that cannot be told.
async fn find_causes(
    context: &RunContext<'_>,
    compute: &Compute,
    view: &View,
    keys: &mut Differences,
    warnings: &mut Vec<String>,
) {
    let (name, before) = (view.job.name(), view.published.as_ref());
    let since = before.map_or(&[][..], |old| &old.cuts);
    let days = keys.days(&view.job);
    for which in [RepeatFilter::All, RepeatFilter::InOtherPartition] {
        let note = |group: &[u8], row: &[u8], count| {
            keys.repeated(which, (group, row), count);
        };
        let of = (&view.job, which);
        let told = compute.repeats(of, (since, days.as_ref()), note, context.stop);
        if let Err(error) = told.await {
            tracing::warn!(job = name, %error, "cannot determine the causes of the drift");
            warnings.push(format!(
                "the cause of the drift of {name} is unknown: {error}"
            ));
            break;
        }
        if !keys.are_repeated() {
            break;
        }
    }
}

async fn keep(
    context: &RunContext<'_>,
    plan: &Plan,
    view: &View,
    stamp_us: i64,
    found: &[Difference],
) -> Result<()> {
    let (batch, name) = (context.batch, drift_table_name(view.job.view(), plan.of));
    // A try that died, and a run that was abandoned, compared the same stretch from its beginning: what
    // they kept is written over.
    let begin = view.published.as_ref().map_or(0, |old| old.epoch) + 1;
    for rows in found.chunks(batch.options.publish_rows.max(1)) {
        let mut rows = rows
            .iter()
            .map(|one| {
                let row = encode_drift_key(&one.row, begin)
                    .map_err(|e| Error::fault("a key of the drift table", e))?;
                let more = one.live.wrapping_sub(one.batch);
                Ok((
                    AggregateShape::encode_partition_key(0, &one.group),
                    row,
                    Some(more),
                ))
            })
            .collect::<Result<Vec<NewRow>>>()?;
        let (rows, views) = (new_rows(&mut rows), &batch.ports.views);
        views
            .publish(plan.source, &name, plan.epoch, stamp_us, &rows)
            .await?;
    }
    Ok(())
}

/// What follows once a run is published: what nobody needs any more is let go.
async fn clean_up(
    context: &RunContext<'_>,
    plan: &Plan,
    stamp_us: i64,
    report: &RunReport,
) -> Result<()> {
    let (batch, results, stop) = (context.batch, &context.results, context.stop);
    let jobs = plan.views.iter();
    let keep: Vec<String> = jobs.map(|view| view.table.clone()).collect();
    let kept = plan.views.iter().filter(|view| compared(view));
    let kept = kept.map(|view| drift_table_name(view.job.view(), plan.of));
    let tables: Vec<String> = keep.iter().cloned().chain(kept).collect();
    let published = PublishedTables {
        epoch: plan.epoch,
        stamp_us,
        tables: &tables,
    };
    if !retire_tables(context, published, report).await? {
        return Ok(());
    }
    if plan.of.erasures > 0 {
        // Whoever read what was forgotten has come to the end by now: the rows go.
        let (views, at) = (&batch.ports.views, (plan.epoch, stamp_us));
        views.forget_views(plan.source, at, &tables).await?;
    }
    prune_epochs(context, &keep, plan.cuts.len()).await?;
    if stop.is_cancelled() {
        return Ok(());
    }
    batch
        .delete_unreferenced_results::<ViewManifest>(results, stop)
        .await?;
    verify_lease(results.lease).await?;
    batch.collect_archive_garbage(plan.source, true).await?;
    if !context.request.jobs.is_empty() || stop.is_cancelled() {
        return Ok(());
    }
    match compact_archive(context, plan).await {
        Err(Error::Stopped) => Ok(()),
        compacted => compacted,
    }
}

/// Compacts small files of the archive.
async fn compact_archive(context: &RunContext<'_>, plan: &Plan) -> Result<()> {
    let (batch, source) = (context.batch, plan.source);
    let (archive, options) = (&batch.ports.archive, &batch.options);
    let limits = CompactionLimits {
        cuts: &plan.cuts,
        size: CompactedSize {
            rows_max: options.archive_rows_max as u64,
            bytes_max: options.archive_bytes_max as u64 / PARQUET_PART,
        },
        clock: &*batch.ports.clock,
        memory: &batch.engine.reserve_memory("compaction"),
    };
    let compacted = compact(archive, source, limits, &plan.suppressed, context.stop);
    let (inputs, outputs) = compacted.await?;
    if outputs > 0 {
        tracing::info!(%source, inputs, outputs, "files of the archive were compacted");
    }
    Ok(())
}

fn warnings(plan: &Plan, cuts: &[Cut], ends: &[Offset]) -> Vec<String> {
    let unknown: Vec<&str> = plan
        .wanted()
        .filter(|view| view.is_unknown)
        .map(|view| view.job.name())
        .collect();
    let mut warnings = lag_warnings(plan.source, cuts, ends);
    if !unknown.is_empty() {
        warnings.push(format!(
            "the archive lacks results from which {} were written, so all rows were recomputed and rewritten",
            unknown.join(", ")
        ));
    }
    warnings
}
