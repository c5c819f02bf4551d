//! Builds versions: the trees of each key, from rows in key order.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use jobs::board::{BoardEntry, BoardRows, MemberEntries, VersionTrees, member_key, rank_key};
use jobs::tree::{BuildError, BuiltTree, NodeId, TreeBuilder};
use jobs::{Board, Job};
use stores::views::{NewHead, NewVersion, NodeName};

use super::pending::PendingMembers;
use crate::{Error, Result, VersionOptions};

/// The boards of one key as trees.
#[derive(Debug)]
pub(crate) struct KeyVersion {
    /// The data to write; without a head it is only a part of the key's nodes.
    pub(crate) new: NewVersion,
    /// The rows of all boards of the key.
    pub(crate) rows: u64,
}

/// Builds the versions of keys.
#[derive(Debug)]
pub(crate) struct VersionBuilder<'a> {
    job: &'a Job<Board>,
    options: VersionOptions,
    has_scores: bool,
    pending: &'a PendingMembers,
    open: Option<OpenKey<'a>>,
}

/// The key under construction.
#[derive(Debug)]
struct OpenKey<'a> {
    key: Vec<u8>,
    /// The pending members, whose rows in the input are replaced.
    pending: Option<&'a BTreeMap<Vec<u8>, MemberEntries>>,
    /// Their remaining rows, in descending order.
    pending_rows: Vec<PendingRow<'a>>,
    by_rank: TreeBuilder,
    /// Used for boards with scores.
    by_member: MemberIndex,
    names: Vec<NodeName>,
    nodes: Vec<(NodeName, bytes::Bytes)>,
    nodes_bytes: usize,
    rows: u64,
}

/// A row of a pending member.
#[derive(Debug)]
struct PendingRow<'a> {
    rank: Vec<u8>,
    member: &'a [u8],
    entry: &'a BoardEntry,
}

/// An encoded row of a board.
#[derive(Debug, Clone, Copy)]
struct BoardRow<'a> {
    rank: &'a [u8],
    board: &'a [u8],
    score: &'a [u8],
    member: &'a [u8],
    payload: &'a [u8],
    weight: i64,
}

impl<'a> VersionBuilder<'a> {
    /// Creates a builder that replaces the rows of pending members by their present entries.
    pub(crate) fn new(
        job: &'a Job<Board>,
        options: VersionOptions,
        pending: &'a PendingMembers,
    ) -> Self {
        Self {
            job,
            options,
            has_scores: !job.score().0.is_empty(),
            pending,
            open: None,
        }
    }

    /// Ends the current key and starts another one.
    pub(crate) fn begin(&mut self, key: &[u8], out: &mut Vec<KeyVersion>) -> Result<()> {
        self.end(out)?;
        self.open = Some(OpenKey::new(key, self.options, self.pending.get(key)));
        Ok(())
    }

    /// Adds rows, and appends the finished versions to `out`.
    pub(crate) fn push(&mut self, batch: &RecordBatch, out: &mut Vec<KeyVersion>) -> Result<()> {
        let rows = BoardRows::encode(self.job, batch)?;
        for row in 0..rows.len() {
            let key = rows.keys.value(row);
            if self.open.as_ref().is_none_or(|open| open.key != key) {
                self.begin(key, out)?;
            }
            let Some(open) = &mut self.open else { continue };
            let member = rows.members.value(row);
            if open
                .pending
                .is_some_and(|pending| pending.contains_key(member))
            {
                continue;
            }
            let (board, score) = (rows.boards.value(row), rows.scores.value(row));
            let rank = rank_key(board, score, member);
            open.push_pending(Some(&rank), self.has_scores)
                .map_err(|error| build_error(self.job, error))?;
            let row = BoardRow {
                rank: &rank,
                board,
                score,
                member,
                payload: rows.payloads.value(row),
                weight: rows.weights.value(row),
            };
            open.push(row, self.has_scores)
                .map_err(|error| build_error(self.job, error))?;
            let nodes = open.by_rank.take_nodes();
            open.buffer(nodes);
            if open.nodes_bytes > self.options.nodes_bytes_max {
                out.push(open.take_buffered());
            }
        }
        Ok(())
    }

    /// Ends the current key, and appends its version to `out`.
    pub(crate) fn end(&mut self, out: &mut Vec<KeyVersion>) -> Result<()> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        let to_error = |error| build_error(self.job, error);
        open.push_pending(None, self.has_scores).map_err(to_error)?;
        let new_builder = || TreeBuilder::new(self.options.tree);
        let by_rank = std::mem::replace(&mut open.by_rank, new_builder());
        let BuiltTree { root, nodes, .. } = by_rank.finish();
        open.buffer(nodes);
        let mut members = None;
        if self.has_scores {
            let mut by_member = std::mem::take(&mut open.by_member);
            by_member.sort();
            let mut builder = new_builder();
            for (key, weight, score) in by_member.rows() {
                builder.push(key, weight, score).map_err(to_error)?;
            }
            let built = builder.finish();
            open.buffer(built.nodes);
            members = Some(built.root);
        }
        let mut version = open.take_buffered();
        version.new.head = Some(NewHead {
            root: VersionTrees::encode(&root, members.as_deref()).into(),
            names: open.names,
        });
        version.rows = open.rows;
        out.push(version);
        Ok(())
    }
}

