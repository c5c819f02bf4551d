//! From rows in the order of their keys to editions: the trees of each key.

use arrow::array::RecordBatch;
use jobs::board::{BoardRows, Sheet, member_key, rank_key};
use jobs::tree::{Builder, Built, NodeId};
use jobs::{Board, Job};
use stores::views::{NewEdition, NewHead, NodeName};

use crate::{EditionOptions, Error, Result};

/// The boards of one key, as trees.
#[derive(Debug)]
pub(crate) struct Edition {
    /// What is to be written; without a head it is only a part of the key's nodes.
    pub(crate) new: NewEdition,
    /// Rows of all boards of the key.
    pub(crate) rows: u64,
}

/// Builds editions.
#[derive(Debug)]
pub(crate) struct Editions<'a> {
    job: &'a Job<Board>,
    options: EditionOptions,
    has_scores: bool,
    open: Option<Open>,
}

/// The key that is being built.
#[derive(Debug)]
struct Open {
    key: Vec<u8>,
    by_rank: Builder,
    /// For boards with scores.
    by_member: ByMember,
    names: Vec<NodeName>,
    nodes: Vec<(NodeName, bytes::Bytes)>,
    nodes_bytes: usize,
    rows: u64,
}

impl<'a> Editions<'a> {
    pub(crate) fn new(job: &'a Job<Board>, options: EditionOptions) -> Self {
        Self {
            job,
            options,
            has_scores: !job.score().0.is_empty(),
            open: None,
        }
    }

    /// Takes rows and hands on the editions that they end.
    pub(crate) fn push(&mut self, batch: &RecordBatch, out: &mut Vec<Edition>) -> Result<()> {
        let rows = BoardRows::encode(self.job, batch)?;
        for row in 0..rows.len() {
            let key = rows.keys.value(row);
            if self.open.as_ref().is_none_or(|open| open.key != key) {
                self.end(out)?;
                self.open = Some(Open::new(key, self.options));
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
                let key = member_key(member, board);
                open.by_member.push(&key, weight, score);
            }
            let nodes = open.by_rank.take_nodes();
            open.keep(nodes);
            if open.nodes_bytes > self.options.nodes_bytes_max {
                out.push(open.part());
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
        let new_builder = || Builder::new(self.options.tree);
        let by_rank = std::mem::replace(&mut open.by_rank, new_builder());
        let Built { root, nodes, .. } = by_rank.finish();
        open.keep(nodes);
        let mut members = None;
        if self.has_scores {
            let mut by_member = std::mem::take(&mut open.by_member);
            by_member.sort();
            let mut builder = new_builder();
            for (key, weight, score) in by_member.rows() {
                builder.push(key, weight, score).map_err(wrong)?;
            }
            let built = builder.finish();
            open.keep(built.nodes);
            members = Some(built.root);
        }
        let mut edition = open.part();
        edition.new.head = Some(NewHead {
            root: Sheet::encode(&root, members.as_deref()).into(),
            names: open.names,
        });
        edition.rows = open.rows;
        out.push(edition);
        Ok(())
    }
}

impl Open {
    fn new(key: &[u8], options: EditionOptions) -> Self {
        Self {
            key: key.to_vec(),
            by_rank: Builder::new(options.tree),
            by_member: ByMember::default(),
            names: Vec::new(),
            nodes: Vec::new(),
            nodes_bytes: 0,
            rows: 0,
        }
    }

    fn keep(&mut self, nodes: Vec<(NodeId, bytes::Bytes)>) {
        for (name, bytes) in nodes {
            self.names.push(*name.as_bytes());
            self.nodes_bytes += bytes.len();
            self.nodes.push((*name.as_bytes(), bytes));
        }
    }

    /// The nodes that were held back up to now.
    fn part(&mut self) -> Edition {
        self.nodes_bytes = 0;
        Edition {
            new: NewEdition {
                key: self.key.clone(),
                nodes: std::mem::take(&mut self.nodes),
                head: None,
            },
            rows: 0,
        }
    }
}

/// What members have on boards, until it can be put in the order of members: in one piece, since a
/// key may have millions of rows.
#[derive(Debug, Default)]
struct ByMember {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

/// Where the key and the score of a row lie.
#[derive(Debug, Clone, Copy)]
struct Place {
    start: usize,
    score: usize,
    end: usize,
    weight: i64,
}

impl ByMember {
    fn push(&mut self, key: &[u8], weight: i64, score: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(score);
        self.places.push(Place {
            start,
            score: start + key.len(),
            end: self.bytes.len(),
            weight,
        });
    }

    fn sort(&mut self) {
        let key = |place: &Place| self.bytes.get(place.start..place.score);
        self.places
            .sort_unstable_by(|one, other| key(one).cmp(&key(other)));
    }

    fn rows(&self) -> impl Iterator<Item = (&[u8], i64, &[u8])> {
        self.places.iter().filter_map(|place| {
            let key = self.bytes.get(place.start..place.score)?;
            Some((key, place.weight, self.bytes.get(place.score..place.end)?))
        })
    }
}

/// The edition of a key that has nothing on any board.
pub(crate) fn empty(job: &Job<Board>, key: &[u8], options: EditionOptions) -> Edition {
    let root = Builder::new(options.tree).finish().root;
    let members = (!job.score().0.is_empty()).then_some(root.as_ref());
    Edition {
        new: NewEdition {
            key: key.to_vec(),
            nodes: Vec::new(),
            head: Some(NewHead {
                root: Sheet::encode(&root, members).into(),
                names: Vec::new(),
            }),
        },
        rows: 0,
    }
}

fn wrong(job: &Job<Board>, error: impl std::fmt::Display) -> Error {
    Error::Job(jobs::Error::Rows {
        job: job.name().to_owned(),
        what: format!("{error}; is there one row at most for each member of a board?"),
    })
}
