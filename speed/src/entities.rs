//! Entities: notifications name groups; their rows are read again, and what the views make of those
//! is the groups' whole new state.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::BinaryBuilder;
use async_trait::async_trait;
use jobs::board::{GroupState, Place};
use jobs::{Board, Fold, Folded};
use schemas::achievement::Position;
use schemas::entities::{Group, Miss, Notifications};
use schemas::key::KeyValue;
use schemas::plays::Rejected;
use schemas::seam::{Epoch, Fence, Slot};
use stores::canon::CanonRead;
use stores::live::{Changes, LiveWrite, SlotId, States};
use stores::log::Records;
use stores::registry::{Schemas, writers_of};

use crate::boards::{Boards, Stepped};
use crate::processor::{BatchOutcome, BatchProcessor, Before, Limits};
use crate::recount::Touched;
use crate::sums::Sums;
use crate::tell::{Named, Teller};
use crate::{Error, Result};

/// Misses that are taken of one micro-batch, at most: those of others come again.
const MISSES_MAX: usize = 64;

/// Keeps the states of the groups of one partition.
#[derive(Debug)]
pub(crate) struct Entities {
    slot: SlotId,
    canon: Arc<dyn CanonRead>,
    schemas: Arc<dyn Schemas>,
    fold: Fold<Board>,
    /// Groups that are read at once, at most.
    groups_max: usize,
    /// Rows that are read at once, at most, unless one group has more.
    rows_max: usize,
    /// Decides what is told of what changes.
    teller: Teller,
    /// What it makes of cached boards.
    boards: Boards,
    /// And of sums of states.
    sums: Sums,
    /// Boards that readers have missed, by the micro-batch that was taken last.
    missed: Vec<Miss>,
    /// Who counts the members of keys anew, if anybody does.
    recounter: Option<Arc<Touched>>,
    /// The keys of the groups that were taken last, for each group one.
    touched: Vec<i64>,
    reaches: Option<Fence>,
}

impl Entities {
    pub(crate) fn new(
        slot: SlotId,
        (canon, schemas): (Arc<dyn CanonRead>, Arc<dyn Schemas>),
        fold: Fold<Board>,
        (groups_max, rows_max): (usize, usize),
        (teller, boards, sums): (Teller, Boards, Sums),
    ) -> Self {
        Self {
            slot,
            canon,
            schemas,
            fold,
            groups_max,
            rows_max,
            teller,
            boards,
            sums,
            missed: Vec::new(),
            recounter: None,
            touched: Vec::new(),
            reaches: None,
        }
    }

    /// The keys of what is taken are handed over once it counts.
    pub(crate) fn telling(mut self, recounter: Option<Arc<Touched>>) -> Self {
        if let Some(recounter) = &recounter {
            // Whoever kept the partition before may be gone with what it had not counted.
            recounter.some_are_missing();
        }
        self.recounter = recounter;
        self
    }

    fn hand_over(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        if let Some(recounter) = &self.recounter {
            recounter.hand_over(touched);
        }
    }

    /// What follows from new states: what is told of them, and what they make of cached boards.
    async fn follow(
        &mut self,
        taken: &mut BatchOutcome,
        named: &[Named],
        limits: Limits,
    ) -> Result<()> {
        let at = (limits.fence, limits.partitions);
        let jobs: Vec<_> = self.fold.jobs().map(Arc::clone).collect();
        let changes = &mut taken.changes;
        changes.outbox = self.teller.tell(at, &jobs, named, &changes.states).await?;
        changes.boards = self.boards.changes(limits.fence, &changes.states).await?;
        Ok(())
    }

    /// What new states make of sums, and what readers who have missed some.
    async fn sum_up(&mut self, taken: &mut BatchOutcome, limits: Limits) -> Result<()> {
        let states = &taken.changes.states;
        let missed = self.missed.iter().filter(|miss| miss.is_sum).cloned();
        let missed: Vec<Miss> = missed.collect();
        if states.is_empty() && missed.is_empty() {
            return Ok(());
        }
        let jobs: Vec<_> = self.fold.jobs().map(Arc::clone).collect();
        let at = (limits.fence, limits.partitions);
        taken.changes.sums = self.sums.changes(at, &jobs, states, &missed).await?;
        Ok(())
    }

