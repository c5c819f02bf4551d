//! The live port: one slot for each log partition, changed only by atomic scripts.
//!
//! The scripts are the rules of [`schemas::seam`] on a stored slot, together with the live parts
//! that belong to it: both change in one step or not at all. Parts are kept by generation, epoch and
//! view. Those of tallies are *deltas*, which add up, by group and row; those of boards are *states*,
//! by key and member: everything that a member has under a key, of which the newest counts.

use std::ops::Range;

use arrow::array::{
    Array, BinaryArray, BinaryBuilder, Int64Array, UInt32Array, UInt32Builder, UInt64Array,
    UInt64Builder,
};
use async_trait::async_trait;
use bytes::Bytes;
use schemas::seam::{Cut, Epoch, Fence, Moved, NewLife, RollRefused, Slot};
use schemas::source::Source;

use crate::Result;
use crate::board_cache::{BoardCache, BoardCacheRead, BoardChanges};
use crate::kept_sum::{KeptSum, SumChange};
use crate::live_scan::{LivePlace, ScannedDeltas, ScannedStates, deltas_of_pages};

/// The live state of one log partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    /// The source.
    pub source: Source,
    /// The log partition.
    pub partition: u32,
}

/// What a micro-batch adds to one view: rows of encoded group key, encoded row key and delta. No
/// two rows have the same keys.
#[derive(Debug, Clone)]
pub struct Deltas {
    /// The view, with its version: [`jobs` name and version joined by `@`](schemas::key).
    pub view: String,
    /// The columns of which groups are made. Rows of views that have the same may be kept together.
    pub grouped_by: String,
    /// Encoded group keys.
    pub groups: BinaryArray,
    /// Encoded row keys within the group.
    pub rows: BinaryArray,
    /// What to add.
    pub counts: Int64Array,
}

/// What a micro-batch makes of one view of boards: the whole present state of each group that it
/// touched. No two groups are the same.
#[derive(Debug, Clone)]
pub struct States {
    /// The view, with its version.
    pub view: String,
    /// Encoded keys.
    pub keys: BinaryArray,
    /// Encoded members.
    pub members: BinaryArray,
    /// The states; null where the member has nothing under the key any more.
    pub states: BinaryArray,
}

impl States {
    /// The state of a group, by its index.
    #[must_use]
    pub fn state(&self, index: usize) -> Option<&[u8]> {
        self.states
            .is_valid(index)
            .then(|| self.states.value(index))
    }
}

/// What a micro-batch changes.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// What it adds to tallies.
    pub deltas: Vec<Deltas>,
    /// What it makes of boards.
    pub states: Vec<States>,
    /// Whether a record among them has a key that belongs to another partition ([`Slot::strays`]).
    pub strays: bool,
    /// What it makes of cached boards: of all that its states concern.
    pub boards: BoardChanges,
    /// What it makes of sums that are kept, at most one for each key of a view. Those of other keys
    /// whose states it changes end.
    pub sums: Vec<SumChange>,
    /// What waits from then on to be told to others, in this order, after what waits already.
    pub outbox: Vec<Bytes>,
}

