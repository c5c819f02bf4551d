//! The boards of one key as a read sees them: what the batch layer made, with newer states on top.
//!
//! The batch layer's *sheet* of a key is two trees that were published together: one in the order of
//! ranks (its keys are board, score, member), and for boards with scores one in the order of members
//! (member, board) that tells the scores. A live state takes the place of everything that its member has on the
//! sheet. So what a sheet holds of such members is left out by position, and what they have now is
//! put in between: pages, ranks and sizes cost a way down the tree and a look at what is newer, never
//! a walk over the board.

mod before;
mod changed;
mod states;
mod whole;

use std::collections::{BTreeMap, BTreeSet};

use schemas::seam::{self, Epoch};

pub use before::Before;
pub use changed::ChangedMembers;

use super::state::{GroupState, Place, StateError};
use crate::merge::{NotWhole, Seam};
use crate::tree::{self, Damaged, Item, Nodes, Sum, Tree};

/// Rows of a board that are looked through at once.
const SCAN_ROWS: usize = 4096;

/// The head of a key's boards, as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// The epoch that they hold.
    pub epoch: Epoch,
    /// The bytes of the sheet's roots ([`Sheet::encode`]).
    pub root: &'a [u8],
}

/// A live state of one member.
#[derive(Debug, Clone, Copy)]
pub struct LiveState<'a> {
    /// The partition that it is of.
    pub partition: usize,
    /// The epoch that it was put in.
    pub epoch: Epoch,
    /// The encoded member.
    pub member: &'a [u8],
    /// The state; nothing where the member has nothing under the key.
    pub state: Option<&'a [u8]>,
}

/// Why boards can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError<E> {
    /// Live state does not join the batch rows: read again, from the newest runs on.
    #[error(transparent)]
    NotWhole(#[from] NotWhole),
    /// The head was replaced while its nodes were read: read again.
    #[error("the batch rows were replaced while they were read")]
    Replaced,
    /// What is stored can't be read.
    #[error("{0}")]
    Damaged(String),
    /// The store's own error.
    #[error(transparent)]
    Store(E),
}

impl<E> From<tree::ReadError<E>> for ReadError<E> {
    fn from(error: tree::ReadError<E>) -> Self {
        match error {
            tree::ReadError::Missing(_) => Self::Replaced,
            tree::ReadError::Damaged(damaged) => Self::Damaged(damaged.to_string()),
            tree::ReadError::Store(error) => Self::Store(error),
        }
    }
}

impl<E> From<StateError> for ReadError<E> {
    fn from(error: StateError) -> Self {
        Self::Damaged(error.to_string())
    }
}

impl<E> From<Damaged> for ReadError<E> {
    fn from(error: Damaged) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// What the batch layer made of the boards of a key.
#[derive(Debug, Clone)]
pub struct Sheet {
    by_rank: Tree,
    /// Missing for boards without scores, where the member is the rank.
    by_member: Option<Tree>,
}

impl Sheet {
    /// The bytes of both roots as one.
    #[must_use]
    pub fn encode(by_rank: &[u8], by_member: Option<&[u8]>) -> Vec<u8> {
        let length = u32::try_from(by_rank.len()).unwrap_or(u32::MAX);
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend_from_slice(by_rank);
        bytes.extend_from_slice(by_member.unwrap_or_default());
        bytes
    }

    /// The sheet whose roots are in bytes.
    ///
    /// # Errors
    /// [`Damaged`] if they are not what [`Sheet::encode`] gives.
    pub fn open(bytes: &[u8], has_scores: bool) -> Result<Self, Damaged> {
        let cut = || Damaged::Content("the roots of boards are cut off");
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| cut())?;
        let (by_rank, by_member) = rest.split_at_checked(length).ok_or_else(cut)?;
        Ok(Self {
            by_rank: Tree::open(by_rank)?,
            by_member: has_scores.then(|| Tree::open(by_member)).transpose()?,
        })
    }

    /// How many rows all boards of the sheet have.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.by_rank.sum().count
    }

    /// The trees of the sheet.
    pub fn trees(&self) -> impl Iterator<Item = &Tree> {
        std::iter::once(&self.by_rank).chain(&self.by_member)
    }
}

/// A row of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranked {
    /// The encoded member.
    pub member: Vec<u8>,
    /// The encoded score.
    pub score: Vec<u8>,
    /// The encoded payload.
    pub payload: Vec<u8>,
    /// How many of the source's rows stand behind it.
    pub weight: i64,
}

