//! The live port: one partition state for each log partition, changed only by atomic scripts.
//!
//! The scripts apply the rules of [`schemas::seam`] to a stored partition state, together with its
//! live rows: both change in one step or not at all. Live rows are stored by generation, epoch and
//! view. Those of aggregates are *deltas*, which add up, by group and row. Those of boards are
//! *live entries*, by key and member: everything that a member has on the boards of a key. Of
//! several entries the newest counts.

use std::ops::Range;

use arrow::array::{
    Array, BinaryArray, BinaryBuilder, Int64Array, UInt32Array, UInt32Builder, UInt64Array,
    UInt64Builder,
};
use async_trait::async_trait;
use bytes::Bytes;
use schemas::seam::{
    Checkpoint, CheckpointMismatch, Cut, EndEpochError, Epoch, GenerationStart, PartitionState,
};
use schemas::source::Source;

use crate::Result;
use crate::board_cache::{BoardCache, BoardCacheRead, CachedBoardChanges};
use crate::live_count::{LiveCountChange, StoredLiveCount};
pub use crate::live_rows::{Deltas, Entries};
use crate::live_scan::{ScanKey, ScannedDeltas, ScannedEntries, build_deltas_page};
pub use crate::partition_id::PartitionId;

/// The changes of a micro-batch.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// Deltas of aggregates.
    pub deltas: Vec<Deltas>,
    /// Entries of boards.
    pub entries: Vec<Entries>,
    /// True if a record among them has a key that belongs to another partition.
    pub has_misrouted: bool,
    /// Changes of cached boards: of all boards that the entries concern.
    pub boards: CachedBoardChanges,
    /// Changes of live counts, at most one for each key of a view. Live counts of other keys whose
    /// entries change are deleted.
    pub live_counts: Vec<LiveCountChange>,
    /// Messages to publish, in this order, after those that are pending already.
    pub outbox: Vec<Bytes>,
}

impl Changes {
    /// The number of changed rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        let deltas = self.deltas.iter().map(|deltas| deltas.counts.len());
        let entries = self.entries.iter().map(|entries| entries.entries.len());
        let boards = self.boards.boards.iter().map(|board| board.rows.len());
        deltas.chain(entries).chain(boards).sum()
    }
}

impl From<Vec<Deltas>> for Changes {
    fn from(deltas: Vec<Deltas>) -> Self {
        Self {
            deltas,
            ..Self::default()
        }
    }
}

/// A query for the live entries of a view under a key.
#[derive(Debug, Clone)]
pub struct EntryQuery {
    /// The view, with its version.
    pub view: String,
    /// The encoded key.
    pub key: Vec<u8>,
    /// The only partition that can hold entries of this key, if known; otherwise all are read.
    pub partition: Option<u32>,
}

/// A query for the live entries of some members of a view under a key.
#[derive(Debug, Clone)]
pub struct MembersQuery {
    /// The view and the key.
    pub query: EntryQuery,
    /// The encoded members, without duplicates.
    pub members: Vec<Vec<u8>>,
}

/// The first unpublished messages of a partition state, as of one moment. They belong to its
/// current generation; messages of earlier generations are deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    /// The partition state.
    pub state: PartitionState,
    /// The number of pending messages.
    pub pending: u64,
    /// The numbers by which the store identifies these messages.
    pub sequence_numbers: Range<u64>,
    /// The first messages, in order.
    pub entries: Vec<Bytes>,
}

/// The limit up to which entries of a key are counted ([`LiveEntries::stored_count`]).
pub const STORED_COUNT_MAX: u64 = 1_001;

/// Live entries: the result of one [`EntryQuery`]. They belong to the current generation, and to
/// epochs that are not pruned.
#[derive(Debug, Clone)]
pub struct LiveEntries {
    /// The partition of each entry.
    pub partitions: UInt32Array,
    /// The epoch of each entry.
    pub epochs: UInt64Array,
    /// The encoded member of each entry.
    pub members: BinaryArray,
    /// The entries; null if the member has nothing under the key.
    pub entries: BinaryArray,
    /// The live counts of the key, each with its partition.
    pub live_counts: Vec<(u32, StoredLiveCount)>,
    /// A lower bound for the number of stored entries of the key, of all members; exact below
    /// [`STORED_COUNT_MAX`]. 0 if live counts are returned instead.
    pub stored_count: u64,
}

