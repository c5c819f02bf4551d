//! Sorted items in an immutable tree of chunks, for pages, ranks and counts at any place, where a
//! new edition of the tree shares every node that did not change with the one before.
//!
//! It owns how items are cut into nodes, how a node is laid out in bytes and how a tree is read. It
//! must not know where nodes are stored, nor what keys and values mean: a store hands them over
//! through [`Nodes`].
//!
//! Leaves hold items in the order of their keys; inner nodes hold, for each child, its last key, its
//! id and the [`Sum`] of the items beneath it. So the way down to a key adds up what lies before it,
//! and a position is found as a key is: an order-statistic tree. A node's id is the hash of its
//! bytes, and a node ends where the hash of a key says so: the same items give the same nodes,
//! whatever was there before, and a changed item changes the nodes above it and seldom a neighbour.
//! The levels grow until one node remains. It is the root, and is no node of the store: its bytes,
//! led by their id, belong into a head that is replaced as a whole. A new edition is published by
//! writing its nodes first and its head last; who finds a node missing ([`ReadError::Missing`]) has
//! an old head and reads it anew.
//!
//! A node in bytes, numbers in LEB128:
//!
//! ```text
//! version: u8 = 1 │ level: u8, 0 for a leaf │ packing: u8 = 0 │ body
//!                                           │           = 1 │ body's length │ body in zstd
//! body: entries │ bytes of lengths │ bytes of numbers │ bytes of keys │ the four columns:
//!   lengths  for each entry: bytes shared with the key before it, own bytes of its key
//!   numbers  leaf: weight, length of the value        inner: count, weight
//!   keys     the own bytes of each key
//!   rest     leaf: the values                         inner: the ids, of 16 bytes each
//! ```
//!
//! The ids of equal items stay equal only as long as this layout, the rule of [`Options`] and the
//! compressor do; any change of them costs one edition that shares nothing, and is never wrong.
//!
//! The idea is that of the "prolly trees" of Noms and Dolt and of Merkle search trees (Auvolat and
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
mod wire;

use std::fmt;

use xxhash_rust::xxh3::xxh3_128;

pub use build::{BuildError, Builder, Built, ITEM_BYTES_MAX, Options};
pub use diff::Change;
pub use item::Item;
pub use node::Node;
pub use read::{Nodes, ReadError, Tree};

/// The name of a node: the XXH3 hash of its bytes. It guards against damage, not against forgery.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; Self::LEN]);

impl NodeId {
    /// Bytes of an id.
    pub const LEN: usize = 16;

    /// The id of a node with these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_128(bytes).to_be_bytes())
    }

    /// The id as bytes.
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

/// How many items there are, and what their weights add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// The number of items.
    pub count: u64,
    /// The sum of their weights.
    pub weight: i64,
}

impl Sum {
    /// Both sums, or nothing where one is too large for its type.
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

    /// Both sums, where both are parts of a tree: its own sum was checked.
    const fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            weight: self.weight + other.weight,
        }
    }
}

/// Stored bytes that are no node, or not the node that belongs there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// The bytes were not written by this version.
    #[error("stored tree node has layout {0}: a newer version wrote it, or it is damaged")]
    Layout(u8),
    /// The bytes contradict themselves.
    #[error("stored tree node is damaged: {0}")]
    Content(&'static str),
    /// The bytes are whole but do not belong to the id.
    #[error("stored tree node {id} is damaged: its bytes have the hash {found}")]
    Hash {
        /// The node that was asked for.
        id: NodeId,
        /// The id of what came.
        found: NodeId,
    },
    /// The node is not what its parent says of it.
    #[error("stored tree node {0} is not the one that its parent was built over")]
    Child(NodeId),
}
