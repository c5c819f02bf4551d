//! Reads previous entries: the entries that members had on boards before the changes of a
//! micro-batch. The order is that of the serving layer: run records, then partition states with
//! their live entries, then heads and nodes.
//!
//! Run records and heads are cached as long as they match live state, because a newer run does not
//! change the previous entries. After a seam mismatch they are read again.
//!
//! If rows of a key are missing or corrupt, perhaps only a later run restores them. The worker does
//! not wait for it: until then, the previous entries of the key are unknown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use jobs::board::{KeyBoards, MemberEntries, ReadError as BoardError, TopEntries};
use jobs::merge::{SeamGap, SeamMismatch, SeamSnapshot};
use jobs::{Board, Job};
use moka::sync::Cache;
use schemas::seam::{Checkpoint, PartitionState};
use stores::ErrorKind;
use stores::boards::{
    NodeCache, NodesError, RequestedMember, StoredNodes, build_member_queries, build_seam,
    create_node_cache, merge_boards, read_member_entries, split_members,
};
use stores::live::{EntriesSnapshot, EntryQuery, LiveRead, PartitionId};
use stores::views::{Head as StoredHead, RunRecords, ViewsRead};

use crate::changes::messages;
use crate::processor::ViewKey;
use crate::{Error, Result};

/// Memory limit of cached heads per partition.
const HEAD_CACHE_BYTES_MAX: u64 = 8 << 20;
/// Approximate memory of a cached head without its roots.
const HEAD_OVERHEAD_BYTES: usize = 256;
/// Memory limit of cached nodes per partition.
const NODE_CACHE_BYTES_MAX: u64 = 32 << 20;
/// Keys or members that are read concurrently.
const READ_CONCURRENCY: usize = 16;
/// Keys whose live entries are read together.
const KEYS_PER_READ_MAX: usize = 64;
/// Maximum retries of a read.
const RETRIES_MAX: u32 = 6;
/// Maximum retries to read missing or corrupt rows, which a run may have replaced meanwhile.
const UNREADABLE_RETRIES_MAX: u32 = 3;
/// Maximum retries while the rows are ahead of the partition state.
const BEHIND_RETRIES_MAX: u32 = 3;
/// Pause before unreadable rows of the same head are read again.
const UNREADABLE_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum recorded keys with unreadable rows.
const UNREADABLE_KEYS_MAX: usize = 10_000;
/// Pause before the first retry is twice this; each further pause doubles.
const PAUSE_BASE_MS: u64 = 10;

/// The context of a read of one view.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadContext<'a> {
    pub(super) job: &'a Job<Board>,
    /// The checkpoint of the partition state, as the worker knows it.
    pub(super) checkpoint: Checkpoint,
    /// The partitions of the topic.
    pub(super) partitions: u32,
    /// True if live entries count. Otherwise only the newest run counts.
    pub(super) is_live: bool,
}

/// The requested members of a key, each with the boards to search.
pub(super) type RequestedMembers = Vec<RequestedMember>;

/// Previous entries by key and member. Keys that are unknown are missing.
pub(super) type EntriesByKey = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, MemberEntries>>;

/// The result for a key, or the reason why its rows are unreadable.
type KeyRead<T> = std::result::Result<T, String>;

/// Reads previous entries.
#[derive(Debug)]
pub(super) struct PreviousEntryReader {
    id: PartitionId,
    live: Arc<dyn LiveRead>,
    views: Arc<dyn ViewsRead>,
    runs: Option<Arc<RunRecords>>,
    heads: Cache<ViewKey, Option<StoredHead>>,
    nodes: NodeCache,
    /// Keys with unreadable rows.
    unreadable: BTreeMap<ViewKey, UnreadableKey>,
}

/// A key, and its boards or the reason why they cannot be opened.
struct OpenedKey<'k, A> {
    key: &'k Vec<u8>,
    /// The requested part of the key.
    requested: A,
    head: Option<StoredHead>,
    key_boards: Result<KeyBoards, BoardError<NodesError>>,
}

/// A key with unreadable rows.
#[derive(Debug)]
struct UnreadableKey {
    /// Its head.
    head: Option<StoredHead>,
    /// The time of the last attempt.
    tried_at: Instant,
}

/// Counts attempts.
#[derive(Debug, Default)]
struct RetryCount {
    all: u32,
    /// Attempts that found missing or corrupt rows.
    unreadable: u32,
}

impl RetryCount {
    /// Returns whether the next attempt skips keys whose rows are still unreadable.
    const fn must_skip_unreadable(&self) -> bool {
        self.unreadable >= UNREADABLE_RETRIES_MAX
    }
}

