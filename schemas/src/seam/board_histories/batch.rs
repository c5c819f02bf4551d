//! A batch run: ends the epoch everywhere, records the cuts, verifies and seals them, then
//! publishes.

use std::rc::Rc;

use rand::Rng;

use super::entity_rows::{GROUPS, Group, PARTITIONS, State};
use super::publish::Publication;
use super::world::{RunRecords, World};
use crate::seam::{self, Checkpoint, Cut, Epoch, PartitionState, RunState, WorkerStep};

pub(super) struct Batch {
    at: At,
    /// The snapshot of a mutant run, which takes it before the cuts.
    early: Option<[State; GROUPS]>,
}

/// The next operation.
enum At {
    Begin,
    /// A snapshot is in progress; the number of steps until it ends.
    Snapshot(u32, Proposal),
    EndEpoch(Proposal),
    ReadState(usize),
    ReadRuns(usize, Option<Rc<PartitionState>>),
    Repair(usize, Option<Checkpoint>, RunRecords, WorkerStep),
    Propose(Proposal),
    Verify(Proposal, String, usize),
    SealCuts(Proposal, String),
    Publish(Publication),
}

/// Cuts to record.
struct Proposal {
    epoch: Epoch,
    cuts: Vec<Cut>,
    run_records: RunRecords,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            at: At::Begin,
            early: None,
        }
    }

    pub(super) fn step(&mut self, world: &mut World) {
        let at = std::mem::replace(&mut self.at, At::Begin);
        self.at = match at {
            At::Begin => self.begin(world),
            At::Snapshot(0, proposal) => At::EndEpoch(proposal),
            At::Snapshot(steps, proposal) => At::Snapshot(steps - 1, proposal),
            At::EndEpoch(proposal) => end_epoch(world, proposal),
            At::ReadState(partition) => At::ReadRuns(partition, world.partition_state(partition)),
            At::ReadRuns(partition, partition_state) => {
                let run_records = world.runs();
                let step =
                    seam::next_step(partition_state.as_deref(), partition, &run_records.runs);
                At::Repair(
                    partition,
                    partition_state.map(|partition_state| partition_state.checkpoint()),
                    run_records,
                    step,
                )
            }
            At::Repair(partition, checkpoint, run_records, step) => {
                match (step, checkpoint) {
                    (WorkerStep::Rebuild, checkpoint) => {
                        world.rebuild(partition, checkpoint, &run_records.runs)
                    }
                    (WorkerStep::CloseEpoch, Some(checkpoint)) => {
                        world.close_epoch(partition, checkpoint)
                    }
                    _ => {}
                }
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
            At::Publish(publication) => match publication.step(world) {
                Some(publication) => At::Publish(publication),
                None => At::Begin,
            },
        };
    }

    fn begin(&mut self, world: &mut World) -> At {
        let run_records = world.runs();
        let open = run_records.runs.open();
        if let Some(run) = open.filter(|run| run.state == RunState::Sealed) {
            return At::Publish(Publication::new(run, false, self.early.take()));
        }
        if world.rng.random_ratio(1, 8) {
            let last = run_records.runs.iter().next_back();
            return match last.filter(|run| run.state == RunState::Complete) {
                Some(run) => At::Publish(Publication::new(run, true, None)),
                None => At::Begin,
            };
        }
        let proposal = Proposal {
            epoch: run_records.runs.next_epoch(),
            cuts: Vec::new(),
            run_records,
        };
        if world.rules.snapshot_after_cut {
            return At::EndEpoch(proposal);
        }
        self.early = Some(std::array::from_fn(|group| {
            world.current_state(Group(group))
        }));
        At::Snapshot(world.rng.random_range(0..10), proposal)
    }
}

fn end_epoch(world: &mut World, mut proposal: Proposal) -> At {
    let partition = proposal.cuts.len();
    let Some(cut) = world.end_epoch(partition, proposal.epoch) else {
        return At::ReadState(partition);
    };
    proposal.cuts.push(cut);
    if proposal.cuts.len() < PARTITIONS {
        At::EndEpoch(proposal)
    } else {
        At::Propose(proposal)
    }
}

/// Verifies the cut of one partition.
fn verify(world: &mut World, proposal: Proposal, token: String, partition: usize) -> At {
    let Some(cut) = proposal.cuts.get(partition) else {
        return At::SealCuts(proposal, token);
    };
    let partition_state = world.partition_state(partition);
    let runs = &proposal.run_records.runs;
    if seam::can_seal(
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
