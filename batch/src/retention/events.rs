//! Expiry of old events. The identities of a file's events remain, and results still count them.
//!
//! A file expires as a whole, if all its events are from old days, published results include them,
//! and nothing unfinished may need them. Later work that needs the events is refused.

use std::collections::BTreeMap;

use jobs::tables::{TableGeneration, table_name};
use jobs::{AggregateView, Job, Layers};
use schemas::seam::{Cut, RunState, Runs};
use schemas::source::Source;
use schemas::time::{BucketWidth, utc_day};
use stores::archive::StoredObject;
use stores::lease::LeaseGuard as Lease;
use tokio_util::sync::CancellationToken;

use super::no_lease::NoLease;
use super::policy::{Mode, Retention, format_policy, or_busy_reason};
use super::report::{DataKind, KindReport};
use crate::archive::{FileEntry, Version, expire, format_day, list_parquet_files};
use crate::lease::{check_stop, run_under_lease, verify_lease};
use crate::results::{PublishedState, Results};
use crate::tally::ViewManifest;
use crate::{Error, Result};

/// Files that expire in one version of the archive.
const FILES_AT_ONCE: usize = 32;

/// A file of events.
struct EventFile {
    entry: FileEntry,
    object: StoredObject,
}

impl EventFile {
    fn days(&self) -> Option<(i64, i64)> {
        let first = self.entry.days.first_key_value()?;
        let last = self.entry.days.last_key_value()?;
        Some((*first.0, *last.0))
    }
}

impl Retention {
    /// Reports the events of a source, and expires old ones.
    pub(super) async fn process_events(
        &self,
        source: Source,
        mode: Mode,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        if mode == Mode::Report || self.options.archive_days == 0 {
            return Ok(self.find_old_events(source).await?.0);
        }
        // A backfill that ends meanwhile would cause all views to be recomputed.
        let name = format!("backfill-{source}");
        let work = format!("a backfill is under way for {source}");
        let backfill_lease = match or_busy_reason(self.batch.acquire_lease(&name, &work).await)? {
            Ok(backfill_lease) => backfill_lease,
            Err(reason) => return self.report_retained(source, &reason).await,
        };
        let lease = or_busy_reason(self.batch.acquire_run_lease(source).await);
        let outcome = match lease {
            Ok(Ok(lease)) => {
                let stop = stop.child_token();
                let work = self.expire_old_files(source, &*lease, &stop);
                let outcome = run_under_lease(&*lease, &stop, Box::pin(work)).await;
                lease.release().await;
                outcome
            }
            Ok(Err(reason)) => self.report_retained(source, &reason).await,
            Err(error) => Err(error),
        };
        backfill_lease.release().await;
        outcome
    }

    /// Reports the events while another process works on the source; none expire.
    async fn report_retained(&self, source: Source, reason: &str) -> Result<KindReport> {
        let (mut report, _) = self.find_old_events(source).await?;
        report.retain_all(reason);
        Ok(report)
    }

    async fn expire_old_files(
        &self,
        source: Source,
        lease: &dyn Lease,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        let archive = &self.batch.ports.archive;
        let backfills = Version::read_newest(archive, source).await?.backfills();
        let (mut report, old) = self.find_old_events(source).await?;
        for batch in old.chunks(FILES_AT_ONCE) {
            check_stop(stop)?;
            let files = batch
                .iter()
                .map(|file| (file.object.path.clone(), file.object.size_bytes));
            let files: BTreeMap<String, u64> = files.collect();
            let now_ms = self.batch.ports.clock.now_ms();
            let expired = expire(archive, source, &files, backfills, now_ms).await?;
            verify_lease(lease).await?;
            for (path, bytes) in files.iter().filter(|(path, _)| expired.contains(*path)) {
                archive.delete(path).await?;
                tracing::info!(%source, path, "archive file expired");
                report.deleted.add(*bytes);
            }
        }
        Ok(report)
    }

