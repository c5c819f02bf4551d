//! Reads the entries of boards before a micro-batch, in the same order as the serving layer: run
//! records, then partition states with their live entries, then heads and nodes.
//!
//! Run records and heads are cached as long as they match live state, because a newer run does not
//! change the previous entries. After a seam mismatch they are read again.
//!
//! Missing or corrupt rows of a key may return only with a later run. The worker does not wait for
//! that; until then the key is treated as unknown.

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
use stores::live::{LiveRead, PartitionId, StateQuery, StatesSnapshot};
use stores::views::{Head as StoredHead, RunRecords, ViewsRead};

use crate::changes::messages;
use crate::{Error, Result};
use stored::boards::{
    Member, NodeCache, NodesError, StoredNodes, member_queries, member_states, merge_boards,
    node_cache, seam, split_members,
};

/// Memory of cached heads per partition.
const HEADS_BYTES_MAX: u64 = 8 << 20;
/// Approximate memory of a head without its roots.
const HEAD_BYTES: usize = 256;
/// Memory of cached nodes per partition.
const NODES_BYTES_MAX: u64 = 32 << 20;
/// Keys or members that are read concurrently.
const READ_CONCURRENCY: usize = 16;
/// Keys whose live entries are read together.
const KEYS_MAX: usize = 64;
/// Maximum retries of a read.
const TRIES: u32 = 6;
/// Maximum retries to read missing or corrupt rows, which a run may have replaced meanwhile.
const UNREADABLE_TRIES: u32 = 3;
/// Maximum retries if the rows are ahead of the partition state.
const BEHIND_TRIES: u32 = 3;
/// Pause before unreadable rows of the same head are read again.
const UNREADABLE_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum recorded keys with unreadable rows.
const UNREADABLE_KEYS_MAX: usize = 10_000;
const PAUSE_MS: u64 = 10;

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
pub(super) type Members = Vec<Member>;

/// Previous entries by key and member. Keys that are unknown are missing.
pub(super) type StatesByKey = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, MemberEntries>>;

/// View and key.
type ViewKey = (String, Vec<u8>);

/// The result for a key, or the reason why its rows are unreadable.
type KeyRead<T> = std::result::Result<T, String>;

/// Reads previous entries.
#[derive(Debug)]
pub(super) struct PreviousStates {
    id: PartitionId,
    live: Arc<dyn LiveRead>,
    views: Arc<dyn ViewsRead>,
    runs: Option<Arc<RunRecords>>,
    heads: Cache<ViewKey, Option<StoredHead>>,
    nodes: NodeCache,
    /// Keys with unreadable rows.
    unreadable: BTreeMap<ViewKey, UnreadableKey>,
}

/// An opened key.
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
    tried: Instant,
}

/// Counts attempts.
#[derive(Debug, Default)]
struct RetryCount {
    all: u32,
    /// Attempts that found missing or corrupt rows.
    unreadable: u32,
}

impl RetryCount {
    /// Returns whether the next attempt gives up rows that are still unreadable.
    const fn is_exhausted(&self) -> bool {
        self.unreadable >= UNREADABLE_TRIES
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
            BoardError::Damaged(what) => Self::Unreadable(what),
            BoardError::Store(NodesError::Damaged(error)) => Self::Unreadable(error.to_string()),
            BoardError::Store(NodesError::Store(error)) if error.kind() == ErrorKind::Fatal => {
                Self::Unreadable(error.to_string())
            }
            BoardError::Store(NodesError::Store(error)) => error.into(),
        }
    }
}

/// The approximate memory of a cached head with its name.
fn head_bytes(head: Option<&StoredHead>) -> u32 {
    let earlier = head.and_then(|head| head.earlier.as_ref());
    let roots = head.map_or(0, |head| head.root.len());
    let roots = roots + earlier.map_or(0, |earlier| earlier.root.len());
    u32::try_from(HEAD_BYTES + roots).unwrap_or(u32::MAX)
}

impl PreviousStates {
    pub(super) fn new(id: PartitionId, live: Arc<dyn LiveRead>, views: Arc<dyn ViewsRead>) -> Self {
        Self {
            id,
            live,
            views,
            runs: None,
            heads: Cache::builder()
                .max_capacity(HEADS_BYTES_MAX)
                .weigher(|_: &ViewKey, head: &Option<StoredHead>| head_bytes(head.as_ref()))
                .build(),
            nodes: node_cache(NODES_BYTES_MAX),
            unreadable: BTreeMap::new(),
        }
    }

