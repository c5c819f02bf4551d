//! What a micro-batch of groups brought: which boards changed, and what was achieved by it.
//!
//! It is decided group by group in the order of the log, from what stood on the boards before and what
//! stands there now, and goes into the slot's outbox in the step that changes the states. What had been
//! told before live state was lost is not told again: [`Teller::begin`] learns how far that was.

mod before;

mod messages;
mod outbox;
mod replay;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::Array;
use bytes::Bytes;
use jobs::board::{GroupState, Podium};
use jobs::{Board, Job};
use moka::sync::Cache;
use schemas::achievement::Told;
use schemas::seam::{Fence, Generation, Offset, Slot};
use stores::live::{SlotId, States};

use self::before::{At, Before, Members};
pub(crate) use self::messages::Named;
pub(crate) use self::outbox::Outbox;
use self::replay::{AsTold, GroupName, Replay, encoded};
use crate::{Error, Result, SpeedPorts};

/// Keys whose podiums are remembered.
const PODIUMS_MAX: u64 = 4_000;

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
    /// What was told of groups whose live states are newer by now, and the life of the slot in which
    /// that is so.
    as_told: AsTold,
    life: Option<Generation>,
    /// As of the fence.
    podiums: Cache<Name, Vec<Podium>>,
    /// What becomes of podiums once the fence has moved; nothing where they are not known then.
    pending: Vec<(Name, Option<Vec<Podium>>)>,
    /// Groups that are told as they are then.
    settled: Vec<GroupName>,
}

/// Members of a key with the states that count in the place of the slot's.
type Newer = Vec<(Vec<u8>, GroupState)>;

/// A group of a micro-batch in one view.
struct Changed<'a> {
    named: &'a Named,
    key: Vec<u8>,
    member: Vec<u8>,
    after: GroupState,
}

/// A group with what it had before.
type Step<'g, 'n> = (&'g Changed<'n>, GroupState);

