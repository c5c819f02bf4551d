//! A cached board beside what it is a copy of: some of its rows are compared now and then.

use std::sync::Arc;

use jobs::board::{OnBoard, Ranked, ReadError as BoardError};
use schemas::seam::{Fence, Slot};
use stores::board_cache::{BoardCache, BoardQuery, BoardRow, BoardWant, Cached, CachedBoard};
use stores::live::StateQuery;

use super::{Boards, Entry, Stepped};
use crate::Result;
use crate::stored::{NodesError, StoredNodes, seam, standings};

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
            let now_ms = self.ports.clock.now_ms();
            let bytes = cache.end_fill(self.slot, &board, now_ms).await?;
            self.entry_mut(&board.id, |entry| {
                entry.board.bytes = bytes.or(entry.board.bytes)
            });
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
        let Some(job) = self
            .jobs
            .iter()
            .find(|job| job.view() == name.view)
            .map(Arc::clone)
        else {
            return Ok(None);
        };
        let (source, partition) = (self.slot.source, self.slot.partition);
        let stands = |slots: &[Option<Slot>]| {
            let own = slots.get(partition as usize).and_then(Option::as_ref);
            own.is_some_and(|slot| slot.fence() == fence)
        };
        let asked = |want: BoardWant| {
            [BoardQuery {
                name: name.clone(),
                partition,
                score_bytes: 8 * job.score().0.len(),
                want,
            }]
        };
        let runs = self.ports.views.runs(source).await.map_err(store)?;
        let query = StateQuery {
            view: name.view.clone(),
            key: name.key.clone(),
            partition: Some(partition),
        };
        let queries = [query];
        let live = self.ports.live.read_states(source, partition + 1, &queries);
        let live = live.await.map_err(store)?;
        let keys = [name.key.clone()];
        let heads = self
            .ports
            .views
            .heads(&name.view, &keys)
            .await
            .map_err(store)?;
        let Some(states) = live.states.first() else {
            return Ok(None);
        };
        let seam = seam(&name.view, &runs, &live.slots, Some(partition));
        seam.check_table(heads.is_some())?;
        let head = heads.unwrap_or_default().into_iter().next().flatten();
        let standings = standings(&seam, &job, head.as_ref(), Some(states))?;
        let nodes = StoredNodes {
            views: &*self.ports.views,
            known: None,
            view: &name.view,
            key: &name.key,
        };
        let on_board = standings.board(&nodes, &entry.section.board).await?;
        let sum = on_board.sum();
        let offset = self.checks.wrapping_mul(STRIDE) % sum.count.max(1);
        // Some rows of the board must be in the cache; those in the cache at some place must be of the
        // board, and if nothing is filtered at the same place.
        let expected = on_board.page(offset, ROWS).await?;
        let payloads = expected.iter().map(|row| row.payload.as_slice());
        let passing = entry.section.passing(job.payload(), payloads);
        let passing = passing.map_err(|error| BoardError::Damaged(error.to_string()))?;
        let members = expected.iter().map(|row| row.member.clone()).collect();
        let by_member = asked(BoardWant::Members(members));
        let by_member = cache.read_boards(source, partition + 1, &by_member);
        let by_member = by_member.await.map_err(store)?;
        let by_place = asked(BoardWant::Page {
            offset,
            limit: ROWS,
        });
        let by_place = cache.read_boards(source, partition + 1, &by_place);
        let by_place = by_place.await.map_err(store)?;
        // What changed in between can't be compared.
        if !(stands(&live.slots) && stands(&by_member.slots) && stands(&by_place.slots)) {
            return Ok(None);
        }
        let (Some(Cached::Board(found)), Some(Cached::Board(placed))) =
            (by_member.boards.first(), by_place.boards.first())
        else {
            return Ok(Some("it is not there".to_owned()));
        };
        for (row, passes) in expected.iter().zip(&passing) {
            let cached = found.rows.iter().find(|cached| cached.member == row.member);
            let is_right = match cached {
                Some(cached) => *passes && is_same(cached, row),
                None => !passes,
            };
            if !is_right {
                return Ok(Some(format!("the row at place {offset} or soon after")));
            }
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
        is_of(&on_board, placed).await
    }
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
