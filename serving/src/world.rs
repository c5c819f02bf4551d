//! Ports over plain collections, for tests of what serving makes of them.

mod admin;
pub(crate) mod boards;
mod counts;
pub(crate) mod keys;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{BinaryArray, Int64Array, RecordBatch, UInt32Array, UInt64Array};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use jobs::sketch::cell;
use jobs::{Catalog, Job, Layers};
use schemas::achievement::{Kind, Told};
use schemas::clock::FixedClock;
use schemas::entities::{Application, Entity, Group};
use schemas::key::{KeyColumn, KeyKind, KeyValue};
use schemas::partition::partition_of;
use schemas::seam::{Cut, Epoch, LastRecord, Offset, Run, RunState, Runs, Slot};
use schemas::source::Source;
use schemas::time::Width;
use stores::achievements::{AchievementsRead, Mark, Of};
use stores::canon::{
    Answered, Applied, Authorized, CanonRead, CanonWrite, FirstGroups, Notification, Revoked,
    Waiting,
};
use stores::live::{
    LiveAnswer, LiveParts, LiveQuery, LiveRead, MembersQuery, Outbox, SlotId, StateQuery,
    StatesAnswer,
};
use stores::live_scan::{LivePlace, ScannedDeltas, ScannedStates};
use stores::log::{FetchLimit, Fetched, LogRead, LogWrite, NewRecords, Span};
use stores::records::{Record, Records, RecordsRead, Scan};
use stores::views::{
    FoundRows, Head, NodeName, PartQuery, RunStory, RunsSeen, TallyShape, ViewsRead,
};
use stores::{Error, Result};

use self::boards::Boards;
use crate::{Serving, ServingOptions, ServingPorts};

/// An event, by the columns that views count by.
#[derive(Debug, Clone)]
pub(crate) struct Play {
    pub(crate) at: i64,
    pub(crate) ints: BTreeMap<&'static str, i64>,
    pub(crate) texts: BTreeMap<&'static str, String>,
    pub(crate) amount: i64,
}

impl Play {
    pub(crate) fn value(&self, column: &KeyColumn) -> KeyValue {
        let name = column.name.as_str();
        if let Some(of) = name.strip_suffix("_cell") {
            let value = self.ints.get(format!("{of}_id").as_str());
            return value.map_or(KeyValue::Null, |value| KeyValue::Int(cell(*value)));
        }
        match column.kind {
            KeyKind::Int => self
                .ints
                .get(name)
                .map_or(KeyValue::Null, |n| KeyValue::Int(*n)),
            _ => self
                .texts
                .get(name)
                .map_or(KeyValue::Null, |t| KeyValue::Text(t.clone())),
        }
    }

    fn partition(&self, partitions: u32) -> usize {
        partition_of(self.ints["owner_id"].to_string().as_bytes(), partitions) as usize
    }
}

/// How far the layers have come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// By run, from 1 on: how many of the events it covers.
    pub(crate) cuts: Vec<usize>,
    /// The newest complete run.
    pub(crate) newest: Epoch,
    /// Epochs up to this one are no longer live.
    pub(crate) dropped: Epoch,
    /// Of the run after the newest, rows whose key has this remainder by 3 are written already.
    pub(crate) loaded: u8,
}

type RowKey = (Vec<u8>, Vec<u8>);

/// Batch rows by view, and live parts by view.
#[derive(Debug, Default)]
pub(crate) struct World {
    partitions: u32,
    rows: BTreeMap<String, BTreeMap<RowKey, (i64, Epoch)>>,
    /// By view, group, row, partition and epoch.
    parts: BTreeMap<String, BTreeMap<(RowKey, u32, Epoch), i64>>,
    pub(crate) slots: Mutex<Vec<Option<Slot>>>,
    runs: Vec<Run>,
    newest: Epoch,
    appended: Mutex<Vec<(String, Vec<u8>)>>,
    /// How many reads of slots see none.
    pub(crate) blind: Mutex<usize>,
    pub(crate) boards: Mutex<Boards>,
    /// Whether the views' store does not answer.
    pub(crate) is_down: Mutex<bool>,
    /// Whether reads of live state take their time.
    pub(crate) is_slow: AtomicBool,
    /// Reads of live state, and of batch rows.
    pub(crate) live_reads: Mutex<usize>,
    pub(crate) row_reads: Mutex<usize>,
    pub(crate) keys: Arc<keys::PlainKeys>,
    /// The actors of rows that were applied.
    pub(crate) actors: Mutex<Vec<String>>,
}