/// Partition states and live entries; each partition is read in one atomic step.
#[derive(Debug, Clone)]
pub struct EntriesSnapshot {
    /// Each partition state; `None` if it is missing.
    pub partition_states: Vec<Option<PartitionState>>,
    /// The results, in the order of the queries.
    pub entries: Vec<LiveEntries>,
}

/// A query for the deltas of a view in a group, within ranges of row keys.
#[derive(Debug, Clone)]
pub struct DeltaQuery {
    /// The view, with its version.
    pub view: String,
    /// The encoded group key.
    pub group: Vec<u8>,
    /// Half-open ranges of encoded row keys, ascending and disjoint. A missing end is unbounded.
    pub ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// The only partition that can hold deltas of this group, if known; otherwise all are read.
    pub partition: Option<u32>,
}

/// Live deltas: the result of one [`DeltaQuery`]. They belong to the current generation, and to
/// epochs that are not pruned.
#[derive(Debug, Clone)]
pub struct LiveDeltas {
    /// The partition of each delta.
    pub partitions: UInt32Array,
    /// The epoch of each delta.
    pub epochs: UInt64Array,
    /// The encoded row key of each delta.
    pub rows: BinaryArray,
    /// The deltas.
    pub counts: Int64Array,
}

/// Partition states and live deltas; each partition is read in one atomic step.
#[derive(Debug, Clone)]
pub struct DeltasSnapshot {
    /// Each partition state; `None` if it is missing.
    pub partition_states: Vec<Option<PartitionState>>,
    /// The results, in the order of the queries.
    pub deltas: Vec<LiveDeltas>,
}

/// Collects the live entries of one query.
#[derive(Debug, Default)]
pub(crate) struct LiveEntriesBuilder {
    partitions: UInt32Builder,
    epochs: UInt64Builder,
    members: BinaryBuilder,
    entries: BinaryBuilder,
    pub(crate) live_counts: Vec<(u32, StoredLiveCount)>,
    pub(crate) stored_count: u64,
}

impl LiveEntriesBuilder {
    pub(crate) fn add(
        &mut self,
        partition: u32,
        epoch: Epoch,
        member: &[u8],
        entry: Option<&[u8]>,
    ) {
        self.partitions.append_value(partition);
        self.epochs.append_value(epoch);
        self.members.append_value(member);
        self.entries.append_option(entry);
    }

    pub(crate) fn finish(mut self) -> LiveEntries {
        let members = self.members.finish();
        LiveEntries {
            partitions: self.partitions.finish(),
            epochs: self.epochs.finish(),
            // A complete read returns all stored entries.
            stored_count: self.stored_count.max(members.len() as u64),
            members,
            entries: self.entries.finish(),
            live_counts: self.live_counts,
        }
    }
}

/// Reads live state.
#[async_trait]
pub trait LiveRead: std::fmt::Debug + Send + Sync {
    /// Reads the states of partitions 0 to `partitions` - 1 and the requested deltas, each
    /// partition in one atomic step. A group that is too large for that is an error, never an
    /// incomplete result.
    async fn read_deltas(
        &self,
        source: Source,
        partitions: u32,
        queries: &[DeltaQuery],
    ) -> Result<DeltasSnapshot>;

    /// Reads some partition states without deltas and entries; `None` for a missing one. The cost
    /// depends on the number of these partitions alone.
    async fn partition_states(
        &self,
        source: Source,
        partitions: Range<u32>,
    ) -> Result<Vec<Option<PartitionState>>>;

    /// Reads the states of partitions 0 to `partitions` - 1 and the requested live entries, each
    /// partition in one atomic step.
    async fn read_entries(
        &self,
        source: Source,
        partitions: u32,
        queries: &[EntryQuery],
    ) -> Result<EntriesSnapshot>;

    /// Reads like [`LiveRead::read_entries`], but may return a completed live count
    /// ([`StoredLiveCount::content`]) instead of the entries of its key.
    async fn read_live_counts(
        &self,
        source: Source,
        partitions: u32,
        queries: &[EntryQuery],
    ) -> Result<EntriesSnapshot> {
        self.read_entries(source, partitions, queries).await
    }

    /// The cached boards, if the store has a board cache.
    fn cached_boards(&self) -> Option<&dyn BoardCacheRead> {
        None
    }

