//! A run of a source of entities, from beginning to end.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use jobs::tables::Generation;
use jobs::{Board, Job, Layers};
use schemas::key::KeyValue;
use schemas::source::Source;
use stores::lease::Held as Lease;
use stores::views::{BoardShape, ViewShape};
use tokio_util::sync::CancellationToken;

use super::check::check;
use super::compute::Compute;
use super::drift::{Comparison, Stretch};
use super::held_back::HeldBack;
use super::history::History;
use super::manifest::BoardManifest;
use super::planning::{Plan, plan};
use super::publish::{Published, Publisher};
use super::tasks;
use super::told::Waited;
use crate::drift::Drift;
use crate::report::{RunReport, Stages};
use crate::results::{Results, names_of, result_name};
use crate::run::{Batch, behind, go_on, while_held};
use crate::snapshot::{Snapshot, SnapshotReport, Taking};
use crate::{Error, Progress, Result, RunRequest};

/// Nodes that are deleted in one step: others can write in between.
const COLLECT_NODES: usize = 2_000;

impl Batch {
    /// Runs the boards of a source.
    pub(crate) async fn run_boards(
        &self,
        results: &Results<'_>,
        request: &RunRequest,
        stages: &mut Stages<'_>,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        stages.begin("seal", 0);
        let (plan, mut report) = self.plan_boards(results, request, stop).await?;
        stages.begin("snapshot", 0);
        let taking = self.taking(results.source, results.lease);
        let (snapshot, taken) = taking
            .take(plan.keys.as_ref(), stages.progress, stop)
            .await?;
        report.rows_read = snapshot.rows();
        stages.begin("compute", report.rows_read);
        let mut manifests = self
            .compute_boards(results, &plan, &snapshot, (stages.progress, stop))
            .await?;
        stages.begin("check", 0);
        let (views, rows_min) = (&*self.ports.views, self.options.check_rows_min);
        let faults = check(views, &plan, &snapshot, &mut manifests, rows_min).await?;
        self.judge::<BoardManifest>(results, request, faults, &mut report, stop)
            .await?;
        stages.begin("wait", 0);
        let (held, unknown) = self.hold_back(&plan, &mut report, stop).await?;
        for manifest in manifests.values_mut() {
            let is_changed = held
                .get(&manifest.view)
                .is_some_and(|held| !held.is_empty());
            // The next run counts what there is.
            manifest.view_rows = manifest.view_rows.filter(|_| !is_changed);
            results.create(manifest).await?;
        }
        stages.begin("publish", manifests.values().map(BoardManifest::rows).sum());
        let stamp_us = self
            .publish_boards(
                request,
                &plan,
                &manifests,
                (&held, unknown.as_deref()),
                &mut report,
                (stages.progress, stop),
            )
            .await?;
        // Whatever fails from here on, the run is published, and the next one tidies up.
        let with = (results, &taking, &taken);
        let told = (&mut report, stages);
        let outcome = self
            .after_boards(request, (&plan, stamp_us), with, told, stop)
            .await;
        Self::warn_after(results.source, outcome, &mut report);
        Ok(report)
    }

    /// Waits for the speed layer. By view: what is published of members to whose changes it has not come; and why some of
    /// that is not known.
    async fn hold_back(
        &self,
        plan: &Plan,
        report: &mut RunReport,
        stop: &CancellationToken,
    ) -> Result<(BTreeMap<String, Arc<HeldBack>>, Option<String>)> {
        let (source, cuts) = (plan.source, &plan.run.cuts);
        // Before the log's end is looked at: then each is in one of both.
        let unsent = self.unsent(source).await?;
        let waited = self.wait_for_speed(source, cuts, stop).await?;
        go_on(stop)?;
        let Waited {
            counted,
            ends,
            warnings,
        } = waited;
        report.warnings.extend(warnings);
        let groups = self.uncounted(source, (&counted, &ends), unsent).await?;
        let mut why = groups.is_none().then(|| "they are too many".to_owned());
        let mut gone = counted.iter().zip(&ends).zip(cuts);
        if gone.any(|((counted, end), cut)| counted.is_none() && *end > cut.next_offset) {
            why = Some("there is no live state".to_owned());
        }
        if ends.len() > cuts.len() {
            why = Some("partitions were added meanwhile".to_owned());
        }
        let groups = groups.filter(|_| ends.len() <= cuts.len());
        let mut groups = groups.unwrap_or_default();
        // What stands of those who were erased goes, also where nobody has come to it.
        let suppressed = self.ports.suppressions.now().await?;
        groups.retain(|group| !suppressed.has_athlete(group.member));
        let mut held = BTreeMap::new();
        let told = plan
            .wanted()
            .filter(|view| view.job.layers() == Layers::Both);
        for view in told.filter(|_| !groups.is_empty()) {
            let of_view = self.held_back(&view.job, plan, &groups, stop).await?;
            why = why.or(of_view.why);
            held.insert(view.job.view().to_owned(), Arc::new(of_view.held));
        }
        if let Some(why) = &why {
            tracing::warn!(%source, why, "a run publishes changes of boards to which the speed layer has not come: they are told to nobody");
            report.warnings.push(format!(
                "changes of boards to which the speed layer has not come may be published by this run, and are told to nobody then: {why}"
            ));
        }
        Ok((held, why))
    }

