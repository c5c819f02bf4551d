//! Derives the board changes and achievements of a micro-batch.
//!
//! Groups are handled in log order. The messages follow from the previous and the new entries of a
//! group. They enter the outbox of the partition state in the step that stores the new entries.
//! After a loss of live state, published messages are not published again:
//! [`ChangeDetector::begin`] reads how far they were published.

mod messages;
mod outbox;
mod previous;
mod replay;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::Array;
use bytes::Bytes;
use jobs::board::{MemberEntries, TopEntries};
use jobs::{Board, Job};
use moka::sync::Cache;
use schemas::achievement::OutboxMessage;
use schemas::seam::{Generation, Offset, PartitionState};
use stores::live::{PartitionId, States};

pub(crate) use self::messages::NotifiedGroup;
pub(crate) use self::outbox::Outbox;
use self::previous::{Members, PreviousStates, ReadContext};
use self::replay::{GroupName, PublishedStates, Replay, encode_group};
use crate::processor::Limits;
use crate::{Error, Result, SpeedPorts};

/// Maximum keys with cached top entries.
const TOP_ENTRIES_KEYS_MAX: u64 = 4_000;

/// View and key.
type ViewKey = (String, Vec<u8>);

/// Derives the messages of one partition.
#[derive(Debug)]
pub(crate) struct ChangeDetector {
    id: PartitionId,
    ports: SpeedPorts,
    previous: PreviousStates,
    /// The changes of notifications before this offset have been published.
    published_through: Offset,
    /// The published entries of groups whose live entries are newer, valid for one generation of
    /// the partition state.
    published_states: PublishedStates,
    generation: Option<Generation>,
    /// The top entries at the checkpoint.
    top_entries: Cache<ViewKey, Vec<TopEntries>>,
    /// The top entries after the checkpoint advances; `None` if they will be unknown.
    pending: Vec<(ViewKey, Option<Vec<TopEntries>>)>,
    /// Groups whose published entries are current after the checkpoint advances.
    caught_up: Vec<GroupName>,
}

/// Members of a key, with entries that replace those of the partition state.
type NewerStates = Vec<(Vec<u8>, MemberEntries)>;

/// A group of a micro-batch in one view.
struct ChangedGroup<'a> {
    notified: &'a NotifiedGroup,
    key: Vec<u8>,
    member: Vec<u8>,
    after: MemberEntries,
}

/// A group with its previous entries.
type Step<'g, 'n> = (&'g ChangedGroup<'n>, MemberEntries);

impl ChangeDetector {
    pub(crate) fn new(id: PartitionId, ports: &SpeedPorts) -> Self {
        Self {
            id,
            previous: PreviousStates::new(
                id,
                Arc::clone(&ports.live) as _,
                Arc::clone(&ports.views),
            ),
            ports: ports.clone(),
            published_through: 0,
            published_states: PublishedStates::new(),
            generation: None,
            top_entries: Cache::new(TOP_ENTRIES_KEYS_MAX),
            pending: Vec::new(),
            caught_up: Vec::new(),
        }
    }

    /// Starts with this partition state: reads how far messages were published.
    pub(crate) async fn begin(
        &mut self,
        state: &PartitionState,
        jobs: &[Arc<Job<Board>>],
    ) -> Result<()> {
        self.reset();
        let published = self.ports.achievements.published_through(self.id).await?;
        if let Some(lost) = lost_range(state, published) {
            tracing::warn!(
                partition = self.id.partition,
                from = lost.start,
                until = lost.end,
                "live state was lost, and a batch run covers offsets from `from` until `until`: board changes of these offsets will not be published"
            );
        }
        // A generation that started at a run repeats offsets that an earlier one had counted.
        let generation_start = state.bounds.values().next();
        let starts_at_run = generation_start.is_some_and(|begin| begin.next_offset > 0);
        self.published_through = match published {
            Some(published) if published > state.position.next_offset => {
                let topic = self.id.source.topic();
                let end = self.ports.log.end(topic, self.id.partition).await?;
                if published > end {
                    tracing::warn!(
                        partition = self.id.partition,
                        published,
                        end,
                        "changes were published through an offset beyond the end of the log: the log was replaced, so all its changes are published"
                    );
                    self.ports
                        .achievements
                        .record_published_through(self.id, 0)
                        .await?;
                    0
                } else {
                    published
                }
            }
            Some(published) => published,
            None if state.is_replaying() && starts_at_run => state.replay_until,
            None => 0,
        };
        let position = state.position.next_offset;
        let is_known = self.generation == Some(state.generation);
        if !is_known {
            self.published_states.clear();
        }
        self.published_states
            .retain(|_, (offset, _)| *offset >= position);
        let is_behind = self.published_through > position || state.is_replaying() && !is_known;
        if published.is_some() && is_behind && self.published_states.is_empty() {
            let replay = Replay {
                ports: &self.ports,
                id: self.id,
                state,
                published_through: self.published_through,
            };
            self.published_states = replay.published_states(jobs, &mut self.previous).await?;
        }
        self.generation = Some(state.generation);
        Ok(())
    }

