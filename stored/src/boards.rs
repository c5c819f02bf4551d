//! Boards: heads with their nodes, and the live states that count.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::Array;
use bytes::Bytes;
use jobs::board::{GroupState, Head, LiveState, ReadError as BoardError, Standings};
use jobs::merge::Seam;
use jobs::tree::{Damaged, Node, NodeId, Nodes};
use jobs::{Board, Job};
use moka::sync::Cache;
use schemas::seam::{self, Epoch, Slot};
use stores::live::{LiveRead, LiveStates, MembersQuery, SlotId, StateQuery};
use stores::views::{Head as StoredHead, NodeName, RunsSeen, ViewsRead};

/// What a read saw of the seam of a view of boards.
pub fn seam<'a>(
    view: &'a str,
    runs: &'a RunsSeen,
    slots: &'a [Option<Slot>],
    only: Option<u32>,
) -> Seam<'a> {
    Seam {
        view,
        live: view,
        newest: runs.newest.get(view).copied().unwrap_or(0),
        runs: &runs.runs,
        slots,
        only: only.map(|partition| partition as usize),
    }
}

/// The boards of a key, of its head and its live states, where these count.
///
/// # Errors
/// [`BoardError::NotWhole`] where the layers do not join, [`BoardError::Damaged`] and
/// [`BoardError::Replaced`] for rows that can't be read.
pub fn standings(
    seam: &Seam<'_>,
    job: &Job<Board>,
    head: Option<&StoredHead>,
    states: Option<&LiveStates>,
) -> Result<Standings, BoardError<NodesError>> {
    let head = head.map(|head| Head {
        epoch: head.epoch,
        root: &head.root,
    });
    let live = states.into_iter().flat_map(|states| {
        (0..states.members.len()).map(|row| LiveState {
            partition: states.partitions.value(row) as usize,
            epoch: states.epochs.value(row),
            member: states.members.value(row),
            state: states
                .states
                .is_valid(row)
                .then(|| states.states.value(row)),
        })
    });
    Standings::merge(seam, head, live, 8 * job.score().0.len())
}

/// The boards of a key as of one moment, and what they were read of.
#[derive(Debug)]
pub struct Laid {
    /// The run records that were read first.
    pub runs: RunsSeen,
    /// From partition 0 to the key's own.
    pub slots: Vec<Option<Slot>>,
    /// All live states of the key, also those that count no more.
    pub states: Option<LiveStates>,
    /// The root of the batch rows; empty where there are none.
    pub root: Bytes,
    /// The epoch after which live states count.
    pub base: Epoch,
    /// What both layers together give.
    pub standings: Standings,
}

impl Laid {
    /// The root of the batch rows, where there are any.
    #[must_use]
    pub fn root(&self) -> Option<&[u8]> {
        (!self.root.is_empty()).then_some(&*self.root)
    }
}

/// Reads the boards of a key, whose states are all in the slot, in the order that the seam demands.
///
/// # Errors
/// As [`standings`], and those of the stores.
pub async fn laid(
    (live, views): (&dyn LiveRead, &dyn ViewsRead),
    job: &Job<Board>,
    slot: SlotId,
    key: &[u8],
) -> Result<Laid, BoardError<NodesError>> {
    let store = |error: stores::Error| BoardError::Store(NodesError::from(error));
    let (source, view) = (slot.source, job.view());
    let runs = views.runs(source).await.map_err(store)?;
    let query = StateQuery {
        view: view.to_owned(),
        key: key.to_vec(),
        partition: Some(slot.partition),
    };
    let (queries, partitions) = ([query], slot.partition.saturating_add(1));
    let answer = live.read_states(source, partitions, &queries).await;
    let answer = answer.map_err(store)?;
    let seam = seam(view, &runs, &answer.slots, Some(slot.partition));
    let newest = seam.newest;
    let heads = views.heads(view, &[key.to_vec()]).await.map_err(store)?;
    seam.check_table(heads.is_some())?;
    let head = heads.unwrap_or_default().into_iter().next().flatten();
    let states = answer.states.into_iter().next();
    let standings = standings(&seam, job, head.as_ref(), states.as_ref())?;
    let epoch = head.as_ref().map_or(0, |head| head.epoch);
    Ok(Laid {
        standings,
        base: seam::base(epoch, newest),
        root: head.map_or_else(Bytes::new, |head| head.root),
        states,
        slots: answer.slots,
        runs,
    })
}

/// Members whose states are read at once.
const MEMBERS_MAX: usize = 5_000;

/// An encoded member, and the boards that it may be on where these have no scores.
pub type Member = (Vec<u8>, Vec<Vec<u8>>);

/// A key with some of its members.
pub type KeyMembers<'a> = (&'a Vec<u8>, &'a [Member]);

