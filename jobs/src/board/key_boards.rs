//! The boards of one key as a read sees them: a published version with newer live entries on top.
//!
//! A version consists of two trees that were published together. One is in rank order, with the key
//! (board, score, member). The other exists for boards with scores; it is in member order, with the
//! key (member, board) and the score as value. A live entry replaces everything that its member has
//! in the version. So entries of such members are skipped by position, and their live entries are
//! inserted. Pages, ranks and sizes cost one descent of the tree and the newer live entries, never
//! a scan of the board.

mod changed_members;
mod member_lookup;
mod rank_breakdown;
mod scan;

use std::collections::{BTreeMap, BTreeSet};

use schemas::seam::{self, Epoch};

pub use changed_members::ChangedMembers;
pub use rank_breakdown::RankBreakdown;

use super::member_entries::{BoardEntry, MemberEntries, MemberEntriesError};
use crate::merge::{SeamMismatch, SeamSnapshot};
use crate::tree::{self, Item, NodeReader, Sum, Tree, TreeDamage};

/// Entries of a board that are read at once during a scan.
const SCAN_ENTRIES: usize = 4096;
/// The damage of a version whose trees were not published together.
const TREES_DIFFER: &str = "the trees by rank and by member have different entries";

/// The stored head of a key.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// The epoch of the version.
    pub epoch: Epoch,
    /// The bytes of the version's roots ([`VersionTrees::encode`]).
    pub root: &'a [u8],
}

/// A live entry: everything that one member has on the key's boards.
#[derive(Debug, Clone, Copy)]
pub struct LiveEntry<'a> {
    /// The partition that stores it.
    pub partition: usize,
    /// The epoch in which it was written.
    pub epoch: Epoch,
    /// The encoded member.
    pub member: &'a [u8],
    /// The encoded entries; `None` if the member has none under the key.
    pub entries: Option<&'a [u8]>,
}

/// An error that prevents reading boards.
#[derive(Debug, thiserror::Error)]
pub enum ReadError<E> {
    /// Live state does not join the batch rows. Read again, starting with the run records.
    #[error(transparent)]
    SeamMismatch(#[from] SeamMismatch),
    /// The head was replaced while its nodes were read. Read again.
    #[error("a batch run replaced the batch rows during the read; read again")]
    Replaced,
    /// Stored data is corrupt.
    #[error("{0}")]
    Damaged(String),
    /// The error of the store.
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

impl<E> From<MemberEntriesError> for ReadError<E> {
    fn from(error: MemberEntriesError) -> Self {
        Self::Damaged(error.to_string())
    }
}

impl<E> From<TreeDamage> for ReadError<E> {
    fn from(error: TreeDamage) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// The trees of one version of a key's boards.
#[derive(Debug, Clone)]
pub struct VersionTrees {
    by_rank: Tree,
    /// `None` for boards without scores, where the rank order is the member order.
    by_member: Option<Tree>,
}

impl VersionTrees {
    /// Encodes both roots.
    #[must_use]
    pub fn encode(by_rank: &[u8], by_member: Option<&[u8]>) -> Vec<u8> {
        let length = u32::try_from(by_rank.len()).unwrap_or(u32::MAX);
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend_from_slice(by_rank);
        bytes.extend_from_slice(by_member.unwrap_or_default());
        bytes
    }

    /// Opens a version from its encoded roots.
    ///
    /// # Errors
    /// [`TreeDamage`] if `bytes` are not the result of [`VersionTrees::encode`].
    pub fn open(bytes: &[u8], has_scores: bool) -> Result<Self, TreeDamage> {
        let truncated = || TreeDamage::Content("the roots of boards are truncated");
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(truncated)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| truncated())?;
        let (by_rank, by_member) = rest.split_at_checked(length).ok_or_else(truncated)?;
        Ok(Self {
            by_rank: Tree::open(by_rank)?,
            by_member: has_scores.then(|| Tree::open(by_member)).transpose()?,
        })
    }

    /// Returns the number of entries on all boards of the version.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        self.by_rank.sum().count
    }

    /// Iterates over the trees of the version.
    pub fn trees(&self) -> impl Iterator<Item = &Tree> {
        std::iter::once(&self.by_rank).chain(&self.by_member)
    }
}

/// An entry of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankedEntry {
    /// The encoded member.
    pub member: Vec<u8>,
    /// The encoded score.
    pub score: Vec<u8>,
    /// The encoded payload.
    pub payload: Vec<u8>,
    /// The number of source rows of the entry.
    pub weight: i64,
}