/// The reason why an attempt failed.
enum ReadFailure {
    /// The next attempt may succeed.
    Retry(String),
    /// As `Retry`. If retries fail too, the state of this partition is behind the rows: its
    /// generation began at an earlier run than the newest, and it has not reached the newest cut.
    Behind(usize, String),
    /// As `Retry`, but rows are missing or corrupt.
    Unreadable(String),
    /// The view is new, or its rows were deleted with its definition.
    NewView,
    Error(Error),
}

impl From<stores::Error> for ReadFailure {
    fn from(error: stores::Error) -> Self {
        Self::Error(error.into())
    }
}

impl From<BoardError<NodesError>> for ReadFailure {
    fn from(error: BoardError<NodesError>) -> Self {
        match error {
            BoardError::SeamMismatch(SeamMismatch {
                gap: SeamGap::Uncounted | SeamGap::Deleted,
                ..
            }) => Self::NewView,
            BoardError::SeamMismatch(mismatch) if mismatch.gap == SeamGap::Boundary => {
                Self::Behind(mismatch.partition, mismatch.to_string())
            }
            BoardError::SeamMismatch(mismatch) => Self::Retry(mismatch.to_string()),
            error @ BoardError::Replaced => Self::Unreadable(error.to_string()),
            BoardError::Damaged(problem) => Self::Unreadable(problem),
            BoardError::Store(NodesError::Damaged(error)) => Self::Unreadable(error.to_string()),
            BoardError::Store(NodesError::Store(error)) if error.kind() == ErrorKind::Fatal => {
                Self::Unreadable(error.to_string())
            }
            BoardError::Store(NodesError::Store(error)) => error.into(),
        }
    }
}

/// The approximate memory of a cached head with its key.
fn weigh_head(head: Option<&StoredHead>) -> u32 {
    let earlier = head.and_then(|head| head.earlier.as_ref());
    let roots = head.map_or(0, |head| head.root.len());
    let roots = roots + earlier.map_or(0, |earlier| earlier.root.len());
    u32::try_from(HEAD_OVERHEAD_BYTES + roots).unwrap_or(u32::MAX)
}

impl PreviousEntryReader {
    pub(super) fn new(id: PartitionId, live: Arc<dyn LiveRead>, views: Arc<dyn ViewsRead>) -> Self {
        Self {
            id,
            live,
            views,
            runs: None,
            heads: Cache::builder()
                .max_capacity(HEAD_CACHE_BYTES_MAX)
                .weigher(|_: &ViewKey, head: &Option<StoredHead>| weigh_head(head.as_ref()))
                .build(),
            nodes: create_node_cache(NODE_CACHE_BYTES_MAX),
            unreadable: BTreeMap::new(),
        }
    }

    /// Reads the entries of members before the micro-batch, for the keys where they are known.
    /// Returns `None` if the view is new.
    pub(super) async fn read_entries(
        &mut self,
        context: ReadContext<'_>,
        requested: &BTreeMap<Vec<u8>, RequestedMembers>,
    ) -> Result<Option<EntriesByKey>> {
        let mut tries = RetryCount::default();
        loop {
            let skips_unreadable = tries.must_skip_unreadable();
            let failure = match self
                .try_read_entries(context, requested, skips_unreadable)
                .await
            {
                Ok(entries) => return Ok(Some(entries)),
                Err(failure) => failure,
            };
            if !self.prepare_retry(context, failure, &mut tries).await? {
                return Ok(None);
            }
        }
    }

    /// Reads the top entries of keys on all boards with achievements, for the keys where they are
    /// known. The given entries of members replace those of the partition state.
    pub(super) async fn read_top_entries(
        &mut self,
        context: ReadContext<'_>,
        requested: &BTreeMap<Vec<u8>, Vec<(Vec<u8>, MemberEntries)>>,
    ) -> Result<Option<BTreeMap<Vec<u8>, Vec<TopEntries>>>> {
        let mut tries = RetryCount::default();
        loop {
            let skips_unreadable = tries.must_skip_unreadable();
            let read = self.try_read_top_entries(context, requested, skips_unreadable);
            let failure = match read.await {
                Ok(top_entries) => return Ok(Some(top_entries)),
                Err(failure) => failure,
            };
            if !self.prepare_retry(context, failure, &mut tries).await? {
                return Ok(None);
            }
        }
    }

