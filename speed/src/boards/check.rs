//! Periodically compares some rows of a cached board with the board itself.

use bytes::Bytes;
use jobs::board::{BoardSnapshot, RankedEntry, ReadError as BoardError};
use jobs::{Board, Job};
use schemas::key::KeyError;
use schemas::seam::{Checkpoint, PartitionState};
use stores::board_cache::{
    BoardCache, BoardName, BoardQuery, BoardRow, BoardSelection, CacheLookup, CachedBoard,
};
use stores::boards::{NodesError, StoredNodes, load_boards};
use stores::live::LiveRead;

use super::known::KnownBoard;
use super::mismatch::SuspectedMismatch;
use super::{CachedBoards, StepOutcome};
use crate::Result;

/// Rows per comparison.
const ROWS_PER_CHECK: usize = 64;
/// Step between compared positions. It is a prime, so that the positions spread over the board.
const OFFSET_STRIDE: u64 = 7_919;

impl CachedBoards {
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
        let suspected = self.suspected_mismatch.as_ref();
        if suspected.is_some_and(|suspected| checkpoint.next_offset < suspected.log_end) {
            return Ok(StepOutcome::Idle);
        }
        let filled: Vec<&KnownBoard> = self
            .known_boards
            .all()
            .filter(|known| known.board.bytes.is_some())
            .collect();
        let index = self.check_count % (filled.len().max(1) as u64);
        let Some(known) = filled.get(usize::try_from(index).unwrap_or(0)) else {
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
        let suspected = self.suspected_mismatch.take();
        let Some((difference, root)) = difference else {
            self.check_count = self.check_count.wrapping_add(1);
            self.measure(cache, &board).await;
            return Ok(StepOutcome::Idle);
        };
        if suspected.is_none_or(|suspected| suspected.id != board.id || suspected.root != root) {
            let topic = self.id.source.topic();
            let log_end = self.ports.log.end(topic, self.id.partition).await?;
            let id = board.id;
            self.suspected_mismatch = Some(SuspectedMismatch { id, root, log_end });
            return Ok(StepOutcome::Idle);
        }
        self.check_count = self.check_count.wrapping_add(1);
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
    pub(super) async fn drop_if_missing(
        &mut self,
        cache: &dyn BoardCache,
        checkpoint: Checkpoint,
        name: &BoardName,
    ) -> Result<StepOutcome> {
        let Some(board) = self.known_boards.get(name).map(|known| known.board.clone()) else {
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
        let store_error = |error: stores::Error| BoardError::Store(NodesError::from(error));
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
        let board = loaded
            .key_boards
            .open_board(&nodes, &known.filtered_board.board)
            .await?;
        let sum = board.sum();
        let offset = self.check_count.wrapping_mul(OFFSET_STRIDE) % sum.count.max(1);
        // The compared rows of the board must be in the cache. The cached rows at the same
        // positions must be on the board, and without filters at the same positions.
        let mut expected = board.page(offset, ROWS_PER_CHECK).await?;
        let members = expected.iter().map(|row| row.member.clone()).collect();
        let page = BoardSelection::Page {
            offset,
            limit: ROWS_PER_CHECK,
        };
        let mut cached = Vec::new();
        for selection in [BoardSelection::Members(members), page] {
            let query = BoardQuery {
                name: name.clone(),
                partition,
                score_bytes: 8 * job.score().0.len(),
                selection,
            };
            let queries = [query];
            let read = cache.read_boards(source, &queries).await;
            let Some(read) = read.map_err(store_error)?.pop() else {
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
        let own_state = loaded
            .partition_states
            .get(partition as usize)
            .and_then(Option::as_ref);
        let is_unchanged = is_current(own_state);
        let (Some(page), Some(members), true) = (cached.pop(), cached.pop(), is_unchanged) else {
            return Ok(None);
        };
        let payloads = expected.iter().map(|row| row.payload.as_slice());
        let matches = known.filtered_board.match_payloads(job.payload(), payloads);
        let matches = matches.map_err(damaged_error)?;
        remove_filter_columns(job, &mut expected)?;
        let difference = if !matches_cache(&members, &expected, &matches) {
            Some(format!("a row at or after position {offset}"))
        } else if known.filtered_board.filters.is_empty() {
            let is_right = (page.count, page.weight) == (sum.count, sum.weight)
                && are_equal(&page.rows, &expected);
            (!is_right).then(|| "its rows by position, or its totals".to_owned())
        } else {
            find_foreign_row(job, &board, &page).await?
        };
        Ok(difference.map(|difference| (difference, loaded.root)))
    }
}

/// Returns whether the cache contains exactly those of the rows that match the filters.
fn matches_cache(cached_rows: &CachedBoard, expected: &[RankedEntry], matches: &[bool]) -> bool {
    expected.iter().zip(matches).all(|(row, is_match)| {
        let cached = cached_rows
            .rows
            .iter()
            .find(|cached| cached.member == row.member);
        match cached {
            Some(cached) => *is_match && is_equal(cached, row),
            None => !is_match,
        }
    })
}

/// Returns a description of the problem if a cached row is not on the board.
async fn find_foreign_row(
    job: &Job<Board>,
    board: &BoardSnapshot<'_, StoredNodes<'_>>,
    page: &CachedBoard,
) -> Result<Option<String>, BoardError<NodesError>> {
    let members: Vec<&[u8]> = page.rows.iter().map(|row| row.member.as_slice()).collect();
    let mut rows = board.find_members(&members).await?;
    remove_filter_columns(job, &mut rows)?;
    for cached in &page.rows {
        let row = rows.iter().find(|row| row.member == cached.member);
        if !row.is_some_and(|row| is_equal(cached, row)) {
            return Ok(Some("a row that is not on the board".to_owned()));
        }
    }
    Ok(None)
}

fn damaged_error(error: KeyError) -> BoardError<NodesError> {
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
        row.payload = job
            .without_filter_columns(&row.payload)
            .map_err(damaged_error)?;
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