impl RankedEntry {
    /// Returns the sort key of the rank order.
    #[must_use]
    pub fn sort_key(&self) -> (&[u8], &[u8]) {
        (&self.score, &self.member)
    }

    pub(super) fn new(member: &[u8], entry: &BoardEntry) -> Self {
        Self {
            member: member.to_vec(),
            score: entry.score.clone(),
            payload: entry.payload.clone(),
            weight: entry.weight,
        }
    }
}

/// All boards of a key at one moment.
#[derive(Debug, Clone)]
pub struct KeyBoards {
    version: Option<VersionTrees>,
    /// By member: the newest live entry, if it is newer than the version.
    live: BTreeMap<Vec<u8>, MemberEntries>,
    is_split: bool,
    score_bytes: usize,
}

impl KeyBoards {
    /// Merges the results of a read, which must read the run records first, then the partition
    /// states with their live entries, then the head. `score_bytes` is the length of a score.
    ///
    /// # Errors
    /// [`ReadError::SeamMismatch`] if live state does not join the head, [`ReadError::Damaged`] if
    /// bytes do not decode.
    pub fn merge<'a, E>(
        seam: &SeamSnapshot<'_>,
        head: Option<Head<'_>>,
        live: impl IntoIterator<Item = LiveEntry<'a>>,
        score_bytes: usize,
    ) -> Result<Self, ReadError<E>> {
        let base = seam::base_epoch(head.map_or(0, |head| head.epoch), seam.newest_epoch);
        seam.check(base)?;
        let mut newest: BTreeMap<&[u8], LiveEntry<'a>> = BTreeMap::new();
        let mut is_split = false;
        for entry in live {
            if entry.epoch <= base {
                continue;
            }
            let newest_of_member = newest.entry(entry.member).or_insert(entry);
            is_split |= entry.partition != newest_of_member.partition;
            // An arbitrary but fixed choice: the order of writes in two partitions is unknown.
            if (entry.epoch, entry.partition) > (newest_of_member.epoch, newest_of_member.partition)
            {
                *newest_of_member = entry;
            }
        }
        let live = newest.into_iter().map(|(member, live)| {
            let entries = live.entries.map(MemberEntries::decode).transpose()?;
            Ok((member.to_vec(), entries.unwrap_or_default()))
        });
        Ok(Self {
            live: live.collect::<Result<_, MemberEntriesError>>()?,
            version: head
                .map(|head| VersionTrees::open(head.root, score_bytes > 0))
                .transpose()?,
            is_split,
            score_bytes,
        })
    }

    /// Opens a published version alone, for reads of a past epoch. `score_bytes` is the length of a
    /// score.
    ///
    /// # Errors
    /// [`TreeDamage`] if the bytes do not decode.
    pub fn from_version(root: &[u8], score_bytes: usize) -> Result<Self, TreeDamage> {
        Ok(Self {
            version: Some(VersionTrees::open(root, score_bytes > 0)?),
            live: BTreeMap::new(),
            is_split: false,
            score_bytes,
        })
    }

    /// Returns whether a member has live entries in two partitions, because partitions were added
    /// after the newest run. Then one of them may be older than its partition state.
    #[must_use]
    pub const fn is_split(&self) -> bool {
        self.is_split
    }

    /// Returns the sum over all boards of the version.
    #[must_use]
    pub fn version_sum(&self) -> Sum {
        let version = self.version.as_ref();
        version.map_or_else(Sum::default, |version| version.by_rank.sum())
    }

    /// Returns whether there are live entries.
    #[must_use]
    pub fn has_live_entries(&self) -> bool {
        !self.live.is_empty()
    }

    /// Opens one board of the key.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn open_board<'a, N: NodeReader>(
        &'a self,
        nodes: &'a N,
        board: &[u8],
    ) -> Result<BoardSnapshot<'a, N>, ReadError<N::Error>> {
        let live_members: Vec<&[u8]> = self.live.keys().map(Vec::as_slice).collect();
        let mut removed: Vec<(Vec<u8>, i64)> = Vec::new();
        for entry in self.find_in_version(nodes, board, &live_members).await? {
            removed.push((rank_key(board, &entry.score, &entry.member), entry.weight));
        }
        let mut added: Vec<RankedEntry> = self
            .live
            .iter()
            .filter_map(|(member, entries)| Some(RankedEntry::new(member, entries.entry(board)?)))
            .collect();
        added.sort_unstable_by(|a, b| a.sort_key().cmp(&b.sort_key()));

        let mut snapshot = BoardSnapshot {
            key_boards: self,
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
        let Some(version) = &self.version else {
            return Ok(snapshot);
        };
        let added = snapshot.added.iter();
        let added: Vec<Vec<u8>> = added
            .map(|ranked| rank_key(board, &ranked.score, &ranked.member))
            .collect();
        let after = after_prefix(board);
        let keys: Vec<&[u8]> = std::iter::once(board)
            .chain(after.as_deref())
            .chain(removed.iter().map(|(key, _)| key.as_slice()))
            .chain(added.iter().map(Vec::as_slice))
            .collect();
        let mut ranks = version.by_rank.ranks(nodes, &keys).await?.into_iter();
        snapshot.start = ranks.next().unwrap_or_default();
        snapshot.end = match after {
            Some(_) => ranks.next().unwrap_or_default(),
            None => version.by_rank.sum(),
        };
        let start = snapshot.start.count;
        let mut position = || {
            ranks
                .next()
                .map_or(0, |sum| sum.count.saturating_sub(start))
        };
        for (_, weight) in &removed {
            snapshot.removed.push(position());
            snapshot.removed_weight = snapshot.removed_weight.saturating_add(*weight);
        }
        snapshot.removed.sort_unstable();
        snapshot.removed_keys = removed.into_iter().map(|(key, _)| key).collect();
        snapshot.positions = added.iter().map(|_| position()).collect();
        Ok(snapshot)
    }

    /// Looks up members on a board of the version. The result has no payloads if the board has
    /// scores.
    async fn find_in_version<N: NodeReader>(
        &self,
        nodes: &N,
        board: &[u8],
        members: &[&[u8]],
    ) -> Result<Vec<RankedEntry>, ReadError<N::Error>> {
        let Some(version) = self.version.as_ref().filter(|_| !members.is_empty()) else {
            return Ok(Vec::new());
        };
        let (tree, keys): (_, Vec<Vec<u8>>) = match &version.by_member {
            Some(tree) => {
                let keys = members.iter().map(|member| member_key(member, board));
                (tree, keys.collect())
            }
            None => {
                let keys = members.iter().map(|member| rank_key(board, &[], member));
                (&version.by_rank, keys.collect())
            }
        };
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let items = tree.get(nodes, &keys).await?;
        let mut entries = Vec::new();
        for (member, item) in members.iter().zip(items) {
            let Some(item) = item else { continue };
            let (score, payload) = match &version.by_member {
                Some(_) => (item.value(), &[][..]),
                None => (&[][..], item.value()),
            };
            entries.push(RankedEntry {
                member: member.to_vec(),
                score: score.to_vec(),
                payload: payload.to_vec(),
                weight: item.weight(),
            });
        }
        Ok(entries)
    }
}

