//! From rows in the order of their keys to editions: the trees of each key.

use jobs::board::{BoardRows, Sheet, member_key, rank_key};
use jobs::tree::{Builder, Built, NodeId, Options};
use jobs::{Board, Job};
use stores::views::NewEdition;

use crate::{Error, Result};

/// Nodes of one key that are held back until its head is known, in bytes, about.
const NODES_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The boards of one key, as trees.
#[derive(Debug)]
pub(crate) struct Edition {
    /// What is to be written; without a root it is only the first part of the key's nodes.
    pub(crate) new: NewEdition,
    /// The names of all nodes of the edition, those of its first parts among them.
    pub(crate) names: Vec<NodeId>,
    /// Rows of all boards of the key.
    pub(crate) rows: u64,
}

/// Builds editions.
#[derive(Debug)]
pub(crate) struct Editions<'a> {
    job: &'a Job<Board>,
    has_scores: bool,
    open: Option<Open>,
}

/// The key that is being built.
#[derive(Debug)]
struct Open {
    key: Vec<u8>,
    by_rank: Builder,
    /// For boards with scores: what each member has on each board, as it will stand in the order of
    /// members.
    by_member: Vec<(Vec<u8>, i64, Vec<u8>)>,
    names: Vec<NodeId>,
    nodes: Vec<(NodeId, bytes::Bytes)>,
    nodes_bytes: usize,
    rows: u64,
}

impl<'a> Editions<'a> {
    pub(crate) fn new(job: &'a Job<Board>) -> Self {
        Self {
            job,
            has_scores: !job.score().0.is_empty(),
            open: None,
        }
    }

    /// Takes rows and hands on the editions that they end.
    pub(crate) fn push(&mut self, rows: &BoardRows, out: &mut Vec<Edition>) -> Result<()> {
        for row in 0..rows.len() {
            let key = rows.keys.value(row);
            if self.open.as_ref().is_none_or(|open| open.key != key) {
                self.end(out)?;
                self.open = Some(Open::new(key));
            }
            let Some(open) = &mut self.open else { continue };
            let (board, score) = (rows.boards.value(row), rows.scores.value(row));
            let (member, weight) = (rows.members.value(row), rows.weights.value(row));
            let rank = rank_key(board, score, member);
            open.by_rank
                .push(&rank, weight, rows.payloads.value(row))
                .map_err(|error| wrong(self.job, error))?;
            open.rows += 1;
            if self.has_scores {
                let entry = (member_key(member, board), weight, score.to_vec());
                open.by_member.push(entry);
            }
            let nodes = open.by_rank.take_nodes();
            open.keep(nodes);
            if open.nodes_bytes > NODES_BYTES_MAX {
                out.push(open.first_part());
            }
        }
        Ok(())
    }

    /// Ends the key that is being built.
    pub(crate) fn end(&mut self, out: &mut Vec<Edition>) -> Result<()> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        let wrong = |error| wrong(self.job, error);
        let by_rank = std::mem::replace(&mut open.by_rank, new_builder());
        let Built { root, nodes, .. } = by_rank.finish();
        open.keep(nodes);
        let mut members = None;
        if self.has_scores {
            let mut by_member = std::mem::take(&mut open.by_member);
            by_member.sort_unstable();
            let mut builder = new_builder();
            for (key, weight, score) in by_member {
                builder.push(&key, weight, &score).map_err(wrong)?;
            }
            let built = builder.finish();
            open.keep(built.nodes);
            members = Some(built.root);
        }
        let root = Sheet::encode(&root, members.as_deref());
        let mut edition = open.first_part();
        edition.new.root = Some(root.into());
        edition.names = open.names;
        edition.rows = open.rows;
        out.push(edition);
        Ok(())
    }
}

impl Open {
    fn new(key: &[u8]) -> Self {
        Self {
            key: key.to_vec(),
            by_rank: new_builder(),
            by_member: Vec::new(),
            names: Vec::new(),
            nodes: Vec::new(),
            nodes_bytes: 0,
            rows: 0,
        }
    }

    fn keep(&mut self, nodes: Vec<(NodeId, bytes::Bytes)>) {
        self.names.extend(nodes.iter().map(|(name, _)| *name));
        self.nodes_bytes += nodes.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        self.nodes.extend(nodes);
    }

    /// What there is of the key's nodes up to now.
    fn first_part(&mut self) -> Edition {
        self.nodes_bytes = 0;
        let nodes = std::mem::take(&mut self.nodes);
        Edition {
            new: NewEdition {
                key: self.key.clone(),
                nodes: nodes
                    .into_iter()
                    .map(|(name, bytes)| (*name.as_bytes(), bytes))
                    .collect(),
                root: None,
            },
            names: Vec::new(),
            rows: 0,
        }
    }
}

/// The edition of a key that has nothing on any board.
pub(crate) fn empty(job: &Job<Board>, key: &[u8]) -> Edition {
    let root = new_builder().finish().root;
    let members = (!job.score().0.is_empty()).then_some(root.as_ref());
    Edition {
        new: NewEdition {
            key: key.to_vec(),
            nodes: Vec::new(),
            root: Some(Sheet::encode(&root, members).into()),
        },
        names: Vec::new(),
        rows: 0,
    }
}

fn new_builder() -> Builder {
    Builder::new(Options::default())
}

fn wrong(job: &Job<Board>, error: impl std::fmt::Display) -> Error {
    Error::Job(jobs::Error::Rows {
        job: job.name().to_owned(),
        what: format!("{error}; is there one row at most for each member of a board?"),
    })
}
