//! The Restorator of tallies: what is served beside what it should be, key by key, and putting it right.
//!
//! What the events give is counted from the archive by the view's own queries, not from what runs left behind. It is
//! compared with the rows of the table and with live state as both are now, at one place of the log: whoever reads
//! gets their sum. All of it goes through files on the local disk, so memory is that of the query engine.
//!
//! It holds the lease of batch runs: no run publishes meanwhile, and two Restorators wait for each other. Readers and
//! the speed layer go on.

mod apply;
mod behind;
mod boards;
mod claims;
mod compare;
mod correct;
mod history;
mod journal;
mod kept;
mod live;
mod noted;
mod recount;
mod repair;
mod report;
mod request;
mod scheduled;
mod scope;
mod sides;
mod spool;
mod stored;

mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use jobs::tables::{Generation, table_to_read};
use jobs::{Board, Fold, Job, Layers};
use schemas::seam::{Cut, Epoch, Offset, RunState, Runs};
use stores::intake::Intake;
use tokio_util::sync::CancellationToken;

pub(crate) use correct::{CHANGE, STEP_ROWS as CHANGES_BATCH_ROWS, encode_changes};
pub use history::Outcome;
pub(crate) use history::{named_in_record, redact_record};
pub(crate) use journal::changes_folder;
pub use journal::{ChangesFile, Recorded, Restoration, RestorationKind};
pub use report::{Applied, Cause, Difference, OfCause, RestoreReport};
pub use request::{Address, Expected, RestoreRequest};
pub use scheduled::{Policy, Reconciled, Scheduled, ScheduledView, When};

use crate::archive::take_reduced;
use crate::report::Stages;
use crate::results::Results;
use crate::run::{Batch, go_on, while_held};
use crate::seal::recognise_cuts;
use crate::{Error, Progress, Result, RunRequest};
use apply::Rewrite;
use claims::{Claims, add_claims};
use compare::{Measure, Said, each_block};
use correct::{Changes, Corrections, is_counted, new_id, shown_key};
use history::History;
use journal::Journal;
use live::{LiveRead, LiveSide};
use recount::{Records, Recount, chain};
use report::Found;
use scope::{Scope, named};
use sides::{Side, Sides};
use spool::Spooled;
use stored::Known;

/// Events whose keys go into one file, about, so that each file can be compared by itself.
const FILE_EVENTS: u64 = 2_000_000;
/// Files, at most: each holds some rows in memory while it is written.
const FILES_MAX: u64 = 64;

/// What is compared with what.
struct Comparison {
    job: Arc<Job>,
    scope: Arc<Scope>,
    table: String,
    of: Generation,
    epoch: Epoch,
    cuts: Vec<Cut>,
    recount: Recount,
}

/// What was collected, ready to be compared.
struct Collected {
    position: Vec<Cut>,
    /// By partition: whatever is below it, every key counts. Those that were read later count more.
    counted: Vec<Offset>,
    /// The newest stamp of a row.
    stamp_us: i64,
    live_unknown: Option<String>,
    _folder: tempfile::TempDir,
    files: Vec<PathBuf>,
    /// What they take.
    disk_bytes: u64,
}

