//! The board cache beside live state: complete boards in rank order, for boards in demand.
//!
//! A cached board belongs to the partition state of its key's partition, and changes in the same
//! step. So it always equals the board that batch rows and live entries give at the partition's
//! offset, and answers a query alone. It may be removed at any time; a reader that misses it reads
//! the batch rows and the live entries.
//!
//! The *register* of a partition lists its cached boards. Only the worker of the partition changes
//! it, and the partition state holds the revision of its last change. So a worker that applies
//! changes knows all boards that they concern ([`crate::live::Changes::boards`]). Revisions and
//! board ids are random. A server that lost its last writes would reuse the numbers of a counter,
//! and a worker would mistake the new content for the lost one.

use async_trait::async_trait;
use schemas::seam::{Checkpoint, CheckpointMismatch, Epoch, PartitionState};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Result;
use crate::partition_id::PartitionId;

/// The identity of a cached board.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoardName {
    /// The view, with its version.
    pub view: String,
    /// The encoded key.
    pub key: Vec<u8>,
    /// The encoded `FilteredBoard`: one board of the key, and its filters.
    pub filtered_board: Vec<u8>,
}

/// Selects rows of a cached board.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BoardSelection {
    /// No rows, only totals.
    TotalsOnly,
    /// The rows from an index.
    Page {
        /// The number of rows to skip.
        offset: u64,
        /// The maximum number of rows.
        limit: usize,
    },
    /// The rows that rank after a score and a member, whether the board has such a row or not.
    After {
        /// The encoded score.
        score: Vec<u8>,
        /// The encoded member.
        member: Vec<u8>,
        /// The maximum number of rows.
        limit: usize,
    },
    /// The row of a member and its neighbors.
    Around {
        /// The encoded member.
        member: Vec<u8>,
        /// The number of rows before and after.
        around: u64,
    },
    /// The rows of some members, in no order.
    Members(Vec<Vec<u8>>),
    /// The rows of some members, with their indexes.
    MembersWithIndexes(Vec<Vec<u8>>),
}

/// A query for a cached board.
#[derive(Debug, Clone)]
pub struct BoardQuery {
    /// The board.
    pub name: BoardName,
    /// The partition of its key.
    pub partition: u32,
    /// The size of a score, of which the first eight bytes are its first number; 0 for a board
    /// without score.
    pub score_bytes: usize,
    /// The rows to return.
    pub selection: BoardSelection,
}

/// A row of a cached board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardRow {
    /// The encoded member.
    pub member: Vec<u8>,
    /// The encoded score: eight bytes per number, big-endian, with the sign bit flipped.
    pub score: Vec<u8>,
    /// The encoded payload, with null for hidden values.
    pub payload: Vec<u8>,
    /// The number of source rows that the row counts.
    pub weight: i64,
    /// The epoch of the live entry that the row is from; 0 for a row of the batch layer.
    pub epoch: Epoch,
}

/// The result of a query for a cached board.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CachedBoard {
    /// The number of rows of the board.
    pub count: u64,
    /// The sum of their weights.
    pub weight: i64,
    /// The number of rows by epoch ([`BoardRow::epoch`]); rows of pruned epochs count as epoch 0.
    pub epochs: Vec<(Epoch, u64)>,
    /// The last epoch in which a live entry added or removed a row.
    pub last_changed_epoch: Epoch,
    /// The index of the first returned row, from 0.
    pub first_index: u64,
    /// The selected rows.
    pub rows: Vec<BoardRow>,
    /// Their indexes, if selected.
    pub indexes: Vec<u64>,
    /// The index of the selected member, if it is on the board.
    pub member_index: Option<u64>,
}

/// The result of a cache lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheLookup {
    /// The board is not in the cache.
    Absent,
    /// The board is being filled.
    Filling,
    /// The result of the query.
    Board(CachedBoard),
}

/// A cached board and its partition state, as of one moment.
#[derive(Debug, Clone)]
pub struct CachedBoardSnapshot {
    /// The partition state; `None` if it is missing.
    pub state: Option<PartitionState>,
    /// The board.
    pub board: CacheLookup,
}