impl Ranked {
    /// What decides the order of ranks.
    #[must_use]
    pub fn order(&self) -> (&[u8], &[u8]) {
        (&self.score, &self.member)
    }

    pub(super) fn of(member: &[u8], place: &Place) -> Self {
        Self {
            member: member.to_vec(),
            score: place.score.clone(),
            payload: place.payload.clone(),
            weight: place.weight,
        }
    }
}

/// All boards of a key as of one moment.
#[derive(Debug, Clone)]
pub struct Standings {
    sheet: Option<Sheet>,
    /// By member: the newest state, where it is newer than the sheet.
    live: BTreeMap<Vec<u8>, GroupState>,
    is_split: bool,
    score_bytes: usize,
}

impl Standings {
    /// Puts together what a read found, in the order that the seam demands: the newest runs, then
    /// slots with their states, then the head. Boards have scores of `score_bytes` bytes.
    ///
    /// # Errors
    /// [`ReadError::NotWhole`] if live state does not join the head, [`ReadError::Damaged`] if bytes
    /// do not decode.
    pub fn merge<'a, E>(
        seam: &Seam<'_>,
        head: Option<Head<'_>>,
        live: impl IntoIterator<Item = LiveState<'a>>,
        score_bytes: usize,
    ) -> Result<Self, ReadError<E>> {
        let base = seam::base(head.map_or(0, |head| head.epoch), seam.newest);
        seam.check(base)?;
        let mut newest: BTreeMap<&[u8], LiveState<'a>> = BTreeMap::new();
        let mut is_split = false;
        for state in live {
            if state.epoch <= base {
                continue;
            }
            let place = newest.entry(state.member).or_insert(state);
            is_split |= state.partition != place.partition;
            // As good as any: which of two partitions was told last can't be known.
            if (state.epoch, state.partition) > (place.epoch, place.partition) {
                *place = state;
            }
        }
        let live = newest.into_iter().map(|(member, live)| {
            let state = live.state.map(GroupState::decode).transpose()?;
            Ok((member.to_vec(), state.unwrap_or_default()))
        });
        Ok(Self {
            live: live.collect::<Result<_, StateError>>()?,
            sheet: head
                .map(|head| Sheet::open(head.root, score_bytes > 0))
                .transpose()?,
            is_split,
            score_bytes,
        })
    }

    /// What the batch layer alone made of the boards, from the bytes of a sheet's roots: as of an epoch
    /// that is past. Boards have scores of `score_bytes` bytes.
    ///
    /// # Errors
    /// [`Damaged`] if the bytes do not decode.
    pub fn of_sheet(root: &[u8], score_bytes: usize) -> Result<Self, Damaged> {
        Ok(Self {
            sheet: Some(Sheet::open(root, score_bytes > 0)?),
            live: BTreeMap::new(),
            is_split: false,
            score_bytes,
        })
    }

    /// Whether a member has states in two partitions, since some were added after the newest run:
    /// then one may be older than where its partition stands.
    #[must_use]
    pub const fn is_split(&self) -> bool {
        self.is_split
    }

    /// What the edition alone has on all boards.
    #[must_use]
    pub fn edition(&self) -> Sum {
        let sheet = self.sheet.as_ref();
        sheet.map_or_else(Sum::default, |sheet| sheet.by_rank.sum())
    }

    /// Whether a live state counts.
    #[must_use]
    pub fn has_live(&self) -> bool {
        !self.live.is_empty()
    }

    /// One board of the key.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn board<'a, N: Nodes>(
        &'a self,
        nodes: &'a N,
        board: &[u8],
    ) -> Result<OnBoard<'a, N>, ReadError<N::Error>> {
        let touched: Vec<&[u8]> = self.live.keys().map(Vec::as_slice).collect();
        let mut removed: Vec<(Vec<u8>, i64)> = Vec::new();
        for old in self.on_sheet(nodes, board, &touched).await? {
            removed.push((rank_key(board, &old.score, &old.member), old.weight));
        }
        let mut added: Vec<Ranked> = self
            .live
            .iter()
            .filter_map(|(member, state)| Some(Ranked::of(member, state.on(board)?)))
            .collect();
        added.sort_unstable_by(|one, other| one.order().cmp(&other.order()));

        let mut view = OnBoard {
            standings: self,
            nodes,
            board: board.to_vec(),
            start: Sum::default(),
            end: Sum::default(),
            removed: Vec::new(),
            removed_keys: Vec::new(),
            removed_weight: 0,
            positions: vec![0; added.len()],
            added,
        };
        let Some(sheet) = &self.sheet else {
            return Ok(view);
        };
        let added = view.added.iter();
        let added: Vec<Vec<u8>> = added
            .map(|ranked| rank_key(board, &ranked.score, &ranked.member))
            .collect();
        let after = after_prefix(board);
        let keys: Vec<&[u8]> = std::iter::once(board)
            .chain(after.as_deref())
            .chain(removed.iter().map(|(key, _)| key.as_slice()))
            .chain(added.iter().map(Vec::as_slice))
            .collect();
        let mut ranks = sheet.by_rank.ranks(nodes, &keys).await?.into_iter();
        view.start = ranks.next().unwrap_or_default();
        view.end = match after {
            Some(_) => ranks.next().unwrap_or_default(),
            None => sheet.by_rank.sum(),
        };
        let start = view.start.count;
        let mut position = || {
            ranks
                .next()
                .map_or(0, |sum| sum.count.saturating_sub(start))
        };
        for (_, weight) in &removed {
            view.removed.push(position());
            view.removed_weight = view.removed_weight.saturating_add(*weight);
        }
        view.removed.sort_unstable();
        view.removed_keys = removed.into_iter().map(|(key, _)| key).collect();
        view.positions = added.iter().map(|_| position()).collect();
        Ok(view)
    }

    /// What the sheet has of some members on a board; without payloads where there are scores.
    async fn on_sheet<N: Nodes>(
        &self,
        nodes: &N,
        board: &[u8],
        members: &[&[u8]],
    ) -> Result<Vec<Ranked>, ReadError<N::Error>> {
        let Some(sheet) = self.sheet.as_ref().filter(|_| !members.is_empty()) else {
            return Ok(Vec::new());
        };
        let (tree, keys): (_, Vec<Vec<u8>>) = match &sheet.by_member {
            Some(tree) => {
                let keys = members.iter().map(|member| member_key(member, board));
                (tree, keys.collect())
            }
            None => {
                let keys = members.iter().map(|member| rank_key(board, &[], member));
                (&sheet.by_rank, keys.collect())
            }
        };
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let items = tree.get(nodes, &keys).await?;
        let mut found = Vec::new();
        for (member, item) in members.iter().zip(items) {
            let Some(item) = item else { continue };
            let (score, payload) = match &sheet.by_member {
                Some(_) => (item.value(), &[][..]),
                None => (&[][..], item.value()),
            };
            found.push(Ranked {
                member: member.to_vec(),
                score: score.to_vec(),
                payload: payload.to_vec(),
                weight: item.weight(),
            });
        }
        Ok(found)
    }
}

