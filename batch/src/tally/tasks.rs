//! The tasks of a run: which there are, in which order, and what becomes of what they give.
//!
//! Days are computed first, some of them together in a task, every view of a day from the one below it; months and all
//! time follow from what the days gave.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemas::time::BucketWidth;
use tokio_util::sync::CancellationToken;

use super::compute::{Compute, Computed, Manifests, View};
use super::result::{ViewManifest, Written};
use super::shared::Shared;
use crate::archive::plan_day_tasks;
use crate::error::stage_mismatch;
use crate::executor::Executor;
use crate::results::result_name;
use crate::task::{self, Output, Task};
use crate::{Error, Progress, Result};

/// Computes every wanted view.
pub(crate) async fn compute(
    compute: &Arc<Compute>,
    executor: &Executor,
    told: (&dyn Progress, &CancellationToken),
) -> Result<Computed> {
    let mut computed = start(compute);
    days(compute, executor, &mut computed, told).await?;
    let coarse = compute.plan.wanted();
    let mut waiting: Vec<&View> = coarse
        .filter(|view| view.job.time_partition() > BucketWidth::Day)
        .collect();
    while !waiting.is_empty() {
        let is_waiting = |name| waiting.iter().any(|view| view.job.name() == name);
        let (later, ready): (Vec<&View>, Vec<&View>) = waiting
            .iter()
            .partition(|view| view.job.input_job().is_some_and(is_waiting));
        if ready.is_empty() {
            return Err(Error::Fault("jobs that read from each other".to_owned()));
        }
        let tasks = ready.iter().map(|view| view.job.name().to_owned());
        let shared = shared(compute, needed(&ready, &computed.manifests));
        let take = |task, output| {
            let (Task::Coarse(name), Output::Coarse(written)) = (task, output) else {
                return Err(stage_mismatch());
            };
            take(&mut computed, &name, written);
            Ok(())
        };
        let tasks = tasks.map(Task::Coarse).collect();
        executor.run(shared, tasks, told.1, take).await?;
        waiting = later;
    }
    Ok(computed)
}

/// Computes all jobs whose pieces are days.
async fn days(
    compute: &Arc<Compute>,
    executor: &Executor,
    computed: &mut Computed,
    (progress, stop): (&dyn Progress, &CancellationToken),
) -> Result<()> {
    let plan = &compute.plan;
    let tasks = plan_day_tasks(&plan.days, compute.task_rows_max).into_iter();
    let take = |task, output| {
        let (Task::Days(days), Output::Days(of_days)) = (task, output) else {
            return Err(stage_mismatch());
        };
        for (name, written) in of_days.written {
            take(computed, &name, written);
        }
        let totals = of_days.totals;
        computed.totals.events += totals.events;
        computed.totals.duplicates += totals.duplicates;
        computed.totals.amounts.extend(totals.amounts);
        let records = days.iter().filter_map(|day| plan.days.get(day));
        progress.advance(records.sum());
        Ok(())
    };
    let shared = shared(compute, Manifests::new());
    let tasks = tasks.map(|(days, _)| Task::Days(days)).collect();
    executor.run(shared, tasks, stop, take).await
}

fn shared(compute: &Arc<Compute>, computed: Manifests) -> task::StageInput {
    task::StageInput::Aggregates(Box::new(Shared {
        compute: Arc::clone(compute),
        computed: Arc::new(computed),
        publisher: None,
    }))
}

/// The manifests as they are before anything is computed.
fn start(compute: &Compute) -> Computed {
    let plan = &compute.plan;
    let mut manifests = Manifests::new();
    for view in plan.wanted() {
        let kept = view.published.as_ref().filter(|_| !plan.full);
        let mut manifest = ViewManifest {
            view: view.table.clone(),
            epoch: plan.epoch,
            result: result_name(plan.epoch),
            cuts: plan.cuts.clone(),
            pieces: kept.map(|old| old.pieces.clone()).unwrap_or_default(),
            touched: plan.touched(view),
        };
        for start in &manifest.touched {
            manifest.pieces.remove(start);
        }
        manifests.insert(view.job.name().to_owned(), manifest);
    }
    Computed {
        manifests: Arc::new(manifests),
        ..Computed::default()
    }
}

/// What views need of what was computed before: their own manifests, and those of the views that they read from.
fn needed(views: &[&View], manifests: &Manifests) -> Manifests {
    let own = views.iter().map(|view| view.job.name());
    let below = views.iter().filter_map(|view| view.job.input_job());
    let names: BTreeSet<&str> = own.chain(below).collect();
    let needed = manifests
        .iter()
        .filter(|(name, _)| names.contains(name.as_str()));
    needed
        .map(|(name, manifest)| (name.clone(), manifest.clone()))
        .collect()
}

fn take(computed: &mut Computed, name: &str, written: Written) {
    if let Some(manifest) = Arc::make_mut(&mut computed.manifests).get_mut(name) {
        manifest.pieces.extend(written.pieces);
    }
}