    /// Reads the entries of members before the micro-batch, for the keys where they are known.
    /// Returns `None` if the view is new.
    pub(super) async fn states(
        &mut self,
        at: ReadContext<'_>,
        requested: &BTreeMap<Vec<u8>, Members>,
    ) -> Result<Option<StatesByKey>> {
        let mut tries = RetryCount::default();
        loop {
            let failed = match self.try_states(at, requested, tries.is_exhausted()).await {
                Ok(found) => return Ok(Some(found)),
                Err(failed) => failed,
            };
            if !self.may_retry(at, failed, &mut tries).await? {
                return Ok(None);
            }
        }
    }

    /// Reads the top entries of keys on all boards with achievements, for the keys where they are
    /// known. The given entries of members replace those of the partition state.
    pub(super) async fn top_entries(
        &mut self,
        at: ReadContext<'_>,
        requested: &BTreeMap<Vec<u8>, Vec<(Vec<u8>, MemberEntries)>>,
    ) -> Result<Option<BTreeMap<Vec<u8>, Vec<TopEntries>>>> {
        let mut tries = RetryCount::default();
        loop {
            let failed = match self
                .try_top_entries(at, requested, tries.is_exhausted())
                .await
            {
                Ok(found) => return Ok(Some(found)),
                Err(failed) => failed,
            };
            if !self.may_retry(at, failed, &mut tries).await? {
                return Ok(None);
            }
        }
    }

    /// Decides whether to retry after a failure, and pauses. Returns false if the view is unknown.
    async fn may_retry(
        &mut self,
        at: ReadContext<'_>,
        failed: ReadFailure,
        tries: &mut RetryCount,
    ) -> Result<bool> {
        let why = match failed {
            ReadFailure::Error(error) => return Err(error),
            // The cached run records may be outdated.
            ReadFailure::NewView if tries.all > 0 => return Ok(false),
            ReadFailure::NewView => "its definition is new".to_owned(),
            // The state of another partition reaches its cut by itself.
            ReadFailure::Behind(partition, why)
                if tries.all >= BEHIND_TRIES && partition == self.id.partition as usize =>
            {
                let view = at.job.view();
                tracing::warn!(
                    view,
                    why,
                    "a batch run already covers events that are counted again after a loss of live state: their changes are not published"
                );
                return Ok(false);
            }
            ReadFailure::Retry(why) | ReadFailure::Behind(_, why) => why,
            ReadFailure::Unreadable(why) => {
                tries.unreadable += 1;
                why
            }
        };
        self.runs = None;
        self.heads.invalidate_all();
        tries.all += 1;
        if tries.all > TRIES {
            return Err(Error::SeamMismatch(format!(
                "cannot read the previous entries on the boards of {}: {why}",
                at.job.view()
            )));
        }
        tokio::time::sleep(Duration::from_millis(PAUSE_MS << tries.all)).await;
        Ok(true)
    }

    async fn runs(&mut self) -> Result<Arc<RunRecords>, ReadFailure> {
        if let Some(runs) = &self.runs {
            return Ok(Arc::clone(runs));
        }
        let runs = Arc::new(self.views.runs(self.id.source).await?);
        self.runs = Some(Arc::clone(&runs));
        Ok(runs)
    }

    /// The partitions that may store entries of a key: only this one, unless partitions were added
    /// since the newest run.
    fn key_partitions(
        &self,
        at: ReadContext<'_>,
        runs: &RunRecords,
    ) -> (Option<u32>, std::ops::Range<u32>) {
        let newest = runs
            .complete_epochs
            .get(at.job.view())
            .copied()
            .unwrap_or(0);
        let cuts = runs.runs.get(newest).map_or(0, |run| run.cuts.len());
        let recorded = u32::try_from(runs.runs.partitions()).unwrap_or(u32::MAX);
        let partitions = at.partitions.max(recorded);
        let own = self.id.partition;
        // Before the first run, added partitions can't be detected.
        if newest > 0 && cuts != partitions as usize {
            (None, 0..partitions)
        } else {
            (Some(own), own..own.saturating_add(1))
        }
    }

    /// Returns the partition states from partition 0, if the worker's own state is at its
    /// checkpoint.
    fn check_current(
        &self,
        at: ReadContext<'_>,
        first: u32,
        states: Vec<Option<PartitionState>>,
    ) -> Result<Vec<Option<PartitionState>>, ReadFailure> {
        let mut all: Vec<Option<PartitionState>> = vec![None; first as usize];
        all.extend(states);
        let own = all.get(self.id.partition as usize).and_then(Option::as_ref);
        let is_current = own
            .map(PartitionState::checkpoint)
            .is_some_and(|checkpoint| {
                (checkpoint.generation, checkpoint.next_offset)
                    == (at.checkpoint.generation, at.checkpoint.next_offset)
            });
        if is_current {
            Ok(all)
        } else {
            Err(ReadFailure::Error(Error::CheckpointMismatch))
        }
    }

