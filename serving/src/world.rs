//! In-memory ports for tests of the serving layer.

mod admin;
mod board_store;
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
use schemas::achievement::{AchievementKind, OutboxMessage};
use schemas::clock::FixedClock;
use schemas::entities::{Application, Entity, Group};
use schemas::key::{KeyColumn, KeyKind, KeyValue};
use schemas::partition::partition_of;
use schemas::seam::{Cut, Epoch, LastRecord, Offset, PartitionState, Run, RunState, Runs};
use schemas::source::Source;
use schemas::time::Width;
use stores::achievements::{AchievementCursor, AchievementOwner, AchievementsRead};
use stores::entities::{
    ApplyOutcome, AuthorizeOutcome, EntityRead, EntityWrite, FirstGroups, Notification,
    OutboxStatus, QueryResult, RevokeOutcome,
};
use stores::live::{
    DeltaQuery, DeltasSnapshot, LiveDeltas, LiveRead, MembersQuery, Outbox, PartitionId,
    StateQuery, StatesSnapshot,
};
use stores::live_scan::{ScanKey, ScannedDeltas, ScannedStates};
use stores::log::{FetchLimit, Fetched, LogRead, LogWrite, NewRecords, Span};
use stores::records::{Record, Records, RecordsRead, Scan};
use stores::views::{
    AggregateShape, Head, NodeName, PartitionQuery, RunDetails, RunRecords, ViewRows, ViewsRead,
};
use stores::{Error, Result};

use self::board_store::Boards;
use crate::{Serving, ServingOptions, ServingPorts};

/// A play event with the columns that views count by.
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
        if let Some(base) = name.strip_suffix("_cell") {
            let value = self.ints.get(format!("{base}_id").as_str());
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

/// Progress of the batch and speed layers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// Number of events that each run covers, from run 1.
    pub(crate) cuts: Vec<usize>,
    /// The newest complete run.
    pub(crate) newest: Epoch,
    /// Live state up to this epoch is pruned.
    pub(crate) pruned: Epoch,
    /// Rows of the run after the newest are already written if the last byte of their key modulo 3
    /// is this.
    pub(crate) loaded_remainder: u8,
}

type RowKey = (Vec<u8>, Vec<u8>);

/// Batch rows and live deltas by view.
#[derive(Debug, Default)]
pub(crate) struct World {
    partitions: u32,
    rows: BTreeMap<String, BTreeMap<RowKey, (i64, Epoch)>>,
    /// Live deltas by group, row, partition and epoch for each view.
    deltas: BTreeMap<String, BTreeMap<(RowKey, u32, Epoch), i64>>,
    pub(crate) states: Mutex<Vec<Option<PartitionState>>>,
    runs: Vec<Run>,
    newest: Epoch,
    appended: Mutex<Vec<(String, Vec<u8>)>>,
    /// Number of reads of partition states that find none.
    pub(crate) missing_state_reads: Mutex<usize>,
    pub(crate) boards: Mutex<Boards>,
    /// True if the view store is unavailable.
    pub(crate) is_down: Mutex<bool>,
    /// True if reads of live state are slow.
    pub(crate) is_slow: AtomicBool,
    /// Number of reads of live state.
    pub(crate) live_reads: Mutex<usize>,
    /// Number of reads of batch rows.
    pub(crate) row_reads: Mutex<usize>,
    pub(crate) keys: Arc<keys::InMemoryKeys>,
    /// Actors of the applied rows.
    pub(crate) actors: Mutex<Vec<String>>,
}

pub(crate) const NOW_MS: i64 = 1_784_000_000_000;