pub(crate) const NOW_MS: i64 = 1_784_000_000_000;

impl World {
    pub(crate) fn of(catalog: &Catalog, plays: &[Play], partitions: u32, at: &Progress) -> Self {
        let mut world = Self {
            partitions,
            newest: at.newest,
            ..Self::default()
        };
        let offsets = |through: usize| {
            let mut offsets = vec![0_i64; partitions as usize];
            for play in &plays[..through] {
                offsets[play.partition(partitions)] += 1;
            }
            offsets
        };
        let cut = |next_offset: Offset, at: usize| Cut {
            next_offset,
            last: (next_offset > 0).then_some(LastRecord {
                offset: next_offset - 1,
                checksum: 0,
                logged_at_ms: at as i64,
            }),
        };
        let cuts_of = |through: usize| -> Vec<Cut> {
            offsets(through)
                .into_iter()
                .map(|offset| cut(offset, through))
                .collect()
        };
        for (index, through) in at.cuts.iter().enumerate() {
            let epoch = index as Epoch + 1;
            let state = if epoch <= at.newest {
                RunState::Complete
            } else {
                RunState::Sealed
            };
            world.runs.push(Run {
                epoch,
                state,
                cuts: cuts_of(*through),
                stamp_us: 1,
                token: String::new(),
            });
        }
        let slots = (0..partitions as usize).map(|p| {
            let bounds = (at.dropped..=at.cuts.len() as Epoch).map(|epoch| {
                let through = match epoch {
                    0 => 0,
                    e => at.cuts[usize::try_from(e).unwrap() - 1],
                };
                (epoch, cuts_of(through)[p])
            });
            Some(Slot {
                generation: 1,
                position: cuts_of(plays.len())[p],
                epoch: at.cuts.len() as Epoch + 1,
                oldest: at.dropped + 1,
                bounds: bounds.collect(),
                replay_until: 0,
                strays: None,
                since: catalog
                    .jobs()
                    .iter()
                    .map(|j| (j.view().to_owned(), 0))
                    .collect(),
            })
        });
        world.slots = Mutex::new(slots.collect());
        for job in catalog.jobs() {
            world.fill(job, plays, at);
        }
        world
    }

    fn fill(&mut self, job: &Job, plays: &[Play], at: &Progress) {
        let rows = self.rows.entry(job.view().to_owned()).or_default();
        let parts = self.parts.entry(job.view().to_owned()).or_default();
        for (index, play) in plays.iter().enumerate() {
            let (group, part, row) = keys(job, play);
            let epoch = at.cuts.partition_point(|cut| *cut <= index) as Epoch + 1;
            let loaded = row.last().is_some_and(|byte| byte % 3 == at.loaded);
            let through = at.newest + Epoch::from(loaded && at.newest < at.cuts.len() as Epoch);
            if epoch <= through {
                let stored = rows.entry((part, row.clone())).or_default();
                *stored = (stored.0 + play.amount, through);
            }
            if epoch > at.dropped && job.layers().include(Layers::Speed) {
                let partition = u32::try_from(play.partition(self.partitions)).unwrap();
                *parts.entry(((group, row), partition, epoch)).or_default() += play.amount;
            }
        }
    }

    /// A service over it.
    pub(crate) fn serving(
        self,
        catalog: &Catalog,
        options: ServingOptions,
    ) -> (Serving, Arc<Self>) {
        let world = Arc::new(self);
        let ports = ServingPorts {
            log: Arc::clone(&world) as _,
            ingest: Arc::clone(&world) as _,
            canon: Arc::clone(&world) as _,
            live: Arc::clone(&world) as _,
            views: Arc::clone(&world) as _,
            achievements: Arc::clone(&world) as _,
            counts: Arc::clone(&world) as _,
            records: Arc::clone(&world) as _,
            keys: Arc::clone(&world.keys) as _,
            schemas: Arc::new(stores::registry::NoRegistry),
            suppressions: stores::erasures::Suppressions::nobody(),
            clock: Arc::new(FixedClock::at_ms(NOW_MS)),
        };
        (
            Serving::build(ports, catalog.clone(), options, None).unwrap(),
            world,
        )
    }

    /// What was appended: topic and value.
    pub(crate) fn appended(&self) -> Vec<(String, Vec<u8>)> {
        self.appended.lock().unwrap().clone()
    }
}