    fn named(&self, group: Group, records: &Records, index: usize) -> Named {
        let SlotId { source, partition } = self.slot;
        Named {
            group,
            position: Position {
                source,
                partition,
                offset: records.offsets.value(index),
            },
            at_ms: records.logged_at_ms.value(index),
        }
    }

    async fn notifications(&self, records: &Records) -> Result<Notifications> {
        let writers = writers_of(&*self.schemas, &records.values).await?;
        let bytes = records.values.iter().map(Option::unwrap_or_default);
        Notifications::read(self.slot.source, bytes, &writers)
            .map_err(|error| Error::Fault(format!("decoding notifications: {error}")))
    }

    /// The states of the first of some groups, by view, and how many groups these are.
    async fn states(&self, groups: &[Group]) -> Result<(Vec<States>, usize)> {
        let canon = &self.canon;
        let first = canon.first_groups(self.slot.source, groups, self.rows_max);
        let first = first.await?;
        let Some(groups) = groups.get(..first.groups).filter(|some| !some.is_empty()) else {
            let what = format!("{} groups of {} were answered", first.groups, groups.len());
            return Err(Error::Fault(what));
        };
        let folded = self.fold.run(&first.rows).await?;
        let states = folded.iter().map(|folded| states_of(folded, groups));
        Ok((states.collect::<Result<_>>()?, groups.len()))
    }
}

#[async_trait]
impl BatchProcessor for Entities {
    fn views(&self) -> Vec<&str> {
        self.fold.views()
    }

    fn reaches(&self) -> Option<&Fence> {
        self.reaches.as_ref()
    }

    async fn begin(&mut self, before: &Before<'_>, slot: &Slot) -> Result<()> {
        let jobs: Vec<_> = self.fold.jobs().map(Arc::clone).collect();
        self.teller.begin(slot, &jobs).await?;
        self.boards.begin(slot, before.partitions).await?;
        self.reaches = Some(slot.fence());
        Ok(())
    }

    fn covers(&mut self, newest: &BTreeMap<String, Epoch>) {
        self.boards.covers(newest);
        self.sums.covers(newest);
    }

    /// Takes notifications until they name as many groups, or groups of as many rows, as are read at
    /// once, or as change `rows_max` states: a group has one in each view. A notification that belongs
    /// to another partition is to be sent there: so that the states of a group are kept in one.
    async fn process(&mut self, records: &Records, limits: Limits) -> Result<BatchOutcome> {
        let groups_max = (limits.rows_max / self.views().len().max(1)).clamp(1, self.groups_max);
        let (mut groups, mut known) = (Vec::new(), HashSet::new());
        // By group: the first record that names it.
        let mut first_named = Vec::new();
        let mut strays = Vec::new();
        let mut taken = BatchOutcome::default();
        self.missed.clear();
        let mut misses = 0;
        let notifications = self.notifications(records).await?;
        let offsets = records.offsets.values();
        for (index, value) in records.values.iter().enumerate() {
            let first = offsets.first().zip(offsets.get(index));
            if first.is_some_and(|(first, offset)| self.teller.divides(*first, *offset)) {
                break;
            }
            match notifications.group(index, value.unwrap_or_default()) {
                Ok(group) if known.contains(&group) => {}
                Ok(group) if group.partition(limits.partitions) != self.slot.partition => {
                    known.insert(group);
                    strays.push((index, group));
                }
                Ok(_) if groups.len() >= groups_max => break,
                Ok(group) => {
                    known.insert(group);
                    groups.push(group);
                    first_named.push(index);
                }
                Err(reason) => match Miss::read(self.slot.source, value.unwrap_or_default()) {
                    Some(miss) => {
                        misses += 1;
                        if self.missed.len() < MISSES_MAX {
                            self.missed.push(miss);
                        }
                    }
                    None => taken.rejected.push(Rejected { index, reason }),
                },
            }
            taken.records = index + 1;
        }
        if !groups.is_empty() {
            let (states, answered) = self.states(&groups).await?;
            taken.changes.states = states;
            if let Some(next) = first_named.get(answered) {
                taken.records = *next;
                taken.rejected.retain(|rejected| rejected.index < *next);
            }
            groups.truncate(answered);
            let named: Vec<Named> = groups
                .iter()
                .zip(&first_named)
                .map(|(group, index)| self.named(*group, records, *index))
                .collect();
            self.follow(&mut taken, &named, limits).await?;
        }
        self.sum_up(&mut taken, limits).await?;
        strays.retain(|(index, _)| *index < taken.records);
        taken.forwarded = strays.into_iter().map(|(_, group)| group).collect();
        taken.events = groups.len() as u64;
        self.touched = match &self.recounter {
            Some(_) => groups.iter().map(|group| group.key).collect(),
            None => Vec::new(),
        };
        let others = groups.len() + taken.rejected.len() + taken.forwarded.len() + misses;
        taken.duplicates = taken.records.saturating_sub(others) as u64;
        Ok(taken)
    }

