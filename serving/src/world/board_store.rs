//! In-memory boards: published versions of one run, and live states after it.

use std::collections::BTreeMap;
use std::time::Duration;

use arrow::array::{BinaryArray, UInt32Array, UInt64Array};
use bytes::Bytes;
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jobs::board::{BoardEntry, MemberEntries, VersionTrees, member_key, rank_key};
use jobs::tree::{Builder, Options};
use jobs::{Board, Job};
use schemas::achievement::OutboxMessage;
use schemas::entities::Application;
use schemas::key::{KeyKind, KeyShape, KeyValue};
use schemas::seam::{Cut, Epoch, PartitionState, Run, RunState};
use stores::counts::{Day, DayRow};
use stores::live::{LiveStates, StateQuery};
use stores::names::NamedKind;
use stores::recounts::RecordedCount;
use stores::views::{Head, NodeName};

/// The run that published the versions.
pub(crate) const EPOCH: Epoch = 2;
/// The clock's day.
pub(crate) const TODAY: Date = date(2026, 7, 14);
/// End of the run's epoch.
pub(super) const CUT: Cut = Cut {
    next_offset: 10,
    last: None,
};

/// A row of an overall board, for the columns that the board has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoardTime {
    pub(crate) member: i64,
    pub(crate) time: i64,
    pub(crate) period: i64,
    pub(crate) gender: &'static str,
}

/// View, key and member.
type StateName = (String, Vec<u8>, Vec<u8>);

/// Boards by view and key, and injected faults.
#[derive(Debug, Default)]
pub(crate) struct Boards {
    pub(super) views: Vec<String>,
    heads: BTreeMap<(String, Vec<u8>), Head>,
    nodes: BTreeMap<NodeName, Bytes>,
    states: BTreeMap<StateName, Option<Vec<u8>>>,
    pub(crate) applications: Vec<Application>,
    /// Members of every club, and the athletes that everyone follows.
    pub(crate) club: Vec<i64>,
    /// Names of entities.
    pub(crate) names: BTreeMap<(NamedKind, i64), String>,
    /// Recounts by application.
    pub(crate) recounted: BTreeMap<i64, RecordedCount>,
    /// Daily counts by key and day.
    pub(crate) days: BTreeMap<(Vec<u8>, Day), DayRow>,
    /// Board changes that are not yet published, and published ones.
    pub(crate) unpublished: Vec<OutboxMessage>,
    pub(crate) published: Vec<OutboxMessage>,
    /// Next offset of the live states, and its increment with each read.
    pub(crate) next_offset: i64,
    pub(crate) offset_step: i64,
    /// True if partition states are missing.
    pub(crate) lacks_states: bool,
    /// Number of reads of nodes that find none.
    pub(crate) nodes_lost: usize,
    /// Duration of a read of states.
    pub(crate) read_delay: Duration,
    /// Number of keys in each read of states.
    pub(crate) keys_per_read: Vec<usize>,
    pub(crate) active_reads: usize,
    pub(crate) active_reads_max: usize,
}

impl Boards {
    /// Publishes a version of a key, with many small nodes, on the clock's day.
    pub(crate) fn publish(&mut self, job: &Job<Board>, key: i64, rows: &[BoardTime]) {
        self.publish_on(TODAY, job, key, rows);
    }

