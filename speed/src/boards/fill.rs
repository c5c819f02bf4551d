//! The rows of a board that is to be cached: the batch layer's with the live states on top, read beside
//! the worker and handed to it in pieces.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jobs::board::{OnBoard, ReadError as BoardError, Section};
use jobs::{Board, Job};
use schemas::key::KeyError;
use schemas::seam::{Epoch, Generation};
use stores::board_cache::{BoardRow, Registered};
use stores::live::{LiveRead, SlotId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::SpeedPorts;
use stored::boards::{NodesError, StoredNodes, laid};

/// Pieces that wait for the worker, at most.
const PIECES_WAITING: usize = 2;

/// What comes of the reading.
#[derive(Debug)]
pub(super) enum Filled {
    /// Some rows, of no member that came before.
    Rows(Vec<BoardRow>),
    /// There are no more; the last epoch in which a live state put one there or took one away, 0 if none
    /// did.
    All(Epoch),
    /// There are so many that they do not fit.
    TooLarge(u64),
    /// They can't be read now.
    Not(String),
}

/// A board that is being filled.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) board: Registered,
    /// Members that changed since it is in the register: what they have is there already.
    pub(super) touched: HashSet<Vec<u8>>,
    /// Pieces that were put into it.
    pub(super) steps: u64,
    pieces: mpsc::Receiver<Filled>,
    /// Ends when this is dropped.
    _reading: JoinSet<()>,
}

/// What is read.
struct Reading {
    slot: SlotId,
    generation: Generation,
    partitions: u32,
    ports: SpeedPorts,
    job: Arc<Job<Board>>,
    section: Section,
    key: Vec<u8>,
    /// Rows of one piece.
    piece_rows: usize,
    rows_max: u64,
    pieces: mpsc::Sender<Filled>,
}

impl Filling {
    /// Starts to read. The board is in the register already: what changes from now on is not missed.
    pub(super) fn start(
        (slot, generation, partitions): (SlotId, Generation, u32),
        ports: &SpeedPorts,
        (job, section, board): (Arc<Job<Board>>, Section, Registered),
        (piece_rows, rows_max): (usize, u64),
    ) -> Self {
        let (send, pieces) = mpsc::channel(PIECES_WAITING);
        let reading = Reading {
            slot,
            generation,
            partitions,
            ports: ports.clone(),
            job,
            section,
            key: board.name.key.clone(),
            piece_rows,
            rows_max,
            pieces: send,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(reading.run());
        Self {
            board,
            touched: HashSet::new(),
            steps: 0,
            pieces,
            _reading: tasks,
        }
    }

    /// What comes next. It may be dropped at any point.
    pub(super) async fn next(&mut self) -> Filled {
        let ended = || Filled::Not("its rows are not read any more".to_owned());
        self.pieces.recv().await.unwrap_or_else(ended)
    }
}

impl Reading {
    async fn run(self) {
        let last = match self.rows().await {
            Ok(last) => last,
            Err(error) => Filled::Not(error.to_string()),
        };
        // Who does not take it has another board to fill.
        drop(self.pieces.send(last).await);
    }

    async fn rows(&self) -> Result<Filled, BoardError<NodesError>> {
        let with = (&*self.ports.live as &dyn LiveRead, &*self.ports.views);
        let laid = laid(with, &self.job, self.slot, &self.key).await?;
        let view = self.job.view();
        let newest = laid.runs.newest.get(view).copied().unwrap_or(0);
        let cuts = laid.runs.runs.get(newest).map_or(0, |run| run.cuts.len());
        if newest == 0 || cuts != self.partitions as usize {
            let why = "no run is complete that knows all partitions";
            return Ok(Filled::Not(why.to_owned()));
        }
        let own = laid.slots.get(self.slot.partition as usize);
        let own = own.and_then(Option::as_ref);
        if own.is_none_or(|slot| slot.generation != self.generation) {
            return Ok(Filled::Not("live state began anew".to_owned()));
        }
        let mut epochs: HashMap<&[u8], Epoch> = HashMap::new();
        if let Some(states) = &laid.states {
            for (row, epoch) in states.epochs.values().iter().enumerate() {
                let newest = epochs.entry(states.members.value(row)).or_default();
                *newest = (*newest).max(*epoch);
            }
        }
        let nodes = StoredNodes::new(&*self.ports.views, view, &self.key);
        let on_board = laid.standings.board(&nodes, &self.section.board).await?;
        self.pieces(&on_board, &epochs).await
    }

    /// Hands the rows of a board on, as it stood when live states were read.
    async fn pieces(
        &self,
        on_board: &OnBoard<'_, StoredNodes<'_>>,
        epochs: &HashMap<&[u8], Epoch>,
    ) -> Result<Filled, BoardError<NodesError>> {
        let damaged = |error: KeyError| BoardError::Damaged(error.to_string());
        let count = on_board.sum().count;
        if self.section.tests.is_empty() && count > self.rows_max {
            return Ok(Filled::TooLarge(count));
        }
        let (mut offset, mut passed) = (0, 0);
        while offset < count {
            let rows = on_board.page(offset, self.piece_rows).await?;
            if rows.is_empty() {
                break;
            }
            offset += rows.len() as u64;
            let payloads = rows.iter().map(|row| row.payload.as_slice());
            let passing = self.section.passing(self.job.payload(), payloads);
            let passing = passing.map_err(damaged)?;
            let mut piece = Vec::with_capacity(rows.len());
            for (row, passes) in rows.into_iter().zip(passing) {
                if passes {
                    let is_live = on_board.is_live(&row.member);
                    let epoch = epochs.get(row.member.as_slice()).filter(|_| is_live);
                    let payload = self.job.shown_of(&row.payload);
                    let payload = payload.map_err(damaged)?;
                    piece.push(BoardRow {
                        epoch: epoch.copied().unwrap_or(0),
                        member: row.member,
                        score: row.score,
                        payload,
                        weight: row.weight,
                    });
                }
            }
            passed += piece.len() as u64;
            if passed > self.rows_max {
                return Ok(Filled::TooLarge(passed));
            }
            if !piece.is_empty() && self.pieces.send(Filled::Rows(piece)).await.is_err() {
                break;
            }
        }
        let newest = epochs.values().max().copied().unwrap_or(0);
        Ok(Filled::All(if on_board.layers().1 { newest } else { 0 }))
    }
}
