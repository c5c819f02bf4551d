//! Boards from the cache beside live state: one round trip, and nothing else is read. Who finds none
//! reads the batch rows with the live states on top, and tells the worker of the partition, through the
//! log, that the board is in demand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{Array, BinaryArray};
use jobs::board::{Ranked, Section};
use jobs::tree::Sum;
use jobs::{Board, Job};
use moka::sync::Cache;
use schemas::entities::Miss;
use schemas::partition::partition_of;
use schemas::seam::Epoch;
use stores::ErrorKind;
use stores::board_cache::{
    BoardAnswer, BoardName, BoardQuery, BoardRow, BoardWant, Cached, CachedBoard,
};
use stores::live::{LiveStates, SlotId};
use stores::log::NewRecords;
use stores::views::RunsSeen;
use tokio::task::JoinSet;

use super::read::{BoardReading, BoardsReading, Kept, Reader};
use crate::lock::lock;
use crate::options::ServingPorts;
use crate::read::{ReadError, Seen, is_one_more};

/// Boards of one question that are looked for in the cache.
const KEYS_MAX: usize = 8;
/// Members that are looked for at once: a server does nothing else meanwhile.
const MEMBERS_MAX: usize = 20_000;
/// Places beyond this are none that any board has.
const PLACES_MAX: u64 = 1 << 48;
/// Where more live states than this are read for the sums of a board, it should be cached.
const SUM_STATES_MAX: usize = 1_000;
/// How long after a board was noted as missed, or as read, it is noted again.
const NOTED_FOR: Duration = Duration::from_secs(5);
/// Boards that are remembered as noted.
const NOTED_MAX: u64 = 100_000;
/// Notes that are on their way, at most; more are left out, since they come again.
const NOTES_MAX: usize = 64;

