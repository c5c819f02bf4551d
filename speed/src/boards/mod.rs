//! Cached boards of one partition. A board is filled after a reader missed it, updated with each
//! micro-batch, dropped when memory is short, and compared with its source from time to time.
//!
//! The worker does all of it between micro-batches, so fills never race with updates. Changes
//! during a fill are written at once, and the fill skips the rows of those members.

mod check;
mod fill;
mod known;
mod memory;
mod mismatch;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::Array;
use jobs::board::{BoardEntry, FilteredBoard, MemberEntries};
use jobs::{Board, Job};
use schemas::entities::CacheMiss;
use schemas::key::{KeyError, KeyValue};
use schemas::partition::partition_of;
use schemas::seam::{Checkpoint, Epoch, PartitionState};
use stores::board_cache::{
    BoardCache, BoardName, BoardRow, CachedBoardChange, CachedBoardChanges, RegisteredBoard,
    Revision,
};
use stores::live::{Entries, PartitionId};

use self::fill::{BoardFill, FillRequest, FillStep};
use self::known::{KnownBoard, KnownBoards};
use self::mismatch::SuspectedMismatch;
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// Maximum requested boards. Readers request the others again.
const REQUESTED_MAX: usize = 64;
/// Maximum recorded boards that can't be cached.
const UNCACHEABLE_BOARDS_MAX: usize = 10_000;
/// Boards that are dropped in one step.
const BOARDS_PER_DROP: usize = 16;
/// Maximum wait of one step for batch rows.
const FILL_STEP_TIMEOUT: Duration = Duration::from_millis(20);
/// Approximate memory of a row, in bytes.
const ROW_MEMORY_BYTES: u64 = 250;
/// Maximum rows of cached boards that one micro-batch changes. Servers limit the number of
/// arguments.
const CHANGED_ROWS_MAX: usize = 20_000;
/// Sorted sets rank by doubles, which round larger integers.
const EXACT_DOUBLE_MAX: u64 = 1 << 53;

/// The outcome of a step of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepOutcome {
    /// There is no work.
    Idle,
    /// There is more work.
    More,
}

/// Maintains the cached boards of one partition.
#[derive(Debug)]
pub(crate) struct CachedBoards {
    id: PartitionId,
    ports: SpeedPorts,
    jobs: Vec<Arc<Job<Board>>>,
    /// Maximum memory, in bytes.
    bytes_max: u64,
    /// Rows per step of a fill.
    fill_rows: usize,
    check_interval: Duration,
    /// The partitions of the topic.
    partitions: u32,
    /// The last revision of the register.
    revision: Revision,
    /// The newest epoch that is complete for all views.
    covered_epoch: Epoch,
    known_boards: KnownBoards,
    requested: VecDeque<BoardName>,
    /// Filled boards that a reader did not find.
    reported_missing: VecDeque<BoardName>,
    /// The time when the server's memory was last full.
    server_full_since: Option<Instant>,
    uncacheable: HashSet<BoardName>,
    fill: Option<BoardFill>,
    last_check: Instant,
    check_count: u64,
    /// A difference that is not confirmed yet.
    suspected_mismatch: Option<SuspectedMismatch>,
}

impl CachedBoards {
    pub(crate) fn new(
        id: PartitionId,
        ports: &SpeedPorts,
        jobs: Vec<Arc<Job<Board>>>,
        options: &SpeedOptions,
    ) -> Self {
        Self {
            id,
            ports: ports.clone(),
            jobs,
            bytes_max: options.board_cache_bytes_max / u64::from(options.partitions.max(1)),
            fill_rows: options.board_fill_rows.max(1),
            check_interval: Duration::from_millis(options.board_check_interval_ms),
            partitions: 0,
            revision: Revision::default(),
            covered_epoch: 0,
            known_boards: KnownBoards::default(),
            requested: VecDeque::new(),
            reported_missing: VecDeque::new(),
            server_full_since: None,
            uncacheable: HashSet::new(),
            fill: None,
            last_check: Instant::now(),
            check_count: 0,
            suspected_mismatch: None,
        }
    }

    /// Reads the register, and drops boards of other workers.
    pub(crate) async fn begin(&mut self, state: &PartitionState, partitions: u32) -> Result<()> {
        self.reset();
        self.partitions = partitions;
        let live = Arc::clone(&self.ports.live);
        let Some(cache) = live.board_cache() else {
            return Ok(());
        };
        let register = cache.read_register(self.id).await?;
        self.revision = register.revision;
        let mut dropped = register.stale_boards;
        for board in register.boards {
            let filtered_board = FilteredBoard::decode(&board.name.filtered_board).ok();
            let job = self.jobs.iter().find(|job| job.view() == board.name.view);
            let is_owned = job.is_some_and(|job| self.owns_key(job, &board.name.key));
            // A partly filled board lacks the rows that its worker had not written.
            match filtered_board.filter(|_| is_owned && board.bytes.is_some()) {
                Some(filtered_board) => self.known_boards.insert(KnownBoard {
                    board,
                    filtered_board,
                }),
                None => dropped.push(board),
            }
        }
        for dropped in dropped.chunks(BOARDS_PER_DROP) {
            // The next begin finds the remaining ones.
            self.drop_boards(state.checkpoint(), dropped).await?;
        }
        Ok(())
    }

