//! Cached boards of one partition: filled when a reader has missed one, then kept by the changes of each
//! micro-batch, dropped when they take too much memory, looked at now and then.
//!
//! All of it is the worker's, between its micro-batches, so filling never races with updating: what
//! changes while a board is filled counts at once, and the rows that come from the batch layer pass over
//! those members.

mod check;
mod fill;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::Array;
use jobs::board::{GroupState, Section};
use jobs::{Board, Job};
use schemas::entities::Miss;
use schemas::key::KeyValue;
use schemas::partition::partition_of;
use schemas::seam::{Epoch, Fence, Slot};
use stores::board_cache::{BoardCache, BoardChange, BoardChanges, BoardName, BoardRow, Registered};
use stores::live::{SlotId, States};

use self::fill::{Filled, Filling};
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// Misses that wait, at most: those that do not fit come again.
const WANTED_MAX: usize = 64;
/// Boards that can't be cached and are remembered as such.
const REFUSED_MAX: usize = 10_000;
/// Boards that are dropped in one step.
const DROP_STEP: usize = 16;
/// How long one step waits for rows of the batch layer.
const ROWS_WAIT: Duration = Duration::from_millis(20);
/// What a row takes in memory, in bytes, about.
const ROW_BYTES: u64 = 250;
/// Rows of cached boards that one micro-batch changes, at most: a server takes only so many arguments.
const CHANGED_ROWS_MAX: usize = 20_000;
/// Sorted sets rank by doubles: larger numbers would be rounded.
const NUMBER_MAX: u64 = 1 << 53;

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// There is nothing to do.
    Idle,
    /// There is more to do.
    More,
    /// The slot is not where the worker believes.
    Moved,
}

/// A board that is in the cache, or being filled.
#[derive(Debug)]
struct Entry {
    board: Registered,
    section: Section,
}

/// The cached boards of one partition.
#[derive(Debug)]
pub(crate) struct Boards {
    slot: SlotId,
    ports: SpeedPorts,
    jobs: Vec<Arc<Job<Board>>>,
    /// How much memory they may take, in bytes.
    bytes_max: u64,
    /// Rows that are put into one in one step.
    fill_rows: usize,
    check_interval: Duration,
    /// How many partitions the topic has.
    partitions: u32,
    revision: u64,
    /// The newest complete epoch that is known.
    covered: Epoch,
    /// By view and key.
    entries: HashMap<(String, Vec<u8>), Vec<Entry>>,
    wanted: VecDeque<BoardName>,
    refused: HashSet<BoardName>,
    filling: Option<Filling>,
    checked: Instant,
    checks: u64,
}

impl Boards {
    pub(crate) fn new(
        slot: SlotId,
        ports: &SpeedPorts,
        jobs: Vec<Arc<Job<Board>>>,
        options: &SpeedOptions,
    ) -> Self {
        Self {
            slot,
            ports: ports.clone(),
            jobs,
            bytes_max: options.board_cache_bytes_max / u64::from(options.partitions.max(1)),
            fill_rows: options.board_fill_rows.max(1),
            check_interval: Duration::from_millis(options.board_check_interval_ms),
            partitions: 0,
            revision: 0,
            covered: 0,
            entries: HashMap::new(),
            wanted: VecDeque::new(),
            refused: HashSet::new(),
            filling: None,
            checked: Instant::now(),
            checks: 0,
        }
    }

    /// Learns which boards there are, and drops those that nobody keeps any more.
    pub(crate) async fn begin(&mut self, slot: &Slot, partitions: u32) -> Result<()> {
        self.forget();
        self.partitions = partitions;
        self.covered = slot.oldest.saturating_sub(1);
        let live = Arc::clone(&self.ports.live);
        let Some(cache) = live.board_cache() else {
            return Ok(());
        };
        let register = cache.register(self.slot).await?;
        self.revision = register.revision;
        let mut gone = register.leftovers;
        for board in register.boards {
            let section = Section::decode(&board.name.section).ok();
            let job = self.jobs.iter().find(|job| job.view() == board.name.view);
            let is_own = job.is_some_and(|job| self.is_own(job, &board.name.key));
            // One that was being filled lacks what its worker had not come to.
            match section.filter(|_| is_own && board.bytes.is_some()) {
                Some(section) => self.enter(Entry { board, section }),
                None => gone.push(board),
            }
        }
        let mut fence = Some(slot.fence());
        for gone in gone.chunks(DROP_STEP) {
            // Who has changed it meanwhile is noticed by the next change.
            if let Some(at) = fence
                && cache
                    .drop_boards(self.slot, (at, self.revision), gone)
                    .await?
                    .is_ok()
            {
                self.revision += 1;
            } else {
                fence = None;
            }
        }
        Ok(())
    }

