//! Data with a fixed limit that batch runs enforce: results, snapshots, live epochs, run records.

use std::collections::{BTreeMap, BTreeSet};

use jobs::Layers;
use jobs::tables::table_name;
use schemas::source::{Source, SourceKind};
use stores::views::{RUN_RECORDS_MAX, TableResults};
use tokio_util::sync::CancellationToken;

use super::events::unfinished_run_reason;
use super::no_lease::NoLease;
use super::policy::{Mode, Retention, or_busy_reason};
use super::report::{Amount, DataKind, KindReport, format_ms};
use crate::Result;
use crate::archive::Version;
use crate::board::BoardManifest;
use crate::lease::run_under_lease;
use crate::results::{Manifest, Results};
use crate::tally::ViewManifest;

impl Retention {
    /// Reports results, and deletes those that no table refers to.
    pub(super) async fn process_results(
        &self,
        source: Source,
        mode: Mode,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        match source.kind() {
            SourceKind::Events => {
                self.process_results_with::<ViewManifest>(source, mode, stop)
                    .await
            }
            SourceKind::Entities => {
                self.process_results_with::<BoardManifest>(source, mode, stop)
                    .await
            }
        }
    }

    async fn process_results_with<M: Manifest>(
        &self,
        source: Source,
        mode: Mode,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        let policy = "while a table refers to them";
        let mut report = KindReport::new(DataKind::Results, Some(source), policy.to_owned());
        let lease = match mode {
            Mode::Report => None,
            Mode::Delete => match or_busy_reason(self.batch.acquire_run_lease(source).await)? {
                Ok(lease) => Some(lease),
                Err(reason) => {
                    self.report_results::<M>(source, &mut report).await?;
                    report.retain_all(&reason);
                    return Ok(report);
                }
            },
        };
        let stop = stop.child_token();
        let work = async {
            self.report_results::<M>(source, &mut report).await?;
            let Some(lease) = &lease else { return Ok(()) };
            let results = Results {
                archive: &self.batch.ports.archive,
                source,
                lease: &**lease,
            };
            self.batch
                .delete_unreferenced_results::<M>(&results, &stop)
                .await?;
            report.deleted = report.eligible.clone();
            Ok(())
        };
        let outcome = match &lease {
            Some(lease) => run_under_lease(&**lease, &stop, Box::pin(work)).await,
            None => work.await,
        };
        if let Some(lease) = lease {
            lease.release().await;
        }
        outcome.map(|()| report)
    }

    async fn report_results<M: Manifest>(
        &self,
        source: Source,
        report: &mut KindReport,
    ) -> Result<()> {
        let archive = &self.batch.ports.archive;
        let results = Results {
            archive,
            source,
            lease: &NoLease,
        };
        // List before reading the tables, so that results of a concurrent run do not count as old
        // ones.
        let objects = archive.list_objects(&format!("results/{source}")).await?;
        let tables: BTreeMap<String, TableResults> = self.batch.ports.views.results(source).await?;
        let states = results.read_published_states::<M>(&tables).await?;
        let referenced: BTreeSet<String> = results.referenced_paths(&states);
        let oldest_ms = objects.iter().map(|object| object.written_at_ms).min();
        report.stored.oldest = oldest_ms.and_then(format_ms);
        for object in &objects {
            report.stored.add(object.size_bytes);
            if !referenced.contains(&object.path) {
                report.eligible.add(object.size_bytes);
            }
        }
        Ok(())
    }

    /// Reports snapshots. A run keeps only its own.
    pub(super) async fn report_snapshots(&self, source: Source) -> Result<KindReport> {
        let policy = "the newest, until the next run takes one";
        let mut report = KindReport::new(DataKind::Snapshots, Some(source), policy.to_owned());
        let folder = format!("snapshots/{source}");
        let objects = self.batch.ports.archive.list_objects(&folder).await?;
        let oldest_ms = objects.iter().map(|object| object.written_at_ms).min();
        report.stored.oldest = oldest_ms.and_then(format_ms);
        for object in &objects {
            report.stored.add(object.size_bytes);
        }
        Ok(report)
    }

    /// Reports live epochs. A run prunes those that all views include.
    pub(super) async fn report_live_epochs(&self, source: Source) -> Result<KindReport> {
        let ports = &self.batch.ports;
        let policy = "until every view includes them: the run prunes them after batch.grace_ms";
        let mut report = KindReport::new(DataKind::LiveEpochs, Some(source), policy.to_owned());
        // Read run records before partition states, as readers do. Then a partition state is never
        // behind them.
        let runs = ports.views.runs(source).await?;
        let partitions = ports.log.partition_count(source.topic()).await?;
        let states = ports.live.partition_states(source, 0..partitions).await?;
        let version = Version::read_newest(&ports.archive, source).await?;
        let (generation, _) = self.batch.read_generation(&version).await?;
        let aggregates = self.batch.catalog.jobs_in_layer(source, Layers::Batch);
        let aggregates = aggregates.map(|job| table_name(job.view(), generation));
        let boards = self.batch.catalog.boards_in_layer(source, Layers::Batch);
        let views = aggregates.chain(boards.map(|job| job.view().to_owned()));
        let newest = views.map(|view| runs.complete_epochs.get(&view).copied().unwrap_or(0));
        let newest = newest.min().unwrap_or(0);
        let mut waiting = 0;
        for state in states.iter().flatten() {
            report.stored.count += (state.epoch + 1).saturating_sub(state.oldest);
            report.eligible.count += (newest + 1).min(state.epoch).saturating_sub(state.oldest);
            waiting += state.epoch.saturating_sub(state.oldest.max(newest + 1));
        }
        if let Some(reason) = unfinished_run_reason(&runs.runs) {
            report.retain(waiting, None, &reason);
        }
        if report.eligible.count > 0 {
            let warning = "an interrupted run left live epochs; the next batch run prunes them";
            report.warnings.push(warning.to_owned());
        }
        Ok(report)
    }

    /// Reports run records with their reports; the newest `RUN_RECORDS_MAX` remain.
    pub(super) async fn report_run_records(&self, source: Source) -> Result<KindReport> {
        let policy = format!("the newest {RUN_RECORDS_MAX}");
        let mut report = KindReport::new(DataKind::RunRecords, Some(source), policy);
        let newest = self
            .batch
            .ports
            .views
            .list_run_details(source, None, 1)
            .await?;
        let last = newest.first().map_or(0, |run| run.run.epoch);
        report.stored = Amount::new(last.min(RUN_RECORDS_MAX), None);
        Ok(report)
    }
}