    fn rows_max(&self, live: &dyn LiveWrite, _: SlotId) -> usize {
        live.states_max()
    }

    async fn make_room(&mut self, fence: Fence, changes: &mut Changes) -> Result<Stepped> {
        self.boards.make_room(fence, &mut changes.boards).await
    }

    fn reached(&mut self, fence: Fence) {
        self.teller.reached();
        let missed = std::mem::take(&mut self.missed).into_iter();
        for miss in missed.filter(|miss| !miss.is_sum) {
            self.boards.want(miss);
        }
        self.hand_over();
        self.reaches = Some(fence);
    }

    fn forget(&mut self) {
        self.teller.forget();
        self.boards.forget();
        self.sums.forget();
        self.missed.clear();
        // Whether these count is not known; who counts for nothing does no harm.
        self.hand_over();
        self.reaches = None;
    }

    async fn step(&mut self, fence: Fence, partitions: u32) -> Result<Stepped> {
        self.boards.step(fence, partitions).await
    }
}

/// The states of all `groups`, also of those of which nothing is left.
fn states_of(folded: &Folded<Board>, groups: &[Group]) -> Result<States> {
    let job = &folded.job;
    let fault = |error: schemas::key::KeyError| Error::Fault(format!("encoding a group: {error}"));
    let mut states: BTreeMap<(Vec<u8>, Vec<u8>), GroupState> = BTreeMap::new();
    for group in groups {
        let key = job.key().encode_values(&[KeyValue::Int(group.key)]);
        let member = job.member().encode_values(&[KeyValue::Int(group.member)]);
        states.insert(
            (key.map_err(fault)?, member.map_err(fault)?),
            GroupState::default(),
        );
    }
    let rows = folded.board_rows()?;
    for row in 0..rows.len() {
        let group = (
            rows.keys.value(row).to_vec(),
            rows.members.value(row).to_vec(),
        );
        let state = states.get_mut(&group).ok_or_else(|| {
            Error::Fault(format!(
                "job {}: a row of another group came out",
                job.name()
            ))
        })?;
        state.places.push(Place {
            board: rows.boards.value(row).to_vec(),
            score: rows.scores.value(row).to_vec(),
            payload: rows.payloads.value(row).to_vec(),
            weight: rows.weights.value(row),
        });
    }
    let mut keys = BinaryBuilder::new();
    let mut members = BinaryBuilder::new();
    let mut bytes = BinaryBuilder::new();
    for ((key, member), state) in states {
        keys.append_value(key);
        members.append_value(member);
        if state.places.is_empty() {
            bytes.append_null();
        } else {
            bytes.append_value(state.encode());
        }
    }
    Ok(States {
        view: job.view().to_owned(),
        keys: keys.finish(),
        members: members.finish(),
        states: bytes.finish(),
    })
}
