//! Reads the boards of a key: its batch rows (head and nodes) merged with its live entries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::Array;
use bytes::Bytes;
use jobs::board::{Head, KeyBoards, LiveEntry, MemberEntries, ReadError as BoardError};
use jobs::merge::SeamSnapshot;
use jobs::tree::{Node, NodeId, NodeReader, TreeDamage};
use jobs::{Board, Job};
use moka::sync::Cache;
use schemas::seam::{self, Epoch, PartitionState};

use crate::live::{EntryQuery, LiveEntries, LiveRead, MembersQuery, PartitionId};
use crate::views::{Head as StoredHead, NodeName, RunRecords, ViewsRead};

/// Builds the seam snapshot of a board view. `only_partition` is set if only that partition
/// contains the key.
pub fn build_seam<'a>(
    view: &'a str,
    runs: &'a RunRecords,
    partition_states: &'a [Option<PartitionState>],
    only_partition: Option<u32>,
) -> SeamSnapshot<'a> {
    SeamSnapshot {
        view,
        live_view: view,
        newest_epoch: runs.complete_epochs.get(view).copied().unwrap_or(0),
        runs: &runs.runs,
        partition_states,
        only_partition: only_partition.map(|partition| partition as usize),
    }
}

/// Merges the head of a key and its live entries into the boards of the key.
///
/// # Errors
/// [`BoardError::SeamMismatch`] if the layers do not match, [`BoardError::Damaged`] and
/// [`BoardError::Replaced`] for unreadable rows.
// Inlined, so that the crate of the caller decides how the merge is optimized.
#[inline]
pub fn merge_boards(
    seam: &SeamSnapshot<'_>,
    job: &Job<Board>,
    head: Option<&StoredHead>,
    live_entries: Option<&LiveEntries>,
) -> Result<KeyBoards, BoardError<NodesError>> {
    let head = head.map(|head| Head {
        epoch: head.epoch,
        root: &head.root,
    });
    let live = live_entries.into_iter().flat_map(iter_live_entries);
    KeyBoards::merge(seam, head, live, 8 * job.score().0.len())
}

/// Iterates over the live entries of a key.
#[inline]
pub fn iter_live_entries(entries: &LiveEntries) -> impl Iterator<Item = LiveEntry<'_>> {
    (0..entries.members.len()).map(|row| LiveEntry {
        partition: entries.partitions.value(row) as usize,
        epoch: entries.epochs.value(row),
        member: entries.members.value(row),
        entries: entries
            .entries
            .is_valid(row)
            .then(|| entries.entries.value(row)),
    })
}

/// The boards of a key at one log position, with the inputs from which they were merged.
#[derive(Debug)]
pub struct LoadedBoards {
    /// The run records that were read first.
    pub runs: RunRecords,
    /// The states of the partitions from 0 to the key's partition.
    pub partition_states: Vec<Option<PartitionState>>,
    /// All live entries of the key, including those that batch rows already cover.
    pub live_entries: Option<LiveEntries>,
    /// The root of the batch rows; empty if there are none.
    pub root: Bytes,
    /// The epoch after which live entries count.
    pub base_epoch: Epoch,
    /// The merged boards.
    pub key_boards: KeyBoards,
}

/// Reads the boards of a key in the read order of the seam protocol. `id` is the only partition
/// with live entries of the key.
///
/// # Errors
/// As [`merge_boards`], and errors of the stores.
pub async fn load_boards(
    live: &dyn LiveRead,
    views: &dyn ViewsRead,
    job: &Job<Board>,
    id: PartitionId,
    key: &[u8],
) -> Result<LoadedBoards, BoardError<NodesError>> {
    let store_error = |error: crate::Error| BoardError::Store(NodesError::from(error));
    let (source, view) = (id.source, job.view());
    let runs = views.runs(source).await.map_err(store_error)?;
    let query = EntryQuery {
        view: view.to_owned(),
        key: key.to_vec(),
        partition: Some(id.partition),
    };
    let (queries, partitions) = ([query], id.partition.saturating_add(1));
    let live_read = live.read_entries(source, partitions, &queries).await;
    let live_read = live_read.map_err(store_error)?;
    let seam = build_seam(view, &runs, &live_read.partition_states, Some(id.partition));
    let heads = views
        .heads(view, &[key.to_vec()])
        .await
        .map_err(store_error)?;
    seam.check_table(heads.is_some())?;
    let head = heads.unwrap_or_default().into_iter().next().flatten();
    let live_entries = live_read.entries.into_iter().next();
    let key_boards = merge_boards(&seam, job, head.as_ref(), live_entries.as_ref())?;
    let head_epoch = head.as_ref().map_or(0, |head| head.epoch);
    Ok(LoadedBoards {
        key_boards,
        base_epoch: seam::base_epoch(head_epoch, seam.newest_epoch),
        root: head.map_or_else(Bytes::new, |head| head.root),
        live_entries,
        partition_states: live_read.partition_states,
        runs,
    })
}

/// The maximum number of members in one read.
const MEMBERS_MAX: usize = 5_000;

/// An encoded member, and its candidate boards if boards have no scores.
pub type RequestedMember = (Vec<u8>, Vec<Vec<u8>>);

/// A key with some of its members.
pub type KeyMembers<'a> = (&'a Vec<u8>, &'a [RequestedMember]);