    /// Returns whether a micro-batch must end between two offsets, because only the first one was
    /// published.
    pub(crate) const fn splits_batch(&self, first: Offset, offset: Offset) -> bool {
        first < self.published_through && offset >= self.published_through
    }

    /// Called after the checkpoint advanced past the last micro-batch.
    pub(crate) fn on_applied(&mut self) {
        for (name, top_entries) in std::mem::take(&mut self.pending) {
            match top_entries {
                Some(top_entries) => self.top_entries.insert(name, top_entries),
                None => self.top_entries.invalidate(&name),
            }
        }
        for name in std::mem::take(&mut self.caught_up) {
            self.published_states.remove(&name);
        }
    }

    /// Discards pending state, because the last micro-batch may not have been applied.
    pub(crate) fn reset(&mut self) {
        self.pending.clear();
        self.caught_up.clear();
        self.top_entries.invalidate_all();
    }

    /// Derives the outbox entries of a micro-batch. `states` has one item per view, each with all
    /// groups in the order of key and member.
    pub(crate) async fn detect(
        &mut self,
        limits: Limits,
        jobs: &[Arc<Job<Board>>],
        notified: &[NotifiedGroup],
        states: &[States],
    ) -> Result<Vec<Bytes>> {
        self.pending.clear();
        self.caught_up.clear();
        let mut messages = Vec::new();
        for (job, states) in jobs.iter().zip(states) {
            let at = ReadContext {
                job,
                checkpoint: limits.checkpoint,
                partitions: limits.partitions,
                is_live: true,
            };
            let groups = groups(job, notified, states)?;
            let is_published =
                |group: &NotifiedGroup| group.position.offset < self.published_through;
            if notified.iter().all(is_published) {
                self.forget_top_entries(job, &groups);
                continue;
            }
            match self.view_changes(at, &groups).await? {
                Some(changes) => messages.extend(changes),
                None => {
                    tracing::debug!(
                        view = job.view(),
                        "the view is new: its changes are not published"
                    );
                    self.forget_top_entries(job, &groups);
                }
            }
        }
        // In log order across views.
        messages.sort_by_key(|message| message.position.offset);
        Ok(messages
            .iter()
            .map(|message| message.encode().into())
            .collect())
    }