    /// Sets the newest complete epoch of each view. Rows up to it belong to the batch layer. A view
    /// without one has no boards here.
    pub(crate) fn set_newest_epochs(&mut self, newest: &BTreeMap<String, Epoch>) {
        let views = self.jobs.iter().map(|job| newest.get(job.view()).copied());
        self.covered_epoch = views
            .flatten()
            .filter(|epoch| *epoch > 0)
            .min()
            .unwrap_or(0);
    }

    /// Discards all cached knowledge.
    pub(crate) fn reset(&mut self) {
        self.known_boards.clear();
        self.fill = None;
    }

    /// Returns whether a key belongs to this partition.
    fn owns_key(&self, job: &Job<Board>, key: &[u8]) -> bool {
        decode_key(job, key).is_some_and(|key| {
            partition_of(key.to_string().as_bytes(), self.partitions) == self.id.partition
        })
    }

    /// Handles a cache miss of a reader.
    pub(crate) fn request(&mut self, miss: CacheMiss) {
        let job = self.jobs.iter().find(|job| job.view() == miss.view);
        let key = job.and_then(|job| job.key().encode_values(&[KeyValue::Int(miss.key)]).ok());
        let (Some(key), Some(_)) = (key, self.ports.live.board_cache()) else {
            return;
        };
        if self.is_server_full() {
            return;
        }
        let name = BoardName {
            view: miss.view,
            key,
            filtered_board: miss.filtered_board,
        };
        if let Some(known_board) = self.known_boards.get(&name) {
            let is_filled = known_board.board.bytes.is_some();
            let is_new = !self.reported_missing.contains(&name)
                && self.reported_missing.len() < REQUESTED_MAX;
            if is_filled && is_new {
                self.reported_missing.push_back(name);
            }
            return;
        }
        let is_known = self.requested.contains(&name) || self.uncacheable.contains(&name);
        if !is_known
            && self.requested.len() < REQUESTED_MAX
            && FilteredBoard::decode(&name.filtered_board).is_ok()
        {
            self.requested.push_back(name);
        }
    }

    /// Computes the changes of cached boards for new entries.
    pub(crate) async fn compute_changes(
        &mut self,
        checkpoint: Checkpoint,
        entries: &[Entries],
    ) -> Result<CachedBoardChanges> {
        let mut changes = Vec::new();
        let mut uncacheable = Vec::new();
        if !self.known_boards.is_empty() {
            for entries in entries {
                self.add_view_changes(checkpoint.epoch, entries, &mut changes, &mut uncacheable)?;
            }
        }
        for board in &uncacheable {
            tracing::warn!(
                view = board.name.view,
                "a board is not cached, because it has scores above 2^53"
            );
            self.mark_uncacheable(board.name.clone());
        }
        // The boards with most changes are cheapest to refill.
        changes.sort_by_key(|change: &CachedBoardChange| change.rows.len());
        while changes
            .iter()
            .map(|change| change.rows.len())
            .sum::<usize>()
            > CHANGED_ROWS_MAX
        {
            let Some(largest) = changes.pop() else { break };
            let board = self
                .known_boards
                .all()
                .find(|known| known.board.id == largest.id);
            uncacheable.extend(board.map(|known| known.board.clone()));
        }
        if !uncacheable.is_empty() {
            self.drop_boards(checkpoint, &uncacheable).await?;
        }
        Ok(CachedBoardChanges {
            revision: self.revision,
            covered_epoch: self.covered_epoch,
            boards: changes,
        })
    }

