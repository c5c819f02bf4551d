//! Reads boards from the cache beside live state in a single round trip. If a board is not cached,
//! the reader uses batch rows with live entries on top, and requests the board from the worker of
//! its partition by a record in the log.

use std::sync::Arc;

use arrow::array::Array;
use jobs::board::RankedEntry;
use jobs::tree::Sum;
use schemas::partition::partition_of;
use schemas::seam::Epoch;
use stores::ErrorKind;
use stores::board_cache::{
    BoardName, BoardQuery, BoardRow, BoardSelection, CacheLookup, CachedBoard, CachedBoardSnapshot,
};
use stores::live::{LiveEntries, PartitionId};
use stores::views::RunRecords;

use super::reader::BoardReader;
use super::reading::{BoardReading, BoardsReading, FilteredRows};
use crate::read::{RunsAndStates, pop_probed_partition};
use crate::read_error::ReadError;

/// Maximum boards per request that the cache answers.
const KEYS_MAX: usize = 8;
/// Maximum members per cache query: the server handles nothing else meanwhile.
const MEMBERS_MAX: usize = 20_000;
/// Offsets beyond this exceed the size of any board.
const OFFSET_MAX: u64 = 1 << 48;
/// Number of live entries read for the size of a board above which the board should be cached.
const SIZE_ENTRIES_MAX: usize = 1_000;

