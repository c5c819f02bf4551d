//! A consistent read of boards, as the seam demands it: the newest runs first, then the slots with
//! the live states, then the heads and what they refer to.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::Int64Type;
use jobs::board::{Head, LiveState, OnBoard, Ranked, ReadError as BoardError, Standings};
use jobs::merge::Seam;
use jobs::tree::{Node, NodeId, Nodes, Sum};
use jobs::{Board, Job};
use schemas::key::{KeyError, KeyValue};
use schemas::partition::partition_of;
use stores::live::{LiveStates, StateQuery};
use stores::views::{NodeName, ViewsRead};
use tokio::time::{Duration, Instant, sleep};

use super::question::{Section, Test};
use crate::options::ServingPorts;
use crate::read::{FIRST_WAIT, LONGEST_WAIT, ReadError, Seen, Standing};

/// Rows whose payloads are decoded at once.
const DECODE_ROWS: usize = 1024;

/// What is asked of the boards of some keys.
#[derive(Debug, Clone)]
pub(crate) struct BoardQuestion {
    pub(crate) keys: Vec<i64>,
    pub(crate) section: Section,
    /// Only these members, where not all.
    pub(crate) members: Option<Vec<i64>>,
    pub(crate) want: Want,
}

/// Which rows are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// None: only how many there are.
    Sums,
    /// So many from a place on.
    Page { offset: u64, limit: usize },
    /// A member's, and so many before and after.
    Around { member: i64, around: u64 },
}

/// What was read of one key's board.
#[derive(Debug, Clone, Default)]
pub(crate) struct BoardReading {
    /// All rows that the filters let through.
    pub(crate) sum: Sum,
    /// The place of the first of the rows, from 0 on.
    pub(crate) first: u64,
    pub(crate) rows: Vec<Ranked>,
    /// The place of the member that was asked for.
    pub(crate) found: Option<u64>,
    /// Whether the batch layer had a part in it, and whether anything newer had.
    pub(crate) layers: (bool, bool),
}

/// What a read found: key by key, and how far it reaches.
#[derive(Debug)]
pub(crate) struct BoardsReading {
    pub(crate) boards: Vec<BoardReading>,
    pub(crate) standing: Standing,
}

