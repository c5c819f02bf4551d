//! Boards from the cache beside live state: one round trip, and nothing else is read. Who finds none
//! reads the batch rows with the live states on top, and tells the worker of the partition, through the
//! log, that the board is in demand.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::BinaryArray;
use jobs::board::{Ranked, Section};
use jobs::merge::Seam;
use jobs::tree::Sum;
use jobs::{Board, Job};
use moka::sync::Cache;
use schemas::entities::Miss;
use schemas::partition::partition_of;
use schemas::seam::Epoch;
use stores::board_cache::{BoardName, BoardQuery, BoardRow, BoardWant, Cached, CachedBoard};
use stores::live::SlotId;
use stores::log::NewRecords;
use stores::views::RunsSeen;
use tokio::task::JoinSet;

use super::read::{BoardReading, BoardsReading, Kept, Reader, Want};
use crate::options::ServingPorts;
use crate::read::{ReadError, Seen, is_one_more};

/// Boards of one question that are looked for in the cache.
const KEYS_MAX: usize = 8;
/// Members that are looked for at once: a server does nothing else meanwhile.
const MEMBERS_MAX: usize = 20_000;
/// Places beyond this are none that any board has.
const PLACES_MAX: u64 = 1 << 48;
/// How long after a board was noted as missed, or as read, it is noted again.
const NOTED_FOR: Duration = Duration::from_secs(5);
/// Boards that are remembered as noted.
const NOTED_MAX: u64 = 100_000;
/// Notes that are on their way, at most; more are left out, since they come again.
const NOTES_MAX: usize = 64;

/// What this process has noted of cached boards a moment ago.
pub(crate) struct Noted {
    missed: Cache<BoardName, ()>,
    read: Cache<BoardName, ()>,
    on_their_way: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Noted").finish_non_exhaustive()
    }
}

impl Noted {
    pub(crate) fn new() -> Self {
        let cache = || {
            Cache::builder()
                .max_capacity(NOTED_MAX)
                .time_to_live(NOTED_FOR)
                .build()
        };
        Self {
            missed: cache(),
            read: cache(),
            on_their_way: Mutex::default(),
        }
    }

    /// Whether a note is to be made now.
    fn is_first(&self, noted: &Cache<BoardName, ()>, name: &BoardName) -> bool {
        if noted.contains_key(name) {
            return false;
        }
        noted.insert(name.clone(), ());
        true
    }

    /// Tells the worker of a partition that a board was missed.
    fn missed(&self, ports: &ServingPorts, job: &Job<Board>, key: i64, query: &BoardQuery) {
        metrics::counter!("backstitch_serving_board_cache_misses_total").increment(1);
        if !self.is_first(&self.missed, &query.name) {
            return;
        }
        let source = job.source();
        let miss = Miss {
            view: query.name.view.clone(),
            key,
            section: query.name.section.clone(),
        };
        let records = NewRecords {
            partition: query.partition,
            keys: BinaryArray::from_vec(vec![key.to_string().as_bytes()]),
            values: BinaryArray::from_vec(vec![&miss.record(source)]),
            headers: Vec::new(),
        };
        let (log, now_ms) = (Arc::clone(&ports.ingest), ports.clock.now_ms());
        self.send(async move {
            if let Err(error) = log.append(source.topic(), &[records], now_ms).await {
                tracing::debug!(%error, "that a board was missed could not be told");
            }
        });
    }

    /// Notes that a board was read.
    fn read(&self, ports: &ServingPorts, slot: SlotId, name: &BoardName) {
        metrics::counter!("backstitch_serving_board_cache_hits_total").increment(1);
        if !self.is_first(&self.read, name) {
            return;
        }
        let (live, name, now_ms) = (Arc::clone(&ports.live), name.clone(), ports.clock.now_ms());
        self.send(async move {
            let Some(cache) = live.cached_boards() else {
                return;
            };
            if let Err(error) = cache.note_use(slot, &name, now_ms).await {
                tracing::debug!(%error, "that a board was read could not be noted");
            }
        });
    }

    /// Nobody waits for it.
    fn send(&self, note: impl Future<Output = ()> + Send + 'static) {
        let on_their_way = self.on_their_way.lock();
        let mut on_their_way = on_their_way.unwrap_or_else(PoisonError::into_inner);
        while on_their_way.try_join_next().is_some() {}
        if on_their_way.len() < NOTES_MAX {
            on_their_way.spawn(note);
        }
    }
}

