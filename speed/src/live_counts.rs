//! Maintains the live counts of one partition: the sums of live entries from which readers derive
//! the size of a board ([`schemas::seam::live_count`]).
//!
//! A key gets a live count when it has many live entries, or when a reader requests it. Correctness
//! does not depend on memory here. A count is read when its key changes, together with the previous
//! entries of the changed members. The step that applies the change stores the new count only if
//! the old one is unchanged. So a count is correct or missing. If a count can't be updated at once,
//! it is deleted and processing continues.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::Array;
use futures::{StreamExt, stream};
use jobs::board::{KeyBoards, LiveCount, MemberEntries, ReadError as BoardError};
use jobs::{Board, Job};
use moka::sync::Cache;
use schemas::entities::CacheMiss;
use schemas::key::KeyValue;
use schemas::partition::partition_of;
use schemas::seam::{self, Checkpoint, Epoch, PartitionState};
use stores::ErrorKind;
use stores::boards::{
    NodeCache, NodesError, StoredNodes, build_seam, create_node_cache, load_boards, merge_boards,
};
use stores::live::{
    Entries, EntryQuery, LiveEntries, LiveRead, MembersQuery, PartitionId, STORED_COUNT_MAX,
};
use stores::live_count::{LiveCountChange, StoredLiveCount};
use stores::views::RunRecords;

use crate::processor::{Limits, ViewKey};
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// After an inconsistent read or a store failure, this number of entries must change before the
/// next attempt.
const RETRY_AFTER_ENTRIES: u64 = 100;
/// The same after corrupt data, or after a build that timed out.
const DAMAGE_RETRY_AFTER_ENTRIES: u64 = 10_000;
/// Timeouts of the worker for an update, and for a build from all entries of a key.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(2);
const BUILD_TIMEOUT: Duration = Duration::from_secs(10);
/// Members per read.
const MEMBERS_PER_READ: usize = 5_000;
/// Keys per read.
const KEYS_PER_READ: usize = 1_000;
/// Counts that are updated concurrently.
const UPDATE_CONCURRENCY: usize = 16;
/// Counts that are built concurrently. Each holds all live entries of its key in memory.
const BUILD_CONCURRENCY: usize = 2;
/// Counts that are built for one micro-batch, which waits for them.
const BUILDS_PER_BATCH_MAX: usize = 4;
/// Maximum keys with a recorded back-off.
const BACKOFFS_MAX: u64 = 100_000;
/// Memory of cached nodes per partition.
const NODE_CACHE_BYTES_MAX: u64 = 16 << 20;

/// A key with its stored count or marker.
struct CountedKey<'a> {
    changed: &'a ChangedKey,
    stored: StoredLiveCount,
    /// Its number of live entries.
    entry_count: u64,
}

/// A key with changed entries, and whether a reader missed its count.
struct ChangedKey {
    key: Vec<u8>,
    members: Vec<(Vec<u8>, MemberEntries)>,
    is_missed: bool,
}

/// Changed keys by their bytes.
type ChangedKeys = BTreeMap<Vec<u8>, ChangedKey>;

/// When a key is checked again.
#[derive(Debug, Clone, Copy)]
struct Backoff {
    /// After this number of changed entries.
    entries: u64,
    /// Or when a reader requests its count.
    until_requested: bool,
}

/// The reason why a count is missing.
enum CountError {
    /// The checkpoint or the stored count changed.
    CheckpointMismatch,
    /// The count refers to another version or base than the current one.
    Stale,
    /// A transient failure.
    Transient(String),
    /// A lasting failure.
    Lasting(String),
}

impl From<BoardError<NodesError>> for CountError {
    fn from(error: BoardError<NodesError>) -> Self {
        match error {
            BoardError::SeamMismatch(_) | BoardError::Replaced => {
                Self::Transient(error.to_string())
            }
            BoardError::Store(NodesError::Store(error)) => error.into(),
            BoardError::Damaged(_) | BoardError::Store(_) => Self::Lasting(error.to_string()),
        }
    }
}

