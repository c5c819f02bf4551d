//! What is compared with what: collecting the sides of a comparison, each at the same place of the log.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use jobs::Job;
use jobs::tables::{TableGeneration, find_table_to_read};
use schemas::seam::{Cut, Epoch, Offset};
use tokio_util::sync::CancellationToken;

use super::claims::{Claims, add_claims};
use super::live::{LiveRead, LiveSide};
use super::recount::{Recount, chain};
use super::report::ReconcileReport;
use super::request::ReconcileRequest;
use super::scope::Scope;
use super::side::Side;
use super::sides::Sides;
use super::stored::{self, Known};
use crate::archive::RecordFilter;
use crate::batch::Batch;
use crate::lease::check_stop;
use crate::report::Stages;
use crate::results::Results;
use crate::seal::verify_cuts;
use crate::{Error, Result};

/// Events whose keys go into one file, about, so that each file can be compared by itself.
const FILE_EVENTS: u64 = 2_000_000;
/// Files, at most: each holds some rows in memory while it is written.
const FILES_MAX: u64 = 64;

/// What is compared with what.
pub(super) struct Comparison {
    pub(super) job: Arc<Job>,
    pub(super) scope: Arc<Scope>,
    pub(super) table: String,
    pub(super) of: TableGeneration,
    pub(super) epoch: Epoch,
    pub(super) cuts: Vec<Cut>,
    pub(super) recount: Recount,
}

/// What was collected, ready to be compared.
pub(super) struct Collected {
    pub(super) position: Vec<Cut>,
    /// By partition: whatever is below it, every key counts. Those that were read later count more.
    pub(super) counted: Vec<Offset>,
    /// The newest stamp of a row.
    pub(super) stamp_us: i64,
    pub(super) live_unknown: Option<String>,
    _folder: tempfile::TempDir,
    pub(super) files: Vec<PathBuf>,
    /// What they take.
    pub(super) disk_bytes: u64,
}

impl Collected {
    /// What is told of it before anything is compared.
    pub(super) fn report(
        &self,
        comparison: &Comparison,
        request: &ReconcileRequest,
    ) -> ReconcileReport {
        let position = self.position.iter().map(|cut| cut.next_offset);
        ReconcileReport {
            view: comparison.job.name().to_owned(),
            expected: request.expected.to_string(),
            epoch: comparison.epoch,
            position: position.collect(),
            live_unknown: self.live_unknown.clone(),
            disk_bytes: self.disk_bytes,
            ..ReconcileReport::of(comparison.job.source())
        }
    }
}

impl Batch {
    /// What there is to be compared now, and what a person should know of it.
    pub(super) async fn comparison(
        &self,
        job: &Arc<Job>,
        scope: &Arc<Scope>,
        results: &Results<'_>,
    ) -> Result<(Comparison, Vec<String>)> {
        let source = job.source();
        let seen = self.ports.views.runs(source).await?;
        let table = find_table_to_read(&seen.complete_epochs, job.view());
        let run = seen.runs.get(table.newest).cloned().ok_or_else(|| {
            Error::NotReady(format!(
                "no run of {source} has published rows of {} yet: run `backstitch batch run` first",
                job.name()
            ))
        })?;
        let mut warnings = Vec::new();
        if let Some(open) = seen.runs.open_run() {
            warnings.push(format!(
                "run {} is not complete. Answers are correct meanwhile, but keys that it has written are skipped here; finish it with `backstitch batch run`",
                open.epoch
            ));
        }
        let mut archiver = self.archiver(source).await?;
        let (of, _) = self.read_generation(archiver.version()).await?;
        if of.erasures != table.generation.erasures {
            return Err(Error::NotReady(
                "the published rows may name a person who was erased: finish the erasure (`backstitch erase`, or `backstitch batch run`), then compare"
            .to_owned()));
        }
        if of.backfills != table.generation.backfills {
            return Err(Error::NotReady(
                "the published rows do not include a backfill yet: run `backstitch batch run` first, then compare"
            .to_owned()));
        }
        archiver.verify_log().await?;
        verify_cuts(&self.ports, source, &run.cuts).await?;
        let version = archiver.version();
        let (files, expired) = version.read_contents(&self.ports.archive, source).await?;
        let mut with_events = files.iter().filter(|file| file.path.is_some());
        if with_events.any(|file| file.redacted_through < of.erasures) {
            return Err(Error::NotReady(
                "archive files may name people who were erased, for example after an older copy was restored: run `backstitch batch run` to redact them, then compare"
            .to_owned()));
        }
        let chain = chain(&self.catalog, job)?;
        let kept = self.kept(results, (&chain, of), (expired, &run.cuts), scope);
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
                    files: Arc::new(files),
                    kept: Arc::new(kept),
                    chain,
                    task_rows_max: self.options.task_rows_max,
                },
            },
            warnings,
        ))
    }

    /// Collects all sides: live state first, then the rows, and then the events up to where live state stood.
    pub(super) async fn collect_sides(
        &self,
        comparison: &Comparison,
        claims: Option<Claims>,
        stages: &mut Stages<'_>,
        stop: &CancellationToken,
    ) -> Result<Collected> {
        let Comparison { job, scope, .. } = comparison;
        let source = job.source();
        let folder = self.engine.create_scratch_folder()?;
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
        let partitions = self.read_checked_log_ends(source).await?.len();
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
                let why = "too many events arrived while live state was read";
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
            return Err(Error::NotReady(format!(
                "cannot compare with the expected values, because the served values are unknown: {why}"
            )));
        }
        self.batch_events(comparison, &sides, stages, stop).await?;
        let files = sides.end()?;
        let sizes = files.iter().map(|file| file.metadata().map(|of| of.len()));
        let disk_bytes = sizes.map(|size| size.unwrap_or(0)).sum();
        tracing::debug!(disk_bytes, "comparison data spilled to disk");
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
        recount
            .add(side, &days, (&to, &RecordFilter::First), told)
            .await?;
        Ok(())
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
        stages.begin("archive", archiver.lag(&offsets));
        archiver.archive_up_to(&ends, stages.progress, stop).await?;
        check_stop(stop)?;
        let version = archiver.version();
        let (of, _) = self.read_generation(version).await?;
        if of.erasures != comparison.of.erasures {
            return Err(Error::NotReady(
                "a person was erased during the comparison: compare again after the erasure has finished"
            .to_owned()));
        }
        let archive = &self.ports.archive;
        let (files, _) = version.read_contents(archive, live.source).await?;
        let recount = Recount {
            files: Arc::new(files),
            ..comparison.recount.clone()
        };
        stages.begin("live events", 0);
        let engine = (&self.engine, &self.catalog);
        let told = (stages.progress, stop);
        live.add_events(engine, &recount, (read, &comparison.cuts), sides, told)
            .await
    }
}