impl Reader<'_> {
    /// The answer of the cache; nothing if not all of it is there, or live state is not whole.
    pub(super) async fn cached(
        &self,
        noted: &Noted,
        runs: &Arc<RunsSeen>,
        partitions: usize,
    ) -> Result<Option<BoardsReading>, ReadError> {
        let (source, view) = (self.job.source(), self.job.view());
        let newest = runs.newest.get(view).copied().unwrap_or(0);
        let cuts = runs.runs.get(newest).map_or(0, |run| run.cuts.len());
        let (Some(cache), Some(queries)) = (
            self.ports.live.cached_boards(),
            self.cache_queries(partitions)?,
        ) else {
            return Ok(None);
        };
        // Where partitions were added since the run, a key's states may be in two of them.
        if newest == 0 || cuts != partitions {
            return Ok(None);
        }
        let count = u32::try_from(partitions).unwrap_or(u32::MAX);
        let read = cache.read_boards(source, count.saturating_add(1), &queries);
        let mut answer = read.await?;
        if is_one_more(&mut answer.slots) {
            return Ok(None);
        }
        let mut is_there = true;
        for ((query, cached), key) in queries.iter().zip(&answer.boards).zip(&self.question.keys) {
            match cached {
                Cached::Board(_) => {
                    let partition = query.partition;
                    let slot = SlotId { source, partition };
                    noted.read(self.ports, slot, &query.name);
                }
                Cached::Filling => is_there = false,
                Cached::Not => {
                    is_there = false;
                    noted.missed(self.ports, self.job, *key, query);
                }
            }
        }
        if !is_there {
            return Ok(None);
        }
        let seen = Seen {
            runs: Arc::clone(runs),
            slots: answer.slots,
        };
        let mut boards = Vec::with_capacity(queries.len());
        for (query, cached) in queries.iter().zip(answer.boards) {
            let seam = Seam {
                view,
                live: view,
                newest,
                runs: &seen.runs.runs,
                slots: &seen.slots,
                only: Some(query.partition as usize),
            };
            // Readers with more patience look again; the batch rows are no better now.
            seam.check(newest)?;
            let Cached::Board(board) = cached else {
                return Ok(None);
            };
            boards.push(self.reading(board, newest)?);
        }
        let standing = seen.standing(source, newest);
        Ok(Some(BoardsReading { boards, standing }))
    }

    /// What is asked of the cache; nothing if this is no question for it.
    fn cache_queries(&self, partitions: usize) -> Result<Option<Vec<BoardQuery>>, ReadError> {
        let question = self.question;
        let section = self.section()?;
        let is_sum = question.want == Want::Sums && section.tests.is_empty();
        let is_each = matches!(question.want, Want::Each(_));
        let is_filtered = question.members.is_some();
        if question.earlier_than.is_some()
            || question.keys.len() > KEYS_MAX
            || (!is_filtered && (is_sum || is_each))
        {
            return Ok(None);
        }
        let members = question.members.as_ref().map_or(0, Vec::len);
        let is_far = matches!(question.want, Want::Page { offset, .. } if offset > PLACES_MAX);
        if members.saturating_mul(question.keys.len()) > MEMBERS_MAX || is_far {
            return Ok(None);
        }
        let want = match (&question.members, &question.want) {
            (Some(members), _) => BoardWant::Members(self.members(members)?),
            (None, Want::Page { offset, limit }) => BoardWant::Page {
                offset: *offset,
                limit: *limit,
            },
            (None, Want::Around { member, around }) => BoardWant::Around {
                member: self.member(*member)?,
                around: *around,
            },
            (None, Want::Sums | Want::Each(_)) => BoardWant::Sums,
        };
        let encoded = section.encode();
        let count = u32::try_from(partitions).unwrap_or(u32::MAX);
        let mut queries = Vec::with_capacity(question.keys.len());
        for key in &question.keys {
            queries.push(BoardQuery {
                name: BoardName {
                    view: self.job.view().to_owned(),
                    key: self.key_bytes(*key)?,
                    section: encoded.clone(),
                },
                partition: partition_of(key.to_string().as_bytes(), count),
                score_bytes: 8 * self.job.score().0.len(),
                want: want.clone(),
            });
        }
        Ok(Some(queries))
    }

    fn reading(&self, board: CachedBoard, newest: Epoch) -> Result<BoardReading, ReadError> {
        let is_changed = board.changed > newest;
        let rows = |rows: Vec<BoardRow>| -> Vec<(Ranked, bool)> {
            let ranked = rows.into_iter().map(|row| {
                let is_live = row.epoch > newest;
                let ranked = Ranked {
                    member: row.member,
                    score: row.score,
                    payload: row.payload,
                    weight: row.weight,
                };
                (ranked, is_live)
            });
            ranked.collect()
        };
        if let Some(members) = &self.question.members {
            let mut found = rows(board.rows);
            found.sort_unstable_by(|(one, _), (other, _)| one.order().cmp(&other.order()));
            let asked: BTreeSet<i64> = members.iter().copied().collect();
            let is_all = found.len() == asked.len();
            let mut kept = Kept::new(self.wanted(&self.question.want)?);
            for (row, is_live) in found {
                kept.take(row, is_live);
            }
            let mut reading = kept.finish();
            // Somebody who is not there may have been taken away.
            reading.layers.1 |= is_changed && !is_all;
            return Ok(reading);
        }
        let live = board.epochs.iter().filter(|(epoch, _)| *epoch > newest);
        let live: u64 = live.map(|(_, rows)| rows).sum();
        Ok(BoardReading {
            sum: Sum {
                count: board.count,
                weight: board.weight,
            },
            first: board.first,
            rows: rows(board.rows).into_iter().map(|(row, _)| row).collect(),
            found: board.found,
            layers: (board.count > live, is_changed),
            ..BoardReading::default()
        })
    }

    /// The section as it is stored.
    pub(super) fn section(&self) -> Result<Section, ReadError> {
        let section = &self.question.section;
        let tests = section.tests.iter();
        Ok(Section {
            board: self.job.boards().encode_values(&section.board)?,
            tests: tests
                .map(|(column, test)| ((*column).to_owned(), test.clone()))
                .collect(),
        })
    }
}