/// Divides keys with their members into batches of one read each. A key may span several batches.
#[must_use]
pub fn split_members(keys: &BTreeMap<Vec<u8>, Vec<RequestedMember>>) -> Vec<Vec<KeyMembers<'_>>> {
    let mut batches = Vec::new();
    let (mut batch, mut capacity) = (Vec::new(), MEMBERS_MAX);
    for (key, members) in keys {
        let mut members = members.as_slice();
        while !members.is_empty() {
            let (first, rest) = members.split_at(members.len().min(capacity));
            batch.push((key, first));
            (members, capacity) = (rest, capacity - first.len());
            if capacity == 0 {
                batches.push(std::mem::take(&mut batch));
                capacity = MEMBERS_MAX;
            }
        }
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

/// Builds the queries of a batch, for one partition or for all.
#[must_use]
pub fn build_member_queries(
    view: &str,
    partition: Option<u32>,
    batch: &[KeyMembers<'_>],
) -> Vec<MembersQuery> {
    let queries = batch.iter().map(|(key, members)| MembersQuery {
        query: EntryQuery {
            view: view.to_owned(),
            key: (*key).clone(),
            partition,
        },
        members: members.iter().map(|(member, _)| member.clone()).collect(),
    });
    queries.collect()
}

/// Reads the entries of members of one key.
///
/// # Errors
/// As [`merge_boards`], and errors of the store.
pub async fn read_member_entries<N: NodeReader>(
    key_boards: &KeyBoards,
    nodes: &N,
    members: &[RequestedMember],
) -> Result<BTreeMap<Vec<u8>, MemberEntries>, BoardError<N::Error>> {
    let entries = key_boards.member_entries(nodes, members).await?;
    let names = members.iter().map(|(member, _)| member.clone());
    Ok(names.zip(entries).collect())
}

/// The time after which unused nodes leave the cache. Replaced nodes are never read again.
const NODE_IDLE_MAX: Duration = Duration::from_secs(600);

/// A cache of nodes.
pub type NodeCache = Cache<NodeId, Arc<Node>>;

/// Creates a node cache with a limit in bytes.
#[must_use]
pub fn create_node_cache(bytes_max: u64) -> NodeCache {
    Cache::builder()
        .max_capacity(bytes_max)
        .weigher(|_, node: &Arc<Node>| u32::try_from(node.memory_bytes()).unwrap_or(u32::MAX))
        .time_to_idle(NODE_IDLE_MAX)
        .build()
}

/// The nodes of one key, in the store and in a cache.
#[derive(Debug)]
pub struct StoredNodes<'a> {
    /// The store.
    pub views: &'a dyn ViewsRead,
    /// The cache, if any.
    pub cache: Option<&'a NodeCache>,
    /// The view.
    pub view: &'a str,
    /// The encoded key.
    pub key: &'a [u8],
}

/// The reason why nodes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] crate::Error),
    /// Stored bytes are not a node.
    #[error(transparent)]
    Damaged(#[from] TreeDamage),
}

impl<'a> StoredNodes<'a> {
    /// Creates the nodes of a key, without a cache.
    #[must_use]
    pub const fn new(views: &'a dyn ViewsRead, view: &'a str, key: &'a [u8]) -> Self {
        Self {
            views,
            cache: None,
            view,
            key,
        }
    }

    async fn read(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, NodesError> {
        let names: Vec<NodeName> = ids.iter().map(|id| *id.as_bytes()).collect();
        let stored = self.views.nodes(self.view, self.key, &names).await?;
        let nodes = stored.into_iter().map(|bytes| {
            let node = bytes.map(|bytes| Node::decode(&bytes)).transpose()?;
            Ok(node.map(Arc::new))
        });
        nodes.collect()
    }
}

impl NodeReader for StoredNodes<'_> {
    type Error = NodesError;

    async fn read_nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, NodesError> {
        let Some(cache) = self.cache else {
            return self.read(ids).await;
        };
        let mut nodes: Vec<Option<Arc<Node>>> = ids.iter().map(|id| cache.get(id)).collect();
        let missing: Vec<NodeId> = ids
            .iter()
            .zip(&nodes)
            .filter_map(|(id, node)| node.is_none().then_some(*id))
            .collect();
        if missing.is_empty() {
            return Ok(nodes);
        }
        let read = self.read(&missing).await?;
        for (id, node) in missing.iter().zip(&read) {
            // A damaged node is not cached: it may be repaired.
            if let Some(node) = node
                && node.id() == *id
            {
                cache.insert(*id, Arc::clone(node));
            }
        }
        let mut read = read.into_iter();
        for node in nodes.iter_mut().filter(|node| node.is_none()) {
            *node = read.next().flatten();
        }
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_contain_each_member_once() {
        let member = |n: usize| (n.to_be_bytes().to_vec(), Vec::new());
        let counts = [1, MEMBERS_MAX - 1, 3, 2 * MEMBERS_MAX + 5, 7];
        let keys = counts.iter().enumerate();
        let keys: BTreeMap<Vec<u8>, Vec<RequestedMember>> = keys
            .map(|(key, count)| {
                (
                    vec![u8::try_from(key).expect("few")],
                    (0..*count).map(member).collect(),
                )
            })
            .collect();
        let mut joined: BTreeMap<Vec<u8>, Vec<RequestedMember>> = BTreeMap::new();
        for batch in split_members(&keys) {
            let members: usize = batch.iter().map(|(_, members)| members.len()).sum();
            assert!((1..=MEMBERS_MAX).contains(&members), "{members}");
            for (key, members) in batch {
                joined
                    .entry(key.clone())
                    .or_default()
                    .extend_from_slice(members);
            }
        }
        assert_eq!(joined, keys);
    }
}
