//! The ways down a tree: to the leaves of some keys, and to the items of a run.
//!
//! A step down takes all nodes of a level, picks what is needed of the level below and fetches that
//! in one call. Entries are picked in ascending order, so equal ones lie side by side.

use std::ops::Range;
use std::sync::Arc;

use super::node::{Child, Node};
use super::{Damaged, Item, Nodes, ReadError, Sum, Tree};

/// The leaf that holds a key, if any does.
pub(super) struct Found {
    /// The place of the key among those that were asked for.
    pub(super) ask: usize,
    pub(super) leaf: Arc<Node>,
    /// The sum of the leaves before it.
    pub(super) before: Sum,
}

/// A key on its way down, and the node of the level that it has come to.
struct Ask<'a> {
    key: &'a [u8],
    ask: usize,
    node: usize,
    before: Sum,
}

/// Nodes of one level in their order, each with the number of items before it.
pub(super) type Level = Vec<(u64, Arc<Node>)>;

impl Tree {
    /// The leaves of all keys that are not beyond the last one of the tree.
    pub(super) async fn leaves<N: Nodes>(
        &self,
        nodes: &N,
        keys: &[&[u8]],
    ) -> Result<Vec<Found>, ReadError<N::Error>> {
        let mut asks: Vec<Ask<'_>> = keys
            .iter()
            .enumerate()
            .map(|(ask, key)| Ask {
                key,
                ask,
                node: 0,
                before: Sum::default(),
            })
            .collect();
        asks.sort_unstable_by_key(|ask| ask.key);
        let mut level = vec![Arc::clone(self.root())];
        for _ in 0..self.height() {
            let mut wanted: Vec<Child<'_>> = Vec::new();
            let mut newest = None;
            asks.retain_mut(|ask| {
                let Some(node) = level.get(ask.node) else {
                    return false;
                };
                let at = node.seek(ask.key);
                let Some(child) = node.child(at) else {
                    return false;
                };
                if newest != Some((ask.node, at)) {
                    newest = Some((ask.node, at));
                    wanted.push(child);
                }
                ask.node = wanted.len() - 1;
                ask.before = ask.before.plus(node.before(at));
                true
            });
            level = fetch(nodes, &wanted).await?;
        }
        let found = asks.into_iter().filter_map(|ask| {
            let leaf = Arc::clone(level.get(ask.node)?);
            Some(Found {
                ask: ask.ask,
                leaf,
                before: ask.before,
            })
        });
        Ok(found.collect())
    }

    /// The items that `pick` comes to: for the nodes of a level it tells the entries of each.
    pub(super) async fn items<N: Nodes>(
        &self,
        nodes: &N,
        pick: impl Fn(&Level) -> Vec<Range<usize>>,
    ) -> Result<Vec<Item>, ReadError<N::Error>> {
        let mut level: Level = vec![(0, Arc::clone(self.root()))];
        for _ in 0..self.height() {
            let (mut starts, mut wanted) = (Vec::new(), Vec::new());
            for ((start, node), picked) in level.iter().zip(pick(&level)) {
                for (at, child) in picked.filter_map(|at| Some((at, node.child(at)?))) {
                    starts.push(start + node.before(at).count);
                    wanted.push(child);
                }
            }
            let fetched = fetch(nodes, &wanted).await?;
            level = starts.into_iter().zip(fetched).collect();
        }
        let picked = level.iter().zip(pick(&level));
        let items = picked.flat_map(|((_, leaf), at)| at.filter_map(|at| Item::of(leaf, at)));
        Ok(items.collect())
    }
}

/// Fetches children in one call and checks that they are what their parents say.
pub(super) async fn fetch<N: Nodes>(
    nodes: &N,
    wanted: &[Child<'_>],
) -> Result<Vec<Arc<Node>>, ReadError<N::Error>> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<_> = wanted.iter().map(|child| child.id).collect();
    let fetched = nodes.nodes(&ids).await.map_err(ReadError::Store)?;
    let mut fetched = fetched.into_iter();
    wanted
        .iter()
        .map(|child| {
            let node = fetched.next().flatten();
            let node = node.ok_or(ReadError::Missing(child.id))?;
            check(child, &node)?;
            Ok(node)
        })
        .collect()
}

fn check(child: &Child<'_>, node: &Node) -> Result<(), Damaged> {
    let Child { id, level, .. } = *child;
    if node.id() != id {
        let found = node.id();
        return Err(Damaged::Hash { id, found });
    }
    let last = node.len().checked_sub(1).map(|last| node.key(last));
    if (node.level(), node.sum(), last) != (level, child.sum, Some(child.last)) {
        return Err(Damaged::Child(id));
    }
    Ok(())
}
