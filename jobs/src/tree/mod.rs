//! Immutable trees of sorted items, for pages, ranks and counts at any position. A new version of a
//! tree shares all unchanged nodes with the previous one.
//!
//! This module owns how items are divided into nodes, the byte layout of nodes, and reading. It is
//! independent of the store of nodes, which implements [`NodeReader`], and of the meaning of keys
//! and values.
//!
//! Leaves hold items in key order. For each child, an inner node holds its last key, its id and the
//! [`Sum`] of the items below it. So a descent to a key adds up the items before it, and a position
//! is found like a key: this is an order-statistic tree.
//!
//! The id of a node is the hash of its bytes. The hash of a key decides whether a node ends after
//! it. So the same items give the same nodes, independent of their history. A changed item changes
//! the nodes above it and rarely a neighbor.
//!
//! Levels grow until one node remains, the root. The root is not stored as a node: its id and bytes
//! are part of a head that is replaced as a whole. A version is published by writing its nodes
//! first and its head last. A reader that misses a node ([`ReadError::Missing`]) has an old head
//! and reads it again.
//!
//! A node in bytes, with numbers in LEB128:
//!
//! ```text
//! version: u8 = 1 │ level: u8, 0 for a leaf │ packing: u8 = 0 │ body
//!                                           │           = 1 │ body's length │ body in zstd
//! body: entries │ bytes of lengths │ bytes of numbers │ bytes of keys │ the four columns:
//!   lengths  for each entry: bytes shared with the previous key, other bytes of its key
//!   numbers  leaf: weight, length of the value        inner: count, weight
//!   keys     the other bytes of each key
//!   contents leaf: the values                         inner: the ids, of 16 bytes each
//! ```
//!
//! The ids of equal items depend on this layout, the rules of [`TreeOptions`] and the compressor.
//! After a change of one of them, the next version shares no nodes, but results stay correct.
//!
//! The design follows the "prolly trees" of Noms and Dolt and Merkle search trees (Auvolat and
//! Taïani, 2019), with the sums of an order-statistic tree (Cormen et al., chapter 14).

mod build;
mod descend;
mod diff;
mod draft;
mod item;
#[cfg(test)]
mod model;
mod node;
mod read;
mod root;
mod wire;

use std::fmt;

use xxhash_rust::xxh3::xxh3_128;

pub use build::{BuildError, BuiltTree, ITEM_BYTES_MAX, TreeBuilder, TreeOptions};
pub use diff::ItemChange;
pub use item::Item;
pub use node::Node;
pub use root::{NodeReader, ReadError, Tree};

/// The id of a node: the XXH3 hash of its bytes. It detects damage, not forgery.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; Self::LEN]);

impl NodeId {
    /// The bytes of an id.
    pub const LEN: usize = 16;

    /// Returns the id of a node with these bytes.
    #[must_use]
    pub fn for_bytes(bytes: &[u8]) -> Self {
        Self(xxh3_128(bytes).to_be_bytes())
    }

    /// Returns the bytes of the id.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl From<[u8; NodeId::LEN]> for NodeId {
    fn from(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of items and the sum of their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// The number of items.
    pub count: u64,
    /// The sum of their weights.
    pub weight: i64,
}

impl Sum {
    /// Adds two sums, or returns `None` on overflow.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match (
            self.count.checked_add(other.count),
            self.weight.checked_add(other.weight),
        ) {
            (Some(count), Some(weight)) => Some(Self { count, weight }),
            _ => None,
        }
    }

    /// Adds two sums of parts of one tree, whose own sum was checked.
    const fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            weight: self.weight + other.weight,
        }
    }
}

/// Stored bytes that are not a node, or not the expected node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeDamage {
    /// This version does not know the layout.
    #[error("stored tree node has layout {0}: a newer version wrote it, or it is damaged")]
    Layout(u8),
    /// The bytes contradict themselves.
    #[error("stored tree node is damaged: {0}")]
    Content(&'static str),
    /// The bytes do not belong to the id.
    #[error("stored tree node {id} is damaged: its bytes have the hash {actual}")]
    Hash {
        /// The id of the requested node.
        id: NodeId,
        /// The id of the bytes.
        actual: NodeId,
    },
    /// The node differs from what its parent says.
    #[error("stored tree node {0} differs from what its parent says")]
    Child(NodeId),
}
