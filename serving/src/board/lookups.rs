//! Questions for cached boards that go to the store together.
//!
//! While a call is under way, questions that come gather, and the next call is for all of them: one
//! round trip, one script, and what is the same for all is read once. A call begins after everybody
//! whom it answers has asked, so an answer holds all that was counted before. Who comes alone waits for
//! nobody, and nobody waits long for a call that hangs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use schemas::source::Source;
use stores::board_cache::{BoardAnswer, BoardQuery, BoardWant};

use crate::lock::lock;
use crate::read::ReadError;

/// Questions of one call. Each takes some hundredths of a millisecond, and the server does nothing else
/// meanwhile.
const TOGETHER_MAX: usize = 64;
/// Rows of one call.
const ROWS_MAX: u64 = 1_000;
/// Who asks for more rows than this asks alone: others would wait for them.
const OWN_ROWS_MAX: u64 = 100;
/// Nobody waits longer than this for the call before.
pub(crate) const BEHIND_MAX: Duration = Duration::from_millis(50);

/// The answers of a call, each for the one who asked.
type Answers = Arc<Vec<Mutex<Option<BoardAnswer>>>>;
type Answered = Result<Answers, Arc<stores::Error>>;
type Call = Shared<BoxFuture<'static, Answered>>;
type WeakCall = WeakShared<BoxFuture<'static, Answered>>;

/// By source: calls and the questions for them.
#[derive(Debug)]
pub(crate) struct Lookups {
    lanes: Arc<Mutex<HashMap<Source, Lane>>>,
    behind_max: Duration,
}

#[derive(Debug, Default)]
struct Lane {
    /// The call that has begun last.
    running: Option<WeakCall>,
    /// The call that begins when that one ends.
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    call: WeakCall,
    queries: Vec<BoardQuery>,
    /// That they ask for, at most.
    rows: u64,
}

impl Lookups {
    pub(crate) fn new(behind_max: Duration) -> Self {
        Self {
            lanes: Arc::default(),
            behind_max,
        }
    }

    /// The answers to questions, in their order; nothing for who better asks alone. `ask` asks.
    ///
    /// # Errors
    /// [`ReadError::Store`].
    pub(crate) async fn read<A>(
        &self,
        source: Source,
        queries: &[BoardQuery],
        ask: impl FnOnce(Vec<BoardQuery>) -> A + Send + 'static,
    ) -> Result<Option<Vec<BoardAnswer>>, ReadError>
    where
        A: Future<Output = stores::Result<Vec<BoardAnswer>>> + Send,
    {
        let Some((call, first)) = self.join(source, queries, ask) else {
            return Ok(None);
        };
        let answers = call.await.map_err(ReadError::Store)?;
        let own = answers.iter().skip(first).take(queries.len());
        Ok(Some(own.filter_map(|answer| lock(answer).take()).collect()))
    }

    /// The call that has the answers, and where in them they begin.
    fn join<A>(
        &self,
        source: Source,
        queries: &[BoardQuery],
        ask: impl FnOnce(Vec<BoardQuery>) -> A + Send + 'static,
    ) -> Option<(Call, usize)>
    where
        A: Future<Output = stores::Result<Vec<BoardAnswer>>> + Send,
    {
        let rows = queries.iter().map(rows_of).sum();
        if queries.len() > TOGETHER_MAX || rows > OWN_ROWS_MAX {
            return None;
        }
        let mut lanes = lock(&self.lanes);
        let lane = lanes.entry(source).or_default();
        let running = lane.running.as_ref().and_then(WeakCall::upgrade);
        let Some(running) = running.filter(|call| call.peek().is_none()) else {
            let queries = queries.to_vec();
            let call = async move { each(ask(queries).await) }.boxed().shared();
            lane.running = call.downgrade();
            return Some((call, 0));
        };
        if let Some(waiting) = &mut lane.waiting
            && let Some(call) = waiting.call.upgrade()
        {
            let first = waiting.queries.len();
            if first + queries.len() > TOGETHER_MAX || waiting.rows + rows > ROWS_MAX {
                return None;
            }
            waiting.queries.extend_from_slice(queries);
            waiting.rows += rows;
            return Some((call, first));
        }
        let (all, behind_max) = (Arc::clone(&self.lanes), self.behind_max);
        let next = async move {
            // It is over, or it hangs.
            drop(tokio::time::timeout(behind_max, running).await);
            let queries = begin(&all, source);
            each(ask(queries).await)
        };
        let next = next.boxed().shared();
        lane.waiting = next.downgrade().map(|call| Waiting {
            call,
            queries: queries.to_vec(),
            rows,
        });
        Some((next, 0))
    }
}

/// From now on nobody joins the call that waited; its questions.
fn begin(lanes: &Mutex<HashMap<Source, Lane>>, source: Source) -> Vec<BoardQuery> {
    let mut lanes = lock(lanes);
    let lane = lanes.entry(source).or_default();
    let Some(begun) = lane.waiting.take() else {
        return Vec::new();
    };
    lane.running = Some(begun.call);
    begun.queries
}

/// The answers of a call, each to be taken by the one who asked.
fn each(answers: stores::Result<Vec<BoardAnswer>>) -> Answered {
    let answers = answers?.into_iter();
    Ok(Arc::new(
        answers.map(|answer| Mutex::new(Some(answer))).collect(),
    ))
}

/// How many rows a question asks for, at most.
fn rows_of(query: &BoardQuery) -> u64 {
    match &query.want {
        BoardWant::Sums => 0,
        BoardWant::Page { limit, .. } | BoardWant::After { limit, .. } => *limit as u64,
        BoardWant::Around { around, .. } => around.saturating_mul(2).saturating_add(1),
        BoardWant::Members(members) | BoardWant::Places(members) => members.len() as u64,
    }
}

#[cfg(test)]
#[path = "lookups_tests.rs"]
mod tests;
