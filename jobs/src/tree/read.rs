//! Reads a tree level by level, with one call of the store per level. Many keys are split into
//! batches of about a thousand.

use std::sync::Arc;

use super::descend::{LeafMatch, Level, fetch_children};
use super::{Item, Node, NodeId, NodeReader, ReadError, Sum, Tree};

/// The maximum keys of one descent. It bounds the nodes in one call and in memory.
const KEYS_PER_DESCENT: usize = 1024;

impl Tree {
    /// Finds the leaves of all keys, a bounded number of keys at once. Calls `visit` with the index
    /// of each key in the request, the key, its leaf and the sum of the items before the leaf. Keys
    /// after the last key of the tree are skipped.
    async fn visit_leaves<N: NodeReader>(
        &self,
        nodes: &N,
        keys: &[&[u8]],
        mut visit: impl FnMut(usize, &[u8], &Arc<Node>, Sum) + Send,
    ) -> Result<(), ReadError<N::Error>> {
        let mut order: Vec<(&[u8], usize)> = keys.iter().copied().zip(0..).collect();
        // Adjacent keys share nodes.
        order.sort_unstable();
        for batch in order.chunks(KEYS_PER_DESCENT) {
            let keys: Vec<&[u8]> = batch.iter().map(|(key, _)| *key).collect();
            for LeafMatch {
                key_index,
                leaf,
                before,
            } in self.find_leaf_matches(nodes, &keys).await?
            {
                if let Some((key, index)) = batch.get(key_index) {
                    visit(*index, key, &leaf, before);
                }
            }
        }
        Ok(())
    }

    /// Returns for each key the sum of the items with smaller keys. Keys may be unsorted, repeated
    /// and missing in the tree. The difference of two ranks is the sum of a key range.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn ranks<N: NodeReader>(
        &self,
        nodes: &N,
        keys: &[&[u8]],
    ) -> Result<Vec<Sum>, ReadError<N::Error>> {
        let mut ranks = vec![self.sum(); keys.len()];
        self.visit_leaves(nodes, keys, |index, key, leaf, before| {
            if let Some(rank) = ranks.get_mut(index) {
                *rank = before.plus(leaf.sum_before(leaf.seek(key)));
            }
        })
        .await?;
        Ok(ranks)
    }

    /// Returns for each key its item, if there is one. Keys may be unsorted and repeated.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn get<N: NodeReader>(
        &self,
        nodes: &N,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Item>>, ReadError<N::Error>> {
        let items = self.get_with_rank(nodes, keys).await?.into_iter();
        Ok(items.map(|item| item.map(|(_, item)| item)).collect())
    }

    /// Returns for each key its item, if there is one, and the sum of the items before it. This
    /// combines [`Tree::ranks`] and [`Tree::get`] in one descent.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn get_with_rank<N: NodeReader>(
        &self,
        nodes: &N,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<(Sum, Item)>>, ReadError<N::Error>> {
        let mut items = vec![None; keys.len()];
        self.visit_leaves(nodes, keys, |key_index, key, leaf, before| {
            let index = leaf.seek(key);
            let item = Item::new(leaf, index).filter(|item| item.key() == key);
            if let Some(result) = items.get_mut(key_index) {
                *result = item.map(|item| (before.plus(leaf.sum_before(index)), item));
            }
        })
        .await?;
        Ok(items)
    }

    /// Reads at most `length` items from position `from`, counted from 0.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn slice<N: NodeReader>(
        &self,
        nodes: &N,
        from: u64,
        length: usize,
    ) -> Result<Vec<Item>, ReadError<N::Error>> {
        let to = from.saturating_add(length as u64).min(self.sum().count);
        if from >= to {
            return Ok(Vec::new());
        }
        self.read_items(nodes, |level: &Level| {
            let select = |(start, node): &(u64, Arc<Node>)| {
                node.entries_at(from.saturating_sub(*start)..to.saturating_sub(*start))
            };
            level.iter().map(select).collect()
        })
        .await
    }

    /// Lists the ids of all nodes except the root, parents before their children. It reads inner
    /// nodes, but no leaves.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn list_node_ids<N: NodeReader>(
        &self,
        nodes: &N,
    ) -> Result<Vec<NodeId>, ReadError<N::Error>> {
        let mut ids = Vec::new();
        let mut level = vec![Arc::clone(self.root())];
        for below in (0..self.height()).rev() {
            let children: Vec<_> = level.iter().flat_map(|node| node.children()).collect();
            ids.extend(children.iter().map(|child| child.id));
            if below > 0 {
                level = fetch_children(nodes, &children).await?;
            }
        }
        Ok(ids)
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
