//! Consistent reads of boards, as described in docs/internals/seam.md: the newest runs, then the
//! partition states with the live states, then the heads and their nodes.

use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use jobs::board::{Head, KeyBoards, LiveCount};
use jobs::{Board, Job};
use schemas::key::KeyError;
use schemas::partition::partition_of;
use schemas::seam::{self, Epoch};
use stores::ErrorKind;
use stores::live::{LiveStates, StateQuery};
use stores::views::{Head as StoredHead, RunRecords};
use tokio::time::Duration;

use super::reader::{BoardQuestion, BoardReadContext, BoardReader, StoredNodes, live_states};
use super::reading::{BoardReading, BoardsReading};
use crate::read::{RunsAndStates, has_new_partition};
use crate::read_error::ReadError;
use crate::read_position::ReadPosition;
use crate::retry_budget::RetryBudget;

/// Number of keys whose boards are read concurrently.
const CONCURRENT_KEYS: usize = 8;
/// Maximum keys whose live states are read at once if live counts do not suffice: a key may have
/// many.
const KEYS_WITH_STATES_MAX: usize = 32;

/// Reads boards. While live state is incomplete, it retries for up to `retry_for` after the first
/// failure. Each attempt holds a permit, which bounds memory.
///
/// # Errors
/// [`ReadError`]; the API answers [`ReadError::SeamMismatch`] with status 503.
pub(crate) async fn read(
    context: BoardReadContext<'_>,
    job: &Arc<Job<Board>>,
    question: &BoardQuestion,
    retry_for: Duration,
) -> Result<BoardsReading, ReadError> {
    let mut budget = RetryBudget::new(retry_for);
    let mut reader = BoardReader::new(context, job, question);
    loop {
        let permit = context.permits.acquire().await;
        let error = match reader.attempt().await {
            Err(error @ (ReadError::SeamMismatch(_) | ReadError::Replaced)) => error,
            result => return result,
        };
        drop(permit);
        reader.refresh = true;
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
            self.ports.log.partitions(source.topic()),
            self.caches
                .runs
                .get(&*self.ports.views, source, self.refresh)
        )?;
        // After a loss of the log its partition states still exist: they show the missing data.
        let partitions = (partitions as usize).max(runs.runs.partitions());
        if !self.refresh {
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
        let (boards, position) = if self.asks_only_size() {
            Box::pin(self.read_live_counts(&runs, partitions)).await?
        } else {
            let keys = self.question.keys.as_slice();
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
    /// again in chunks, with their live states. Each board is exact for its own position.
    async fn read_live_counts(
        &mut self,
        runs: &Arc<RunRecords>,
        partitions: usize,
    ) -> Result<(Vec<Option<BoardReading>>, ReadPosition), ReadError> {
        let question = self.question;
        let keys = question.keys.as_slice();
        let read = Box::pin(self.read_stored(Arc::clone(runs), partitions, keys, true)).await?;
        let (mut boards, mut position) = read;
        let keys_with_boards = question.keys.iter().zip(&boards);
        let remaining = keys_with_boards.filter(|(_, board)| board.is_none());
        let remaining: Vec<i64> = remaining.map(|(key, _)| *key).collect();
        if remaining.is_empty() {
            return Ok((boards, position));
        }
        let own_position = Arc::new(position.clone());
        for board in boards.iter_mut().flatten() {
            board.own_position = Some(Arc::clone(&own_position));
        }
        for chunk in remaining.chunks(KEYS_WITH_STATES_MAX) {
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

    /// Reads the batch rows and live states of some keys, or their live counts where these are
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
        let cuts = runs.runs.get(newest).map_or(0, |run| run.cuts.len());
        let mut queries;
        let live = loop {
            let count = u32::try_from(partitions).unwrap_or(u32::MAX);
            // If partitions were added since the run, the states of one key may be in two of them.
            let unchanged_count = (cuts == partitions).then_some(count);
            queries = self.state_queries(keys, unchanged_count)?;
            let count = count.saturating_add(1);
            let mut live = match uses_live_counts {
                true => {
                    self.ports
                        .live
                        .read_live_counts(source, count, &queries)
                        .await?
                }
                false => self.ports.live.read_states(source, count, &queries).await?,
            };
            if !has_new_partition(&mut live.partition_states) {
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
        if newest == 0 || cuts == partitions {
            self.request_counts(keys, &live.states, newest, partitions)?;
        }
        let encoded: Vec<Vec<u8>> = queries.iter().map(|query| query.key.clone()).collect();
        let heads = self.ports.views.heads(view, &encoded).await?;
        let has_table = heads.is_some();
        let mut heads = heads.unwrap_or_default().into_iter();
        let snapshot = RunsAndStates {
            runs,
            states: live.partition_states,
        };
        let found = queries.iter().zip(&live.states).zip(keys);
        let context = KeyReadContext {
            snapshot: &snapshot,
            newest,
            has_table,
            uses_live_counts,
        };
        let reader = &*self;
        let readings = found.map(|((query, states), key)| {
            let head = heads.next().flatten();
            async move {
                let read = reader.read_key(context, query, states, head.as_ref()).await;
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

    /// Queries for the live states of some keys. With a number of partitions, each key is in the
    /// partition of its hash; without one, it may be in any.
    fn state_queries(
        &self,
        keys: &[i64],
        partitions: Option<u32>,
    ) -> Result<Vec<StateQuery>, KeyError> {
        let query = |key: &i64| {
            let hash_partition = |count| partition_of(key.to_string().as_bytes(), count);
            Ok(StateQuery {
                view: self.job.view().to_owned(),
                key: self.key_bytes(*key)?,
                partition: partitions.map(hash_partition),
            })
        };
        keys.iter().map(query).collect()
    }

    /// Merges the live states of a key with its published version, and reads the wanted rows;
    /// `None` if a live count does not join the version.
    async fn read_key(
        &self,
        context: KeyReadContext<'_>,
        query: &StateQuery,
        states: &LiveStates,
        stored: Option<&StoredHead>,
    ) -> Result<Option<BoardReading>, ReadError> {
        let view = self.job.view();
        let only = query.partition.map(|partition| partition as usize);
        let newest = context.newest;
        let seam = context.snapshot.seam(view, view, newest, only);
        seam.check_table(context.has_table)?;
        let head = stored.map(|head| Head {
            epoch: head.epoch,
            root: &head.root,
        });
        let score_bytes = 8 * self.job.score().0.len();
        let boards = KeyBoards::merge(&seam, head, live_states(states), score_bytes)?;
        let nodes = StoredNodes {
            views: &*self.ports.views,
            view,
            key: &query.key,
        };
        if context.uses_live_counts {
            let base = seam::base(stored.map_or(0, |head| head.epoch), newest);
            let root = stored.map(|head| &*head.root);
            if let Some(size) = size_from_live_count(&boards, states, root, base) {
                return Ok(size);
            }
        }
        let mut reading = self
            .read_board(&boards, &nodes, &self.question.want)
            .await?;
        if self.question.explains {
            let explained = self.explain(&boards, &nodes, newest, states, stored);
            reading.explanation = Some(Arc::new(Box::pin(explained).await?));
        }
        Ok(Some(BoardReading {
            is_split: boards.is_split(),
            ..reading
        }))
    }
}

/// Size of a key's only board from its live count, checked against the version (`root`) and base
/// epoch that were read. Returns `None` if live states determine the size instead, and `Some(None)`
/// if the live count does not join the version. The count covers a single partition, so no other
/// partition may hold states of the key.
fn size_from_live_count(
    version: &KeyBoards,
    states: &LiveStates,
    root: Option<&[u8]>,
    base: Epoch,
) -> Option<Option<BoardReading>> {
    let counts = states.live_counts.iter();
    let live_counts: Vec<&[u8]> = counts.filter_map(|(_, count)| count.content()).collect();
    let version_size = version.version_sum();
    let reading = |sum, layers| BoardReading {
        sum,
        layers,
        ..BoardReading::default()
    };
    match live_counts.as_slice() {
        [] if version.has_live() => None,
        [] => Some(Some(reading(version_size, (version_size.count > 0, false)))),
        // Another partition may hold states of the key too, since partitions were added.
        [only] if !version.has_live() => {
            let count = LiveCount::decode(only).filter(|count| count.joins(root, base));
            let total = count.and_then(|count| Some((count.total(version_size)?, count)));
            Some(total.map(|(total, count)| reading(total, count.layers(version_size))))
        }
        _ => Some(None),
    }
}