    /// Reads like [`LiveRead::read_entries`], but only some members and partitions. Other members
    /// of the same key cost nothing. A store may refuse to read more than ten thousand members at
    /// once.
    async fn read_members(
        &self,
        source: Source,
        partitions: Range<u32>,
        queries: &[MembersQuery],
    ) -> Result<EntriesSnapshot>;

    /// Reads the outboxes of some partitions, at most `limit` messages of each; `None` if the
    /// partition state is missing.
    async fn outboxes(
        &self,
        source: Source,
        partitions: Range<u32>,
        limit: usize,
    ) -> Result<Vec<Option<Outbox>>>;

    /// A page of all deltas of a view in one partition within the epochs `from..=to`: group, row,
    /// and the sum of the deltas over these epochs. Rows are ordered by group and row key, and
    /// begin after the key `after`. Page and checkpoint are of one moment, so the checkpoint shows
    /// a change between two pages. A page may have fewer rows than `limit` though another one
    /// follows ([`ScannedDeltas::next`]).
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] also if a group needs several reads and changed each time.
    /// Then only epochs that have ended can be scanned.
    async fn scan_deltas(
        &self,
        partition: PartitionId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<ScanKey>,
        limit: usize,
    ) -> Result<ScannedDeltas>;

    /// A page of all live entries of a view of boards, by key and member, with the newest entry of
    /// each member within the epochs. That entry is current unless a batch run covers its epoch.
    ///
    /// # Errors
    /// As [`LiveRead::scan_deltas`].
    async fn scan_entries(
        &self,
        partition: PartitionId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<ScanKey>,
        limit: usize,
    ) -> Result<ScannedEntries>;

    /// Collects up to `limit` deltas from as many pages of [`LiveRead::scan_deltas`] as necessary,
    /// possibly of several moments. Used to compare a run with the live counts.
    async fn collect_deltas(
        &self,
        partition: PartitionId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<ScanKey>,
        limit: usize,
    ) -> Result<Deltas> {
        collect_pages(self, partition, view, epochs, after, limit).await
    }
}

/// Collects up to `limit` deltas from as many pages as necessary.
async fn collect_pages<L: LiveRead + ?Sized>(
    live: &L,
    partition: PartitionId,
    view: &str,
    epochs: (Epoch, Epoch),
    mut after: Option<ScanKey>,
    limit: usize,
) -> Result<Deltas> {
    let mut rows: Vec<(ScanKey, i64)> = Vec::new();
    loop {
        let remaining = limit - rows.len();
        let page = live
            .scan_deltas(partition, view, epochs, after, remaining)
            .await?;
        if rows.is_empty() && (page.next.is_none() || page.deltas.counts.len() >= limit) {
            return Ok(page.deltas);
        }
        let keys = page.deltas.groups.iter().zip(&page.deltas.rows);
        for ((group, row), count) in keys.zip(page.deltas.counts.values()) {
            let key = (
                group.unwrap_or_default().to_vec(),
                row.unwrap_or_default().to_vec(),
            );
            rows.push((key, *count));
        }
        after = page.next;
        if after.is_none() || rows.len() >= limit {
            return Ok(build_deltas_page(view, None, rows, true).deltas);
        }
    }
}

/// A rule that returns the next partition state, or `None` to keep the current one.
pub type StateTransition<'a> =
    dyn Fn(Option<&PartitionState>) -> Option<PartitionState> + Sync + 'a;

/// The maximum number of past boundaries that a partition state keeps when epochs are pruned.
const PAST_BOUNDARIES_MAX: u64 = 8;

fn with_epoch_closed(
    state: Option<&PartitionState>,
    expected: &Checkpoint,
) -> Result<PartitionState, CheckpointMismatch> {
    let mut next = state.cloned().ok_or(CheckpointMismatch { actual: None })?;
    next.close_epoch(expected)?;
    Ok(next)
}

fn with_epoch_ended(
    state: Option<&PartitionState>,
    epoch: Epoch,
) -> (Option<PartitionState>, Result<Cut, EndEpochError>) {
    let Some(state) = state else {
        return (None, Err(EndEpochError::Missing));
    };
    let mut next = state.clone();
    let cut = next.end_epoch(epoch);
    ((next.epoch != state.epoch).then_some(next), cut)
}

