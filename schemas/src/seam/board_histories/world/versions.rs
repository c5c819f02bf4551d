//! The stored boards of each key.

use super::super::events::Event;
use super::super::versions::{Head, Node, Root};
use super::World;
use crate::seam::Epoch;

impl World {
    pub(in super::super) fn head(&self, key: usize) -> Option<Head> {
        self.boards[key].head.clone()
    }

    pub(in super::super) fn has_node(&self, key: usize, node: Node) -> bool {
        self.boards[key].nodes.contains(&node)
    }

    /// Returns all stored nodes of a key.
    pub(in super::super) fn nodes(&self, key: usize) -> Vec<Node> {
        self.boards[key].nodes.clone()
    }

    pub(in super::super) fn write_nodes(&mut self, key: usize, new: &[Node]) {
        let nodes = &mut self.boards[key].nodes;
        for node in new {
            if !nodes.contains(node) {
                nodes.push(*node);
            }
        }
    }

    pub(in super::super) fn write_head(&mut self, key: usize, epoch: Epoch, root: Root) {
        self.count_event(Event::HeadReplaced);
        if root.nodes.is_empty() {
            self.count_event(Event::HeadEmptied);
        }
        self.boards[key].head = Some(Head { epoch, root });
    }

    pub(in super::super) fn delete_nodes(&mut self, key: usize, names: &[Node]) {
        for name in names {
            let nodes = &mut self.boards[key].nodes;
            if let Some(index) = nodes.iter().position(|node| node == name) {
                nodes.swap_remove(index);
                self.count_event(Event::NodeDeleted);
            }
        }
    }
}
