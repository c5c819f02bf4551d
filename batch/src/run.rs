//! A run from beginning to end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jobs::tables::Generation;
use jobs::{Catalog, Engine, Layers};
use schemas::seam::{Cut, Epoch, Offset, Run, RunState};
use schemas::source::{Source, SourceKind};
use schemas::traces;
use stores::ErrorKind;
use stores::erasures::Suppressed;
use stores::lease::Held as Lease;
use stores::live::SlotId;
use stores::views::ViewShape;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::archive::{ArchiveReport, Archiver, Due, FileEntry, FileSize, Version, collect_garbage};
use crate::error::lost_log;
use crate::executor::{Executor, Workers};
use crate::report::{RunReport, Stages};
use crate::results::{Held, Manifest, Results};
use crate::seal::{recognise_cuts, sealed_run};
use crate::{BatchOptions, BatchPorts, Error, Progress, Result, RunRequest, board, tally};

const GARBAGE_ROWS: usize = 20_000;
/// What a run keeps in memory of files that it has read.
pub(crate) const KNOWN_BYTES: u64 = 64 << 20;
const ARCHIVE_PAUSE: Duration = Duration::from_secs(1);

/// The batch layer.
#[derive(Debug, Clone)]
pub struct Batch {
    pub(crate) ports: BatchPorts,
    pub(crate) catalog: Catalog,
    pub(crate) engine: Engine,
    pub(crate) options: BatchOptions,
    /// Who carries tasks out, if that is not this process.
    pub(crate) workers: Option<Arc<dyn Workers>>,
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
            workers: None,
        }
    }

    /// The same, with the tasks of runs carried out by workers elsewhere.
    #[must_use]
    pub fn with_workers(self, workers: Arc<dyn Workers>) -> Self {
        Self {
            workers: Some(workers),
            ..self
        }
    }

    /// Runs the tasks of a run.
    pub(crate) fn executor(&self) -> Executor {
        match &self.workers {
            Some(workers) => Executor::Remote(Arc::clone(workers)),
            None => Executor::Local(self.engine.threads()),
        }
    }

    /// Writes the rows of aggregates.
    pub(crate) fn publishing_executor(&self) -> Executor {
        match self.executor() {
            Executor::Remote(workers) if self.options.executors_publish => {
                Executor::Remote(workers)
            }
            _ => Executor::Local(self.engine.threads().min(self.ports.views.publishers_max())),
        }
    }

    /// Creates the first version of an archive that an older version of Backstitch wrote. Returns false if there is no such
    /// archive.
    ///
    /// # Errors
    /// Those of the archive, [`Error::Damaged`] if a record of the older layout is missing or damaged, and [`Error::Busy`] if a
    /// run or a backfill is under way.
    pub async fn take_over_archive(&self, source: Source) -> Result<bool> {
        if !Version::has_older_layout(&self.ports.archive, source).await? {
            return Ok(false);
        }
        let what = format!(
            "a run or a backfill of {source} is under way; the archive is taken over without"
        );
        let mut leases = Vec::new();
        for lease in [format!("batch-{source}"), format!("backfill-{source}")] {
            leases.push(self.acquire(&lease, &what).await?);
        }
        let taken_over = Version::take_over(&self.ports.archive, source).await;
        for lease in leases {
            lease.let_go().await;
        }
        taken_over
    }

    /// Makes the tables of a source's views that are not there.
    ///
    /// # Errors
    /// Those of the views' store.
    pub async fn make_views(&self, source: Source) -> Result<()> {
        let version = Version::newest(&self.ports.archive, source).await?;
        let (of, _) = self.generation(&version).await?;
        self.make_tables(source, of).await
    }

    /// The generation of rows computed from an archive version now, and the erased listeners.
    pub(crate) async fn generation(
        &self,
        version: &Version,
    ) -> Result<(Generation, Arc<Suppressed>)> {
        let suppressed = self.ports.suppressions.now().await?;
        let of = Generation {
            backfills: version.backfills(),
            erasures: suppressed.newest_listener(),
        };
        Ok((of, suppressed))
    }

    /// Deletes files of the archive that nothing needs any more; with `redacted` also those that may name an erased listener,
    /// whose readers have had the grace to end.
    pub(crate) async fn collect_archive_garbage(
        &self,
        source: Source,
        redacted: bool,
    ) -> Result<()> {
        let now_ms = self.ports.clock.now_ms();
        let wait_ms = i64::try_from(self.options.archive_merged_wait_ms).unwrap_or(i64::MAX);
        let due = Due {
            before_ms: now_ms.saturating_sub(wait_ms),
            redacted,
        };
        collect_garbage(&self.ports.archive, source, due, now_ms).await
    }

    /// Makes the tables of a source's views, whose rows are of a generation.
    pub(crate) async fn make_tables(&self, source: Source, of: Generation) -> Result<()> {
        let tallies = self.catalog.of_layer(source, Layers::Batch);
        let boards = self.catalog.boards_of_layer(source, Layers::Batch);
        let shapes: Vec<ViewShape> = tallies
            .flat_map(|job| {
                let kept = tally::kept_shape(job, of);
                std::iter::once(tally::shape(job, of)).chain(kept)
            })
            .chain(boards.map(|job| board::shape(job)))
            .collect();
        for shape in shapes {
            self.ports.views.ensure_view(source, &shape).await?;
        }
        Ok(())
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
        if let Err(error) = self.collect_archive_garbage(source, false).await {
            tracing::warn!(%source, %error, "files of the archive that nothing needs stay");
        }
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
                let ends: Vec<Cut> = ends.into_iter().map(end_of).collect();
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

    /// Whether anything of a source has come yet, as far as its log tells. The log of notifications may
    /// be made before there is any.
    ///
    /// # Errors
    /// Those of the stores.
    pub async fn has_log(&self, source: Source) -> Result<bool> {
        let ends = self.spans(source).await?;
        let runs = self.ports.views.runs(source).await?.runs;
        let has_come = match source.kind() {
            SourceKind::Facts => !ends.is_empty(),
            SourceKind::Entities => ends.iter().any(|end| *end > 0),
        };
        Ok(has_come || runs.partitions() > 0)
    }

    /// Looks whether the archive of a source is whole and of this log, and answers how many files
    /// and events it has. What the files hold is not read.
    ///
    /// # Errors
    /// [`Error::Damaged`] names the first file that is missing, [`Error::Request`]
    /// says that the log is another one.
    pub async fn check_archive(&self, source: Source) -> Result<(usize, u64)> {
        let mut archiver = self.archiver(source).await?;
        archiver.recognise_log().await?;
        let (archive, version) = (&self.ports.archive, archiver.version());
        if let Some(path) = version.missing_files(archive, source).await?.first() {
            return Err(Error::damaged(path, "it is missing"));
        }
        let (entries, _) = version.contents(archive, source).await?;
        let files = entries.iter().filter(|entry| entry.path.is_some()).count();
        let events = entries.iter().map(FileEntry::rows).sum();
        Ok((files, events))
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
        let held = self.lease(source).await?;
        let stop = stop.child_token();
        let remembering = self.remembering();
        let results = Results {
            archive: &remembering.ports.archive,
            source,
            lease: &*held,
        };
        let span = tracing::info_span!(
            target: traces::TARGET, "batch run", %source, otel.status_code = tracing::field::Empty,
        );
        let work = remembering.run_held(results, request, progress, &stop);
        let work = Box::pin(work).instrument(span.clone());
        let mut done = while_held(&*held, &stop, work).await;
        if done.is_err() {
            span.record("otel.status_code", "ERROR");
        }
        if !held.lost().is_cancelled() {
            done = self.tidied(done).await;
            if let Err(error) = &done
                && request.jobs.is_empty()
            {
                self.note_stopped(source, error).await;
            }
        }
        held.let_go().await;
        done
    }

    /// The same, with memory for the files that one run reads: the pieces of a view are many, and most
    /// are small neighbours in one file.
    fn remembering(&self) -> Self {
        let mut remembering = self.clone();
        remembering.ports.archive = self.ports.archive.remembering(KNOWN_BYTES);
        remembering
    }

    /// Notes in the record of the run that is not finished what stopped this try, for people. Where that can't be done
    /// nothing rests on it.
    async fn note_stopped(&self, source: Source, error: &Error) {
        if matches!(error, Error::Stopped) {
            return;
        }
        let noted = async {
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
        if let Err(error) = noted.await {
            tracing::debug!(%source, %error, "what stopped a run was not noted");
        }
    }

    /// What became of a run, after a file that it found damaged was deleted.
    async fn tidied(&self, done: Result<RunReport>) -> Result<RunReport> {
        let Some((path, why)) = done.as_ref().err().and_then(Error::damaged_file) else {
            return done;
        };
        if self.has_deleted(&path).await? {
            return Err(Error::Request(format!(
                "{path} was damaged or missing, and is deleted now: run again, and everything that rests on it is made anew"
            )));
        }
        // Not also what was being done: that is long, and says nothing.
        Err(stores::Error::DamagedFile { path, why }.into())
    }

    /// Deletes a damaged file if the next try makes it anew, from what it was made of; whether it did.
    pub(crate) async fn has_deleted(&self, path: &str) -> Result<bool> {
        let of_plays = format!("results/{}/", Source::Plays);
        let is_made_anew = path.starts_with("results/") || path.starts_with("snapshots/");
        if !is_made_anew
            || path.starts_with(&of_plays) && self.expired_bounds(Source::Plays).await?.is_some()
        {
            // What it is made of is gone, so nothing makes it anew: what is left of it stays.
            return Ok(false);
        }
        self.ports.archive.delete(path).await?;
        Ok(true)
    }

    /// The first and the last day of which events expired.
    pub(crate) async fn expired_bounds(&self, source: Source) -> Result<Option<(i64, i64)>> {
        let archive = &self.ports.archive;
        let version = Version::newest(archive, source).await?;
        version.expired_bounds(archive, source).await
    }

    /// What keeps two runs of a source apart.
    pub(crate) async fn lease(&self, source: Source) -> Result<Box<dyn Lease>> {
        let lease = format!("batch-{source}");
        let what = format!("a batch run is under way for {source}");
        self.acquire(&lease, &what).await
    }

    /// Takes a lease for this process; `what` says what is under way where it is held.
    pub(crate) async fn acquire(&self, lease: &str, what: &str) -> Result<Box<dyn Lease>> {
        let (leases, holder) = (&self.ports.leases, &self.options.holder);
        let acquired = leases.acquire(lease, holder).await?;
        acquired.map_err(|holder| Error::Busy(format!("{what}: {holder}")))
    }

    /// The run itself, under the lease.
    pub(crate) async fn run_held(
        &self,
        results: Results<'_>,
        request: &RunRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        let source = results.source;
        let mut stages = Stages::new(progress);
        let mut report = match source.kind() {
            SourceKind::Facts => {
                let run = self.run_tallies(&results, request, &mut stages, stop);
                run.await?
            }
            SourceKind::Entities => {
                self.run_boards(&results, request, &mut stages, stop)
                    .await?
            }
        };
        report.seconds = stages.end();
        report.tell(source);
        if request.jobs.is_empty() {
            self.record_report(source, &report).await?;
        }
        Ok(report)
    }

    /// Notes what did not work of what follows a published run: the next one tidies up.
    pub(crate) fn warn_after(source: Source, outcome: Result<()>, report: &mut RunReport) {
        if let Err(error) = outcome {
            tracing::warn!(%source, %error, "a run is published, and not all of what follows was done");
            let warning = format!("published; what follows was not all done: {error}");
            report.warnings.push(warning);
        }
    }

    /// Records that views, and with them the run, are complete; `results` by view.
    pub(crate) async fn complete(
        &self,
        source: Source,
        request: &RunRequest,
        at: (Epoch, i64),
        results: &BTreeMap<String, String>,
    ) -> Result<()> {
        let (run_ends, now_ms) = (request.jobs.is_empty(), self.ports.clock.now_ms());
        let views = &self.ports.views;
        Ok(views
            .complete(source, at, results, run_ends, now_ms)
            .await?)
    }

    /// Lets a result pass that has no faults or was forced; otherwise abandons the run and deletes the
    /// files of the result.
    pub(crate) async fn judge<M: Manifest>(
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
        let (source, epoch, what) = (results.source, report.epoch, faults.join("; "));
        let mut refused = Error::Check { epoch, what };
        if request.jobs.is_empty() {
            report.warnings.extend(faults.iter().cloned());
            report.faults = faults;
            if let Err(error) = self.abandon(source, report).await {
                refused = error;
            }
        }
        if let Err(error) = self.remove_others::<M>(results, stop).await {
            tracing::warn!(%source, %error, "the files of a result that failed its check stay");
        }
        Err(refused)
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
        Ok(views.report(source, report.epoch, &value).await?)
    }

    /// What is known of the rows of each view's table now.
    pub(crate) async fn held<M: Manifest>(
        &self,
        results: &Results<'_>,
    ) -> Result<BTreeMap<String, Held<M>>> {
        let tables = self.ports.views.results(results.source).await?;
        results.held(&tables).await
    }

    /// Deletes the results that no table holds rows of now; returns what is known of the others.
    pub(crate) async fn remove_others<M: Manifest>(
        &self,
        results: &Results<'_>,
        stop: &CancellationToken,
    ) -> Result<BTreeMap<String, Held<M>>> {
        let listed = results.listed().await?;
        let held = self.held(results).await?;
        results.remove_others(listed, &held, stop).await?;
        Ok(held)
    }

    pub(crate) async fn archiver(&self, source: Source) -> Result<Archiver<'_>> {
        let size = FileSize {
            rows_max: self.options.archive_rows_max,
            bytes_max: self.options.archive_bytes_max,
        };
        let ports = &self.ports;
        let log = (&*ports.log, &*ports.schemas, &ports.suppressions);
        Archiver::open(log, (&ports.archive, source), size, &*ports.clock).await
    }

    /// Where each partition of the log ends.
    pub(crate) async fn spans(&self, source: Source) -> Result<Vec<Offset>> {
        let spans = self.ports.log.spans(source.topic()).await?;
        Ok(spans.iter().map(|span| span.end).collect())
    }

    /// Whether there are all the jobs that are asked for.
    pub(crate) fn check_names(have: &[&str], request: &RunRequest) -> Result<()> {
        for name in &request.jobs {
            if !have.contains(&name.as_str()) {
                return Err(Error::Request(format!(
                    "there is no batch job {name:?}; there are {}",
                    have.join(", ")
                )));
            }
        }
        Ok(())
    }

    pub(crate) async fn log_ends(&self, source: Source) -> Result<Vec<Offset>> {
        let ends = self.spans(source).await?;
        let recorded = self.ports.views.runs(source).await?.runs.partitions();
        if ends.is_empty() && recorded == 0 {
            return Err(Error::Request(format!(
                "there is no log of {source} yet: run `backstitch ingest {source} FILE` first"
            )));
        }
        if ends.len() < recorded {
            return Err(lost_log(format!(
                "the log of {source} has {} partitions, a run has cuts in {recorded}: the log was lost",
                ends.len()
            )));
        }
        Ok(ends)
    }

    /// The run to carry out: a sealed one, or for single jobs the newest complete one once more.
    pub(crate) async fn the_run(
        &self,
        source: Source,
        request: &RunRequest,
        partitions: usize,
        stop: &CancellationToken,
    ) -> Result<Run> {
        let run = self.find_run(source, request, partitions, stop).await?;
        recognise_cuts(&self.ports, source, &run.cuts).await?;
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
                "run {} failed its check, so nothing can be added to the runs before it: run `backstitch batch run` first (with --force, if what its check finds is meant so), then single jobs",
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

    /// Begins what follows a published run: forgets all tables of the source but `tables`, and waits until nobody reads
    /// what was there before. Returns false if it is time to stop: the next run does what is left, since a run that stops may
    /// have lost the lease.
    pub(crate) async fn forget_others(
        &self,
        request: &RunRequest,
        (source, at, tables): (Source, (Epoch, i64), &[String]),
        (report, stages): (&mut RunReport, &mut Stages<'_>),
        stop: &CancellationToken,
    ) -> Result<bool> {
        stages.begin("drop", 0);
        if request.jobs.is_empty() {
            // Should the process end within the grace, what matters is told already.
            report.seconds = stages.so_far();
            self.record_report(source, report).await?;
        }
        if stop.is_cancelled() {
            return Ok(false);
        }
        self.ports.views.forget_views(source, at, tables).await?;
        Ok(self.grace(stop).await)
    }

    /// Waits until nobody reads what was there before the run; false if it is time to stop.
    pub(crate) async fn grace(&self, stop: &CancellationToken) -> bool {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(self.options.grace_ms)) => true,
            () = stop.cancelled() => false,
        }
    }

    /// Lets go of the live epochs that the rows of all `views` hold.
    pub(crate) async fn drop_epochs(
        &self,
        source: Source,
        views: &[String],
        partitions: usize,
        stop: &CancellationToken,
    ) -> Result<()> {
        let seen = self.ports.views.runs(source).await?;
        let newest = |view: &String| seen.newest.get(view).copied().unwrap_or(0);
        let epoch = views.iter().map(newest).min().unwrap_or(0);
        if epoch == 0 {
            return Ok(());
        }
        for (index, partition) in (0..partitions).zip(0_u32..) {
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

/// Whether the next step may be taken.
pub(crate) fn go_on(stop: &CancellationToken) -> Result<()> {
    if stop.is_cancelled() {
        return Err(Error::Stopped);
    }
    Ok(())
}

/// Works until it is done. Once the lease is lost the work is told to stop, which it does at the next
/// safe point: somebody else may hold the lease then, and what it keeps apart must not be done any
/// more. `stop` must be the one that the work looks at.
pub(crate) async fn while_held<T>(
    held: &dyn Lease,
    stop: &CancellationToken,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let lost = held.lost();
    let mut work = std::pin::pin!(work);
    let done = tokio::select! {
        done = &mut work => return done,
        () = lost.cancelled() => {
            tracing::error!("the lease is lost: what needs it stops");
            stop.cancel();
            work.await
        }
    };
    match done {
        Err(error) => match error.apart() {
            (Error::Stopped, applied) => Err(lease_lost(held, "a run").after(applied)),
            (error, applied) => Err(error.after(applied)),
        },
        done => done,
    }
}

/// Asks the lease's store itself whether the lease is held: what was read before this is of a time
/// at which nobody else held it, however long the process stood still since.
pub(crate) async fn expect_held(lease: &dyn Lease) -> Result<()> {
    if lease.is_held().await? {
        return Ok(());
    }
    Err(lease_lost(lease, "a run"))
}

/// The error of work that stopped since it lost its lease.
pub(crate) fn lease_lost(held: &dyn Lease, of: &str) -> Error {
    let why = held.why_lost().unwrap_or_else(|| "it has ended".to_owned());
    Error::Store(stores::Error::Unavailable {
        what: format!("holding the lease of {of}"),
        why: format!("it was lost: {why}; run again"),
    })
}

/// Where a partition ends; what stands there is not known.
const fn end_of(next_offset: Offset) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}

/// What the run says of records that it does not hold.
pub(crate) fn behind(source: Source, cuts: &[Cut], ends: &[Offset]) -> Vec<String> {
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
