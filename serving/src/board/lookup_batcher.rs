//! Batches queries to cached boards.
//!
//! Queries that arrive during a call are collected for the next call: one round trip and one
//! script, and common data is read once. A call begins after all of its queries arrived, so each
//! answer includes everything that was counted before its query. A single query is sent
//! immediately, and a call that hangs delays the next one only briefly.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use schemas::source::Source;
use stores::board_cache::{BoardQuery, BoardSelection, CachedBoardSnapshot};

use crate::lock::lock;
use crate::read_error::ReadError;

/// Maximum queries per call. Each takes some hundredths of a millisecond, during which the cache
/// server handles no other request.
const QUERIES_PER_CALL_MAX: usize = 64;
/// Maximum rows per call.
const ROWS_PER_CALL_MAX: u64 = 1_000;
/// Queries for more rows are not batched, because other queries would wait for them.
const BATCHED_ROWS_MAX: u64 = 100;
/// Maximum wait for the previous call.
pub(crate) const PREVIOUS_CALL_WAIT_MAX: Duration = Duration::from_millis(50);

/// The answers of a call; each is moved out by its query.
type Answers = Arc<Vec<Mutex<Option<CachedBoardSnapshot>>>>;
type CallResult = Result<Answers, Arc<stores::Error>>;
type Call = Shared<BoxFuture<'static, CallResult>>;
type WeakCall = WeakShared<BoxFuture<'static, CallResult>>;

/// Calls and pending queries by source.
#[derive(Debug)]
pub(crate) struct LookupBatcher {
    queues: Arc<Mutex<HashMap<Source, LookupQueue>>>,
    previous_call_wait: Duration,
}

#[derive(Debug, Default)]
struct LookupQueue {
    /// The last call that began.
    running: Option<WeakCall>,
    /// The call that begins when that one ends.
    waiting: Option<PendingCall>,
}

#[derive(Debug)]
struct PendingCall {
    call: WeakCall,
    queries: Vec<BoardQuery>,
    /// Maximum rows that the queries return.
    rows: u64,
}

impl LookupBatcher {
    pub(crate) fn new(previous_call_wait: Duration) -> Self {
        Self {
            queues: Arc::default(),
            previous_call_wait,
        }
    }

    /// Returns the answers in the order of `queries`; `None` if the queries are too large for a
    /// batch. `fetch` sends a call.
    ///
    /// # Errors
    /// [`ReadError::Store`].
    pub(crate) async fn read<A>(
        &self,
        source: Source,
        queries: &[BoardQuery],
        fetch: impl FnOnce(Vec<BoardQuery>) -> A + Send + 'static,
    ) -> Result<Option<Vec<CachedBoardSnapshot>>, ReadError>
    where
        A: Future<Output = stores::Result<Vec<CachedBoardSnapshot>>> + Send,
    {
        let Some((call, first_index)) = self.join(source, queries, fetch) else {
            return Ok(None);
        };
        let answers = call.await.map_err(ReadError::Store)?;
        let query_answers = answers.iter().skip(first_index).take(queries.len());
        Ok(Some(
            query_answers
                .filter_map(|answer| lock(answer).take())
                .collect(),
        ))
    }

    /// Joins or creates a call; returns it and the index of the first answer.
    fn join<A>(
        &self,
        source: Source,
        queries: &[BoardQuery],
        fetch: impl FnOnce(Vec<BoardQuery>) -> A + Send + 'static,
    ) -> Option<(Call, usize)>
    where
        A: Future<Output = stores::Result<Vec<CachedBoardSnapshot>>> + Send,
    {
        let rows = queries.iter().map(count_rows_max).sum();
        if queries.len() > QUERIES_PER_CALL_MAX || rows > BATCHED_ROWS_MAX {
            return None;
        }
        let mut queues = lock(&self.queues);
        let queue = queues.entry(source).or_default();
        let running = queue.running.as_ref().and_then(WeakCall::upgrade);
        let Some(running) = running.filter(|call| call.peek().is_none()) else {
            let queries = queries.to_vec();
            let call = async move { share_answers(fetch(queries).await) }
                .boxed()
                .shared();
            queue.running = call.downgrade();
            return Some((call, 0));
        };
        if let Some(waiting) = &mut queue.waiting
            && let Some(call) = waiting.call.upgrade()
        {
            let first_index = waiting.queries.len();
            if first_index + queries.len() > QUERIES_PER_CALL_MAX
                || waiting.rows + rows > ROWS_PER_CALL_MAX
            {
                return None;
            }
            waiting.queries.extend_from_slice(queries);
            waiting.rows += rows;
            return Some((call, first_index));
        }
        let (queues_of_call, previous_call_wait) =
            (Arc::clone(&self.queues), self.previous_call_wait);
        let next = async move {
            // The previous call ended or hangs.
            drop(tokio::time::timeout(previous_call_wait, running).await);
            let queries = start_pending_call(&queues_of_call, source);
            share_answers(fetch(queries).await)
        };
        let next = next.boxed().shared();
        queue.waiting = next.downgrade().map(|call| PendingCall {
            call,
            queries: queries.to_vec(),
            rows,
        });
        Some((next, 0))
    }
}

/// Starts the waiting call, so that no later query joins it, and returns its queries.
fn start_pending_call(
    queues: &Mutex<HashMap<Source, LookupQueue>>,
    source: Source,
) -> Vec<BoardQuery> {
    let mut queues = lock(queues);
    let queue = queues.entry(source).or_default();
    let Some(pending) = queue.waiting.take() else {
        return Vec::new();
    };
    queue.running = Some(pending.call);
    pending.queries
}

/// Wraps the answers of a call so that each query can move out its own.
fn share_answers(answers: stores::Result<Vec<CachedBoardSnapshot>>) -> CallResult {
    let answers = answers?.into_iter();
    Ok(Arc::new(
        answers.map(|answer| Mutex::new(Some(answer))).collect(),
    ))
}

/// Maximum rows that a query returns.
fn count_rows_max(query: &BoardQuery) -> u64 {
    match &query.selection {
        BoardSelection::TotalsOnly => 0,
        BoardSelection::Page { limit, .. } | BoardSelection::After { limit, .. } => *limit as u64,
        BoardSelection::Around { around, .. } => around.saturating_mul(2).saturating_add(1),
        BoardSelection::Members(members) | BoardSelection::MembersWithIndexes(members) => {
            members.len() as u64
        }
    }
}

#[cfg(test)]
#[path = "lookup_batcher_tests.rs"]
mod tests;
