//! A cached board beside what it is a copy of: some of its rows are compared now and then.

use bytes::Bytes;
use jobs::board::{OnBoard, Ranked, ReadError as BoardError};
use jobs::{Board, Job};
use schemas::key::KeyError;
use schemas::seam::{Fence, Offset, Slot};
use stores::board_cache::{
    BoardCache, BoardName, BoardQuery, BoardRow, BoardWant, Cached, CachedBoard,
};
use stores::live::LiveRead;

use super::entries::Entry;
use super::{Boards, Stepped};
use crate::Result;
use stored::boards::{NodesError, StoredNodes, laid};

/// Rows that are compared at once.
const ROWS: usize = 64;
/// Steps through places that are looked at: a prime, so that they are spread.
const STRIDE: u64 = 7_919;

/// A board that differed from what it is a copy of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Suspect {
    id: String,
    /// The root of the batch rows that it differed from.
    root: Bytes,
    /// Where the log ended then.
    log_end: Offset,
}

impl Boards {
    /// Compares some rows of one board, and drops it if they differ.
    ///
    /// A run's snapshot may be newer than the slot's position: then batch rows hold what the board does not
    /// have yet. So a difference counts if the same batch rows still differ once the speed layer has come
    /// to where the log ended when they were first seen to.
    pub(super) async fn check(&mut self, cache: &dyn BoardCache, fence: Fence) -> Result<Stepped> {
        let suspect = self.suspect.as_ref();
        if suspect.is_some_and(|suspect| fence.next_offset < suspect.log_end) {
            return Ok(Stepped::Idle);
        }
        let filled: Vec<&Entry> = self
            .entries
            .all()
            .filter(|entry| entry.board.bytes.is_some())
            .collect();
        let at = self.checks % (filled.len().max(1) as u64);
        let Some(entry) = filled.get(usize::try_from(at).unwrap_or(0)) else {
            return Ok(Stepped::Idle);
        };
        let board = entry.board.clone();
        let wrong = match self.compare(cache, fence, entry).await {
            Ok(wrong) => wrong,
            // What can't be compared now is compared another time.
            Err(error) => {
                tracing::debug!(%error, "a cached board could not be checked");
                None
            }
        };
        let suspect = self.suspect.take();
        let Some((wrong, root)) = wrong else {
            self.checks = self.checks.wrapping_add(1);
            self.measure_one(cache, &board).await;
            return Ok(Stepped::Idle);
        };
        if suspect.is_none_or(|suspect| suspect.id != board.id || suspect.root != root) {
            let topic = self.slot.source.topic();
            let log_end = self.ports.log.end(topic, self.slot.partition).await?;
            let id = board.id;
            self.suspect = Some(Suspect { id, root, log_end });
            return Ok(Stepped::Idle);
        }
        self.checks = self.checks.wrapping_add(1);
        tracing::error!(
            view = board.name.view,
            wrong,
            "a cached board is not what it is a copy of; it is dropped, and filled anew when it is asked for"
        );
        self.count("backstitch_speed_cached_boards_wrong_total");
        self.drop_these(fence, &[board]).await?;
        Ok(Stepped::More)
    }

    /// Drops a board that a reader did not find, if its keys are gone.
    pub(super) async fn look_for(
        &mut self,
        cache: &dyn BoardCache,
        fence: Fence,
        name: &BoardName,
    ) -> Result<Stepped> {
        let Some(board) = self.entries.get(name).map(|entry| entry.board.clone()) else {
            return Ok(Stepped::More);
        };
        let query = BoardQuery {
            name: name.clone(),
            partition: self.slot.partition,
            score_bytes: 0,
            want: BoardWant::Sums,
        };
        let mut read = cache.read_boards(self.slot.source, &[query]).await?;
        let is_gone = read.pop().is_some_and(|read| {
            let is_here = read.slot.is_some_and(|slot| slot.fence() == fence);
            is_here && read.board == Cached::Not
        });
        if !is_gone {
            return Ok(Stepped::More);
        }
        tracing::error!(
            view = name.view,
            "the keys of a cached board are gone; it is filled anew when it is asked for"
        );
        self.count("backstitch_speed_cached_boards_wrong_total");
        self.drop_these(fence, &[board]).await?;
        Ok(Stepped::More)
    }