impl World {
    pub(crate) fn new(
        catalog: &Catalog,
        plays: &[Play],
        partitions: u32,
        progress: &Progress,
    ) -> Self {
        let mut world = Self {
            partitions,
            newest: progress.newest,
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
        for (index, through) in progress.cuts.iter().enumerate() {
            let epoch = index as Epoch + 1;
            let state = if epoch <= progress.newest {
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
        let states = (0..partitions as usize).map(|p| {
            let bounds = (progress.pruned..=progress.cuts.len() as Epoch).map(|epoch| {
                let through = match epoch {
                    0 => 0,
                    e => progress.cuts[usize::try_from(e).unwrap() - 1],
                };
                (epoch, cuts_of(through)[p])
            });
            Some(PartitionState {
                generation: 1,
                position: cuts_of(plays.len())[p],
                epoch: progress.cuts.len() as Epoch + 1,
                oldest: progress.pruned + 1,
                bounds: bounds.collect(),
                replay_until: 0,
                misrouted_epoch: None,
                since: catalog
                    .jobs()
                    .iter()
                    .map(|j| (j.view().to_owned(), 0))
                    .collect(),
            })
        });
        world.states = Mutex::new(states.collect());
        for job in catalog.jobs() {
            world.fill(job, plays, progress);
        }
        world
    }

    fn fill(&mut self, job: &Job, plays: &[Play], progress: &Progress) {
        let rows = self.rows.entry(job.view().to_owned()).or_default();
        let deltas = self.deltas.entry(job.view().to_owned()).or_default();
        for (index, play) in plays.iter().enumerate() {
            let (group, part, row) = keys(job, play);
            let epoch = progress.cuts.partition_point(|cut| *cut <= index) as Epoch + 1;
            let loaded = row
                .last()
                .is_some_and(|byte| byte % 3 == progress.loaded_remainder);
            let through = progress.newest
                + Epoch::from(loaded && progress.newest < progress.cuts.len() as Epoch);
            if epoch <= through {
                let stored = rows.entry((part, row.clone())).or_default();
                *stored = (stored.0 + play.amount, through);
            }
            if epoch > progress.pruned && job.layers().include(Layers::Speed) {
                let partition = u32::try_from(play.partition(self.partitions)).unwrap();
                *deltas.entry(((group, row), partition, epoch)).or_default() += play.amount;
            }
        }
    }

    /// Builds a service over these ports.
    pub(crate) fn serving(
        self,
        catalog: &Catalog,
        options: ServingOptions,
    ) -> (Serving, Arc<Self>) {
        let world = Arc::new(self);
        let ports = ServingPorts {
            log: Arc::clone(&world) as _,
            ingest: Arc::clone(&world) as _,
            entities: Arc::clone(&world) as _,
            live: Arc::clone(&world) as _,
            views: Arc::clone(&world) as _,
            achievements: Arc::clone(&world) as _,
            counts: Arc::clone(&world) as _,
            records: Arc::clone(&world) as _,
            keys: Arc::clone(&world.keys) as _,
            schemas: Arc::new(stores::registry::NoRegistry),
            suppressions: stores::erasures::Suppressions::none(),
            clock: Arc::new(FixedClock::at_ms(NOW_MS)),
        };
        (
            Serving::new(ports, catalog.clone(), options, None).unwrap(),
            world,
        )
    }

    /// The appended records: topic and value.
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
    let start = match job.table_partition() {
        Width::All => 0,
        width => width.floor(play.at),
    };
    let part = AggregateShape::partition_key(start, &group);
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
            let has_views = self.boards.lock().unwrap().has_views();
            return Ok(vec![Span { start: 0, end: 0 }; usize::from(has_views)]);
        }
        let states = self.states.lock().unwrap();
        let end = |state: &Option<PartitionState>| {
            state.as_ref().map_or(0, |state| state.position.next_offset)
        };
        Ok(states
            .iter()
            .map(|state| Span {
                start: 0,
                end: end(state),
            })
            .collect())
    }

    async fn fetch(&self, _: &str, _: u32, _: Offset, _: FetchLimit) -> Result<Fetched> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }

