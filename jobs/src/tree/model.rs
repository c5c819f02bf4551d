//! Test model of a tree: a sorted list of items, and a store that records its calls.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

pub(super) type Items = BTreeMap<Vec<u8>, (i64, Vec<u8>)>;

/// An item of the model, for comparison with [`Item`].
pub(super) type ItemTuple = (Vec<u8>, i64, Vec<u8>);

pub(super) fn to_tuple(item: &Item) -> ItemTuple {
    (item.key().to_vec(), item.weight(), item.value().to_vec())
}

/// Options that give a high tree with few items.
pub(super) fn small_node_options() -> impl Strategy<Value = TreeOptions> {
    (1..12_usize, 2..8_usize, 64..2000_usize, any::<bool>()).prop_map(
        |(leaf_items_mean, inner_children_mean, node_bytes_max, compress)| TreeOptions {
            leaf_items_mean,
            inner_children_mean,
            node_bytes_max,
            compress,
        },
    )
}

/// Keys that are often equal, and often prefixes of each other.
pub(super) fn any_key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(
        prop_oneof![Just(0), Just(b'a'), Just(255), any::<u8>()],
        0..7,
    )
}

/// Up to `max` items.
pub(super) fn any_items(max: usize) -> impl Strategy<Value = Items> {
    let value = prop::collection::vec(any::<u8>(), 0..9);
    let item = (any_key(), (0..1_000_000_i64, value));
    prop::collection::vec(item, 0..=max).prop_map(Items::from_iter)
}

/// Items that depend on the seed, with keys of 12 bytes.
pub(super) fn seeded_items(length: u64, seed: u64) -> Items {
    let hash = |index: u64| NodeId::for_bytes(&[seed.to_be_bytes(), index.to_be_bytes()].concat());
    let item = |index| {
        let hash = *hash(index).as_bytes();
        (
            hash[..12].to_vec(),
            (i64::from(hash[12]), hash[13..].to_vec()),
        )
    };
    (0..length).map(item).collect()
}

/// The root and all nodes of a finished tree.
pub(super) fn build(options: TreeOptions, items: &Items) -> (Bytes, Vec<(NodeId, Bytes)>) {
    let mut builder = TreeBuilder::new(options);
    let mut nodes = Vec::new();
    for (index, (key, (weight, value))) in items.iter().enumerate() {
        builder.push(key, *weight, value).unwrap();
        if index % 3 == 0 {
            nodes.extend(builder.take_nodes());
        }
    }
    let built = builder.finish();
    nodes.extend(built.nodes);
    let weight = items.values().map(|(weight, _)| weight).sum();
    let count = items.len() as u64;
    assert_eq!(built.sum, Sum { count, weight });
    (built.root, nodes)
}

/// A store of encoded nodes that records the requested ids of each call.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) nodes: HashMap<NodeId, Bytes>,
    pub(super) calls: Mutex<Vec<Vec<NodeId>>>,
}

impl Store {
    pub(super) fn build(options: TreeOptions, items: &Items) -> (Tree, Self) {
        let (root, nodes) = build(options, items);
        let length = nodes.len();
        let store = Self {
            nodes: nodes.into_iter().collect(),
            calls: Mutex::default(),
        };
        assert_eq!(store.nodes.len(), length, "a tree has no node twice");
        (Tree::open(&root).unwrap(), store)
    }

    /// Returns the requests since the last call. Checks that there is at most one request per
    /// level, that it names each node once, and that levels descend by one.
    pub(super) fn take_checked_calls(&self, tree: &Tree) -> Vec<Vec<NodeId>> {
        let calls = std::mem::take(&mut *self.calls.lock().unwrap());
        assert!(calls.len() <= tree.height());
        for (ids, level) in calls.iter().zip((0..tree.height()).rev()) {
            assert!(!ids.is_empty());
            assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
            assert!(ids.iter().all(|id| usize::from(self.nodes[id][1]) == level));
        }
        calls
    }
}

impl NodeReader for Store {
    type Error = TreeDamage;

    async fn read_nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, Self::Error> {
        self.calls.lock().unwrap().push(ids.to_vec());
        let decode = |bytes: &Bytes| Node::decode(bytes).map(Arc::new);
        ids.iter()
            .map(|id| self.nodes.get(id).map(decode).transpose())
            .collect()
    }
}

/// The result of a future that never waits.
pub(super) fn block_on<T>(future: impl Future<Output = T> + Send) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}
