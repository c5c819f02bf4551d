//! Finds the differences of two trees without reading shared nodes.
//!
//! A shared node has the same items below it in both trees, wherever it is, and keys are unique in
//! a tree. So only nodes that the other tree does not have are read, level by level. The items of
//! the remaining leaves are compared.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use super::descend::fetch_children;
use super::node::{Child, Node};
use super::{Item, NodeId, NodeReader, ReadError, Tree};

/// An item that was added, removed or changed.
#[derive(Debug)]
pub struct ItemChange {
    /// The item in the older tree.
    pub before: Option<Item>,
    /// The item in the newer tree.
    pub after: Option<Item>,
}

/// The nodes of one level of a tree that the other tree does not have.
struct TreeLevel {
    level: usize,
    nodes: Vec<Arc<Node>>,
}

impl TreeLevel {
    fn new(tree: Option<&Tree>) -> Self {
        Self {
            level: tree.map_or(0, Tree::height),
            nodes: tree
                .map(|tree| Arc::clone(tree.root()))
                .into_iter()
                .collect(),
        }
    }

    fn children(&self) -> Vec<Child<'_>> {
        self.nodes.iter().flat_map(|node| node.children()).collect()
    }

    /// Descends one level, without the nodes that the other tree shares there.
    async fn descend<N: NodeReader>(
        &mut self,
        nodes: &N,
        shared: &HashSet<NodeId>,
    ) -> Result<(), ReadError<N::Error>> {
        let mut unshared = self.children();
        unshared.retain(|child| !shared.contains(&child.id));
        self.nodes = fetch_children(nodes, &unshared).await?;
        self.level = self.level.saturating_sub(1);
        Ok(())
    }

    fn items(&self) -> impl Iterator<Item = Item> {
        let leaves = self.nodes.iter();
        leaves.flat_map(|leaf| (0..leaf.len()).filter_map(|index| Item::new(leaf, index)))
    }
}

impl Tree {
    /// Finds the changes from an older tree, in key order. Without an older tree, all items are
    /// new. Returns `None` if more than `nodes_max` nodes of a level belong to one tree alone.
    /// `nodes` contains both trees.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn find_changes<N: NodeReader>(
        &self,
        old: Option<&Self>,
        nodes: &N,
        nodes_max: usize,
    ) -> Result<Option<Vec<ItemChange>>, ReadError<N::Error>> {
        let (mut old, mut new) = (TreeLevel::new(old), TreeLevel::new(Some(self)));
        let are_equal = |a: &TreeLevel, b: &TreeLevel| {
            let ids =
                |level: &TreeLevel| -> Vec<NodeId> { level.nodes.iter().map(|n| n.id()).collect() };
            a.level == b.level && ids(a) == ids(b)
        };
        if are_equal(&old, &new) {
            return Ok(Some(Vec::new()));
        }
        while old.level > 0 || new.level > 0 {
            let shared = match old.level.cmp(&new.level) {
                Ordering::Equal => find_shared_ids(&old, &new),
                _ => HashSet::new(),
            };
            // The higher tree descends alone.
            let (old_descends, new_descends) = (old.level >= new.level, new.level >= old.level);
            for (tree_level, descends) in [(&mut old, old_descends), (&mut new, new_descends)] {
                if !descends {
                    continue;
                }
                let children = tree_level.children();
                let unshared = children.iter().filter(|child| !shared.contains(&child.id));
                if unshared.count() > nodes_max {
                    return Ok(None);
                }
                tree_level.descend(nodes, &shared).await?;
            }
        }
        Ok(Some(merge_items(old.items(), new.items())))
    }
}

fn find_shared_ids(a: &TreeLevel, b: &TreeLevel) -> HashSet<NodeId> {
    let ids: HashSet<NodeId> = a.children().iter().map(|child| child.id).collect();
    let ids_of_b = b.children().into_iter().map(|child| child.id);
    ids_of_b.filter(|id| ids.contains(id)).collect()
}

/// Merges the items of both trees, each in key order, and drops equal ones.
fn merge_items(
    old: impl Iterator<Item = Item>,
    new: impl Iterator<Item = Item>,
) -> Vec<ItemChange> {
    let (mut old, mut new) = (old.peekable(), new.peekable());
    let mut changes = Vec::new();
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return changes,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.key().cmp(new.key()),
        };
        let before = if order.is_le() { old.next() } else { None };
        let after = if order.is_ge() { new.next() } else { None };
        let is_same = before
            .as_ref()
            .zip(after.as_ref())
            .is_some_and(|(old, new)| (old.weight(), old.value()) == (new.weight(), new.value()));
        if !is_same {
            changes.push(ItemChange { before, after });
        }
    }
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
