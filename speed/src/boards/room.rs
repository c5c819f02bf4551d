//! The memory of cached boards: what it is, and which go when it is too much.

use std::sync::Arc;
use std::time::{Duration, Instant};

use schemas::seam::Fence;
use stores::board_cache::{BoardCache, BoardChanges, Registered};

use super::{Boards, DROP_STEP, Stepped};
use crate::{Error, Result};

/// Boards that go at once when the server's memory is full.
const ROOM_STEP: usize = 4;
/// A server frees beside its work what is deleted: so long it is given in any case, and so many bytes it
/// frees in a microsecond, about.
const ROOM_WAIT: Duration = Duration::from_millis(10);
const FREED_BYTES: u64 = 200;
/// How long no board is filled after the server's memory was full: it would soon be full again.
const FULL_FOR: Duration = Duration::from_secs(60);

impl Boards {
    /// Tells how many boards there are, and what they take.
    pub(super) fn tell_memory(&self) {
        let labels = [
            ("source", self.slot.source.name().to_owned()),
            ("partition", self.slot.partition.to_string()),
        ];
        #[expect(clippy::cast_precision_loss, reason = "gauges")]
        let (boards, bytes) = (self.entries.len() as f64, self.entries.bytes() as f64);
        metrics::gauge!("backstitch_speed_cached_boards", &labels).set(boards);
        metrics::gauge!("backstitch_speed_cached_boards_bytes", &labels).set(bytes);
    }

    /// Measures a board; one that can't be measured keeps what it had.
    pub(super) async fn measure_one(&mut self, cache: &dyn BoardCache, board: &Registered) {
        let now_ms = self.ports.clock.now_ms();
        let bytes = match cache.measure(self.slot, board, now_ms).await {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(%error, "a cached board could not be measured");
                None
            }
        };
        let had = self.entries.get(&board.name);
        let had = had.and_then(|entry| entry.board.bytes);
        let bytes = bytes.or(had).unwrap_or(0);
        self.entries.measured(&board.name, bytes);
    }

    /// Drops the board that was read least recently.
    pub(super) async fn evict(&mut self, cache: &dyn BoardCache, fence: Fence) -> Result<Stepped> {
        let mut boards = self.least_used(cache).await?;
        boards.truncate(1);
        self.drop_for_room(fence, &boards).await
    }

    /// The server's memory is full, and a micro-batch waits: drops the boards that were read least
    /// recently, and what the micro-batch makes of them. [`Stepped::Idle`] if there are none.
    pub(crate) async fn make_room(
        &mut self,
        fence: Fence,
        changes: &mut BoardChanges,
    ) -> Result<Stepped> {
        let live = Arc::clone(&self.ports.live);
        let Some(cache) = live.board_cache() else {
            return Ok(Stepped::Idle);
        };
        self.found_full();
        // Nobody reads the one that is being filled.
        let boards = match &self.filling {
            Some(filling) => vec![filling.board.clone()],
            None => {
                let mut boards = self.least_used(cache).await?;
                boards.truncate(ROOM_STEP);
                boards
            }
        };
        let dropped = self.drop_for_room(fence, &boards).await?;
        if dropped == Stepped::More {
            tracing::warn!(
                partition = self.slot.partition,
                boards = boards.len(),
                "the server's memory is full: cached boards make room"
            );
            changes.revision = self.revision;
            let is_gone = |id: &str| boards.iter().any(|board| board.id == id);
            changes.boards.retain(|change| !is_gone(&change.id));
            let bytes: u64 = boards.iter().filter_map(|board| board.bytes).sum();
            let freed = Duration::from_micros(bytes / FREED_BYTES);
            tokio::time::sleep(ROOM_WAIT + freed).await;
        }
        Ok(dropped)
    }

    /// The server's memory is full: nothing is filled for a while.
    pub(super) fn found_full(&mut self) {
        self.full = Some(Instant::now());
        self.wanted.clear();
    }

    /// Whether it was full a moment ago.
    pub(super) fn was_full(&self) -> bool {
        self.full.is_some_and(|full| full.elapsed() < FULL_FOR)
    }

    /// Some of the boards, those that were read least recently.
    async fn least_used(&self, cache: &dyn BoardCache) -> Result<Vec<Registered>> {
        let names = cache.least_used(self.slot, DROP_STEP).await?;
        let known = names.iter().filter_map(|name| self.entries.get(name));
        let mut boards: Vec<Registered> = known.map(|entry| entry.board.clone()).collect();
        if boards.is_empty() {
            // Those that could not be measured and were never read since.
            let rest = self.entries.all().take(DROP_STEP);
            boards.extend(rest.map(|entry| entry.board.clone()));
        }
        Ok(boards)
    }

    async fn drop_for_room(&mut self, fence: Fence, boards: &[Registered]) -> Result<Stepped> {
        if boards.is_empty() {
            return Ok(Stepped::Idle);
        }
        for _ in boards {
            self.count("backstitch_speed_board_evictions_total");
        }
        self.drop_these(fence, boards).await?;
        Ok(Stepped::More)
    }

    /// Drops boards.
    pub(super) async fn drop_these(&mut self, fence: Fence, boards: &[Registered]) -> Result<()> {
        let live = Arc::clone(&self.ports.live);
        let Some(cache) = live.board_cache() else {
            return Ok(());
        };
        let believed = (fence, self.revision);
        let dropped = cache.drop_boards(self.slot, believed, boards).await?;
        self.revision = dropped.map_err(|_| Error::Moved)?;
        for board in boards {
            self.entries.remove(&board.name);
        }
        let is_gone = |id: &str| boards.iter().any(|board| board.id == id);
        let filling = self.filling.as_ref();
        if filling.is_some_and(|filling| is_gone(&filling.board.id)) {
            self.filling = None;
        }
        Ok(())
    }
}