impl<'a> OpenKey<'a> {
    fn new(
        key: &[u8],
        options: VersionOptions,
        pending: Option<&'a BTreeMap<Vec<u8>, MemberEntries>>,
    ) -> Self {
        let member_rows = |(member, pending): (&'a Vec<u8>, &'a MemberEntries)| {
            let rows = pending.entries.iter().map(move |entry| PendingRow {
                rank: rank_key(&entry.board, &entry.score, member),
                member,
                entry,
            });
            rows.collect::<Vec<_>>()
        };
        let members = pending.into_iter().flatten();
        let mut pending_rows: Vec<PendingRow<'_>> = members.flat_map(member_rows).collect();
        pending_rows.sort_unstable_by(|left, right| right.rank.cmp(&left.rank));
        Self {
            key: key.to_vec(),
            pending,
            pending_rows,
            by_rank: TreeBuilder::new(options.tree),
            by_member: MemberIndex::default(),
            names: Vec::new(),
            nodes: Vec::new(),
            nodes_bytes: 0,
            rows: 0,
        }
    }

    fn push(&mut self, row: BoardRow<'_>, has_scores: bool) -> std::result::Result<(), BuildError> {
        self.by_rank.push(row.rank, row.weight, row.payload)?;
        self.rows += 1;
        if has_scores {
            let key = member_key(row.member, row.board);
            self.by_member.push(&key, row.weight, row.score);
        }
        Ok(())
    }

    /// Adds the rows of pending members that precede a rank; all remaining ones if it is `None`.
    fn push_pending(
        &mut self,
        before: Option<&[u8]>,
        has_scores: bool,
    ) -> std::result::Result<(), BuildError> {
        while let Some(next) = self.pending_rows.pop() {
            if before.is_some_and(|rank| rank < next.rank.as_slice()) {
                self.pending_rows.push(next);
                break;
            }
            let row = BoardRow {
                rank: &next.rank,
                board: &next.entry.board,
                score: &next.entry.score,
                member: next.member,
                payload: &next.entry.payload,
                weight: next.entry.weight,
            };
            self.push(row, has_scores)?;
        }
        Ok(())
    }

    fn buffer(&mut self, nodes: Vec<(NodeId, bytes::Bytes)>) {
        for (name, bytes) in nodes {
            self.names.push(*name.as_bytes());
            self.nodes_bytes += bytes.len();
            self.nodes.push((*name.as_bytes(), bytes));
        }
    }

    /// Takes the buffered nodes.
    fn take_buffered(&mut self) -> KeyVersion {
        self.nodes_bytes = 0;
        KeyVersion {
            new: NewVersion {
                key: self.key.clone(),
                nodes: std::mem::take(&mut self.nodes),
                head: None,
                rewrites_nodes: false,
                drops_earlier_root: false,
            },
            rows: 0,
        }
    }
}

/// The rows of a key, to be sorted by member. They are in one buffer, since a key may have millions
/// of rows.
#[derive(Debug, Default)]
struct MemberIndex {
    bytes: Vec<u8>,
    rows: Vec<MemberRow>,
}

/// The positions of a row's key and score in the buffer.
#[derive(Debug, Clone, Copy)]
struct MemberRow {
    start: usize,
    score: usize,
    end: usize,
    weight: i64,
}

impl MemberIndex {
    fn push(&mut self, key: &[u8], weight: i64, score: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(score);
        self.rows.push(MemberRow {
            start,
            score: start + key.len(),
            end: self.bytes.len(),
            weight,
        });
    }

    fn sort(&mut self) {
        let key = |row: &MemberRow| self.bytes.get(row.start..row.score);
        self.rows
            .sort_unstable_by(|left, right| key(left).cmp(&key(right)));
    }

    fn rows(&self) -> impl Iterator<Item = (&[u8], i64, &[u8])> {
        self.rows.iter().filter_map(|row| {
            let key = self.bytes.get(row.start..row.score)?;
            Some((key, row.weight, self.bytes.get(row.score..row.end)?))
        })
    }
}

/// Returns the version of a key without entries.
pub(crate) fn build_empty(job: &Job<Board>, key: &[u8], options: VersionOptions) -> KeyVersion {
    let root = TreeBuilder::new(options.tree).finish().root;
    let members = (!job.score().0.is_empty()).then_some(root.as_ref());
    KeyVersion {
        new: NewVersion {
            key: key.to_vec(),
            nodes: Vec::new(),
            head: Some(NewHead {
                root: VersionTrees::encode(&root, members).into(),
                names: Vec::new(),
            }),
            rewrites_nodes: false,
            drops_earlier_root: false,
        },
        rows: 0,
    }
}

fn build_error(job: &Job<Board>, error: impl std::fmt::Display) -> Error {
    Error::Job(jobs::Error::Rows {
        job: job.name().to_owned(),
        reason: format!(
            "{error}; the query must return at most one row for each member of a board"
        ),
    })
}
