//! A run of a source of facts, from beginning to end.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::tables::{TableGeneration, drift_key, drift_table_name};
use jobs::{Job, Layers};
use schemas::seam::{Cut, Epoch, Offset};
use schemas::source::Source;
use stores::views::AggregateShape;
use tokio_util::sync::CancellationToken;

use super::check::check;
use super::compute::{Compute, Computed, Plan, View, record};
use super::drift::{Compared, Difference, Stretch};
use super::fingerprint::Fingerprint;
use super::loading::load;
use super::planning::{Archived, plan, refusal, whole_days};
use super::publish::{Edition, NewRow, Publisher, new_rows};
use super::result::ViewManifest;
use super::tables::compared;
use super::tasks;
use crate::archive::{CompactedSize, CompactionLimits, RepeatFilter, compact, redact};
use crate::batch::Batch;
use crate::drift::{Between, Drift};
use crate::lease::{check_stop, verify_lease};
use crate::report::{RunReport, Stages};
use crate::results::{Results, result_names};
use crate::run_steps::{PublishedTables, lag_warnings};
use crate::{Error, Progress, Result, RunRequest};

/// A file takes a part of the bytes of its records.
const PARQUET_PART: u64 = 4;

impl Batch {
    /// Runs the tallies of a source.
    pub(crate) async fn run_tallies(
        &self,
        results: &Results<'_>,
        request: &RunRequest,
        stages: &mut Stages<'_>,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        let (progress, source) = (stages.progress, results.source);
        let (plan, mut report) = self.prepare(results, request, stages, stop).await?;
        stages.begin("compute", report.rows_read);
        let compute = Arc::new(Compute {
            engine: self.engine.clone(),
            archive: self.ports.archive.clone(),
            files: format!("{}/{:010}", results.data_folder(), plan.epoch),
            task_rows_max: self.options.task_rows_max,
            result_bytes_max: self.options.result_bytes_max,
            plan,
        });
        let computed = tasks::compute(&compute, &self.executor(), (progress, stop)).await?;
        report.duplicates = computed.totals.duplicates;
        stages.begin("check", 0);
        let plan = &compute.plan;
        let faults = check(plan, &computed);
        self.enforce_check::<ViewManifest>(results, request, faults, &mut report, stop)
            .await?;
        record(results, &computed).await?;
        let touched = computed.manifests.values().map(|m| m.touched.len() as u64);
        stages.begin("publish", touched.sum());
        let (prints, stamp_us) = self
            .publish(&compute, &computed, &mut report, (progress, stop))
            .await?;
        let at = (plan.epoch, stamp_us);
        if request.jobs.is_empty() {
            stages.begin("drift", 0);
            // The rows are right whether or not the drift can be told.
            match self
                .drift(
                    &compute,
                    &computed,
                    prints,
                    stamp_us,
                    (&mut report.warnings, stop),
                )
                .await
            {
                Ok(drift) => report.drift = drift,
                Err(error) => {
                    tracing::warn!(%source, %error, "cannot determine the drift of a run");
                    report.drift.unknown = Some(error.to_string());
                    let warning = format!("the drift is unknown: {error}");
                    report.warnings.push(warning);
                }
            }
            check_stop(stop)?;
        }
        let names = result_names(&computed.manifests);
        self.complete(source, request, at.0, at.1, &names).await?;
        // Whatever fails from here on, the run is published, and the next one tidies up.
        let outcome = self
            .after(
                (results, stamp_us),
                request,
                plan,
                &mut report,
                (stages, stop),
            )
            .await;
        Self::add_cleanup_warning(source, outcome, &mut report);
        Ok(report)
    }