    fn add_view_changes(
        &mut self,
        epoch: Epoch,
        entries: &Entries,
        changes: &mut Vec<CachedBoardChange>,
        uncacheable: &mut Vec<RegisteredBoard>,
    ) -> Result<()> {
        let Some(job) = self.jobs.iter().find(|job| job.view() == entries.view) else {
            return Ok(());
        };
        let mut rows_by_key: HashMap<&[u8], Vec<usize>> = HashMap::new();
        for row in 0..entries.keys.len() {
            rows_by_key
                .entry(entries.keys.value(row))
                .or_default()
                .push(row);
        }
        for (key, rows) in rows_by_key {
            let mut boards = self.known_boards.find_by_key(&entries.view, key).peekable();
            if boards.peek().is_none() {
                continue;
            }
            let mut members = Vec::with_capacity(rows.len());
            for row in rows {
                let decoded = entries.entry(row).map(MemberEntries::decode).transpose();
                let decoded = decoded.map_err(|error| Error::Fault(error.to_string()))?;
                members.push((entries.members.value(row), decoded.unwrap_or_default()));
            }
            for KnownBoard {
                board,
                filtered_board,
            } in boards
            {
                let rows = filter_rows(job, filtered_board, epoch, &members);
                let rows = rows.map_err(|error| Error::Fault(error.to_string()))?;
                if rows
                    .iter()
                    .filter_map(|(_, row)| row.as_ref())
                    .any(|row| exceeds_double_range(&row.score))
                {
                    uncacheable.push(board.clone());
                    continue;
                }
                if let Some(fill) = &mut self.fill
                    && fill.board.id == board.id
                {
                    fill.changed_members
                        .extend(rows.iter().map(|(member, _)| member.clone()));
                }
                changes.push(CachedBoardChange {
                    id: board.id.clone(),
                    rows,
                });
            }
        }
        Ok(())
    }

    /// Does a step of background work.
    pub(crate) async fn step(
        &mut self,
        checkpoint: Checkpoint,
        partitions: u32,
    ) -> Result<StepOutcome> {
        let live = Arc::clone(&self.ports.live);
        let Some(cache) = live.board_cache() else {
            return Ok(StepOutcome::Idle);
        };
        if partitions != self.partitions {
            // Keys of other partitions no longer belong to this worker.
            return Err(Error::CheckpointMismatch);
        }
        if self.fill.is_some() {
            return self.continue_fill(cache, checkpoint).await;
        }
        if let Some(name) = self.requested.pop_front() {
            return self.start_fill(cache, checkpoint, name).await;
        }
        if let Some(name) = self.reported_missing.pop_front() {
            return self.drop_if_missing(cache, checkpoint, &name).await;
        }
        self.report_memory();
        if self.known_boards.bytes() > self.bytes_max {
            return self.evict(cache, checkpoint).await;
        }
        if self.last_check.elapsed() >= self.check_interval {
            self.last_check = Instant::now();
            return self.check(cache, checkpoint).await;
        }
        Ok(StepOutcome::Idle)
    }

    /// Registers a board and starts to read its rows.
    async fn start_fill(
        &mut self,
        cache: &dyn BoardCache,
        checkpoint: Checkpoint,
        name: BoardName,
    ) -> Result<StepOutcome> {
        let job = self.jobs.iter().find(|job| job.view() == name.view);
        let filtered_board = FilteredBoard::decode(&name.filtered_board);
        let (Some(job), Ok(filtered_board)) = (job.map(Arc::clone), filtered_board) else {
            return Ok(StepOutcome::More);
        };
        if !self.owns_key(&job, &name.key) || self.known_boards.get(&name).is_some() {
            return Ok(StepOutcome::More);
        }
        let registered = cache
            .begin_fill(self.id, (checkpoint, self.revision), &name)
            .await?;
        let (id, revision) = registered.map_err(|_| Error::CheckpointMismatch)?;
        self.revision = revision;
        let board = RegisteredBoard {
            name,
            id,
            bytes: None,
        };
        let request = FillRequest {
            id: self.id,
            generation: checkpoint.generation,
            partitions: self.partitions,
            job,
            filtered_board: filtered_board.clone(),
            board: board.clone(),
            batch_rows: self.fill_rows,
            rows_max: self.bytes_max / ROW_MEMORY_BYTES,
        };
        self.fill = Some(BoardFill::start(&self.ports, request));
        self.known_boards.insert(KnownBoard {
            board,
            filtered_board,
        });
        Ok(StepOutcome::More)
    }