impl From<stores::Error> for CountError {
    fn from(error: stores::Error) -> Self {
        match error.kind() {
            ErrorKind::Retry => Self::Transient(error.to_string()),
            ErrorKind::Reject | ErrorKind::Fatal => Self::Lasting(error.to_string()),
        }
    }
}

/// Maintains the live counts of one partition.
#[derive(Debug)]
pub(crate) struct LiveCounts {
    id: PartitionId,
    ports: SpeedPorts,
    /// A key with this number of live entries gets a count.
    min_entries: u64,
    /// The run records, read since the last refresh.
    runs: Option<Arc<RunRecords>>,
    newest_epochs: BTreeMap<String, Epoch>,
    backoffs: Cache<ViewKey, Backoff>,
    /// Number of counts that may still be built for the current micro-batch.
    builds_left: usize,
    nodes: NodeCache,
}

impl LiveCounts {
    pub(crate) fn new(id: PartitionId, ports: &SpeedPorts, options: &SpeedOptions) -> Self {
        Self {
            min_entries: options.sum_states.clamp(1, STORED_COUNT_MAX),
            id,
            ports: ports.clone(),
            runs: None,
            newest_epochs: BTreeMap::new(),
            backoffs: Cache::new(BACKOFFS_MAX),
            builds_left: 0,
            nodes: create_node_cache(NODE_CACHE_BYTES_MAX),
        }
    }

    /// Sets the newest complete epoch of each view.
    pub(crate) fn set_newest_epochs(&mut self, newest: &BTreeMap<String, Epoch>) {
        self.runs = None;
        if self.newest_epochs != *newest {
            self.newest_epochs = newest.clone();
            self.backoffs.invalidate_all();
        }
    }

    /// Discards all cached knowledge.
    pub(crate) fn reset(&mut self) {
        self.runs = None;
        self.backoffs.invalidate_all();
    }

    /// Computes the count changes for new entries and for cache misses.
    pub(crate) async fn compute_changes(
        &mut self,
        limits: Limits,
        jobs: &[Arc<Job<Board>>],
        entries: &[Entries],
        missed: &[CacheMiss],
    ) -> Result<Vec<LiveCountChange>> {
        let Limits {
            checkpoint,
            partitions,
            ..
        } = limits;
        self.builds_left = BUILDS_PER_BATCH_MAX;
        let mut changes = Vec::new();
        for job in jobs.iter().filter(|job| job.has_live_counts()) {
            let mut changed = collect_changed_keys(job, entries)?;
            self.add_missed(job, partitions, missed, &mut changed);
            let mut changed: Vec<ChangedKey> = changed.into_values().collect();
            changed.retain(|changed| !self.is_backing_off(job, changed));
            for changed in changed.chunks(KEYS_PER_READ) {
                self.read_counts(checkpoint, job, changed, &mut changes)
                    .await?;
            }
        }
        Ok(changes)
    }

    /// Adds the keys whose counts readers missed.
    fn add_missed(
        &self,
        job: &Job<Board>,
        partitions: u32,
        missed: &[CacheMiss],
        changed: &mut ChangedKeys,
    ) {
        for miss in missed.iter().filter(|miss| miss.view == job.view()) {
            let partition = partition_of(miss.key.to_string().as_bytes(), partitions);
            let key = job.key().encode_values(&[KeyValue::Int(miss.key)]);
            let Some(key) = key.ok().filter(|_| partition == self.id.partition) else {
                continue;
            };
            let changed = changed.entry(key.clone()).or_insert_with(|| ChangedKey {
                key,
                members: Vec::new(),
                is_missed: true,
            });
            changed.is_missed = true;
        }
    }

    /// Returns whether a key need not be checked yet. If its entries change and it has a count
    /// nevertheless, the store deletes that count.
    fn is_backing_off(&mut self, job: &Job<Board>, changed: &ChangedKey) -> bool {
        let view_key = (job.view().to_owned(), changed.key.clone());
        let Some(backoff) = self.backoffs.get(&view_key) else {
            return false;
        };
        let entries = changed.members.len() as u64;
        if backoff.entries <= entries || (changed.is_missed && backoff.until_requested) {
            self.backoffs.invalidate(&view_key);
            return false;
        }
        let entries = backoff.entries - entries;
        self.backoffs
            .insert(view_key, Backoff { entries, ..backoff });
        true
    }