/// Group key, table partition and row key of an event in a view.
fn keys(job: &Job, play: &Play) -> RowKeys {
    let group: Vec<KeyValue> = job
        .group()
        .0
        .iter()
        .map(|column| play.value(column))
        .collect();
    let group = job.group().encode_values(&group).unwrap();
    let row: Vec<KeyValue> = job
        .row()
        .0
        .iter()
        .map(|column| match column.kind {
            KeyKind::Time => KeyValue::Time(job.bucket().floor(play.at)),
            _ => play.value(column),
        })
        .collect();
    let start = match job.partition() {
        Width::All => 0,
        width => width.floor(play.at),
    };
    let part = TallyShape::part(start, &group);
    (group, part, job.row().encode_values(&row).unwrap())
}

type RowKeys = (Vec<u8>, Vec<u8>, Vec<u8>);

fn within(key: &[u8], (from, to): &(Vec<u8>, Option<Vec<u8>>)) -> bool {
    key >= &from[..] && to.as_ref().is_none_or(|to| key < &to[..])
}

#[async_trait]
impl LogRead for World {
    async fn spans(&self, topic: &str) -> Result<Vec<Span>> {
        if topic != Source::Plays.topic() {
            let is_there = self.boards.lock().unwrap().is_there();
            return Ok(vec![Span { start: 0, end: 0 }; usize::from(is_there)]);
        }
        let slots = self.slots.lock().unwrap();
        let end = |slot: &Option<Slot>| slot.as_ref().map_or(0, |slot| slot.position.next_offset);
        Ok(slots
            .iter()
            .map(|slot| Span {
                start: 0,
                end: end(slot),
            })
            .collect())
    }

    async fn fetch(&self, _: &str, _: u32, _: Offset, _: FetchLimit) -> Result<Fetched> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn offset_at(&self, _: &str, _: u32, _: i64) -> Result<Offset> {
        Err(Error::Refused("not for serving".to_owned()))
    }
}

#[async_trait]
impl LogWrite for World {
    async fn ensure_topic(&self, _: &str, partitions: u32) -> Result<u32> {
        Ok(partitions)
    }

    async fn append(&self, topic: &str, groups: &[NewRecords], _: i64) -> Result<Vec<Offset>> {
        let mut appended = self.appended.lock().unwrap();
        for value in groups
            .iter()
            .flat_map(|group| group.values.iter().flatten())
        {
            appended.push((topic.to_owned(), value.to_vec()));
        }
        Ok(vec![0; groups.len()])
    }
}

#[async_trait]
impl LiveRead for World {
    async fn partition_states(
        &self,
        source: Source,
        partitions: Range<u32>,
    ) -> Result<Vec<Option<Slot>>> {
        *self.live_reads.lock().unwrap() += 1;
        if self.is_slow.load(Ordering::Relaxed) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let mut slots = match source {
            Source::Plays => self.slots.lock().unwrap().clone(),
            _ => vec![self.boards.lock().unwrap().slot()],
        };
        slots.resize(partitions.end as usize, None);
        slots.drain(..partitions.start as usize);
        let mut blind = self.blind.lock().unwrap();
        if *blind > 0 {
            *blind -= 1;
            slots.fill(None);
        }
        Ok(slots)
    }

    async fn read(
        &self,
        source: Source,
        partitions: u32,
        queries: &[LiveQuery],
    ) -> Result<LiveAnswer> {
        let slots = self.partition_states(source, 0..partitions).await?;
        let parts = queries.iter().map(|query| {
            let mut found: Vec<(u32, Epoch, Vec<u8>, i64)> = Vec::new();
            for (((group, row), partition, epoch), count) in &self.parts[&query.view] {
                let asked = query.partition.is_none_or(|only| only == *partition);
                let in_range = query.ranges.iter().any(|range| within(row, range));
                if *group == query.group && asked && in_range {
                    found.push((*partition, *epoch, row.clone(), *count));
                }
            }
            LiveParts {
                partitions: found.iter().map(|part| part.0).collect::<UInt32Array>(),
                epochs: found.iter().map(|part| part.1).collect::<UInt64Array>(),
                rows: found
                    .iter()
                    .map(|part| Some(&part.2[..]))
                    .collect::<BinaryArray>(),
                counts: found.iter().map(|part| part.3).collect::<Int64Array>(),
            }
        });
        Ok(LiveAnswer {
            slots,
            parts: parts.collect(),
        })
    }

