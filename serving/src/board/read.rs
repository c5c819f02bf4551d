//! Consistent reads of boards, as described in docs/internals/seam.md: the newest runs, then the
//! partition states with the live states, then the heads and their nodes.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use jobs::board::{
    BoardSnapshot, FilteredBoard, Head, KeyBoards, LiveCount, LiveEntry, RankedEntry,
    ReadError as BoardError,
};
use jobs::tree::{Node, NodeId, Nodes, Sum};
use jobs::{Board, Job};
use schemas::key::{KeyError, KeyValue};
use schemas::partition::partition_of;
use schemas::seam::{self, Epoch};
use stores::ErrorKind;
use stores::board_cache::BoardSelection;
use stores::live::{LiveStates, StateQuery};
use stores::views::{Head as StoredHead, NodeName, RunRecords, ViewsRead};
use tokio::sync::Semaphore;
use tokio::time::Duration;

use super::cached::RecentBoardReads;
use super::explanation::BoardExplanation;
use super::question::Section;
use crate::options::ServingPorts;
use crate::read::{ReadCaches, ReadError, ReadPosition, RunsAndStates, has_new_partition};
use crate::retry_budget::RetryBudget;
use crate::stale_cache::Cacheable;

/// Number of rows whose payloads are decoded at once.
const DECODE_ROWS: usize = 1024;
/// Number of keys whose boards are read concurrently.
const CONCURRENT_KEYS: usize = 8;
/// Maximum keys whose live states are read at once if live counts do not suffice: a key may have
/// many.
const KEYS_WITH_STATES_MAX: usize = 32;

/// A question about the boards of some keys.
#[derive(Debug, Clone, Hash)]
pub(crate) struct BoardQuestion {
    pub(crate) keys: Vec<i64>,
    pub(crate) section: Section,
    /// Restricts the rows to these members.
    pub(crate) members: Option<Vec<i64>>,
    /// Wanted rows, with encoded members; the members of `Places` are sorted.
    pub(crate) want: BoardSelection,
    /// True if the answer explains the board and the wanted member.
    pub(crate) explains: bool,
}

/// Result for the board of one key.
#[derive(Debug, Clone, Default)]
pub(crate) struct BoardReading {
    /// Totals of all rows that match the filters.
    pub(crate) sum: Sum,
    /// Index of the first row, from 0.
    pub(crate) first_index: u64,
    pub(crate) rows: Vec<RankedEntry>,
    /// Indexes of the rows, if they are not consecutive.
    pub(crate) indexes: Option<Vec<u64>>,
    /// Index of the requested member.
    pub(crate) member_index: Option<u64>,
    /// Contributions of the batch layer and of live states.
    pub(crate) layers: (bool, bool),
    /// Explanation, if requested.
    pub(crate) explanation: Option<Arc<BoardExplanation>>,
    /// True if some rows may be older than the reported position.
    pub(crate) is_split: bool,
    /// Position of this board, if the keys were not read at once.
    pub(crate) own_position: Option<Arc<ReadPosition>>,
}

/// Result of a read: the boards in the order of the keys, and the position.
#[derive(Debug, Clone)]
pub(crate) struct BoardsReading {
    pub(crate) boards: Vec<BoardReading>,
    /// Position that all boards reflect at least.
    pub(crate) read_position: ReadPosition,
}

impl BoardsReading {
    /// The boards, each with its position.
    pub(crate) fn boards_with_positions(
        &self,
    ) -> impl Iterator<Item = (&BoardReading, ReadPosition)> {
        self.boards.iter().map(move |board| {
            let mut position = board
                .own_position
                .as_deref()
                .unwrap_or(&self.read_position)
                .clone();
            position.complete &= self.read_position.complete;
            (board, position)
        })
    }
}

impl Cacheable for BoardsReading {
    fn read_position_mut(&mut self) -> &mut ReadPosition {
        &mut self.read_position
    }

    fn bytes(&self) -> usize {
        let rows = self.boards.iter().flat_map(|board| &board.rows);
        let row_bytes = |row: &RankedEntry| {
            size_of::<RankedEntry>() + row.member.len() + row.score.len() + row.payload.len()
        };
        self.boards.len() * size_of::<BoardReading>() + rows.map(row_bytes).sum::<usize>()
    }
}

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