    fn back_off(&mut self, job: &Job<Board>, key: &[u8], entries: u64, until_requested: bool) {
        let view_key = (job.view().to_owned(), key.to_vec());
        let backoff = Backoff {
            entries,
            until_requested,
        };
        self.backoffs.insert(view_key, backoff);
    }

    /// Reads the counts of keys and computes their changes.
    async fn read_counts(
        &mut self,
        checkpoint: Checkpoint,
        job: &Job<Board>,
        changed: &[ChangedKey],
        changes: &mut Vec<LiveCountChange>,
    ) -> Result<()> {
        let queries: Vec<MembersQuery> = changed
            .iter()
            .map(|changed| self.build_query(job, &changed.key, &[]))
            .collect();
        let own_partition = self.id.partition;
        let live = Arc::clone(&self.ports.live);
        let partitions = own_partition..own_partition.saturating_add(1);
        let snapshot = live
            .read_members(self.id.source, partitions, &queries)
            .await?;
        if !is_current(snapshot.partition_states.first(), checkpoint) {
            return Err(Error::CheckpointMismatch);
        }
        let mut counted = Vec::new();
        for (changed, live_entries) in changed.iter().zip(snapshot.entries) {
            let entry_count = live_entries.stored_count;
            match live_entries.live_counts.into_iter().next() {
                Some((_, stored)) => counted.push(CountedKey {
                    changed,
                    stored,
                    entry_count,
                }),
                None if entry_count >= self.min_entries || changed.is_missed => {
                    changes.push(build_change(
                        job,
                        &changed.key,
                        None,
                        Some(StoredLiveCount::started()),
                    ));
                }
                None => self.back_off(job, &changed.key, self.min_entries - entry_count, true),
            }
        }
        self.refresh_counts(checkpoint, job, counted, changes).await
    }

    /// Computes changes for keys that have a count or a marker. Existing counts are updated first,
    /// then some of the marked counts are built.
    async fn refresh_counts(
        &mut self,
        checkpoint: Checkpoint,
        job: &Job<Board>,
        counted: Vec<CountedKey<'_>>,
        changes: &mut Vec<LiveCountChange>,
    ) -> Result<()> {
        let is_built = |key: &CountedKey<'_>| key.stored.content().is_some();
        let (updates, mut builds): (Vec<_>, Vec<_>) = counted.into_iter().partition(is_built);
        let postponed = builds.split_off(builds.len().min(self.builds_left));
        self.builds_left -= builds.len();
        // The marker of a key without changed entries remains valid.
        for CountedKey {
            changed, stored, ..
        } in postponed
        {
            if !changed.members.is_empty() {
                let next = Some(StoredLiveCount::started());
                changes.push(build_change(job, &changed.key, Some(stored), next));
            }
        }
        self.compute_all(checkpoint, job, updates, UPDATE_CONCURRENCY, changes)
            .await?;
        self.compute_all(checkpoint, job, builds, BUILD_CONCURRENCY, changes)
            .await?;
        Ok(())
    }

    /// Computes the next counts of several keys concurrently.
    async fn compute_all(
        &mut self,
        checkpoint: Checkpoint,
        job: &Job<Board>,
        counted: Vec<CountedKey<'_>>,
        concurrency: usize,
        changes: &mut Vec<LiveCountChange>,
    ) -> Result<()> {
        if counted.is_empty() {
            return Ok(());
        }
        let runs = match &self.runs {
            Some(runs) => Arc::clone(runs),
            None => Arc::new(self.ports.views.runs(self.id.source).await?),
        };
        self.runs = Some(Arc::clone(&runs));
        let (this, runs) = (&*self, &*runs);
        let calls = counted
            .iter()
            .map(|key| this.compute(checkpoint, runs, job, key));
        let calls: Vec<_> = calls.collect();
        let next: Vec<_> = stream::iter(calls).buffered(concurrency).collect().await;
        for (key, next) in counted.into_iter().zip(next) {
            let CountedKey {
                changed,
                stored,
                entry_count,
            } = key;
            let next = match next {
                Ok(next) => Some(StoredLiveCount::completed(&next.encode())),
                Err(CountError::CheckpointMismatch) => return Err(Error::CheckpointMismatch),
                Err(CountError::Stale) if entry_count >= self.min_entries || changed.is_missed => {
                    Some(StoredLiveCount::started())
                }
                Err(CountError::Stale) => None,
                Err(CountError::Transient(reason)) => {
                    tracing::debug!(view = job.view(), reason, "a live count was deleted");
                    self.back_off(job, &changed.key, RETRY_AFTER_ENTRIES, true);
                    None
                }
                Err(CountError::Lasting(reason)) => {
                    tracing::info!(view = job.view(), reason, "a live count is not stored");
                    self.back_off(job, &changed.key, DAMAGE_RETRY_AFTER_ENTRIES, false);
                    None
                }
            };
            changes.push(build_change(job, &changed.key, Some(stored), next));
        }
        Ok(())
    }