    /// What follows once a run is published: what nobody needs any more is let go.
    async fn after(
        &self,
        (results, stamp_us): (&Results<'_>, i64),
        request: &RunRequest,
        plan: &Plan,
        report: &mut RunReport,
        (stages, stop): (&mut Stages<'_>, &CancellationToken),
    ) -> Result<()> {
        let jobs = plan.views.iter();
        let keep: Vec<String> = jobs.map(|view| view.table.clone()).collect();
        let (views, at) = (&self.ports.views, (plan.epoch, stamp_us));
        let kept = plan.views.iter().filter(|view| compared(view));
        let kept = kept.map(|view| drift_table_name(view.job.view(), plan.of));
        let tables: Vec<String> = keep.iter().cloned().chain(kept).collect();
        let published = PublishedTables {
            source: plan.source,
            epoch: plan.epoch,
            stamp_us,
            tables: &tables,
        };
        if !self
            .retire_tables(request, published, report, stages, stop)
            .await?
        {
            return Ok(());
        }
        if plan.of.erasures > 0 {
            // Whoever read what was forgotten has come to the end by now: the rows go.
            views.forget_views(plan.source, at, &tables).await?;
        }
        self.prune_epochs(plan.source, &keep, plan.cuts.len(), stop)
            .await?;
        if stop.is_cancelled() {
            return Ok(());
        }
        self.delete_unreferenced_results::<ViewManifest>(results, stop)
            .await?;
        verify_lease(results.lease).await?;
        self.collect_archive_garbage(plan.source, true).await?;
        if !request.jobs.is_empty() || stop.is_cancelled() {
            return Ok(());
        }
        match self.compact_archive(plan, stop).await {
            Err(Error::Stopped) => Ok(()),
            compacted => compacted,
        }
    }

    /// Compacts small files of the archive.
    async fn compact_archive(&self, plan: &Plan, stop: &CancellationToken) -> Result<()> {
        let (archive, options, source) = (&self.ports.archive, &self.options, plan.source);
        let limits = CompactionLimits {
            cuts: &plan.cuts,
            size: CompactedSize {
                rows_max: options.archive_rows_max as u64,
                bytes_max: options.archive_bytes_max as u64 / PARQUET_PART,
            },
            clock: &*self.ports.clock,
            memory: &self.engine.reserve_memory("compaction"),
        };
        let (inputs, outputs) = compact(archive, source, limits, &plan.suppressed, stop).await?;
        if outputs > 0 {
            tracing::info!(%source, inputs, outputs, "files of the archive were compacted");
        }
        Ok(())
    }

    /// Ends the epoch, archives what lies below the cuts, and plans what is to be computed.
    async fn prepare(
        &self,
        results: &Results<'_>,
        request: &RunRequest,
        stages: &mut Stages<'_>,
        stop: &CancellationToken,
    ) -> Result<(Plan, RunReport)> {
        let source = results.source;
        stages.begin("seal", 0);
        let jobs = self.catalog.jobs_in_layer(source, Layers::Batch);
        let jobs: Vec<Arc<Job>> = jobs.map(Arc::clone).collect();
        let names: Vec<&str> = jobs.iter().map(|job| job.name()).collect();
        Self::check_job_names(&names, request)?;
        if let Some(why) = whole_days(request) {
            self.refuse_without_events(source, &why).await?;
        }
        let ends = self.checked_log_ends(source).await?;
        let mut archiver = self.archiver(source).await?;
        // Once for the whole run. The next run handles later erasures.
        let (mut of, suppressed) = self.generation(archiver.version()).await?;
        self.create_tables(source, of).await?;
        // Before anything is recorded that would rest on the offsets of another log.
        archiver.verify_log().await?;
        let run = self.select_run(source, request, ends.len(), stop).await?;
        let cuts: Vec<Offset> = run.cuts.iter().map(|cut| cut.next_offset).collect();
        stages.begin("archive", archiver.lag(&cuts));
        archiver
            .archive_up_to(&run.cuts, stages.progress, stop)
            .await?;
        check_stop(stop)?;
        let archive = &self.ports.archive;
        let memory = self.engine.reserve_memory("redaction");
        let now_ms = self.ports.clock.now_ms();
        let version = redact(archive, source, &suppressed, &memory, now_ms, stop).await?;
        drop(memory);
        if version.backfills() != of.backfills {
            // A backfill ended meanwhile.
            of.backfills = version.backfills();
            self.create_tables(source, of).await?;
        }
        let (files, expired) = version.contents(archive, source).await?;
        // What a try that died had not begun to publish is deleted.
        let held = self.delete_unreferenced_results(results, stop).await?;
        self.ports.archive.remove_abandoned_files().await?;
        let archived = Archived { of, files, expired };
        let mut plan = plan(source, request, &run, jobs, archived, held)?;
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
        Ok((plan, report))
    }

    /// Refuses, before anything is recorded, what needs events that were let go.
    async fn refuse_without_events(&self, source: Source, why: &str) -> Result<()> {
        let gone = self.expired_bounds(source).await?;
        gone.map_or(Ok(()), |bounds| Err(refusal(source, bounds, why)))
    }

    /// Publishes every view; answers the fingerprints of those that read the events, and the stamp.
    async fn publish(
        &self,
        compute: &Arc<Compute>,
        computed: &Computed,
        report: &mut RunReport,
        told: (&dyn Progress, &CancellationToken),
    ) -> Result<(BTreeMap<String, Fingerprint>, i64)> {
        let (plan, views) = (&compute.plan, &self.ports.views);
        let source = plan.source;
        let now_ms = self.ports.clock.now_ms();
        let stamp_us = views
            .begin_publishing(
                source,
                report.epoch,
                &result_names(&computed.manifests),
                now_ms,
            )
            .await?;
        let publisher = Publisher {
            views: Arc::clone(views),
            archive: self.ports.archive.clone(),
            edition: Edition {
                source,
                epoch: report.epoch,
                stamp_us,
                rows_max: self.options.publish_rows.max(1),
            },
            stop: told.1.clone(),
        };
        let executor = self.publishing_executor();
        let manifests = &computed.manifests;
        let mut published = load(compute, &executor, computed, publisher.clone(), told).await?;
        let mut prints = BTreeMap::new();
        for view in plan.wanted() {
            let name = view.job.name();
            let (Some(manifest), Some(published)) = (manifests.get(name), published.remove(name))
            else {
                continue;
            };
            report.rows_written += published.written;
            if view.is_unknown {
                report.rows_written += publisher.take_out(view).await?;
            }
            let touched = manifest.touched.iter();
            let touched = touched.filter_map(|start| manifest.pieces.get(start));
            let touched: u64 = touched.map(|piece| piece.rows).sum();
            let all: u64 = manifest.pieces.values().map(|piece| piece.rows).sum();
            report.rows_skipped += published.skipped + all.saturating_sub(touched);
            if let Some(print) = published.fingerprint {
                prints.insert(name.to_owned(), print);
            }
        }
        Ok((prints, stamp_us))
    }

    /// Measures the drift, and keeps what live state counted otherwise beside the batch rows: once its
    /// epoch is let go, nothing else tells.
    async fn drift(
        &self,
        compute: &Compute,
        computed: &Computed,
        mut prints: BTreeMap<String, Fingerprint>,
        stamp_us: i64,
        (warnings, stop): (&mut Vec<String>, &CancellationToken),
    ) -> Result<Drift> {
        let plan = &compute.plan;
        let source = plan.source;
        let runs = &self.ports.views.runs(source).await?.runs;
        let mut all = Drift::none();
        let views: Vec<&View> = plan.wanted().filter(|view| compared(view)).collect();
        let begins = views.iter().all(|view| view.published.is_none());
        if plan.of != TableGeneration::default() && begins {
            all.total = None;
            all.unknown = Some(match plan.of.erasures {
                0 => "the run includes a backfill, which live state never counted".to_owned(),
                _ => "the tables were filled from scratch because of an erasure or a backfill"
                    .to_owned(),
            });
            return Ok(all);
        }
        for view in views {
            let name = view.job.name();
            let (Some(print), Some(manifest)) = (prints.remove(name), computed.manifests.get(name))
            else {
                continue;
            };
            let before = view.published.as_ref();
            let stretch = Stretch {
                ports: &self.ports,
                source,
                between: Between {
                    runs,
                    since: before.map_or(0, |old| old.epoch),
                    until: manifest.epoch,
                    cuts: &plan.cuts,
                },
                partitions: u32::try_from(manifest.cuts.len()).unwrap_or(u32::MAX),
            };
            let mut found = stretch.compare(view, manifest, print).await?;
            if let Compared::Keys(keys) = &mut found
                && !keys.all.is_empty()
            {
                let at = (plan.epoch, stamp_us);
                self.keep((view, plan.of), at, &keys.all).await?;
                let since = before.map_or(&[][..], |old| &old.cuts);
                let days = keys.days(&view.job);
                for which in [RepeatFilter::All, RepeatFilter::InOtherPartition] {
                    let note = |group: &[u8], row: &[u8], count| {
                        keys.repeated(which, (group, row), count);
                    };
                    let of = (&view.job, which);
                    let told = compute.repeats(of, (since, days.as_ref()), note, stop);
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
            let (drift, worst) = found.told(&view.job)?;
            if drift.is_lower_bound {
                tracing::warn!(job = name, "cannot store all differing keys");
            }
            all.add(drift, worst);
        }
        Ok(all)
    }
}

impl Batch {
    async fn keep(
        &self,
        (view, of): (&View, TableGeneration),
        (epoch, stamp_us): (Epoch, i64),
        found: &[Difference],
    ) -> Result<()> {
        let name = drift_table_name(view.job.view(), of);
        // A try that died, and a run that was abandoned, compared the same stretch from its beginning: what
        // they kept is written over.
        let begin = view.published.as_ref().map_or(0, |old| old.epoch) + 1;
        for rows in found.chunks(self.options.publish_rows.max(1)) {
            let mut rows = rows
                .iter()
                .map(|one| {
                    let row = drift_key(&one.row, begin)
                        .map_err(|e| Error::fault("a key of the drift table", e))?;
                    let more = one.live.wrapping_sub(one.batch);
                    Ok((
                        AggregateShape::partition_key(0, &one.group),
                        row,
                        Some(more),
                    ))
                })
                .collect::<Result<Vec<NewRow>>>()?;
            let rows = new_rows(&mut rows);
            self.ports
                .views
                .publish(view.job.source(), &name, epoch, stamp_us, &rows)
                .await?;
        }
        Ok(())
    }
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