/// Ports, caches and limits of board reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoardReadContext<'a> {
    pub(crate) ports: &'a ServingPorts,
    pub(crate) caches: &'a ReadCaches,
    pub(crate) reports: &'a RecentBoardReads,
    /// Permits of attempts, which bound memory.
    pub(crate) permits: &'a Semaphore,
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

pub(super) struct BoardReader<'a> {
    pub(super) ports: &'a ServingPorts,
    pub(super) job: &'a Arc<Job<Board>>,
    pub(super) question: &'a BoardQuestion,
    pub(super) caches: &'a ReadCaches,
    pub(super) reports: &'a RecentBoardReads,
    /// True to ignore cached run records.
    refresh: bool,
    /// Key and head whose nodes were missing in the last attempt.
    missing_nodes: Option<(i64, StoredHead)>,
}

impl<'a> BoardReader<'a> {
    pub(super) const fn new(
        context: BoardReadContext<'a>,
        job: &'a Arc<Job<Board>>,
        question: &'a BoardQuestion,
    ) -> Self {
        Self {
            ports: context.ports,
            job,
            question,
            caches: context.caches,
            reports: context.reports,
            refresh: false,
            missing_nodes: None,
        }
    }
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

    /// True if live counts can answer: the question only asks for the size of the only board of
    /// each key.
    pub(super) fn asks_only_size(&self) -> bool {
        self.question.want == BoardSelection::TotalsOnly
            && !self.question.explains
            && self.question.members.is_none()
            && self.question.section.filters.is_empty()
            && self.job.has_live_counts()
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

    /// Adds the view and key to an error. Missing nodes mean that the head was replaced; if the
    /// next attempt finds the same head, the nodes are lost.
    pub(super) fn annotate_error(
        &mut self,
        key: i64,
        head: Option<StoredHead>,
        error: ReadError,
    ) -> ReadError {
        let damaged =
            |what| ReadError::DamagedBoard(format!("view {}, key {key}: {what}", self.job.view()));
        match (error, head) {
            (ReadError::DamagedBoard(what), _) => damaged(what),
            (ReadError::Replaced, Some(head)) => {
                let epoch = head.epoch;
                let missing = Some((key, head));
                if self.missing_nodes == missing {
                    return damaged(format!(
                        "nodes of the boards of epoch {epoch} are missing, though their head was not replaced"
                    ));
                }
                self.missing_nodes = missing;
                ReadError::Replaced
            }
            (error, _) => error,
        }
    }

    pub(super) async fn read_board(
        &self,
        boards: &KeyBoards,
        nodes: &StoredNodes<'_>,
        want: &BoardSelection,
    ) -> Result<BoardReading, ReadError> {
        let section = self.section()?;
        let board = boards.board(nodes, &section.board).await?;
        if self.question.members.is_some() || !section.filters.is_empty() {
            return self.read_filtered(&section, &board, want).await;
        }
        let mut reading = BoardReading {
            sum: board.sum(),
            layers: board.layers(),
            ..BoardReading::default()
        };
        match want {
            BoardSelection::TotalsOnly | BoardSelection::Members(_) => {}
            BoardSelection::Page { offset, limit } => {
                reading.first_index = *offset;
                reading.rows = board.page(*offset, *limit).await?;
            }
            BoardSelection::After {
                score,
                member,
                limit,
            } => {
                reading.first_index = board.count_up_to(score, member).await?;
                reading.rows = board.page(reading.first_index, *limit).await?;
            }
            BoardSelection::MembersWithIndexes(members) => {
                let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
                let found = board.find_all(&members).await?;
                let (indexes, rows) = found.into_iter().unzip();
                (reading.indexes, reading.rows) = (Some(indexes), rows);
            }
            BoardSelection::Around { member, around } => {
                if let Some((index, _)) = board.find(member).await? {
                    let (first, length) = index_range(index, *around);
                    reading.member_index = Some(index);
                    reading.first_index = first;
                    reading.rows = board.page(first, length).await?;
                }
            }
        }
        Ok(reading)
    }

    /// Scans the rows that can match the filters, and collects the wanted ones.
    async fn read_filtered(
        &self,
        section: &FilteredBoard,
        board: &BoardSnapshot<'_, StoredNodes<'_>>,
        want: &BoardSelection,
    ) -> Result<BoardReading, ReadError> {
        let mut filtered = FilteredRows::new(want.clone());
        let members = self.encoded_members()?;
        let mut add = |rows: Vec<RankedEntry>| -> Result<(), KeyError> {
            for row in self.filter_rows(section, rows)? {
                let is_live = board.is_live(&row.member);
                filtered.add(row, is_live);
            }
            Ok(())
        };
        match &members {
            Some(members) => {
                let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
                add(board.members(&members).await?)?;
            }
            None => {
                let mut rows = Vec::with_capacity(DECODE_ROWS);
                let mut result = Ok(());
                board
                    .scan(|row| {
                        rows.push(row);
                        if rows.len() >= DECODE_ROWS {
                            result = add(std::mem::take(&mut rows));
                        }
                        result.is_ok()
                    })
                    .await?;
                result?;
                add(rows)?;
            }
        }
        if !filtered.reading.layers.1 {
            // A row that a newer state removed also contributed if it matched the filters.
            let is_covered = |member: &[u8]| covers_member(members.as_deref(), member);
            let removed = board.removed_entries(is_covered).await?;
            filtered.reading.layers.1 = !self.filter_rows(section, removed)?.is_empty();
        }
        Ok(filtered.finish())
    }

    pub(super) fn key_bytes(&self, key: i64) -> Result<Vec<u8>, KeyError> {
        self.job.key().encode_values(&[KeyValue::Int(key)])
    }

    /// The encoded members that the question is restricted to, if any.
    pub(super) fn encoded_members(&self) -> Result<Option<Vec<Vec<u8>>>, KeyError> {
        let members = self.question.members.as_deref();
        let members = members.map(|members| encode_members(self.job, members));
        members.transpose()
    }

    /// The rows that match all filters of a section.
    pub(super) fn filter_rows(
        &self,
        section: &FilteredBoard,
        rows: Vec<RankedEntry>,
    ) -> Result<Vec<RankedEntry>, KeyError> {
        let payloads = rows.iter().map(|row| row.payload.as_slice());
        let matches = section.matching(self.job.payload(), payloads)?;
        let mut matches = matches.into_iter();
        let filtered = rows.into_iter().filter(|_| matches.next() == Some(true));
        Ok(filtered.collect())
    }
}

/// Encodes members as they are stored.
pub(crate) fn encode_members(job: &Job<Board>, members: &[i64]) -> Result<Vec<Vec<u8>>, KeyError> {
    let encoded = |member: &i64| job.member().encode_values(&[KeyValue::Int(*member)]);
    members.iter().map(encoded).collect()
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

/// True if a question covers a member. `members` is sorted, and `None` covers all.
pub(super) fn covers_member(members: Option<&[Vec<u8>]>, member: &[u8]) -> bool {
    members.is_none_or(|members| {
        let found = members.binary_search_by(|other| other.as_slice().cmp(member));
        found.is_ok()
    })
}

/// First index and number of the rows around an index.
fn index_range(index: u64, around: u64) -> (u64, usize) {
    let first = index.saturating_sub(around);
    let length = index.saturating_add(around).saturating_add(1) - first;
    (first, usize::try_from(length).unwrap_or(usize::MAX))
}

pub(super) fn live_states(states: &LiveStates) -> impl Iterator<Item = LiveEntry<'_>> {
    let keys = states
        .partitions
        .values()
        .iter()
        .zip(states.epochs.values());
    let values = states.members.iter().zip(states.states.iter());
    keys.zip(values)
        .map(|((partition, epoch), (member, state))| LiveEntry {
            partition: *partition as usize,
            epoch: *epoch,
            member: member.unwrap_or_default(),
            state,
        })
}

/// Collects wanted rows from the rows that match the filters, in the order of ranks, and counts
/// all.
pub(super) struct FilteredRows {
    wanted: BoardSelection,
    rows: VecDeque<RankedEntry>,
    reading: BoardReading,
}

impl FilteredRows {
    pub(super) fn new(wanted: BoardSelection) -> Self {
        Self {
            wanted,
            rows: VecDeque::new(),
            reading: BoardReading::default(),
        }
    }