    /// Writes some rows of the board that is being filled.
    async fn continue_fill(
        &mut self,
        cache: &dyn BoardCache,
        checkpoint: Checkpoint,
    ) -> Result<StepOutcome> {
        let Some(fill) = &mut self.fill else {
            return Ok(StepOutcome::More);
        };
        let fill_step = tokio::time::timeout(FILL_STEP_TIMEOUT, fill.next()).await;
        let Ok(fill_step) = fill_step else {
            return Ok(StepOutcome::More);
        };
        let board = fill.board.clone();
        match fill_step {
            FillStep::Rows(rows) => {
                let rows: Vec<BoardRow> = rows
                    .into_iter()
                    .filter(|row| !fill.changed_members.contains(&row.member))
                    .collect();
                if rows.iter().any(|row| exceeds_double_range(&row.score)) {
                    return self
                        .abandon_fill(checkpoint, &board, "it has scores above 2^53", true)
                        .await;
                }
                fill.cached_batches += 1;
                let board_and_batches = (&board, fill.cached_batches);
                match cache.fill(self.id, board_and_batches, &rows).await {
                    Ok(true) => Ok(StepOutcome::More),
                    Ok(false) => Err(Error::CheckpointMismatch),
                    // For example a full server. Processing continues.
                    Err(error) => {
                        if matches!(error, stores::Error::Full { .. }) {
                            self.mark_server_full();
                        }
                        self.abandon_fill(checkpoint, &board, &error.to_string(), false)
                            .await
                    }
                }
            }
            FillStep::Done(newest_epoch) => {
                // A removed member may have been unknown to the reader.
                let has_changed = !fill.changed_members.is_empty();
                let newest_epoch = if has_changed {
                    checkpoint.epoch
                } else {
                    newest_epoch
                };
                let board_and_batches = (&board, fill.cached_batches);
                let believed = (checkpoint, self.revision);
                match cache
                    .end_fill(self.id, believed, board_and_batches, newest_epoch)
                    .await
                {
                    Ok(Ok(revision)) => self.revision = revision,
                    Ok(Err(_)) => return Err(Error::CheckpointMismatch),
                    Err(error) => {
                        return self
                            .abandon_fill(checkpoint, &board, &error.to_string(), false)
                            .await;
                    }
                }
                self.fill = None;
                self.count("backstitch_speed_board_fills_total");
                self.measure(cache, &board).await;
                Ok(StepOutcome::More)
            }
            FillStep::TooLarge(rows) => {
                let reason = format!("it has {rows} rows, more than the memory limit allows");
                self.abandon_fill(checkpoint, &board, &reason, true).await
            }
            FillStep::Failed(reason) => self.abandon_fill(checkpoint, &board, &reason, false).await,
        }
    }

    /// Stops a fill and drops the board.
    async fn abandon_fill(
        &mut self,
        checkpoint: Checkpoint,
        board: &RegisteredBoard,
        reason: &str,
        is_permanent: bool,
    ) -> Result<StepOutcome> {
        tracing::info!(view = board.name.view, reason, "a board is not cached");
        self.fill = None;
        if is_permanent {
            self.mark_uncacheable(board.name.clone());
        }
        self.drop_boards(checkpoint, std::slice::from_ref(board))
            .await?;
        Ok(StepOutcome::More)
    }

    fn mark_uncacheable(&mut self, name: BoardName) {
        if self.uncacheable.len() < UNCACHEABLE_BOARDS_MAX {
            self.uncacheable.insert(name);
        }
    }

    fn count(&self, name: &'static str) {
        metrics::counter!(name, "source" => self.id.source.name()).increment(1);
    }
}

/// A member with its row, if it has one.
type MemberRow = (Vec<u8>, Option<BoardRow>);

/// Returns the rows of members on a filtered board.
fn filter_rows(
    job: &Job<Board>,
    filtered_board: &FilteredBoard,
    epoch: Epoch,
    members: &[(&[u8], MemberEntries)],
) -> Result<Vec<MemberRow>, KeyError> {
    let entries = members
        .iter()
        .map(|(_, member_entries)| member_entries.entry(&filtered_board.board));
    let entries: Vec<Option<&BoardEntry>> = entries.collect();
    let payloads = entries
        .iter()
        .flatten()
        .map(|entry| entry.payload.as_slice());
    let payloads: Vec<&[u8]> = payloads.collect();
    let mut matches = filtered_board
        .match_payloads(job.payload(), payloads.into_iter())?
        .into_iter();
    let mut rows = Vec::with_capacity(members.len());
    for ((member, _), entry) in members.iter().zip(entries) {
        let entry = entry.filter(|_| matches.next() == Some(true));
        let row = entry.map(|entry| {
            Ok::<_, KeyError>(BoardRow {
                member: member.to_vec(),
                score: entry.score.clone(),
                // The filters have been applied, so cached rows do not need their columns.
                payload: job.without_filter_columns(&entry.payload)?,
                weight: entry.weight,
                epoch,
            })
        });
        rows.push((member.to_vec(), row.transpose()?));
    }
    Ok(rows)
}

/// Returns whether the first number of a score is not exact as a double.
fn exceeds_double_range(score: &[u8]) -> bool {
    score.first_chunk::<8>().is_some_and(|number| {
        let number = (u64::from_be_bytes(*number) ^ (1 << 63)).cast_signed();
        number.unsigned_abs() > EXACT_DOUBLE_MAX
    })
}

/// Decodes the number of a key.
fn decode_key(job: &Job<Board>, key: &[u8]) -> Option<i64> {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;
    let columns = job.key().decode(std::iter::once(key)).ok()?;
    let column = columns.first()?.as_primitive_opt::<Int64Type>()?;
    column.values().first().copied()
}