    /// Publishes every wanted view, and records the run complete; answers the stamp.
    async fn publish_boards(
        &self,
        request: &RunRequest,
        plan: &Plan,
        manifests: &BTreeMap<String, BoardManifest>,
        (held, unknown): (&BTreeMap<String, Arc<HeldBack>>, Option<&str>),
        report: &mut RunReport,
        told: (&dyn Progress, &CancellationToken),
    ) -> Result<i64> {
        let (source, epoch) = (plan.source, plan.run.epoch);
        let names = names_of(manifests);
        let now_ms = self.ports.clock.now_ms();
        let stamp_us = self
            .ports
            .views
            .begin_publishing(source, epoch, &names, now_ms)
            .await?;
        let mut drift: Option<Drift> = None;
        for view in plan.wanted() {
            let Some(manifest) = manifests.get(view.job.name()) else {
                continue;
            };
            let at = (source, epoch, stamp_us);
            let history = History::begin(&self.ports, &view.job, at, view.is_doubtful);
            let publisher = Publisher {
                ports: &self.ports,
                source,
                epoch,
                stamp_us,
                threads: self.engine.threads(),
                editions: self.options.editions,
                history: history.await?,
                rewrite: encoded_keys(&view.job, &request.rewrite)?,
                forget_earlier: request.forget_earlier,
            };
            let of_view = held.get(view.job.view()).map(Arc::clone);
            let what = (manifest, &of_view.unwrap_or_default());
            let mut done = Published::default();
            if request.jobs.is_empty() && view.job.layers() == Layers::Both {
                let run = Stretch {
                    source,
                    epoch,
                    cuts: &plan.run.cuts,
                    is_again: view.is_doubtful,
                };
                let of_view = Comparison::begin(&self.ports, &view.job, run, unknown);
                done.comparison = Some(of_view.await?);
            }
            publisher.publish(&view.job, what, &mut done, told).await?;
            report.rows_written += done.written;
            report.rows_skipped += done.skipped;
            if let Some(comparison) = done.comparison {
                let (of_view, worst) = comparison.end().await;
                drift.get_or_insert_with(Drift::none).add(of_view, worst);
            }
        }
        report.drift = drift.unwrap_or_default();
        self.complete(source, request, (epoch, stamp_us), &names)
            .await?;
        Ok(stamp_us)
    }

