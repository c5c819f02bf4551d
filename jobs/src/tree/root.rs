//! A tree, opened by its root, and the store from which its nodes are read.

use std::sync::Arc;

use super::{Node, NodeId, Sum, TreeDamage};

/// Reads nodes from a store, or from a cache in front of it.
pub trait NodeReader: Sync {
    /// The error of a read.
    type Error: Send;

    /// Reads the nodes with these ids, in the order of the ids; `None` for a missing one. A call
    /// has no id twice. The tree checks that each node is the requested one.
    fn read_nodes(
        &self,
        ids: &[NodeId],
    ) -> impl Future<Output = Result<Vec<Option<Arc<Node>>>, Self::Error>> + Send;
}

/// A tree could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError<E> {
    /// A node is not in the store, because a newer tree replaced this one.
    #[error(
        "tree node {0} was deleted, because a newer tree replaced this one; read its head again"
    )]
    Missing(NodeId),
    /// A node is corrupt.
    #[error(transparent)]
    Damaged(#[from] TreeDamage),
    /// The store failed.
    #[error(transparent)]
    Store(E),
}

/// A tree, opened by its root. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Tree {
    root: Arc<Node>,
}

impl Tree {
    /// Opens the tree with this root, as in [`super::BuiltTree`].
    ///
    /// # Errors
    /// [`TreeDamage`] if the bytes are not a root, or corrupt.
    pub fn open(root: &[u8]) -> Result<Self, TreeDamage> {
        let Some((id, bytes)) = root.split_first_chunk::<{ NodeId::LEN }>() else {
            return Err(TreeDamage::Content("it ends too early"));
        };
        let (id, actual) = (NodeId::from(*id), NodeId::for_bytes(bytes));
        if id != actual {
            return Err(TreeDamage::Hash { id, actual });
        }
        let root = Arc::new(Node::decode(bytes)?);
        Ok(Self { root })
    }

    pub(super) const fn root(&self) -> &Arc<Node> {
        &self.root
    }

    /// Returns the sum of all items.
    #[must_use]
    pub fn sum(&self) -> Sum {
        self.root.sum()
    }

    /// Iterates over the keys in the root: those of its items, or the last keys of its children.
    pub fn root_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.root.keys()
    }

    /// Returns the number of levels below the root: the maximum number of calls of
    /// [`NodeReader::read_nodes`] by an operation.
    #[must_use]
    pub fn height(&self) -> usize {
        usize::from(self.root.level())
    }
}
