//! Versions of boards: heads, and the nodes that they reference by content.

use std::rc::Rc;

use super::entity_rows::{BOARDS, MEMBERS, State};
use crate::seam::Epoch;

/// The maximum number of rows of a node.
const NODE_ROWS: usize = 2;

/// A node, which is named by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node([Option<Row>; NODE_ROWS]);

/// An entry of a board, ordered by rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) board: usize,
    pub(super) score: u8,
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
#[derive(Debug, Default)]
pub(super) struct Boards {
    pub(super) head: Option<Head>,
    pub(super) nodes: Vec<Node>,
}

impl Root {
    /// Builds the version of a key's members. The hash of a row decides the boundaries of nodes.
    pub(super) fn from_states(states: &[State; MEMBERS]) -> Self {
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
    /// Returns the epoch of the head.
    pub(super) fn epoch(&self) -> Epoch {
        self.head.as_ref().map_or(0, |head| head.epoch)
    }
}
