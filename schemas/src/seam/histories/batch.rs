//! A batch run: end the epoch everywhere, record the cuts, look again, seal; then compute, publish,
//! complete and drop. Or a single job, at the cuts of the newest complete run.

use std::rc::Rc;

use rand::Rng;
use rand::seq::SliceRandom;

use super::tally::Event;
use super::world::{CATALOGS, Counts, KEYS, Outcome, Row, RunsSeen, World};
use crate::seam::{Cut, Epoch, Fence, Offset, Run, RunState, Slot, Step};

pub(super) struct Batch {
    views: Vec<usize>,
    /// How many partitions there are, as it was when the run began.
    partitions: usize,
    at: At,
    /// Runs that it has completed.
    pub(super) completed: u64,
}

/// What comes next.
enum At {
    Begin,
    Roll(Proposal),
    ReadSlot(usize),
    ReadRuns(usize, Option<Rc<Slot>>),
    PutRight(usize, Option<Fence>, RunsSeen, Step),
    Propose(Proposal),
    Look(Proposal, String, usize),
    Seal(Proposal, String),
    Plan(Task),
    Record(Task, Plans),
    Judge(Task, Plans),
    Stamp(Task, Plans),
    Publish(Task, Plans, Vec<NewRow>),
    Complete(Task, Plans),
    Point(Plans),
    Wait(u32),
    Drop(Option<(Epoch, RunsSeen)>, usize),
}

/// Cuts that are to be recorded.
struct Proposal {
    epoch: Epoch,
    cuts: Vec<Cut>,
    seen: RunsSeen,
}

/// A sealed run, or for a single job the newest complete one.
struct Task {
    run: Run,
    views: Vec<usize>,
    job: bool,
}

/// What a run does to a view.
struct Plan {
    rows: Counts,
    changed: Vec<usize>,
    outcome: Option<Outcome>,
}

/// Plans by view.
type Plans = Vec<(usize, Plan)>;

/// A row of a view and key.
type NewRow = (usize, usize, Row);

impl Batch {
    pub(super) fn new(world: &World) -> Self {
        let kept = |view: &&usize| !world.is_forgotten(**view);
        Self {
            views: CATALOGS[world.catalog]
                .iter()
                .filter(kept)
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
            At::Roll(proposal) => self.roll(world, proposal),
            At::ReadSlot(partition) => At::ReadRuns(partition, world.slot(partition)),
            At::ReadRuns(partition, slot) => {
                let seen = world.runs();
                let step = (world.rules.next_step)(slot.as_deref(), partition, &seen.runs);
                At::PutRight(partition, slot.map(|slot| slot.fence()), seen, step)
            }
            At::PutRight(partition, fence, seen, step) => {
                put_right(world, partition, fence, (&seen, step));
                At::Begin
            }
            At::Propose(proposal) => match world.propose(proposal.epoch, &proposal.cuts) {
                Some(token) => At::Look(proposal, token, 0),
                None => At::Begin,
            },
            At::Look(proposal, token, partition) => look(world, proposal, token, partition),
            At::Seal(proposal, token) => {
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
            At::Wait(0) => At::Drop(None, 0),
            At::Wait(steps) => At::Wait(steps - 1),
            At::Drop(which, partition) => self.drop_epochs(world, which, partition),
        };
    }

    fn begin(&mut self, world: &mut World) -> At {
        self.partitions = world.partitions();
        let seen = world.runs();
        let open = seen.runs.open();
        if world.rng.random_ratio(1, 8) {
            let newest = seen.runs.get(seen.runs.newest());
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
        At::Roll(Proposal {
            epoch: seen.runs.next_epoch(),
            cuts: Vec::new(),
            seen,
        })
    }

    fn roll(&self, world: &mut World, mut proposal: Proposal) -> At {
        let partition = proposal.cuts.len();
        match world.roll(partition, proposal.epoch) {
            None => At::ReadSlot(partition),
            Some(cut) => {
                proposal.cuts.push(cut);
                if proposal.cuts.len() < self.partitions {
                    At::Roll(proposal)
                } else {
                    At::Propose(proposal)
                }
            }
        }
    }

    fn complete(&mut self, world: &mut World, task: &Task, plans: Plans) -> At {
        world.complete(task.run.epoch, &task.views, !task.job);
        if task.job {
            world.note(Event::Job);
        } else {
            self.completed += 1;
        }
        At::Point(plans)
    }

    fn point(&self, world: &mut World, mut plans: Plans) -> At {
        let Some((view, plan)) = plans.pop() else {
            self.forget(world);
            return At::Wait(world.rng.random_range(0..4));
        };
        if let Some(outcome) = plan.outcome {
            world.point_to(view, &outcome);
        }
        At::Point(plans)
    }

    /// A view that was replaced for good is forgotten.
    fn forget(&self, world: &mut World) {
        if !self.views.contains(&1) && !world.is_forgotten(1) && world.rng.random_ratio(1, 3) {
            world.forget(1);
        }
    }

    fn drop_epochs(
        &self,
        world: &mut World,
        which: Option<(Epoch, RunsSeen)>,
        partition: usize,
    ) -> At {
        let Some((epoch, seen)) = which else {
            let seen = world.runs();
            let newest = self
                .views
                .iter()
                .map(|view| seen.newest[*view].unwrap_or(0))
                .min();
            return match newest.unwrap_or(0) {
                0 => At::Begin,
                epoch => At::Drop(Some((epoch, seen)), 0),
            };
        };
        if partition >= self.partitions {
            return At::Begin;
        }
        if let Some(cut) = seen.runs.cut(epoch, partition) {
            world.drop_through(partition, epoch, cut);
        }
        At::Drop(Some((epoch, seen)), partition + 1)
    }
}

/// Does for a slot what its worker would do.
fn put_right(
    world: &mut World,
    partition: usize,
    fence: Option<Fence>,
    (seen, step): (&RunsSeen, Step),
) {
    match (step, fence) {
        (Step::Heal, fence) => world.heal(partition, fence, &seen.runs),
        (Step::Impose, Some(fence)) => world.impose(partition, fence),
        _ => {}
    }
}

/// The second look, at one slot after the other.
fn look(world: &mut World, proposal: Proposal, token: String, partition: usize) -> At {
    let Some(cut) = proposal.cuts.get(partition) else {
        return At::Seal(proposal, token);
    };
    let slot = world.slot(partition);
    let runs = &proposal.seen.runs;
    if (world.rules.sealable)(slot.as_deref(), partition, proposal.epoch, *cut, runs) {
        At::Look(proposal, token, partition + 1)
    } else {
        At::Begin
    }
}

/// Which rows are to be written: those that differ from the published ones, and those of which
/// another result may have written something else.
fn plan(world: &mut World, task: Task) -> At {
    let seen = world.runs();
    let offsets: Vec<Offset> = task.run.cuts.iter().map(|cut| cut.next_offset).collect();
    let mut plans = Plans::new();
    for view in &task.views {
        world.ensure_table(*view);
        let (published, others) = world.outcomes(*view, seen.newest[*view].unwrap_or(0));
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
            outcome: None,
        };
        plans.push((*view, plan));
    }
    At::Record(task, plans)
}

/// Writes the results down before anything of them is published.
fn record(world: &mut World, task: Task, mut plans: Plans) -> At {
    for (view, plan) in &mut plans {
        plan.outcome = Some(world.record(*view, task.run.epoch, plan.rows));
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
    let Some(stamp) = world.restamp(task.run.epoch) else {
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
        // Now and then it dies when all is done but said.
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