impl BoardReader<'_> {
    /// Returns the boards from the cache; `None` if a board is missing or live state is incomplete.
    pub(super) async fn read_cached(
        &self,
        runs: &Arc<RunRecords>,
        partitions: usize,
    ) -> Result<Option<BoardsReading>, ReadError> {
        let (source, view) = (self.job.source(), self.job.view());
        let newest = runs.complete_epochs.get(view).copied().unwrap_or(0);
        let cut_count = runs.runs.get(newest).map_or(0, |run| run.cuts.len());
        if self.ports.live.cached_boards().is_none() {
            return Ok(None);
        }
        let Some(queries) = self.build_cache_queries(partitions)? else {
            return Ok(None);
        };
        // If partitions were added since the run, two of them may hold live entries of one key.
        if newest == 0 || cut_count != partitions {
            return Ok(None);
        }
        let partition_count = u32::try_from(partitions).unwrap_or(u32::MAX);
        // The other partitions do not affect the boards.
        let state_cache = &self.caches.states;
        let (snapshots, states) = tokio::join!(
            self.query_cache(&queries),
            state_cache.get(&self.ports.live, source, partition_count.saturating_add(1))
        );
        let (snapshots, states) = (snapshots?, states.map_err(ReadError::Store)?);
        let mut states = Arc::unwrap_or_clone(states);
        if pop_probed_partition(&mut states) || states.len() < partitions {
            return Ok(None);
        }
        let mut are_all_cached = true;
        for ((query, cached), key) in queries.iter().zip(&snapshots).zip(&self.request.keys) {
            let own_state = cached.state.as_ref();
            self.caches
                .states
                .record(source, query.partition, own_state);
            if let Some(state) = states.get_mut(query.partition as usize) {
                *state = own_state.cloned();
            }
            are_all_cached &= self.report_outcome(*key, query, &cached.board);
        }
        if !are_all_cached {
            return Ok(None);
        }
        let snapshot = RunsAndStates {
            runs: Arc::clone(runs),
            states,
        };
        let mut boards = Vec::with_capacity(queries.len());
        for (query, cached) in queries.iter().zip(snapshots) {
            let seam = snapshot.build_seam(view, view, newest, Some(query.partition as usize));
            // An error makes the caller retry; to read batch rows now would find the same gap.
            seam.check(newest)?;
            let CacheLookup::Board(board) = cached.board else {
                return Ok(None);
            };
            boards.push(self.build_reading(board, newest)?);
        }
        let read_position = snapshot.read_position(source, newest);
        Ok(Some(BoardsReading {
            boards,
            read_position,
        }))
    }

    /// Queries the cache.
    async fn query_cache(
        &self,
        queries: &[BoardQuery],
    ) -> Result<Vec<CachedBoardSnapshot>, ReadError> {
        let (live, source) = (Arc::clone(&self.ports.live), self.job.source());
        let fetch = move |queries: Vec<BoardQuery>| async move {
            match live.cached_boards() {
                Some(cache) => cache.read_boards(source, &queries).await,
                None => Ok(Vec::new()),
            }
        };
        match self
            .caches
            .lookups
            .read(source, queries, fetch.clone())
            .await
        {
            Ok(Some(snapshots)) => Ok(snapshots),
            // The query is too large to share a call, or another query caused the error.
            Ok(None) => Ok(fetch(queries.to_vec()).await?),
            Err(ReadError::Store(error)) if error.kind() != ErrorKind::Retry => {
                Ok(fetch(queries.to_vec()).await?)
            }
            Err(error) => Err(error),
        }
    }

    /// Reports a use or a miss of a board, and returns whether the board is cached.
    fn report_outcome(&self, key: i64, query: &BoardQuery, cached: &CacheLookup) -> bool {
        match cached {
            CacheLookup::Board(_) => {
                let (source, partition) = (self.job.source(), query.partition);
                let partition_id = PartitionId { source, partition };
                self.recent_reads
                    .report_use(self.ports, partition_id, &query.name);
                return true;
            }
            // The head already holds the size of a board without filters.
            CacheLookup::Absent if self.request.selection != BoardSelection::TotalsOnly => {
                self.recent_reads
                    .report_missing_board(self.ports, self.job, key, query);
            }
            CacheLookup::Absent | CacheLookup::Filling => {}
        }
        false
    }

    /// Requests cached boards for sizes that took many live entries to compute.
    pub(super) fn request_counts(
        &self,
        keys: &[i64],
        live_entries: &[LiveEntries],
        newest: Epoch,
        partitions: usize,
    ) -> Result<(), ReadError> {
        let is_slow = |entries: &LiveEntries| entries.members.len() > SIZE_ENTRIES_MAX;
        if self.selects_only_size() {
            let partition_count = u32::try_from(partitions).unwrap_or(u32::MAX);
            let filtered_board = self.encode_board()?.encode();
            let keys_with_entries = keys.iter().zip(live_entries);
            for (key, _) in keys_with_entries.filter(|(_, entries)| is_slow(entries)) {
                let name = self.board_name(*key, &filtered_board)?;
                let partition = partition_of(key.to_string().as_bytes(), partition_count);
                let (recent_reads, ports) = (self.recent_reads, self.ports);
                recent_reads.report_miss(ports, self.job, *key, true, &name, partition);
            }
            return Ok(());
        }
        // Boards are cached only after the first run.
        if newest == 0
            || self.ports.live.cached_boards().is_none()
            || self.request.selection != BoardSelection::TotalsOnly
            || !live_entries.iter().any(is_slow)
        {
            return Ok(());
        }
        let queries = self.build_cache_queries(partitions)?.unwrap_or_default();
        let keys_with_entries = queries.iter().zip(keys).zip(live_entries);
        for ((query, key), _) in keys_with_entries.filter(|(_, entries)| is_slow(entries)) {
            self.recent_reads
                .report_missing_board(self.ports, self.job, *key, query);
        }
        Ok(())
    }

    /// Builds the cache queries for the request; `None` if the cache cannot answer it.
    fn build_cache_queries(&self, partitions: usize) -> Result<Option<Vec<BoardQuery>>, ReadError> {
        let request = self.request;
        let filtered_board = self.encode_board()?;
        if request.explains || request.keys.len() > KEYS_MAX {
            return Ok(None);
        }
        let members = match (&request.members, &request.selection) {
            (Some(members), _) => members.len(),
            (None, BoardSelection::MembersWithIndexes(members)) => members.len(),
            _ => 0,
        };
        let is_far =
            matches!(request.selection, BoardSelection::Page { offset, .. } if offset > OFFSET_MAX);
        if members.saturating_mul(request.keys.len()) > MEMBERS_MAX || is_far {
            return Ok(None);
        }
        let members = self
            .encode_requested_members()?
            .map(BoardSelection::Members);
        let selection = members.unwrap_or_else(|| request.selection.clone());
        let encoded = filtered_board.encode();
        let partition_count = u32::try_from(partitions).unwrap_or(u32::MAX);
        let mut queries = Vec::with_capacity(request.keys.len());
        for key in &request.keys {
            queries.push(BoardQuery {
                name: self.board_name(*key, &encoded)?,
                partition: partition_of(key.to_string().as_bytes(), partition_count),
                score_bytes: 8 * self.job.score().0.len(),
                selection: selection.clone(),
            });
        }
        Ok(Some(queries))
    }

    /// The name of the board of a key and an encoded `FilteredBoard`.
    fn board_name(&self, key: i64, filtered_board: &[u8]) -> Result<BoardName, ReadError> {
        Ok(BoardName {
            view: self.job.view().to_owned(),
            key: self.encode_key(key)?,
            filtered_board: filtered_board.to_vec(),
        })
    }

    fn build_reading(&self, board: CachedBoard, newest: Epoch) -> Result<BoardReading, ReadError> {
        let is_changed = board.last_changed_epoch > newest;
        let rows = |rows: Vec<BoardRow>| -> Vec<(RankedEntry, bool)> {
            let ranked = rows.into_iter().map(|row| {
                let is_live = row.epoch > newest;
                let ranked = RankedEntry {
                    member: row.member,
                    score: row.score,
                    payload: row.payload,
                    weight: row.weight,
                };
                (ranked, is_live)
            });
            ranked.collect()
        };
        if let Some(members) = &self.request.members {
            let mut member_rows = rows(board.rows);
            member_rows.sort_unstable_by(|(a, _), (b, _)| a.sort_key().cmp(&b.sort_key()));
            let are_all_found = member_rows.len() == members.len();
            let mut filtered = FilteredRows::new(self.request.selection.clone());
            for (row, is_live) in member_rows {
                filtered.add(row, is_live);
            }
            let mut reading = filtered.finish();
            // A missing member may have been removed by a newer live entry.
            reading.layers.1 |= is_changed && !are_all_found;
            return Ok(reading);
        }
        let has_indexes = matches!(
            self.request.selection,
            BoardSelection::MembersWithIndexes(_)
        );
        let mut rows: Vec<RankedEntry> = rows(board.rows).into_iter().map(|(row, _)| row).collect();
        let indexes = has_indexes.then(|| {
            let mut indexed: Vec<(u64, RankedEntry)> =
                board.indexes.into_iter().zip(rows.drain(..)).collect();
            indexed.sort_unstable_by_key(|(index, _)| *index);
            let (indexes, indexed_rows): (Vec<u64>, Vec<RankedEntry>) = indexed.into_iter().unzip();
            rows = indexed_rows;
            indexes
        });
        let live_epochs = board.epochs.iter().filter(|(epoch, _)| *epoch > newest);
        let live_rows: u64 = live_epochs.map(|(_, rows)| rows).sum();
        Ok(BoardReading {
            sum: Sum {
                count: board.count,
                weight: board.weight,
            },
            first_index: board.first_index,
            rows,
            indexes,
            member_index: board.member_index,
            layers: (board.count > live_rows, is_changed),
            ..BoardReading::default()
        })
    }
}
