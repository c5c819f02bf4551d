//! A batch run: end the epoch everywhere, record the cuts, look again, seal; then publish.

use std::rc::Rc;

use rand::Rng;

use super::canon::{GROUPS, Group, PARTITIONS, State};
use super::publish::Publication;
use super::world::{RunsSeen, World};
use crate::seam::{self, Cut, Epoch, Fence, RunState, Slot, Step};

pub(super) struct Batch {
    at: At,
    /// What a run has read that takes its snapshot too early.
    early: Option<[State; GROUPS]>,
}

/// What comes next.
enum At {
    Begin,
    /// A snapshot is taken that takes so long.
    Snapshot(u32, Proposal),
    Roll(Proposal),
    ReadSlot(usize),
    ReadRuns(usize, Option<Rc<Slot>>),
    PutRight(usize, Option<Fence>, RunsSeen, Step),
    Propose(Proposal),
    Look(Proposal, String, usize),
    Seal(Proposal, String),
    Publish(Publication),
}

/// Cuts that are to be recorded.
struct Proposal {
    epoch: Epoch,
    cuts: Vec<Cut>,
    seen: RunsSeen,
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
            At::Snapshot(0, proposal) => At::Roll(proposal),
            At::Snapshot(steps, proposal) => At::Snapshot(steps - 1, proposal),
            At::Roll(proposal) => roll(world, proposal),
            At::ReadSlot(partition) => At::ReadRuns(partition, world.slot(partition)),
            At::ReadRuns(partition, slot) => {
                let seen = world.runs();
                let step = seam::next_step(slot.as_deref(), partition, &seen.runs);
                At::PutRight(partition, slot.map(|slot| slot.fence()), seen, step)
            }
            At::PutRight(partition, fence, seen, step) => {
                match (step, fence) {
                    (Step::Heal, fence) => world.heal(partition, fence, &seen.runs),
                    (Step::Impose, Some(fence)) => world.impose(partition, fence),
                    _ => {}
                }
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
            At::Publish(publication) => match publication.step(world) {
                Some(publication) => At::Publish(publication),
                None => At::Begin,
            },
        };
    }

    fn begin(&mut self, world: &mut World) -> At {
        let seen = world.runs();
        let open = seen.runs.open();
        if let Some(run) = open.filter(|run| run.state == RunState::Sealed) {
            return At::Publish(Publication::of(run, false, self.early.take()));
        }
        if world.rng.random_ratio(1, 8) {
            let last = seen.runs.iter().next_back();
            return match last.filter(|run| run.state == RunState::Complete) {
                Some(run) => At::Publish(Publication::of(run, true, None)),
                None => At::Begin,
            };
        }
        let proposal = Proposal {
            epoch: seen.runs.next_epoch(),
            cuts: Vec::new(),
            seen,
        };
        if world.rules.snapshot_after_cut {
            return At::Roll(proposal);
        }
        self.early = Some(std::array::from_fn(|group| world.canonical(Group(group))));
        At::Snapshot(world.rng.random_range(0..10), proposal)
    }
}

fn roll(world: &mut World, mut proposal: Proposal) -> At {
    let partition = proposal.cuts.len();
    let Some(cut) = world.roll(partition, proposal.epoch) else {
        return At::ReadSlot(partition);
    };
    proposal.cuts.push(cut);
    if proposal.cuts.len() < PARTITIONS {
        At::Roll(proposal)
    } else {
        At::Propose(proposal)
    }
}

/// The second look, at one slot after the other.
fn look(world: &mut World, proposal: Proposal, token: String, partition: usize) -> At {
    let Some(cut) = proposal.cuts.get(partition) else {
        return At::Seal(proposal, token);
    };
    let slot = world.slot(partition);
    let runs = &proposal.seen.runs;
    if seam::sealable(slot.as_deref(), partition, proposal.epoch, *cut, runs) {
        At::Look(proposal, token, partition + 1)
    } else {
        At::Begin
    }
}
