//! From rows in the order of their keys to editions: the trees of each key.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use jobs::board::{BoardRows, GroupState, Place, Sheet, member_key, rank_key};
use jobs::tree::{BuildError, Builder, Built, NodeId};
use jobs::{Board, Job};
use stores::views::{NewEdition, NewHead, NodeName};

use super::held_back::HeldBack;
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
    held: &'a HeldBack,
    open: Option<Open<'a>>,
}

/// The key that is being built.
#[derive(Debug)]
struct Open<'a> {
    key: Vec<u8>,
    /// The members whose rows are not those that come.
    held: Option<&'a BTreeMap<Vec<u8>, GroupState>>,
    /// Their rows that are still to come, the last one first.
    stood: Vec<Stood<'a>>,
    by_rank: Builder,
    /// For boards with scores.
    by_member: ByMember,
    names: Vec<NodeName>,
    nodes: Vec<(NodeName, bytes::Bytes)>,
    nodes_bytes: usize,
    rows: u64,
}

/// A row of a member that is held back.
#[derive(Debug)]
struct Stood<'a> {
    rank: Vec<u8>,
    member: &'a [u8],
    place: &'a Place,
}

/// A row of a board, encoded.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    rank: &'a [u8],
    board: &'a [u8],
    score: &'a [u8],
    member: &'a [u8],
    payload: &'a [u8],
    weight: i64,
}

impl<'a> Editions<'a> {
    /// Editions of rows that come, but of members that are held back with the rows that these have.
    pub(crate) fn new(job: &'a Job<Board>, options: EditionOptions, held: &'a HeldBack) -> Self {
        Self {
            job,
            options,
            has_scores: !job.score().0.is_empty(),
            held,
            open: None,
        }
    }

    /// Begins a key.
    pub(crate) fn begin(&mut self, key: &[u8], out: &mut Vec<Edition>) -> Result<()> {
        self.end(out)?;
        self.open = Some(Open::new(key, self.options, self.held.get(key)));
        Ok(())
    }

    /// Takes rows and hands on the editions that they end.
    pub(crate) fn push(&mut self, batch: &RecordBatch, out: &mut Vec<Edition>) -> Result<()> {
        let rows = BoardRows::encode(self.job, batch)?;
        for row in 0..rows.len() {
            let key = rows.keys.value(row);
            if self.open.as_ref().is_none_or(|open| open.key != key) {
                self.begin(key, out)?;
            }
            let Some(open) = &mut self.open else { continue };
            let member = rows.members.value(row);
            if open.held.is_some_and(|held| held.contains_key(member)) {
                continue;
            }
            let (board, score) = (rows.boards.value(row), rows.scores.value(row));
            let rank = rank_key(board, score, member);
            open.push_stood(Some(&rank), self.has_scores)
                .map_err(|error| wrong(self.job, error))?;
            let row = Row {
                rank: &rank,
                board,
                score,
                member,
                payload: rows.payloads.value(row),
                weight: rows.weights.value(row),
            };
            open.push(row, self.has_scores)
                .map_err(|error| wrong(self.job, error))?;
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
        open.push_stood(None, self.has_scores).map_err(wrong)?;
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

impl<'a> Open<'a> {
    fn new(
        key: &[u8],
        options: EditionOptions,
        held: Option<&'a BTreeMap<Vec<u8>, GroupState>>,
    ) -> Self {
        let of_member = |(member, state): (&'a Vec<u8>, &'a GroupState)| {
            let stood = state.places.iter().map(move |place| Stood {
                rank: rank_key(&place.board, &place.score, member),
                member,
                place,
            });
            stood.collect::<Vec<_>>()
        };
        let mut stood: Vec<Stood<'_>> = held.into_iter().flatten().flat_map(of_member).collect();
        stood.sort_unstable_by(|one, other| other.rank.cmp(&one.rank));
        Self {
            key: key.to_vec(),
            held,
            stood,
            by_rank: Builder::new(options.tree),
            by_member: ByMember::default(),
            names: Vec::new(),
            nodes: Vec::new(),
            nodes_bytes: 0,
            rows: 0,
        }
    }

    fn push(&mut self, row: Row<'_>, has_scores: bool) -> std::result::Result<(), BuildError> {
        self.by_rank.push(row.rank, row.weight, row.payload)?;
        self.rows += 1;
        if has_scores {
            let key = member_key(row.member, row.board);
            self.by_member.push(&key, row.weight, row.score);
        }
        Ok(())
    }

    /// Pushes the rows of members that are held back which stand before a rank; all if there is none.
    fn push_stood(
        &mut self,
        before: Option<&[u8]>,
        has_scores: bool,
    ) -> std::result::Result<(), BuildError> {
        while let Some(next) = self.stood.pop() {
            if before.is_some_and(|rank| rank < next.rank.as_slice()) {
                self.stood.push(next);
                break;
            }
            let row = Row {
                rank: &next.rank,
                board: &next.place.board,
                score: &next.place.score,
                member: next.member,
                payload: &next.place.payload,
                weight: next.place.weight,
            };
            self.push(row, has_scores)?;
        }
        Ok(())
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
                is_anew: false,
                is_alone: false,
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
    places: Vec<Placed>,
}

/// Where the key and the score of a row lie.
#[derive(Debug, Clone, Copy)]
struct Placed {
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
        self.places.push(Placed {
            start,
            score: start + key.len(),
            end: self.bytes.len(),
            weight,
        });
    }

    fn sort(&mut self) {
        let key = |place: &Placed| self.bytes.get(place.start..place.score);
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
            is_anew: false,
            is_alone: false,
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