    pub(super) fn add(&mut self, row: RankedEntry, is_live: bool) {
        let reading = &mut self.reading;
        let index = reading.sum.count;
        reading.sum.count += 1;
        reading.sum.weight = reading.sum.weight.saturating_add(row.weight);
        reading.layers.0 |= !is_live;
        reading.layers.1 |= is_live;
        match &self.wanted {
            BoardSelection::TotalsOnly | BoardSelection::Members(_) => {}
            BoardSelection::Page { offset, limit } => {
                if index >= *offset && self.rows.len() < *limit {
                    self.rows.push_back(row);
                }
            }
            BoardSelection::After {
                score,
                member,
                limit,
            } => {
                if row.order() <= (score.as_slice(), member.as_slice()) {
                    reading.first_index = index + 1;
                } else if self.rows.len() < *limit {
                    self.rows.push_back(row);
                }
            }
            BoardSelection::MembersWithIndexes(members) => {
                if covers_member(Some(members), &row.member) {
                    reading.indexes.get_or_insert_default().push(index);
                    self.rows.push_back(row);
                }
            }
            BoardSelection::Around { member, around } => {
                if row.member == *member {
                    reading.member_index = Some(index);
                }
                match reading.member_index {
                    Some(found) if index - found > *around => {}
                    Some(_) => self.rows.push_back(row),
                    // Until the member is reached, keep only rows that may be its neighbours.
                    None => {
                        self.rows.push_back(row);
                        if self.rows.len() as u64 > *around {
                            self.rows.pop_front();
                        }
                    }
                }
            }
        }
    }

