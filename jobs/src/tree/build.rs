//! Builds a tree from a stream of items in key order.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::draft::{EncodedNode, NodeDraft};
use super::{NodeId, Sum};

/// The maximum bytes of an item's key and value together.
pub const ITEM_BYTES_MAX: usize = 64 << 10;
/// The maximum of [`TreeOptions::node_bytes_max`], so that the decoder accepts every node.
const NODE_BYTES_MAX: usize = 256 << 10;

/// Rules that divide items into nodes. Trees share nodes only if they were built with the same
/// options.
///
/// A node ends after an entry whose key has a small hash, or when it reaches four times the mean
/// entries or the maximum bytes. Unless it reaches the maximum bytes or is the last of its level,
/// it has at least a quarter of the mean entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeOptions {
    /// The mean number of items of a leaf; at least 1.
    pub leaf_items_mean: usize,
    /// The mean number of children of an inner node; at least 2.
    pub inner_children_mean: usize,
    /// A node ends when its entries have this many bytes, with full keys and before compression; at
    /// most 256 KiB. The last entry may exceed it.
    pub node_bytes_max: usize,
    /// True if leaves are compressed.
    pub compress: bool,
}

impl Default for TreeOptions {
    fn default() -> Self {
        Self {
            leaf_items_mean: 256,
            inner_children_mean: 64,
            node_bytes_max: 64 << 10,
            compress: true,
        }
    }
}

/// A rejected item. The builder is unchanged. Items are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The key is not greater than the previous key.
    #[error("the key of item {0} is not greater than the previous key; sort the items")]
    NotAscending(u64),
    /// The weight is negative.
    #[error("item {item} has weight {weight}; weights must not be negative")]
    Negative {
        /// The item.
        item: u64,
        /// Its weight.
        weight: i64,
    },
    /// The sum of weights exceeds the range of its type.
    #[error("the sum of weights up to item {0} exceeds {max}", max = i64::MAX)]
    Overflow(u64),
    /// The key and the value are too long.
    #[error("item {item} has {bytes} bytes of key and value; the maximum is {ITEM_BYTES_MAX}")]
    TooLong {
        /// The item.
        item: u64,
        /// Bytes of its key and value.
        bytes: usize,
    },
}

/// A finished tree.
#[derive(Debug, Clone)]
pub struct BuiltTree {
    /// The root for the head of the tree: its id, then the bytes of the node. Trees are equal
    /// exactly if their roots are.
    pub root: Bytes,
    /// The sum of all items.
    pub sum: Sum,
    /// The nodes that [`TreeBuilder::take_nodes`] has not returned.
    pub nodes: Vec<(NodeId, Bytes)>,
}

/// Builds a tree. It keeps the finished nodes that were not taken, and two nodes per level.
#[derive(Debug)]
pub struct TreeBuilder {
    sink: NodeSink,
    leaves: LevelBuilder,
    last_key: Vec<u8>,
    sum: Sum,
}

impl TreeBuilder {
    /// Creates a builder of one tree. Options are clamped to their bounds.
    #[must_use]
    pub fn new(options: TreeOptions) -> Self {
        let options = TreeOptions {
            leaf_items_mean: options.leaf_items_mean.max(1),
            inner_children_mean: options.inner_children_mean.max(2),
            node_bytes_max: options.node_bytes_max.min(NODE_BYTES_MAX),
            compress: options.compress,
        };
        Self {
            sink: NodeSink {
                options,
                nodes: Vec::new(),
            },
            leaves: LevelBuilder::new(0),
            last_key: Vec::new(),
            sum: Sum::default(),
        }
    }

    /// Adds an item.
    ///
    /// # Errors
    /// [`BuildError`] if the item is rejected.
    pub fn push(&mut self, key: &[u8], weight: i64, value: &[u8]) -> Result<(), BuildError> {
        let item = self.sum.count;
        if item > 0 && self.last_key.as_slice() >= key {
            return Err(BuildError::NotAscending(item));
        }
        if weight < 0 {
            return Err(BuildError::Negative { item, weight });
        }
        let bytes = key.len().saturating_add(value.len());
        if bytes > ITEM_BYTES_MAX {
            return Err(BuildError::TooLong { item, bytes });
        }
        let sum = self.sum.checked_add(Sum { count: 1, weight });
        self.sum = sum.ok_or(BuildError::Overflow(item))?;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.leaves.draft.push_item(key, weight, value);
        self.leaves.end_node_at_boundary(key, &mut self.sink);
        Ok(())
    }

