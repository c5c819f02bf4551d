//! Consistent reads of boards, as described in docs/internals/seam.md: the newest runs, then the
//! partition states with the live entries, then the heads and their nodes.

use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use jobs::board::{KeyBoards, LiveCount};
use jobs::{Board, Job};
use schemas::key::KeyError;
use schemas::partition::partition_of;
use schemas::seam::{self, Epoch};
use stores::ErrorKind;
use stores::boards::{StoredNodes, merge_boards};
use stores::live::{EntryQuery, LiveEntries};
use stores::views::{Head as StoredHead, RunRecords};
use tokio::time::Duration;

use super::reader::{BoardReadContext, BoardReadRequest, BoardReader};
use super::reading::{BoardReading, BoardsReading};
use crate::read::{RunsAndStates, pop_probed_partition};
use crate::read_error::ReadError;
use crate::read_position::ReadPosition;
use crate::retry_budget::RetryBudget;

/// Number of keys whose boards are read concurrently.
const CONCURRENT_KEYS: usize = 8;
/// Maximum keys whose live entries are read at once if live counts do not suffice: a key may have
/// many.
const KEYS_WITH_ENTRIES_MAX: usize = 32;

/// Reads boards. While live state is incomplete, it retries for up to `retry_for` after the first
/// failure. Each attempt holds a permit, which bounds memory.
///
/// # Errors
/// [`ReadError`]; the API answers [`ReadError::SeamMismatch`] with status 503.
pub(crate) async fn read(
    context: BoardReadContext<'_>,
    job: &Arc<Job<Board>>,
    request: &BoardReadRequest,
    retry_for: Duration,
) -> Result<BoardsReading, ReadError> {
    let mut budget = RetryBudget::new(retry_for);
    let mut reader = BoardReader::new(context, job, request);
    loop {
        let permit = context.permits.acquire().await;
        let error = match reader.attempt().await {
            Err(error @ (ReadError::SeamMismatch(_) | ReadError::Replaced)) => error,
            result => return result,
        };
        drop(permit);
        reader.ignores_cache = true;
        if !budget.wait_before_retry(&error).await {
            return Err(error);
        }
    }
}

/// Data that the reads of all keys share.
#[derive(Clone, Copy)]
struct KeyReadContext<'a> {
    snapshot: &'a RunsAndStates,
    /// Newest run of the view.
    newest: Epoch,
    has_table: bool,
    uses_live_counts: bool,
}

