//! A batch run: ends the epoch everywhere, records the cuts, verifies and seals them, then
//! computes, publishes, completes and prunes. Or a single job at the cuts of the newest complete
//! run.

use std::rc::Rc;

use rand::Rng;
use rand::seq::SliceRandom;

use super::events::Event;
use super::world::{CATALOGS, Counts, KEYS, Row, RunRecords, RunResult, World};
use crate::seam::{Checkpoint, Cut, Epoch, Offset, PartitionState, Run, RunState, WorkerStep};

pub(super) struct Batch {
    views: Vec<usize>,
    /// The number of partitions when the run began.
    partitions: usize,
    at: At,
    /// The number of completed runs.
    pub(super) completed: u64,
}

/// The next operation.
enum At {
    Begin,
    EndEpoch(Proposal),
    ReadState(usize),
    ReadRuns(usize, Option<Rc<PartitionState>>),
    Repair(usize, Option<Checkpoint>, RunRecords, WorkerStep),
    Propose(Proposal),
    Verify(Proposal, String, usize),
    SealCuts(Proposal, String),
    Plan(Task),
    Record(Task, Plans),
    Judge(Task, Plans),
    Stamp(Task, Plans),
    Publish(Task, Plans, Vec<NewRow>),
    Complete(Task, Plans),
    Point(Plans),
    Wait(u32),
    Prune(Option<(Epoch, RunRecords)>, usize),
}

/// Cuts to record.
struct Proposal {
    epoch: Epoch,
    cuts: Vec<Cut>,
    run_records: RunRecords,
}

/// A sealed run, or the newest complete run for a single job.
struct Task {
    run: Run,
    views: Vec<usize>,
    job: bool,
}

/// The changes of a run to a view.
struct Plan {
    rows: Counts,
    changed: Vec<usize>,
    result: Option<RunResult>,
}

/// Plans by view.
type Plans = Vec<(usize, Plan)>;

/// A row of a view and key.
type NewRow = (usize, usize, Row);

impl Batch {
    pub(super) fn new(world: &World) -> Self {
        let is_present = |view: &&usize| !world.is_deleted(**view);
        Self {
            views: CATALOGS[world.catalog]
                .iter()
                .filter(is_present)
                .copied()
                .collect(),
            partitions: 0,
            at: At::Begin,
            completed: 0,
        }
    }

    pub(super) fn step(&mut self, world: &mut World) {
        let at = std::mem::replace(&mut self.at, At::Begin);
        self.at = match at {
            At::Begin => self.begin(world),
            At::EndEpoch(proposal) => self.end_epoch(world, proposal),
            At::ReadState(partition) => At::ReadRuns(partition, world.partition_state(partition)),
            At::ReadRuns(partition, partition_state) => {
                let run_records = world.runs();
                let step = (world.rules.next_step)(
                    partition_state.as_deref(),
                    partition,
                    &run_records.runs,
                );
                At::Repair(
                    partition,
                    partition_state.map(|partition_state| partition_state.checkpoint()),
                    run_records,
                    step,
                )
            }
            At::Repair(partition, checkpoint, run_records, step) => {
                repair(world, partition, checkpoint, &run_records, step);
                At::Begin
            }
            At::Propose(proposal) => match world.propose(proposal.epoch, &proposal.cuts) {
                Some(token) => At::Verify(proposal, token, 0),
                None => At::Begin,
            },
            At::Verify(proposal, token, partition) => verify(world, proposal, token, partition),
            At::SealCuts(proposal, token) => {
                world.seal(proposal.epoch, &token);
                At::Begin
            }
            At::Plan(task) => plan(world, task),
            At::Record(task, plans) => record(world, task, plans),
            At::Judge(task, plans) => judge(world, task, plans),
            At::Stamp(task, plans) => stamp(world, task, plans),
            At::Publish(task, plans, rows) => publish(world, task, plans, rows),
            At::Complete(task, plans) => self.complete(world, &task, plans),
            At::Point(plans) => self.point(world, plans),
            At::Wait(0) => At::Prune(None, 0),
            At::Wait(steps) => At::Wait(steps - 1),
            At::Prune(which, partition) => self.prune_epochs(world, which, partition),
        };
    }

    fn begin(&mut self, world: &mut World) -> At {
        self.partitions = world.partitions();
        let run_records = world.runs();
        let open = run_records.runs.open();
        if world.rng.random_ratio(1, 8) {
            let newest = run_records.runs.get(run_records.runs.newest());
            return match newest.filter(|_| open.is_none()) {
                Some(run) => At::Plan(Task {
                    run: run.clone(),
                    views: vec![self.views[world.rng.random_range(0..self.views.len())]],
                    job: true,
                }),
                None => At::Begin,
            };
        }
        if let Some(run) = open.filter(|run| run.state == RunState::Sealed) {
            return At::Plan(Task {
                run: run.clone(),
                views: self.views.clone(),
                job: false,
            });
        }
        At::EndEpoch(Proposal {
            epoch: run_records.runs.next_epoch(),
            cuts: Vec::new(),
            run_records,
        })
    }

    fn end_epoch(&self, world: &mut World, mut proposal: Proposal) -> At {
        let partition = proposal.cuts.len();
        match world.end_epoch(partition, proposal.epoch) {
            None => At::ReadState(partition),
            Some(cut) => {
                proposal.cuts.push(cut);
                if proposal.cuts.len() < self.partitions {
                    At::EndEpoch(proposal)
                } else {
                    At::Propose(proposal)
                }
            }
        }
    }