impl Teller {
    pub(crate) fn new(slot: SlotId, ports: &SpeedPorts) -> Self {
        Self {
            slot,
            before: Before::new(slot, Arc::clone(&ports.live) as _, Arc::clone(&ports.views)),
            ports: ports.clone(),
            told_through: 0,
            as_told: AsTold::new(),
            life: None,
            podiums: Cache::new(PODIUMS_MAX),
            pending: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// Nothing is known of the slot, which stands here: learns how far was told.
    pub(crate) async fn begin(&mut self, slot: &Slot, jobs: &[Arc<Job<Board>>]) -> Result<()> {
        self.forget();
        let told = self.ports.achievements.told_through(self.slot).await?;
        if let Some(lost) = lost(slot, told) {
            tracing::warn!(
                partition = self.slot.partition,
                from = lost.start,
                until = lost.end,
                "live state was lost with what had not been told yet, and a run covers it: what may have changed on boards from offset `from` until `until` is told to nobody"
            );
        }
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
        let position = slot.position.next_offset;
        let is_known = self.life == Some(slot.generation);
        if !is_known {
            self.as_told.clear();
        }
        self.as_told.retain(|_, (offset, _)| *offset >= position);
        let is_behind = self.told_through > position || slot.is_replaying() && !is_known;
        if told.is_some() && is_behind && self.as_told.is_empty() {
            let replay = Replay {
                ports: &self.ports,
                id: self.slot,
                slot,
                told_through: self.told_through,
            };
            self.as_told = replay.as_told(jobs, &mut self.before).await?;
        }
        self.life = Some(slot.generation);
        Ok(())
    }

    /// Whether a micro-batch ends between two offsets: what was told before is one, what was not
    /// another.
    pub(crate) const fn divides(&self, first: Offset, offset: Offset) -> bool {
        first < self.told_through && offset >= self.told_through
    }

    /// The fence has moved past what was decided last.
    pub(crate) fn reached(&mut self) {
        for (name, podiums) in std::mem::take(&mut self.pending) {
            match podiums {
                Some(podiums) => self.podiums.insert(name, podiums),
                None => self.podiums.invalidate(&name),
            }
        }
        for name in std::mem::take(&mut self.settled) {
            self.as_told.remove(&name);
        }
    }

    /// What was decided last may not count.
    pub(crate) fn forget(&mut self) {
        self.pending.clear();
        self.settled.clear();
        self.podiums.invalidate_all();
    }

    /// The outbox entries that new states of groups bring. `states` are by view, each with all groups in the order of key
    /// and member.
    pub(crate) async fn tell(
        &mut self,
        (fence, partitions): (Fence, u32),
        jobs: &[Arc<Job<Board>>],
        named: &[Named],
        states: &[States],
    ) -> Result<Vec<Bytes>> {
        self.pending.clear();
        self.settled.clear();
        let mut told = Vec::new();
        for (job, states) in jobs.iter().zip(states) {
            let at = At {
                job,
                fence,
                partitions,
                is_live: true,
            };
            let groups = groups(job, named, states)?;
            let is_told = |named: &Named| named.position.offset < self.told_through;
            if named.iter().all(is_told) {
                self.forget_podiums(job, &groups);
                continue;
            }
            match self.of_view(at, &groups).await? {
                Some(of_view) => told.extend(of_view),
                None => {
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
        Ok(told.iter().map(|told| told.encode().into()).collect())
    }

    fn forget_podiums(&mut self, job: &Job<Board>, groups: &[Changed<'_>]) {
        let names = groups.iter().map(|group| name(job, &group.key));
        self.pending.extend(names.map(|name| (name, None)));
    }

    /// The changes of a view and what they achieve. Returns none if nothing is known of what stood there before.
    async fn of_view(&mut self, at: At<'_>, groups: &[Changed<'_>]) -> Result<Option<Vec<Told>>> {
        let Some(steps) = self.steps(at, groups).await? else {
            return Ok(None);
        };
        let Some(mut podiums) = self.podiums_of(at, &steps).await? else {
            return Ok(None);
        };
        let mut told = Vec::new();
        let mut newer: BTreeMap<&[u8], Newer> = BTreeMap::new();
        for (group, before) in &steps {
            let boards = messages::changed(before, &group.after);
            if !boards.is_empty() {
                let states = (before, &group.after);
                told.push(messages::change(at.job, group.named, states, &boards)?);
            }
            let of_key = podiums.get(&group.key).into_iter().flatten();
            if of_key.into_iter().any(Podium::is_short) {
                let mut states = self.as_told(at.job, &group.key);
                let newer = newer.get(group.key.as_slice());
                states.extend(newer.into_iter().flatten().cloned());
                let asked = BTreeMap::from([(group.key.clone(), states)]);
                let Some(found) = self.before.podiums(at, &asked).await? else {
                    return Ok(None);
                };
                // It may be that it can't be read any more.
                podiums.remove(&group.key);
                self.pending.push((name(at.job, &group.key), None));
                podiums.extend(found);
            }
            if let Some(of_key) = podiums.get_mut(&group.key) {
                told.extend(achieved(at.job, group, before, of_key)?);
            }
            let newer = newer.entry(&group.key).or_default();
            newer.push((group.member.clone(), group.after.clone()));
        }
        let podiums = podiums.into_iter();
        self.pending
            .extend(podiums.map(|(key, podiums)| (name(at.job, &key), Some(podiums))));
        Ok(Some(told))
    }

    /// The groups with what they had before, but for those under keys of which that can't be known.
    async fn steps<'g, 'n>(
        &mut self,
        at: At<'_>,
        groups: &'g [Changed<'n>],
    ) -> Result<Option<Vec<Step<'g, 'n>>>> {
        let mut asked: BTreeMap<Vec<u8>, Members> = BTreeMap::new();
        for group in groups {
            let boards = boards_asked(at.job, &group.after);
            let members = asked.entry(group.key.clone()).or_default();
            members.push((group.member.clone(), boards));
        }
        let Some(mut before) = self.before.states(at, &asked).await? else {
            return Ok(None);
        };
        before.retain(|key, found| {
            asked
                .get(key)
                .is_some_and(|asked| asked.len() == found.len())
        });
        let mut steps = Vec::with_capacity(groups.len());
        for group in groups {
            let mut told = None;
            if !self.as_told.is_empty() {
                let (key, member) = (group.key.clone(), group.member.clone());
                let name = (at.job.view().to_owned(), key, member);
                told = self.as_told.get(&name).map(|(_, told)| told.clone());
                self.settled.extend(told.is_some().then_some(name));
            }
            let of_key = before.get_mut(&group.key);
            match of_key.and_then(|of_key| of_key.remove(&group.member)) {
                Some(stood) => steps.push((group, told.unwrap_or(stood))),
                None => self.forget_podiums(at.job, std::slice::from_ref(group)),
            }
        }
        Ok(Some(steps))
    }

    /// What was told of the members of a key whose live states are newer.
    fn as_told(&self, job: &Job<Board>, key: &[u8]) -> Newer {
        let first = (job.view().to_owned(), key.to_vec(), Vec::new());
        let of_key = self.as_told.range(first..);
        let of_key = of_key.take_while(|((view, of, _), _)| view == job.view() && of == key);
        of_key
            .map(|((.., member), (_, state))| (member.clone(), state.clone()))
            .collect()
    }

    /// The podiums of the keys on whose told boards something changes, as of the fence.
    async fn podiums_of(
        &mut self,
        at: At<'_>,
        steps: &[Step<'_, '_>],
    ) -> Result<Option<BTreeMap<Vec<u8>, Vec<Podium>>>> {
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
                None => {
                    let as_told = self.as_told(at.job, &group.key);
                    missing.insert(group.key.clone(), as_told);
                }
            }
        }
        let found = self.before.podiums(at, &missing).await?;
        Ok(found.map(|found| {
            podiums.extend(found);
            podiums
        }))
    }
}

/// The boards on which a member is looked for: where they have scores, it is found by itself.
fn boards_asked(job: &Job<Board>, after: &GroupState) -> Vec<Vec<u8>> {
    if job.boards().0.is_empty() {
        return vec![Vec::new()];
    }
    let boards = after.places.iter().filter(|_| job.score().0.is_empty());
    boards.map(|place| place.board.clone()).collect()
}

/// What nobody will be told any more, where the slot is at the very beginning of a life: it was not
/// noted as told, and a run covers it.
fn lost(slot: &Slot, told: Option<Offset>) -> Option<Range<Offset>> {
    let begin = slot.bounds.values().next()?.next_offset;
    let told = told.unwrap_or(0);
    // Nothing has been counted of any view.
    (slot.since.is_empty() && told < begin).then_some(told..begin)
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
        let (key, member) = encoded(job, named.group)?;
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

#[cfg(test)]
mod tests {
    use schemas::seam::{Cut, NewLife};

    use super::*;

    #[test]
    fn what_a_run_covers_and_nobody_was_told_is_lost() {
        let cut = Cut {
            next_offset: 10,
            last: None,
        };
        let mut slot = Slot::new_generation(
            2,
            &NewLife {
                newest: 1,
                cut,
                log_end: 15,
                hint: 2,
            },
        );
        assert_eq!(lost(&slot, Some(10)), None);
        assert_eq!(lost(&slot, Some(12)), None);
        assert_eq!(lost(&slot, Some(7)), Some(7..10));
        assert_eq!(lost(&slot, None), Some(0..10));
        // A life that has begun long ago has what is not told yet in its outbox; it was said at once
        // what it has not.
        let fence = slot.fence();
        let moved = slot.apply(&fence, cut, &["a view"]);
        assert_eq!(moved, Ok(()));
        assert_eq!(lost(&slot, Some(7)), None);
        // The very first life covers nothing.
        let first = NewLife {
            newest: 0,
            cut: Cut::start(),
            log_end: 15,
            hint: 1,
        };
        assert_eq!(lost(&Slot::new_generation(1, &first), None), None);
    }
}
