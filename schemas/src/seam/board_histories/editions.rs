//! Editions: heads, and the nodes that they refer to by content.

use std::rc::Rc;

use super::canon::{BOARDS, MEMBERS, State};
use super::tally::Event;
use super::world::World;
use crate::seam::Epoch;

/// Rows that a node has at most.
const NODE_ROWS: usize = 2;

/// The name of a node, which is as good as what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node([Option<Row>; NODE_ROWS]);

/// A place on a board, in the order of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) board: usize,
    pub(super) score: u8,
    pub(super) member: usize,
}

/// What a head refers to: how many rows each board has, and nodes.
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

/// What is stored of a key's boards.
#[derive(Debug, Default)]
pub(super) struct Boards {
    head: Option<Head>,
    nodes: Vec<Node>,
}

impl Root {
    /// The edition of a key's members, cut into nodes where the hash of a row says so.
    pub(super) fn of(states: &[State; MEMBERS]) -> Self {
        let mut rows = Vec::new();
        let mut sizes = [0; BOARDS];
        for (member, state) in states.iter().enumerate() {
            for (board, score) in state.iter().copied().enumerate() {
                if score > 0 {
                    sizes[board] += 1;
                    rows.push(Row {
                        board,
                        score,
                        member,
                    });
                }
            }
        }
        rows.sort_unstable();
        let mut nodes = Vec::new();
        let mut open = [None; NODE_ROWS];
        for row in rows {
            let (first, second) = (open[0], Some(row));
            open = if first.is_none() {
                [second, None]
            } else {
                [first, second]
            };
            if open[1].is_some() || row.ends_node() {
                nodes.push(Node(std::mem::take(&mut open)));
            }
        }
        if open[0].is_some() {
            nodes.push(Node(open));
        }
        Self {
            sizes,
            nodes: nodes.into(),
        }
    }
}

impl Node {
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        self.0.into_iter().flatten()
    }
}

impl Row {
    fn ends_node(self) -> bool {
        (self.board + usize::from(self.score) + 2 * self.member).is_multiple_of(3)
    }
}

impl Boards {
    /// The epoch of the head.
    pub(super) fn epoch(&self) -> Epoch {
        self.head.as_ref().map_or(0, |head| head.epoch)
    }
}

impl World {
    pub(super) fn head(&self, key: usize) -> Option<Head> {
        self.boards[key].head.clone()
    }

    pub(super) fn has_node(&self, key: usize, node: Node) -> bool {
        self.boards[key].nodes.contains(&node)
    }

    /// All nodes that are stored for a key.
    pub(super) fn nodes(&self, key: usize) -> Vec<Node> {
        self.boards[key].nodes.clone()
    }

    pub(super) fn write_nodes(&mut self, key: usize, new: &[Node]) {
        let nodes = &mut self.boards[key].nodes;
        for node in new {
            if !nodes.contains(node) {
                nodes.push(*node);
            }
        }
    }

    pub(super) fn write_head(&mut self, key: usize, epoch: Epoch, root: Root) {
        self.note(Event::HeadReplaced);
        if root.nodes.is_empty() {
            self.note(Event::HeadEmptied);
        }
        self.boards[key].head = Some(Head { epoch, root });
    }

    pub(super) fn delete_nodes(&mut self, key: usize, names: &[Node]) {
        for name in names {
            let nodes = &mut self.boards[key].nodes;
            if let Some(place) = nodes.iter().position(|node| node == name) {
                nodes.swap_remove(place);
                self.note(Event::NodeDeleted);
            }
        }
    }
}
