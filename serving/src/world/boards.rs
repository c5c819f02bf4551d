//! What the layers hold of boards, as a test puts it there: sheets of run 1, and states after it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{BinaryArray, UInt32Array, UInt64Array};
use bytes::Bytes;
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jobs::board::{GroupState, Place, Sheet, member_key, rank_key};
use jobs::tree::{Builder, Options};
use jobs::{Board, Catalog, Job};
use schemas::achievement::Told;
use schemas::entities::Application;
use schemas::key::{KeyKind, KeyShape, KeyValue};
use schemas::seam::{Cut, Epoch, Run, RunState, Slot};
use stores::counts::{Day, DayRow};
use stores::live::{LiveStates, StateQuery};
use stores::names::Named;
use stores::recounts::Recounted;
use stores::views::{Head, NodeName};

use super::{Progress, World};
use crate::{Serving, ServingOptions};

/// The run that made the sheets.
pub(crate) const EPOCH: Epoch = 2;
/// The clock's day.
pub(crate) const TODAY: Date = date(2026, 7, 14);
/// Where its epoch ended.
const CUT: Cut = Cut {
    next_offset: 10,
    last: None,
};

/// A row of an overall board, as far as the board has such columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Best {
    pub(crate) member: i64,
    pub(crate) time: i64,
    pub(crate) period: i64,
    pub(crate) gender: &'static str,
}

/// The board of that name.
pub(crate) fn job(name: &str) -> Arc<Job<Board>> {
    Arc::clone(&crate::board::all(&Catalog::built_in().unwrap())[name])
}

/// A service of boards that are all empty.
pub(crate) fn serving(options: ServingOptions) -> (Serving, Arc<World>) {
    serving_of(Catalog::built_in().unwrap(), options)
}

/// A service of boards of these views that are all empty.
pub(crate) fn serving_of(catalog: Catalog, options: ServingOptions) -> (Serving, Arc<World>) {
    let world = World::of(&catalog, &[], 0, &Progress::default());
    {
        let mut boards = world.boards.lock().unwrap();
        let jobs = catalog.boards().iter();
        boards.views.extend(jobs.map(|job| job.view().to_owned()));
        boards.next_offset = CUT.next_offset;
    }
    world.serving(&catalog, options)
}

/// View, key and member.
type StateName = (String, Vec<u8>, Vec<u8>);

/// Boards by view and key, and what goes wrong when they are read.
#[derive(Debug, Default)]
pub(crate) struct Boards {
    views: Vec<String>,
    heads: BTreeMap<(String, Vec<u8>), Head>,
    nodes: BTreeMap<NodeName, Bytes>,
    states: BTreeMap<StateName, Option<Vec<u8>>>,
    pub(crate) applications: Vec<Application>,
    /// The members of every club, whom everybody follows.
    pub(crate) club: Vec<i64>,
    /// What things are called.
    pub(crate) names: BTreeMap<(Named, i64), String>,
    /// By application.
    pub(crate) recounted: BTreeMap<i64, Recounted>,
    /// Counts by key and day.
    pub(crate) days: BTreeMap<(Vec<u8>, Day), DayRow>,
    /// What waits to be told, and what has been told.
    pub(crate) waiting: Vec<Told>,
    pub(crate) told: Vec<Told>,
    /// How far the states reach; each read of them may find more.
    pub(crate) next_offset: i64,
    pub(crate) offset_step: i64,
    /// Whether live state is missing.
    pub(crate) is_blind: bool,
    /// How many reads of nodes find none.
    pub(crate) nodes_lost: usize,
    /// How long a read of states takes.
    pub(crate) slowness: Duration,
    /// How many keys each read of states asked for.
    pub(crate) asked: Vec<usize>,
    pub(crate) under_way: usize,
    pub(crate) under_way_max: usize,
}

impl Boards {
    /// Makes the sheet of a key, of many small nodes, at a moment of the clock's day.
    pub(crate) fn publish(&mut self, job: &Job<Board>, key: i64, rows: &[Best]) {
        self.publish_on(TODAY, (job, key), rows);
    }

    /// The same on another day.
    pub(crate) fn publish_on(&mut self, day: Date, (job, key): (&Job<Board>, i64), rows: &[Best]) {
        let at = day.at(13, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap();
        let stamp_us = at.timestamp().as_microsecond();
        let (mut by_rank, mut by_member) = (Vec::new(), Vec::new());
        for row in rows {
            let (member, place) = stored(job, row);
            let rank = rank_key(&place.board, &place.score, &member);
            by_rank.push((rank, place.payload));
            by_member.push((member_key(&member, &place.board), place.score));
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
        let root = Sheet::encode(&by_rank, by_member.as_deref()).into();
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

    /// Puts what a member has now; nothing where there are no rows.
    pub(crate) fn put(&mut self, job: &Job<Board>, key: i64, member: i64, rows: &[Best]) {
        let places: Vec<Place> = rows.iter().map(|row| stored(job, row).1).collect();
        let state = (!places.is_empty()).then(|| GroupState { places }.encode());
        let key = job.key().encode_values(&[KeyValue::Int(key)]).unwrap();
        let member = job.member().encode_values(&[KeyValue::Int(member)]);
        let name = (job.view().to_owned(), key, member.unwrap());
        self.states.insert(name, state);
    }

    pub(crate) const fn is_there(&self) -> bool {
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

    pub(crate) fn slot(&self) -> Option<Slot> {
        (!self.is_blind).then(|| Slot {
            generation: 1,
            position: Cut {
                next_offset: self.next_offset,
                last: None,
            },
            epoch: EPOCH + 1,
            oldest: EPOCH + 1,
            bounds: BTreeMap::from([(EPOCH, CUT)]),
            replay_until: 0,
            strays: None,
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
            sums: Vec::new(),
            held: found.len() as u64,
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

/// The member of a row, and the row as it is stored.
fn stored(job: &Job<Board>, row: &Best) -> (Vec<u8>, Place) {
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
    let place = Place {
        board: encoded(job.boards()),
        score: encoded(job.score()),
        payload: encoded(job.payload()),
        weight: 1,
    };
    (encoded(job.member()), place)
}