/// The revision of a register. The default is that of a register without changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(u128);

impl Revision {
    /// A unique revision.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4().as_u128())
    }
}

/// A board of a register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredBoard {
    /// The identity of the board.
    pub name: BoardName,
    /// The id of the stored board; it is never reused.
    pub id: String,
    /// Its memory in bytes, after it was filled.
    pub bytes: Option<u64>,
}

/// The register of a partition.
#[derive(Debug, Clone, Default)]
pub struct BoardRegister {
    /// The revision of its last change.
    pub revision: Revision,
    /// The boards of the current generation.
    pub boards: Vec<RegisteredBoard>,
    /// The boards of earlier generations, which are not read any more.
    pub stale_boards: Vec<RegisteredBoard>,
}

/// The changes that a micro-batch makes to a cached board.
#[derive(Debug, Clone)]
pub struct CachedBoardChange {
    /// The id of the board.
    pub id: String,
    /// The new row by member; `None` if the member leaves the board.
    pub rows: Vec<(Vec<u8>, Option<BoardRow>)>,
}

/// The changes that a micro-batch makes to cached boards.
#[derive(Debug, Clone, Default)]
pub struct CachedBoardChanges {
    /// The known revision of the register. If it is not the current one, nothing is applied.
    pub revision: Revision,
    /// The newest complete epoch: rows up to it count as rows of the batch layer.
    pub covered_epoch: Epoch,
    /// The changes by board.
    pub boards: Vec<CachedBoardChange>,
}

/// Reads cached boards.
#[async_trait]
pub trait BoardCacheRead: std::fmt::Debug + Send + Sync {
    /// Reads cached boards, in the order of the queries, each partition in one atomic step.
    async fn read_boards(
        &self,
        source: Source,
        queries: &[BoardQuery],
    ) -> Result<Vec<CachedBoardSnapshot>>;

    /// Records that a board was read.
    async fn record_use(&self, partition: PartitionId, name: &BoardName, now_ms: i64)
    -> Result<()>;
}

/// Changes the board cache. Each call is one atomic script on one partition.
#[async_trait]
pub trait BoardCache: BoardCacheRead {
    /// The register of a partition; empty if its state is missing.
    async fn read_register(&self, partition: PartitionId) -> Result<BoardRegister>;

    /// Adds a board to the register, to be filled. Returns its id and the new revision. Changes
    /// that are applied from now on include it.
    async fn begin_fill(
        &self,
        partition: PartitionId,
        expected: (Checkpoint, Revision),
        name: &BoardName,
    ) -> Result<std::result::Result<(String, Revision), CheckpointMismatch>>;

    /// Adds rows to a board that is being filled, as one step, numbered from 1. Returns whether the
    /// board was at the previous step, or has this one already.
    async fn fill(
        &self,
        partition: PartitionId,
        step: (&RegisteredBoard, u64),
        rows: &[BoardRow],
    ) -> Result<bool>;

    /// Ends the filling after the given number of steps, so that the board answers queries.
    /// `last_changed_epoch` is the last epoch in which a live entry added or removed a row; 0 for
    /// none.
    /// Returns the new revision.
    async fn end_fill(
        &self,
        partition: PartitionId,
        expected: (Checkpoint, Revision),
        step: (&RegisteredBoard, u64),
        last_changed_epoch: Epoch,
    ) -> Result<std::result::Result<Revision, CheckpointMismatch>>;

    /// Measures the memory of a filled board in bytes; `None` if the board is not in the register.
    async fn measure(
        &self,
        partition: PartitionId,
        board: &RegisteredBoard,
        now_ms: i64,
    ) -> Result<Option<u64>>;

    /// Removes boards from the register and deletes them, even if memory is full. Returns the new
    /// revision.
    async fn remove_boards(
        &self,
        partition: PartitionId,
        expected: (Checkpoint, Revision),
        boards: &[RegisteredBoard],
    ) -> Result<std::result::Result<Revision, CheckpointMismatch>>;

    /// The least recently read boards of the register, at most `limit`.
    async fn least_used(&self, partition: PartitionId, limit: usize) -> Result<Vec<BoardName>>;
}
