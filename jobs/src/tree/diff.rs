//! What differs between two trees, without reading what they share.
//!
//! A node that both have holds the same items in both, wherever it stands: keys are in it, and no key is twice in a
//! tree. So level by level only the nodes are read that one of the trees has alone, and of the leaves that
//! are left the items are compared.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use super::descend::fetch;
use super::node::{Child, Node};
use super::{Item, NodeId, Nodes, ReadError, Tree};

/// An item that one tree has and the other has not, or not so: as it was, and as it is.
pub type Change = (Option<Item>, Option<Item>);

/// The nodes of a tree on one level that the other one does not have.
struct Side {
    level: usize,
    nodes: Vec<Arc<Node>>,
}

impl Side {
    fn of(tree: Option<&Tree>) -> Self {
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

    /// One level down, without the nodes that the other side has there.
    async fn descend<N: Nodes>(
        &mut self,
        nodes: &N,
        shared: &HashSet<NodeId>,
    ) -> Result<(), ReadError<N::Error>> {
        let mut own = self.children();
        own.retain(|child| !shared.contains(&child.id));
        let below = fetch(nodes, &own).await?;
        self.nodes = below;
        self.level = self.level.saturating_sub(1);
        Ok(())
    }

    fn items(&self) -> impl Iterator<Item = Item> {
        let leaves = self.nodes.iter();
        leaves.flat_map(|leaf| (0..leaf.len()).filter_map(|at| Item::of(leaf, at)))
    }
}

impl Tree {
    /// What differs in this tree from an older one, in the order of keys; all, where there is no older one. Nothing, if more
    /// than `nodes_max` nodes of a level are in one tree alone. Both are read from `nodes`.
    ///
    /// # Errors
    /// [`ReadError`] if a node can't be read.
    pub async fn changes<N: Nodes>(
        &self,
        old: Option<&Self>,
        nodes: &N,
        nodes_max: usize,
    ) -> Result<Option<Vec<Change>>, ReadError<N::Error>> {
        let (mut old, mut new) = (Side::of(old), Side::of(Some(self)));
        let same = |one: &Side, other: &Side| {
            let ids = |side: &Side| -> Vec<NodeId> { side.nodes.iter().map(|n| n.id()).collect() };
            one.level == other.level && ids(one) == ids(other)
        };
        if same(&old, &new) {
            return Ok(Some(Vec::new()));
        }
        while old.level > 0 || new.level > 0 {
            let shared = match old.level.cmp(&new.level) {
                Ordering::Equal => shared(&old, &new),
                _ => HashSet::new(),
            };
            // The higher one goes down alone.
            let (goes_old, goes_new) = (old.level >= new.level, new.level >= old.level);
            for (side, goes) in [(&mut old, goes_old), (&mut new, goes_new)] {
                if !goes {
                    continue;
                }
                let own = side.children();
                let own = own.iter().filter(|child| !shared.contains(&child.id));
                if own.count() > nodes_max {
                    return Ok(None);
                }
                side.descend(nodes, &shared).await?;
            }
        }
        Ok(Some(merge(old.items(), new.items())))
    }
}

fn shared(one: &Side, other: &Side) -> HashSet<NodeId> {
    let ids: HashSet<NodeId> = one.children().iter().map(|child| child.id).collect();
    let others = other.children().into_iter().map(|child| child.id);
    others.filter(|id| ids.contains(id)).collect()
}

/// Items of both sides, each in the order of keys, without those that both have.
fn merge(old: impl Iterator<Item = Item>, new: impl Iterator<Item = Item>) -> Vec<Change> {
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
            .is_some_and(|(one, other)| {
                (one.weight(), one.value()) == (other.weight(), other.value())
            });
        if !is_same {
            changes.push((before, after));
        }
    }
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