/// One board as of one moment.
#[derive(Debug)]
pub struct OnBoard<'a, N> {
    standings: &'a Standings,
    nodes: &'a N,
    board: Vec<u8>,
    /// What the sheet has before the board, and up to its end.
    start: Sum,
    end: Sum,
    /// Positions on the sheet's board of what is not there any more, ascending.
    removed: Vec<u64>,
    /// Their keys in the order of ranks, in no order.
    removed_keys: Vec<Vec<u8>>,
    removed_weight: i64,
    /// What is there now instead, in the order of ranks.
    added: Vec<Ranked>,
    /// For each of them, how many rows of the sheet's board stand before it.
    positions: Vec<u64>,
}

impl<N: Nodes> OnBoard<'_, N> {
    /// How many rows there are, and what their weights add up to.
    #[must_use]
    pub fn sum(&self) -> Sum {
        let weight = |ranked: &Ranked| ranked.weight;
        let added = self.added.iter().map(weight).fold(0, i64::saturating_add);
        let weight = (self.end.weight - self.start.weight).saturating_sub(self.removed_weight);
        Sum {
            count: self.survivors() + self.added.len() as u64,
            weight: weight.saturating_add(added),
        }
    }

    /// What newer states took away of the sheet's board, and what they put there instead.
    #[must_use]
    pub fn live(&self) -> (Sum, Sum) {
        let added = self.added.iter().map(|ranked| ranked.weight);
        let of = |count: usize, weight| Sum {
            count: count as u64,
            weight,
        };
        let added = of(self.added.len(), added.fold(0, i64::saturating_add));
        (of(self.removed.len(), self.removed_weight), added)
    }

    /// The rows of newer states, in the order of ranks.
    #[must_use]
    pub fn added(&self) -> &[Ranked] {
        &self.added
    }

    /// Whether a row of the batch layer is on the board, and whether a newer state had a part in it: it
    /// is there, or it took a row of the batch layer away.
    #[must_use]
    pub fn layers(&self) -> (bool, bool) {
        let is_live = !self.removed.is_empty() || !self.added.is_empty();
        (self.survivors() > 0, is_live)
    }

    /// Whether what a member has on the board is of a newer state.
    #[must_use]
    pub fn is_live(&self, member: &[u8]) -> bool {
        self.standings.live.contains_key(member)
    }

    /// The batch layer's rows that newer states took away, of the members that `is_asked` lets
    /// through; in no order.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn taken_away(
        &self,
        is_asked: impl Fn(&[u8]) -> bool + Send,
    ) -> Result<Vec<Ranked>, ReadError<N::Error>> {
        let before = self.board.len() + self.standings.score_bytes;
        let keys = self.removed_keys.iter().map(Vec::as_slice);
        let keys: Vec<&[u8]> = keys
            .filter(|key| is_asked(key.get(before..).unwrap_or_default()))
            .collect();
        let Some(sheet) = self.standings.sheet.as_ref().filter(|_| !keys.is_empty()) else {
            return Ok(Vec::new());
        };
        let items = sheet.by_rank.get(self.nodes, &keys).await?;
        let items = items.iter().flatten();
        Ok(items.filter_map(|item| self.ranked(item)).collect())
    }

    /// The rows from place `offset` on, at most `limit`.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn page(
        &self,
        offset: u64,
        limit: usize,
    ) -> Result<Vec<Ranked>, ReadError<N::Error>> {
        let size = self.sum().count;
        if offset >= size || limit == 0 {
            return Ok(Vec::new());
        }
        let (mut low, mut high) = (0, self.added.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.place_of_added(middle) < offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        // Of the sheet's rows that are still there so many stand before the page.
        let before = offset - low as u64;
        let mut first = before;
        let mut skipped = 0;
        for removed in &self.removed {
            if *removed > first {
                break;
            }
            first += 1;
            skipped += 1;
        }
        let sheet = self.sheet_rows(first, skipped, limit).await?;
        let mut sheet = sheet.into_iter().peekable();
        let mut added = self.added.iter().skip(low).peekable();
        let mut rows = Vec::with_capacity(limit.min(SCAN_ROWS));
        while rows.len() < limit {
            let is_added = match (sheet.peek(), added.peek()) {
                (None, None) => break,
                (None, Some(_)) => true,
                (Some(_), None) => false,
                (Some(old), Some(new)) => new.order() < old.order(),
            };
            if is_added {
                rows.extend(added.next().cloned());
            } else {
                rows.extend(sheet.next());
            }
        }
        Ok(rows)
    }

    /// The place of a member, from 0 on, and the row; nothing if the member is not on the board.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn find(&self, member: &[u8]) -> Result<Option<(u64, Ranked)>, ReadError<N::Error>> {
        Ok(self.find_all(&[member]).await?.pop())
    }

    /// The rows of some members that are on the board, in the order of ranks.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn members(&self, members: &[&[u8]]) -> Result<Vec<Ranked>, ReadError<N::Error>> {
        let found = self.find_all(members).await?;
        Ok(found.into_iter().map(|(_, ranked)| ranked).collect())
    }

    /// The places of some members, from 0 on, and their rows, of those that are on the board and in the
    /// order of ranks: one way down each tree, however many they are.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn find_all(
        &self,
        members: &[&[u8]],
    ) -> Result<Vec<(u64, Ranked)>, ReadError<N::Error>> {
        let (mut live, mut unchanged) = (BTreeSet::new(), BTreeSet::new());
        for member in members {
            let of = match self.standings.live.contains_key(*member) {
                true => &mut live,
                false => &mut unchanged,
            };
            of.insert(*member);
        }
        let mut rows = Vec::new();
        if !live.is_empty() {
            let added = self.added.iter().enumerate();
            let asked = added.filter(|(_, ranked)| live.contains(ranked.member.as_slice()));
            rows.extend(asked.map(|(index, ranked)| (self.place_of_added(index), ranked.clone())));
        }
        for (before, ranked) in self.unchanged(unchanged).await? {
            let position = before.count.saturating_sub(self.start.count);
            let added = self
                .added
                .partition_point(|other| other.order() < ranked.order());
            let place = position - self.removed_before(position) + added as u64;
            rows.push((place, ranked));
        }
        rows.sort_unstable_by_key(|(place, _)| *place);
        Ok(rows)
    }

    /// What the sheet has of some members on this board, with what stands before each row.
    async fn unchanged(
        &self,
        members: BTreeSet<&[u8]>,
    ) -> Result<Vec<(Sum, Ranked)>, ReadError<N::Error>> {
        let Some(sheet) = self
            .standings
            .sheet
            .as_ref()
            .filter(|_| !members.is_empty())
        else {
            return Ok(Vec::new());
        };
        let members: Vec<&[u8]> = members.into_iter().collect();
        let has_scores = sheet.by_member.is_some();
        let keys: Vec<Vec<u8>> = if has_scores {
            let found = self
                .standings
                .on_sheet(self.nodes, &self.board, &members)
                .await?;
            let key = |old: &Ranked| rank_key(&self.board, &old.score, &old.member);
            found.iter().map(key).collect()
        } else {
            let key = |member: &&[u8]| rank_key(&self.board, &[], member);
            members.iter().map(key).collect()
        };
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut rows = Vec::with_capacity(keys.len());
        for found in sheet.by_rank.find(self.nodes, &keys).await? {
            let found = found.and_then(|(before, item)| Some((before, self.ranked(&item)?)));
            match found {
                Some(row) => rows.push(row),
                None if has_scores => {
                    let what = "the two orders of a board do not hold the same rows";
                    return Err(ReadError::Damaged(what.to_owned()));
                }
                None => {}
            }
        }
        Ok(rows)
    }

    /// Hands all rows to `take`, in the order of ranks, until it answers false.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn scan(
        &self,
        mut take: impl FnMut(Ranked) -> bool + Send,
    ) -> Result<(), ReadError<N::Error>> {
        let mut offset = 0;
        loop {
            let rows = self.page(offset, SCAN_ROWS).await?;
            offset += rows.len() as u64;
            let is_last = rows.len() < SCAN_ROWS;
            for row in rows {
                if !take(row) {
                    return Ok(());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Rows of the sheet that are still there, from position `first` on, at most `limit`. Of the
    /// removed ones `skipped` stand before.
    async fn sheet_rows(
        &self,
        first: u64,
        skipped: usize,
        limit: usize,
    ) -> Result<Vec<Ranked>, ReadError<N::Error>> {
        let size = self.end.count - self.start.count;
        let Some(sheet) = self.standings.sheet.as_ref().filter(|_| first < size) else {
            return Ok(Vec::new());
        };
        let removed = self.removed.get(skipped..).unwrap_or_default();
        let mut last = first + limit as u64;
        for position in removed {
            if *position >= last {
                break;
            }
            last += 1;
        }
        let length = usize::try_from(last.min(size) - first).unwrap_or(usize::MAX);
        let from = self.start.count + first;
        let items = sheet.by_rank.slice(self.nodes, from, length).await?;
        let mut removed = removed.iter().peekable();
        let mut rows = Vec::with_capacity(items.len());
        for (position, item) in (first..).zip(items) {
            if removed.next_if_eq(&&position).is_none() {
                rows.extend(self.ranked(&item));
            }
        }
        Ok(rows)
    }

    fn survivors(&self) -> u64 {
        (self.end.count - self.start.count).saturating_sub(self.removed.len() as u64)
    }

    fn removed_before(&self, position: u64) -> u64 {
        self.removed.partition_point(|removed| *removed < position) as u64
    }

    fn place_of_added(&self, index: usize) -> u64 {
        let position = self.positions.get(index).copied().unwrap_or(0);
        position - self.removed_before(position) + index as u64
    }

    fn ranked(&self, item: &Item) -> Option<Ranked> {
        let rest = item.key().strip_prefix(self.board.as_slice())?;
        let (score, member) = rest.split_at_checked(self.standings.score_bytes)?;
        Some(Ranked {
            member: member.to_vec(),
            score: score.to_vec(),
            payload: item.value().to_vec(),
            weight: item.weight(),
        })
    }
}

/// The key of a row in the order of ranks.
#[must_use]
pub fn rank_key(board: &[u8], score: &[u8], member: &[u8]) -> Vec<u8> {
    [board, score, member].concat()
}

/// The key of a row in the order of members.
#[must_use]
pub fn member_key(member: &[u8], board: &[u8]) -> Vec<u8> {
    [member, board].concat()
}

/// The first key after all that begin with a prefix; nothing if there is none.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut after = prefix.to_vec();
    while let Some(last) = after.pop() {
        if last < u8::MAX {
            after.push(last + 1);
            return Some(after);
        }
    }
    None
}

#[cfg(test)]
#[path = "standings_tests.rs"]
mod tests;
