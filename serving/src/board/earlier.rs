//! Ranks on a board at the end of an earlier day.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jobs::board::{KeyBoards, RankedEntry};
use jobs::{Board, Job};
use schemas::seam::Epoch;
use stores::board_cache::BoardSelection;
use stores::boards::StoredNodes;
use stores::views::Head as StoredHead;
use tokio::time::Duration;

use super::reader::{BoardReadContext, BoardReadRequest, BoardReader};
use crate::read_error::ReadError;
use crate::retry_budget::RetryBudget;

/// Indexes of rows on a board at the end of an earlier day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EarlierBoard {
    /// Index from 0 for each row; `None` if its member was not on the board.
    pub(crate) indexes: Vec<Option<u64>>,
    /// Number of rows that matched the filters.
    pub(crate) total: u64,
    pub(crate) epoch: Epoch,
    /// When the run published the board.
    pub(crate) published_at_us: i64,
}

/// Reads the ranks of `rows` on the last version of a key's board before `day`, with the same
/// filters and without live entries. Returns `None` if no such version is stored. The version stays
/// the same all day, so it can be combined with rows from the cache.
///
/// # Errors
/// Same as [`super::read::read`].
pub(crate) async fn read_earlier_board(
    context: BoardReadContext<'_>,
    job: &Arc<Job<Board>>,
    request: &BoardReadRequest,
    rows: &[RankedEntry],
    day: Date,
    retry_for: Duration,
) -> Result<Option<EarlierBoard>, ReadError> {
    let mut budget = RetryBudget::new(retry_for);
    let mut reader = BoardReader::new(context, job, request);
    loop {
        let permit = context.permits.acquire().await;
        let error = match reader.read_earlier(rows, day).await {
            Err(error @ ReadError::Replaced) => error,
            result => return result,
        };
        drop(permit);
        if !budget.wait_before_retry(&error).await {
            return Err(error);
        }
    }
}

impl BoardReader<'_> {
    /// Reads the earlier ranks of rows of the only key.
    async fn read_earlier(
        &mut self,
        rows: &[RankedEntry],
        day: Date,
    ) -> Result<Option<EarlierBoard>, ReadError> {
        let [key] = self.request.keys[..] else {
            return Ok(None);
        };
        let encoded = self.encode_key(key)?;
        let (view, views) = (self.job.view(), &self.ports.views);
        let heads = views.heads(view, std::slice::from_ref(&encoded)).await?;
        let Some(head) = heads.and_then(|heads| heads.into_iter().next().flatten()) else {
            return Ok(None);
        };
        let earlier = self.read_version_before(&head, &encoded, rows, day).await;
        earlier.map_err(|error| self.annotate_error(key, Some(head), error))
    }

    async fn read_version_before(
        &self,
        head: &StoredHead,
        key: &[u8],
        rows: &[RankedEntry],
        day: Date,
    ) -> Result<Option<EarlierBoard>, ReadError> {
        let midnight = day.to_zoned(TimeZone::UTC);
        let midnight_us =
            midnight.map_or(i64::MIN, |midnight| midnight.timestamp().as_microsecond());
        let Some(root) = head.find_earlier_root(midnight_us) else {
            return Ok(None);
        };
        let score_bytes = 8 * self.job.score().0.len();
        let boards = KeyBoards::from_version(&root.root, score_bytes)
            .map_err(|error| ReadError::DamagedBoard(error.to_string()))?;
        let nodes = StoredNodes::new(&*self.ports.views, self.job.view(), key);
        let mut members: Vec<_> = rows.iter().map(|row| row.member.clone()).collect();
        members.sort_unstable();
        let selection = BoardSelection::MembersWithIndexes(members);
        let reading = self.read_board(&boards, &nodes, &selection).await?;
        let indexes = reading.indexes.into_iter().flatten();
        let members = reading.rows.iter().map(|row| row.member.as_slice());
        let indexes: HashMap<&[u8], u64> = members.zip(indexes).collect();
        let index_of = |row: &RankedEntry| indexes.get(row.member.as_slice()).copied();
        Ok(Some(EarlierBoard {
            indexes: rows.iter().map(index_of).collect(),
            total: reading.sum.count,
            epoch: root.epoch,
            published_at_us: root.stamp_us,
        }))
    }
}