    /// Nothing is known any more.
    pub(crate) fn forget(&mut self) {
        self.entries.clear();
        self.filling = None;
    }

    fn is_own(&self, job: &Job<Board>, key: &[u8]) -> bool {
        key_of(job, key).is_some_and(|key| {
            partition_of(key.to_string().as_bytes(), self.partitions) == self.slot.partition
        })
    }

    fn enter(&mut self, entry: Entry) {
        let of = (entry.board.name.view.clone(), entry.board.name.key.clone());
        self.entries.entry(of).or_default().push(entry);
    }

    fn all(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().flatten()
    }

    /// A reader has missed a board.
    pub(crate) fn want(&mut self, miss: Miss) {
        let job = self.jobs.iter().find(|job| job.view() == miss.view);
        let key = job.and_then(|job| job.key().encode_values(&[KeyValue::Int(miss.key)]).ok());
        let (Some(key), Some(_)) = (key, self.ports.live.board_cache()) else {
            return;
        };
        let name = BoardName {
            view: miss.view,
            key,
            section: miss.section,
        };
        let is_known = self.wanted.contains(&name)
            || self.refused.contains(&name)
            || self.all().any(|entry| entry.board.name == name);
        if !is_known && self.wanted.len() < WANTED_MAX && Section::decode(&name.section).is_ok() {
            self.wanted.push_back(name);
        }
    }

    /// What new states of groups make of cached boards; nothing if the slot is not at the fence.
    pub(crate) async fn changes(
        &mut self,
        fence: Fence,
        states: &[States],
    ) -> Result<Option<BoardChanges>> {
        let mut changes = Vec::new();
        let mut beyond = Vec::new();
        if !self.entries.is_empty() {
            for states in states {
                self.changes_of(fence.epoch, states, &mut changes, &mut beyond)?;
            }
        }
        for board in &beyond {
            tracing::warn!(
                view = board.name.view,
                "a board has scores beyond 2^53 and is not cached"
            );
            self.refuse(board.name.clone());
        }
        // Those that change most are cheapest to fill anew.
        changes.sort_by_key(|change: &BoardChange| change.rows.len());
        while changes
            .iter()
            .map(|change| change.rows.len())
            .sum::<usize>()
            > CHANGED_ROWS_MAX
        {
            let Some(most) = changes.pop() else { break };
            let board = self.all().find(|entry| entry.board.id == most.id);
            beyond.extend(board.map(|entry| entry.board.clone()));
        }
        if !beyond.is_empty() && !self.drop_these(fence, &beyond).await? {
            return Ok(None);
        }
        Ok(Some(BoardChanges {
            revision: self.revision,
            covered: self.covered,
            boards: changes,
        }))
    }

    fn changes_of(
        &mut self,
        epoch: Epoch,
        states: &States,
        changes: &mut Vec<BoardChange>,
        beyond: &mut Vec<Registered>,
    ) -> Result<()> {
        let Some(job) = self.jobs.iter().find(|job| job.view() == states.view) else {
            return Ok(());
        };
        let mut of_key: HashMap<&[u8], Vec<usize>> = HashMap::new();
        for row in 0..states.keys.len() {
            of_key.entry(states.keys.value(row)).or_default().push(row);
        }
        for (key, rows) in of_key {
            let Some(entries) = self.entries.get(&(states.view.clone(), key.to_vec())) else {
                continue;
            };
            let mut members = Vec::with_capacity(rows.len());
            for row in rows {
                let state = states.state(row).map(GroupState::decode).transpose();
                let state = state.map_err(|error| Error::Fault(error.to_string()))?;
                members.push((states.members.value(row), state.unwrap_or_default()));
            }
            for Entry { board, section } in entries {
                let found: Vec<_> = members
                    .iter()
                    .map(|(_, state)| state.on(&section.board))
                    .collect();
                let payloads: Vec<&[u8]> = found
                    .iter()
                    .flatten()
                    .map(|place| place.payload.as_slice())
                    .collect();
                let passing = section.passing(job.payload(), payloads.into_iter());
                let passing = passing.map_err(|error| Error::Fault(error.to_string()))?;
                let mut passing = passing.into_iter();
                let mut rows = Vec::with_capacity(members.len());
                for ((member, _), place) in members.iter().zip(&found) {
                    let place = place.filter(|_| passing.next() == Some(true));
                    rows.push((
                        member.to_vec(),
                        place.map(|place| BoardRow {
                            member: member.to_vec(),
                            score: place.score.clone(),
                            payload: place.payload.clone(),
                            weight: place.weight,
                            epoch,
                        }),
                    ));
                }
                if rows
                    .iter()
                    .filter_map(|(_, row)| row.as_ref())
                    .any(|row| is_beyond(&row.score))
                {
                    beyond.push(board.clone());
                    continue;
                }
                if let Some(filling) = &mut self.filling
                    && filling.board.id == board.id
                {
                    filling
                        .touched
                        .extend(rows.iter().map(|(member, _)| member.clone()));
                }
                changes.push(BoardChange {
                    id: board.id.clone(),
                    rows,
                });
            }
        }
        Ok(())
    }