impl BoardReader<'_> {
    async fn attempt(&mut self) -> Result<BoardsReading, ReadError> {
        let source = self.job.source();
        let (partitions, runs) = tokio::try_join!(
            self.ports.log.partition_count(source.topic()),
            self.caches
                .runs
                .get(&*self.ports.views, source, self.ignores_cache)
        )?;
        // If the log was lost, partition states may exist for more partitions than it has now.
        let partitions = (partitions as usize).max(runs.runs.partition_count());
        if !self.ignores_cache {
            match self.read_cached(&runs, partitions).await {
                Ok(Some(reading)) => return Ok(reading),
                Ok(None) => {}
                // Damaged cache entries are not needed for an answer.
                Err(ReadError::Store(error)) if error.kind() == ErrorKind::Fatal => {
                    tracing::error!(%error, "cannot read a cached board; the answer uses batch rows");
                }
                Err(error) => return Err(error),
            }
        }
        // Boxed, since the future is much larger than the preceding ones.
        let (boards, position) = if self.selects_only_size() {
            Box::pin(self.read_live_counts(&runs, partitions)).await?
        } else {
            let keys = self.request.keys.as_slice();
            Box::pin(self.read_stored(runs, partitions, keys, false)).await?
        };
        let boards: Option<Vec<_>> = boards.into_iter().collect();
        let boards = boards.ok_or(ReadError::Replaced)?;
        Ok(BoardsReading {
            boards,
            read_position: position,
        })
    }

    /// Answers with live counts where they are stored and join the version. The other keys are read
    /// again in chunks, with their live entries. Each board is exact for its own position.
    async fn read_live_counts(
        &mut self,
        runs: &Arc<RunRecords>,
        partitions: usize,
    ) -> Result<(Vec<Option<BoardReading>>, ReadPosition), ReadError> {
        let request = self.request;
        let keys = request.keys.as_slice();
        let read = Box::pin(self.read_stored(Arc::clone(runs), partitions, keys, true)).await?;
        let (mut boards, mut position) = read;
        let keys_with_boards = request.keys.iter().zip(&boards);
        let remaining = keys_with_boards.filter(|(_, board)| board.is_none());
        let remaining: Vec<i64> = remaining.map(|(key, _)| *key).collect();
        if remaining.is_empty() {
            return Ok((boards, position));
        }
        let own_position = Arc::new(position.clone());
        for board in boards.iter_mut().flatten() {
            board.own_position = Some(Arc::clone(&own_position));
        }
        for chunk in remaining.chunks(KEYS_WITH_ENTRIES_MAX) {
            let read = Box::pin(self.read_stored(Arc::clone(runs), partitions, chunk, false));
            let (read, chunk_position) = read.await?;
            position = match boards.iter().any(Option::is_some) {
                true => position.min_with(&chunk_position),
                false => chunk_position.clone(),
            };
            let own_position = Arc::new(chunk_position);
            let missing = boards.iter_mut().filter(|board| board.is_none());
            for (board, read) in missing.zip(read) {
                let mut read = read.ok_or(ReadError::Replaced)?;
                read.own_position = Some(Arc::clone(&own_position));
                *board = Some(read);
            }
        }
        Ok((boards, position))
    }

    /// Reads the batch rows and live entries of some keys, or their live counts where these are
    /// stored; `None` for a key whose live count does not join the version.
    async fn read_stored(
        &mut self,
        runs: Arc<RunRecords>,
        mut partitions: usize,
        keys: &[i64],
        uses_live_counts: bool,
    ) -> Result<(Vec<Option<BoardReading>>, ReadPosition), ReadError> {
        let (source, view) = (self.job.source(), self.job.view());
        let newest = runs.complete_epochs.get(view).copied().unwrap_or(0);
        let cut_count = runs.runs.get(newest).map_or(0, |run| run.cuts.len());
        let mut queries;
        let live = loop {
            let count = u32::try_from(partitions).unwrap_or(u32::MAX);
            // If partitions were added since the run, two of them may hold live entries of one key.
            let unchanged_count = (cut_count == partitions).then_some(count);
            queries = self.build_entry_queries(keys, unchanged_count)?;
            let count = count.saturating_add(1);
            let store = &self.ports.live;
            let mut live = match uses_live_counts {
                true => store.read_live_counts(source, count, &queries).await?,
                false => store.read_entries(source, count, &queries).await?,
            };
            if !pop_probed_partition(&mut live.partition_states) {
                break live;
            }
            partitions += 1;
        };
        if partitions == 0 {
            let empty = vec![Some(BoardReading::default()); keys.len()];
            return Ok((empty, ReadPosition::empty(source, 0)));
        }
        for (state, partition) in live.partition_states.iter().zip(0..) {
            self.caches.states.record(source, partition, state.as_ref());
        }
        if newest == 0 || cut_count == partitions {
            self.request_counts(keys, &live.entries, newest, partitions)?;
        }
        let encoded: Vec<Vec<u8>> = queries.iter().map(|query| query.key.clone()).collect();
        let heads = self.ports.views.heads(view, &encoded).await?;
        let has_table = heads.is_some();
        let mut heads = heads.unwrap_or_default().into_iter();
        let snapshot = RunsAndStates {
            runs,
            states: live.partition_states,
        };
        let reads = queries.iter().zip(&live.entries).zip(keys);
        let context = KeyReadContext {
            snapshot: &snapshot,
            newest,
            has_table,
            uses_live_counts,
        };
        let reader = &*self;
        let readings = reads.map(|((query, live_entries), key)| {
            let head = heads.next().flatten();
            async move {
                let read = reader
                    .read_key(context, query, live_entries, head.as_ref())
                    .await;
                read.map_err(|error| (*key, head, error))
            }
        });
        let readings: Vec<_> = readings.collect();
        let readings = stream::iter(readings).buffered(CONCURRENT_KEYS);
        let read: Result<Vec<Option<BoardReading>>, _> = readings.try_collect().await;
        let boards = read.map_err(|(key, head, error)| self.annotate_error(key, head, error))?;
        let mut position = snapshot.read_position(source, newest);
        position.complete &= !boards.iter().flatten().any(|board| board.is_split);
        Ok((boards, position))
    }

    /// Builds the queries for the live entries of some keys. With a number of partitions, each key
    /// is in the partition of its hash; without one, it may be in any.
    fn build_entry_queries(
        &self,
        keys: &[i64],
        partitions: Option<u32>,
    ) -> Result<Vec<EntryQuery>, KeyError> {
        let query = |key: &i64| {
            let hash_partition = |count| partition_of(key.to_string().as_bytes(), count);
            Ok(EntryQuery {
                view: self.job.view().to_owned(),
                key: self.encode_key(*key)?,
                partition: partitions.map(hash_partition),
            })
        };
        keys.iter().map(query).collect()
    }

    /// Merges the live entries of a key with its published version, and reads the selected rows;
    /// `None` if a live count does not join the version.
    async fn read_key(
        &self,
        context: KeyReadContext<'_>,
        query: &EntryQuery,
        live_entries: &LiveEntries,
        head: Option<&StoredHead>,
    ) -> Result<Option<BoardReading>, ReadError> {
        let view = self.job.view();
        let only_partition = query.partition.map(|partition| partition as usize);
        let newest = context.newest;
        let seam = context
            .snapshot
            .build_seam(view, view, newest, only_partition);
        seam.check_table(context.has_table)?;
        let boards = merge_boards(&seam, self.job, head, Some(live_entries))?;
        let nodes = StoredNodes::new(&*self.ports.views, view, &query.key);
        if context.uses_live_counts {
            let base_epoch = seam::base_epoch(head.map_or(0, |head| head.epoch), newest);
            let root = head.map(|head| &*head.root);
            if let Some(size) = compute_size(&boards, live_entries, root, base_epoch) {
                return Ok(size);
            }
        }
        let mut reading = self
            .read_board(&boards, &nodes, &self.request.selection)
            .await?;
        if self.request.explains {
            let explanation = self.explain(&boards, &nodes, newest, live_entries, head);
            reading.explanation = Some(Arc::new(Box::pin(explanation).await?));
        }
        Ok(Some(BoardReading {
            is_split: boards.is_split(),
            ..reading
        }))
    }
}

