//! The cache of boards beside live state: boards that are in demand, whole, in the order of their ranks.
//!
//! A cached board belongs to the slot of its key's partition. It changes in the same step as the slot, so
//! it holds exactly what live state and batch rows together give for the slot's position, and answers
//! alone. It may go at any time; who finds none reads the batch rows with the live states on top.
//!
//! The slot's *register* says which boards there are. Only the worker of the partition changes it, with
//! a name for the register's last change in the slot's record: so whoever applies changes knows all
//! boards that they concern ([`crate::live::Changes::boards`]). Names of changes and ids of boards are
//! random: a server that lost its last writes would count the same numbers up once more, and a worker
//! that knows the lost ones would take what they stand for now for what it knows.

use async_trait::async_trait;
use schemas::seam::{Epoch, Fence, Moved, Slot};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Result;
use crate::live::SlotId;

/// What a cached board is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoardName {
    /// The view, with its version.
    pub view: String,
    /// The encoded key.
    pub key: Vec<u8>,
    /// The bytes that name the section of the key's boards.
    pub section: Vec<u8>,
}

/// Which rows of a cached board are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BoardWant {
    /// None: only how many there are.
    Sums,
    /// So many from a place on.
    Page {
        /// Places before the first one.
        offset: u64,
        /// Rows, at most.
        limit: usize,
    },
    /// So many of those that rank after a score and a member, whether the board has such a row or not.
    After {
        /// The encoded score.
        score: Vec<u8>,
        /// The encoded member.
        member: Vec<u8>,
        /// Rows, at most.
        limit: usize,
    },
    /// A member's, and so many before and after.
    Around {
        /// The encoded member.
        member: Vec<u8>,
        /// Places before and after.
        around: u64,
    },
    /// Those of some members that are on the board, in no order.
    Members(Vec<Vec<u8>>),
    /// The same, with their places.
    Places(Vec<Vec<u8>>),
}

/// One question for a cached board.
#[derive(Debug, Clone)]
pub struct BoardQuery {
    /// What it is of.
    pub name: BoardName,
    /// The partition of its key.
    pub partition: u32,
    /// The bytes of a score, of which the first eight are its first number; 0 for a board without one.
    pub score_bytes: usize,
    /// Which rows are wanted.
    pub want: BoardWant,
}

/// A row of a cached board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardRow {
    /// The encoded member.
    pub member: Vec<u8>,
    /// The encoded score: eight bytes a number, the sign bit flipped, the high byte first.
    pub score: Vec<u8>,
    /// The encoded payload, with null in the place of what is not shown.
    pub payload: Vec<u8>,
    /// How many of the source's rows stand behind it.
    pub weight: i64,
    /// The epoch of the live state that it is of; 0 if it is of the batch layer.
    pub epoch: Epoch,
}

/// What a cached board answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CachedBoard {
    /// All its rows.
    pub count: u64,
    /// What their weights add up to.
    pub weight: i64,
    /// Rows by epoch ([`BoardRow::epoch`]); those of runs long past count as the batch layer's.
    pub epochs: Vec<(Epoch, u64)>,
    /// The last epoch in which a row was put there, or taken away, by a live state.
    pub changed: Epoch,
    /// The place of the first of the rows, from 0 on.
    pub first: u64,
    /// The rows that were wanted.
    pub rows: Vec<BoardRow>,
    /// Their places, where these were wanted.
    pub places: Vec<u64>,
    /// The place of the member that was asked for.
    pub found: Option<u64>,
}

/// What is known of a board that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cached {
    /// It is not in the cache.
    Not,
    /// It is being filled.
    Filling,
    /// Its answer.
    Board(CachedBoard),
}

/// A cached board and its slot as of one moment.
#[derive(Debug, Clone)]
pub struct BoardAnswer {
    /// The slot; nothing where it is missing.
    pub slot: Option<Slot>,
    /// The board.
    pub board: Cached,
}

/// The name of a change of a register; the default one stands for a register that never changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(u128);

impl Revision {
    /// One that no other change has.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4().as_u128())
    }
}

/// A board of a register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// What it is of.
    pub name: BoardName,
    /// Under which it is kept; never used twice.
    pub id: String,
    /// Its memory in bytes, once it is filled.
    pub bytes: Option<u64>,
}

/// The register of a slot.
#[derive(Debug, Clone, Default)]
pub struct Register {
    /// Its last change.
    pub revision: Revision,
    /// The boards of the slot's present generation.
    pub boards: Vec<Registered>,
    /// Those of generations before, which nobody reads.
    pub leftovers: Vec<Registered>,
}

/// What a micro-batch makes of one cached board.
#[derive(Debug, Clone)]
pub struct BoardChange {
    /// Which.
    pub id: String,
    /// By member: the row; nothing where the member is not on the board any more.
    pub rows: Vec<(Vec<u8>, Option<BoardRow>)>,
}

/// What a micro-batch makes of cached boards.
#[derive(Debug, Clone, Default)]
pub struct BoardChanges {
    /// The register's last change that is known. If there was another since, nothing is applied.
    pub revision: Revision,
    /// The newest complete epoch: rows of it and before it count as the batch layer's.
    pub covered: Epoch,
    /// By board.
    pub boards: Vec<BoardChange>,
}

/// Reading cached boards.
#[async_trait]
pub trait BoardCacheRead: std::fmt::Debug + Send + Sync {
    /// What is asked of cached boards, in the order of the queries, each slot with its boards in one
    /// atomic step.
    async fn read_boards(&self, source: Source, queries: &[BoardQuery])
    -> Result<Vec<BoardAnswer>>;

    /// Notes that a board was read.
    async fn note_use(&self, slot: SlotId, name: &BoardName, now_ms: i64) -> Result<()>;
}

/// Changing the cache. Each call is one atomic script on one slot.
#[async_trait]
pub trait BoardCache: BoardCacheRead {
    /// The register of a slot; empty where the slot is missing.
    async fn register(&self, slot: SlotId) -> Result<Register>;

    /// Puts a board into the register, to be filled; answers its id, and the register's change. Changes
    /// that are applied from now on count for it.
    async fn begin_fill(
        &self,
        slot: SlotId,
        believed: (Fence, Revision),
        name: &BoardName,
    ) -> Result<std::result::Result<(String, Revision), Moved>>;

    /// Puts rows into a board that is being filled, as its `step`, from 1 on; answers whether the board
    /// stood at the step before, or has taken this one already.
    async fn fill(&self, slot: SlotId, at: (&Registered, u64), rows: &[BoardRow]) -> Result<bool>;

    /// Ends the filling after so many steps: the board answers from now on. `changed` is the last epoch
    /// in which a live state put a row there or took one away; 0 for none. Answers the register's change.
    async fn end_fill(
        &self,
        slot: SlotId,
        believed: (Fence, Revision),
        at: (&Registered, u64),
        changed: Epoch,
    ) -> Result<std::result::Result<Revision, Moved>>;

    /// Measures a board that is filled: its memory in bytes; nothing if it is not in the register.
    async fn measure(&self, slot: SlotId, board: &Registered, now_ms: i64) -> Result<Option<u64>>;

    /// Takes boards out of the register and deletes them, also when memory is full; answers the
    /// register's change.
    async fn drop_boards(
        &self,
        slot: SlotId,
        believed: (Fence, Revision),
        boards: &[Registered],
    ) -> Result<std::result::Result<Revision, Moved>>;

    /// The boards of the register that were read least recently, at most `limit`.
    async fn least_used(&self, slot: SlotId, limit: usize) -> Result<Vec<BoardName>>;
}