fn with_epochs_pruned(
    state: Option<&PartitionState>,
    epoch: Epoch,
    cut: Cut,
) -> Option<PartitionState> {
    let mut next = state?.clone();
    let is_pruned = next.prune_through(epoch, cut, PAST_BOUNDARIES_MAX);
    is_pruned.then_some(next)
}

/// Changes live state. Each call is one atomic script on one partition.
#[async_trait]
pub trait LiveWrite: LiveRead {
    /// The recommended maximum number of deltas of one [`LiveWrite::apply`]. A single-threaded
    /// server serves no other request meanwhile. Larger changes are accepted.
    fn deltas_max(&self, _partition: PartitionId) -> usize {
        usize::MAX
    }

    /// The recommended maximum number of live entries of one [`LiveWrite::apply`].
    fn entries_max(&self) -> usize {
        usize::MAX
    }

    /// The board cache, if the store has one.
    fn board_cache(&self) -> Option<&dyn BoardCache> {
        None
    }

    /// Applies the changes of a micro-batch and advances the checkpoint to `next`, if the
    /// checkpoint is `expected`. Otherwise nothing changes, and the error holds the current
    /// checkpoint. `views` are all views that the worker maintains, also those without changes.
    async fn apply(
        &self,
        partition: PartitionId,
        expected: Checkpoint,
        next: Cut,
        views: &[&str],
        changes: &Changes,
    ) -> Result<Result<(), CheckpointMismatch>>;

    /// Removes published messages from the outbox. Returns whether it contained them. Changes
    /// nothing if another worker has removed them, or if a new generation has started.
    async fn remove_published(&self, partition: PartitionId, outbox: &Outbox) -> Result<bool>;

    /// Changes a partition state by a rule in one atomic step. Returns the state that the rule saw
    /// last; the rule may run several times.
    async fn update_state(
        &self,
        operation: &'static str,
        partition: PartitionId,
        rule: &StateTransition<'_>,
    ) -> Result<Option<PartitionState>>;

    /// Ends the current epoch at the checkpoint, where a batch run has recorded its cut.
    async fn close_epoch(
        &self,
        partition: PartitionId,
        expected: Checkpoint,
    ) -> Result<Result<(), CheckpointMismatch>> {
        let rule = |state: Option<&PartitionState>| with_epoch_closed(state, &expected).ok();
        let state = self
            .update_state("closing an epoch at its cut", partition, &rule)
            .await?;
        Ok(with_epoch_closed(state.as_ref(), &expected).map(drop))
    }

    /// Ends `epoch` at the current offset, or returns where it ended.
    async fn end_epoch(
        &self,
        partition: PartitionId,
        epoch: Epoch,
    ) -> Result<Result<Cut, EndEpochError>> {
        let rule = |state: Option<&PartitionState>| with_epoch_ended(state, epoch).0;
        let state = self
            .update_state("ending an epoch", partition, &rule)
            .await?;
        Ok(with_epoch_ended(state.as_ref(), epoch).1)
    }

    /// Starts a new generation if the checkpoint is still `expected`.
    async fn rebuild(
        &self,
        partition: PartitionId,
        expected: Option<Checkpoint>,
        start: &GenerationStart,
    ) -> Result<Result<(), CheckpointMismatch>> {
        let rule =
            |state: Option<&PartitionState>| PartitionState::rebuild(state, expected, start).ok();
        let state = self
            .update_state("rebuilding a partition state", partition, &rule)
            .await?;
        Ok(PartitionState::rebuild(state.as_ref(), expected, start).map(drop))
    }

    /// Prunes the epochs up to `epoch`, if the cut is their boundary. Returns whether it did.
    async fn prune_through(&self, partition: PartitionId, epoch: Epoch, cut: Cut) -> Result<bool> {
        let rule = |state: Option<&PartitionState>| with_epochs_pruned(state, epoch, cut);
        let state = self
            .update_state("pruning epochs", partition, &rule)
            .await?;
        Ok(rule(state.as_ref()).is_some())
    }

    /// Deletes live rows that can no longer be read (of pruned epochs and old generations), at most
    /// `limit`. Returns how many. No caller depends on it.
    async fn collect_garbage(&self, partition: PartitionId, limit: usize) -> Result<usize>;
}