    async fn read_states(
        &self,
        _: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesAnswer> {
        let slowness = {
            let mut boards = self.boards.lock().unwrap();
            boards.asked.push(queries.len());
            boards.under_way += 1;
            boards.under_way_max = boards.under_way_max.max(boards.under_way);
            boards.slowness
        };
        if !slowness.is_zero() {
            tokio::time::sleep(slowness).await;
        }
        let mut boards = self.boards.lock().unwrap();
        boards.under_way -= 1;
        // There is one partition.
        let mut slots = vec![boards.slot()];
        slots.resize(partitions as usize, None);
        let answer = StatesAnswer {
            slots,
            states: queries.iter().map(|query| boards.states(query)).collect(),
        };
        boards.next_offset += boards.offset_step;
        Ok(answer)
    }

    async fn read_members(
        &self,
        _: Source,
        _: Range<u32>,
        _: &[MembersQuery],
    ) -> Result<StatesAnswer> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn outboxes(
        &self,
        _: Source,
        partitions: Range<u32>,
        _: usize,
    ) -> Result<Vec<Option<Outbox>>> {
        let boards = self.boards.lock().unwrap();
        let outbox = boards.slot().map(|slot| Outbox {
            slot,
            waiting: boards.waiting.len() as u64,
            numbers: 0..boards.waiting.len() as u64,
            entries: boards
                .waiting
                .iter()
                .map(|told| told.encode().into())
                .collect(),
        });
        let mut outboxes = vec![outbox];
        outboxes.resize(partitions.len(), None);
        Ok(outboxes)
    }

    async fn scan_deltas(
        &self,
        _: SlotId,
        _: &str,
        _: (Epoch, Epoch),
        _: Option<LivePlace>,
        _: usize,
    ) -> Result<ScannedDeltas> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn scan_states(
        &self,
        _: SlotId,
        _: &str,
        _: (Epoch, Epoch),
        _: Option<LivePlace>,
        _: usize,
    ) -> Result<ScannedStates> {
        Err(Error::Refused("not for serving".to_owned()))
    }
}

#[async_trait]
impl AchievementsRead for World {
    async fn achievements(
        &self,
        of: Of,
        kind: Option<Kind>,
        before: Option<&Mark>,
        limit: usize,
    ) -> Result<Vec<Told>> {
        let mut found = self.boards.lock().unwrap().told.clone();
        found.retain(|told| {
            of.has(told)
                && kind.is_none_or(|kind| told.achieved.is_some_and(|a| a.kind == kind))
                && before.is_none_or(|before| Mark::of(told) < *before)
        });
        found.sort_by_key(|told| std::cmp::Reverse(Mark::of(told)));
        found.truncate(limit);
        Ok(found)
    }

    async fn told_through(&self, _: SlotId) -> Result<Option<Offset>> {
        Ok(None)
    }
}

#[async_trait]
impl ViewsRead for World {
    async fn runs(&self, source: Source) -> Result<RunsSeen> {
        if *self.is_down.lock().unwrap() {
            return Err(Error::Unavailable {
                what: "reading runs".to_owned(),
                why: "nobody answers".to_owned(),
            });
        }
        if source != Source::Plays {
            let boards = self.boards.lock().unwrap();
            let (runs, newest) = if boards.is_there() {
                boards.runs()
            } else {
                Default::default()
            };
            return Ok(RunsSeen {
                runs: Runs::from_iter(runs),
                newest,
            });
        }
        Ok(RunsSeen {
            runs: Runs::from_iter(self.runs.clone()),
            newest: self
                .rows
                .keys()
                .map(|view| (view.clone(), self.newest))
                .collect(),
        })
    }

    async fn rows(&self, view: &str, queries: &[PartQuery]) -> Result<Option<FoundRows>> {
        *self.row_reads.lock().unwrap() += 1;
        let mut found: Vec<(u32, Vec<u8>, i64, Epoch)> = Vec::new();
        let Some(rows) = self.rows.get(view) else {
            return Ok(None);
        };
        for (index, query) in queries.iter().enumerate() {
            for ((part, row), (count, epoch)) in rows {
                if *part == query.part && within(row, &query.range) {
                    found.push((u32::try_from(index).unwrap(), row.clone(), *count, *epoch));
                }
            }
        }
        Ok(Some(FoundRows {
            queries: found.iter().map(|row| row.0).collect::<UInt32Array>(),
            rows: found
                .iter()
                .map(|row| Some(&row.1[..]))
                .collect::<BinaryArray>(),
            counts: found.iter().map(|row| row.2).collect::<Int64Array>(),
            epochs: found.iter().map(|row| row.3).collect::<UInt64Array>(),
        }))
    }