    /// Computes the count after the members have their new entries.
    async fn compute(
        &self,
        checkpoint: Checkpoint,
        runs: &RunRecords,
        job: &Job<Board>,
        key: &CountedKey<'_>,
    ) -> Result<LiveCount, CountError> {
        let timed_out = || "reading its data timed out".to_owned();
        match key.stored.content() {
            None => {
                let build = self.build(checkpoint, job, key.changed, &key.stored);
                tokio::time::timeout(BUILD_TIMEOUT, build)
                    .await
                    .map_err(|_| CountError::Lasting(timed_out()))?
            }
            Some(content) => {
                let count = LiveCount::decode(content).ok_or(CountError::Stale)?;
                let update = self.update(checkpoint, runs, job, key, count);
                tokio::time::timeout(UPDATE_TIMEOUT, update)
                    .await
                    .map_err(|_| CountError::Transient(timed_out()))?
            }
        }
    }

    /// Builds a marked count from all live entries of its key.
    async fn build(
        &self,
        checkpoint: Checkpoint,
        job: &Job<Board>,
        changed: &ChangedKey,
        stored: &StoredLiveCount,
    ) -> Result<LiveCount, CountError> {
        let (live, views) = (&*self.ports.live as &dyn LiveRead, &*self.ports.views);
        let mut loaded = load_boards(live, views, job, self.id, &changed.key).await?;
        let own_state = loaded.partition_states.get(self.id.partition as usize);
        if !is_current(own_state, checkpoint) || !has_count(loaded.live_entries.as_ref(), stored) {
            return Err(CountError::CheckpointMismatch);
        }
        set_live(&mut loaded.key_boards, &changed.members);
        let root = (!loaded.root.is_empty()).then_some(&*loaded.root);
        let base = loaded.base_epoch;
        self.compute_count(job, &changed.key, root, base, &loaded.key_boards)
            .await
    }

    /// Updates a count from the old and new entries of the changed members.
    async fn update(
        &self,
        checkpoint: Checkpoint,
        runs: &RunRecords,
        job: &Job<Board>,
        key: &CountedKey<'_>,
        mut count: LiveCount,
    ) -> Result<LiveCount, CountError> {
        let CountedKey {
            changed, stored, ..
        } = key;
        let (view, own_partition) = (job.view(), self.id.partition);
        let mut reads = Vec::new();
        for members in changed.members.chunks(MEMBERS_PER_READ) {
            let queries = [self.build_query(job, &changed.key, members)];
            let partitions = own_partition..own_partition.saturating_add(1);
            let snapshot = self
                .ports
                .live
                .read_members(self.id.source, partitions, &queries)
                .await?;
            let live_entries = snapshot.entries.into_iter().next();
            if !is_current(snapshot.partition_states.first(), checkpoint)
                || !has_count(live_entries.as_ref(), stored)
            {
                return Err(CountError::CheckpointMismatch);
            }
            let mut partition_states = vec![None; own_partition as usize];
            partition_states.extend(snapshot.partition_states);
            reads.push((members, partition_states, live_entries));
        }
        // After the partition state, as in every read.
        let heads = self
            .ports
            .views
            .heads(view, std::slice::from_ref(&changed.key))
            .await?;
        let head = heads.unwrap_or_default().into_iter().next().flatten();
        let newest_epoch = runs.complete_epochs.get(view).copied().unwrap_or(0);
        let base = seam::base_epoch(head.as_ref().map_or(0, |head| head.epoch), newest_epoch);
        let root = head.as_ref().map(|head| &*head.root);
        if !count.applies_to(root, base) {
            return Err(CountError::Stale);
        }
        for (members, partition_states, live_entries) in reads {
            let seam = build_seam(view, runs, &partition_states, Some(own_partition));
            let mut key_boards = merge_boards(&seam, job, head.as_ref(), live_entries.as_ref())?;
            let before = self
                .compute_count(job, &changed.key, root, base, &key_boards)
                .await?;
            set_live(&mut key_boards, members);
            let after = self
                .compute_count(job, &changed.key, root, base, &key_boards)
                .await?;
            // Members without changes contribute equally to both.
            let next = count.apply_change(&before, &after);
            count = next.ok_or_else(|| CountError::Lasting("it is corrupt".to_owned()))?;
        }
        Ok(count)
    }