    /// What differs in a cached board, and the root of the batch rows that it was compared with; nothing
    /// if all that was compared is the same.
    async fn compare(
        &self,
        cache: &dyn BoardCache,
        fence: Fence,
        entry: &Entry,
    ) -> Result<Option<(String, Bytes)>, BoardError<NodesError>> {
        let store = |error: stores::Error| BoardError::Store(NodesError::from(error));
        let name = &entry.board.name;
        let Some(job) = self.jobs.iter().find(|job| job.view() == name.view) else {
            return Ok(None);
        };
        let (source, partition) = (self.slot.source, self.slot.partition);
        let is_here = |slot: Option<&Slot>| slot.is_some_and(|slot| slot.fence() == fence);
        let with = (&*self.ports.live as &dyn LiveRead, &*self.ports.views);
        let laid = laid(with, job, self.slot, &name.key).await?;
        let nodes = StoredNodes::new(&*self.ports.views, &name.view, &name.key);
        let on_board = laid.standings.board(&nodes, &entry.section.board).await?;
        let sum = on_board.sum();
        let offset = self.checks.wrapping_mul(STRIDE) % sum.count.max(1);
        // Some rows of the board must be in the cache; those in the cache at some place must be of the
        // board, and if nothing is filtered at the same place.
        let mut expected = on_board.page(offset, ROWS).await?;
        let members = expected.iter().map(|row| row.member.clone()).collect();
        let page = BoardWant::Page {
            offset,
            limit: ROWS,
        };
        let mut cached = Vec::new();
        for want in [BoardWant::Members(members), page] {
            let query = BoardQuery {
                name: name.clone(),
                partition,
                score_bytes: 8 * job.score().0.len(),
                want,
            };
            let queries = [query];
            let read = cache.read_boards(source, &queries).await;
            let Some(read) = read.map_err(store)?.pop() else {
                return Ok(None);
            };
            // What changed in between can't be compared.
            if !is_here(read.slot.as_ref()) {
                return Ok(None);
            }
            match read.board {
                Cached::Board(board) => cached.push(board),
                _ => return Ok(Some(("it is not there".to_owned(), laid.root))),
            }
        }
        let own = laid.slots.get(partition as usize).and_then(Option::as_ref);
        let is_still = is_here(own);
        let (Some(placed), Some(found), true) = (cached.pop(), cached.pop(), is_still) else {
            return Ok(None);
        };
        let payloads = expected.iter().map(|row| row.payload.as_slice());
        let passing = entry.section.passing(job.payload(), payloads);
        let passing = passing.map_err(damaged)?;
        strip(job, &mut expected)?;
        let wrong = if !has(&found, &expected, &passing) {
            Some(format!("the row at place {offset} or soon after"))
        } else if entry.section.tests.is_empty() {
            let is_right = (placed.count, placed.weight) == (sum.count, sum.weight)
                && are_same(&placed.rows, &expected);
            (!is_right).then(|| "its rows by place, or its sums".to_owned())
        } else {
            is_of(job, &on_board, &placed).await?
        };
        Ok(wrong.map(|wrong| (wrong, laid.root)))
    }
}

/// Whether those of some rows that pass are in the cache as they are, and no others.
fn has(found: &CachedBoard, expected: &[Ranked], passing: &[bool]) -> bool {
    expected.iter().zip(passing).all(|(row, passes)| {
        let cached = found.rows.iter().find(|cached| cached.member == row.member);
        match cached {
            Some(cached) => *passes && is_same(cached, row),
            None => !passes,
        }
    })
}

/// What is wrong if rows of a cached board are none of the board that it is a part of.
async fn is_of(
    job: &Job<Board>,
    on_board: &OnBoard<'_, StoredNodes<'_>>,
    placed: &CachedBoard,
) -> Result<Option<String>, BoardError<NodesError>> {
    let members: Vec<&[u8]> = placed
        .rows
        .iter()
        .map(|row| row.member.as_slice())
        .collect();
    let mut rows = on_board.members(&members).await?;
    strip(job, &mut rows)?;
    for cached in &placed.rows {
        let row = rows.iter().find(|row| row.member == cached.member);
        if !row.is_some_and(|row| is_same(cached, row)) {
            return Ok(Some("a row that the board does not have".to_owned()));
        }
    }
    Ok(None)
}

fn damaged(error: KeyError) -> BoardError<NodesError> {
    BoardError::Damaged(error.to_string())
}

fn are_same(cached: &[BoardRow], rows: &[Ranked]) -> bool {
    let mut pairs = cached.iter().zip(rows);
    cached.len() == rows.len() && pairs.all(|(cached, row)| is_same(cached, row))
}

/// Takes away what cached rows do not have: what is filtered by.
fn strip(job: &Job<Board>, rows: &mut [Ranked]) -> Result<(), BoardError<NodesError>> {
    for row in rows {
        row.payload = job.shown_of(&row.payload).map_err(damaged)?;
    }
    Ok(())
}

fn is_same(cached: &BoardRow, row: &Ranked) -> bool {
    (
        &cached.member,
        &cached.score,
        &cached.payload,
        cached.weight,
    ) == (&row.member, &row.score, &row.payload, row.weight)
}