    fn forget_top_entries(&mut self, job: &Job<Board>, groups: &[ChangedGroup<'_>]) {
        let names = groups.iter().map(|group| name(job, &group.key));
        self.pending.extend(names.map(|name| (name, None)));
    }

    /// Derives the changes and achievements of a view. Returns `None` if the previous entries of
    /// the view are unknown.
    async fn view_changes(
        &mut self,
        at: ReadContext<'_>,
        groups: &[ChangedGroup<'_>],
    ) -> Result<Option<Vec<OutboxMessage>>> {
        let Some(steps) = self.steps(at, groups).await? else {
            return Ok(None);
        };
        let Some(mut top_entries) = self.load_top_entries(at, &steps).await? else {
            return Ok(None);
        };
        let mut messages = Vec::new();
        let mut newer: BTreeMap<&[u8], NewerStates> = BTreeMap::new();
        for (group, before) in &steps {
            let boards = messages::changed_boards(before, &group.after);
            if !boards.is_empty() {
                let change =
                    messages::board_change(at.job, group.notified, before, &group.after, &boards);
                messages.push(change?);
            }
            let of_key = top_entries.get(&group.key).into_iter().flatten();
            if of_key.into_iter().any(TopEntries::needs_reload) {
                let mut states = self.published_states(at.job, &group.key);
                let newer = newer.get(group.key.as_slice());
                states.extend(newer.into_iter().flatten().cloned());
                let requested = BTreeMap::from([(group.key.clone(), states)]);
                let Some(found) = self.previous.top_entries(at, &requested).await? else {
                    return Ok(None);
                };
                // The key may have become unreadable.
                top_entries.remove(&group.key);
                self.pending.push((name(at.job, &group.key), None));
                top_entries.extend(found);
            }
            if let Some(of_key) = top_entries.get_mut(&group.key) {
                messages.extend(derive_achievements(at.job, group, before, of_key)?);
            }
            let newer = newer.entry(&group.key).or_default();
            newer.push((group.member.clone(), group.after.clone()));
        }
        let top_entries = top_entries.into_iter();
        self.pending
            .extend(top_entries.map(|(key, top_entries)| (name(at.job, &key), Some(top_entries))));
        Ok(Some(messages))
    }

    /// Pairs the groups with their previous entries. Skips groups of keys whose entries are
    /// unknown.
    async fn steps<'g, 'n>(
        &mut self,
        at: ReadContext<'_>,
        groups: &'g [ChangedGroup<'n>],
    ) -> Result<Option<Vec<Step<'g, 'n>>>> {
        let mut requested: BTreeMap<Vec<u8>, Members> = BTreeMap::new();
        for group in groups {
            let boards = searched_boards(at.job, &group.after);
            let members = requested.entry(group.key.clone()).or_default();
            members.push((group.member.clone(), boards));
        }
        let Some(mut before) = self.previous.states(at, &requested).await? else {
            return Ok(None);
        };
        before.retain(|key, found| {
            requested
                .get(key)
                .is_some_and(|requested| requested.len() == found.len())
        });
        let mut steps = Vec::with_capacity(groups.len());
        for group in groups {
            let mut published = None;
            if !self.published_states.is_empty() {
                let (key, member) = (group.key.clone(), group.member.clone());
                let name = (at.job.view().to_owned(), key, member);
                published = self
                    .published_states
                    .get(&name)
                    .map(|(_, entries)| entries.clone());
                self.caught_up.extend(published.is_some().then_some(name));
            }
            let of_key = before.get_mut(&group.key);
            match of_key.and_then(|of_key| of_key.remove(&group.member)) {
                Some(previous) => steps.push((group, published.unwrap_or(previous))),
                None => self.forget_top_entries(at.job, std::slice::from_ref(group)),
            }
        }
        Ok(Some(steps))
    }

    /// The published entries of a key's members whose live entries are newer.
    fn published_states(&self, job: &Job<Board>, key: &[u8]) -> NewerStates {
        let first = (job.view().to_owned(), key.to_vec(), Vec::new());
        let of_key = self.published_states.range(first..);
        let of_key = of_key.take_while(|((view, other, _), _)| view == job.view() && other == key);
        of_key
            .map(|((.., member), (_, state))| (member.clone(), state.clone()))
            .collect()
    }

    /// Loads the top entries, at the checkpoint, of keys that change on a board with achievements.
    async fn load_top_entries(
        &mut self,
        at: ReadContext<'_>,
        steps: &[Step<'_, '_>],
    ) -> Result<Option<BTreeMap<Vec<u8>, Vec<TopEntries>>>> {
        let mut top_entries = BTreeMap::new();
        let mut missing = BTreeMap::new();
        for (group, before) in steps {
            let mut boards = at.job.achievements().iter();
            let changes = boards.any(|achievement| {
                let board = &achievement.board;
                !messages::is_same(before.entry(board), group.after.entry(board))
            });
            if !changes || top_entries.contains_key(&group.key) || missing.contains_key(&group.key)
            {
                continue;
            }
            match self.top_entries.get(&name(at.job, &group.key)) {
                Some(known) => drop(top_entries.insert(group.key.clone(), known)),
                None => {
                    let published_states = self.published_states(at.job, &group.key);
                    missing.insert(group.key.clone(), published_states);
                }
            }
        }
        let found = self.previous.top_entries(at, &missing).await?;
        Ok(found.map(|found| {
            top_entries.extend(found);
            top_entries
        }))
    }
}

/// The boards to search for a member. If the job has scores, the tree by member finds the boards.
fn searched_boards(job: &Job<Board>, after: &MemberEntries) -> Vec<Vec<u8>> {
    if job.board_columns().0.is_empty() {
        return vec![Vec::new()];
    }
    let boards = after.entries.iter().filter(|_| job.score().0.is_empty());
    boards.map(|entry| entry.board.clone()).collect()
}

/// The offsets whose changes can never be published. The state is at the start of a generation that
/// begins at a run, and earlier offsets were not published.
fn lost_range(state: &PartitionState, published: Option<Offset>) -> Option<Range<Offset>> {
    let begin = state.bounds.values().next()?.next_offset;
    let published = published.unwrap_or(0);
    // An empty `since` means that no view has been counted yet.
    (state.since.is_empty() && published < begin).then_some(published..begin)
}

fn name(job: &Job<Board>, key: &[u8]) -> ViewKey {
    (job.view().to_owned(), key.to_vec())
}

/// Derives the achievements of a group's change, and updates the top entries.
fn derive_achievements(
    job: &Job<Board>,
    group: &ChangedGroup<'_>,
    before: &MemberEntries,
    top_entries: &mut [TopEntries],
) -> Result<Vec<OutboxMessage>> {
    let mut messages = Vec::new();
    let boards = job.achievements().iter().zip(top_entries).enumerate();
    for (index, (board, entries_of_board)) in boards {
        let (old, new) = (before.entry(&board.board), group.after.entry(&board.board));
        if messages::is_same(old, new) {
            continue;
        }
        let mut events = entries_of_board.apply(&group.member, new);
        if index == 0 {
            events.extend(entries_of_board.personal_record(&group.member, old, new));
        }
        for event in &events {
            messages.push(messages::achievement(job, group.notified, board, event)?);
        }
    }
    Ok(messages)
}

/// The groups of a micro-batch in order, with their new entries in a view.
fn groups<'a>(
    job: &Job<Board>,
    notified: &'a [NotifiedGroup],
    states: &States,
) -> Result<Vec<ChangedGroup<'a>>> {
    let fault = |what: String| Error::Fault(format!("job {}: {what}", job.name()));
    let mut rows = BTreeMap::new();
    for row in 0..states.states.len() {
        rows.insert((states.keys.value(row), states.members.value(row)), row);
    }
    let mut groups = Vec::with_capacity(notified.len());
    for notified in notified {
        let (key, member) = encode_group(job, notified.group)?;
        let row = rows.get(&(key.as_slice(), member.as_slice()));
        let row = *row.ok_or_else(|| fault("a group has no entries".to_owned()))?;
        let after = states.state(row).map(MemberEntries::decode).transpose();
        groups.push(ChangedGroup {
            notified,
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
    use schemas::seam::{Cut, GenerationStart};

    use super::*;

    #[test]
    fn unpublished_offsets_before_the_generation_are_lost() {
        let cut = Cut {
            next_offset: 10,
            last: None,
        };
        let mut state = PartitionState::new_generation(
            2,
            &GenerationStart {
                newest: 1,
                cut,
                log_end: 15,
                generation_min: 2,
            },
        );
        assert_eq!(lost_range(&state, Some(10)), None);
        assert_eq!(lost_range(&state, Some(12)), None);
        assert_eq!(lost_range(&state, Some(7)), Some(7..10));
        assert_eq!(lost_range(&state, None), Some(0..10));
        // Unpublished messages of a started generation are in its outbox. Lost ones were reported
        // at its start.
        let checkpoint = state.checkpoint();
        let applied = state.apply(&checkpoint, cut, &["a view"]);
        assert_eq!(applied, Ok(()));
        assert_eq!(lost_range(&state, Some(7)), None);
        // The first generation covers nothing.
        let first = GenerationStart {
            newest: 0,
            cut: Cut::start(),
            log_end: 15,
            generation_min: 1,
        };
        assert_eq!(
            lost_range(&PartitionState::new_generation(1, &first), None),
            None
        );
    }
}
