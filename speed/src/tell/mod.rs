//! What a micro-batch of groups brought: which boards changed, and what was achieved by it.
//!
//! It is decided group by group in the order of the log, from what stood on the boards before and what
//! stands there now, and goes into the slot's outbox in the step that changes the states. What had been
//! told before live state was lost is not told again: [`Teller::begin`] learns how far that was.

mod before;
mod cache;
mod messages;
mod outbox;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::Array;
use bytes::Bytes;
use jobs::board::{GroupState, Podium};
use jobs::{Board, Job};
use schemas::achievement::Told;
use schemas::key::KeyValue;
use schemas::seam::{Fence, Offset, Slot};
use stores::live::{SlotId, States};

use self::before::{At, Before, Found, Members};
use self::cache::Cache;
pub(crate) use self::messages::Named;
pub(crate) use self::outbox::Outbox;
use crate::{Error, Result, SpeedPorts};

/// Keys whose podiums are remembered.
const PODIUMS_MAX: usize = 4_000;

/// View and key.
type Name = (String, Vec<u8>);

/// Decides what is told of one partition.
#[derive(Debug)]
pub(crate) struct Teller {
    slot: SlotId,
    ports: SpeedPorts,
    before: Before,
    /// Groups that were named before were told already.
    told_through: Offset,
    /// As of the fence.
    podiums: Cache<Name, Vec<Podium>>,
    /// What becomes of podiums once the fence has moved; nothing where they are not known then.
    pending: Vec<(Name, Option<Vec<Podium>>)>,
}

/// A group of a micro-batch in one view.
struct Changed<'a> {
    named: &'a Named,
    key: Vec<u8>,
    member: Vec<u8>,
    after: GroupState,
}

impl Teller {
    pub(crate) fn new(slot: SlotId, ports: &SpeedPorts) -> Self {
        Self {
            slot,
            before: Before::new(slot, Arc::clone(&ports.live) as _, Arc::clone(&ports.views)),
            ports: ports.clone(),
            told_through: 0,
            podiums: Cache::new(PODIUMS_MAX),
            pending: Vec::new(),
        }
    }

    /// Nothing is known of the slot, which stands here: learns how far was told.
    pub(crate) async fn begin(&mut self, slot: &Slot) -> Result<()> {
        self.forget();
        let told = self.ports.achievements.told_through(self.slot).await?;
        // A life that began at a run takes up again what an earlier one had counted.
        let from_a_run = slot.bounds.values().next();
        let from_a_run = from_a_run.is_some_and(|begin| begin.next_offset > 0);
        self.told_through = match told {
            Some(told) if told > slot.position.next_offset => {
                let topic = self.slot.source.topic();
                let end = self.ports.log.end(topic, self.slot.partition).await?;
                if told > end {
                    tracing::warn!(
                        partition = self.slot.partition,
                        told,
                        end,
                        "more was told than the log holds: it is another one, and all of it is told"
                    );
                    self.ports.achievements.note_told(self.slot, 0).await?;
                    0
                } else {
                    told
                }
            }
            Some(told) => told,
            None if slot.is_replaying() && from_a_run => slot.replay_until,
            None => 0,
        };
        Ok(())
    }

    /// The fence has moved past what was decided last.
    pub(crate) fn reached(&mut self) {
        for (name, podiums) in std::mem::take(&mut self.pending) {
            match podiums {
                Some(podiums) => self.podiums.put(name, podiums),
                None => self.podiums.remove(&name),
            }
        }
    }

    /// What was decided last may not count.
    pub(crate) fn forget(&mut self) {
        self.pending.clear();
        self.podiums.clear();
    }

    /// What the new states of groups bring, as it goes into the outbox; nothing if the slot is not
    /// where the worker believes. `states` are by view, each with all groups in the order of key and
    /// member.
    pub(crate) async fn tell(
        &mut self,
        (fence, partitions): (Fence, u32),
        jobs: &[Arc<Job<Board>>],
        named: &[Named],
        states: &[States],
    ) -> Result<Option<Vec<Bytes>>> {
        self.pending.clear();
        let mut told = Vec::new();
        for (job, states) in jobs.iter().zip(states) {
            let at = At {
                job,
                fence,
                partitions,
            };
            let groups = groups(job, named, states)?;
            if named.iter().all(|named| self.is_told(named)) {
                self.forget_podiums(job, &groups);
                continue;
            }
            match self.of_view(at, &groups).await? {
                Found::Here(of_view) => told.extend(of_view),
                Found::Moved => return Ok(None),
                Found::Unknown => {
                    tracing::debug!(
                        view = job.view(),
                        "the view is new: its changes are not told"
                    );
                    self.forget_podiums(job, &groups);
                }
            }
        }
        // In the order of the log, whatever the view.
        told.sort_by_key(|told| told.position.offset);
        Ok(Some(told.iter().map(|told| told.encode().into()).collect()))
    }

    const fn is_told(&self, named: &Named) -> bool {
        named.position.offset < self.told_through
    }

