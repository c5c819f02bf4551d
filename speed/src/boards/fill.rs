//! The rows of a board that is to be cached: the batch layer's with the live states on top, read beside
//! the worker and handed to it in pieces.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jobs::board::{ReadError as BoardError, Section};
use jobs::{Board, Job};
use schemas::seam::{Epoch, Generation};
use stores::board_cache::{BoardRow, Registered};
use stores::live::{SlotId, StateQuery};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::SpeedPorts;
use crate::stored::{NodesError, StoredNodes, seam, standings};

/// Pieces that wait for the worker, at most.
const PIECES_WAITING: usize = 2;

/// What comes of the reading.
#[derive(Debug)]
pub(super) enum Filled {
    /// Some rows, of no member that came before; and the newest complete epoch.
    Rows(Vec<BoardRow>, Epoch),
    /// There are no more.
    All,
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
    pieces: mpsc::Receiver<Filled>,
    _reading: AbortOnDropHandle<()>,
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
        Self {
            board,
            touched: HashSet::new(),
            pieces,
            _reading: AbortOnDropHandle::new(tokio::spawn(reading.run())),
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
        let store = |error: stores::Error| BoardError::Store(NodesError::from(error));
        let damaged = |error: schemas::key::KeyError| BoardError::Damaged(error.to_string());
        let (source, view) = (self.slot.source, self.job.view());
        let runs = self.ports.views.runs(source).await.map_err(store)?;
        let newest = runs.newest.get(view).copied().unwrap_or(0);
        let cuts = runs.runs.get(newest).map_or(0, |run| run.cuts.len());
        if newest == 0 || cuts != self.partitions as usize {
            let why = "no run is complete that knows all partitions";
            return Ok(Filled::Not(why.to_owned()));
        }
        let query = StateQuery {
            view: view.to_owned(),
            key: self.key.clone(),
            partition: Some(self.slot.partition),
        };
        let partitions = self.slot.partition.saturating_add(1);
        let queries = [query];
        let read = self.ports.live.read_states(source, partitions, &queries);
        let answer = read.await.map_err(store)?;
        let own = answer.slots.get(self.slot.partition as usize);
        let own = own.and_then(Option::as_ref);
        if own.is_none_or(|slot| slot.generation != self.generation) {
            return Ok(Filled::Not("live state began anew".to_owned()));
        }
        let Some(states) = answer.states.first() else {
            return Ok(Filled::Not("no states were answered".to_owned()));
        };
        let seam = seam(view, &runs, &answer.slots, Some(self.slot.partition));
        let keys = [self.key.clone()];
        let heads = self.ports.views.heads(view, &keys).await.map_err(store)?;
        seam.check_table(heads.is_some())?;
        let head = heads.unwrap_or_default().into_iter().next().flatten();
        let mut epochs: HashMap<&[u8], Epoch> = HashMap::new();
        for (row, epoch) in states.epochs.values().iter().enumerate() {
            let newest = epochs.entry(states.members.value(row)).or_default();
            *newest = (*newest).max(*epoch);
        }
        let standings = standings(&seam, &self.job, head.as_ref(), Some(states))?;
        let nodes = StoredNodes {
            views: &*self.ports.views,
            known: None,
            view,
            key: &self.key,
        };
        let on_board = standings.board(&nodes, &self.section.board).await?;
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
                    piece.push(BoardRow {
                        epoch: epoch.copied().unwrap_or(0),
                        member: row.member,
                        score: row.score,
                        payload: row.payload,
                        weight: row.weight,
                    });
                }
            }
            passed += piece.len() as u64;
            if passed > self.rows_max {
                return Ok(Filled::TooLarge(passed));
            }
            if !piece.is_empty() && self.pieces.send(Filled::Rows(piece, newest)).await.is_err() {
                break;
            }
        }
        Ok(Filled::All)
    }
}
