//! A cached board beside what it is a copy of: some of its rows are compared now and then.

use jobs::board::{OnBoard, Ranked, ReadError as BoardError};
use schemas::seam::{Fence, Slot};
use stores::board_cache::{BoardCache, BoardQuery, BoardRow, BoardWant, Cached, CachedBoard};
use stores::live::LiveRead;

use super::{Boards, Entry, Stepped};
use crate::Result;
use crate::stored::{NodesError, StoredNodes, laid};

/// Rows that are compared at once.
const ROWS: usize = 64;
/// Steps through places that are looked at: a prime, so that they are spread.
const STRIDE: u64 = 7_919;

impl Boards {
    /// Compares some rows of one board, and drops it if they differ.
    pub(super) async fn check(&mut self, cache: &dyn BoardCache, fence: Fence) -> Result<Stepped> {
        let filled: Vec<&Entry> = self
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
        self.checks = self.checks.wrapping_add(1);
        let Some(wrong) = wrong else {
            self.measure_one(cache, &board).await;
            return Ok(Stepped::Idle);
        };
        tracing::error!(
            view = board.name.view,
            wrong,
            "a cached board is not what it is a copy of; it is dropped, and filled anew when it is asked for"
        );
        self.count("backstitch_speed_cached_boards_wrong_total");
        let dropped = self.drop_these(fence, &[board]).await?;
        Ok(if dropped {
            Stepped::More
        } else {
            Stepped::Moved
        })
    }

    /// What is wrong with a cached board; nothing if all that was compared is right.
    async fn compare(
        &self,
        cache: &dyn BoardCache,
        fence: Fence,
        entry: &Entry,
    ) -> Result<Option<String>, BoardError<NodesError>> {
        let store = |error: stores::Error| BoardError::Store(NodesError::from(error));
        let name = &entry.board.name;
        let Some(job) = self.jobs.iter().find(|job| job.view() == name.view) else {
            return Ok(None);
        };
        let (source, partition) = (self.slot.source, self.slot.partition);
        let stands = |slots: &[Option<Slot>]| {
            let own = slots.get(partition as usize).and_then(Option::as_ref);
            own.is_some_and(|slot| slot.fence() == fence)
        };
        let with = (&*self.ports.live as &dyn LiveRead, &*self.ports.views);
        let laid = laid(with, job, self.slot, &name.key).await?;
        let nodes = StoredNodes {
            views: &*self.ports.views,
            known: None,
            view: &name.view,
            key: &name.key,
        };
        let on_board = laid.standings.board(&nodes, &entry.section.board).await?;
        let sum = on_board.sum();
        let offset = self.checks.wrapping_mul(STRIDE) % sum.count.max(1);
        // Some rows of the board must be in the cache; those in the cache at some place must be of the
        // board, and if nothing is filtered at the same place.
        let expected = on_board.page(offset, ROWS).await?;
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
            let read = cache.read_boards(source, partition + 1, &queries);
            let read = read.await.map_err(store)?;
            // What changed in between can't be compared.
            if !stands(&read.slots) {
                return Ok(None);
            }
            match read.boards.into_iter().next() {
                Some(Cached::Board(board)) => cached.push(board),
                _ => return Ok(Some("it is not there".to_owned())),
            }
        }
        let is_still = stands(&laid.slots);
        let (Some(placed), Some(found), true) = (cached.pop(), cached.pop(), is_still) else {
            return Ok(None);
        };
        let payloads = expected.iter().map(|row| row.payload.as_slice());
        let passing = entry.section.passing(job.payload(), payloads);
        let passing = passing.map_err(|error| BoardError::Damaged(error.to_string()))?;
        if !has(&found, &expected, &passing) {
            return Ok(Some(format!("the row at place {offset} or soon after")));
        }
        if entry.section.tests.is_empty() {
            let is_right = (placed.count, placed.weight) == (sum.count, sum.weight)
                && placed.rows.len() == expected.len()
                && placed
                    .rows
                    .iter()
                    .zip(&expected)
                    .all(|(cached, row)| is_same(cached, row));
            return Ok((!is_right).then(|| "its rows by place, or its sums".to_owned()));
        }
        is_of(&on_board, &placed).await
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
    on_board: &OnBoard<'_, StoredNodes<'_>>,
    placed: &CachedBoard,
) -> Result<Option<String>, BoardError<NodesError>> {
    let members: Vec<&[u8]> = placed
        .rows
        .iter()
        .map(|row| row.member.as_slice())
        .collect();
    let rows = on_board.members(&members).await?;
    for cached in &placed.rows {
        let row = rows.iter().find(|row| row.member == cached.member);
        if !row.is_some_and(|row| is_same(cached, row)) {
            return Ok(Some("a row that the board does not have".to_owned()));
        }
    }
    Ok(None)
}

fn is_same(cached: &BoardRow, row: &Ranked) -> bool {
    (
        &cached.member,
        &cached.score,
        &cached.payload,
        cached.weight,
    ) == (&row.member, &row.score, &row.payload, row.weight)
}