impl Changes {
    /// How many rows change.
    #[must_use]
    pub fn rows(&self) -> usize {
        let deltas = self.deltas.iter().map(|deltas| deltas.counts.len());
        let states = self.states.iter().map(|states| states.states.len());
        let boards = self.boards.boards.iter().map(|board| board.rows.len());
        deltas.chain(states).chain(boards).sum()
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

/// One question for live states: those of a view under a key.
#[derive(Debug, Clone)]
pub struct StateQuery {
    /// The view, with its version.
    pub view: String,
    /// The encoded key.
    pub key: Vec<u8>,
    /// The only partition that can hold states of this key, where that is known; else all are asked.
    pub partition: Option<u32>,
}

/// One question for the live states of some members of a view under a key.
#[derive(Debug, Clone)]
pub struct MembersQuery {
    /// As in [`StateQuery`].
    pub of: StateQuery,
    /// The encoded members; each comes once.
    pub members: Vec<Vec<u8>>,
}

/// What waits in a slot to be told to others, as of one moment of the slot: its first entries. They
/// are of the slot's present generation; those of an earlier life are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    /// The slot.
    pub slot: Slot,
    /// How many entries wait.
    pub waiting: u64,
    /// By what the store knows these entries again.
    pub numbers: Range<u64>,
    /// The first of them, in their order.
    pub entries: Vec<Bytes>,
}

/// States of a key are counted up to so many ([`LiveStates::held`]).
pub const HELD_MAX: u64 = 1_001;

/// Live states, row by row: the answer to one [`StateQuery`]. Only those of the slot's present
/// generation, of epochs that it still keeps.
#[derive(Debug, Clone)]
pub struct LiveStates {
    /// The partition that each state is of.
    pub partitions: UInt32Array,
    /// The epoch of each state.
    pub epochs: UInt64Array,
    /// The encoded member of each state.
    pub members: BinaryArray,
    /// The states; null where the member has nothing under the key.
    pub states: BinaryArray,
    /// The sums of the key that slots keep, each with its partition.
    pub sums: Vec<(u32, KeptSum)>,
    /// At least so many states of the key the slots hold, also of members that were not asked for; all,
    /// where they are fewer than [`HELD_MAX`]. Nothing where sums take their place.
    pub held: u64,
}

/// Slots and live states as of one moment of each slot.
#[derive(Debug, Clone)]
pub struct StatesAnswer {
    /// Each slot as it stood when its states were read; nothing where it is missing.
    pub slots: Vec<Option<Slot>>,
    /// The answers, in the order of the queries.
    pub states: Vec<LiveStates>,
}

/// One question for live parts: those of a view in a group, within ranges of row keys.
#[derive(Debug, Clone)]
pub struct LiveQuery {
    /// The view, with its version.
    pub view: String,
    /// The encoded group key.
    pub group: Vec<u8>,
    /// Half-open ranges of encoded row keys, ascending and apart from each other; a missing end is
    /// open.
    pub ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// The only partition that can hold parts of this group, where that is known; else all are
    /// asked.
    pub partition: Option<u32>,
}

/// Live parts, row by row: the answer to one [`LiveQuery`]. Only parts of the slot's present
/// generation, of epochs that it still keeps.
#[derive(Debug, Clone)]
pub struct LiveParts {
    /// The partition that each part is of.
    pub partitions: UInt32Array,
    /// The epoch of each part.
    pub epochs: UInt64Array,
    /// The encoded row key of each part.
    pub rows: BinaryArray,
    /// The deltas.
    pub counts: Int64Array,
}

/// Slots and live parts as of one moment of each slot.
#[derive(Debug, Clone)]
pub struct LiveAnswer {
    /// Each slot as it stood when its parts were read; nothing where it is missing.
    pub slots: Vec<Option<Slot>>,
    /// The answers, in the order of the queries.
    pub parts: Vec<LiveParts>,
}

/// Live states of one query, as they are found.
#[derive(Debug, Default)]
pub(crate) struct LiveStatesBuilder {
    partitions: UInt32Builder,
    epochs: UInt64Builder,
    members: BinaryBuilder,
    states: BinaryBuilder,
    pub(crate) sums: Vec<(u32, KeptSum)>,
    pub(crate) held: u64,
}

impl LiveStatesBuilder {
    pub(crate) fn add(
        &mut self,
        (partition, epoch): (u32, Epoch),
        member: &[u8],
        state: Option<&[u8]>,
    ) {
        self.partitions.append_value(partition);
        self.epochs.append_value(epoch);
        self.members.append_value(member);
        self.states.append_option(state);
    }