/// Reads boards, trying again for up to `patience` while live state is not whole.
///
/// # Errors
/// [`ReadError`]; a 503 to the asker where it is [`ReadError::NotWhole`].
pub(crate) async fn read(
    ports: &ServingPorts,
    job: &Arc<Job<Board>>,
    question: &BoardQuestion,
    patience: Duration,
) -> Result<BoardsReading, ReadError> {
    let deadline = Instant::now() + patience;
    let mut wait = FIRST_WAIT;
    let reader = Reader {
        ports,
        job,
        question,
    };
    loop {
        let error = match reader.attempt().await {
            Err(error @ (ReadError::NotWhole(_) | ReadError::Replaced)) => error,
            done => return done,
        };
        metrics::counter!("backstitch_serving_not_whole_total").increment(1);
        tracing::debug!(%error, "reading again");
        if Instant::now() + wait > deadline {
            return Err(error);
        }
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

struct Reader<'a> {
    ports: &'a ServingPorts,
    job: &'a Arc<Job<Board>>,
    question: &'a BoardQuestion,
}

impl Reader<'_> {
    async fn attempt(&self) -> Result<BoardsReading, ReadError> {
        let (source, view) = (self.job.source(), self.job.view());
        let (spans, runs) = tokio::try_join!(
            self.ports.log.spans(source.topic()),
            self.ports.views.runs(source)
        )?;
        let newest = runs.newest.get(view).copied().unwrap_or(0);
        let cuts = runs.runs.get(newest).map_or(0, |run| run.cuts.len());
        // A log that was lost still has its slots: they say whether all is there.
        let partitions = spans.len().max(runs.runs.partitions());
        if partitions == 0 {
            return Ok(self.nothing());
        }
        let count = u32::try_from(partitions).unwrap_or(u32::MAX);
        // Where partitions were added since the run, a key's states may be in two of them.
        let only = |key: i64| {
            (cuts == partitions).then(|| partition_of(key.to_string().as_bytes(), count))
        };
        let mut queries = Vec::with_capacity(self.question.keys.len());
        for key in &self.question.keys {
            queries.push(StateQuery {
                view: view.to_owned(),
                key: self.job.key().encode_values(&[KeyValue::Int(*key)])?,
                partition: only(*key),
            });
        }
        let live = self.ports.live.read_states(source, count, &queries).await?;
        let keys: Vec<Vec<u8>> = queries.iter().map(|query| query.key.clone()).collect();
        let heads = self.ports.views.heads(view, &keys).await?;
        let has_table = heads.is_some();
        let mut heads = heads.unwrap_or_default().into_iter();
        let seen = Seen {
            runs,
            slots: live.slots,
        };
        let mut boards = Vec::with_capacity(keys.len());
        for ((query, states), key) in queries.iter().zip(&live.states).zip(&keys) {
            let seam = Seam {
                view,
                newest,
                runs: &seen.runs.runs,
                slots: &seen.slots,
                only: query.partition.map(|partition| partition as usize),
            };
            seam.check_table(has_table)?;
            let head = heads.next().flatten();
            let head = head.as_ref().map(|head| Head {
                epoch: head.epoch,
                root: &head.root,
            });
            let score_bytes = 8 * self.job.score().0.len();
            let standings = Standings::merge(&seam, head, live_states(states), score_bytes)?;
            let nodes = StoredNodes {
                views: &*self.ports.views,
                view,
                key,
            };
            boards.push(self.board(&standings, &nodes).await?);
        }
        Ok(BoardsReading {
            boards,
            standing: seen.standing(source, newest),
        })
    }

    async fn board(
        &self,
        standings: &Standings,
        nodes: &StoredNodes<'_>,
    ) -> Result<BoardReading, ReadError> {
        let section = &self.question.section;
        let board = self.job.boards().encode_values(&section.board)?;
        let on_board = standings.board(nodes, &board).await?;
        let mut reading = BoardReading {
            layers: on_board.layers(),
            ..BoardReading::default()
        };
        let is_filtered = self.question.members.is_some() || !section.tests.is_empty();
        match (self.question.want, is_filtered) {
            (Want::Sums, false) => reading.sum = on_board.sum(),
            (Want::Page { offset, limit }, false) => {
                reading.sum = on_board.sum();
                reading.first = offset;
                reading.rows = on_board.page(offset, limit).await?;
            }
            (Want::Around { member, around }, false) => {
                reading.sum = on_board.sum();
                let member = self.job.member().encode_values(&[KeyValue::Int(member)])?;
                if let Some((place, _)) = on_board.find(&member).await? {
                    let (first, length) = stretch(place, around);
                    reading.found = Some(place);
                    reading.first = first;
                    reading.rows = on_board.page(first, length).await?;
                }
            }
            (want, true) => self.filtered(&on_board, want, &mut reading).await?,
        }
        Ok(reading)
    }

    /// Goes through the rows that the filters may let through, and keeps those that are wanted.
    async fn filtered(
        &self,
        on_board: &OnBoard<'_, StoredNodes<'_>>,
        want: Want,
        reading: &mut BoardReading,
    ) -> Result<(), ReadError> {
        let mut passing = match &self.question.members {
            Some(members) => {
                let encode =
                    |member: &i64| self.job.member().encode_values(&[KeyValue::Int(*member)]);
                let members: Vec<Vec<u8>> = members.iter().map(encode).collect::<Result<_, _>>()?;
                let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
                let rows = on_board.members(&members).await?;
                Passing::of(self, rows)?
            }
            None => {
                let mut passing = Passing::default();
                let mut rows = Vec::new();
                let mut failed = None;
                on_board
                    .scan(|row| {
                        rows.push(row);
                        if rows.len() < DECODE_ROWS {
                            return true;
                        }
                        match Passing::of(self, std::mem::take(&mut rows)) {
                            Ok(more) => passing.0.extend(more.0),
                            Err(error) => failed = Some(error),
                        }
                        failed.is_none()
                    })
                    .await?;
                if let Some(error) = failed {
                    return Err(error.into());
                }
                passing.0.extend(Passing::of(self, rows)?.0);
                passing
            }
        };
        let rows = &mut passing.0;
        reading.sum.count = rows.len() as u64;
        reading.sum.weight = rows.iter().map(|row| row.weight).sum();
        let (first, length) = match want {
            Want::Sums => (0, 0),
            Want::Page { offset, limit } => (offset, limit),
            Want::Around { member, around } => {
                let member = self.job.member().encode_values(&[KeyValue::Int(member)])?;
                let Some(place) = rows.iter().position(|row| row.member == member) else {
                    return Ok(());
                };
                reading.found = Some(place as u64);
                stretch(place as u64, around)
            }
        };
        reading.first = first;
        let first = usize::try_from(first).unwrap_or(usize::MAX).min(rows.len());
        reading.rows = rows.drain(first..).take(length).collect();
        Ok(())
    }

    /// The answer while there is no log yet.
    fn nothing(&self) -> BoardsReading {
        BoardsReading {
            boards: vec![BoardReading::default(); self.question.keys.len()],
            standing: Standing::nothing(self.job.source(), 0),
        }
    }
}

