//! Descents of a tree: to the leaves of some keys, and to the items of a range.
//!
//! A step reads all nodes of a level, selects entries and fetches their children in one call.
//! Entries are selected in ascending order, so equal ones are adjacent.

use std::ops::Range;
use std::sync::Arc;

use super::node::{Child, Node};
use super::{Item, NodeReader, ReadError, Sum, Tree, TreeDamage};

/// The leaf that may contain a key.
pub(super) struct LeafMatch {
    /// The index of the key in the request.
    pub(super) key_index: usize,
    pub(super) leaf: Arc<Node>,
    /// The sum of the leaves before it.
    pub(super) before: Sum,
}

/// A key on its descent, and its node in the current level.
struct Descent<'a> {
    key: &'a [u8],
    key_index: usize,
    node: usize,
    before: Sum,
}

/// Nodes of one level in order, each with the number of items before it.
pub(super) type Level = Vec<(u64, Arc<Node>)>;

impl Tree {
    /// Finds the leaves of all keys. Keys after the last key of the tree have no leaf.
    pub(super) async fn find_leaf_matches<N: NodeReader>(
        &self,
        nodes: &N,
        keys: &[&[u8]],
    ) -> Result<Vec<LeafMatch>, ReadError<N::Error>> {
        let mut descents: Vec<Descent<'_>> = keys
            .iter()
            .enumerate()
            .map(|(key_index, key)| Descent {
                key,
                key_index,
                node: 0,
                before: Sum::default(),
            })
            .collect();
        descents.sort_unstable_by_key(|descent| descent.key);
        let mut level = vec![Arc::clone(self.root())];
        for _ in 0..self.height() {
            let mut children: Vec<Child<'_>> = Vec::new();
            let mut last_child = None;
            descents.retain_mut(|descent| {
                let Some(node) = level.get(descent.node) else {
                    return false;
                };
                let index = node.seek(descent.key);
                let Some(child) = node.child(index) else {
                    return false;
                };
                if last_child != Some((descent.node, index)) {
                    last_child = Some((descent.node, index));
                    children.push(child);
                }
                descent.node = children.len() - 1;
                descent.before = descent.before.plus(node.sum_before(index));
                true
            });
            level = fetch_children(nodes, &children).await?;
        }
        let matches = descents.into_iter().filter_map(|descent| {
            let leaf = Arc::clone(level.get(descent.node)?);
            Some(LeafMatch {
                key_index: descent.key_index,
                leaf,
                before: descent.before,
            })
        });
        Ok(matches.collect())
    }

    /// Reads items. `select` returns the entry ranges of the nodes of a level.
    pub(super) async fn read_items<N: NodeReader>(
        &self,
        nodes: &N,
        select: impl Fn(&Level) -> Vec<Range<usize>>,
    ) -> Result<Vec<Item>, ReadError<N::Error>> {
        let mut level: Level = vec![(0, Arc::clone(self.root()))];
        for _ in 0..self.height() {
            let (mut starts, mut children) = (Vec::new(), Vec::new());
            for ((start, node), selected) in level.iter().zip(select(&level)) {
                for (index, child) in selected.filter_map(|index| Some((index, node.child(index)?)))
                {
                    starts.push(start + node.sum_before(index).count);
                    children.push(child);
                }
            }
            let fetched = fetch_children(nodes, &children).await?;
            level = starts.into_iter().zip(fetched).collect();
        }
        let selected = level.iter().zip(select(&level));
        let items = selected
            .flat_map(|((_, leaf), indexes)| indexes.filter_map(|index| Item::new(leaf, index)));
        Ok(items.collect())
    }
}

/// Fetches children in one call and checks that they match what their parents say.
pub(super) async fn fetch_children<N: NodeReader>(
    nodes: &N,
    children: &[Child<'_>],
) -> Result<Vec<Arc<Node>>, ReadError<N::Error>> {
    if children.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<_> = children.iter().map(|child| child.id).collect();
    let fetched = nodes.read_nodes(&ids).await.map_err(ReadError::Store)?;
    let mut fetched = fetched.into_iter();
    children
        .iter()
        .map(|child| {
            let node = fetched.next().flatten();
            let node = node.ok_or(ReadError::Missing(child.id))?;
            check_child(child, &node)?;
            Ok(node)
        })
        .collect()
}

fn check_child(child: &Child<'_>, node: &Node) -> Result<(), TreeDamage> {
    let Child { id, level, .. } = *child;
    if node.id() != id {
        let actual = node.id();
        return Err(TreeDamage::Hash { id, actual });
    }
    let last = node.len().checked_sub(1).map(|last| node.key(last));
    if (node.level(), node.sum(), last) != (level, child.sum, Some(child.last_key)) {
        return Err(TreeDamage::Child(id));
    }
    Ok(())
}