    pub(crate) fn finish(mut self) -> LiveStates {
        let members = self.members.finish();
        LiveStates {
            partitions: self.partitions.finish(),
            epochs: self.epochs.finish(),
            // Where all were read, they are all that are held.
            held: self.held.max(members.len() as u64),
            members,
            states: self.states.finish(),
            sums: self.sums,
        }
    }
}

/// Reading live state.
#[async_trait]
pub trait LiveRead: std::fmt::Debug + Send + Sync {
    /// The slots of partitions 0 to `partitions` - 1 and the live parts that are asked for, each
    /// slot with its parts in one atomic step. A group that is too large to be read so is an error,
    /// never a part of it.
    async fn read(
        &self,
        source: Source,
        partitions: u32,
        queries: &[LiveQuery],
    ) -> Result<LiveAnswer>;

    /// The partition states of some partitions, without deltas and states; nothing where one is missing.
    /// The cost depends on the number of these partitions alone.
    async fn partition_states(
        &self,
        source: Source,
        partitions: Range<u32>,
    ) -> Result<Vec<Option<Slot>>>;

    /// The slots of partitions 0 to `partitions` - 1 and the live states that are asked for, each
    /// slot with its states in one atomic step.
    async fn read_states(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesAnswer>;

    /// As [`LiveRead::read_states`], but a slot that keeps a sum of a key which is made
    /// ([`KeptSum::content`]) may answer that alone, without the states of the key.
    async fn read_sums(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesAnswer> {
        self.read_states(source, partitions, queries).await
    }

    /// The boards that are cached beside the slots, where the store has such a cache.
    fn cached_boards(&self) -> Option<&dyn BoardCacheRead> {
        None
    }

    /// As [`LiveRead::read_states`], of some members and partitions only: what others have under the
    /// same key costs nothing. A store may refuse to read more than ten thousand members at once.
    async fn read_members(
        &self,
        source: Source,
        partitions: Range<u32>,
        queries: &[MembersQuery],
    ) -> Result<StatesAnswer>;

    /// What waits in the slots of some partitions to be told, at most `limit` entries of each; nothing
    /// where the slot is missing.
    async fn outboxes(
        &self,
        source: Source,
        partitions: Range<u32>,
        limit: usize,
    ) -> Result<Vec<Option<Outbox>>>;

    /// A page of all deltas of a view in one slot within the epochs `from..=to`: groups, rows and the
    /// sum of the deltas over these epochs, in the order of group and row key, after the key `after`. The
    /// slot and the page are of one moment, so the fence says whether anything moved between two pages.
    /// A page may have fewer rows than `limit` though another follows ([`ScannedDeltas::next`]).
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] also where a group is so large that it takes several answers, and
    /// was changed each time: then only epochs that have ended can be scanned.
    async fn scan_deltas(
        &self,
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<LivePlace>,
        limit: usize,
    ) -> Result<ScannedDeltas>;

    /// The same for the states of a view of boards, by key and member, of each member the newest within the
    /// epochs: the one that counts, unless its epoch is in what the batch layer has made.
    ///
    /// # Errors
    /// As [`LiveRead::scan_deltas`].
    async fn scan_states(
        &self,
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<LivePlace>,
        limit: usize,
    ) -> Result<ScannedStates>;

    /// As [`LiveRead::scan_deltas`], with `limit` rows if there are as many, also of several moments. Used
    /// to compare a run with what was counted live.
    async fn scan(
        &self,
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<LivePlace>,
        limit: usize,
    ) -> Result<Deltas> {
        deltas_of_pages(self, (slot, view), epochs, after, limit).await
    }
}

/// What becomes of a slot: its next state, or nothing if it stays as it is.
pub type SlotRule<'a> = dyn Fn(Option<&Slot>) -> Option<Slot> + Sync + 'a;

/// So many old bounds are remembered when epochs are let go.
const KEEP_BOUNDS: u64 = 8;

fn imposed(slot: Option<&Slot>, believed: &Fence) -> Result<Slot, Moved> {
    let mut next = slot.cloned().ok_or(Moved { at: None })?;
    next.impose(believed)?;
    Ok(next)
}

fn rolled(slot: Option<&Slot>, epoch: Epoch) -> (Option<Slot>, Result<Cut, RollRefused>) {
    let Some(slot) = slot else {
        return (None, Err(RollRefused::Missing));
    };
    let mut next = slot.clone();
    let rolled = next.roll(epoch);
    ((next.epoch != slot.epoch).then_some(next), rolled)
}

fn dropped(slot: Option<&Slot>, epoch: Epoch, cut: Cut) -> Option<Slot> {
    let mut next = slot?.clone();
    let is_dropped = next.drop_through(epoch, cut, KEEP_BOUNDS);
    is_dropped.then_some(next)
}

/// Changing live state. Each call is one atomic script on one slot.
#[async_trait]
pub trait LiveWrite: LiveRead {
    /// How many deltas the changes of one [`LiveWrite::apply`] to a slot should have, at most: a server that does
    /// one thing at a time serves nobody else meanwhile. More are taken too.
    fn deltas_max(&self, _slot: SlotId) -> usize {
        usize::MAX
    }