    async fn offset_at(&self, _: &str, _: u32, _: i64) -> Result<Offset> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
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
    ) -> Result<Vec<Option<PartitionState>>> {
        *self.live_reads.lock().unwrap() += 1;
        if self.is_slow.load(Ordering::Relaxed) {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
        let mut states = match source {
            Source::Plays => self.states.lock().unwrap().clone(),
            _ => vec![self.boards.lock().unwrap().partition_state()],
        };
        states.resize(partitions.end as usize, None);
        states.drain(..partitions.start as usize);
        let mut missing = self.missing_state_reads.lock().unwrap();
        if *missing > 0 {
            *missing -= 1;
            states.fill(None);
        }
        Ok(states)
    }

    async fn read_deltas(
        &self,
        source: Source,
        partitions: u32,
        queries: &[DeltaQuery],
    ) -> Result<DeltasSnapshot> {
        let states = self.partition_states(source, 0..partitions).await?;
        let deltas = queries.iter().map(|query| {
            let mut found: Vec<(u32, Epoch, Vec<u8>, i64)> = Vec::new();
            for (((group, row), partition, epoch), count) in &self.deltas[&query.view] {
                let is_requested = query.partition.is_none_or(|only| only == *partition);
                let in_range = query.ranges.iter().any(|range| within(row, range));
                if *group == query.group && is_requested && in_range {
                    found.push((*partition, *epoch, row.clone(), *count));
                }
            }
            LiveDeltas {
                partitions: found.iter().map(|delta| delta.0).collect::<UInt32Array>(),
                epochs: found.iter().map(|delta| delta.1).collect::<UInt64Array>(),
                rows: found
                    .iter()
                    .map(|delta| Some(&delta.2[..]))
                    .collect::<BinaryArray>(),
                counts: found.iter().map(|delta| delta.3).collect::<Int64Array>(),
            }
        });
        Ok(DeltasSnapshot {
            partition_states: states,
            deltas: deltas.collect(),
        })
    }

    async fn read_states(
        &self,
        _: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesSnapshot> {
        let read_delay = {
            let mut boards = self.boards.lock().unwrap();
            boards.keys_per_read.push(queries.len());
            boards.active_reads += 1;
            boards.active_reads_max = boards.active_reads_max.max(boards.active_reads);
            boards.read_delay
        };
        if !read_delay.is_zero() {
            tokio::time::sleep(read_delay).await;
        }
        let mut boards = self.boards.lock().unwrap();
        boards.active_reads -= 1;
        // Boards have one partition.
        let mut states = vec![boards.partition_state()];
        states.resize(partitions as usize, None);
        let answer = StatesSnapshot {
            partition_states: states,
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
    ) -> Result<StatesSnapshot> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }

    async fn outboxes(
        &self,
        _: Source,
        partitions: Range<u32>,
        _: usize,
    ) -> Result<Vec<Option<Outbox>>> {
        let boards = self.boards.lock().unwrap();
        let outbox = boards.partition_state().map(|state| Outbox {
            state,
            pending: boards.unpublished.len() as u64,
            sequence_numbers: 0..boards.unpublished.len() as u64,
            entries: boards
                .unpublished
                .iter()
                .map(|message| message.encode().into())
                .collect(),
        });
        let mut outboxes = vec![outbox];
        outboxes.resize(partitions.len(), None);
        Ok(outboxes)
    }

    async fn scan_deltas(
        &self,
        _: PartitionId,
        _: &str,
        _: (Epoch, Epoch),
        _: Option<ScanKey>,
        _: usize,
    ) -> Result<ScannedDeltas> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }

    async fn scan_states(
        &self,
        _: PartitionId,
        _: &str,
        _: (Epoch, Epoch),
        _: Option<ScanKey>,
        _: usize,
    ) -> Result<ScannedStates> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }
}

#[async_trait]
impl AchievementsRead for World {
    async fn achievements(
        &self,
        of: AchievementOwner,
        kind: Option<AchievementKind>,
        before: Option<&AchievementCursor>,
        limit: usize,
    ) -> Result<Vec<OutboxMessage>> {
        let mut found = self.boards.lock().unwrap().published.clone();
        found.retain(|message| {
            of.contains(message)
                && kind.is_none_or(|kind| message.achievement.is_some_and(|a| a.kind == kind))
                && before.is_none_or(|before| AchievementCursor::from_message(message) < *before)
        });
        found.sort_by_key(|message| std::cmp::Reverse(AchievementCursor::from_message(message)));
        found.truncate(limit);
        Ok(found)
    }

