//! Building a tree from items that stream through in the order of their keys.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::draft::{Draft, Sealed};
use super::{NodeId, Sum};

/// The most bytes that the key and the value of an item may have together.
pub const ITEM_BYTES_MAX: usize = 64 << 10;
/// The most that [`Options::node_bytes_max`] may be: then every node stays within what is decoded.
const NODE_BYTES_MAX: usize = 256 << 10;

/// How items are cut into nodes. Trees share nodes only if they were built with the same options.
///
/// A node ends after the entry whose key's hash says so, but never below a quarter of the mean, and
/// always at four times the mean or when its bytes are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Items of a leaf, in the mean; at least 1.
    pub leaf_items_mean: usize,
    /// Children of an inner node, in the mean; at least 2.
    pub inner_children_mean: usize,
    /// A node ends when its entries take so many bytes, with keys in full and before compression;
    /// at most 256 KiB. It may be longer by its last entry.
    pub node_bytes_max: usize,
    /// Whether leaves are compressed.
    pub compress: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            leaf_items_mean: 256,
            inner_children_mean: 64,
            node_bytes_max: 64 << 10,
            compress: true,
        }
    }
}

/// An item that can't be added; the builder is as before. Items are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The key does not come after the one before it.
    #[error("the key of item {0} does not come after that of the item before it; sort the items")]
    NotAscending(u64),
    /// The weight is below 0.
    #[error("item {item} has the weight {weight}; give one that is not negative")]
    Negative {
        /// The item.
        item: u64,
        /// Its weight.
        weight: i64,
    },
    /// The weights add up to more than can be told.
    #[error("the weights up to item {0} add up to more than {max}", max = i64::MAX)]
    Overflow(u64),
    /// The key and the value are too long.
    #[error("item {item} has {bytes} bytes of key and value; at most {ITEM_BYTES_MAX} may be")]
    TooLong {
        /// The item.
        item: u64,
        /// Bytes of its key and value.
        bytes: usize,
    },
}

/// A finished tree.
#[derive(Debug, Clone)]
pub struct Built {
    /// The root, for the head of the tree: its id, then the bytes of the node. Equal roots are those
    /// of equal trees.
    pub root: Bytes,
    /// The sum of all items.
    pub sum: Sum,
    /// The nodes that were not taken before.
    pub nodes: Vec<(NodeId, Bytes)>,
}

/// Builds a tree. Besides the nodes that were not taken yet it holds two nodes a level.
#[derive(Debug)]
pub struct Builder {
    out: Out,
    leaves: Level,
    last: Vec<u8>,
    sum: Sum,
}

impl Builder {
    /// A builder of one tree. Options out of their bounds are moved into them.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let options = Options {
            leaf_items_mean: options.leaf_items_mean.max(1),
            inner_children_mean: options.inner_children_mean.max(2),
            node_bytes_max: options.node_bytes_max.min(NODE_BYTES_MAX),
            compress: options.compress,
        };
        Self {
            out: Out {
                options,
                nodes: Vec::new(),
            },
            leaves: Level::new(0),
            last: Vec::new(),
            sum: Sum::default(),
        }
    }

    /// Adds an item.
    ///
    /// # Errors
    /// [`BuildError`] if it can't be.
    pub fn push(&mut self, key: &[u8], weight: i64, value: &[u8]) -> Result<(), BuildError> {
        let item = self.sum.count;
        if item > 0 && self.last.as_slice() >= key {
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
        self.last.clear();
        self.last.extend_from_slice(key);
        self.leaves.draft.push_item(key, weight, value);
        self.leaves.cut(key, &mut self.out);
        Ok(())
    }

    /// The nodes that were finished since they were last taken, children before their parents.
    #[must_use]
    pub fn take_nodes(&mut self) -> Vec<(NodeId, Bytes)> {
        std::mem::take(&mut self.out.nodes)
    }

    /// Finishes the tree.
    #[must_use]
    pub fn finish(mut self) -> Built {
        let root = self.leaves.finish(&mut self.out);
        let mut bytes = root.id.as_bytes().to_vec();
        bytes.extend_from_slice(&root.bytes);
        Built {
            root: bytes.into(),
            sum: self.sum,
            nodes: self.out.nodes,
        }
    }
}

/// Where finished nodes go, and how they are cut.
#[derive(Debug)]
struct Out {
    options: Options,
    nodes: Vec<(NodeId, Bytes)>,
}

/// One level of the tree, and those above it.
#[derive(Debug)]
struct Level {
    level: u8,
    draft: Draft,
    /// The first node: it stays until a second one shows that it is not the root.
    first: Option<Sealed>,
    /// The parents: there are some as soon as there is a second node.
    above: Option<Box<Self>>,
}

impl Level {
    fn new(level: u8) -> Self {
        Self {
            level,
            draft: Draft::default(),
            first: None,
            above: None,
        }
    }

    /// Ends the node if its last entry, with this key, is where it ends.
    fn cut(&mut self, key: &[u8], out: &mut Out) {
        if out.options.ends(self.level, &self.draft, key) {
            self.seal(out);
        }
    }

    fn seal(&mut self, out: &mut Out) {
        let sealed = self.draft.seal(self.level, out.compresses(self.level));
        if self.first.is_none() && self.above.is_none() {
            self.first = Some(sealed);
            return;
        }
        let above = self.level.saturating_add(1);
        let above = self.above.get_or_insert_with(|| Box::new(Self::new(above)));
        for node in self.first.take().into_iter().chain([sealed]) {
            above.draft.push_child(&node);
            out.nodes.push((node.id, node.bytes));
            above.cut(&node.last, out);
        }
    }

    /// The root: the only node of the first level that has no more than one.
    fn finish(mut self, out: &mut Out) -> Sealed {
        if self.draft.entries() > 0 {
            self.seal(out);
        }
        match self.above {
            Some(above) => above.finish(out),
            None => self
                .first
                .unwrap_or_else(|| self.draft.seal(self.level, out.compresses(self.level))),
        }
    }
}

impl Out {
    /// Ids do not compress, and inner nodes are little else.
    const fn compresses(&self, level: u8) -> bool {
        self.options.compress && level == 0
    }
}

impl Options {
    /// Whether a node ends after its last entry, which has this key. But for the limit of bytes
    /// nothing else of the entry counts: another value of as many bytes, or another id of a child,
    /// moves no end.
    fn ends(&self, level: u8, draft: &Draft, key: &[u8]) -> bool {
        // An inner node of one child would let the levels grow for ever.
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
        // From the minimum on one key in so many ends the node. Each level has its own hash, since
        // all keys of an inner node have ended a node already.
        let one_in = (mean.saturating_sub(min) as u64).saturating_add(1);
        entries >= min && xxh3_64_with_seed(key, u64::from(level)) <= u64::MAX / one_in
    }
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