    /// Computes the count of live entries relative to a version.
    async fn compute_count(
        &self,
        job: &Job<Board>,
        key: &[u8],
        root: Option<&[u8]>,
        base: Epoch,
        key_boards: &KeyBoards,
    ) -> Result<LiveCount, CountError> {
        let nodes = StoredNodes {
            views: &*self.ports.views,
            cache: Some(&self.nodes),
            view: job.view(),
            key,
        };
        let board = key_boards
            .open_board(&nodes, Job::<Board>::ONLY_BOARD)
            .await?;
        Ok(LiveCount::compute(root, base, &board))
    }

    fn build_query(
        &self,
        job: &Job<Board>,
        key: &[u8],
        members: &[(Vec<u8>, MemberEntries)],
    ) -> MembersQuery {
        MembersQuery {
            query: EntryQuery {
                view: job.view().to_owned(),
                key: key.to_vec(),
                partition: Some(self.id.partition),
            },
            members: members.iter().map(|(member, _)| member.clone()).collect(),
        }
    }
}

/// Collects the keys with changed entries.
fn collect_changed_keys(job: &Job<Board>, entries: &[Entries]) -> Result<ChangedKeys> {
    let mut changed = ChangedKeys::new();
    for entries in entries.iter().filter(|entries| entries.view == job.view()) {
        for row in 0..entries.keys.len() {
            let member_entries = entries.entry(row).map(MemberEntries::decode).transpose();
            let member_entries = member_entries.map_err(|error| Error::Fault(error.to_string()))?;
            let key = entries.keys.value(row);
            let changed_key = changed.entry(key.to_vec()).or_insert_with(|| ChangedKey {
                key: key.to_vec(),
                members: Vec::new(),
                is_missed: false,
            });
            let member = entries.members.value(row).to_vec();
            changed_key
                .members
                .push((member, member_entries.unwrap_or_default()));
        }
    }
    Ok(changed)
}

/// Sets the live entries of members.
fn set_live(key_boards: &mut KeyBoards, members: &[(Vec<u8>, MemberEntries)]) {
    for (member, entries) in members {
        key_boards.set_live(member, entries.clone());
    }
}

/// Returns whether a partition state is at the worker's checkpoint.
fn is_current(state: Option<&Option<PartitionState>>, checkpoint: Checkpoint) -> bool {
    state
        .and_then(Option::as_ref)
        .map(PartitionState::checkpoint)
        == Some(checkpoint)
}

/// Returns whether the read found this stored count.
fn has_count(live_entries: Option<&LiveEntries>, stored: &StoredLiveCount) -> bool {
    let mut counts = live_entries
        .into_iter()
        .flat_map(|entries| &entries.live_counts);
    counts.any(|(_, count)| count == stored)
}

/// Builds the change of the count that the worker read last.
fn build_change(
    job: &Job<Board>,
    key: &[u8],
    expected: Option<StoredLiveCount>,
    next: Option<StoredLiveCount>,
) -> LiveCountChange {
    LiveCountChange {
        view: job.view().to_owned(),
        key: key.to_vec(),
        expected,
        next,
    }
}