    async fn published_through(&self, _: PartitionId) -> Result<Option<Offset>> {
        Ok(None)
    }
}

#[async_trait]
impl ViewsRead for World {
    async fn runs(&self, source: Source) -> Result<RunRecords> {
        if *self.is_down.lock().unwrap() {
            return Err(Error::Unavailable {
                what: "reading runs".to_owned(),
                why: "the test made it unavailable".to_owned(),
            });
        }
        if source != Source::Plays {
            let boards = self.boards.lock().unwrap();
            let (runs, complete_epochs) = if boards.has_views() {
                boards.runs()
            } else {
                Default::default()
            };
            return Ok(RunRecords {
                runs: Runs::from_iter(runs),
                complete_epochs,
            });
        }
        Ok(RunRecords {
            runs: Runs::from_iter(self.runs.clone()),
            complete_epochs: self
                .rows
                .keys()
                .map(|view| (view.clone(), self.newest))
                .collect(),
        })
    }

    async fn rows(&self, view: &str, queries: &[PartitionQuery]) -> Result<Option<ViewRows>> {
        *self.row_reads.lock().unwrap() += 1;
        let mut found: Vec<(u32, Vec<u8>, i64, Epoch)> = Vec::new();
        let Some(rows) = self.rows.get(view) else {
            return Ok(None);
        };
        for (index, query) in queries.iter().enumerate() {
            for ((part, row), (count, epoch)) in rows {
                if *part == query.partition && within(row, &query.range) {
                    found.push((u32::try_from(index).unwrap(), row.clone(), *count, *epoch));
                }
            }
        }
        Ok(Some(ViewRows {
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

    async fn list_run_details(
        &self,
        _: Source,
        before: Option<Epoch>,
        limit: usize,
    ) -> Result<Vec<RunDetails>> {
        let is_before = |run: &&Run| before.is_none_or(|before| run.epoch < before);
        let runs = self.runs.iter().rev().filter(is_before);
        Ok(runs.take(limit).map(run_details).collect())
    }

    async fn run_details(&self, _: Source, epoch: Epoch) -> Result<Option<RunDetails>> {
        Ok(self
            .runs
            .iter()
            .find(|run| run.epoch == epoch)
            .map(run_details))
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
impl EntityRead for World {
    async fn first_groups(&self, _: Source, _: &[Group], _: usize) -> Result<FirstGroups> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }

    async fn dump(
        &self,
        _: Source,
        _: Option<&[i64]>,
        _: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }

    async fn query(&self, _: &str, _: u64) -> Result<QueryResult> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }

    async fn club_members(&self, _: i64) -> Result<Vec<i64>> {
        Ok(self.boards.lock().unwrap().club.clone())
    }

    async fn followed_athletes(&self, _: i64) -> Result<Vec<i64>> {
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

    async fn outbox_status(&self, _: Source) -> Result<OutboxStatus> {
        Ok(OutboxStatus::default())
    }

    async fn pending_notifications(
        &self,
        _: Source,
        _: i64,
        _: usize,
    ) -> Result<Vec<Notification>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl EntityWrite for World {
    async fn apply_as(&self, rows: &[Entity], actor: &str, _: i64) -> Result<ApplyOutcome> {
        self.actors.lock().unwrap().push(actor.to_owned());
        Ok(ApplyOutcome {
            accepted: rows.len() as u64,
            ..ApplyOutcome::default()
        })
    }

    async fn authorize(&self, _: i64, _: i64, _: i64) -> Result<AuthorizeOutcome> {
        Ok(AuthorizeOutcome::UnknownApplication)
    }

    async fn revoke(&self, _: i64, _: i64, _: i64) -> Result<RevokeOutcome> {
        Ok(RevokeOutcome::UnknownApplication)
    }

    async fn remove_notifications(&self, _: &[i64]) -> Result<()> {
        Ok(())
    }
}

fn run_details(run: &Run) -> RunDetails {
    RunDetails {
        run: run.clone(),
        started_at_ms: NOW_MS,
        ended_at_ms: None,
        report: serde_json::json!({"rows_read": 7, "seconds": {"roll": 0.5, "plan": 1.0}}),
    }
}
