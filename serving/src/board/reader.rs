//! The board reader: its request and context, and the read of the rows of one key.

use std::sync::Arc;

use jobs::board::{BoardSnapshot, FilteredBoard, KeyBoards, RankedEntry, ReadError as BoardError};
use jobs::{Board, Job};
use schemas::key::{KeyError, KeyValue};
use stores::board_cache::BoardSelection;
use stores::boards::{NodesError, StoredNodes};
use stores::views::Head as StoredHead;
use tokio::sync::Semaphore;

use super::divisions::RequestedBoard;
use super::reading::{BoardReading, FilteredRows, covers_member, index_range};
use super::recent_reads::RecentBoardReads;
use crate::options::ServingPorts;
use crate::read::ReadCaches;
use crate::read_error::ReadError;

/// Number of rows whose payloads are decoded at once.
const DECODE_ROWS: usize = 1024;

/// A request to read the boards of some keys.
#[derive(Debug, Clone, Hash)]
pub(crate) struct BoardReadRequest {
    pub(crate) keys: Vec<i64>,
    pub(crate) board: RequestedBoard,
    /// Restricts the rows to these members.
    pub(crate) members: Option<Vec<i64>>,
    /// Selects the rows, with encoded members; those of `MembersWithIndexes` are sorted.
    pub(crate) selection: BoardSelection,
    /// True if the answer explains the board and the selected member.
    pub(crate) explains: bool,
}

/// Ports, caches and limits of board reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoardReadContext<'a> {
    pub(crate) ports: &'a ServingPorts,
    pub(crate) caches: &'a ReadCaches,
    pub(crate) recent_reads: &'a RecentBoardReads,
    /// Permits of attempts, which bound memory.
    pub(crate) permits: &'a Semaphore,
}

pub(super) struct BoardReader<'a> {
    pub(super) ports: &'a ServingPorts,
    pub(super) job: &'a Arc<Job<Board>>,
    pub(super) request: &'a BoardReadRequest,
    pub(super) caches: &'a ReadCaches,
    pub(super) recent_reads: &'a RecentBoardReads,
    /// True to ignore cached run records.
    pub(super) ignores_cache: bool,
    /// Key and head whose nodes were missing in the last attempt.
    missing_nodes: Option<(i64, StoredHead)>,
}

impl<'a> BoardReader<'a> {
    pub(super) const fn new(
        context: BoardReadContext<'a>,
        job: &'a Arc<Job<Board>>,
        request: &'a BoardReadRequest,
    ) -> Self {
        Self {
            ports: context.ports,
            job,
            request,
            caches: context.caches,
            recent_reads: context.recent_reads,
            ignores_cache: false,
            missing_nodes: None,
        }
    }
}

impl BoardReader<'_> {
    /// Encodes the requested board as it is stored.
    pub(super) fn encode_board(&self) -> Result<FilteredBoard, ReadError> {
        let requested = &self.request.board;
        let filters = requested.filters.iter();
        Ok(FilteredBoard {
            board: self.job.board_columns().encode_values(&requested.columns)?,
            filters: filters
                .map(|(column, filter)| ((*column).to_owned(), filter.clone()))
                .collect(),
        })
    }

    /// True if live counts can answer: the request selects only the size of the only board of
    /// each key.
    pub(super) fn selects_only_size(&self) -> bool {
        self.request.selection == BoardSelection::TotalsOnly
            && !self.request.explains
            && self.request.members.is_none()
            && self.request.board.filters.is_empty()
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
        let view = self.job.view();
        let damaged = |reason| ReadError::DamagedBoard(format!("view {view}, key {key}: {reason}"));
        match (error, head) {
            (ReadError::DamagedBoard(reason), _) => damaged(reason),
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

    /// Reads the selected rows of the requested board.
    pub(super) async fn read_board(
        &self,
        boards: &KeyBoards,
        nodes: &StoredNodes<'_>,
        selection: &BoardSelection,
    ) -> Result<BoardReading, ReadError> {
        let filtered_board = self.encode_board()?;
        let board = boards.open_board(nodes, &filtered_board.board).await?;
        if self.request.members.is_some() || !filtered_board.filters.is_empty() {
            return self.read_filtered(&filtered_board, &board, selection).await;
        }
        let mut reading = BoardReading {
            sum: board.sum(),
            layers: board.contributing_layers(),
            ..BoardReading::default()
        };
        match selection {
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
                let indexed_rows = board.find_all(&members).await?;
                let (indexes, rows) = indexed_rows.into_iter().unzip();
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

    /// Scans the rows that can match the filters, and collects the selected ones.
    async fn read_filtered(
        &self,
        filtered_board: &FilteredBoard,
        board: &BoardSnapshot<'_, StoredNodes<'_>>,
        selection: &BoardSelection,
    ) -> Result<BoardReading, ReadError> {
        let mut filtered = FilteredRows::new(selection.clone());
        let members = self.encode_requested_members()?;
        let mut add = |rows: Vec<RankedEntry>| -> Result<(), KeyError> {
            for row in self.filter_rows(filtered_board, rows)? {
                let is_live = board.has_live_entry(&row.member);
                filtered.add(row, is_live);
            }
            Ok(())
        };
        match &members {
            Some(members) => {
                let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
                add(board.find_members(&members).await?)?;
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
            // A row that a newer live entry removed also contributed if it matched the filters.
            let is_covered = |member: &[u8]| covers_member(members.as_deref(), member);
            let removed = board.removed_entries(is_covered).await?;
            filtered.reading.layers.1 = !self.filter_rows(filtered_board, removed)?.is_empty();
        }
        Ok(filtered.finish())
    }

    pub(super) fn encode_key(&self, key: i64) -> Result<Vec<u8>, KeyError> {
        self.job.key().encode_values(&[KeyValue::Int(key)])
    }

    /// Encodes the members that the request is restricted to, if any.
    pub(super) fn encode_requested_members(&self) -> Result<Option<Vec<Vec<u8>>>, KeyError> {
        let members = self.request.members.as_deref();
        let members = members.map(|members| encode_members(self.job, members));
        members.transpose()
    }

    /// Returns the rows that match all filters.
    pub(super) fn filter_rows(
        &self,
        filtered_board: &FilteredBoard,
        rows: Vec<RankedEntry>,
    ) -> Result<Vec<RankedEntry>, KeyError> {
        let payloads = rows.iter().map(|row| row.payload.as_slice());
        let matches = filtered_board.match_payloads(self.job.payload(), payloads)?;
        let mut matches = matches.into_iter();
        let filtered = rows.into_iter().filter(|_| matches.next() == Some(true));
        Ok(filtered.collect())
    }
}

/// Encodes members as they are stored.
pub(crate) fn encode_members(job: &Job<Board>, members: &[i64]) -> Result<Vec<Vec<u8>>, KeyError> {
    let encode = |member: &i64| job.member().encode_values(&[KeyValue::Int(*member)]);
    members.iter().map(encode).collect()
}

impl From<BoardError<NodesError>> for ReadError {
    fn from(error: BoardError<NodesError>) -> Self {
        match error {
            BoardError::SeamMismatch(mismatch) => Self::SeamMismatch(mismatch),
            BoardError::Replaced => Self::Replaced,
            BoardError::Damaged(reason) => Self::DamagedBoard(reason),
            BoardError::Store(NodesError::Store(error)) => error.into(),
            BoardError::Store(NodesError::Damaged(error)) => Self::DamagedBoard(error.to_string()),
        }
    }
}
