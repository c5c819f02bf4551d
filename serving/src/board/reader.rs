//! The board reader: its question and context, and the read of the rows of one key.

use std::sync::Arc;

use jobs::board::{
    BoardSnapshot, FilteredBoard, KeyBoards, LiveEntry, RankedEntry, ReadError as BoardError,
};
use jobs::tree::{Node, NodeId, Nodes};
use jobs::{Board, Job};
use schemas::key::{KeyError, KeyValue};
use stores::board_cache::BoardSelection;
use stores::live::LiveStates;
use stores::views::{Head as StoredHead, NodeName, ViewsRead};
use tokio::sync::Semaphore;

use super::question::Section;
use super::reading::{BoardReading, FilteredRows, covers_member, index_range};
use super::recent_reads::RecentBoardReads;
use crate::options::ServingPorts;
use crate::read::ReadCaches;
use crate::read_error::ReadError;

/// Number of rows whose payloads are decoded at once.
const DECODE_ROWS: usize = 1024;

/// A question about the boards of some keys.
#[derive(Debug, Clone, Hash)]
pub(crate) struct BoardQuestion {
    pub(crate) keys: Vec<i64>,
    pub(crate) section: Section,
    /// Restricts the rows to these members.
    pub(crate) members: Option<Vec<i64>>,
    /// Wanted rows, with encoded members; the members of `Places` are sorted.
    pub(crate) want: BoardSelection,
    /// True if the answer explains the board and the wanted member.
    pub(crate) explains: bool,
}

/// Ports, caches and limits of board reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoardReadContext<'a> {
    pub(crate) ports: &'a ServingPorts,
    pub(crate) caches: &'a ReadCaches,
    pub(crate) reports: &'a RecentBoardReads,
    /// Permits of attempts, which bound memory.
    pub(crate) permits: &'a Semaphore,
}

pub(super) struct BoardReader<'a> {
    pub(super) ports: &'a ServingPorts,
    pub(super) job: &'a Arc<Job<Board>>,
    pub(super) question: &'a BoardQuestion,
    pub(super) caches: &'a ReadCaches,
    pub(super) reports: &'a RecentBoardReads,
    /// True to ignore cached run records.
    pub(super) refresh: bool,
    /// Key and head whose nodes were missing in the last attempt.
    missing_nodes: Option<(i64, StoredHead)>,
}

impl<'a> BoardReader<'a> {
    pub(super) const fn new(
        context: BoardReadContext<'a>,
        job: &'a Arc<Job<Board>>,
        question: &'a BoardQuestion,
    ) -> Self {
        Self {
            ports: context.ports,
            job,
            question,
            caches: context.caches,
            reports: context.reports,
            refresh: false,
            missing_nodes: None,
        }
    }
}