    /// Returns the nodes that were finished since the last call, children before their parents.
    #[must_use]
    pub fn take_nodes(&mut self) -> Vec<(NodeId, Bytes)> {
        std::mem::take(&mut self.sink.nodes)
    }

    /// Finishes the tree.
    #[must_use]
    pub fn finish(mut self) -> BuiltTree {
        let root = self.leaves.finish(&mut self.sink);
        let mut bytes = root.id.as_bytes().to_vec();
        bytes.extend_from_slice(&root.bytes);
        BuiltTree {
            root: bytes.into(),
            sum: self.sum,
            nodes: self.sink.nodes,
        }
    }
}

/// Collects finished nodes.
#[derive(Debug)]
struct NodeSink {
    options: TreeOptions,
    nodes: Vec<(NodeId, Bytes)>,
}

/// Builds one level of the tree, and the levels above it.
#[derive(Debug)]
struct LevelBuilder {
    level: u8,
    draft: NodeDraft,
    /// The first node, kept until a second one shows that it is not the root.
    first: Option<EncodedNode>,
    /// The parents, which exist as soon as there is a second node.
    parents: Option<Box<Self>>,
}

impl LevelBuilder {
    fn new(level: u8) -> Self {
        Self {
            level,
            draft: NodeDraft::default(),
            first: None,
            parents: None,
        }
    }

    /// Finishes the node if it ends after its last entry, which has this key.
    fn end_node_at_boundary(&mut self, key: &[u8], sink: &mut NodeSink) {
        if sink.options.ends_node(self.level, &self.draft, key) {
            self.finish_node(sink);
        }
    }

    /// Encodes the node and adds it to its parents, if there are any.
    fn finish_node(&mut self, sink: &mut NodeSink) {
        let node = self
            .draft
            .encode_and_reset(self.level, sink.compresses(self.level));
        if self.first.is_none() && self.parents.is_none() {
            self.first = Some(node);
            return;
        }
        let parent_level = self.level.saturating_add(1);
        let parents = self
            .parents
            .get_or_insert_with(|| Box::new(Self::new(parent_level)));
        for node in self.first.take().into_iter().chain([node]) {
            parents.draft.push_child(&node);
            sink.nodes.push((node.id, node.bytes));
            parents.end_node_at_boundary(&node.last_key, sink);
        }
    }

    /// Returns the root: the only node of the lowest level with one node.
    fn finish(mut self, sink: &mut NodeSink) -> EncodedNode {
        if self.draft.entries() > 0 {
            self.finish_node(sink);
        }
        match self.parents {
            Some(parents) => parents.finish(sink),
            None => self.first.unwrap_or_else(|| {
                self.draft
                    .encode_and_reset(self.level, sink.compresses(self.level))
            }),
        }
    }
}

impl NodeSink {
    /// Returns whether nodes of a level are compressed. Inner nodes consist mostly of ids, which
    /// are incompressible.
    const fn compresses(&self, level: u8) -> bool {
        self.options.compress && level == 0
    }
}

impl TreeOptions {
    /// Returns whether a node ends after its last entry, which has this key. Except for the byte
    /// limit, only the key matters. So a value of the same length, or another child id, does not
    /// move node boundaries.
    fn ends_node(&self, level: u8, draft: &NodeDraft, key: &[u8]) -> bool {
        // With one child per inner node, the number of levels would grow forever.
        let (mean, entries_min) = match level {
            0 => (self.leaf_items_mean, 1),
            _ => (self.inner_children_mean, 2),
        };
        let entries = draft.entries();
        if entries < entries_min {
            return false;
        }
        if entries >= mean.saturating_mul(4) || draft.bytes() >= self.node_bytes_max {
            return true;
        }
        let min = (mean / 4).max(entries_min);
        // From the minimum on, one key in `keys_per_end` ends the node. Each level uses another
        // hash, because every key of an inner node has already ended a node below.
        let keys_per_end = (mean.saturating_sub(min) as u64).saturating_add(1);
        entries >= min && xxh3_64_with_seed(key, u64::from(level)) <= u64::MAX / keys_per_end
    }
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