    /// Goes on with what there is to do beside the micro-batches.
    pub(crate) async fn step(&mut self, fence: Fence, partitions: u32) -> Result<Stepped> {
        let live = Arc::clone(&self.ports.live);
        let Some(cache) = live.board_cache() else {
            return Ok(Stepped::Idle);
        };
        if partitions != self.partitions {
            // Keys of other partitions are not kept here any more.
            return Ok(Stepped::Moved);
        }
        if self.filling.is_some() {
            return self.go_on(cache, fence).await;
        }
        if let Some(name) = self.wanted.pop_front() {
            return self.start(cache, fence, name).await;
        }
        let bytes: u64 = self.all().filter_map(|entry| entry.board.bytes).sum();
        self.measure(bytes);
        if bytes > self.bytes_max {
            return self.evict(cache, fence).await;
        }
        if self.checked.elapsed() >= self.check_interval {
            self.checked = Instant::now();
            return self.check(cache, fence).await;
        }
        Ok(Stepped::Idle)
    }

    fn measure(&self, bytes: u64) {
        let labels = [
            ("source", self.slot.source.name().to_owned()),
            ("partition", self.slot.partition.to_string()),
        ];
        #[expect(clippy::cast_precision_loss, reason = "gauges")]
        let (boards, bytes) = (self.all().count() as f64, bytes as f64);
        metrics::gauge!("backstitch_speed_cached_boards", &labels).set(boards);
        metrics::gauge!("backstitch_speed_cached_boards_bytes", &labels).set(bytes);
    }

    /// Puts a board into the register, and begins to read its rows.
    async fn start(
        &mut self,
        cache: &dyn BoardCache,
        fence: Fence,
        name: BoardName,
    ) -> Result<Stepped> {
        let job = self.jobs.iter().find(|job| job.view() == name.view);
        let (Some(job), Ok(section)) = (job.map(Arc::clone), Section::decode(&name.section)) else {
            return Ok(Stepped::More);
        };
        if !self.is_own(&job, &name.key) || self.all().any(|entry| entry.board.name == name) {
            return Ok(Stepped::More);
        }
        let begun = cache
            .begin_fill(self.slot, (fence, self.revision), &name)
            .await?;
        let Ok(id) = begun else {
            return Ok(Stepped::Moved);
        };
        self.revision += 1;
        let board = Registered {
            name,
            id,
            bytes: None,
        };
        let rows_max = self.bytes_max / ROW_BYTES;
        self.filling = Some(Filling::start(
            (self.slot, fence.generation, self.partitions),
            &self.ports,
            (job, section.clone(), board.clone()),
            (self.fill_rows, rows_max),
        ));
        self.enter(Entry { board, section });
        Ok(Stepped::More)
    }

    /// Takes some of the rows of the board that is being filled.
    async fn go_on(&mut self, cache: &dyn BoardCache, fence: Fence) -> Result<Stepped> {
        let Some(filling) = &mut self.filling else {
            return Ok(Stepped::More);
        };
        let next = tokio::time::timeout(ROWS_WAIT, filling.next()).await;
        let Ok(next) = next else {
            return Ok(Stepped::More);
        };
        let board = filling.board.clone();
        match next {
            Filled::Rows(rows, newest) => {
                self.covered = self.covered.max(newest);
                let rows: Vec<BoardRow> = rows
                    .into_iter()
                    .filter(|row| !filling.touched.contains(&row.member))
                    .collect();
                if rows.iter().any(|row| is_beyond(&row.score)) {
                    return self
                        .give_up(fence, &board, "it has scores beyond 2^53", true)
                        .await;
                }
                filling.steps += 1;
                let at = (&board, filling.steps);
                match cache.fill(self.slot, at, &rows).await {
                    Ok(true) => Ok(Stepped::More),
                    Ok(false) => Ok(Stepped::Moved),
                    // Such as a server without room: counting goes on.
                    Err(error) => self.give_up(fence, &board, &error.to_string(), false).await,
                }
            }
            Filled::All(changed) => {
                // Somebody may have been taken away who was not there yet.
                let is_touched = !filling.touched.is_empty();
                let changed = if is_touched { fence.epoch } else { changed };
                let at = (&board, filling.steps);
                let believed = (fence, self.revision);
                match cache.end_fill(self.slot, believed, at, changed).await {
                    Ok(Ok(())) => self.revision += 1,
                    Ok(Err(_)) => return Ok(Stepped::Moved),
                    Err(error) => {
                        return self.give_up(fence, &board, &error.to_string(), false).await;
                    }
                }
                self.filling = None;
                self.count("backstitch_speed_board_fills_total");
                self.measure_one(cache, &board).await;
                Ok(Stepped::More)
            }
            Filled::TooLarge(rows) => {
                let why = format!("it has {rows} rows, more than fit");
                self.give_up(fence, &board, &why, true).await
            }
            Filled::Not(why) => self.give_up(fence, &board, &why, false).await,
        }
    }