/// Divides keys with their members into steps that are read at once. A key may have more members than one step.
#[must_use]
pub fn member_steps(keys: &BTreeMap<Vec<u8>, Vec<Member>>) -> Vec<Vec<KeyMembers<'_>>> {
    let mut steps = Vec::new();
    let (mut step, mut room) = (Vec::new(), MEMBERS_MAX);
    for (key, members) in keys {
        let mut members = members.as_slice();
        while !members.is_empty() {
            let (now, rest) = members.split_at(members.len().min(room));
            step.push((key, now));
            (members, room) = (rest, room - now.len());
            if room == 0 {
                steps.push(std::mem::take(&mut step));
                room = MEMBERS_MAX;
            }
        }
    }
    if !step.is_empty() {
        steps.push(step);
    }
    steps
}

/// The queries of a step, in one partition or in all.
#[must_use]
pub fn member_queries(
    view: &str,
    partition: Option<u32>,
    step: &[KeyMembers<'_>],
) -> Vec<MembersQuery> {
    let queries = step.iter().map(|(key, members)| MembersQuery {
        of: StateQuery {
            view: view.to_owned(),
            key: (*key).clone(),
            partition,
        },
        members: members.iter().map(|(member, _)| member.clone()).collect(),
    });
    queries.collect()
}

/// The states of members of one key.
///
/// # Errors
/// As [`standings`], and those of the store.
pub async fn member_states(
    standings: &Standings,
    nodes: &StoredNodes<'_>,
    members: &[Member],
) -> Result<BTreeMap<Vec<u8>, GroupState>, BoardError<NodesError>> {
    let states = standings.states(nodes, members).await?;
    let names = members.iter().map(|(member, _)| member.clone());
    Ok(names.zip(states).collect())
}

/// Nodes that a run has replaced are not read again.
const NODE_IDLE_MAX: Duration = Duration::from_secs(600);

/// Nodes that were read before.
pub type NodeCache = Cache<NodeId, Arc<Node>>;

/// A cache of nodes that take up to so many bytes.
#[must_use]
pub fn node_cache(bytes_max: u64) -> NodeCache {
    Cache::builder()
        .max_capacity(bytes_max)
        .weigher(|_, node: &Arc<Node>| u32::try_from(node.memory_bytes()).unwrap_or(u32::MAX))
        .time_to_idle(NODE_IDLE_MAX)
        .build()
}

/// The nodes of one key, and those that are known.
#[derive(Debug)]
pub struct StoredNodes<'a> {
    /// Where they are.
    pub views: &'a dyn ViewsRead,
    /// Those that were read before.
    pub known: Option<&'a NodeCache>,
    /// The view.
    pub view: &'a str,
    /// The encoded key.
    pub key: &'a [u8],
}

/// Why nodes could not be had.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    /// The store.
    #[error(transparent)]
    Store(#[from] stores::Error),
    /// What it holds is no node.
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

impl<'a> StoredNodes<'a> {
    /// The nodes of a key.
    #[must_use]
    pub const fn new(views: &'a dyn ViewsRead, view: &'a str, key: &'a [u8]) -> Self {
        Self {
            views,
            known: None,
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

impl Nodes for StoredNodes<'_> {
    type Error = NodesError;

    async fn nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, NodesError> {
        let Some(known) = self.known else {
            return self.read(ids).await;
        };
        let mut found: Vec<Option<Arc<Node>>> = ids.iter().map(|id| known.get(id)).collect();
        let missing: Vec<NodeId> = ids
            .iter()
            .zip(&found)
            .filter_map(|(id, node)| node.is_none().then_some(*id))
            .collect();
        if missing.is_empty() {
            return Ok(found);
        }
        let read = self.read(&missing).await?;
        for (id, node) in missing.iter().zip(&read) {
            // One that is damaged may be mended.
            if let Some(node) = node
                && node.id() == *id
            {
                known.insert(*id, Arc::clone(node));
            }
        }
        let mut read = read.into_iter();
        for node in found.iter_mut().filter(|node| node.is_none()) {
            *node = read.next().flatten();
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_hold_all_members_once() {
        let member = |n: usize| (n.to_be_bytes().to_vec(), Vec::new());
        let counts = [1, MEMBERS_MAX - 1, 3, 2 * MEMBERS_MAX + 5, 7];
        let keys = counts.iter().enumerate();
        let keys: BTreeMap<Vec<u8>, Vec<Member>> = keys
            .map(|(key, count)| {
                (
                    vec![u8::try_from(key).expect("few")],
                    (0..*count).map(member).collect(),
                )
            })
            .collect();
        let mut again: BTreeMap<Vec<u8>, Vec<Member>> = BTreeMap::new();
        for step in member_steps(&keys) {
            let members: usize = step.iter().map(|(_, members)| members.len()).sum();
            assert!((1..=MEMBERS_MAX).contains(&members), "{members}");
            for (key, members) in step {
                again
                    .entry(key.clone())
                    .or_default()
                    .extend_from_slice(members);
            }
        }
        assert_eq!(again, keys);
    }
}