/// One board at one moment.
#[derive(Debug)]
pub struct BoardSnapshot<'a, N> {
    key_boards: &'a KeyBoards,
    nodes: &'a N,
    board: Vec<u8>,
    /// The sums of the version before the board, and up to its end.
    start: Sum,
    end: Sum,
    /// Positions of removed entries on the version's board, ascending.
    removed: Vec<u64>,
    /// The rank keys of removed entries, unsorted.
    removed_keys: Vec<Vec<u8>>,
    removed_weight: i64,
    /// Live entries of the board, in rank order.
    added: Vec<RankedEntry>,
    /// For each live entry, the number of entries of the version's board before it.
    positions: Vec<u64>,
}

impl<N: NodeReader> BoardSnapshot<'_, N> {
    /// Returns the number and the total weight of entries.
    #[must_use]
    pub fn sum(&self) -> Sum {
        let weight = |ranked: &RankedEntry| ranked.weight;
        let added = self.added.iter().map(weight).fold(0, i64::saturating_add);
        let weight = (self.end.weight - self.start.weight).saturating_sub(self.removed_weight);
        Sum {
            count: self.remaining_count() + self.added.len() as u64,
            weight: weight.saturating_add(added),
        }
    }

    /// Returns the sums of removed entries of the version and of added live entries.
    #[must_use]
    pub fn live_sums(&self) -> (Sum, Sum) {
        let added = self.added.iter().map(|ranked| ranked.weight);
        let sum = |count: usize, weight| Sum {
            count: count as u64,
            weight,
        };
        let added = sum(self.added.len(), added.fold(0, i64::saturating_add));
        (sum(self.removed.len(), self.removed_weight), added)
    }

    /// Returns the live entries of the board, in rank order.
    #[must_use]
    pub fn added(&self) -> &[RankedEntry] {
        &self.added
    }

    /// Returns whether an entry of the version remains on the board, and whether a live entry added
    /// or removed an entry.
    #[must_use]
    pub fn contributing_layers(&self) -> (bool, bool) {
        let is_live = !self.removed.is_empty() || !self.added.is_empty();
        (self.remaining_count() > 0, is_live)
    }

    /// Returns whether a member has a live entry.
    #[must_use]
    pub fn has_live_entry(&self, member: &[u8]) -> bool {
        self.key_boards.live.contains_key(member)
    }

    /// Reads the removed entries of the version whose members pass `is_requested`, unsorted.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn removed_entries(
        &self,
        is_requested: impl Fn(&[u8]) -> bool + Send,
    ) -> Result<Vec<RankedEntry>, ReadError<N::Error>> {
        let member_start = self.board.len() + self.key_boards.score_bytes;
        let keys = self.removed_keys.iter().map(Vec::as_slice);
        let keys: Vec<&[u8]> = keys
            .filter(|key| is_requested(key.get(member_start..).unwrap_or_default()))
            .collect();
        let Some(version) = self
            .key_boards
            .version
            .as_ref()
            .filter(|_| !keys.is_empty())
        else {
            return Ok(Vec::new());
        };
        let items = version.by_rank.get(self.nodes, &keys).await?;
        let items = items.iter().flatten();
        Ok(items.filter_map(|item| self.decode_entry(item)).collect())
    }

    /// Reads at most `limit` entries from index `offset`.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn page(
        &self,
        offset: u64,
        limit: usize,
    ) -> Result<Vec<RankedEntry>, ReadError<N::Error>> {
        let size = self.sum().count;
        if offset >= size || limit == 0 {
            return Ok(Vec::new());
        }
        let (mut low, mut high) = (0, self.added.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.index_of_added(middle) < offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        // The number of remaining version entries before the page.
        let mut first = offset - low as u64;
        let mut skipped = 0;
        for removed in &self.removed {
            if *removed > first {
                break;
            }
            first += 1;
            skipped += 1;
        }
        let version = self.read_version_entries(first, skipped, limit).await?;
        let mut version = version.into_iter().peekable();
        let mut added = self.added.iter().skip(low).peekable();
        let mut rows = Vec::with_capacity(limit.min(SCAN_ENTRIES));
        while rows.len() < limit {
            let is_added = match (version.peek(), added.peek()) {
                (None, None) => break,
                (None, Some(_)) => true,
                (Some(_), None) => false,
                (Some(old), Some(new)) => new.sort_key() < old.sort_key(),
            };
            if is_added {
                rows.extend(added.next().cloned());
            } else {
                rows.extend(version.next());
            }
        }
        Ok(rows)
    }

    /// Finds the index (from 0) and the entry of a member; `None` if the member is not on the
    /// board.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn find(
        &self,
        member: &[u8],
    ) -> Result<Option<(u64, RankedEntry)>, ReadError<N::Error>> {
        Ok(self.find_all(&[member]).await?.pop())
    }

    /// Finds the entries of some members, in rank order. Members that are not on the board are
    /// skipped.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn find_members(
        &self,
        members: &[&[u8]],
    ) -> Result<Vec<RankedEntry>, ReadError<N::Error>> {
        let entries = self.find_all(members).await?.into_iter();
        Ok(entries.map(|(_, ranked)| ranked).collect())
    }

    /// Finds the indexes (from 0) and entries of some members, in rank order. Members that are not
    /// on the board are skipped. All members share one descent of each tree.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn find_all(
        &self,
        members: &[&[u8]],
    ) -> Result<Vec<(u64, RankedEntry)>, ReadError<N::Error>> {
        let (mut live, mut unchanged) = (BTreeSet::new(), BTreeSet::new());
        for member in members {
            let group = match self.key_boards.live.contains_key(*member) {
                true => &mut live,
                false => &mut unchanged,
            };
            group.insert(*member);
        }
        let mut rows = Vec::new();
        if !live.is_empty() {
            let added = self.added.iter().enumerate();
            let requested = added.filter(|(_, ranked)| live.contains(ranked.member.as_slice()));
            rows.extend(
                requested.map(|(index, ranked)| (self.index_of_added(index), ranked.clone())),
            );
        }
        for (before, ranked) in self.find_unchanged(unchanged).await? {
            let position = before.count.saturating_sub(self.start.count);
            let added = self
                .added
                .partition_point(|other| other.sort_key() < ranked.sort_key());
            let index = position - self.count_removed_before(position) + added as u64;
            rows.push((index, ranked));
        }
        rows.sort_unstable_by_key(|(index, _)| *index);
        Ok(rows)
    }

    /// Looks up members on the version's board, each with the sum of preceding entries.
    async fn find_unchanged(
        &self,
        members: BTreeSet<&[u8]>,
    ) -> Result<Vec<(Sum, RankedEntry)>, ReadError<N::Error>> {
        let Some(version) = self
            .key_boards
            .version
            .as_ref()
            .filter(|_| !members.is_empty())
        else {
            return Ok(Vec::new());
        };
        let members: Vec<&[u8]> = members.into_iter().collect();
        let has_scores = version.by_member.is_some();
        let keys: Vec<Vec<u8>> = if has_scores {
            let entries = self
                .key_boards
                .find_in_version(self.nodes, &self.board, &members)
                .await?;
            let key = |entry: &RankedEntry| rank_key(&self.board, &entry.score, &entry.member);
            entries.iter().map(key).collect()
        } else {
            let key = |member: &&[u8]| rank_key(&self.board, &[], member);
            members.iter().map(key).collect()
        };
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut rows = Vec::with_capacity(keys.len());
        for item in version.by_rank.get_with_rank(self.nodes, &keys).await? {
            let row = item.and_then(|(before, item)| Some((before, self.decode_entry(&item)?)));
            match row {
                Some(row) => rows.push(row),
                None if has_scores => {
                    return Err(ReadError::Damaged(TREES_DIFFER.to_owned()));
                }
                None => {}
            }
        }
        Ok(rows)
    }

    /// Calls `visit` with each entry, in rank order, until it returns false.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn scan(
        &self,
        mut visit: impl FnMut(RankedEntry) -> bool + Send,
    ) -> Result<(), ReadError<N::Error>> {
        let mut offset = 0;
        loop {
            let rows = self.page(offset, SCAN_ENTRIES).await?;
            offset += rows.len() as u64;
            let is_last = rows.len() < SCAN_ENTRIES;
            for row in rows {
                if !visit(row) {
                    return Ok(());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Reads at most `limit` remaining entries of the version, from position `first`. `skipped`
    /// removed entries precede that position.
    async fn read_version_entries(
        &self,
        first: u64,
        skipped: usize,
        limit: usize,
    ) -> Result<Vec<RankedEntry>, ReadError<N::Error>> {
        let size = self.end.count - self.start.count;
        let Some(version) = self.key_boards.version.as_ref().filter(|_| first < size) else {
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
        let items = version.by_rank.slice(self.nodes, from, length).await?;
        let mut removed = removed.iter().peekable();
        let mut rows = Vec::with_capacity(items.len());
        for (position, item) in (first..).zip(items) {
            if removed.next_if_eq(&&position).is_none() {
                rows.extend(self.decode_entry(&item));
            }
        }
        Ok(rows)
    }

    fn remaining_count(&self) -> u64 {
        (self.end.count - self.start.count).saturating_sub(self.removed.len() as u64)
    }

    fn count_removed_before(&self, position: u64) -> u64 {
        self.removed.partition_point(|removed| *removed < position) as u64
    }

    fn index_of_added(&self, index: usize) -> u64 {
        let position = self.positions.get(index).copied().unwrap_or(0);
        position - self.count_removed_before(position) + index as u64
    }

    fn decode_entry(&self, item: &Item) -> Option<RankedEntry> {
        let rest = item.key().strip_prefix(self.board.as_slice())?;
        let (score, member) = rest.split_at_checked(self.key_boards.score_bytes)?;
        Some(RankedEntry {
            member: member.to_vec(),
            score: score.to_vec(),
            payload: item.value().to_vec(),
            weight: item.weight(),
        })
    }
}

/// Builds the key of an entry in rank order.
#[must_use]
pub fn rank_key(board: &[u8], score: &[u8], member: &[u8]) -> Vec<u8> {
    [board, score, member].concat()
}

/// Builds the key of an entry in member order.
#[must_use]
pub fn member_key(member: &[u8], board: &[u8]) -> Vec<u8> {
    [member, board].concat()
}

/// Returns the first key after all keys with a prefix; `None` if there is none.
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
#[path = "key_boards_tests.rs"]
mod tests;