    pub(super) fn finish(self) -> BoardReading {
        let mut reading = self.reading;
        reading.first_index = match (&self.wanted, reading.member_index) {
            (
                BoardSelection::TotalsOnly
                | BoardSelection::Members(_)
                | BoardSelection::MembersWithIndexes(_),
                _,
            ) => 0,
            (BoardSelection::Page { offset, .. }, _) => *offset,
            (BoardSelection::After { .. }, _) => reading.first_index,
            (BoardSelection::Around { around, .. }, Some(index)) => index_range(index, *around).0,
            (BoardSelection::Around { .. }, None) => return reading,
        };
        reading.rows = self.rows.into();
        reading
    }
}

/// The nodes of one key.
#[derive(Debug)]
pub(super) struct StoredNodes<'a> {
    pub(super) views: &'a dyn ViewsRead,
    pub(super) view: &'a str,
    pub(super) key: &'a [u8],
}

/// Reason why nodes could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodesError {
    #[error(transparent)]
    Store(#[from] stores::Error),
    #[error(transparent)]
    Damaged(#[from] jobs::tree::TreeDamage),
}

impl Nodes for StoredNodes<'_> {
    type Error = NodesError;

    async fn nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, NodesError> {
        let names: Vec<NodeName> = ids.iter().map(|id| *id.as_bytes()).collect();
        let stored = self.views.nodes(self.view, self.key, &names).await?;
        stored
            .into_iter()
            .map(|bytes| {
                Ok(bytes
                    .map(|bytes| Node::decode(&bytes))
                    .transpose()?
                    .map(Arc::new))
            })
            .collect()
    }
}

impl From<BoardError<NodesError>> for ReadError {
    fn from(error: BoardError<NodesError>) -> Self {
        match error {
            BoardError::SeamMismatch(not_whole) => Self::SeamMismatch(not_whole),
            BoardError::Replaced => Self::Replaced,
            BoardError::Damaged(what) => Self::DamagedBoard(what),
            BoardError::Store(NodesError::Store(error)) => error.into(),
            BoardError::Store(NodesError::Damaged(error)) => Self::DamagedBoard(error.to_string()),
        }
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
