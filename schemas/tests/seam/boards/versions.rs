//! The store of published versions. A version is immutable: its head leads to nodes, which are
//! named by their content.

use std::rc::Rc;

use schemas::seam::Epoch;

use super::entity_rows::{BOARDS, KEY_MEMBERS, Scores};
use super::stores::World;
use crate::simulation::Event;

/// The maximum number of entries of a node.
const NODE_ENTRIES: usize = 2;

/// A node, which is named by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node([Option<BoardEntry>; NODE_ENTRIES]);

/// An entry of a board, ordered by rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BoardEntry {
    pub(super) board: usize,
    pub(super) score: u8,
    /// The number of the member within the key.
    pub(super) member: usize,
}

/// The content of a head: the size of each board, and the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) sizes: [usize; BOARDS],
    pub(super) nodes: Rc<[Node]>,
}

#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) epoch: Epoch,
    pub(super) root: Root,
}

/// The stored boards of a key.
#[derive(Default)]
pub(super) struct StoredBoards {
    head: Option<Head>,
    nodes: Vec<Node>,
}

impl Root {
    /// Builds the version of a key's members. The content of an entry decides whether its node
    /// ends.
    pub(super) fn from_scores(members: &[Scores; KEY_MEMBERS]) -> Self {
        let mut entries = Vec::new();
        let mut sizes = [0; BOARDS];
        for (member, scores) in members.iter().enumerate() {
            for (board, score) in scores.iter().copied().enumerate() {
                if score > 0 {
                    sizes[board] += 1;
                    entries.push(BoardEntry {
                        board,
                        score,
                        member,
                    });
                }
            }
        }
        entries.sort_unstable();
        let mut nodes = Vec::new();
        let mut open_entries = Vec::new();
        for entry in entries {
            open_entries.push(entry);
            if open_entries.len() == NODE_ENTRIES || entry.ends_node() {
                nodes.push(Node::from_entries(&mut open_entries));
            }
        }
        if !open_entries.is_empty() {
            nodes.push(Node::from_entries(&mut open_entries));
        }
        Self {
            sizes,
            nodes: nodes.into(),
        }
    }
}

impl Node {
    fn from_entries(entries: &mut Vec<BoardEntry>) -> Self {
        let mut entries = entries.drain(..);
        Self(std::array::from_fn(|_| entries.next()))
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = BoardEntry> + use<> {
        self.0.into_iter().flatten()
    }
}

impl BoardEntry {
    fn ends_node(self) -> bool {
        (self.board + usize::from(self.score) + 2 * self.member).is_multiple_of(3)
    }
}

impl StoredBoards {
    /// Returns the epoch of the head; 0 if there is none.
    pub(super) fn epoch(&self) -> Epoch {
        self.head.as_ref().map_or(0, |head| head.epoch)
    }
}

impl World {
    pub(super) fn head(&self, key: usize) -> Option<Head> {
        self.stores.versions[key].head.clone()
    }

    pub(super) fn has_node(&self, key: usize, node: Node) -> bool {
        self.stores.versions[key].nodes.contains(&node)
    }

    /// Returns all stored nodes of a key.
    pub(super) fn nodes(&self, key: usize) -> Vec<Node> {
        self.stores.versions[key].nodes.clone()
    }

    pub(super) fn write_nodes(&mut self, key: usize, new: &[Node]) {
        let nodes = &mut self.stores.versions[key].nodes;
        for node in new {
            if !nodes.contains(node) {
                nodes.push(*node);
            }
        }
    }

    pub(super) fn write_head(&mut self, key: usize, epoch: Epoch, root: Root) {
        self.count_event(Event::HeadReplaced);
        if root.nodes.is_empty() {
            self.count_event(Event::HeadEmptied);
        }
        self.stores.versions[key].head = Some(Head { epoch, root });
    }

    pub(super) fn delete_nodes(&mut self, key: usize, deleted: &[Node]) {
        for node in deleted {
            let nodes = &mut self.stores.versions[key].nodes;
            if let Some(index) = nodes.iter().position(|other| other == node) {
                nodes.swap_remove(index);
                self.count_event(Event::NodeDeleted);
            }
        }
    }
}
