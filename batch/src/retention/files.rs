//! What has a limit of its own, which the runs keep to: results, snapshots, live epochs, records of runs.

use std::collections::{BTreeMap, BTreeSet};

use jobs::Layers;
use jobs::tables::table_name;
use schemas::source::{Source, SourceKind};
use stores::lease::Held as Lease;
use stores::views::{RUNS_KEPT, TableResults};
use tokio_util::sync::CancellationToken;

use super::events::unfinished;
use super::report::shown_ms;
use super::{Amount, Doing, Kind, KindReport, Retention, busy};
use crate::Result;
use crate::archive::Version;
use crate::board::BoardManifest;
use crate::results::{Manifest, Results};
use crate::run::while_held;
use crate::tally::ViewManifest;

/// The lease of who only looks: with it nothing can be deleted.
#[derive(Debug)]
pub(super) struct Nobodys;

impl Lease for Nobodys {
    fn lost(&self) -> CancellationToken {
        let lost = CancellationToken::new();
        lost.cancel();
        lost
    }
}

impl Retention {
    /// Results: those of which a table holds rows stay.
    pub(super) async fn results(
        &self,
        source: Source,
        doing: Doing,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        match source.kind() {
            SourceKind::Facts => self.results_of::<ViewManifest>(source, doing, stop).await,
            SourceKind::Entities => self.results_of::<BoardManifest>(source, doing, stop).await,
        }
    }

    async fn results_of<M: Manifest>(
        &self,
        source: Source,
        doing: Doing,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        let policy = "those of which a table holds rows";
        let mut report = KindReport::new(Kind::Results, Some(source), policy.to_owned());
        let held = match doing {
            Doing::Looking => None,
            Doing::Deleting => match busy(self.batch.lease(source).await)? {
                Ok(held) => Some(held),
                Err(why) => {
                    self.look_at_results::<M>(source, &mut report).await?;
                    report.hold_all_back(&why);
                    return Ok(report);
                }
            },
        };
        let stop = stop.child_token();
        let work = async {
            self.look_at_results::<M>(source, &mut report).await?;
            let Some(held) = &held else { return Ok(()) };
            let results = Results {
                archive: &self.batch.ports.archive,
                source,
                lease: &**held,
            };
            self.batch.remove_others::<M>(&results, &stop).await?;
            report.went = report.would_go.clone();
            Ok(())
        };
        let done = match &held {
            Some(held) => while_held(&**held, &stop, Box::pin(work)).await,
            None => work.await,
        };
        if let Some(held) = held {
            held.let_go().await;
        }
        done.map(|()| report)
    }

    async fn look_at_results<M: Manifest>(
        &self,
        source: Source,
        report: &mut KindReport,
    ) -> Result<()> {
        let archive = &self.batch.ports.archive;
        let results = Results {
            archive,
            source,
            lease: &Nobodys,
        };
        // Listed first: what a run makes meanwhile is not among these, so it is not taken for an old one.
        let objects = archive.objects(&format!("results/{source}")).await?;
        let tables: BTreeMap<String, TableResults> = self.batch.ports.views.results(source).await?;
        let held = results.held::<M>(&tables).await?;
        let named: BTreeSet<String> = results.named(&held);
        let oldest_ms = objects.iter().map(|object| object.written_at_ms).min();
        report.held.oldest = oldest_ms.and_then(shown_ms);
        for object in &objects {
            report.held.add(object.bytes);
            if !named.contains(&object.path) {
                report.would_go.add(object.bytes);
            }
        }
        Ok(())
    }

    /// Snapshots: the newest stays, the next run makes another one.
    pub(super) async fn snapshots(&self, source: Source) -> Result<KindReport> {
        let policy = "the newest, until the next run takes one";
        let mut report = KindReport::new(Kind::Snapshots, Some(source), policy.to_owned());
        let folder = format!("snapshots/{source}");
        let objects = self.batch.ports.archive.objects(&folder).await?;
        let oldest_ms = objects.iter().map(|object| object.written_at_ms).min();
        report.held.oldest = oldest_ms.and_then(shown_ms);
        for object in &objects {
            report.held.add(object.bytes);
        }
        Ok(report)
    }

    /// Live epochs: a run lets go of those that all views hold.
    pub(super) async fn live_epochs(&self, source: Source) -> Result<KindReport> {
        let ports = &self.batch.ports;
        let policy = "until every view holds them: the run lets them go after batch.grace_ms";
        let mut report = KindReport::new(Kind::LiveEpochs, Some(source), policy.to_owned());
        // Records of runs before slots, as readers do: a slot is never behind them then.
        let seen = ports.views.runs(source).await?;
        let partitions = ports.log.partitions(source.topic()).await?;
        let slots = ports.live.partition_states(source, 0..partitions).await?;
        let version = Version::newest(&ports.archive, source).await?;
        let (of, _) = self.batch.generation(&version).await?;
        let tallies = self.batch.catalog.of_layer(source, Layers::Batch);
        let tallies = tallies.map(|job| table_name(job.view(), of));
        let boards = self.batch.catalog.boards_of_layer(source, Layers::Batch);
        let views = tallies.chain(boards.map(|job| job.view().to_owned()));
        let newest = views.map(|view| seen.newest.get(&view).copied().unwrap_or(0));
        let newest = newest.min().unwrap_or(0);
        let mut waiting = 0;
        for slot in slots.iter().flatten() {
            report.held.count += (slot.epoch + 1).saturating_sub(slot.oldest);
            report.would_go.count += (newest + 1).min(slot.epoch).saturating_sub(slot.oldest);
            waiting += slot.epoch.saturating_sub(slot.oldest.max(newest + 1));
        }
        if let Some(why) = unfinished(&seen.runs) {
            report.hold_back(waiting, None, &why);
        }
        if report.would_go.count > 0 {
            let what = "the next batch run lets go of what a run left that ended early";
            report.warnings.push(what.to_owned());
        }
        Ok(report)
    }

    /// Records of runs, with their reports: so many of the newest.
    pub(super) async fn run_records(&self, source: Source) -> Result<KindReport> {
        let policy = format!("the newest {RUNS_KEPT}");
        let mut report = KindReport::new(Kind::RunRecords, Some(source), policy);
        let newest = self.batch.ports.views.stories(source, None, 1).await?;
        let last = newest.first().map_or(0, |story| story.run.epoch);
        report.held = Amount::counted(last.min(RUNS_KEPT), None);
        Ok(report)
    }
}