impl Collected {
    /// What is told of it before anything is compared.
    fn report(&self, comparison: &Comparison, request: &RestoreRequest) -> RestoreReport {
        let position = self.position.iter().map(|cut| cut.next_offset);
        RestoreReport {
            view: comparison.job.name().to_owned(),
            expected: request.expected.to_string(),
            epoch: comparison.epoch,
            position: position.collect(),
            live_unknown: self.live_unknown.clone(),
            disk_bytes: self.disk_bytes,
            ..RestoreReport::of(comparison.job.source())
        }
    }
}

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
        request: &RestoreRequest,
        intake: &Intake,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<RestoreReport> {
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
        let held = self.lease(source).await?;
        let stop = stop.child_token();
        let results = Results {
            archive: &self.ports.archive,
            source,
            lease: &*held,
        };
        let history = History::new(self, source, request);
        // Those that differ most are recorded, however few are to be shown.
        let noting = RestoreRequest {
            limit: request.limit.max(history::WORST),
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
        let done = while_held(&*held, &stop, Box::pin(work)).await;
        held.let_go().await;
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
                "--view {name}: there is no such view; there are {}",
                known.join(", ")
            ))
        })
    }

    /// Restores, and where files of the archive are missing or damaged makes those anew before.
    async fn restore_whole(
        &self,
        job: &Arc<Job>,
        results: &Results<'_>,
        (request, intake, history): (&RestoreRequest, &Intake, &History<'_>),
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<RestoreReport> {
        let source = job.source();
        let mut repaired: Vec<String> = Vec::new();
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
            self.write_file_again(source, (path, why)).await?;
            repaired.push(path.clone());
        }
        loop {
            let asked = (request, intake, history);
            let done = Box::pin(self.restore_held(job, results, asked, (progress, stop))).await;
            let damaged = done.as_ref().err().and_then(Error::damaged_file);
            match (damaged, done) {
                (Some((path, why)), Err(error)) => {
                    // Once more would be for ever.
                    if !request.apply || repaired.contains(&path) {
                        return Err(error);
                    }
                    self.write_file_again(source, (&path, &why)).await?;
                    repaired.push(path);
                }
                (_, Ok(mut report)) => {
                    if !repaired.is_empty() {
                        // Also where all else is held back.
                        report.applied.get_or_insert_default().files = repaired;
                    }
                    return Ok(report);
                }
                (None, Err(error)) => return Err(error),
            }
        }
    }

    async fn restore_held(
        &self,
        job: &Arc<Job>,
        results: &Results<'_>,
        (request, intake, history): (&RestoreRequest, &Intake, &History<'_>),
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<RestoreReport> {
        let begun = Instant::now();
        let mut stages = Stages::new(progress);
        stages.begin("expected", 0);
        let spooled = self.spooled(request, (progress, stop)).await?;
        let (claims, scope) = asked_for(self, job, request, spooled.as_ref()).await?;
        let journal = Journal {
            archive: &self.ports.archive,
            source: job.source(),
        };
        let mut recorded = journal.all().await?;
        if request.apply {
            self.finish_run(results, &request.expected, (progress, stop))
                .await?;
            recorded = self.append_all(&journal, intake, (progress, stop)).await?;
        }
        self.note_corrections(&journal, &recorded).await?;
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
        let found = self
            .weigh(
                &collected,
                &comparison,
                (&measure, request),
                (progress, stop),
            )
            .await?;
        let live_is_wrong = found.live_wrong > 0 || collected.live_unknown.is_some();
        let damaged = found.damaged;
        found.tell(&scope.grain, &mut report)?;
        let uncounted = is_counted(&recorded, &collected.counted);
        report.warnings = warnings.into_iter().chain(scope.left_out()).collect();
        report.warnings.extend(none_compared(report.keys));
        hold_back(request, &mut report, (uncounted.err(), &behind));
        if request.apply && report.held_back.is_none() {
            let with = (&comparison, &collected, &measure);
            let number = recorded.len() as u64 + 1;
            history.begin_to_apply(&report, number).await?;
            let record = self.record(request, &report, number);
            let told = (&mut stages, stop);
            let by = (&journal, intake, record);
            let mut applied = self.put_right(request, with, by, told).await?;
            if request.expected.is_claimed() {
                applied.damaged = damaged;
            }
            if live_is_wrong && request.expected == Expected::Archive {
                let again = RunRequest::default();
                let run = self.run_again(results, &again, (progress, stop));
                applied.run = Some(run.await?);
            }
            report.applied = Some(applied);
        }
        report.seconds = begun.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Puts right what differs: what the events give by rows, what somebody else says by corrections.
    async fn put_right(
        &self,
        request: &RestoreRequest,
        with: (&Comparison, &Collected, &Measure),
        (journal, intake, record): (&Journal<'_>, &Intake, Restoration),
        told: (&mut Stages<'_>, &CancellationToken),
    ) -> Result<Applied> {
        if request.expected.is_claimed() {
            let by = (&request.set, record);
            return self.correct(with, by, (journal, intake), told).await;
        }
        self.rewrite(with, (journal, record), told).await
    }

    /// What is recorded of a restoration before its changes are known.
    fn record(&self, request: &RestoreRequest, report: &RestoreReport, number: u64) -> Restoration {
        Restoration {
            number,
            id: new_id(),
            kind: match request.expected.is_claimed() {
                false => RestorationKind::Rows,
                true => RestorationKind::Corrections,
            },
            view: report.view.clone(),
            expected: report.expected.clone(),
            undoes: None,
            by: request.by.clone(),
            reason: request.reason.clone(),
            at_ms: self.ports.clock.now_ms(),
            epoch: report.epoch,
            position: report.position.clone(),
            changes: 0,
            total: 0,
            files: Vec::new(),
        }
    }

    /// Weighs every key.
    async fn weigh(
        &self,
        collected: &Collected,
        comparison: &Comparison,
        (measure, request): (&Measure, &RestoreRequest),
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<Found> {
        let mut found = Found::default();
        for file in &collected.files {
            go_on(stop)?;
            let mut note = |key: &[u8], said: &Said| {
                if said.of(Side::Ahead).is_some() {
                    found.ahead += 1;
                } else if said.count(Side::ClaimedLines) > 1 {
                    let key = named(&comparison.scope.grain, key)?;
                    return Err(Error::Request(format!(
                        "{} says {} times what is expected of {}: each key comes once. Nothing was compared",
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
                go_on(stop)?;
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
        (stages, stop): (&mut Stages<'_>, &CancellationToken),
    ) -> Result<Applied> {
        stages.begin("rewrite", 0);
        let grain = &comparison.scope.grain;
        let mut changes = Changes::new(journal);
        for file in &collected.files {
            go_on(stop)?;
            each_block(&self.engine, file, async |sums| {
                sums.each(|key, said| match measure.weigh(said) {
                    Some(weighed) if weighed.row_is_wrong => changes.add_row(grain, key, &weighed),
                    _ => Ok(()),
                })?;
                changes.write(false).await
            })
            .await?;
        }
        let mut applied = Applied::default();
        let Some(recorded) = changes.record(record).await? else {
            return Ok(applied);
        };
        let mut rewrite = Rewrite::begin(self, comparison, collected.stamp_us).await?;
        for file in &collected.files {
            go_on(stop)?;
            each_block(&self.engine, file, async |sums| {
                sums.each(|key, said| match measure.weigh(said) {
                    Some(weighed) if weighed.row_is_wrong => rewrite.add(key, weighed.events_batch),
                    _ => Ok(()),
                })?;
                applied.rows += rewrite.send(stop).await?;
                Ok(())
            })
            .await?;
        }
        rewrite.end().await?;
        journal.end(recorded.number, &[]).await?;
        applied.restoration = Some(recorded.number);
        Ok(applied)
    }

    /// Appends corrections for what a file says otherwise than the events, once they are recorded.
    async fn correct(
        &self,
        (comparison, collected, measure): (&Comparison, &Collected, &Measure),
        (set, record): (&BTreeMap<String, String>, Restoration),
        (journal, intake): (&Journal<'_>, &Intake),
        (stages, stop): (&mut Stages<'_>, &CancellationToken),
    ) -> Result<Applied> {
        stages.begin("correct", 0);
        let fold = Fold::new(&self.engine, &comparison.recount.chain).await?;
        let by = (&record, set);
        let mut corrections = Corrections::new(journal, by, &comparison.scope, fold)?;
        for file in &collected.files {
            go_on(stop)?;
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
            return Ok(Applied::default());
        };
        self.append(journal, &recorded, intake, (stages.progress, stop))
            .await?;
        self.note_corrections(journal, &journal.all().await?)
            .await?;
        Ok(Applied {
            corrections: recorded.changes,
            restoration: Some(recorded.number),
            ..Applied::default()
        })
    }

    /// Finishes a run that died or failed. Rows are written anew for the newest run, so that one has to be complete; for
    /// corrections it is enough that no row is of another one.
    async fn finish_run(
        &self,
        results: &Results<'_>,
        expected: &Expected,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<()> {
        let runs = self.ports.views.runs(results.source).await?.runs;
        let is_in_the_way = match expected.is_claimed() {
            false => !is_last_complete(&runs),
            true => runs.open().is_some_and(|run| run.state == RunState::Sealed),
        };
        if is_in_the_way {
            let again = RunRequest::default();
            self.run_again(results, &again, (progress, stop)).await?;
        }
        Ok(())
    }

    /// Carries a run out under the lease that is held. Damaged results that it comes upon are deleted, and made anew by
    /// the run that begins again.
    async fn run_again(
        &self,
        results: &Results<'_>,
        request: &RunRequest,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<Epoch> {
        let mut deleted = BTreeSet::new();
        loop {
            let again = Results { ..*results };
            let run = Box::pin(self.run_held(again, request, progress, stop)).await;
            let damaged = run.as_ref().err().and_then(Error::damaged_file);
            match (run, damaged) {
                (Err(_), Some((path, _)))
                    if self.has_deleted(&path).await? && deleted.insert(path.clone()) => {}
                (run, _) => return Ok(run?.epoch),
            }
        }
    }

    /// What there is to be compared now, and what a person should know of it.
    async fn comparison(
        &self,
        job: &Arc<Job>,
        scope: &Arc<Scope>,
        results: &Results<'_>,
    ) -> Result<(Comparison, Vec<String>)> {
        let source = job.source();
        let seen = self.ports.views.runs(source).await?;
        let table = table_to_read(&seen.newest, job.view());
        let run = seen.runs.get(table.newest).cloned().ok_or_else(|| {
            Error::NotYet(format!(
                "no run of {source} has made rows of {} yet: run `backstitch batch run` first",
                job.name()
            ))
        })?;
        let mut warnings = Vec::new();
        if let Some(open) = seen.runs.open() {
            warnings.push(format!(
                "run {} was begun and is not complete: answers are right meanwhile, and keys that it has written are passed over here. `backstitch batch run` finishes it",
                open.epoch
            ));
        }
        let (of, mut manifests) = self.generation(source).await?;
        if of.erasures != table.of.erasures {
            return Err(Error::NotYet(
                "an erasure waits for the next run, so events may no longer name whom rows name: let it end (`backstitch erase`, or `backstitch batch run`), then compare"
            .to_owned()));
        }
        if of.backfills != table.of.backfills {
            return Err(Error::NotYet(
                "a backfill waits for the next run, so the archive holds more than any answer: run `backstitch batch run` first, then compare"
            .to_owned()));
        }
        let mut archiver = self.archiver(source).await?;
        archiver.recognise_log().await?;
        recognise_cuts(&self.ports, source, &run.cuts).await?;
        manifests.extend(archiver.into_manifests());
        let (manifests, reduced) = take_reduced(&self.ports.archive, source, manifests).await?;
        let events = manifests.iter().filter(|manifest| manifest.file.is_some());
        if events
            .clone()
            .any(|manifest| manifest.suppressed < of.erasures)
        {
            return Err(Error::NotYet(
                "the archive has files that were not looked at for everybody who was erased, as after an older copy of it was put back: the next run takes them out (`backstitch batch run`), then compare"
            .to_owned()));
        }
        let chain = chain(&self.catalog, job)?;
        let kept = self.kept(results, (&chain, of), (reduced, &run.cuts), scope);
        let kept = kept.await?;
        warnings.extend(kept.warning());
        Ok((
            Comparison {
                job: Arc::clone(job),
                scope: Arc::clone(scope),
                table: table.name,
                of,
                epoch: run.epoch,
                cuts: run.cuts,
                recount: Recount {
                    engine: self.engine.clone(),
                    archive: self.ports.archive.clone(),
                    manifests: Arc::new(manifests),
                    kept: Arc::new(kept),
                    chain,
                    task_rows_max: self.options.task_rows_max,
                },
            },
            warnings,
        ))
    }

    /// Collects all sides: live state first, then the rows, and then the events up to where live state stood.
    async fn collect_sides(
        &self,
        comparison: &Comparison,
        claims: Option<Claims>,
        stages: &mut Stages<'_>,
        stop: &CancellationToken,
    ) -> Result<Collected> {
        let Comparison { job, scope, .. } = comparison;
        let source = job.source();
        let folder = self.engine.scratch()?;
        let days = comparison.recount.days(None, &comparison.cuts);
        let files = (days.values().sum::<u64>() / FILE_EVENTS).min(FILES_MAX - 1);
        let files = NonZeroUsize::MIN.saturating_add(usize::try_from(files).unwrap_or(0));
        let sides = Arc::new(Sides::new(job, scope, folder.path(), files));
        let progress = stages.progress;
        let is_claimed = claims.is_some();
        if let Some(claims) = claims {
            // First: what is wrong in a file is said before anything else is read.
            stages.begin("expected", 0);
            add_claims(claims, scope, &sides, stop).await?;
        }
        stages.begin("live", 0);
        let runs = self.ports.views.runs(source).await?.runs;
        let partitions = self.log_ends(source).await?.len();
        let partitions = u32::try_from(partitions).map_err(|e| Error::fault("partitions", e))?;
        let (ports, rows_max) = ((&self.ports, &self.catalog), self.options.scan_rows);
        let live = LiveSide::of(
            ports,
            job,
            (comparison.epoch, &runs),
            (partitions, rows_max),
        );
        let read = live.add(&sides, (progress, stop)).await?;
        stages.begin("rows", 0);
        let known = Known {
            newest: comparison.epoch,
            runs: &runs,
        };
        let table = (comparison.table.as_str(), known, rows_max);
        let stamp_us = stored::add_rows(&self.ports, table, &sides, (progress, stop)).await?;
        let (position, counted, live_unknown) = match read {
            Ok(read) => {
                let is_all = self.live_events((&live, &read), comparison, &sides, (stages, stop));
                let why = "too much came while live state was read";
                let unknown = (!is_all.await?).then(|| why.to_owned());
                (read.last(), read.first(), unknown)
            }
            Err(why) => {
                let cuts = comparison.cuts.clone();
                let counted = cuts.iter().map(|cut| cut.next_offset).collect();
                (cuts, counted, Some(why))
            }
        };
        if is_claimed && let Some(why) = live_unknown {
            return Err(Error::NotYet(format!(
                "what is served can't be told, so neither whether it is what the file says: {why}"
            )));
        }
        self.batch_events(comparison, &sides, stages, stop).await?;
        let files = sides.end()?;
        let sizes = files.iter().map(|file| file.metadata().map(|of| of.len()));
        let disk_bytes = sizes.map(|size| size.unwrap_or(0)).sum();
        tracing::debug!(disk_bytes, "what is compared is on the disk");
        Ok(Collected {
            position,
            counted,
            stamp_us,
            live_unknown,
            files,
            disk_bytes,
            _folder: folder,
        })
    }

    /// Counts the events below the cuts.
    async fn batch_events(
        &self,
        comparison: &Comparison,
        sides: &Arc<Sides>,
        stages: &mut Stages<'_>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let recount = &comparison.recount;
        let mut days = recount.days(None, &comparison.cuts);
        days.retain(|day, _| comparison.scope.has_day(*day));
        stages.begin("events", days.values().sum());
        let to: Vec<_> = comparison.cuts.iter().map(|cut| cut.next_offset).collect();
        let side = (Side::EventsBatch, sides);
        let told = (stages.progress, stop);
        recount.add(side, &days, (&to, &Records::First), told).await
    }

    /// Copies to the archive what live state has counted, and counts it.
    async fn live_events(
        &self,
        (live, read): (&LiveSide<'_>, &LiveRead),
        comparison: &Comparison,
        sides: &Arc<Sides>,
        (stages, stop): (&mut Stages<'_>, &CancellationToken),
    ) -> Result<bool> {
        let mut archiver = self.archiver(live.source).await?;
        let ends = read.last();
        let offsets: Vec<_> = ends.iter().map(|cut| cut.next_offset).collect();
        stages.begin("archive", archiver.behind(&offsets));
        archiver.up_to(&ends, stages.progress, stop).await?;
        go_on(stop)?;
        let (of, mut manifests) = self.generation(live.source).await?;
        if of.erasures != comparison.of.erasures {
            return Err(Error::NotYet(
                "somebody was erased meanwhile, so events no longer name whom live state names: compare again once the erasure is done"
            .to_owned()));
        }
        manifests.extend(archiver.into_manifests());
        let archive = &self.ports.archive;
        let (manifests, _) = take_reduced(archive, live.source, manifests).await?;
        let recount = Recount {
            manifests: Arc::new(manifests),
            ..comparison.recount.clone()
        };
        stages.begin("live events", 0);
        let engine = (&self.engine, &self.catalog);
        let told = (stages.progress, stop);
        live.add_events(engine, &recount, (read, &comparison.cuts), sides, told)
            .await
    }
}

impl Measure {
    fn of(request: &RestoreRequest, collected: &Collected) -> Self {
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
    let what = "there was no key to compare: see what --keys, --from, --to and --sample say";
    (keys == 0).then(|| what.to_owned())
}

/// Whether the newest run is complete, or there is none.
fn is_last_complete(runs: &Runs) -> bool {
    runs.iter()
        .next_back()
        .is_none_or(|run| run.state == RunState::Complete)
}

/// The file that a request names, open, and what is compared.
async fn asked_for(
    batch: &Batch,
    job: &Job,
    request: &RestoreRequest,
    spooled: Option<&Spooled>,
) -> Result<(Option<Claims>, Arc<Scope>)> {
    let suppressed = batch.ports.suppressions.now().await?;
    let set = request
        .set
        .get("listener_id")
        .and_then(|id| id.parse().ok());
    if set.is_some_and(|id| suppressed.has_listener(id)) {
        return Err(Error::Request(
            "--set listener_id: this listener was erased, and nothing is recorded of them"
                .to_owned(),
        ));
    }
    if let Some(name) = request.set.keys().next()
        && !request.expected.is_claimed()
    {
        return Err(Error::Request(format!(
            "--set {name}: it says what corrections hold, and what events give is put right without any; leave it out"
        )));
    }
    let claims = match (&request.expected, spooled) {
        (Expected::Canonical, _) => {
            return Err(Error::Request(format!(
                "--expected canonical: {} counts events, and the canonical store has none of them; say with --query what it counts, or compare with archive",
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

/// Says why what differs is not put right now, where it is so; `uncounted` is a restoration whose corrections live state
/// has not come to, and partitions of the log with records that it has not come to.
fn hold_back(
    request: &RestoreRequest,
    report: &mut RestoreReport,
    (restoration, partitions): (Option<u64>, &[u32]),
) {
    let corrections = restoration.map(|number| format!(
        "live state has not come to all corrections of restoration {number} yet (`backstitch speed` counts them), so they would be made once more"
    ));
    let events = (!partitions.is_empty()).then(|| {
        let partitions: Vec<String> = partitions.iter().map(u32::to_string).collect();
        format!(
            "live state has not come to events that are in the log, in partition(s) {} (`backstitch speed` counts them): where what is expected counts them already, corrections would count them twice",
            partitions.join(", ")
        )
    });
    let uncounted = corrections.or(events);
    if request.apply && request.expected.is_claimed() {
        report.held_back = uncounted;
    } else {
        report.warnings.extend(uncounted);
    }
    let why = report.held_back.take();
    report.held_back = why.or_else(|| held_back(request, report));
}

/// Why what differs is not to be put right now.
fn held_back(request: &RestoreRequest, report: &RestoreReport) -> Option<String> {
    if !request.apply {
        return None;
    }
    if let Some(max) = request.apply_max
        && report.total > max
    {
        return Some(format!(
            "{} differ in all, more than the {max} that may be put right unasked",
            report.total
        ));
    }
    match &request.expected {
        expected if expected.is_claimed() && report.ahead > 0 => Some(format!(
            "{} keys are of a run that is not complete",
            report.ahead
        )),
        _ => None,
    }
}
