//! Cached boards of one partition: filled when a reader has missed one, then kept by the changes of each
//! micro-batch, dropped when they take too much memory, looked at now and then.
//!
//! All of it is the worker's, between its micro-batches, so filling never races with updating: what
//! changes while a board is filled counts at once, and the rows that come from the batch layer pass over
//! those members.

mod check;
mod entries;
mod fill;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::Array;
use jobs::board::{GroupState, Place, Section};
use jobs::{Board, Job};
use schemas::entities::Miss;
use schemas::key::{KeyError, KeyValue};
use schemas::partition::partition_of;
use schemas::seam::{Epoch, Fence, Slot};
use stores::board_cache::{
    BoardCache, BoardChange, BoardChanges, BoardName, BoardRow, Registered, Revision,
};
use stores::live::{SlotId, States};

use self::check::Suspect;
use self::entries::{Entries, Entry};
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
    /// The register's last change.
    revision: Revision,
    /// The newest epoch that is known to be complete for all views.
    covered: Epoch,
    entries: Entries,
    wanted: VecDeque<BoardName>,
    /// Filled ones that a reader did not find.
    doubted: VecDeque<BoardName>,
    /// When the server's memory was found full.
    full: Option<Instant>,
    refused: HashSet<BoardName>,
    filling: Option<Filling>,
    checked: Instant,
    checks: u64,
    /// What was found to differ, and may be right.
    suspect: Option<Suspect>,
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
            revision: Revision::default(),
            covered: 0,
            entries: Entries::default(),
            wanted: VecDeque::new(),
            doubted: VecDeque::new(),
            full: None,
            refused: HashSet::new(),
            filling: None,
            checked: Instant::now(),
            checks: 0,
            suspect: None,
        }
    }

    /// Learns which boards there are, and drops those that nobody keeps any more.
    pub(crate) async fn begin(&mut self, slot: &Slot, partitions: u32) -> Result<()> {
        self.forget();
        self.partitions = partitions;
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
                Some(section) => self.entries.enter(Entry { board, section }),
                None => gone.push(board),
            }
        }
        for gone in gone.chunks(DROP_STEP) {
            // What is left is found by whoever begins next.
            self.drop_these(slot.fence(), gone).await?;
        }
        Ok(())
    }

    /// Learns the newest complete epoch of each view: rows up to it are the batch layer's. A view without
    /// one has no boards here.
    pub(crate) fn covers(&mut self, newest: &BTreeMap<String, Epoch>) {
        let views = self.jobs.iter().map(|job| newest.get(job.view()).copied());
        self.covered = views
            .flatten()
            .filter(|epoch| *epoch > 0)
            .min()
            .unwrap_or(0);
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

    /// A reader has missed a board.
    pub(crate) fn want(&mut self, miss: Miss) {
        let job = self.jobs.iter().find(|job| job.view() == miss.view);
        let key = job.and_then(|job| job.key().encode_values(&[KeyValue::Int(miss.key)]).ok());
        let (Some(key), Some(_)) = (key, self.ports.live.board_cache()) else {
            return;
        };
        if self.was_full() {
            return;
        }
        let name = BoardName {
            view: miss.view,
            key,
            section: miss.section,
        };
        if let Some(entry) = self.entries.get(&name) {
            let is_filled = entry.board.bytes.is_some();
            let is_new = !self.doubted.contains(&name) && self.doubted.len() < WANTED_MAX;
            if is_filled && is_new {
                self.doubted.push_back(name);
            }
            return;
        }
        let is_known = self.wanted.contains(&name) || self.refused.contains(&name);
        if !is_known && self.wanted.len() < WANTED_MAX && Section::decode(&name.section).is_ok() {
            self.wanted.push_back(name);
        }
    }

    /// What new states of groups make of cached boards.
    pub(crate) async fn changes(
        &mut self,
        fence: Fence,
        states: &[States],
    ) -> Result<BoardChanges> {
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
            let board = self.entries.all().find(|entry| entry.board.id == most.id);
            beyond.extend(board.map(|entry| entry.board.clone()));
        }
        if !beyond.is_empty() {
            self.drop_these(fence, &beyond).await?;
        }
        Ok(BoardChanges {
            revision: self.revision,
            covered: self.covered,
            boards: changes,
        })
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
            let mut entries = self.entries.of(&states.view, key).peekable();
            if entries.peek().is_none() {
                continue;
            }
            let mut members = Vec::with_capacity(rows.len());
            for row in rows {
                let state = states.state(row).map(GroupState::decode).transpose();
                let state = state.map_err(|error| Error::Fault(error.to_string()))?;
                members.push((states.members.value(row), state.unwrap_or_default()));
            }
            for Entry { board, section } in entries {
                let rows = rows_on((job, section), epoch, &members);
                let rows = rows.map_err(|error| Error::Fault(error.to_string()))?;
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
            return Err(Error::Moved);
        }
        if self.filling.is_some() {
            return self.go_on(cache, fence).await;
        }
        if let Some(name) = self.wanted.pop_front() {
            return self.start(cache, fence, name).await;
        }
        if let Some(name) = self.doubted.pop_front() {
            return self.look_for(cache, fence, &name).await;
        }
        self.tell_memory();
        if self.entries.bytes() > self.bytes_max {
            return self.evict(cache, fence).await;
        }
        if self.checked.elapsed() >= self.check_interval {
            self.checked = Instant::now();
            return self.check(cache, fence).await;
        }
        Ok(Stepped::Idle)
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
        if !self.is_own(&job, &name.key) || self.entries.get(&name).is_some() {
            return Ok(Stepped::More);
        }
        let begun = cache
            .begin_fill(self.slot, (fence, self.revision), &name)
            .await?;
        let (id, revision) = begun.map_err(|_| Error::Moved)?;
        self.revision = revision;
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
        self.entries.enter(Entry { board, section });
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
            Filled::Rows(rows) => {
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
                    Ok(false) => Err(Error::Moved),
                    // Such as a server without room: counting goes on.
                    Err(error) => {
                        if matches!(error, stores::Error::Full { .. }) {
                            self.found_full();
                        }
                        self.give_up(fence, &board, &error.to_string(), false).await
                    }
                }
            }
            Filled::All(changed) => {
                // Somebody may have been taken away who was not there yet.
                let is_touched = !filling.touched.is_empty();
                let changed = if is_touched { fence.epoch } else { changed };
                let at = (&board, filling.steps);
                let believed = (fence, self.revision);
                match cache.end_fill(self.slot, believed, at, changed).await {
                    Ok(Ok(revision)) => self.revision = revision,
                    Ok(Err(_)) => return Err(Error::Moved),
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
        self.drop_these(fence, std::slice::from_ref(board)).await?;
        Ok(Stepped::More)
    }

    fn refuse(&mut self, name: BoardName) {
        if self.refused.len() < REFUSED_MAX {
            self.refused.insert(name);
        }
    }

    fn count(&self, name: &'static str) {
        metrics::counter!(name, "source" => self.slot.source.name()).increment(1);
    }
}

/// A member, and its row where there is one.
type RowOf = (Vec<u8>, Option<BoardRow>);

/// What some members have in a section by their states.
fn rows_on(
    (job, section): (&Job<Board>, &Section),
    epoch: Epoch,
    members: &[(&[u8], GroupState)],
) -> Result<Vec<RowOf>, KeyError> {
    let places = members.iter().map(|(_, state)| state.on(&section.board));
    let places: Vec<Option<&Place>> = places.collect();
    let payloads = places
        .iter()
        .flatten()
        .map(|place| place.payload.as_slice());
    let payloads: Vec<&[u8]> = payloads.collect();
    let mut passing = section
        .passing(job.payload(), payloads.into_iter())?
        .into_iter();
    let mut rows = Vec::with_capacity(members.len());
    for ((member, _), place) in members.iter().zip(places) {
        let place = place.filter(|_| passing.next() == Some(true));
        let row = place.map(|place| {
            Ok::<_, KeyError>(BoardRow {
                member: member.to_vec(),
                score: place.score.clone(),
                // What is filtered by has been decided.
                payload: job.shown_of(&place.payload)?,
                weight: place.weight,
                epoch,
            })
        });
        rows.push((member.to_vec(), row.transpose()?));
    }
    Ok(rows)
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
