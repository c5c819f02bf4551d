//! The tasks of a run: which there are, in which order, and what becomes of what they give.
//!
//! Days are computed first, some of them together in a task, every view of a day from the one below it; months and all
//! time follow from what the days gave.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use schemas::time::Width;
use tokio_util::sync::CancellationToken;

use super::compute::{Compute, Computed, Manifests, OfDays, View};
use super::note::Note;
use super::result::{ViewManifest, Written};
use crate::errand::{Errand, Outcome};
use crate::hands::{Hands, Work};
use crate::results::result_name;
use crate::{Error, Progress, Result};

/// Has every wanted view computed.
pub(crate) async fn compute(
    compute: &Arc<Compute>,
    hands: &Hands,
    told: (&dyn Progress, &CancellationToken),
) -> Result<Computed> {
    let shared = || Note::of(compute);
    let note = hands.note(&compute.archive, &compute.files, shared).await?;
    let tasks = Tasks {
        compute,
        hands,
        plan: note.path(),
    };
    let computed = tasks.run(told).await;
    note.remove().await;
    computed
}

struct Tasks<'a> {
    compute: &'a Arc<Compute>,
    hands: &'a Hands,
    /// The note of the plan.
    plan: String,
}

impl Tasks<'_> {
    async fn run(&self, (progress, stop): (&dyn Progress, &CancellationToken)) -> Result<Computed> {
        let mut computed = start(self.compute);
        self.days(&mut computed, progress, stop).await?;
        let coarse = self.compute.plan.wanted();
        let coarse = coarse.filter(|view| view.job.piece() > Width::Day);
        let mut waiting: Vec<&View> = coarse.collect();
        while !waiting.is_empty() {
            let is_waiting = |name| waiting.iter().any(|view| view.job.name() == name);
            let (later, ready): (Vec<&View>, Vec<&View>) = waiting
                .iter()
                .partition(|view| view.job.over().is_some_and(is_waiting));
            if ready.is_empty() {
                return Err(Error::Fault("jobs that read from each other".to_owned()));
            }
            self.coarse(&ready, &mut computed, stop).await?;
            waiting = later;
        }
        Ok(computed)
    }

    /// All jobs whose pieces are days.
    async fn days(
        &self,
        computed: &mut Computed,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<()> {
        let plan = &self.compute.plan;
        let tasks = plan.day_tasks(self.compute.task_rows_max);
        let take = |days: Vec<i64>, of_days: OfDays| {
            for (name, written) in of_days.written {
                take(&mut computed.manifests, &name, written);
            }
            let totals = of_days.totals;
            computed.totals.events += totals.events;
            computed.totals.duplicates += totals.duplicates;
            computed.totals.amounts.extend(totals.amounts);
            let records = days.iter().filter_map(|day| plan.days.get(day));
            progress.advance(records.sum());
        };
        let work = Arc::new(Days {
            compute: Arc::clone(self.compute),
            plan: self.plan.clone(),
        });
        self.hands.carry_out(&work, tasks, stop, take).await
    }

    /// Jobs whose pieces are months, or all time, and of which none reads from another.
    async fn coarse(
        &self,
        views: &[&View],
        computed: &mut Computed,
        stop: &CancellationToken,
    ) -> Result<()> {
        let archive = &self.compute.archive;
        let needed = || needed(views, &computed.manifests);
        let note = self.hands.note(archive, &self.compute.files, needed);
        let note = note.await?;
        let names = views.iter().map(|view| view.job.name().to_owned());
        let tasks: Vec<String> = names.collect();
        let work = Arc::new(Coarse {
            compute: Arc::clone(self.compute),
            manifests: std::mem::take(&mut computed.manifests),
            plan: self.plan.clone(),
            computed: note.path(),
        });
        let mut done: Vec<(String, Written)> = Vec::new();
        let take_one = |name, written| done.push((name, written));
        let outcome = self.hands.carry_out(&work, tasks, stop, take_one).await;
        note.remove().await;
        outcome?;
        let work = Arc::into_inner(work);
        let work = work.ok_or_else(|| Error::Fault("a task that does not end".to_owned()))?;
        computed.manifests = work.manifests;
        for (name, written) in done {
            take(&mut computed.manifests, &name, written);
        }
        Ok(())
    }
}

/// Some days, of all jobs whose pieces are days.
struct Days {
    compute: Arc<Compute>,
    plan: String,
}

#[async_trait]
impl Work for Days {
    type Task = Vec<i64>;
    type Outcome = OfDays;

    async fn carry_out(&self, days: &Self::Task) -> Result<OfDays> {
        self.compute.day_task(days).await
    }

    fn errand(&self, days: &Self::Task) -> Errand {
        Errand::Days {
            plan: self.plan.clone(),
            days: days.clone(),
        }
    }

    fn outcome(outcome: Outcome) -> Option<OfDays> {
        match outcome {
            Outcome::Days(of_days) => Some(of_days),
            _ => None,
        }
    }
}

/// A job whose pieces are longer, by its name.
struct Coarse {
    compute: Arc<Compute>,
    /// What was computed before.
    manifests: Manifests,
    plan: String,
    /// The note of what was computed before.
    computed: String,
}

#[async_trait]
impl Work for Coarse {
    type Task = String;
    type Outcome = Written;

    async fn carry_out(&self, job: &Self::Task) -> Result<Written> {
        self.compute.coarse(job, &self.manifests).await
    }

    fn errand(&self, job: &Self::Task) -> Errand {
        Errand::Coarse {
            plan: self.plan.clone(),
            computed: self.computed.clone(),
            job: job.clone(),
        }
    }

    fn outcome(outcome: Outcome) -> Option<Written> {
        match outcome {
            Outcome::Coarse(written) => Some(written),
            _ => None,
        }
    }
}

/// The manifests as they are before anything is computed.
fn start(compute: &Compute) -> Computed {
    let plan = &compute.plan;
    let mut computed = Computed::default();
    for view in plan.wanted() {
        let kept = view.published.as_ref().filter(|_| !plan.full);
        let manifest = ViewManifest {
            view: view.table.clone(),
            epoch: plan.epoch,
            result: result_name(plan.epoch),
            cuts: plan.cuts.clone(),
            pieces: kept.map(|old| old.pieces.clone()).unwrap_or_default(),
            touched: plan.touched(view),
        };
        computed
            .manifests
            .insert(view.job.name().to_owned(), manifest);
    }
    for manifest in computed.manifests.values_mut() {
        for start in &manifest.touched {
            manifest.pieces.remove(start);
        }
    }
    computed
}

/// What views need of what was computed before: their own manifests, and those of the views that they read from.
fn needed(views: &[&View], manifests: &Manifests) -> Manifests {
    let own = views.iter().map(|view| view.job.name());
    let below = views.iter().filter_map(|view| view.job.over());
    let names: BTreeSet<&str> = own.chain(below).collect();
    let needed = manifests
        .iter()
        .filter(|(name, _)| names.contains(name.as_str()));
    needed
        .map(|(name, manifest)| (name.clone(), manifest.clone()))
        .collect()
}

fn take(manifests: &mut Manifests, name: &str, written: Written) {
    if let Some(manifest) = manifests.get_mut(name) {
        manifest.pieces.extend(written.pieces);
    }
}