    fn forget_podiums(&mut self, job: &Job<Board>, groups: &[Changed<'_>]) {
        let names = groups.iter().map(|group| name(job, &group.key));
        self.pending.extend(names.map(|name| (name, None)));
    }

    async fn of_view(&mut self, at: At<'_>, groups: &[Changed<'_>]) -> Result<Found<Vec<Told>>> {
        let mut asked: BTreeMap<Vec<u8>, Members> = BTreeMap::new();
        for group in groups {
            let mut boards: Vec<Vec<u8>> =
                group.after.places.iter().map(|p| p.board.clone()).collect();
            if at.job.boards().0.is_empty() {
                boards = vec![Vec::new()];
            }
            let members = asked.entry(group.key.clone()).or_default();
            members.push((group.member.clone(), boards));
        }
        let before = match self.before.states(at, &asked).await? {
            Found::Here(before) => before,
            Found::Moved => return Ok(Found::Moved),
            Found::Unknown => return Ok(Found::Unknown),
        };
        let none = GroupState::default();
        let steps: Vec<_> = groups
            .iter()
            .map(|group| {
                let name = (group.key.clone(), group.member.clone());
                (group, before.get(&name).unwrap_or(&none))
            })
            .collect();
        let mut podiums = match self.podiums_of(at, &steps).await? {
            Found::Here(podiums) => podiums,
            Found::Moved => return Ok(Found::Moved),
            Found::Unknown => return Ok(Found::Unknown),
        };
        let mut told = Vec::new();
        let mut newer: BTreeMap<&[u8], Vec<(Vec<u8>, GroupState)>> = BTreeMap::new();
        for (group, before) in &steps {
            let states = (*before, &group.after);
            let boards = messages::changed(before, &group.after);
            let is_told = self.is_told(group.named);
            if !boards.is_empty() && !is_told {
                told.push(messages::change(at.job, group.named, states, &boards)?);
            }
            if let Some(of_key) = podiums.get_mut(&group.key) {
                if of_key.iter().any(Podium::is_short) {
                    let newer = newer.get(group.key.as_slice()).cloned();
                    let asked = BTreeMap::from([(group.key.clone(), newer.unwrap_or_default())]);
                    match self.before.podiums(at, &asked).await? {
                        Found::Here(found) => of_key.clone_from(&found[&group.key]),
                        Found::Moved => return Ok(Found::Moved),
                        Found::Unknown => return Ok(Found::Unknown),
                    }
                }
                let events = achieved(at.job, group, before, of_key)?;
                if !is_told {
                    told.extend(events);
                }
            }
            let newer = newer.entry(&group.key).or_default();
            newer.push((group.member.clone(), group.after.clone()));
        }
        let podiums = podiums.into_iter();
        self.pending
            .extend(podiums.map(|(key, podiums)| (name(at.job, &key), Some(podiums))));
        Ok(Found::Here(told))
    }

    /// The podiums of the keys on whose told boards something changes, as of the fence.
    async fn podiums_of(
        &mut self,
        at: At<'_>,
        steps: &[(&Changed<'_>, &GroupState)],
    ) -> Result<Found<BTreeMap<Vec<u8>, Vec<Podium>>>> {
        let mut podiums = BTreeMap::new();
        let mut missing = BTreeMap::new();
        for (group, before) in steps {
            let mut boards = at.job.achievements().iter();
            let changes = boards.any(|told| {
                let board = &told.board;
                !messages::is_same(before.on(board), group.after.on(board))
            });
            if !changes || podiums.contains_key(&group.key) || missing.contains_key(&group.key) {
                continue;
            }
            match self.podiums.get(&name(at.job, &group.key)) {
                Some(known) => drop(podiums.insert(group.key.clone(), known)),
                None => drop(missing.insert(group.key.clone(), Vec::new())),
            }
        }
        match self.before.podiums(at, &missing).await? {
            Found::Here(found) => podiums.extend(found),
            Found::Moved => return Ok(Found::Moved),
            Found::Unknown => return Ok(Found::Unknown),
        }
        Ok(Found::Here(podiums))
    }
}

fn name(job: &Job<Board>, key: &[u8]) -> Name {
    (job.view().to_owned(), key.to_vec())
}

/// What a change of a group brings on the boards that are told; the podiums change with it.
fn achieved(
    job: &Job<Board>,
    group: &Changed<'_>,
    before: &GroupState,
    podiums: &mut [Podium],
) -> Result<Vec<Told>> {
    let mut told = Vec::new();
    let boards = job.achievements().iter().zip(podiums).enumerate();
    for (index, (board, podium)) in boards {
        let (old, new) = (before.on(&board.board), group.after.on(&board.board));
        if messages::is_same(old, new) {
            continue;
        }
        let mut events = podium.change(&group.member, new);
        if index == 0 {
            events.extend(podium.record(&group.member, old, new));
        }
        for event in &events {
            told.push(messages::achievement(job, group.named, board, event)?);
        }
    }
    Ok(told)
}

/// The groups of a micro-batch in their order, with their new states in a view.
fn groups<'a>(job: &Job<Board>, named: &'a [Named], states: &States) -> Result<Vec<Changed<'a>>> {
    let fault = |what: String| Error::Fault(format!("job {}: {what}", job.name()));
    let mut rows = BTreeMap::new();
    for row in 0..states.states.len() {
        rows.insert((states.keys.value(row), states.members.value(row)), row);
    }
    let mut groups = Vec::with_capacity(named.len());
    for named in named {
        let key = job.key().encode_values(&[KeyValue::Int(named.group.key)]);
        let member = job
            .member()
            .encode_values(&[KeyValue::Int(named.group.member)]);
        let (key, member) = match (key, member) {
            (Ok(key), Ok(member)) => (key, member),
            (Err(error), _) | (_, Err(error)) => return Err(fault(error.to_string())),
        };
        let row = rows.get(&(key.as_slice(), member.as_slice()));
        let row = *row.ok_or_else(|| fault("a group has no state".to_owned()))?;
        let after = states.state(row).map(GroupState::decode).transpose();
        groups.push(Changed {
            named,
            key,
            member,
            after: after
                .map_err(|error| fault(error.to_string()))?
                .unwrap_or_default(),
        });
    }
    Ok(groups)
}