    /// Publishes a version on another day.
    pub(crate) fn publish_on(&mut self, day: Date, job: &Job<Board>, key: i64, rows: &[BoardTime]) {
        let at = day.at(13, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap();
        let stamp_us = at.timestamp().as_microsecond();
        let (mut by_rank, mut by_member) = (Vec::new(), Vec::new());
        for row in rows {
            let (member, entry) = encoded_entry(job, row);
            let rank = rank_key(&entry.board, &entry.score, &member);
            by_rank.push((rank, entry.payload));
            by_member.push((member_key(&member, &entry.board), entry.score));
        }
        let mut build = |mut items: Vec<(Vec<u8>, Vec<u8>)>| {
            items.sort();
            let mut builder = Builder::new(Options {
                leaf_items_mean: 3,
                inner_children_mean: 3,
                ..Options::default()
            });
            for (key, value) in items {
                builder.push(&key, 1, &value).unwrap();
            }
            let built = builder.finish();
            let nodes = built.nodes.into_iter();
            self.nodes
                .extend(nodes.map(|(id, bytes)| (*id.as_bytes(), bytes)));
            built.root
        };
        let by_rank = build(by_rank);
        let by_member = (!job.score().0.is_empty()).then(|| build(by_member));
        let root = VersionTrees::encode(&by_rank, by_member.as_deref()).into();
        let key = job.key().encode_values(&[KeyValue::Int(key)]).unwrap();
        let name = (job.view().to_owned(), key);
        let replaced = self.heads.get(&name);
        let head = Head {
            epoch: EPOCH,
            root,
            stamp_us: Some(stamp_us),
            earlier: replaced.and_then(|head| head.earlier_at(stamp_us)),
        };
        self.heads.insert(name, head);
    }

    /// Sets the live state of a member; no rows remove the member.
    pub(crate) fn set_state(
        &mut self,
        job: &Job<Board>,
        key: i64,
        member: i64,
        rows: &[BoardTime],
    ) {
        let entries: Vec<BoardEntry> = rows.iter().map(|row| encoded_entry(job, row).1).collect();
        let state = (!entries.is_empty()).then(|| MemberEntries { entries }.encode());
        let key = job.key().encode_values(&[KeyValue::Int(key)]).unwrap();
        let member = job.member().encode_values(&[KeyValue::Int(member)]);
        let name = (job.view().to_owned(), key, member.unwrap());
        self.states.insert(name, state);
    }

    pub(crate) const fn has_views(&self) -> bool {
        !self.views.is_empty()
    }

    pub(crate) fn runs(&self) -> (Vec<Run>, BTreeMap<String, Epoch>) {
        let run = Run {
            epoch: EPOCH,
            state: RunState::Complete,
            cuts: vec![CUT],
            stamp_us: 1,
            token: String::new(),
        };
        let newest = self.views.iter().map(|view| (view.clone(), EPOCH));
        (vec![run], newest.collect())
    }

    pub(crate) fn partition_state(&self) -> Option<PartitionState> {
        (!self.lacks_states).then(|| PartitionState {
            generation: 1,
            position: Cut {
                next_offset: self.next_offset,
                last: None,
            },
            epoch: EPOCH + 1,
            oldest: EPOCH + 1,
            bounds: BTreeMap::from([(EPOCH, CUT)]),
            replay_until: 0,
            misrouted_epoch: None,
            since: self.views.iter().map(|view| (view.clone(), 0)).collect(),
        })
    }

    pub(crate) fn states(&self, query: &StateQuery) -> LiveStates {
        let found = self
            .states
            .iter()
            .filter(|((view, key, _), _)| *view == query.view && *key == query.key);
        let found: Vec<_> = found.map(|((.., member), state)| (member, state)).collect();
        LiveStates {
            partitions: UInt32Array::from(vec![0; found.len()]),
            epochs: UInt64Array::from(vec![EPOCH + 1; found.len()]),
            members: BinaryArray::from_iter_values(found.iter().map(|(member, _)| member)),
            states: BinaryArray::from_iter(found.iter().map(|(_, state)| state.as_deref())),
            live_counts: Vec::new(),
            stored_count: found.len() as u64,
        }
    }

    pub(crate) fn head(&self, view: &str, key: &[u8]) -> Option<Head> {
        self.heads.get(&(view.to_owned(), key.to_vec())).cloned()
    }

    pub(crate) fn nodes(&mut self, names: &[NodeName]) -> Vec<Option<Bytes>> {
        if self.nodes_lost > 0 {
            self.nodes_lost -= 1;
            return vec![None; names.len()];
        }
        let names = names.iter();
        names.map(|name| self.nodes.get(name).cloned()).collect()
    }
}

/// The member of a row, and its encoded entry.
fn encoded_entry(job: &Job<Board>, row: &BoardTime) -> (Vec<u8>, BoardEntry) {
    let encoded = |shape: &KeyShape| {
        let values = shape.0.iter().map(|column| match column.name.as_str() {
            "athlete_id" | "effort_id" => KeyValue::Int(row.member),
            "elapsed_time" => KeyValue::Int(row.time),
            "period" => KeyValue::Int(row.period),
            "gender" => KeyValue::Text(row.gender.to_owned()),
            _ if column.kind == KeyKind::Int => KeyValue::Int(0),
            _ if column.kind == KeyKind::Instant => KeyValue::Instant(0),
            _ => KeyValue::Null,
        });
        shape.encode_values(&values.collect::<Vec<_>>()).unwrap()
    };
    let entry = BoardEntry {
        board: encoded(job.board_columns()),
        score: encoded(job.score()),
        payload: encoded(job.payload()),
        weight: 1,
    };
    (encoded(job.member()), entry)
}