    /// Decides whether to retry after a failure; if so, drops cached run records and heads, and
    /// pauses. Returns false if the previous entries are unknown.
    async fn prepare_retry(
        &mut self,
        context: ReadContext<'_>,
        failure: ReadFailure,
        tries: &mut RetryCount,
    ) -> Result<bool> {
        let reason = match failure {
            ReadFailure::Error(error) => return Err(error),
            // The cached run records may be outdated.
            ReadFailure::NewView if tries.all > 0 => return Ok(false),
            ReadFailure::NewView => "its definition is new".to_owned(),
            // The state of another partition reaches its cut by itself.
            ReadFailure::Behind(partition, reason)
                if tries.all >= BEHIND_RETRIES_MAX && partition == self.id.partition as usize =>
            {
                let view = context.job.view();
                tracing::warn!(
                    view,
                    reason,
                    "a batch run already covers events that are counted again after a loss of live state: their changes are not published"
                );
                return Ok(false);
            }
            ReadFailure::Retry(reason) | ReadFailure::Behind(_, reason) => reason,
            ReadFailure::Unreadable(reason) => {
                tries.unreadable += 1;
                reason
            }
        };
        self.runs = None;
        self.heads.invalidate_all();
        tries.all += 1;
        if tries.all > RETRIES_MAX {
            return Err(Error::SeamMismatch(format!(
                "cannot read the previous entries on the boards of {}: {reason}",
                context.job.view()
            )));
        }
        tokio::time::sleep(Duration::from_millis(PAUSE_BASE_MS << tries.all)).await;
        Ok(true)
    }

    async fn read_runs(&mut self) -> Result<Arc<RunRecords>, ReadFailure> {
        if let Some(runs) = &self.runs {
            return Ok(Arc::clone(runs));
        }
        let runs = Arc::new(self.views.runs(self.id.source).await?);
        self.runs = Some(Arc::clone(&runs));
        Ok(runs)
    }

    /// Finds the partitions that may store entries of a key: only this one, unless partitions were
    /// added since the newest run. Returns the only partition, if there is one, and the range.
    fn find_key_partitions(
        &self,
        context: ReadContext<'_>,
        runs: &RunRecords,
    ) -> (Option<u32>, std::ops::Range<u32>) {
        let newest_epoch = runs
            .complete_epochs
            .get(context.job.view())
            .copied()
            .unwrap_or(0);
        let cut_count = runs.runs.get(newest_epoch).map_or(0, |run| run.cuts.len());
        let recorded = u32::try_from(runs.runs.partition_count()).unwrap_or(u32::MAX);
        let partitions = context.partitions.max(recorded);
        let own_partition = self.id.partition;
        // Before the first run, added partitions can't be detected.
        if newest_epoch > 0 && cut_count != partitions as usize {
            (None, 0..partitions)
        } else {
            (
                Some(own_partition),
                own_partition..own_partition.saturating_add(1),
            )
        }
    }

    /// Returns the states of all partitions from 0. Fails if the state of the worker's partition is
    /// not at the checkpoint that the worker knows.
    fn check_current(
        &self,
        context: ReadContext<'_>,
        first_partition: u32,
        states: Vec<Option<PartitionState>>,
    ) -> Result<Vec<Option<PartitionState>>, ReadFailure> {
        let mut all_states: Vec<Option<PartitionState>> = vec![None; first_partition as usize];
        all_states.extend(states);
        let own_state = all_states
            .get(self.id.partition as usize)
            .and_then(Option::as_ref);
        let is_current = own_state
            .map(PartitionState::checkpoint)
            .is_some_and(|checkpoint| {
                (checkpoint.generation, checkpoint.next_offset)
                    == (
                        context.checkpoint.generation,
                        context.checkpoint.next_offset,
                    )
            });
        if is_current {
            Ok(all_states)
        } else {
            Err(ReadFailure::Error(Error::CheckpointMismatch))
        }
    }

    /// Reads the heads of keys, where they exist.
    async fn read_heads(
        &mut self,
        seam: &SeamSnapshot<'_>,
        keys: &[&Vec<u8>],
    ) -> Result<Vec<Option<StoredHead>>, ReadFailure> {
        let view_key = |key: &[u8]| (seam.view.to_owned(), key.to_vec());
        let mut heads = BTreeMap::new();
        let mut missing = Vec::new();
        for key in keys {
            match self.heads.get(&view_key(key)) {
                Some(head) => drop(heads.insert((*key).clone(), head)),
                None => missing.push((*key).clone()),
            }
        }
        if !missing.is_empty() {
            let stored_heads = self.views.heads(seam.view, &missing).await?;
            let has_table = seam.check_table(stored_heads.is_some());
            has_table.map_err(BoardError::<NodesError>::from)?;
            let stored_heads = stored_heads.unwrap_or_else(|| vec![None; missing.len()]);
            for (key, head) in missing.into_iter().zip(stored_heads) {
                self.heads.insert(view_key(&key), head.clone());
                heads.insert(key, head);
            }
        }
        Ok(keys
            .iter()
            .map(|key| heads.remove(*key).flatten())
            .collect())
    }