    async fn heads(&self, view: &str, keys: &[Vec<u8>]) -> Result<Option<Vec<Option<Head>>>> {
        let boards = self.boards.lock().unwrap();
        Ok(Some(
            keys.iter().map(|key| boards.head(view, key)).collect(),
        ))
    }

    async fn nodes(&self, _: &str, _: &[u8], names: &[NodeName]) -> Result<Vec<Option<Bytes>>> {
        Ok(self.boards.lock().unwrap().nodes(names))
    }

    async fn stories(
        &self,
        _: Source,
        before: Option<Epoch>,
        limit: usize,
    ) -> Result<Vec<RunStory>> {
        let is_before = |run: &&Run| before.is_none_or(|before| run.epoch < before);
        let runs = self.runs.iter().rev().filter(is_before);
        Ok(runs.take(limit).map(story).collect())
    }

    async fn story(&self, _: Source, epoch: Epoch) -> Result<Option<RunStory>> {
        Ok(self.runs.iter().find(|run| run.epoch == epoch).map(story))
    }
}

#[async_trait]
impl RecordsRead for World {
    async fn get(&self, _: &str, _: &str) -> Result<Option<Record>> {
        Ok(None)
    }

    async fn scan(&self, _: &str, _: Scan<'_>) -> Result<Vec<Record>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Records for World {
    async fn compare_and_set(
        &self,
        _: &str,
        _: &str,
        _: Option<u64>,
        _: Option<&serde_json::Value>,
    ) -> Result<bool> {
        Ok(true)
    }
}

#[async_trait]
impl CanonRead for World {
    async fn first_groups(&self, _: Source, _: &[Group], _: usize) -> Result<FirstGroups> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn dump(
        &self,
        _: Source,
        _: Option<&[i64]>,
        _: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn ask(&self, _: &str, _: u64) -> Result<Answered> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn club_members(&self, _: i64) -> Result<Vec<i64>> {
        Ok(self.boards.lock().unwrap().club.clone())
    }

    async fn followed_by(&self, _: i64) -> Result<Vec<i64>> {
        self.club_members(0).await
    }

    async fn application(&self, id: i64) -> Result<Option<Application>> {
        let boards = self.boards.lock().unwrap();
        let mut applications = boards.applications.iter();
        Ok(applications
            .find(|application| application.id == id)
            .cloned())
    }

    async fn applications(&self, after: Option<i64>, limit: usize) -> Result<Vec<Application>> {
        let boards = self.boards.lock().unwrap();
        let later = boards
            .applications
            .iter()
            .filter(|application| after.is_none_or(|after| application.id > after));
        Ok(later.take(limit).cloned().collect())
    }

    async fn versions(&self, rows: &[Entity]) -> Result<Vec<Option<i64>>> {
        Ok(vec![None; rows.len()])
    }

    async fn waiting(&self, _: Source) -> Result<Waiting> {
        Ok(Waiting::default())
    }

    async fn pending(&self, _: Source, _: i64, _: usize) -> Result<Vec<Notification>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl CanonWrite for World {
    async fn apply_by(&self, rows: &[Entity], actor: &str, _: i64) -> Result<Applied> {
        self.actors.lock().unwrap().push(actor.to_owned());
        Ok(Applied {
            accepted: rows.len() as u64,
            ..Applied::default()
        })
    }

    async fn authorize(&self, _: i64, _: i64, _: i64) -> Result<Authorized> {
        Ok(Authorized::UnknownApplication)
    }

    async fn revoke(&self, _: i64, _: i64, _: i64) -> Result<Revoked> {
        Ok(Revoked::UnknownApplication)
    }

    async fn notified(&self, _: &[i64]) -> Result<()> {
        Ok(())
    }
}

fn story(run: &Run) -> RunStory {
    RunStory {
        run: run.clone(),
        started_at_ms: NOW_MS,
        ended_at_ms: None,
        report: serde_json::json!({"rows_read": 7, "seconds": {"roll": 0.5, "plan": 1.0}}),
    }
}