    /// Reports the events, and returns the files that may expire.
    async fn find_old_events(&self, source: Source) -> Result<(KindReport, Vec<EventFile>)> {
        let days = self.options.archive_days;
        let mut report = KindReport::new(DataKind::Events, Some(source), format_policy(days));
        let archive = &self.batch.ports.archive;
        let version = Version::read_newest(archive, source).await?;
        let (generation, _) = self.batch.read_generation(&version).await?;
        let (entries, _) = version.read_contents(archive, source).await?;
        let mut objects = list_parquet_files(archive, source).await?;
        let expired = version
            .files()
            .iter()
            .filter_map(|file| file.expired.as_ref());
        let sizes = expired.map(|file| {
            objects
                .get(file.identities())
                .map_or(0, |object| object.size_bytes)
        });
        let expired: Vec<u64> = sizes.collect();
        let files = entries.into_iter().filter_map(|entry| {
            let object = objects.remove(entry.path.as_deref()?)?;
            Some(EventFile { entry, object })
        });
        let files: Vec<EventFile> = files.collect();
        for file in &files {
            report.stored.add(file.object.size_bytes);
        }
        let first = files.iter().filter_map(EventFile::days).map(|days| days.0);
        report.stored.oldest = first.min().map(format_day);
        if !expired.is_empty() {
            let (expired, bytes) = (expired.len(), expired.iter().sum::<u64>());
            report.warnings.push(format!(
                "{expired} files have expired before; the identities of their events take {bytes} bytes. --full, new views and backfills need these files and are refused"
            ));
        }
        let mut old = Vec::new();
        if days == 0 {
            return Ok((report, old));
        }
        let published_cuts = self.published_cuts(source, generation).await?;
        let horizon = utc_day(self.days_ago_ms(days).div_euclid(1_000));
        for file in files {
            let Some((first, last)) = file.days().filter(|(first, _)| *first < horizon) else {
                continue;
            };
            let bytes = Some(file.object.size_bytes);
            match &published_cuts {
                _ if last >= horizon => {
                    let reason = format!(
                        "they contain events of newer days too, the oldest from {}",
                        format_day(first)
                    );
                    report.retain(1, bytes, &reason);
                }
                Err(reason) => report.retain(1, bytes, reason),
                Ok(cuts) if !file.entry.is_below(cuts) => {
                    report.retain(1, bytes, "no published result includes them yet");
                }
                Ok(_) => {
                    report.eligible.add(file.object.size_bytes);
                    old.push(file);
                }
            }
        }
        let first = old.iter().filter_map(EventFile::days).map(|days| days.0);
        report.eligible.oldest = first.min().map(format_day);
        Ok((report, old))
    }

    /// Returns the cuts of the published results, or the reason why no events can expire now.
    async fn published_cuts(
        &self,
        source: Source,
        generation: TableGeneration,
    ) -> Result<Result<Vec<Cut>, String>> {
        let views = &self.batch.ports.views;
        if let Some(reason) = unfinished_run_reason(&views.runs(source).await?.runs) {
            return Ok(Err(reason));
        }
        let results = Results {
            archive: &self.batch.ports.archive,
            source,
            lease: &NoLease,
        };
        let tables = views.results(source).await?;
        let states = results
            .read_published_states::<ViewManifest>(&tables)
            .await?;
        let mut cuts: Option<&Vec<Cut>> = None;
        for job in self.batch.catalog.jobs_in_layer(source, Layers::Batch) {
            let published =
                match published_result(job, states.get(&table_name(job.view(), generation))) {
                    Ok(published) => published,
                    Err(reason) => return Ok(Err(reason)),
                };
            if job.input_job().is_some() {
                continue;
            }
            if job.time_partition() != BucketWidth::Day {
                return Ok(Err(format!(
                    "the view {} computes time partitions longer than a day from events",
                    job.name()
                )));
            }
            if cuts.is_some_and(|cuts| *cuts != published.cuts) {
                return Ok(Err(
                    "views include different parts of the log: run `backstitch batch run`"
                        .to_owned(),
                ));
            }
            cuts = Some(&published.cuts);
        }
        let no_view = || Error::Fault(format!("no view of {source} is computed from events"));
        Ok(Ok(cuts.ok_or_else(no_view)?.clone()))
    }
}

/// Returns why a run is unfinished, and what to do.
pub(super) fn unfinished_run_reason(runs: &Runs) -> Option<String> {
    if let Some(run) = runs.open_run() {
        return Some(format!(
            "run {} is {} and not complete: finish it with `backstitch batch run`",
            run.epoch,
            run.state.name()
        ));
    }
    let last = runs.iter().next_back()?;
    (last.state == RunState::Abandoned).then(|| {
        format!(
            "run {} was abandoned, and the next run covers its events: run `backstitch batch run`",
            last.epoch
        )
    })
}

/// Returns the published result of a view that needs only later events; otherwise the reason why it
/// may need all events.
fn published_result<'a>(
    job: &Job<AggregateView>,
    state: Option<&'a PublishedState<ViewManifest>>,
) -> Result<&'a ViewManifest, String> {
    let name = job.name();
    let state =
        state.ok_or_else(|| format!("{name} has no result yet: run `backstitch batch run`"))?;
    if state.is_unknown {
        return Err(format!(
            "the archive lacks a result from which rows of {name} were written: the next batch run needs all events to compute it again"
        ));
    }
    if !state.dirty.is_empty() {
        return Err(format!(
            "an interrupted run has written rows of {name}: run `backstitch batch run`"
        ));
    }
    let published = state.published.as_ref();
    published.ok_or_else(|| format!("{name} has no result yet: run `backstitch batch run`"))
}