    /// Returns whether the rows of a key were unreadable recently and have the same head.
    fn is_unreadable(&mut self, view: &str, key: &[u8], head: Option<&StoredHead>) -> bool {
        if self.unreadable.is_empty() {
            return false;
        }
        let view_key = (view.to_owned(), key.to_vec());
        let is_unreadable = self.unreadable.get(&view_key).is_some_and(|key| {
            key.head.as_ref() == head && key.tried_at.elapsed() < UNREADABLE_RETRY_INTERVAL
        });
        if is_unreadable {
            // A new run must be noticed at once.
            self.heads.invalidate(&view_key);
        }
        is_unreadable
    }

    /// Collects the results of readable keys. With `skips_unreadable`, unreadable keys are omitted;
    /// otherwise, the first one is a failure.
    fn collect_readable<'k, T>(
        &mut self,
        context: ReadContext<'_>,
        skips_unreadable: bool,
        read: Vec<(&'k Vec<u8>, Option<StoredHead>, KeyRead<T>)>,
    ) -> Result<Vec<(&'k Vec<u8>, T)>, ReadFailure> {
        let mut readable = Vec::with_capacity(read.len());
        for (key, head, read) in read {
            let outcome = match read {
                Ok(outcome) if self.unreadable.is_empty() => Ok(outcome),
                read => self.record_readability(context, key, head, skips_unreadable, read),
            };
            match outcome {
                Ok(outcome) => readable.push((key, outcome)),
                Err(Some(reason)) => return Err(ReadFailure::Unreadable(reason)),
                Err(None) => {}
            }
        }
        Ok(readable)
    }

    /// Records whether the rows of a key are readable. Returns the reason if they must be read
    /// again.
    fn record_readability<T>(
        &mut self,
        context: ReadContext<'_>,
        key: &[u8],
        head: Option<StoredHead>,
        skips_unreadable: bool,
        read: KeyRead<T>,
    ) -> Result<T, Option<String>> {
        let view = context.job.view();
        let view_key = (view.to_owned(), key.to_vec());
        let previous = self.unreadable.remove(&view_key);
        let key_number = messages::decode_int(context.job.key(), key).unwrap_or_default();
        let reason = match read {
            Ok(read) => {
                if previous.is_some() {
                    tracing::info!(
                        view,
                        key = key_number,
                        "the batch rows of boards are readable again: changes are published"
                    );
                }
                return Ok(read);
            }
            Err(reason) => reason,
        };
        if !skips_unreadable && previous.is_none_or(|previous| previous.head != head) {
            return Err(Some(reason));
        }
        tracing::warn!(
            view, key = key_number, %reason,
            "the batch rows of boards are missing or corrupt: events count, but changes of these boards are not published until the rows are readable"
        );
        self.heads.invalidate(&view_key);
        if self.unreadable.len() >= UNREADABLE_KEYS_MAX {
            self.unreadable.clear();
        }
        let tried_at = Instant::now();
        self.unreadable
            .insert(view_key, UnreadableKey { head, tried_at });
        Err(None)
    }

    async fn try_read_entries(
        &mut self,
        context: ReadContext<'_>,
        requested: &BTreeMap<Vec<u8>, RequestedMembers>,
        skips_unreadable: bool,
    ) -> Result<EntriesByKey, ReadFailure> {
        let mut entries = EntriesByKey::new();
        for requested in split_members(requested) {
            let runs = self.read_runs().await?;
            let (only_partition, partitions) = self.find_key_partitions(context, &runs);
            let queries = build_member_queries(context.job.view(), only_partition, &requested);
            let first = partitions.start;
            let source = self.id.source;
            let snapshot = self.live.read_members(source, partitions, &queries).await?;
            let opened = self.open_keys(context, only_partition, first, &requested, snapshot);
            let opened = opened.await?;
            let this = &*self;
            let calls = opened.into_iter().map(|opened| async move {
                let read = async {
                    let nodes = this.open_nodes(context.job.view(), opened.key);
                    read_member_entries(&opened.key_boards?, &nodes, opened.requested).await
                };
                let read = into_key_read(read.await)?;
                Ok::<_, ReadFailure>((opened.key, opened.head, read))
            });
            let calls: Vec<_> = calls.collect();
            let reads: Vec<_> = stream::iter(calls)
                .buffered(READ_CONCURRENCY)
                .try_collect()
                .await?;
            for (key, member_entries) in self.collect_readable(context, skips_unreadable, reads)? {
                entries
                    .entry(key.clone())
                    .or_default()
                    .extend(member_entries);
            }
        }
        Ok(entries)
    }