    /// Measures a board; one that can't be measured keeps what it had.
    async fn measure_one(&mut self, cache: &dyn BoardCache, board: &Registered) {
        let now_ms = self.ports.clock.now_ms();
        let bytes = match cache.measure(self.slot, board, now_ms).await {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(%error, "a cached board could not be measured");
                None
            }
        };
        self.entry_mut(&board.id, |entry| {
            entry.board.bytes = bytes.or(entry.board.bytes).or(Some(0));
        });
    }

    /// A board is not filled after all.
    async fn give_up(
        &mut self,
        fence: Fence,
        board: &Registered,
        why: &str,
        for_good: bool,
    ) -> Result<Stepped> {
        tracing::info!(view = board.name.view, why, "a board is not cached");
        self.filling = None;
        if for_good {
            self.refuse(board.name.clone());
        }
        let dropped = self.drop_these(fence, std::slice::from_ref(board)).await?;
        Ok(if dropped {
            Stepped::More
        } else {
            Stepped::Moved
        })
    }

    fn refuse(&mut self, name: BoardName) {
        if self.refused.len() < REFUSED_MAX {
            self.refused.insert(name);
        }
    }

    /// Drops the boards that were read least recently.
    async fn evict(&mut self, cache: &dyn BoardCache, fence: Fence) -> Result<Stepped> {
        let names = cache.least_used(self.slot, DROP_STEP).await?;
        let found = names
            .iter()
            .find_map(|name| self.all().find(|entry| entry.board.name == *name));
        // One that nobody has noted was never read.
        let Some(board) = found
            .or_else(|| self.all().next())
            .map(|entry| entry.board.clone())
        else {
            return Ok(Stepped::Idle);
        };
        self.count("backstitch_speed_board_evictions_total");
        let dropped = self.drop_these(fence, &[board]).await?;
        Ok(if dropped {
            Stepped::More
        } else {
            Stepped::Moved
        })
    }

    /// Drops boards; answers false if the slot is not where it is believed to be.
    async fn drop_these(&mut self, fence: Fence, boards: &[Registered]) -> Result<bool> {
        let live = Arc::clone(&self.ports.live);
        let Some(cache) = live.board_cache() else {
            return Ok(true);
        };
        let dropped = cache
            .drop_boards(self.slot, (fence, self.revision), boards)
            .await?;
        if dropped.is_err() {
            return Ok(false);
        }
        self.revision += 1;
        let is_gone = |id: &str| boards.iter().any(|board| board.id == id);
        if self
            .filling
            .as_ref()
            .is_some_and(|filling| is_gone(&filling.board.id))
        {
            self.filling = None;
        }
        for entries in self.entries.values_mut() {
            entries.retain(|entry| !is_gone(&entry.board.id));
        }
        self.entries.retain(|_, entries| !entries.is_empty());
        Ok(true)
    }

    fn entry_mut(&mut self, id: &str, change: impl FnOnce(&mut Entry)) {
        let mut all = self.entries.values_mut().flatten();
        if let Some(entry) = all.find(|entry| entry.board.id == id) {
            change(entry);
        }
    }

    fn count(&self, name: &'static str) {
        metrics::counter!(name, "source" => self.slot.source.name()).increment(1);
    }
}

/// Whether the first number of a score is beyond what doubles tell apart.
fn is_beyond(score: &[u8]) -> bool {
    score.first_chunk::<8>().is_some_and(|number| {
        let number = (u64::from_be_bytes(*number) ^ (1 << 63)).cast_signed();
        number.unsigned_abs() > NUMBER_MAX
    })
}

/// The number that an encoded key is of.
fn key_of(job: &Job<Board>, key: &[u8]) -> Option<i64> {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;
    let columns = job.key().decode(std::iter::once(key)).ok()?;
    let column = columns.first()?.as_primitive_opt::<Int64Type>()?;
    column.values().first().copied()
}
