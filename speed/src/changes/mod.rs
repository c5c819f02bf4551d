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
use stores::live::{Entries, PartitionId};

pub(crate) use self::messages::NotifiedGroup;
pub(crate) use self::outbox::ChangeOutbox;
use self::previous::{PreviousEntryReader, ReadContext, RequestedMembers};
use self::replay::{GroupName, PublishedEntries, Replay, encode_group};
use crate::processor::{Limits, ViewKey};
use crate::{Error, Result, SpeedPorts};

/// Maximum keys with cached top entries.
const TOP_ENTRIES_KEYS_MAX: u64 = 4_000;

/// Derives the messages of one partition.
#[derive(Debug)]
pub(crate) struct ChangeDetector {
    id: PartitionId,
    ports: SpeedPorts,
    previous: PreviousEntryReader,
    /// The changes of notifications before this offset are published.
    published_end: Offset,
    /// The published entries of groups whose live entries are newer; valid for one generation.
    published_entries: PublishedEntries,
    generation: Option<Generation>,
    /// The top entries at the checkpoint.
    top_entries: Cache<ViewKey, Vec<TopEntries>>,
    /// The top entries after the checkpoint advances; `None` if they will be unknown.
    pending_top_entries: Vec<(ViewKey, Option<Vec<TopEntries>>)>,
    /// Groups whose published entries are current after the checkpoint advances.
    caught_up_groups: Vec<GroupName>,
}

/// Members of a key, with entries that replace those of the partition state.
type NewerEntries = Vec<(Vec<u8>, MemberEntries)>;

/// A group of a micro-batch in one view.
struct ChangedGroup<'a> {
    notified: &'a NotifiedGroup,
    key: Vec<u8>,
    member: Vec<u8>,
    after: MemberEntries,
}

/// A group with its previous entries.
type GroupChange<'g, 'n> = (&'g ChangedGroup<'n>, MemberEntries);

impl ChangeDetector {
    pub(crate) fn new(id: PartitionId, ports: &SpeedPorts) -> Self {
        Self {
            id,
            previous: PreviousEntryReader::new(
                id,
                Arc::clone(&ports.live) as _,
                Arc::clone(&ports.views),
            ),
            ports: ports.clone(),
            published_end: 0,
            published_entries: PublishedEntries::new(),
            generation: None,
            top_entries: Cache::new(TOP_ENTRIES_KEYS_MAX),
            pending_top_entries: Vec::new(),
            caught_up_groups: Vec::new(),
        }
    }