/// The first place and the number of places around one.
fn stretch(place: u64, around: u64) -> (u64, usize) {
    let first = place.saturating_sub(around);
    let length = place.saturating_add(around).saturating_add(1) - first;
    (first, usize::try_from(length).unwrap_or(usize::MAX))
}

fn live_states(states: &LiveStates) -> impl Iterator<Item = LiveState<'_>> {
    let keys = states
        .partitions
        .values()
        .iter()
        .zip(states.epochs.values());
    let values = states.members.iter().zip(states.states.iter());
    keys.zip(values)
        .map(|((partition, epoch), (member, state))| LiveState {
            partition: *partition as usize,
            epoch: *epoch,
            member: member.unwrap_or_default(),
            state,
        })
}

/// Rows that pass all tests, in the order of ranks.
#[derive(Debug, Default)]
struct Passing(Vec<Ranked>);

impl Passing {
    fn of(reader: &Reader<'_>, rows: Vec<Ranked>) -> Result<Self, KeyError> {
        let tests = &reader.question.section.tests;
        if tests.is_empty() || rows.is_empty() {
            return Ok(Self(rows));
        }
        let shape = reader.job.payload();
        let columns = shape.decode(rows.iter().map(|row| row.payload.as_slice()))?;
        let mut keep = vec![true; rows.len()];
        for (name, test) in tests {
            let column = shape.0.iter().position(|column| column.name == *name);
            let column = column.and_then(|index| columns.get(index));
            for (row, keep) in keep.iter_mut().enumerate() {
                *keep = *keep && column.is_some_and(|column| passes(column, row, test));
            }
        }
        let mut keep = keep.into_iter();
        let kept = rows.into_iter().filter(|_| keep.next() == Some(true));
        Ok(Self(kept.collect()))
    }
}

fn passes(column: &ArrayRef, row: usize, test: &Test) -> bool {
    if column.is_null(row) {
        return false;
    }
    match test {
        Test::Text(text) => column
            .as_string_opt::<i32>()
            .is_some_and(|column| column.value(row) == text),
        Test::Int(range) => column
            .as_primitive_opt::<Int64Type>()
            .is_some_and(|column| range.contains(&column.value(row))),
    }
}

/// The nodes of one key.
struct StoredNodes<'a> {
    views: &'a dyn ViewsRead,
    view: &'a str,
    key: &'a [u8],
}

impl std::fmt::Debug for StoredNodes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredNodes")
            .field("view", &self.view)
            .finish_non_exhaustive()
    }
}

/// Why nodes could not be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodesError {
    #[error(transparent)]
    Store(#[from] stores::Error),
    #[error(transparent)]
    Damaged(#[from] jobs::tree::Damaged),
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
            BoardError::NotWhole(not_whole) => Self::NotWhole(not_whole),
            BoardError::Replaced => Self::Replaced,
            BoardError::Damaged(what) => Self::DamagedBoard(what),
            BoardError::Store(NodesError::Store(error)) => Self::Store(error),
            BoardError::Store(NodesError::Damaged(error)) => Self::DamagedBoard(error.to_string()),
        }
    }
}
