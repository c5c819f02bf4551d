//! Reads the rows of a board for the cache: batch rows with live entries on top. A separate task
//! reads the rows and sends them to the worker in batches.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jobs::board::{BoardSnapshot, FilteredBoard, ReadError as BoardError};
use jobs::{Board, Job};
use schemas::key::KeyError;
use schemas::seam::{Epoch, Generation};
use stores::board_cache::{BoardRow, RegisteredBoard};
use stores::boards::{NodesError, StoredNodes, load_boards};
use stores::live::{LiveRead, PartitionId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::SpeedPorts;

/// Maximum batches that wait for the worker.
const QUEUED_BATCHES_MAX: usize = 2;

/// A step of a fill.
#[derive(Debug)]
pub(super) enum FillStep {
    /// Rows of members that did not occur before.
    Rows(Vec<BoardRow>),
    /// All rows were read. Holds the last epoch in which a live entry added or removed a row, or 0.
    Done(Epoch),
    /// The board has too many rows for the cache.
    TooLarge(u64),
    /// The rows cannot be read now.
    Failed(String),
}

/// A board that is being filled.
#[derive(Debug)]
pub(super) struct BoardFill {
    pub(super) board: RegisteredBoard,
    /// Members that changed since the board was registered. Their rows are already in the cache.
    pub(super) changed_members: HashSet<Vec<u8>>,
    /// Number of batches in the cache.
    pub(super) cached_batches: u64,
    batches: mpsc::Receiver<FillStep>,
    /// Stops when this value is dropped.
    _reader: JoinSet<()>,
}

/// A board to read, and the state in which its read is valid.
pub(super) struct FillRequest {
    pub(super) id: PartitionId,
    pub(super) generation: Generation,
    pub(super) partitions: u32,
    pub(super) job: Arc<Job<Board>>,
    pub(super) filtered_board: FilteredBoard,
    pub(super) board: RegisteredBoard,
    /// Rows per batch.
    pub(super) batch_rows: usize,
    pub(super) rows_max: u64,
}

/// Reads one board.
struct FillReader {
    id: PartitionId,
    generation: Generation,
    partitions: u32,
    ports: SpeedPorts,
    job: Arc<Job<Board>>,
    filtered_board: FilteredBoard,
    key: Vec<u8>,
    /// Rows per batch.
    batch_rows: usize,
    rows_max: u64,
    batches: mpsc::Sender<FillStep>,
}

impl BoardFill {
    /// Starts the task. The board is already registered, so no later change is missed.
    pub(super) fn start(ports: &SpeedPorts, request: FillRequest) -> Self {
        let FillRequest {
            id,
            generation,
            partitions,
            job,
            filtered_board,
            board,
            batch_rows,
            rows_max,
        } = request;
        let (sender, batches) = mpsc::channel(QUEUED_BATCHES_MAX);
        let reader = FillReader {
            id,
            generation,
            partitions,
            ports: ports.clone(),
            job,
            filtered_board,
            key: board.name.key.clone(),
            batch_rows,
            rows_max,
            batches: sender,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(reader.run());
        Self {
            board,
            changed_members: HashSet::new(),
            cached_batches: 0,
            batches,
            _reader: tasks,
        }
    }

    /// Waits for the next step. Cancel safe.
    pub(super) async fn next(&mut self) -> FillStep {
        let ended = || FillStep::Failed("the reader stopped".to_owned());
        self.batches.recv().await.unwrap_or_else(ended)
    }
}

impl FillReader {
    async fn run(self) {
        let final_step = match self.read_rows().await {
            Ok(final_step) => final_step,
            Err(error) => FillStep::Failed(error.to_string()),
        };
        // If the receiver was dropped, the worker fills another board.
        drop(self.batches.send(final_step).await);
    }

    async fn read_rows(&self) -> Result<FillStep, BoardError<NodesError>> {
        let (live, views) = (&*self.ports.live as &dyn LiveRead, &*self.ports.views);
        let loaded = load_boards(live, views, &self.job, self.id, &self.key).await?;
        let view = self.job.view();
        let newest_epoch = loaded.runs.complete_epochs.get(view).copied().unwrap_or(0);
        let cut_count = loaded
            .runs
            .runs
            .get(newest_epoch)
            .map_or(0, |run| run.cuts.len());
        if newest_epoch == 0 || cut_count != self.partitions as usize {
            let reason = "no complete run covers all partitions";
            return Ok(FillStep::Failed(reason.to_owned()));
        }
        let own_state = loaded.partition_states.get(self.id.partition as usize);
        let own_state = own_state.and_then(Option::as_ref);
        if own_state.is_none_or(|state| state.generation != self.generation) {
            return Ok(FillStep::Failed("live state was rebuilt".to_owned()));
        }
        let mut epochs: HashMap<&[u8], Epoch> = HashMap::new();
        if let Some(live_entries) = &loaded.live_entries {
            for (row, epoch) in live_entries.epochs.values().iter().enumerate() {
                let member_epoch = epochs.entry(live_entries.members.value(row)).or_default();
                *member_epoch = (*member_epoch).max(*epoch);
            }
        }
        let nodes = StoredNodes::new(&*self.ports.views, view, &self.key);
        let board = loaded
            .key_boards
            .open_board(&nodes, &self.filtered_board.board)
            .await?;
        self.send_batches(&board, &epochs).await
    }

    /// Sends the rows of a board as of the read of its live entries.
    async fn send_batches(
        &self,
        board: &BoardSnapshot<'_, StoredNodes<'_>>,
        epochs: &HashMap<&[u8], Epoch>,
    ) -> Result<FillStep, BoardError<NodesError>> {
        let damaged_error = |error: KeyError| BoardError::Damaged(error.to_string());
        let count = board.sum().count;
        if self.filtered_board.filters.is_empty() && count > self.rows_max {
            return Ok(FillStep::TooLarge(count));
        }
        let (mut offset, mut sent_rows) = (0, 0);
        while offset < count {
            let rows = board.page(offset, self.batch_rows).await?;
            if rows.is_empty() {
                break;
            }
            offset += rows.len() as u64;
            let payloads = rows.iter().map(|row| row.payload.as_slice());
            let matching = self
                .filtered_board
                .match_payloads(self.job.payload(), payloads);
            let matching = matching.map_err(damaged_error)?;
            let mut batch = Vec::with_capacity(rows.len());
            for (row, is_match) in rows.into_iter().zip(matching) {
                if is_match {
                    let is_live = board.has_live_entry(&row.member);
                    let epoch = epochs.get(row.member.as_slice()).filter(|_| is_live);
                    let payload = self.job.without_filter_columns(&row.payload);
                    let payload = payload.map_err(damaged_error)?;
                    batch.push(BoardRow {
                        epoch: epoch.copied().unwrap_or(0),
                        member: row.member,
                        score: row.score,
                        payload,
                        weight: row.weight,
                    });
                }
            }
            sent_rows += batch.len() as u64;
            if sent_rows > self.rows_max {
                return Ok(FillStep::TooLarge(sent_rows));
            }
            if !batch.is_empty() && self.batches.send(FillStep::Rows(batch)).await.is_err() {
                break;
            }
        }
        let newest_epoch = epochs.values().max().copied().unwrap_or(0);
        let (_, has_live) = board.contributing_layers();
        Ok(FillStep::Done(if has_live { newest_epoch } else { 0 }))
    }
}