    /// The heads of keys, where they exist.
    async fn heads(
        &mut self,
        seam: &SeamSnapshot<'_>,
        keys: &[&Vec<u8>],
    ) -> Result<Vec<Option<StoredHead>>, ReadFailure> {
        let name = |key: &[u8]| (seam.view.to_owned(), key.to_vec());
        let mut heads = BTreeMap::new();
        let mut missing = Vec::new();
        for key in keys {
            match self.heads.get(&name(key)) {
                Some(head) => drop(heads.insert((*key).clone(), head)),
                None => missing.push((*key).clone()),
            }
        }
        if !missing.is_empty() {
            let found = self.views.heads(seam.view, &missing).await?;
            let has_table = seam.check_table(found.is_some());
            has_table.map_err(BoardError::<NodesError>::from)?;
            let found = found.unwrap_or_else(|| vec![None; missing.len()]);
            for (key, head) in missing.into_iter().zip(found) {
                self.heads.insert(name(&key), head.clone());
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
        let name = (view.to_owned(), key.to_vec());
        let is_unreadable = self.unreadable.get(&name).is_some_and(|key| {
            key.head.as_ref() == head && key.tried.elapsed() < UNREADABLE_RETRY_INTERVAL
        });
        if is_unreadable {
            // A new run must be noticed at once.
            self.heads.invalidate(&name);
        }
        is_unreadable
    }

    /// Collects the results of readable keys. Unreadable keys are given up on the last attempt.
    fn collect_readable<'k, T>(
        &mut self,
        at: ReadContext<'_>,
        is_last: bool,
        read: Vec<(&'k Vec<u8>, Option<StoredHead>, KeyRead<T>)>,
    ) -> Result<Vec<(&'k Vec<u8>, T)>, ReadFailure> {
        let mut found = Vec::with_capacity(read.len());
        for (key, head, read) in read {
            let of_key = match read {
                Ok(of_key) if self.unreadable.is_empty() => Ok(of_key),
                read => self.record_readability(at, key, head, is_last, read),
            };
            match of_key {
                Ok(of_key) => found.push((key, of_key)),
                Err(Some(why)) => return Err(ReadFailure::Unreadable(why)),
                Err(None) => {}
            }
        }
        Ok(found)
    }

    /// Records whether the rows of a key are readable. Returns the reason if they must be read
    /// again.
    fn record_readability<T>(
        &mut self,
        at: ReadContext<'_>,
        key: &[u8],
        head: Option<StoredHead>,
        is_last: bool,
        read: KeyRead<T>,
    ) -> Result<T, Option<String>> {
        let view = at.job.view();
        let name = (view.to_owned(), key.to_vec());
        let before = self.unreadable.remove(&name);
        let shown = messages::decode_int(at.job.key(), key).unwrap_or_default();
        let why = match read {
            Ok(read) => {
                if before.is_some() {
                    tracing::info!(
                        view,
                        key = shown,
                        "the batch rows of boards are readable again: changes are published"
                    );
                }
                return Ok(read);
            }
            Err(why) => why,
        };
        if !is_last && before.is_none_or(|before| before.head != head) {
            return Err(Some(why));
        }
        tracing::warn!(
            view, key = shown, %why,
            "the batch rows of boards are missing or corrupt: events count, but changes of these boards are not published until the rows are readable"
        );
        self.heads.invalidate(&name);
        if self.unreadable.len() >= UNREADABLE_KEYS_MAX {
            self.unreadable.clear();
        }
        let tried = Instant::now();
        self.unreadable.insert(name, UnreadableKey { head, tried });
        Err(None)
    }

    async fn try_states(
        &mut self,
        at: ReadContext<'_>,
        requested: &BTreeMap<Vec<u8>, Members>,
        is_last: bool,
    ) -> Result<StatesByKey, ReadFailure> {
        let mut found = StatesByKey::new();
        for requested in split_members(requested) {
            let runs = self.runs().await?;
            let (only, partitions) = self.key_partitions(at, &runs);
            let queries = member_queries(at.job.view(), only, &requested);
            let first = partitions.start;
            let source = self.id.source;
            let answer = self.live.read_members(source, partitions, &queries).await?;
            let opened = self.open(at, only, first, &requested, answer).await?;
            let this = &*self;
            let calls = opened.into_iter().map(|opened| async move {
                let read = async {
                    let nodes = this.nodes_of(at.job.view(), opened.key);
                    member_states(&opened.key_boards?, &nodes, opened.requested).await
                };
                let read = key_outcome(read.await)?;
                Ok::<_, ReadFailure>((opened.key, opened.head, read))
            });
            let calls: Vec<_> = calls.collect();
            let all: Vec<_> = stream::iter(calls)
                .buffered(READ_CONCURRENCY)
                .try_collect()
                .await?;
            for (key, of_key) in self.collect_readable(at, is_last, all)? {
                found.entry(key.clone()).or_default().extend(of_key);
            }
        }
        Ok(found)
    }

    async fn try_top_entries(
        &mut self,
        at: ReadContext<'_>,
        requested: &BTreeMap<Vec<u8>, Vec<(Vec<u8>, MemberEntries)>>,
        is_last: bool,
    ) -> Result<BTreeMap<Vec<u8>, Vec<TopEntries>>, ReadFailure> {
        let mut found = BTreeMap::new();
        let all: Vec<_> = requested.iter().collect();
        for requested in all.chunks(KEYS_MAX) {
            let runs = self.runs().await?;
            let (only, partitions) = self.key_partitions(at, &runs);
            let queries = requested.iter().map(|(key, _)| StateQuery {
                view: at.job.view().to_owned(),
                key: (*key).clone(),
                partition: only,
            });
            let queries: Vec<StateQuery> = queries.collect();
            let source = self.id.source;
            let read = self.live.read_states(source, partitions.end, &queries);
            let answer = read.await?;
            let opened = self.open(at, only, 0, requested, answer).await?;
            let this = &*self;
            let calls = opened.into_iter().map(|opened| async move {
                let read = async {
                    let mut key_boards = opened.key_boards?;
                    for (member, state) in opened.requested {
                        key_boards.set_live(member, state.clone());
                    }
                    let nodes = this.nodes_of(at.job.view(), opened.key);
                    let mut top_entries = Vec::new();
                    for achievement in at.job.achievements() {
                        let on_board = key_boards.board(&nodes, &achievement.board).await?;
                        top_entries.push(TopEntries::new(
                            on_board.page(0, TopEntries::CAPACITY).await?,
                        ));
                    }
                    Ok(top_entries)
                };
                let read = key_outcome(read.await)?;
                Ok::<_, ReadFailure>((opened.key, opened.head, read))
            });
            let calls: Vec<_> = calls.collect();
            let all: Vec<_> = stream::iter(calls)
                .buffered(READ_CONCURRENCY)
                .try_collect()
                .await?;
            let by_key = self.collect_readable(at, is_last, all)?.into_iter();
            found.extend(by_key.map(|(key, top_entries)| (key.clone(), top_entries)));
        }
        Ok(found)
    }

    /// Opens the boards of keys at the checkpoint, except recently unreadable keys.
    async fn open<'k, A: Copy>(
        &mut self,
        at: ReadContext<'_>,
        only_partition: Option<u32>,
        first_partition: u32,
        requested: &[(&'k Vec<u8>, A)],
        answer: StatesSnapshot,
    ) -> Result<Vec<OpenedKey<'k, A>>, ReadFailure> {
        let (runs, view) = (self.runs().await?, at.job.view());
        let states = self.check_current(at, first_partition, answer.partition_states)?;
        let seam = seam(view, &runs, &states, only_partition);
        let keys: Vec<&Vec<u8>> = requested.iter().map(|(key, _)| *key).collect();
        let heads = self.heads(&seam, &keys).await?;
        let mut opened = Vec::with_capacity(keys.len());
        for (((key, requested), head), states) in requested.iter().zip(heads).zip(&answer.states) {
            if self.is_unreadable(view, key, head.as_ref()) {
                continue;
            }
            let live = at.is_live.then_some(states);
            opened.push(OpenedKey {
                key,
                requested: *requested,
                key_boards: merge_boards(&seam, at.job, head.as_ref(), live),
                head,
            });
        }
        Ok(opened)
    }

    fn nodes_of<'a>(&'a self, view: &'a str, key: &'a [u8]) -> StoredNodes<'a> {
        StoredNodes {
            views: &*self.views,
            cache: Some(&self.nodes),
            view,
            key,
        }
    }
}

/// The result of one key. Unreadable rows do not affect other keys.
fn key_outcome<T>(read: Result<T, BoardError<NodesError>>) -> Result<KeyRead<T>, ReadFailure> {
    match read.map_err(ReadFailure::from) {
        Ok(read) => Ok(Ok(read)),
        Err(ReadFailure::Unreadable(why)) => Ok(Err(why)),
        Err(failed) => Err(failed),
    }
}