    fn complete(&mut self, world: &mut World, task: &Task, plans: Plans) -> At {
        world.complete(task.run.epoch, &task.views, !task.job);
        if task.job {
            world.count_event(Event::Job);
        } else {
            self.completed += 1;
        }
        At::Point(plans)
    }

    fn point(&self, world: &mut World, mut plans: Plans) -> At {
        let Some((view, plan)) = plans.pop() else {
            self.delete_view(world);
            return At::Wait(world.rng.random_range(0..4));
        };
        if let Some(result) = plan.result {
            world.set_published(view, &result);
        }
        At::Point(plans)
    }

    /// Deletes a view that was replaced permanently.
    fn delete_view(&self, world: &mut World) {
        if !self.views.contains(&1) && !world.is_deleted(1) && world.rng.random_ratio(1, 3) {
            world.delete_view(1);
        }
    }

    fn prune_epochs(
        &self,
        world: &mut World,
        which: Option<(Epoch, RunRecords)>,
        partition: usize,
    ) -> At {
        let Some((epoch, run_records)) = which else {
            let run_records = world.runs();
            let newest = self
                .views
                .iter()
                .map(|view| run_records.newest[*view].unwrap_or(0))
                .min();
            return match newest.unwrap_or(0) {
                0 => At::Begin,
                epoch => At::Prune(Some((epoch, run_records)), 0),
            };
        };
        if partition >= self.partitions {
            return At::Begin;
        }
        if let Some(cut) = run_records.runs.cut(epoch, partition) {
            world.prune_through(partition, epoch, cut);
        }
        At::Prune(Some((epoch, run_records)), partition + 1)
    }
}

/// Does the step of the partition's worker.
fn repair(
    world: &mut World,
    partition: usize,
    checkpoint: Option<Checkpoint>,
    run_records: &RunRecords,
    step: WorkerStep,
) {
    match (step, checkpoint) {
        (WorkerStep::Rebuild, checkpoint) => {
            world.rebuild(partition, checkpoint, &run_records.runs)
        }
        (WorkerStep::CloseEpoch, Some(checkpoint)) => world.close_epoch(partition, checkpoint),
        _ => {}
    }
}

/// Verifies the cut of one partition.
fn verify(world: &mut World, proposal: Proposal, token: String, partition: usize) -> At {
    let Some(cut) = proposal.cuts.get(partition) else {
        return At::SealCuts(proposal, token);
    };
    let partition_state = world.partition_state(partition);
    let runs = &proposal.run_records.runs;
    if (world.rules.can_seal)(
        partition_state.as_deref(),
        partition,
        proposal.epoch,
        *cut,
        runs,
    ) {
        At::Verify(proposal, token, partition + 1)
    } else {
        At::Begin
    }
}

/// Plans the rows to write: those that differ from the published ones, and those that another
/// result may have written differently.
fn plan(world: &mut World, task: Task) -> At {
    let run_records = world.runs();
    let offsets: Vec<Offset> = task.run.cuts.iter().map(|cut| cut.next_offset).collect();
    let mut plans = Plans::new();
    for view in &task.views {
        world.ensure_table(*view);
        let (published, others) = world.results(*view, run_records.newest[*view].unwrap_or(0));
        let mut rows = [None; KEYS];
        let mut changed = Vec::new();
        for key in 0..KEYS {
            rows[key] = world.fold(*view, key, &offsets);
            let clean = others.iter().all(|other| other[key] == published[key]);
            let dirty = world.rules.rewrites && !clean;
            if rows[key] != published[key] || dirty || world.rng.random_ratio(1, 10) {
                changed.push(key);
            }
        }
        let plan = Plan {
            rows,
            changed,
            result: None,
        };
        plans.push((*view, plan));
    }
    At::Record(task, plans)
}

/// Records the results before any row is published.
fn record(world: &mut World, task: Task, mut plans: Plans) -> At {
    for (view, plan) in &mut plans {
        plan.result = Some(world.record(*view, task.run.epoch, plan.rows));
    }
    At::Judge(task, plans)
}

fn judge(world: &mut World, task: Task, plans: Plans) -> At {
    if !task.job && world.rng.random_ratio(1, 8) {
        world.abandon(task.run.epoch);
        return At::Begin;
    }
    At::Stamp(task, plans)
}

fn stamp(world: &mut World, task: Task, plans: Plans) -> At {
    let Some(stamp) = world.take_stamp(task.run.epoch) else {
        return At::Begin;
    };
    let mut rows = Vec::new();
    for (view, plan) in &plans {
        let row = |key: usize| Row::new(plan.rows[key], task.run.epoch, stamp);
        rows.extend(plan.changed.iter().map(|key| (*view, *key, row(*key))));
    }
    rows.shuffle(&mut world.rng);
    At::Publish(task, plans, rows)
}

fn publish(world: &mut World, task: Task, plans: Plans, mut rows: Vec<NewRow>) -> At {
    let Some((view, key, row)) = rows.pop() else {
        // Sometimes the run dies just before it is recorded as complete.
        return if world.rng.random_ratio(1, 8) {
            At::Begin
        } else {
            At::Complete(task, plans)
        };
    };
    if world.publish(view, key, row) {
        At::Publish(task, plans, rows)
    } else {
        At::Begin
    }
}