/// What this process has noted of cached boards a moment ago.
#[derive(Debug)]
pub(crate) struct Noted {
    missed: Cache<BoardName, ()>,
    /// Those of which only how many rows they have was missed.
    sums_missed: Cache<BoardName, ()>,
    read: Cache<BoardName, ()>,
    on_their_way: Mutex<JoinSet<()>>,
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
            sums_missed: cache(),
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
        self.tell(ports, job, (key, false), (&query.name, query.partition));
    }

    /// Tells the worker of a partition that a board was missed, or only how many rows it has.
    fn tell(
        &self,
        ports: &ServingPorts,
        job: &Job<Board>,
        (key, is_sum): (i64, bool),
        (name, partition): (&BoardName, u32),
    ) {
        let noted = if is_sum {
            &self.sums_missed
        } else {
            &self.missed
        };
        if !self.is_first(noted, name) {
            return;
        }
        let source = job.source();
        let miss = Miss {
            view: name.view.clone(),
            key,
            section: name.section.clone(),
            is_sum,
        };
        let records = NewRecords {
            partition,
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
        let mut on_their_way = lock(&self.on_their_way);
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
        runs: &Arc<RunsSeen>,
        partitions: usize,
    ) -> Result<Option<BoardsReading>, ReadError> {
        let (source, view) = (self.job.source(), self.job.view());
        let newest = runs.newest.get(view).copied().unwrap_or(0);
        let cuts = runs.runs.get(newest).map_or(0, |run| run.cuts.len());
        if self.ports.live.cached_boards().is_none() {
            return Ok(None);
        }
        let Some(queries) = self.cache_queries(partitions)? else {
            return Ok(None);
        };
        // Where partitions were added since the run, a key's states may be in two of them.
        if newest == 0 || cuts != partitions {
            return Ok(None);
        }
        let count = u32::try_from(partitions).unwrap_or(u32::MAX);
        // The other partitions have no part in the boards.
        let slots = &self.memory.slots;
        let (answers, slots) = tokio::join!(
            self.looked_up(&queries),
            slots.seen(&self.ports.live, source, count.saturating_add(1))
        );
        let (answers, slots) = (answers?, slots.map_err(ReadError::Store)?);
        let mut slots = Arc::unwrap_or_clone(slots);
        if is_one_more(&mut slots) || slots.len() < partitions {
            return Ok(None);
        }
        let mut is_there = true;
        for ((query, answer), key) in queries.iter().zip(&answers).zip(&self.question.keys) {
            let slot = answer.slot.as_ref();
            self.memory.slots.met(source, query.partition, slot);
            if let Some(own) = slots.get_mut(query.partition as usize) {
                *own = slot.cloned();
            }
            is_there &= self.note(*key, query, &answer.board);
        }
        if !is_there {
            return Ok(None);
        }
        let seen = Seen {
            runs: Arc::clone(runs),
            slots,
        };
        let mut boards = Vec::with_capacity(queries.len());
        for (query, answer) in queries.iter().zip(answers) {
            let seam = seen.seam((view, view), newest, Some(query.partition as usize));
            // Readers with more patience look again; the batch rows are no better now.
            seam.check(newest)?;
            let Cached::Board(board) = answer.board else {
                return Ok(None);
            };
            boards.push(self.reading(board, newest)?);
        }
        let standing = seen.standing(source, newest);
        Ok(Some(BoardsReading { boards, standing }))
    }

    /// What the cache answers.
    async fn looked_up(&self, queries: &[BoardQuery]) -> Result<Vec<BoardAnswer>, ReadError> {
        let (live, source) = (Arc::clone(&self.ports.live), self.job.source());
        let ask = move |queries: Vec<BoardQuery>| async move {
            match live.cached_boards() {
                Some(cache) => cache.read_boards(source, &queries).await,
                None => Ok(Vec::new()),
            }
        };
        match self.memory.lookups.read(source, queries, ask.clone()).await {
            Ok(Some(answers)) => Ok(answers),
            // Too much to go with others; or it may be the fault of another one's board.
            Ok(None) => Ok(ask(queries.to_vec()).await?),
            Err(ReadError::Store(error)) if error.kind() != ErrorKind::Retry => {
                Ok(ask(queries.to_vec()).await?)
            }
            Err(error) => Err(error),
        }
    }

    /// Notes that a board was read, or missed; whether it is there.
    fn note(&self, key: i64, query: &BoardQuery, cached: &Cached) -> bool {
        match cached {
            Cached::Board(_) => {
                let (source, partition) = (self.job.source(), query.partition);
                let slot = SlotId { source, partition };
                self.noted.read(self.ports, slot, &query.name);
                return true;
            }
            // The head has the sums of a board without conditions.
            Cached::Not if self.question.want != BoardWant::Sums => {
                self.noted.missed(self.ports, self.job, key, query);
            }
            Cached::Not | Cached::Filling => {}
        }
        false
    }

    /// Tells of boards of which only the sums are wanted, where many live states had to be read for them.
    pub(super) fn sums_missed(
        &self,
        keys: &[i64],
        states: &[LiveStates],
        (newest, partitions): (Epoch, usize),
    ) -> Result<(), ReadError> {
        let is_slow = |states: &LiveStates| states.members.len() > SUM_STATES_MAX;
        if self.is_summed() {
            let count = u32::try_from(partitions).unwrap_or(u32::MAX);
            let section = self.section()?.encode();
            let of_keys = keys.iter().zip(states);
            for (key, _) in of_keys.filter(|(_, states)| is_slow(states)) {
                let name = self.name(*key, &section)?;
                let partition = partition_of(key.to_string().as_bytes(), count);
                let (noted, ports) = (self.noted, self.ports);
                noted.tell(ports, self.job, (*key, true), (&name, partition));
            }
            return Ok(());
        }
        // Boards are cached from the first run on.
        if newest == 0
            || self.ports.live.cached_boards().is_none()
            || self.question.want != BoardWant::Sums
            || !states.iter().any(is_slow)
        {
            return Ok(());
        }
        let queries = self.cache_queries(partitions)?.unwrap_or_default();
        let of_keys = queries.iter().zip(keys).zip(states);
        for ((query, key), _) in of_keys.filter(|(_, states)| is_slow(states)) {
            self.noted.missed(self.ports, self.job, *key, query);
        }
        Ok(())
    }

    /// What is asked of the cache; nothing if this is no question for it.
    fn cache_queries(&self, partitions: usize) -> Result<Option<Vec<BoardQuery>>, ReadError> {
        let question = self.question;
        let section = self.section()?;
        if question.explains || question.keys.len() > KEYS_MAX {
            return Ok(None);
        }
        let members = match (&question.members, &question.want) {
            (Some(members), _) => members.len(),
            (None, BoardWant::Places(members)) => members.len(),
            _ => 0,
        };
        let is_far = matches!(question.want, BoardWant::Page { offset, .. } if offset > PLACES_MAX);
        if members.saturating_mul(question.keys.len()) > MEMBERS_MAX || is_far {
            return Ok(None);
        }
        let members = self.members()?.map(BoardWant::Members);
        let want = members.unwrap_or_else(|| question.want.clone());
        let encoded = section.encode();
        let count = u32::try_from(partitions).unwrap_or(u32::MAX);
        let mut queries = Vec::with_capacity(question.keys.len());
        for key in &question.keys {
            queries.push(BoardQuery {
                name: self.name(*key, &encoded)?,
                partition: partition_of(key.to_string().as_bytes(), count),
                score_bytes: 8 * self.job.score().0.len(),
                want: want.clone(),
            });
        }
        Ok(Some(queries))
    }

    /// The name of the board of a key and an encoded section.
    fn name(&self, key: i64, section: &[u8]) -> Result<BoardName, ReadError> {
        Ok(BoardName {
            view: self.job.view().to_owned(),
            key: self.key_bytes(key)?,
            section: section.to_vec(),
        })
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
            let is_all = found.len() == members.len();
            let mut kept = Kept::new(self.question.want.clone());
            for (row, is_live) in found {
                kept.take(row, is_live);
            }
            let mut reading = kept.finish();
            // Somebody who is not there may have been taken away.
            reading.layers.1 |= is_changed && !is_all;
            return Ok(reading);
        }
        let places = matches!(self.question.want, BoardWant::Places(_));
        let mut rows: Vec<Ranked> = rows(board.rows).into_iter().map(|(row, _)| row).collect();
        let places = places.then(|| {
            let mut placed: Vec<(u64, Ranked)> =
                board.places.into_iter().zip(rows.drain(..)).collect();
            placed.sort_unstable_by_key(|(place, _)| *place);
            let (places, of_places): (Vec<u64>, Vec<Ranked>) = placed.into_iter().unzip();
            rows = of_places;
            places
        });
        let live = board.epochs.iter().filter(|(epoch, _)| *epoch > newest);
        let live: u64 = live.map(|(_, rows)| rows).sum();
        Ok(BoardReading {
            sum: Sum {
                count: board.count,
                weight: board.weight,
            },
            first: board.first,
            rows,
            places,
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
