//! Limits the memory of cached boards and decides which are dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use schemas::seam::Checkpoint;
use stores::board_cache::{BoardCache, CachedBoardChanges, RegisteredBoard};

use super::{BOARDS_PER_DROP, CachedBoards, StepOutcome};
use crate::{Error, Result};

/// Boards that are dropped together when the server's memory is full.
const BOARDS_PER_FREE: usize = 4;
/// A server frees deleted keys in the background. This is the minimum time to wait for it, and the
/// approximate number of bytes that it frees per microsecond.
const FREE_PAUSE: Duration = Duration::from_millis(10);
const FREED_BYTES_PER_US: u64 = 200;
/// Time without fills after the server's memory was full. Otherwise it would soon be full again.
const FULL_PAUSE: Duration = Duration::from_secs(60);

impl CachedBoards {
    /// Reports the number of boards and their memory as metrics.
    pub(super) fn report_memory(&self) {
        let labels = [
            ("source", self.id.source.name().to_owned()),
            ("partition", self.id.partition.to_string()),
        ];
        #[expect(clippy::cast_precision_loss, reason = "gauges")]
        let (boards, bytes) = (
            self.known_boards.len() as f64,
            self.known_boards.bytes() as f64,
        );
        metrics::gauge!("backstitch_speed_cached_boards", &labels).set(boards);
        metrics::gauge!("backstitch_speed_cached_boards_bytes", &labels).set(bytes);
    }

    /// Measures a board. If that fails, the previous value remains.
    pub(super) async fn measure(&mut self, cache: &dyn BoardCache, board: &RegisteredBoard) {
        let now_ms = self.ports.clock.now_ms();
        let bytes = match cache.measure(self.id, board, now_ms).await {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(%error, "a cached board could not be measured");
                None
            }
        };
        let previous = self.known_boards.get(&board.name);
        let previous = previous.and_then(|known| known.board.bytes);
        let bytes = bytes.or(previous).unwrap_or(0);
        self.known_boards.set_bytes(&board.name, bytes);
    }

    /// Drops the least recently read board.
    pub(super) async fn evict(
        &mut self,
        cache: &dyn BoardCache,
        checkpoint: Checkpoint,
    ) -> Result<StepOutcome> {
        let mut boards = self.find_least_used(cache).await?;
        boards.truncate(1);
        self.evict_boards(checkpoint, &boards).await
    }

    /// Drops the least recently read boards because the server's memory is full and a micro-batch
    /// waits. Removes their changes from the micro-batch. Returns [`StepOutcome::Idle`] if there
    /// are no boards.
    pub(crate) async fn free_memory(
        &mut self,
        checkpoint: Checkpoint,
        changes: &mut CachedBoardChanges,
    ) -> Result<StepOutcome> {
        let live = Arc::clone(&self.ports.live);
        let Some(cache) = live.board_cache() else {
            return Ok(StepOutcome::Idle);
        };
        self.mark_server_full();
        // No reader uses the board that is being filled.
        let boards = match &self.fill {
            Some(fill) => vec![fill.board.clone()],
            None => {
                let mut boards = self.find_least_used(cache).await?;
                boards.truncate(BOARDS_PER_FREE);
                boards
            }
        };
        let dropped = self.evict_boards(checkpoint, &boards).await?;
        if dropped == StepOutcome::More {
            tracing::warn!(
                partition = self.id.partition,
                boards = boards.len(),
                "the server's memory is full: cached boards are dropped"
            );
            changes.revision = self.revision;
            let is_dropped = |id: &str| boards.iter().any(|board| board.id == id);
            changes.boards.retain(|change| !is_dropped(&change.id));
            let bytes: u64 = boards.iter().filter_map(|board| board.bytes).sum();
            let free_duration = Duration::from_micros(bytes / FREED_BYTES_PER_US);
            tokio::time::sleep(FREE_PAUSE + free_duration).await;
        }
        Ok(dropped)
    }

    /// Pauses fills because the server's memory is full.
    pub(super) fn mark_server_full(&mut self) {
        self.server_full_since = Some(Instant::now());
        self.requested.clear();
    }

    /// Returns whether the memory was full recently.
    pub(super) fn is_server_full(&self) -> bool {
        self.server_full_since
            .is_some_and(|since| since.elapsed() < FULL_PAUSE)
    }

    /// Finds some of the least recently read boards.
    async fn find_least_used(&self, cache: &dyn BoardCache) -> Result<Vec<RegisteredBoard>> {
        let names = cache.least_used(self.id, BOARDS_PER_DROP).await?;
        let known = names.iter().filter_map(|name| self.known_boards.get(name));
        let mut boards: Vec<RegisteredBoard> = known.map(|known| known.board.clone()).collect();
        if boards.is_empty() {
            // Boards that could not be measured and were never read since.
            let unread = self.known_boards.all().take(BOARDS_PER_DROP);
            boards.extend(unread.map(|known| known.board.clone()));
        }
        Ok(boards)
    }

    async fn evict_boards(
        &mut self,
        checkpoint: Checkpoint,
        boards: &[RegisteredBoard],
    ) -> Result<StepOutcome> {
        if boards.is_empty() {
            return Ok(StepOutcome::Idle);
        }
        for _ in boards {
            self.count("backstitch_speed_board_evictions_total");
        }
        self.drop_boards(checkpoint, boards).await?;
        Ok(StepOutcome::More)
    }

    /// Drops boards from the cache.
    pub(super) async fn drop_boards(
        &mut self,
        checkpoint: Checkpoint,
        boards: &[RegisteredBoard],
    ) -> Result<()> {
        let live = Arc::clone(&self.ports.live);
        let Some(cache) = live.board_cache() else {
            return Ok(());
        };
        let believed = (checkpoint, self.revision);
        let dropped = cache.remove_boards(self.id, believed, boards).await?;
        self.revision = dropped.map_err(|_| Error::CheckpointMismatch)?;
        for board in boards {
            self.known_boards.remove(&board.name);
        }
        let is_dropped = |id: &str| boards.iter().any(|board| board.id == id);
        let fill = self.fill.as_ref();
        if fill.is_some_and(|fill| is_dropped(&fill.board.id)) {
            self.fill = None;
        }
        Ok(())
    }
}
