//! Expires old events: the identities of a file's events stay, and the results still count them.
//!
//! A file expires as a whole, once all of its events are of old days, published results hold them, and nothing is
//! unfinished that may need them again. Whatever would need the events later is refused.

use std::collections::BTreeMap;

use jobs::tables::{Generation, table_name};
use jobs::{Job, Layers, Tally};
use schemas::seam::{Cut, RunState, Runs};
use schemas::source::Source;
use schemas::time::{Width, day_of};
use stores::archive::StoredObject;
use stores::lease::Held as Lease;
use tokio_util::sync::CancellationToken;

use super::{Doing, Kind, KindReport, Retention, busy, policy_of};
use crate::archive::{FileEntry, Version, expire, format_day, objects};
use crate::results::{Held, Results};
use crate::run::{expect_held, go_on, while_held};
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
    /// The events of a source.
    pub(super) async fn events(
        &self,
        source: Source,
        doing: Doing,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        if doing == Doing::Looking || self.options.archive_days == 0 {
            return Ok(self.old_events(source).await?.0);
        }
        // A backfill that comes to its end meanwhile would make all views anew.
        let name = format!("backfill-{source}");
        let what = format!("a backfill is under way for {source}");
        let apart = match busy(self.batch.acquire(&name, &what).await)? {
            Ok(apart) => apart,
            Err(why) => return self.held_back(source, &why).await,
        };
        let held = busy(self.batch.lease(source).await);
        let done = match held {
            Ok(Ok(held)) => {
                let stop = stop.child_token();
                let work = self.let_go(source, &*held, &stop);
                let done = while_held(&*held, &stop, Box::pin(work)).await;
                held.let_go().await;
                done
            }
            Ok(Err(why)) => self.held_back(source, &why).await,
            Err(error) => Err(error),
        };
        apart.let_go().await;
        done
    }

    /// What there is, where somebody is at work.
    async fn held_back(&self, source: Source, why: &str) -> Result<KindReport> {
        let (mut report, _) = self.old_events(source).await?;
        report.hold_all_back(why);
        Ok(report)
    }

    async fn let_go(
        &self,
        source: Source,
        lease: &dyn Lease,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        let archive = &self.batch.ports.archive;
        let backfills = Version::newest(archive, source).await?.backfills();
        let (mut report, old) = self.old_events(source).await?;
        for some in old.chunks(FILES_AT_ONCE) {
            go_on(stop)?;
            let files = some
                .iter()
                .map(|file| (file.object.path.clone(), file.object.bytes));
            let files: BTreeMap<String, u64> = files.collect();
            let now_ms = self.batch.ports.clock.now_ms();
            let expired = expire(archive, source, (&files, backfills), now_ms).await?;
            expect_held(lease).await?;
            for (path, bytes) in files.iter().filter(|(path, _)| expired.contains(*path)) {
                archive.delete(path).await?;
                tracing::info!(%source, path, "a file of old events expired");
                report.went.add(*bytes);
            }
        }
        Ok(report)
    }

    /// What there is of events, and the files that may go.
    async fn old_events(&self, source: Source) -> Result<(KindReport, Vec<EventFile>)> {
        let days = self.options.archive_days;
        let mut report = KindReport::new(Kind::Events, Some(source), policy_of(days));
        let archive = &self.batch.ports.archive;
        let version = Version::newest(archive, source).await?;
        let (of, _) = self.batch.generation(&version).await?;
        let (entries, _) = version.contents(archive, source).await?;
        let mut objects = objects(archive, source).await?;
        let expired = version
            .files()
            .iter()
            .filter_map(|file| file.expired.as_ref());
        let sizes = expired.map(|file| objects.get(file.identities()).map_or(0, |one| one.bytes));
        let expired: Vec<u64> = sizes.collect();
        let files = entries.into_iter().filter_map(|entry| {
            let object = objects.remove(entry.path.as_deref()?)?;
            Some(EventFile { entry, object })
        });
        let files: Vec<EventFile> = files.collect();
        for file in &files {
            report.held.add(file.object.bytes);
        }
        let first = files.iter().filter_map(EventFile::days).map(|days| days.0);
        report.held.oldest = first.min().map(format_day);
        if !expired.is_empty() {
            let (expired, bytes) = (expired.len(), expired.iter().sum::<u64>());
            report.warnings.push(format!(
                "files that expired before: {expired}; the identities of their events take {bytes} bytes. --full, new views and backfills need these files and are refused"
            ));
        }
        let mut old = Vec::new();
        if days == 0 {
            return Ok((report, old));
        }
        let covered = self.covered(source, of).await?;
        let horizon = day_of(self.before_ms(days).div_euclid(1_000));
        for file in files {
            let Some((first, last)) = file.days().filter(|(first, _)| *first < horizon) else {
                continue;
            };
            let bytes = Some(file.object.bytes);
            match &covered {
                _ if last >= horizon => {
                    let why = format!(
                        "they hold events of newer days too, the oldest from {}",
                        format_day(first)
                    );
                    report.hold_back(1, bytes, &why);
                }
                Err(why) => report.hold_back(1, bytes, why),
                Ok(cuts) if !file.entry.is_below(cuts) => {
                    report.hold_back(1, bytes, "no published result holds them yet");
                }
                Ok(_) => {
                    report.would_go.add(file.object.bytes);
                    old.push(file);
                }
            }
        }
        let first = old.iter().filter_map(EventFile::days).map(|days| days.0);
        report.would_go.oldest = first.min().map(format_day);
        Ok((report, old))
    }

    /// By partition, below what the published results hold everything; or why events can't go now.
    async fn covered(&self, source: Source, of: Generation) -> Result<Result<Vec<Cut>, String>> {
        let views = &self.batch.ports.views;
        if let Some(why) = unfinished(&views.runs(source).await?.runs) {
            return Ok(Err(why));
        }
        let results = Results {
            archive: &self.batch.ports.archive,
            source,
            lease: &super::files::Nobodys,
        };
        let tables = views.results(source).await?;
        let held = results.held::<ViewManifest>(&tables).await?;
        let mut cuts: Option<&Vec<Cut>> = None;
        for job in self.batch.catalog.of_layer(source, Layers::Batch) {
            let published = match whole(job, held.get(&table_name(job.view(), of))) {
                Ok(published) => published,
                Err(why) => return Ok(Err(why)),
            };
            if job.over().is_some() {
                continue;
            }
            if job.piece() != Width::Day {
                return Ok(Err(format!(
                    "{} is made of the events of more than a day",
                    job.name()
                )));
            }
            if cuts.is_some_and(|cuts| *cuts != published.cuts) {
                return Ok(Err(
                    "views hold different stretches of the log: the next batch run puts that right"
                        .to_owned(),
                ));
            }
            cuts = Some(&published.cuts);
        }
        let none = || Error::Fault(format!("no view of {source} is made of events"));
        Ok(Ok(cuts.ok_or_else(none)?.clone()))
    }
}