    /// The same for states.
    fn states_max(&self) -> usize {
        usize::MAX
    }

    /// The cache of boards, where the store has one.
    fn board_cache(&self) -> Option<&dyn BoardCache> {
        None
    }

    /// Applies the changes of a micro-batch and moves the fence to `next`, if the fence is exactly
    /// where the worker believes; otherwise nothing changes and the answer says where it stands.
    /// `views` are all views that the worker keeps, also those that this batch leaves alone.
    async fn apply(
        &self,
        slot: SlotId,
        believed: Fence,
        next: Cut,
        views: &[&str],
        changes: &Changes,
    ) -> Result<Result<(), Moved>>;

    /// Takes the entries that were read out of the outbox, once they have been told; answers whether
    /// they were there. Where somebody else has taken them out, or the slot has begun a new life,
    /// nothing changes.
    async fn take_out(&self, slot: SlotId, read: &Outbox) -> Result<bool>;

    /// Changes a slot by a rule in one atomic step. Returns the slot as the rule saw it last: it may be called several times.
    async fn change_slot(
        &self,
        doing: &'static str,
        slot: SlotId,
        rule: &SlotRule<'_>,
    ) -> Result<Option<Slot>>;

    /// Ends the epoch that is being filled at the fence: a recorded cut is put back.
    async fn impose(&self, slot: SlotId, believed: Fence) -> Result<Result<(), Moved>> {
        let rule = |seen: Option<&Slot>| imposed(seen, &believed).ok();
        let seen = self.change_slot("putting a cut back", slot, &rule).await?;
        Ok(imposed(seen.as_ref(), &believed).map(drop))
    }

    /// Ends `epoch` where the slot stands, or answers where it ended.
    async fn roll(&self, slot: SlotId, epoch: Epoch) -> Result<Result<Cut, RollRefused>> {
        let rule = |seen: Option<&Slot>| rolled(seen, epoch).0;
        let seen = self.change_slot("ending an epoch", slot, &rule).await?;
        Ok(rolled(seen.as_ref(), epoch).1)
    }

    /// Starts a new life, if the slot still stands as it was seen.
    async fn heal(
        &self,
        slot: SlotId,
        seen: Option<Fence>,
        life: &NewLife,
    ) -> Result<Result<(), Moved>> {
        let rule = |present: Option<&Slot>| Slot::heal(present, seen, life).ok();
        let present = self.change_slot("healing a slot", slot, &rule).await?;
        Ok(Slot::heal(present.as_ref(), seen, life).map(drop))
    }

    /// Lets go of epochs up to `epoch`, if the slot's boundary is the cut; answers whether it did.
    async fn drop_through(&self, slot: SlotId, epoch: Epoch, cut: Cut) -> Result<bool> {
        let rule = |seen: Option<&Slot>| dropped(seen, epoch, cut);
        let seen = self
            .change_slot("letting go of epochs", slot, &rule)
            .await?;
        Ok(rule(seen.as_ref()).is_some())
    }

    /// Deletes parts that can no longer be read (of dropped epochs and old generations), at most
    /// `limit` of them, and answers how many it deleted. Nobody waits for it.
    async fn collect_garbage(&self, slot: SlotId, limit: usize) -> Result<usize>;
}