    /// Takes a snapshot of all rows of a source.
    ///
    /// # Errors
    /// [`crate::Error::Busy`] while a run is under way, which has a snapshot of its own; those of the
    /// stores, and [`crate::Error::Stopped`].
    pub async fn snapshot(
        &self,
        source: Source,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<SnapshotReport> {
        let held = self.lease(source).await?;
        let stop = &stop.child_token();
        let work = async {
            let taking = self.taking(source, &*held);
            progress.stage("snapshot", 0);
            let (_, report) = taking.take(None, progress, stop).await?;
            go_on(stop)?;
            taking.remove_others(&report, stop).await?;
            Ok(report)
        };
        let done = while_held(&*held, stop, Box::pin(work)).await;
        held.let_go().await;
        done
    }

    pub(crate) fn taking<'a>(&'a self, source: Source, lease: &'a dyn Lease) -> Taking<'a> {
        Taking {
            canon: &*self.ports.canon,
            archive: &self.ports.archive,
            lease,
            source,
            taken_at_ms: self.ports.clock.now_ms(),
            rows_max: self.options.snapshot_rows_max,
        }
    }

    /// Ends the epoch, and plans what is to be computed.
    async fn plan_boards(
        &self,
        results: &Results<'_>,
        request: &RunRequest,
        stop: &CancellationToken,
    ) -> Result<(Plan, RunReport)> {
        let source = results.source;
        let jobs = self.catalog.boards_of_layer(source, Layers::Batch);
        let jobs: Vec<Arc<Job<Board>>> = jobs.map(Arc::clone).collect();
        let names: Vec<&str> = jobs.iter().map(|job| job.name()).collect();
        Self::check_names(&names, request)?;
        // Rows have no backfills.
        self.make_tables(source, Generation::default()).await?;
        let ends = self.log_ends(source).await?;
        let run = self.the_run(source, request, ends.len(), stop).await?;
        // What a try that died had not begun to publish is deleted.
        let mut held = self.remove_others(results, stop).await?;
        self.ports.archive.tidy().await?;
        let log = (&*self.ports.log, &*self.ports.schemas);
        let plan = plan(log, source, request, run, jobs, &mut held).await?;
        let names = plan.wanted().map(|view| view.job.name().to_owned());
        let report = RunReport {
            epoch: plan.run.epoch,
            cuts: plan.run.cuts.iter().map(|cut| cut.next_offset).collect(),
            jobs: names.collect(),
            full: plan.keys.is_none(),
            warnings: behind(source, &plan.run.cuts, &ends),
            ..RunReport::default()
        };
        Ok((plan, report))
    }

    /// Computes the wanted views: by job name, what is to be published.
    async fn compute_boards(
        &self,
        results: &Results<'_>,
        plan: &Plan,
        snapshot: &Snapshot,
        told: (&dyn Progress, &CancellationToken),
    ) -> Result<BTreeMap<String, BoardManifest>> {
        let compute = Arc::new(Compute {
            engine: self.engine.clone(),
            archive: self.ports.archive.clone(),
            files: format!("{}/{:010}", results.data_folder(), plan.run.epoch),
            result_bytes_max: self.options.result_bytes_max,
            jobs: plan.wanted().map(|view| Arc::clone(&view.job)).collect(),
        });
        let files = tasks::compute(&compute, &self.executor(), snapshot, told).await?;
        let manifests = compute.jobs.iter().zip(files).map(|(job, stretches)| {
            let manifest = BoardManifest {
                view: job.view().to_owned(),
                epoch: plan.run.epoch,
                result: result_name(plan.run.epoch),
                cuts: plan.run.cuts.clone(),
                keys: plan.keys.clone(),
                stretches,
                view_rows: None,
            };
            (job.name().to_owned(), manifest)
        });
        Ok(manifests.collect())
    }

    /// What follows once a run is published: what nobody reads any more is let go.
    async fn after_boards(
        &self,
        request: &RunRequest,
        (plan, stamp_us): (&Plan, i64),
        (results, taking, taken): (&Results<'_>, &Taking<'_>, &SnapshotReport),
        told: (&mut RunReport, &mut Stages<'_>),
        stop: &CancellationToken,
    ) -> Result<()> {
        let source = plan.source;
        let keep = plan.view_names();
        let published = (source, (plan.run.epoch, stamp_us), &*keep);
        if !self.forget_others(request, published, told, stop).await? {
            return Ok(());
        }
        self.collect(plan, stamp_us, stop).await?;
        let partitions = plan.run.cuts.len();
        self.drop_epochs(source, &keep, partitions, stop).await?;
        if stop.is_cancelled() {
            return Ok(());
        }
        taking.remove_others(taken, stop).await?;
        self.remove_others::<BoardManifest>(results, stop).await?;
        Ok(())
    }

    /// Deletes the nodes that no head leads to any more, also those that runs before did not come to.
    async fn collect(&self, plan: &Plan, stamp_us: i64, stop: &CancellationToken) -> Result<()> {
        let (views, at) = (&self.ports.views, (plan.run.epoch, stamp_us));
        for view in plan.view_names() {
            while !stop.is_cancelled()
                && views
                    .collect_garbage(plan.source, &view, at, COLLECT_NODES)
                    .await?
                    == COLLECT_NODES
            {}
        }
        Ok(())
    }
}

/// Keys of boards, encoded.
fn encoded_keys(job: &Job<Board>, keys: &BTreeSet<i64>) -> Result<HashSet<Vec<u8>>> {
    let encoded = keys.iter().map(|key| encoded_key(job, *key));
    encoded.collect()
}

pub(crate) fn encoded_key(job: &Job<Board>, key: i64) -> Result<Vec<u8>> {
    let key = job.key().encode_values(&[KeyValue::Int(key)]);
    key.map_err(|e| Error::fault("encoding a key", e))
}

pub(crate) fn shape(job: &Job<Board>) -> ViewShape {
    ViewShape::Board(BoardShape {
        view: job.view().to_owned(),
        key: job.key().clone(),
        boards: job.boards().clone(),
        member: job.member().clone(),
        score: job.score().clone(),
        payload: job.payload().clone(),
    })
}
