//! Items of a tree, as references into their leaf.

use std::fmt;
use std::sync::Arc;

use super::Node;

/// An item. It keeps its leaf in memory.
#[derive(Clone)]
pub struct Item {
    leaf: Arc<Node>,
    index: usize,
}

impl Item {
    /// The item at an index of a leaf, or `None` if the index is out of range.
    pub(super) fn new(leaf: &Arc<Node>, index: usize) -> Option<Self> {
        (leaf.level() == 0 && index < leaf.len()).then(|| Self {
            leaf: Arc::clone(leaf),
            index,
        })
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.leaf.key(self.index)
    }

    /// The weight.
    #[must_use]
    pub fn weight(&self) -> i64 {
        self.leaf.sum_at(self.index).weight
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.leaf.value(self.index)
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