impl BoardReader<'_> {
    /// The section in its stored form.
    pub(super) fn section(&self) -> Result<FilteredBoard, ReadError> {
        let section = &self.question.section;
        let filters = section.filters.iter();
        Ok(FilteredBoard {
            board: self.job.board_columns().encode_values(&section.board)?,
            filters: filters
                .map(|(column, filter)| ((*column).to_owned(), filter.clone()))
                .collect(),
        })
    }

    /// True if live counts can answer: the question only asks for the size of the only board of
    /// each key.
    pub(super) fn asks_only_size(&self) -> bool {
        self.question.want == BoardSelection::TotalsOnly
            && !self.question.explains
            && self.question.members.is_none()
            && self.question.section.filters.is_empty()
            && self.job.has_live_counts()
    }

    /// Adds the view and key to an error. Missing nodes mean that the head was replaced; if the
    /// next attempt finds the same head, the nodes are lost.
    pub(super) fn annotate_error(
        &mut self,
        key: i64,
        head: Option<StoredHead>,
        error: ReadError,
    ) -> ReadError {
        let damaged =
            |what| ReadError::DamagedBoard(format!("view {}, key {key}: {what}", self.job.view()));
        match (error, head) {
            (ReadError::DamagedBoard(what), _) => damaged(what),
            (ReadError::Replaced, Some(head)) => {
                let epoch = head.epoch;
                let missing = Some((key, head));
                if self.missing_nodes == missing {
                    return damaged(format!(
                        "nodes of the boards of epoch {epoch} are missing, though their head was not replaced"
                    ));
                }
                self.missing_nodes = missing;
                ReadError::Replaced
            }
            (error, _) => error,
        }
    }

    pub(super) async fn read_board(
        &self,
        boards: &KeyBoards,
        nodes: &StoredNodes<'_>,
        want: &BoardSelection,
    ) -> Result<BoardReading, ReadError> {
        let section = self.section()?;
        let board = boards.board(nodes, &section.board).await?;
        if self.question.members.is_some() || !section.filters.is_empty() {
            return self.read_filtered(&section, &board, want).await;
        }
        let mut reading = BoardReading {
            sum: board.sum(),
            layers: board.layers(),
            ..BoardReading::default()
        };
        match want {
            BoardSelection::TotalsOnly | BoardSelection::Members(_) => {}
            BoardSelection::Page { offset, limit } => {
                reading.first_index = *offset;
                reading.rows = board.page(*offset, *limit).await?;
            }
            BoardSelection::After {
                score,
                member,
                limit,
            } => {
                reading.first_index = board.count_up_to(score, member).await?;
                reading.rows = board.page(reading.first_index, *limit).await?;
            }
            BoardSelection::MembersWithIndexes(members) => {
                let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
                let found = board.find_all(&members).await?;
                let (indexes, rows) = found.into_iter().unzip();
                (reading.indexes, reading.rows) = (Some(indexes), rows);
            }
            BoardSelection::Around { member, around } => {
                if let Some((index, _)) = board.find(member).await? {
                    let (first, length) = index_range(index, *around);
                    reading.member_index = Some(index);
                    reading.first_index = first;
                    reading.rows = board.page(first, length).await?;
                }
            }
        }
        Ok(reading)
    }

    /// Scans the rows that can match the filters, and collects the wanted ones.
    async fn read_filtered(
        &self,
        section: &FilteredBoard,
        board: &BoardSnapshot<'_, StoredNodes<'_>>,
        want: &BoardSelection,
    ) -> Result<BoardReading, ReadError> {
        let mut filtered = FilteredRows::new(want.clone());
        let members = self.encoded_members()?;
        let mut add = |rows: Vec<RankedEntry>| -> Result<(), KeyError> {
            for row in self.filter_rows(section, rows)? {
                let is_live = board.is_live(&row.member);
                filtered.add(row, is_live);
            }
            Ok(())
        };
        match &members {
            Some(members) => {
                let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
                add(board.members(&members).await?)?;
            }
            None => {
                let mut rows = Vec::with_capacity(DECODE_ROWS);
                let mut result = Ok(());
                board
                    .scan(|row| {
                        rows.push(row);
                        if rows.len() >= DECODE_ROWS {
                            result = add(std::mem::take(&mut rows));
                        }
                        result.is_ok()
                    })
                    .await?;
                result?;
                add(rows)?;
            }
        }
        if !filtered.reading.layers.1 {
            // A row that a newer state removed also contributed if it matched the filters.
            let is_covered = |member: &[u8]| covers_member(members.as_deref(), member);
            let removed = board.removed_entries(is_covered).await?;
            filtered.reading.layers.1 = !self.filter_rows(section, removed)?.is_empty();
        }
        Ok(filtered.finish())
    }

    pub(super) fn key_bytes(&self, key: i64) -> Result<Vec<u8>, KeyError> {
        self.job.key().encode_values(&[KeyValue::Int(key)])
    }

    /// The encoded members that the question is restricted to, if any.
    pub(super) fn encoded_members(&self) -> Result<Option<Vec<Vec<u8>>>, KeyError> {
        let members = self.question.members.as_deref();
        let members = members.map(|members| encode_members(self.job, members));
        members.transpose()
    }

    /// The rows that match all filters of a section.
    pub(super) fn filter_rows(
        &self,
        section: &FilteredBoard,
        rows: Vec<RankedEntry>,
    ) -> Result<Vec<RankedEntry>, KeyError> {
        let payloads = rows.iter().map(|row| row.payload.as_slice());
        let matches = section.matching(self.job.payload(), payloads)?;
        let mut matches = matches.into_iter();
        let filtered = rows.into_iter().filter(|_| matches.next() == Some(true));
        Ok(filtered.collect())
    }
}

/// Encodes members as they are stored.
pub(crate) fn encode_members(job: &Job<Board>, members: &[i64]) -> Result<Vec<Vec<u8>>, KeyError> {
    let encoded = |member: &i64| job.member().encode_values(&[KeyValue::Int(*member)]);
    members.iter().map(encoded).collect()
}

pub(super) fn live_states(states: &LiveStates) -> impl Iterator<Item = LiveEntry<'_>> {
    let keys = states
        .partitions
        .values()
        .iter()
        .zip(states.epochs.values());
    let values = states.members.iter().zip(states.states.iter());
    keys.zip(values)
        .map(|((partition, epoch), (member, state))| LiveEntry {
            partition: *partition as usize,
            epoch: *epoch,
            member: member.unwrap_or_default(),
            state,
        })
}

/// The nodes of one key.
#[derive(Debug)]
pub(super) struct StoredNodes<'a> {
    pub(super) views: &'a dyn ViewsRead,
    pub(super) view: &'a str,
    pub(super) key: &'a [u8],
}

/// Reason why nodes could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodesError {
    #[error(transparent)]
    Store(#[from] stores::Error),
    #[error(transparent)]
    Damaged(#[from] jobs::tree::TreeDamage),
}

impl Nodes for StoredNodes<'_> {
    type Error = NodesError;

    async fn nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, NodesError> {
        let names: Vec<NodeName> = ids.iter().map(|id| *id.as_bytes()).collect();
        let stored = self.views.nodes(self.view, self.key, &names).await?;
        stored
            .into_iter()
            .map(|bytes| {
                Ok(bytes
                    .map(|bytes| Node::decode(&bytes))
                    .transpose()?
                    .map(Arc::new))
            })
            .collect()
    }
}

impl From<BoardError<NodesError>> for ReadError {
    fn from(error: BoardError<NodesError>) -> Self {
        match error {
            BoardError::SeamMismatch(not_whole) => Self::SeamMismatch(not_whole),
            BoardError::Replaced => Self::Replaced,
            BoardError::Damaged(what) => Self::DamagedBoard(what),
            BoardError::Store(NodesError::Store(error)) => error.into(),
            BoardError::Store(NodesError::Damaged(error)) => Self::DamagedBoard(error.to_string()),
        }
    }
}
