//! Periodically compares some rows of a cached board with the board itself.

use bytes::Bytes;
use jobs::board::{BoardSnapshot, RankedEntry, ReadError as BoardError};
use jobs::{Board, Job};
use schemas::key::KeyError;
use schemas::seam::{Checkpoint, PartitionState};
use stores::board_cache::{
    BoardCache, BoardName, BoardQuery, BoardRow, BoardSelection, CacheLookup, CachedBoard,
};
use stores::live::LiveRead;

use super::known::KnownBoard;
use super::mismatch::SuspectedMismatch;
use super::{Boards, StepOutcome};
use crate::Result;
use stored::boards::{NodesError, StoredNodes, load_boards};

/// Rows per comparison.
const ROWS: usize = 64;
/// Step between compared positions. It is a prime, so that the positions spread over the board.
const OFFSET_STRIDE: u64 = 7_919;

impl Boards {
    /// Compares some rows of one board, and drops it if they differ.
    ///
    /// The snapshot of a run may be newer than the partition state. Then batch rows contain changes
    /// that the cached board does not have yet. So a difference counts only if the same batch rows
    /// still differ after the worker reached the end of the log as of the first comparison.
    pub(super) async fn check(
        &mut self,
        cache: &dyn BoardCache,
        checkpoint: Checkpoint,
    ) -> Result<StepOutcome> {
        let suspect = self.suspect.as_ref();
        if suspect.is_some_and(|suspect| checkpoint.next_offset < suspect.log_end) {
            return Ok(StepOutcome::Idle);
        }
        let filled: Vec<&KnownBoard> = self
            .known
            .all()
            .filter(|known| known.board.bytes.is_some())
            .collect();
        let at = self.checks % (filled.len().max(1) as u64);
        let Some(known) = filled.get(usize::try_from(at).unwrap_or(0)) else {
            return Ok(StepOutcome::Idle);
        };
        let board = known.board.clone();
        let difference = match self.compare(cache, checkpoint, known).await {
            Ok(difference) => difference,
            // A later step repeats a failed comparison.
            Err(error) => {
                tracing::debug!(%error, "cannot check a cached board");
                None
            }
        };
        let suspect = self.suspect.take();
        let Some((difference, root)) = difference else {
            self.checks = self.checks.wrapping_add(1);
            self.measure(cache, &board).await;
            return Ok(StepOutcome::Idle);
        };
        if suspect.is_none_or(|suspect| suspect.id != board.id || suspect.root != root) {
            let topic = self.id.source.topic();
            let log_end = self.ports.log.end(topic, self.id.partition).await?;
            let id = board.id;
            self.suspect = Some(SuspectedMismatch { id, root, log_end });
            return Ok(StepOutcome::Idle);
        }
        self.checks = self.checks.wrapping_add(1);
        tracing::error!(
            view = board.name.view,
            difference,
            "a cached board differs from its source; it is dropped, and filled again on the next request"
        );
        self.count("backstitch_speed_cached_boards_wrong_total");
        self.drop_boards(checkpoint, &[board]).await?;
        Ok(StepOutcome::More)
    }

    /// Drops a known board if its keys are missing from the cache. Called after a reader did not
    /// find it.
    pub(super) async fn confirm_exists(
        &mut self,
        cache: &dyn BoardCache,
        checkpoint: Checkpoint,
        name: &BoardName,
    ) -> Result<StepOutcome> {
        let Some(board) = self.known.get(name).map(|known| known.board.clone()) else {
            return Ok(StepOutcome::More);
        };
        let query = BoardQuery {
            name: name.clone(),
            partition: self.id.partition,
            score_bytes: 0,
            selection: BoardSelection::TotalsOnly,
        };
        let mut read = cache.read_boards(self.id.source, &[query]).await?;
        let is_missing = read.pop().is_some_and(|read| {
            let is_current = read
                .state
                .is_some_and(|state| state.checkpoint() == checkpoint);
            is_current && read.board == CacheLookup::Absent
        });
        if !is_missing {
            return Ok(StepOutcome::More);
        }
        tracing::error!(
            view = name.view,
            "the keys of a cached board are missing; it is filled again on the next request"
        );
        self.count("backstitch_speed_cached_boards_wrong_total");
        self.drop_boards(checkpoint, &[board]).await?;
        Ok(StepOutcome::More)
    }

