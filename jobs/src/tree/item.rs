//! Items of a tree, as references into their leaf.

use std::fmt;
use std::sync::Arc;

use super::Node;

/// An item. It keeps its leaf in memory.
#[derive(Clone)]
pub struct Item {
    leaf: Arc<Node>,
    at: usize,
}

impl Item {
    /// The item at an index of a leaf, or `None` if the index is out of range.
    pub(super) fn new(leaf: &Arc<Node>, at: usize) -> Option<Self> {
        (leaf.level() == 0 && at < leaf.len()).then(|| Self {
            leaf: Arc::clone(leaf),
            at,
        })
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.leaf.key(self.at)
    }

    /// The weight.
    #[must_use]
    pub fn weight(&self) -> i64 {
        self.leaf.sum_at(self.at).weight
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.leaf.value(self.at)
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("key", &self.key())
            .field("weight", &self.weight())
            .field("value", &self.value())
            .finish()
    }
}