/// Computes the size of a key's only board from its live count, which must belong to the version
/// (`root`) and base epoch that were read. Returns `None` if live entries determine the size
/// instead, and `Some(None)` if the live count does not join the version. The count covers a single
/// partition, so no other partition may hold live entries of the key.
fn compute_size(
    version: &KeyBoards,
    live_entries: &LiveEntries,
    root: Option<&[u8]>,
    base_epoch: Epoch,
) -> Option<Option<BoardReading>> {
    let counts = live_entries.live_counts.iter();
    let live_counts: Vec<&[u8]> = counts.filter_map(|(_, count)| count.content()).collect();
    let version_size = version.version_sum();
    let reading = |sum, layers| BoardReading {
        sum,
        layers,
        ..BoardReading::default()
    };
    match live_counts.as_slice() {
        [] if version.has_live_entries() => None,
        [] => Some(Some(reading(version_size, (version_size.count > 0, false)))),
        // Another partition may hold live entries of the key too, since partitions were added.
        [bytes] if !version.has_live_entries() => {
            let count = LiveCount::decode(bytes).filter(|count| count.applies_to(root, base_epoch));
            let total = count.and_then(|count| Some((count.total(version_size)?, count)));
            Some(
                total.map(|(total, count)| reading(total, count.contributing_layers(version_size))),
            )
        }
        _ => Some(None),
    }
}
