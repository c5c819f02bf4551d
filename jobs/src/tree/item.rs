//! Items as they are handed out: places in a leaf.

use std::fmt;
use std::sync::Arc;

use super::Node;

/// An item. It keeps the leaf in memory that it lies in.
#[derive(Clone)]
pub struct Item {
    leaf: Arc<Node>,
    at: usize,
}

impl Item {
    /// The item of a leaf, if there is one.
    pub(super) fn of(leaf: &Arc<Node>, at: usize) -> Option<Self> {
        (leaf.level() == 0 && at < leaf.len()).then(|| Self {
            leaf: Arc::clone(leaf),
            at,
        })
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.leaf.key(self.at)
    }

    /// Its weight.
    #[must_use]
    pub fn weight(&self) -> i64 {
        self.leaf.sum_at(self.at).weight
    }

    /// Its value.
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