    async fn try_read_top_entries(
        &mut self,
        context: ReadContext<'_>,
        requested: &BTreeMap<Vec<u8>, Vec<(Vec<u8>, MemberEntries)>>,
        skips_unreadable: bool,
    ) -> Result<BTreeMap<Vec<u8>, Vec<TopEntries>>, ReadFailure> {
        let mut top_entries_by_key = BTreeMap::new();
        let requested: Vec<_> = requested.iter().collect();
        for requested in requested.chunks(KEYS_PER_READ_MAX) {
            let runs = self.read_runs().await?;
            let (only_partition, partitions) = self.find_key_partitions(context, &runs);
            let queries = requested.iter().map(|(key, _)| EntryQuery {
                view: context.job.view().to_owned(),
                key: (*key).clone(),
                partition: only_partition,
            });
            let queries: Vec<EntryQuery> = queries.collect();
            let source = self.id.source;
            let read = self.live.read_entries(source, partitions.end, &queries);
            let snapshot = read.await?;
            let opened = self
                .open_keys(context, only_partition, 0, requested, snapshot)
                .await?;
            let this = &*self;
            let calls = opened.into_iter().map(|opened| async move {
                let read = async {
                    let mut key_boards = opened.key_boards?;
                    for (member, entries) in opened.requested {
                        key_boards.set_live(member, entries.clone());
                    }
                    let nodes = this.open_nodes(context.job.view(), opened.key);
                    let mut top_entries = Vec::new();
                    for achievement in context.job.achievement_boards() {
                        let board = key_boards.open_board(&nodes, &achievement.board).await?;
                        top_entries
                            .push(TopEntries::new(board.page(0, TopEntries::CAPACITY).await?));
                    }
                    Ok(top_entries)
                };
                let read = into_key_read(read.await)?;
                Ok::<_, ReadFailure>((opened.key, opened.head, read))
            });
            let calls: Vec<_> = calls.collect();
            let reads: Vec<_> = stream::iter(calls)
                .buffered(READ_CONCURRENCY)
                .try_collect()
                .await?;
            let by_key = self
                .collect_readable(context, skips_unreadable, reads)?
                .into_iter();
            top_entries_by_key.extend(by_key.map(|(key, top_entries)| (key.clone(), top_entries)));
        }
        Ok(top_entries_by_key)
    }

    /// Opens the boards of keys at the checkpoint, except recently unreadable keys.
    async fn open_keys<'k, A: Copy>(
        &mut self,
        context: ReadContext<'_>,
        only_partition: Option<u32>,
        first_partition: u32,
        requested: &[(&'k Vec<u8>, A)],
        snapshot: EntriesSnapshot,
    ) -> Result<Vec<OpenedKey<'k, A>>, ReadFailure> {
        let (runs, view) = (self.read_runs().await?, context.job.view());
        let states = self.check_current(context, first_partition, snapshot.partition_states)?;
        let seam = build_seam(view, &runs, &states, only_partition);
        let keys: Vec<&Vec<u8>> = requested.iter().map(|(key, _)| *key).collect();
        let heads = self.read_heads(&seam, &keys).await?;
        let mut opened = Vec::with_capacity(keys.len());
        let reads = requested.iter().zip(heads).zip(&snapshot.entries);
        for (((key, requested), head), live_entries) in reads {
            if self.is_unreadable(view, key, head.as_ref()) {
                continue;
            }
            let live_entries = context.is_live.then_some(live_entries);
            opened.push(OpenedKey {
                key,
                requested: *requested,
                key_boards: merge_boards(&seam, context.job, head.as_ref(), live_entries),
                head,
            });
        }
        Ok(opened)
    }

    fn open_nodes<'a>(&'a self, view: &'a str, key: &'a [u8]) -> StoredNodes<'a> {
        StoredNodes {
            views: &*self.views,
            cache: Some(&self.nodes),
            view,
            key,
        }
    }
}

/// Separates unreadable rows from other failures. They do not affect other keys.
fn into_key_read<T>(read: Result<T, BoardError<NodesError>>) -> Result<KeyRead<T>, ReadFailure> {
    match read.map_err(ReadFailure::from) {
        Ok(read) => Ok(Ok(read)),
        Err(ReadFailure::Unreadable(reason)) => Ok(Err(reason)),
        Err(failure) => Err(failure),
    }
}