    /// Starts with this partition state. Reads up to which offset changes were published.
    pub(crate) async fn begin(
        &mut self,
        state: &PartitionState,
        jobs: &[Arc<Job<Board>>],
    ) -> Result<()> {
        self.reset();
        let published = self.ports.achievements.published_end(self.id).await?;
        if let Some(lost_offsets) = find_lost_range(state, published) {
            tracing::warn!(
                partition = self.id.partition,
                from = lost_offsets.start,
                until = lost_offsets.end,
                "live state was lost, and a batch run covers offsets from `from` until `until`: board changes of these offsets will not be published"
            );
        }
        // A generation that started at a run repeats offsets that an earlier one had counted.
        let generation_start = state.bounds.values().next();
        let starts_at_run = generation_start.is_some_and(|begin| begin.next_offset > 0);
        self.published_end = match published {
            Some(published) if published > state.position.next_offset => {
                let topic = self.id.source.topic();
                let log_end = self.ports.log.end(topic, self.id.partition).await?;
                if published > log_end {
                    tracing::warn!(
                        partition = self.id.partition,
                        published,
                        log_end,
                        "changes were published up to an offset beyond the end of the log: the log was replaced, so all its changes are published"
                    );
                    self.ports
                        .achievements
                        .record_published_end(self.id, 0)
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
            self.published_entries.clear();
        }
        self.published_entries
            .retain(|_, (offset, _)| *offset >= position);
        let is_behind = self.published_end > position || state.is_replaying() && !is_known;
        if published.is_some() && is_behind && self.published_entries.is_empty() {
            let replay = Replay {
                ports: &self.ports,
                id: self.id,
                state,
                published_end: self.published_end,
            };
            self.published_entries = replay
                .read_published_entries(jobs, &mut self.previous)
                .await?;
        }
        self.generation = Some(state.generation);
        Ok(())
    }

    /// Returns whether a micro-batch must end between two offsets, because only the first one was
    /// published.
    pub(crate) const fn splits_batch(&self, first: Offset, offset: Offset) -> bool {
        first < self.published_end && offset >= self.published_end
    }

    /// Called after the checkpoint advanced past the last micro-batch.
    pub(crate) fn on_applied(&mut self) {
        for (view_key, top_entries) in std::mem::take(&mut self.pending_top_entries) {
            match top_entries {
                Some(top_entries) => self.top_entries.insert(view_key, top_entries),
                None => self.top_entries.invalidate(&view_key),
            }
        }
        for group_name in std::mem::take(&mut self.caught_up_groups) {
            self.published_entries.remove(&group_name);
        }
    }

    /// Discards pending changes, because the last micro-batch may not have been applied.
    pub(crate) fn reset(&mut self) {
        self.pending_top_entries.clear();
        self.caught_up_groups.clear();
        self.top_entries.invalidate_all();
    }

    /// Derives the outbox entries of a micro-batch. `entries` has one item per view, each with all
    /// groups in the order of key and member.
    pub(crate) async fn detect(
        &mut self,
        limits: Limits,
        jobs: &[Arc<Job<Board>>],
        notified: &[NotifiedGroup],
        entries: &[Entries],
    ) -> Result<Vec<Bytes>> {
        self.pending_top_entries.clear();
        self.caught_up_groups.clear();
        let mut messages = Vec::new();
        for (job, entries) in jobs.iter().zip(entries) {
            let context = ReadContext {
                job,
                checkpoint: limits.checkpoint,
                partitions: limits.partitions,
                is_live: true,
            };
            let changed_groups = collect_groups(job, notified, entries)?;
            let is_published = |group: &NotifiedGroup| group.position.offset < self.published_end;
            if notified.iter().all(is_published) {
                self.forget_top_entries(job, &changed_groups);
                continue;
            }
            match self.derive_view_changes(context, &changed_groups).await? {
                Some(changes) => messages.extend(changes),
                None => {
                    tracing::debug!(
                        view = job.view(),
                        "the view is new: its changes are not published"
                    );
                    self.forget_top_entries(job, &changed_groups);
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
        let forgotten = groups.iter().map(|group| (view_key(job, &group.key), None));
        self.pending_top_entries.extend(forgotten);
    }

    /// Derives the changes and achievements of a view. Returns `None` if the previous entries of
    /// the view are unknown.
    async fn derive_view_changes(
        &mut self,
        context: ReadContext<'_>,
        groups: &[ChangedGroup<'_>],
    ) -> Result<Option<Vec<OutboxMessage>>> {
        let Some(group_changes) = self.pair_with_previous(context, groups).await? else {
            return Ok(None);
        };
        let Some(mut top_entries) = self.load_top_entries(context, &group_changes).await? else {
            return Ok(None);
        };
        let mut messages = Vec::new();
        let mut newer: BTreeMap<&[u8], NewerEntries> = BTreeMap::new();
        for (group, before) in &group_changes {
            let (job, notified, after) = (context.job, group.notified, &group.after);
            let boards = messages::find_changed_boards(before, after);
            if !boards.is_empty() {
                messages.push(messages::build_board_change(
                    job, notified, before, after, &boards,
                )?);
            }
            let mut entries_by_board = top_entries.get(&group.key).into_iter().flatten();
            if entries_by_board.any(TopEntries::needs_reload) {
                let mut entries = self.find_published_entries(job, &group.key);
                let newer = newer.get(group.key.as_slice());
                entries.extend(newer.into_iter().flatten().cloned());
                let requested = BTreeMap::from([(group.key.clone(), entries)]);
                let reloaded = self.previous.read_top_entries(context, &requested);
                let Some(reloaded) = reloaded.await? else {
                    return Ok(None);
                };
                // The key may have become unreadable.
                top_entries.remove(&group.key);
                self.pending_top_entries
                    .push((view_key(job, &group.key), None));
                top_entries.extend(reloaded);
            }
            if let Some(top_entries) = top_entries.get_mut(&group.key) {
                messages.extend(derive_achievements(job, group, before, top_entries)?);
            }
            let newer = newer.entry(&group.key).or_default();
            newer.push((group.member.clone(), group.after.clone()));
        }
        let top_entries = top_entries.into_iter();
        let job = context.job;
        let pending = top_entries.map(|(key, entries)| (view_key(job, &key), Some(entries)));
        self.pending_top_entries.extend(pending);
        Ok(Some(messages))
    }

    /// Pairs the groups with their previous entries. Skips groups of keys whose entries are
    /// unknown.
    async fn pair_with_previous<'g, 'n>(
        &mut self,
        context: ReadContext<'_>,
        groups: &'g [ChangedGroup<'n>],
    ) -> Result<Option<Vec<GroupChange<'g, 'n>>>> {
        let mut requested: BTreeMap<Vec<u8>, RequestedMembers> = BTreeMap::new();
        for group in groups {
            let boards = list_searched_boards(context.job, &group.after);
            let members = requested.entry(group.key.clone()).or_default();
            members.push((group.member.clone(), boards));
        }
        let Some(mut previous) = self.previous.read_entries(context, &requested).await? else {
            return Ok(None);
        };
        previous.retain(|key, known_members| {
            requested
                .get(key)
                .is_some_and(|requested| requested.len() == known_members.len())
        });
        let mut group_changes = Vec::with_capacity(groups.len());
        for group in groups {
            let mut published = None;
            if !self.published_entries.is_empty() {
                let (key, member) = (group.key.clone(), group.member.clone());
                let group_name = (context.job.view().to_owned(), key, member);
                published = self
                    .published_entries
                    .get(&group_name)
                    .map(|(_, entries)| entries.clone());
                self.caught_up_groups
                    .extend(published.is_some().then_some(group_name));
            }
            let members = previous.get_mut(&group.key);
            match members.and_then(|members| members.remove(&group.member)) {
                Some(entries) => group_changes.push((group, published.unwrap_or(entries))),
                None => self.forget_top_entries(context.job, std::slice::from_ref(group)),
            }
        }
        Ok(Some(group_changes))
    }

    /// Finds the published entries of a key's members whose live entries are newer.
    fn find_published_entries(&self, job: &Job<Board>, key: &[u8]) -> NewerEntries {
        let first = (job.view().to_owned(), key.to_vec(), Vec::new());
        let entries = self.published_entries.range(first..);
        entries
            .take_while(|((view, other, _), _)| view == job.view() && other == key)
            .map(|((.., member), (_, entries))| (member.clone(), entries.clone()))
            .collect()
    }

    /// Loads the top entries, at the checkpoint, of keys that change on a board with achievements.
    async fn load_top_entries(
        &mut self,
        context: ReadContext<'_>,
        group_changes: &[GroupChange<'_, '_>],
    ) -> Result<Option<BTreeMap<Vec<u8>, Vec<TopEntries>>>> {
        let mut top_entries = BTreeMap::new();
        let mut missing = BTreeMap::new();
        for (group, before) in group_changes {
            let mut boards = context.job.achievement_boards().iter();
            let is_changed = boards.any(|achievement| {
                let board = &achievement.board;
                !messages::are_same(before.entry(board), group.after.entry(board))
            });
            let is_known = top_entries.contains_key(&group.key) || missing.contains_key(&group.key);
            if !is_changed || is_known {
                continue;
            }
            match self.top_entries.get(&view_key(context.job, &group.key)) {
                Some(cached) => drop(top_entries.insert(group.key.clone(), cached)),
                None => {
                    let published_entries = self.find_published_entries(context.job, &group.key);
                    missing.insert(group.key.clone(), published_entries);
                }
            }
        }
        let loaded = self.previous.read_top_entries(context, &missing).await?;
        Ok(loaded.map(|loaded| {
            top_entries.extend(loaded);
            top_entries
        }))
    }
}

/// Lists the boards to search for a member. With scores, the tree by member finds the boards.
fn list_searched_boards(job: &Job<Board>, after: &MemberEntries) -> Vec<Vec<u8>> {
    if job.board_columns().0.is_empty() {
        return vec![Vec::new()];
    }
    let boards = after.entries.iter().filter(|_| job.score().0.is_empty());
    boards.map(|entry| entry.board.clone()).collect()
}

/// Finds the offsets whose changes can never be published. The state is at the start of a
/// generation that begins at a run, and earlier offsets were not published.
fn find_lost_range(state: &PartitionState, published: Option<Offset>) -> Option<Range<Offset>> {
    let generation_start = state.bounds.values().next()?.next_offset;
    let published = published.unwrap_or(0);
    // An empty `since` means that no view has been counted yet.
    (state.since.is_empty() && published < generation_start).then_some(published..generation_start)
}

fn view_key(job: &Job<Board>, key: &[u8]) -> ViewKey {
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
    let boards = job.achievement_boards().iter().zip(top_entries).enumerate();
    for (index, (board, board_entries)) in boards {
        let (old, new) = (before.entry(&board.board), group.after.entry(&board.board));
        if messages::are_same(old, new) {
            continue;
        }
        let mut events = board_entries.apply(&group.member, new);
        if index == 0 {
            events.extend(board_entries.find_personal_record(&group.member, old, new));
        }
        for event in &events {
            messages.push(messages::build_achievement(
                job,
                group.notified,
                board,
                event,
            )?);
        }
    }
    Ok(messages)
}

/// Collects the groups of a micro-batch in order, with their new entries in a view.
fn collect_groups<'a>(
    job: &Job<Board>,
    notified: &'a [NotifiedGroup],
    entries: &Entries,
) -> Result<Vec<ChangedGroup<'a>>> {
    let fault = |problem: String| Error::Fault(format!("job {}: {problem}", job.name()));
    let mut rows = BTreeMap::new();
    for row in 0..entries.entries.len() {
        rows.insert((entries.keys.value(row), entries.members.value(row)), row);
    }
    let mut groups = Vec::with_capacity(notified.len());
    for notified in notified {
        let (key, member) = encode_group(job, notified.group)?;
        let row = rows.get(&(key.as_slice(), member.as_slice()));
        let row = *row.ok_or_else(|| fault("a group has no entries".to_owned()))?;
        let after = entries.entry(row).map(MemberEntries::decode).transpose();
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
        assert_eq!(find_lost_range(&state, Some(10)), None);
        assert_eq!(find_lost_range(&state, Some(12)), None);
        assert_eq!(find_lost_range(&state, Some(7)), Some(7..10));
        assert_eq!(find_lost_range(&state, None), Some(0..10));
        // Unpublished messages of a started generation are in its outbox. Lost ones were reported
        // at its start.
        let checkpoint = state.checkpoint();
        let applied = state.apply(&checkpoint, cut, &["a view"]);
        assert_eq!(applied, Ok(()));
        assert_eq!(find_lost_range(&state, Some(7)), None);
        // The first generation covers nothing.
        let first = GenerationStart {
            newest: 0,
            cut: Cut::start(),
            log_end: 15,
            generation_min: 1,
        };
        assert_eq!(
            find_lost_range(&PartitionState::new_generation(1, &first), None),
            None
        );
    }
}