    /// Returns a difference and the root of the compared batch rows, or `None` if all compared rows
    /// are equal.
    async fn compare(
        &self,
        cache: &dyn BoardCache,
        checkpoint: Checkpoint,
        known: &KnownBoard,
    ) -> Result<Option<(String, Bytes)>, BoardError<NodesError>> {
        let store = |error: stores::Error| BoardError::Store(NodesError::from(error));
        let name = &known.board.name;
        let Some(job) = self.jobs.iter().find(|job| job.view() == name.view) else {
            return Ok(None);
        };
        let (source, partition) = (self.id.source, self.id.partition);
        let is_current = |state: Option<&PartitionState>| {
            state.is_some_and(|state| state.checkpoint() == checkpoint)
        };
        let (live, views) = (&*self.ports.live as &dyn LiveRead, &*self.ports.views);
        let loaded = load_boards(live, views, job, self.id, &name.key).await?;
        let nodes = StoredNodes::new(&*self.ports.views, &name.view, &name.key);
        let on_board = loaded
            .key_boards
            .board(&nodes, &known.section.board)
            .await?;
        let sum = on_board.sum();
        let offset = self.checks.wrapping_mul(OFFSET_STRIDE) % sum.count.max(1);
        // The compared rows of the board must be in the cache. The cached rows at the same
        // positions must be on the board, and without filters at the same positions.
        let mut expected = on_board.page(offset, ROWS).await?;
        let members = expected.iter().map(|row| row.member.clone()).collect();
        let page = BoardSelection::Page {
            offset,
            limit: ROWS,
        };
        let mut cached = Vec::new();
        for want in [BoardSelection::Members(members), page] {
            let query = BoardQuery {
                name: name.clone(),
                partition,
                score_bytes: 8 * job.score().0.len(),
                selection: want,
            };
            let queries = [query];
            let read = cache.read_boards(source, &queries).await;
            let Some(read) = read.map_err(store)?.pop() else {
                return Ok(None);
            };
            // A change during the comparison invalidates it.
            if !is_current(read.state.as_ref()) {
                return Ok(None);
            }
            match read.board {
                CacheLookup::Board(board) => cached.push(board),
                _ => return Ok(Some(("it is missing".to_owned(), loaded.root))),
            }
        }
        let own = loaded
            .partition_states
            .get(partition as usize)
            .and_then(Option::as_ref);
        let is_unchanged = is_current(own);
        let (Some(page), Some(found), true) = (cached.pop(), cached.pop(), is_unchanged) else {
            return Ok(None);
        };
        let payloads = expected.iter().map(|row| row.payload.as_slice());
        let matches = known.section.matching(job.payload(), payloads);
        let matches = matches.map_err(damaged)?;
        remove_filter_columns(job, &mut expected)?;
        let difference = if !matches_cache(&found, &expected, &matches) {
            Some(format!("a row at or after position {offset}"))
        } else if known.section.filters.is_empty() {
            let is_right = (page.count, page.weight) == (sum.count, sum.weight)
                && are_equal(&page.rows, &expected);
            (!is_right).then(|| "its rows by position, or its totals".to_owned())
        } else {
            find_foreign_row(job, &on_board, &page).await?
        };
        Ok(difference.map(|difference| (difference, loaded.root)))
    }
}

/// Returns whether the cache contains exactly those of the rows that match the filters.
fn matches_cache(found: &CachedBoard, expected: &[RankedEntry], matches: &[bool]) -> bool {
    expected.iter().zip(matches).all(|(row, is_match)| {
        let cached = found.rows.iter().find(|cached| cached.member == row.member);
        match cached {
            Some(cached) => *is_match && is_equal(cached, row),
            None => !is_match,
        }
    })
}

/// Returns a description of the problem if a cached row is not on the board.
async fn find_foreign_row(
    job: &Job<Board>,
    on_board: &BoardSnapshot<'_, StoredNodes<'_>>,
    page: &CachedBoard,
) -> Result<Option<String>, BoardError<NodesError>> {
    let members: Vec<&[u8]> = page.rows.iter().map(|row| row.member.as_slice()).collect();
    let mut rows = on_board.members(&members).await?;
    remove_filter_columns(job, &mut rows)?;
    for cached in &page.rows {
        let row = rows.iter().find(|row| row.member == cached.member);
        if !row.is_some_and(|row| is_equal(cached, row)) {
            return Ok(Some("a row that is not on the board".to_owned()));
        }
    }
    Ok(None)
}

fn damaged(error: KeyError) -> BoardError<NodesError> {
    BoardError::Damaged(error.to_string())
}

fn are_equal(cached: &[BoardRow], rows: &[RankedEntry]) -> bool {
    let mut pairs = cached.iter().zip(rows);
    cached.len() == rows.len() && pairs.all(|(cached, row)| is_equal(cached, row))
}

/// Removes the columns that cached rows do not have.
fn remove_filter_columns(
    job: &Job<Board>,
    rows: &mut [RankedEntry],
) -> Result<(), BoardError<NodesError>> {
    for row in rows {
        row.payload = job.shown_payload(&row.payload).map_err(damaged)?;
    }
    Ok(())
}

fn is_equal(cached: &BoardRow, row: &RankedEntry) -> bool {
    (
        &cached.member,
        &cached.score,
        &cached.payload,
        cached.weight,
    ) == (&row.member, &row.score, &row.payload, row.weight)
}
