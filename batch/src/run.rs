//! A run from beginning to end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jobs::{Catalog, Engine, Job, Layers};
use schemas::seam::{Cut, Offset, Run, RunState};
use schemas::source::Source;
use stores::ErrorKind;
use stores::live::SlotId;
use stores::views::TallyShape;
use tokio_util::sync::CancellationToken;

use crate::archive::{ArchiveReport, Archiver, FileSize, data_folder};
use crate::check::check;
use crate::compute::{Compute, Computed, Plan, View, record};
use crate::drift::{Drift, Fingerprint, Stretch};
use crate::planning::plan;
use crate::publish::{Edition, Published};
use crate::report::{RunReport, Stages};
use crate::result::{Held, Results};
use crate::seal::{recognise_cuts, sealed_run};
use crate::{BatchOptions, BatchPorts, Error, Progress, Result, RunRequest};

const GARBAGE_ROWS: usize = 20_000;
const ARCHIVE_PAUSE: Duration = Duration::from_secs(1);

/// The batch layer.
#[derive(Debug)]
pub struct Batch {
    ports: BatchPorts,
    catalog: Catalog,
    engine: Engine,
    options: BatchOptions,
}

impl Batch {
    /// The batch layer of an installation.
    #[must_use]
    pub const fn build(
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
        }
    }

    /// Copies the log of a source to the archive until `shutdown`, a file whenever there is enough
    /// for one or the oldest of it has waited for long; with `until_caught_up` only up to where the
    /// log ends now.
    ///
    /// # Errors
    /// [`Error::Request`] if the archive was made from another log, and those of the stores.
    pub async fn archive(
        &self,
        source: Source,
        until_caught_up: bool,
        shutdown: CancellationToken,
    ) -> Result<ArchiveReport> {
        let mut report = ArchiveReport::default();
        let mut archiver = self.archiver(source).await?;
        archiver.remove_orphans().await?;
        let longest_wait = Duration::from_millis(self.options.archive_wait_ms);
        // Since when there has been something to archive.
        let mut waiting: Option<Instant> = None;
        loop {
            let copied = async {
                let ends = self.spans(source).await?;
                let behind = archiver.behind(&ends);
                if behind == 0 {
                    waiting = None;
                    return Ok(ArchiveReport::default());
                }
                let since = *waiting.get_or_insert_with(Instant::now);
                let enough = behind >= self.options.archive_rows_max as u64;
                if !until_caught_up && !enough && since.elapsed() < longest_wait {
                    return Ok(ArchiveReport::default());
                }
                let copied = archiver.up_to(&ends, &(), &shutdown).await?;
                waiting = None;
                Ok(copied)
            };
            match copied.await {
                Ok(copied) => report += copied,
                Err(Error::Store(error))
                    if !until_caught_up && error.kind() == ErrorKind::Retry =>
                {
                    tracing::warn!(%source, %error, "archiving is tried again");
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

    /// Looks whether the archive of a source is whole and of this log, and answers how many files
    /// and events it has. What the files hold is not read.
    ///
    /// # Errors
    /// [`Error::Damaged`] names the first file that is missing or no manifest, [`Error::Request`]
    /// says that the log is another one.
    pub async fn check_archive(&self, source: Source) -> Result<(usize, u64)> {
        let archiver = self.archiver(source).await?;
        archiver.recognise_log().await?;
        let manifests = archiver.into_manifests();
        let present = self.ports.archive.list(&data_folder(source)).await?;
        let present: BTreeSet<String> = present.into_iter().collect();
        for path in manifests
            .iter()
            .filter_map(|manifest| manifest.file.as_ref())
        {
            if !present.contains(path) {
                return Err(Error::damaged(path, "it is missing"));
            }
        }
        let days = manifests.iter().flat_map(|manifest| manifest.days.values());
        let events = days.map(|day| day.rows).sum();
        Ok((present.len(), events))
    }

    /// Runs: finishes the run that died, or makes a new one.
    ///
    /// # Errors
    /// [`Error::Busy`] if another run is under way, [`Error::Check`] if the result was not
    /// published, those of the stores and of queries. Whatever happens, readers stay right, and
    /// the run can be run again.
    pub async fn run(
        &self,
        source: Source,
        request: &RunRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        let holder = format!("process {}", std::process::id());
        let lease = format!("batch-{source}");
        let _held = match self.ports.leases.acquire(&lease, &holder).await? {
            Ok(held) => held,
            Err(who) => return Err(Error::Busy(who)),
        };
        let done = self.run_held(source, request, progress, stop).await;
        let Some((path, why)) = done.as_ref().err().and_then(Error::damaged_file) else {
            return done;
        };
        if path.starts_with("results/") {
            // Without it the next try makes the result anew, from what it was made of.
            self.ports.archive.delete(&path).await?;
            return Err(Error::Request(format!(
                "{path} was damaged or missing, and is deleted now: run again, and everything that rests on it is made anew"
            )));
        }
        // Not also what was being done: that is long, and says nothing.
        Err(stores::Error::DamagedFile { path, why }.into())
    }

    /// The run itself, under the lease.
    async fn run_held(
        &self,
        source: Source,
        request: &RunRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        let mut stages = Stages::new(progress);
        let (plan, mut report) = self.prepare(source, request, &mut stages, stop).await?;
        let results = Results {
            archive: &self.ports.archive,
            source,
        };
        stages.begin("compute", report.rows_read);
        let compute = Arc::new(Compute {
            engine: self.engine.clone(),
            archive: self.ports.archive.clone(),
            files: format!("{}/{:010}", results.data_folder(), plan.epoch),
            task_rows_max: self.options.task_rows_max,
            result_bytes_max: self.options.result_bytes_max,
            plan,
        });
        let computed = compute.run(progress, stop).await?;
        report.duplicates = computed.totals.duplicates;
        stages.begin("check", 0);
        let plan = &compute.plan;
        if let Err(failed) = self.judge(request, plan, &computed, &mut report).await {
            if let Err(error) = self.remove_others(&results).await {
                tracing::warn!(%source, %error, "the files of a result that failed its check stay");
            }
            return Err(failed);
        }
        record(&results, &computed).await?;
        let touched = computed.manifests.values().map(|m| m.touched.len() as u64);
        stages.begin("publish", touched.sum());
        let (prints, stamp_us) = self
            .publish(plan, &computed, &mut report, (progress, stop))
            .await?;
        self.complete(request, plan, &computed, stamp_us).await?;
        // Whatever fails from here on, the run is published, and the next one tidies up.
        let outcome = self
            .after(
                request,
                &compute.plan,
                (&computed, prints),
                &mut report,
                (&mut stages, stop),
            )
            .await;
        if let Err(error) = outcome {
            tracing::warn!(%source, %error, "a run is published, and not all of what follows was done");
            let warning = format!("published; what follows was not all done: {error}");
            report.warnings.push(warning);
        }
        report.seconds = stages.end();
        report.tell(source);
        if request.jobs.is_empty() {
            self.record_report(source, &report).await?;
        }
        Ok(report)
    }

    /// What follows once a run is published: the drift is measured, and what nobody needs any more
    /// is let go.
    async fn after(
        &self,
        request: &RunRequest,
        plan: &Plan,
        (computed, prints): (&Computed, BTreeMap<String, Fingerprint>),
        report: &mut RunReport,
        (stages, stop): (&mut Stages<'_>, &CancellationToken),
    ) -> Result<()> {
        let results = Results {
            archive: &self.ports.archive,
            source: plan.source,
        };
        if request.jobs.is_empty() {
            stages.begin("drift", 0);
            report.drift = self.drift(plan, computed, prints).await?;
        }
        stages.begin("drop", 0);
        if request.jobs.is_empty() {
            // Should the process end within the grace, what matters is told already.
            report.seconds = stages.so_far();
            self.record_report(plan.source, report).await?;
        }
        let jobs = plan.views.iter();
        let keep: Vec<String> = jobs.map(|view| view.job.view().to_owned()).collect();
        self.ports.views.forget_views(plan.source, &keep).await?;
        self.drop_epochs(plan, stop).await?;
        self.remove_others(&results).await
    }

    /// What is known of the rows of each view's table now.
    async fn held(&self, results: &Results<'_>) -> Result<BTreeMap<String, Held>> {
        let tables = self.ports.views.results(results.source).await?;
        results.held(&tables).await
    }

    /// Deletes the results that no table holds rows of now.
    async fn remove_others(&self, results: &Results<'_>) -> Result<()> {
        results.remove_others(&self.held(results).await?).await
    }

    /// Ends the epoch, archives what lies below the cuts, and plans what is to be computed.
    async fn prepare(
        &self,
        source: Source,
        request: &RunRequest,
        stages: &mut Stages<'_>,
        stop: &CancellationToken,
    ) -> Result<(Plan, RunReport)> {
        stages.begin("seal", 0);
        let jobs = self.catalog.of_layer(source, Layers::Batch);
        let jobs: Vec<Arc<Job>> = jobs.map(Arc::clone).collect();
        self.check_names(&jobs, request)?;
        for job in &jobs {
            self.ports.views.ensure_view(source, &shape(job)).await?;
        }
        let ends = self.log_ends(source).await?;
        let mut archiver = self.archiver(source).await?;
        // Before anything is recorded that would rest on the offsets of another log.
        archiver.recognise_log().await?;
        archiver.remove_orphans().await?;
        let run = self.the_run(source, request, ends.len(), stop).await?;
        recognise_cuts(&self.ports, source, &run.cuts).await?;
        let cuts: Vec<Offset> = run.cuts.iter().map(|cut| cut.next_offset).collect();
        stages.begin("archive", archiver.behind(&cuts));
        archiver.up_to(&cuts, stages.progress, stop).await?;
        if stop.is_cancelled() {
            return Err(Error::Stopped);
        }
        let manifests = archiver.into_manifests();
        let results = Results {
            archive: &self.ports.archive,
            source,
        };
        let held = self.held(&results).await?;
        // What a try that died had not begun to publish.
        results.remove_others(&held).await?;
        self.ports.archive.tidy().await?;
        let plan = plan(source, request, &run, jobs, manifests, held)?;
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

    /// Records that the views, and with them the run, are complete.
    async fn complete(
        &self,
        request: &RunRequest,
        plan: &Plan,
        computed: &Computed,
        stamp_us: i64,
    ) -> Result<()> {
        let (results, now_ms) = (computed.results(), self.ports.clock.now_ms());
        let run_ends = request.jobs.is_empty();
        let at = (plan.epoch, stamp_us);
        let views = &self.ports.views;
        Ok(views
            .complete(plan.source, at, &results, run_ends, now_ms)
            .await?)
    }

    async fn record_report(&self, source: Source, report: &RunReport) -> Result<()> {
        let value =
            serde_json::to_value(report).map_err(|e| Error::fault("writing a report", e))?;
        let views = &self.ports.views;
        Ok(views.report(source, report.epoch, &value).await?)
    }

    async fn archiver(&self, source: Source) -> Result<Archiver<'_>> {
        let size = FileSize {
            rows_max: self.options.archive_rows_max,
            bytes_max: self.options.archive_bytes_max,
        };
        Archiver::open(&*self.ports.log, &self.ports.archive, source, size).await
    }

    /// Where each partition of the log ends.
    async fn spans(&self, source: Source) -> Result<Vec<Offset>> {
        let spans = self.ports.log.spans(source.topic()).await?;
        Ok(spans.iter().map(|span| span.end).collect())
    }

    fn check_names(&self, jobs: &[Arc<Job>], request: &RunRequest) -> Result<()> {
        for name in &request.jobs {
            if !jobs.iter().any(|job| job.name() == name) {
                let have: Vec<&str> = jobs.iter().map(|job| job.name()).collect();
                return Err(Error::Request(format!(
                    "there is no batch job {name:?}; there are {}",
                    have.join(", ")
                )));
            }
        }
        Ok(())
    }

    async fn log_ends(&self, source: Source) -> Result<Vec<Offset>> {
        let ends = self.spans(source).await?;
        let recorded = self.ports.views.runs(source).await?.runs.partitions();
        if ends.is_empty() && recorded == 0 {
            return Err(Error::Request(format!(
                "there is no log of {source} yet: run `backstitch ingest {source} FILE` first"
            )));
        }
        if ends.len() < recorded {
            return Err(Error::Request(format!(
                "the log of {source} has {} partitions, a run has cuts in {recorded}: the log was lost; restore it, or begin anew with an empty data folder",
                ends.len()
            )));
        }
        Ok(ends)
    }

    /// The run to carry out: a sealed one, or for single jobs the newest complete one once more.
    async fn the_run(
        &self,
        source: Source,
        request: &RunRequest,
        partitions: usize,
        stop: &CancellationToken,
    ) -> Result<Run> {
        let partitions = u32::try_from(partitions).map_err(|e| Error::fault("partitions", e))?;
        if request.jobs.is_empty() {
            return sealed_run(&self.ports, &self.options, source, partitions, stop).await;
        }
        let runs = self.ports.views.runs(source).await?.runs;
        if let Some(open) = runs.open() {
            return Err(Error::Request(format!(
                "run {} was not finished: finish it with `backstitch batch run`, then run single jobs",
                open.epoch
            )));
        }
        if let Some(last) = runs.iter().next_back()
            && last.state == RunState::Abandoned
        {
            return Err(Error::Request(format!(
                "run {} failed its check, so nothing can be added to the runs before it: run `backstitch batch run` first, then single jobs",
                last.epoch
            )));
        }
        runs.get(runs.newest()).cloned().ok_or_else(|| {
            Error::Request(
                "there is no complete run whose cuts a single job could use: run `backstitch batch run` first"
                    .to_owned(),
            )
        })
    }

    /// Lets a result pass, or abandons the run.
    async fn judge(
        &self,
        request: &RunRequest,
        plan: &Plan,
        computed: &Computed,
        report: &mut RunReport,
    ) -> Result<()> {
        let faults = check(plan, computed);
        if faults.is_empty() {
            return Ok(());
        }
        if request.force {
            report.warnings.extend(faults);
            return Ok(());
        }
        let what = faults.join("; ");
        if request.jobs.is_empty() {
            report.warnings.extend(faults);
            self.record_report(plan.source, report).await?;
            self.ports
                .views
                .abandon(plan.source, plan.epoch, self.ports.clock.now_ms())
                .await?;
        }
        Err(Error::Check {
            epoch: plan.epoch,
            what,
        })
    }

    /// Publishes every view; answers the fingerprints of those that read the events, and the stamp.
    async fn publish(
        &self,
        plan: &Plan,
        computed: &Computed,
        report: &mut RunReport,
        told: (&dyn Progress, &CancellationToken),
    ) -> Result<(BTreeMap<String, Fingerprint>, i64)> {
        let source = plan.source;
        let now_ms = self.ports.clock.now_ms();
        let stamp_us = self
            .ports
            .views
            .begin_publishing(source, report.epoch, &computed.results(), now_ms)
            .await?;
        let edition = Edition {
            ports: &self.ports,
            source,
            epoch: report.epoch,
            stamp_us,
            rows_max: self.options.publish_rows.max(1),
        };
        let mut prints = BTreeMap::new();
        for view in plan.wanted() {
            let Some(manifest) = computed.manifests.get(view.job.name()) else {
                continue;
            };
            let mut print = compared(view).then(Fingerprint::new);
            let Published { written, skipped } = edition
                .publish(view, manifest, print.as_mut(), told)
                .await?;
            report.rows_written += written;
            report.rows_skipped += skipped;
            if let Some(print) = print {
                prints.insert(view.job.name().to_owned(), print);
            }
        }
        Ok((prints, stamp_us))
    }

    async fn drift(
        &self,
        plan: &Plan,
        computed: &Computed,
        mut prints: BTreeMap<String, Fingerprint>,
    ) -> Result<Drift> {
        let source = plan.source;
        let runs = &self.ports.views.runs(source).await?.runs;
        let mut all = Drift {
            total: Some(0),
            ..Drift::default()
        };
        for view in plan.wanted() {
            let name = view.job.name();
            let (Some(print), Some(manifest)) = (prints.remove(name), computed.manifests.get(name))
            else {
                continue;
            };
            let stretch = Stretch {
                ports: &self.ports,
                source,
                runs,
                epochs: (
                    view.published.as_ref().map_or(0, |old| old.epoch),
                    manifest.epoch,
                ),
                partitions: u32::try_from(manifest.cuts.len()).unwrap_or(u32::MAX),
            };
            let drift = stretch.drift(view, manifest, print).await?;
            all.total = all.total.zip(drift.total).map(|(a, b)| a.saturating_add(b));
            all.keys += drift.keys;
            all.worst.extend(drift.worst);
            all.is_lower_bound |= drift.is_lower_bound;
            all.unknown = all.unknown.or(drift.unknown);
        }
        Ok(all)
    }

    /// After the grace lets go of the live epochs that every view's rows hold.
    async fn drop_epochs(&self, plan: &Plan, stop: &CancellationToken) -> Result<()> {
        let source = plan.source;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(self.options.grace_ms)) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let seen = self.ports.views.runs(source).await?;
        let newest = |view: &View| seen.newest.get(view.job.view()).copied().unwrap_or(0);
        let epoch = plan.views.iter().map(newest).min().unwrap_or(0);
        if epoch == 0 {
            return Ok(());
        }
        for (index, partition) in (0..plan.cuts.len()).zip(0_u32..) {
            let slot = SlotId { source, partition };
            let Some(cut) = seen.runs.cut(epoch, index) else {
                continue;
            };
            self.ports.live.drop_through(slot, epoch, cut).await?;
            while !stop.is_cancelled()
                && self.ports.live.collect_garbage(slot, GARBAGE_ROWS).await? == GARBAGE_ROWS
            {
            }
        }
        Ok(())
    }
}

/// Views that read the events are compared with live state; the others follow from them.
fn compared(view: &View) -> bool {
    view.job.over().is_none() && view.job.layers() == Layers::Both
}

fn shape(job: &Job) -> TallyShape {
    TallyShape {
        view: job.view().to_owned(),
        group: job.group().clone(),
        partition: job.partition(),
        row: job.row().clone(),
    }
}

fn warnings(plan: &Plan, cuts: &[Cut], ends: &[Offset]) -> Vec<String> {
    let unknown: Vec<&str> = plan
        .wanted()
        .filter(|view| view.is_unknown)
        .map(|view| view.job.name())
        .collect();
    let mut warnings = behind(plan.source, cuts, ends);
    if !unknown.is_empty() {
        warnings.push(format!(
            "the archive lacks results whose rows {} hold; so everything was computed and written anew",
            unknown.join(", ")
        ));
    }
    warnings
}

fn behind(source: Source, cuts: &[Cut], ends: &[Offset]) -> Vec<String> {
    let behind: Offset = cuts
        .iter()
        .zip(ends)
        .map(|(cut, end)| end.saturating_sub(cut.next_offset).max(0))
        .sum();
    if behind == 0 {
        return Vec::new();
    }
    vec![format!(
        "{behind} records of {source} are not in this run: the speed layer had not come to them yet (`backstitch speed` counts them live, the next run then holds them)"
    )]
}
