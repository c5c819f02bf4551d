//! Reading a tree level by level: one call of the store for each level, however much is asked; of very
//! many keys one for each thousand of them.

use std::sync::Arc;

use super::descend::{Found, Level, fetch};
use super::{Damaged, Item, Node, NodeId, Sum};

/// So many keys go down a tree together: no more nodes are asked for in one call, nor held at once.
const KEYS_AT_ONCE: usize = 1024;

/// A store of nodes, or a cache before one.
pub trait Nodes: Sync {
    /// How reading fails.
    type Error: Send;

    /// The nodes with these ids, in the order of the ids; nothing for one that is not there. No id
    /// is asked for twice in one call. The tree checks that each node is the one that it asked for.
    fn nodes(
        &self,
        ids: &[NodeId],
    ) -> impl Future<Output = Result<Vec<Option<Arc<Node>>>, Self::Error>> + Send;
}

/// A tree could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError<E> {
    /// A node is not in the store: a newer tree has replaced this one.
    #[error("tree node {0} is gone: a newer tree has replaced this one; read its head again")]
    Missing(NodeId),
    /// A node is not what it should be.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The store failed.
    #[error(transparent)]
    Store(E),
}

/// A tree, known by its root. A copy is cheap.
#[derive(Debug, Clone)]
pub struct Tree {
    root: Arc<Node>,
}

impl Tree {
    /// The tree with this root, as [`super::Built`] has it.
    ///
    /// # Errors
    /// [`Damaged`] if the bytes are no root or not those that were written.
    pub fn open(root: &[u8]) -> Result<Self, Damaged> {
        let Some((id, bytes)) = root.split_first_chunk::<{ NodeId::LEN }>() else {
            return Err(Damaged::Content("it ends too early"));
        };
        let (id, found) = (NodeId::from(*id), NodeId::of(bytes));
        if id != found {
            return Err(Damaged::Hash { id, found });
        }
        let root = Arc::new(Node::decode(bytes)?);
        Ok(Self { root })
    }

    pub(super) const fn root(&self) -> &Arc<Node> {
        &self.root
    }

    /// The sum of all items.
    #[must_use]
    pub fn sum(&self) -> Sum {
        self.root.sum()
    }

    /// The keys that the root holds: of its items, or the last ones beneath its children.
    pub fn root_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.root.keys()
    }

    /// Levels below the root: the most calls of [`Nodes::nodes`] that an operation makes.
    #[must_use]
    pub fn height(&self) -> usize {
        usize::from(self.root.level())
    }

    /// Goes to the leaves of all keys, a bounded number of keys at once, and hands to `take` the place
    /// of each key among those that were asked for, the key, its leaf and the sum of what lies before
    /// the leaf. Of a key beyond the last one it hears nothing.
    async fn find_leaves<N: Nodes>(
        &self,
        nodes: &N,
        keys: &[&[u8]],
        mut take: impl FnMut(usize, &[u8], &Arc<Node>, Sum) + Send,
    ) -> Result<(), ReadError<N::Error>> {
        let mut order: Vec<(&[u8], usize)> = keys.iter().copied().zip(0..).collect();
        // Neighbours lie in the same nodes.
        order.sort_unstable();
        for some in order.chunks(KEYS_AT_ONCE) {
            let keys: Vec<&[u8]> = some.iter().map(|(key, _)| *key).collect();
            for Found { ask, leaf, before } in self.leaves(nodes, &keys).await? {
                if let Some((key, place)) = some.get(ask) {
                    take(*place, key, &leaf, before);
                }
            }
        }
        Ok(())
    }

    /// For each key the sum of the items whose keys are below it. Keys may come in any order, more
    /// than once, and need not be in the tree. What a range of keys holds is the difference of two.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn ranks<N: Nodes>(
        &self,
        nodes: &N,
        keys: &[&[u8]],
    ) -> Result<Vec<Sum>, ReadError<N::Error>> {
        let mut ranks = vec![self.sum(); keys.len()];
        self.find_leaves(nodes, keys, |place, key, leaf, before| {
            if let Some(rank) = ranks.get_mut(place) {
                *rank = before.plus(leaf.before(leaf.seek(key)));
            }
        })
        .await?;
        Ok(ranks)
    }

    /// For each key its item, where there is one. Keys may come in any order and more than once.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn get<N: Nodes>(
        &self,
        nodes: &N,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Item>>, ReadError<N::Error>> {
        let found = self.find(nodes, keys).await?.into_iter();
        Ok(found.map(|found| found.map(|(_, item)| item)).collect())
    }

    /// For each key its item, where there is one, with the sum of the items before it: what
    /// [`Tree::ranks`] and [`Tree::get`] tell, on one way down.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn find<N: Nodes>(
        &self,
        nodes: &N,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<(Sum, Item)>>, ReadError<N::Error>> {
        let mut items = vec![None; keys.len()];
        self.find_leaves(nodes, keys, |place, key, leaf, before| {
            let at = leaf.seek(key);
            let item = Item::of(leaf, at).filter(|item| item.key() == key);
            if let Some(found) = items.get_mut(place) {
                *found = item.map(|item| (before.plus(leaf.before(at)), item));
            }
        })
        .await?;
        Ok(items)
    }

    /// Up to `length` items from position `from` on, which is 0 for the first one.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn slice<N: Nodes>(
        &self,
        nodes: &N,
        from: u64,
        length: usize,
    ) -> Result<Vec<Item>, ReadError<N::Error>> {
        let to = from.saturating_add(length as u64).min(self.sum().count);
        if from >= to {
            return Ok(Vec::new());
        }
        self.items(nodes, |level: &Level| {
            let slots = |(start, node): &(u64, Arc<Node>)| {
                node.slots(from.saturating_sub(*start)..to.saturating_sub(*start))
            };
            level.iter().map(slots).collect()
        })
        .await
    }

    /// The ids of all nodes of the tree but its root, parents before their children. Inner nodes are
    /// read for that; leaves are not.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn walk_ids<N: Nodes>(&self, nodes: &N) -> Result<Vec<NodeId>, ReadError<N::Error>> {
        let mut ids = Vec::new();
        let mut level = vec![Arc::clone(&self.root)];
        for below in (0..self.height()).rev() {
            let children: Vec<_> = level.iter().flat_map(|node| node.children()).collect();
            ids.extend(children.iter().map(|child| child.id));
            if below > 0 {
                level = fetch(nodes, &children).await?;
            }
        }
        Ok(ids)
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
