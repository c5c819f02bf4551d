//! A reconciliation: what is compared, in which order, and how differences are repaired.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jobs::{Board, Fold, Job, Layers};
use schemas::traces;
use stores::intake::Intake;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::applied::Applied;
use super::apply::Rewrite;
use super::claims::Claims;
use super::collect::{Collected, Comparison};
use super::compare::{Measure, Said, each_block};
use super::correct::{Changes, Corrections, is_counted};
use super::held_back::hold_back;
use super::history::{History, WORST};
use super::journal::{Journal, Restoration};
use super::report::{Found, ReconcileReport};
use super::request::{Expected, ReconcileRequest};
use super::scope::{Scope, named, shown_key};
use super::side::Side;
use super::spool::Spooled;
use crate::batch::Batch;
use crate::lease::{check_stop, run_under_lease};
use crate::report::Stages;
use crate::results::Results;
use crate::{Error, Progress, Result, RunRequest};

/// What is compared.
enum Restorable {
    Tally(Arc<Job>),
    Board(Arc<Job<Board>>),
}

impl Batch {
    /// Compares what is served of a view with what is expected, and puts right what differs if that is asked for. What its
    /// events give: rows are written anew, live state by a run, files of the archive from the log. What a file says:
    /// corrections are appended to the log through `intake`, of the view's source.
    ///
    /// # Errors
    /// [`Error::Busy`] if a run is under way, [`Error::Request`] for what can't be compared, those of the stores. A
    /// file of the archive that is missing or damaged is named ([`Error::Damaged`], [`stores::Error::DamagedFile`]).
    pub async fn restore(
        &self,
        request: &ReconcileRequest,
        intake: &Intake,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<ReconcileReport> {
        let boards = self.catalog.boards().iter();
        let board = boards.filter(|job| job.layers().include(Layers::Batch));
        let board = board.clone().find(|job| job.name() == request.view);
        let job = match board {
            Some(job) => Restorable::Board(Arc::clone(job)),
            None => Restorable::Tally(self.job_to_restore(&request.view)?),
        };
        let source = match &job {
            Restorable::Board(job) => job.source(),
            Restorable::Tally(job) => job.source(),
        };
        let held = self.acquire_run_lease(source).await?;
        let stop = stop.child_token();
        let results = Results {
            archive: &self.ports.archive,
            source,
            lease: &*held,
        };
        let history = History::new(self, source, request);
        // Those that differ most are recorded, however few are to be shown.
        let noting = ReconcileRequest {
            limit: request.limit.max(WORST),
            ..request.clone()
        };
        let (asked, told) = ((&noting, intake, &history), (progress, &stop));
        let work = async {
            history.settle_cut_off().await?;
            let done = match &job {
                Restorable::Board(job) => {
                    Box::pin(self.restore_boards(job, &results, asked, told)).await
                }
                Restorable::Tally(job) => {
                    Box::pin(self.restore_whole(job, &results, asked, told)).await
                }
            };
            let mut done = history.end(done).await;
            if let Ok(report) = &mut done {
                report.differences.truncate(request.limit);
            }
            done
        };
        let span = tracing::info_span!(target: traces::TARGET, "restoration", view = request.view, request.apply);
        let work = Box::pin(work).instrument(span);
        let done = run_under_lease(&*held, &stop, work).await;
        held.release().await;
        done
    }

    fn job_to_restore(&self, name: &str) -> Result<Arc<Job>> {
        let jobs = || self.catalog.jobs().iter();
        let found = jobs().find(|job| job.name() == name && job.layers().include(Layers::Batch));
        found.cloned().ok_or_else(|| {
            let known: Vec<&str> = jobs().map(|job| job.name()).collect();
            let boards = self.catalog.boards().iter().map(|job| job.name());
            let known: Vec<&str> = known.into_iter().chain(boards).collect();
            Error::Request(format!(
                "--view {name}: unknown view; the views are {}",
                known.join(", ")
            ))
        })
    }

    /// Restores, and where files of the archive are missing or damaged makes those anew before.
    async fn restore_whole(
        &self,
        job: &Arc<Job>,
        results: &Results<'_>,
        (request, intake, history): (&ReconcileRequest, &Intake, &History<'_>),
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<ReconcileReport> {
        let source = job.source();
        let mut before = Applied::default();
        let missing = self.missing_files(source).await?;
        for path in &missing {
            let why = "it is missing";
            if !request.apply {
                let others: Vec<&str> = missing.iter().skip(1).map(String::as_str).collect();
                return Err(match others.is_empty() {
                    true => Error::damaged(path, why),
                    false => {
                        Error::damaged(path, format!("{why}, and so are {}", others.join(", ")))
                    }
                });
            }
            if let Err(error) = self.write_file_again(source, (path, why)).await {
                return Err(error.with_applied(before));
            }
            before.files.push(path.clone());
        }
        loop {
            let asked = (request, intake, history);
            let done = Box::pin(self.restore_held(job, results, asked, (progress, stop))).await;
            let damaged = done.as_ref().err().and_then(Error::damaged_file);
            match (damaged, done) {
                (Some((path, why)), Err(error)) => {
                    // Once more would be for ever.
                    if !request.apply || before.files.contains(&path) {
                        return Err(error.with_applied(before));
                    }
                    before = before.and(error.split_applied().1);
                    if let Err(error) = self.write_file_again(source, (&path, &why)).await {
                        return Err(error.with_applied(before));
                    }
                    before.files.push(path);
                }
                (_, Ok(mut report)) => {
                    if before != Applied::default() {
                        // Also where all else is held back.
                        report.applied = Some(before.and(report.applied.unwrap_or_default()));
                    }
                    return Ok(report);
                }
                (None, Err(error)) => return Err(error.with_applied(before)),
            }
        }
    }

    async fn restore_held(
        &self,
        job: &Arc<Job>,
        results: &Results<'_>,
        (request, intake, history): (&ReconcileRequest, &Intake, &History<'_>),
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<ReconcileReport> {
        let begun = Instant::now();
        let mut stages = Stages::new(progress);
        stages.begin("expected", 0);
        let spooled = self.spooled(request, (progress, stop)).await?;
        let (claims, scope) = asked_for(self, job, request, spooled.as_ref()).await?;
        let journal = Journal {
            archive: &self.ports.archive,
            source: job.source(),
        };
        if request.apply {
            self.finish_run(results, &request.expected, (progress, stop))
                .await?;
            self.append_all(&journal, intake, (progress, stop)).await?;
        }
        let recorded = self.settled(&journal).await?;
        self.index_corrections(&journal, &recorded).await?;
        let (comparison, warnings) = self.comparison(job, &scope, results).await?;
        let ends = match claims {
            Some(_) => self.wait_until_counted(job.source(), stop).await?,
            None => Vec::new(),
        };
        let collected = self
            .collect_sides(&comparison, claims, &mut stages, stop)
            .await?;
        drop(spooled);
        let counted = &collected.counted;
        let behind = self.behind(job.source(), counted, &ends).await?;
        let mut report = collected.report(&comparison, request);
        stages.begin("compare", 0);
        let measure = Measure::of(request, &collected);
        let by = (&measure, request);
        let found = self.weigh(&collected, &comparison, by, (progress, stop));
        let found = found.await?;
        let live_is_wrong = found.live_wrong > 0 || collected.live_unknown.is_some();
        let damaged = found.damaged;
        found.tell((job, &scope.grain), &mut report)?;
        let uncounted = is_counted(&recorded, &collected.counted);
        report.warnings = warnings.into_iter().chain(scope.left_out()).collect();
        report.warnings.extend(none_compared(report.keys));
        hold_back(request, &mut report, (uncounted.err(), &behind));
        if request.apply && report.held_back.is_none() {
            let with = (&comparison, &collected, &measure);
            let number = recorded.len() as u64 + 1;
            history.begin_to_apply(&report, number).await?;
            let record = self.record(request, &report, number);
            let by = (&journal, intake, record);
            let mut applied = Applied::default();
            let done = async {
                let told = (&mut applied, (&mut stages, stop));
                self.put_right(request, with, by, told).await?;
                if live_is_wrong && request.expected == Expected::Archive {
                    let again = RunRequest::default();
                    let run = self.run_again(results, &again, (progress, stop));
                    applied.run = Some(run.await?);
                }
                Ok(())
            };
            done.await
                .map_err(|e| Error::with_applied(e, applied.clone()))?;
            if request.expected.is_claimed() {
                applied.damaged = damaged;
            }
            report.applied = Some(applied);
        }
        report.seconds = begun.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Puts right what differs: what the events give by rows, what somebody else says by corrections. What is done is noted
    /// as it is, for whoever is told that the rest was not.
    async fn put_right(
        &self,
        request: &ReconcileRequest,
        with: (&Comparison, &Collected, &Measure),
        (journal, intake, record): (&Journal<'_>, &Intake, Restoration),
        told: (&mut Applied, (&mut Stages<'_>, &CancellationToken)),
    ) -> Result<()> {
        if request.expected.is_claimed() {
            let by = (&request.set, record);
            return self.correct(with, by, (journal, intake), told).await;
        }
        self.rewrite(with, (journal, record), told).await
    }

    /// Weighs every key.
    async fn weigh(
        &self,
        collected: &Collected,
        comparison: &Comparison,
        (measure, request): (&Measure, &ReconcileRequest),
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<Found> {
        let mut found = Found::default();
        for file in &collected.files {
            check_stop(stop)?;
            let mut note = |key: &[u8], said: &Said| {
                if said.of(Side::Ahead).is_some() {
                    found.ahead += 1;
                } else if said.count(Side::ClaimedLines) > 1 {
                    let key = named(&comparison.scope.grain, key)?;
                    return Err(Error::Request(format!(
                        "{} gives a value {} times for {}: each key may occur only once. Nothing was compared",
                        request.expected,
                        said.count(Side::ClaimedLines),
                        serde_json::Value::Object(shown_key(&key))
                    )));
                } else if let Some(weighed) = measure.weigh(said) {
                    found.note(key, &weighed, request.limit);
                }
                Ok(())
            };
            each_block(&self.engine, file, async |sums| {
                check_stop(stop)?;
                progress.advance(sums.keys());
                sums.each(&mut note)
            })
            .await?;
        }
        Ok(found)
    }

    /// Writes the rows anew that are not what the events give, once they are recorded.
    async fn rewrite(
        &self,
        (comparison, collected, measure): (&Comparison, &Collected, &Measure),
        (journal, record): (&Journal<'_>, Restoration),
        (applied, (stages, stop)): (&mut Applied, (&mut Stages<'_>, &CancellationToken)),
    ) -> Result<()> {
        stages.begin("rewrite", 0);
        let of = (&*comparison.job, &comparison.scope.grain);
        let mut changes = Changes::new(journal);
        for file in &collected.files {
            check_stop(stop)?;
            each_block(&self.engine, file, async |sums| {
                sums.each(|key, said| match measure.weigh(said) {
                    Some(weighed) if weighed.row_is_wrong => changes.add_row(of, key, &weighed),
                    _ => Ok(()),
                })?;
                changes.write(false).await
            })
            .await?;
        }
        let Some(recorded) = changes.record(record).await? else {
            return Ok(());
        };
        applied.restoration = Some(recorded.number);
        let mut rewrite = Rewrite::begin(self, comparison, collected.stamp_us).await?;
        for file in &collected.files {
            check_stop(stop)?;
            each_block(&self.engine, file, async |sums| {
                sums.each(|key, said| match measure.weigh(said) {
                    Some(weighed) if weighed.row_is_wrong => rewrite.add(key, &weighed),
                    _ => Ok(()),
                })?;
                rewrite.send(applied, stop).await
            })
            .await?;
        }
        rewrite.end().await?;
        journal.end(recorded.number, &[]).await
    }

    /// Appends corrections for what a file says otherwise than the events, once they are recorded.
    async fn correct(
        &self,
        (comparison, collected, measure): (&Comparison, &Collected, &Measure),
        (set, record): (&BTreeMap<String, String>, Restoration),
        (journal, intake): (&Journal<'_>, &Intake),
        (applied, (stages, stop)): (&mut Applied, (&mut Stages<'_>, &CancellationToken)),
    ) -> Result<()> {
        stages.begin("correct", 0);
        let fold = Fold::new(&self.engine, &comparison.recount.chain).await?;
        let by = (&record, set);
        let mut corrections = Corrections::new(journal, by, &comparison.scope, fold)?;
        for file in &collected.files {
            check_stop(stop)?;
            each_block(&self.engine, file, async |sums| {
                sums.each(|key, said| match measure.weigh(said) {
                    Some(weighed) if weighed.is_to_be_corrected => corrections.add(key, &weighed),
                    _ => Ok(()),
                })?;
                corrections.check().await
            })
            .await?;
        }
        let Some(recorded) = corrections.into_changes().record(record).await? else {
            return Ok(());
        };
        applied.restoration = Some(recorded.number);
        let appended = &mut applied.corrections;
        let told = (stages.progress, stop);
        self.append(journal, (&recorded, appended), intake, told)
            .await?;
        self.index_corrections(journal, &journal.all().await?).await
    }
}

impl Measure {
    fn of(request: &ReconcileRequest, collected: &Collected) -> Self {
        let is_claimed = request.expected != Expected::Archive;
        Self {
            is_claimed,
            is_whole: request.is_whole,
            with_live: collected.live_unknown.is_none(),
            tolerance: request.tolerance,
        }
    }
}

fn none_compared(keys: u64) -> Option<String> {
    let what = "no key was compared: check --keys, --from, --to and --sample";
    (keys == 0).then(|| what.to_owned())
}

/// The file that a request names, open, and what is compared.
async fn asked_for(
    batch: &Batch,
    job: &Job,
    request: &ReconcileRequest,
    spooled: Option<&Spooled>,
) -> Result<(Option<Claims>, Arc<Scope>)> {
    let suppressed = batch.ports.suppressions.current().await?;
    let set = request
        .set
        .get("listener_id")
        .and_then(|id| id.parse().ok());
    if set.is_some_and(|id| suppressed.contains_listener(id)) {
        return Err(Error::Request(
            "--set listener_id: this listener was erased, so no event of the listener is recorded"
                .to_owned(),
        ));
    }
    if let Some(name) = request.set.keys().next()
        && !request.expected.is_claimed()
    {
        return Err(Error::Request(format!(
            "--set {name}: only corrections use this option, and differences from events are repaired without corrections; omit it"
        )));
    }
    let claims = match (&request.expected, spooled) {
        (Expected::Canonical, _) => {
            return Err(Error::Request(format!(
                "--expected canonical: {} counts events, which the entity store does not have; use --query to compute the expected values, or --expected archive",
                job.name()
            )));
        }
        (expected, Some(spooled)) => {
            let (path, name) = (spooled.path.clone(), expected.to_string());
            Some(Claims::open((path, name), job, &request.rename)?)
        }
        (Expected::File(path), None) => {
            let named = (path.clone(), path.display().to_string());
            Some(Claims::open(named, job, &request.rename)?)
        }
        _ => None,
    };
    let grain = claims.as_ref().map(Claims::names);
    let scope = Scope::of(job, request, grain.as_ref())?.without(suppressed);
    Ok((claims, Arc::new(scope)))
}