/// Why a run is not at its end, and what to do.
pub(super) fn unfinished(runs: &Runs) -> Option<String> {
    if let Some(run) = runs.open() {
        return Some(format!(
            "run {} is {} and not finished: `backstitch batch run` finishes it",
            run.epoch,
            run.state.name()
        ));
    }
    let last = runs.iter().next_back()?;
    (last.state == RunState::Abandoned).then(|| {
        format!(
            "run {} was abandoned, and the next one covers its events: `backstitch batch run` makes it",
            last.epoch
        )
    })
}

/// The published result of a view that needs nothing but what came since; else why it may need all events.
fn whole<'a>(
    job: &Job<Tally>,
    held: Option<&'a Held<ViewManifest>>,
) -> Result<&'a ViewManifest, String> {
    let name = job.name();
    let held = held.ok_or_else(|| format!("{name} has no result yet: `backstitch batch run`"))?;
    if held.is_unknown {
        return Err(format!(
            "the rows of {name} are of a result that the archive lacks: the next batch run makes it anew, of all events"
        ));
    }
    if !held.dirty.is_empty() {
        return Err(format!(
            "a try that did not come to its end has written rows of {name}: `backstitch batch run` puts that right"
        ));
    }
    let published = held.published.as_ref();
    published.ok_or_else(|| format!("{name} has no result yet: `backstitch batch run`"))
}
