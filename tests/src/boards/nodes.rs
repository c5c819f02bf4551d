//! The stored nodes of boards, and the nodes that heads reference.

use std::collections::BTreeSet;
use std::sync::Arc;

use jobs::board::VersionTrees;
use jobs::tree::{Node, NodeId, NodeReader};
use jobs::{Board, Job};
use schemas::key::KeyValue;
use stores::views::NodeName;

use super::{APPLICATIONS, SEGMENTS};
use crate::world::World;

/// Node names by view and key.
pub type KeyedNodes = BTreeSet<(String, i64, NodeName)>;

/// The stored nodes of one key.
#[derive(Debug)]
pub struct StoredNodes<'a> {
    /// The installation.
    pub world: &'a World,
    /// The view.
    pub job: &'a Job<Board>,
    /// The encoded key.
    pub key: &'a [u8],
}

impl NodeReader for StoredNodes<'_> {
    type Error = String;

    async fn read_nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, String> {
        let names: Vec<NodeName> = ids.iter().map(|id| *id.as_bytes()).collect();
        let views = &self.world.stores.views;
        let nodes = views.nodes(self.job.view(), self.key, &names).await;
        let node = |bytes: bytes::Bytes| Arc::new(Node::decode(&bytes).expect("a node"));
        Ok(nodes
            .map_err(|error| error.to_string())?
            .into_iter()
            .map(|bytes| bytes.map(node))
            .collect())
    }
}

/// Returns the nodes that heads reference and the nodes that are stored, of all keys.
pub async fn collect_nodes(world: &World) -> (KeyedNodes, KeyedNodes) {
    let (mut referenced, mut stored) = (KeyedNodes::new(), KeyedNodes::new());
    let views = &world.stores.views;
    for job in world.catalog.boards() {
        let view = job.view();
        for id in 1..=SEGMENTS.max(APPLICATIONS) {
            let key = job.key().encode_values(&[KeyValue::Int(id)]);
            let key = key.expect("a key");
            let names = views.node_names(view, &key).await.expect("names");
            stored.extend(names.into_iter().map(|name| (view.to_owned(), id, name)));
            let heads = views.heads(view, std::slice::from_ref(&key)).await;
            let head = heads.expect("heads").and_then(|mut heads| heads.remove(0));
            let Some(head) = head else { continue };
            let nodes_of_key = StoredNodes {
                world,
                job,
                key: &key,
            };
            let roots = [head.root].into_iter();
            for root in roots.chain(head.earlier.map(|earlier| earlier.root)) {
                let trees =
                    VersionTrees::open(&root, !job.score().0.is_empty()).expect("a version");
                for tree in trees.trees() {
                    let ids = tree
                        .list_node_ids(&nodes_of_key)
                        .await
                        .expect("inner nodes");
                    let ids = ids.iter().map(|id| *id.as_bytes());
                    referenced.extend(ids.map(|name| (view.to_owned(), id, name)));
                }
            }
        }
    }
    assert!(
        referenced.is_subset(&stored),
        "a head references a missing node"
    );
    (referenced, stored)
}
