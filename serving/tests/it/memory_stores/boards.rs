//! Boards: versions that one run published, and live entries after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{BinaryArray, UInt32Array, UInt64Array};
use bytes::Bytes;
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jobs::board::{BoardEntry, MemberEntries, VersionTrees, member_key, rank_key};
use jobs::tree::{TreeBuilder, TreeOptions};
use jobs::{Board, Catalog, Job, Layers};
use schemas::key::{KeyKind, KeyShape, KeyValue};
use schemas::seam::{Cut, Epoch, PartitionState, Run, RunState, Runs};
use serving::{Serving, ServingOptions};
use stores::live::{EntryQuery, LiveEntries};
use stores::views::{Head, NodeName, RunRecords};

use super::{LayerProgress, MemoryStores};

/// The run that published all versions.
pub(crate) const BOARD_EPOCH: Epoch = 2;
/// Cut of that run in the only partition.
const BOARD_CUT: Cut = Cut {
    next_offset: 10,
    last: None,
};
/// The day of the service's clock.
pub(crate) const TODAY: Date = date(2026, 7, 14);

/// Starts a service with the built-in boards, which are empty.
pub(crate) fn start_service(options: ServingOptions) -> (Serving, Arc<MemoryStores>) {
    start_service_with(Catalog::built_in().unwrap(), options)
}

/// Starts a service with the boards of a catalog, which are empty.
pub(crate) fn start_service_with(
    catalog: Catalog,
    options: ServingOptions,
) -> (Serving, Arc<MemoryStores>) {
    let stores = MemoryStores::from_history(&catalog, &[], 0, &LayerProgress::default());
    {
        let mut boards = stores.boards();
        let jobs = catalog.boards().iter();
        boards.views.extend(jobs.map(|job| job.view().to_owned()));
        boards.next_offset = BOARD_CUT.next_offset;
    }
    stores.start_service(&catalog, options)
}

/// Returns the built-in board of a name.
pub(crate) fn find_board_job(name: &str) -> Arc<Job<Board>> {
    let catalog = Catalog::built_in().unwrap();
    let mut served = catalog.boards().iter();
    let job = served.find(|job| job.board() == name && job.layers() == Layers::Both);
    Arc::clone(job.unwrap())
}

/// Values of a member's entry. A board uses those that it has columns for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryValues {
    pub(crate) member: i64,
    pub(crate) elapsed_time_s: i64,
    pub(crate) period: i64,
    pub(crate) gender: &'static str,
}

/// View, key and member of a live entry.
type LiveEntryKey = (String, Vec<u8>, Vec<u8>);

/// Boards of all views.
#[derive(Debug, Default)]
pub(crate) struct BoardStore {
    views: Vec<String>,
    /// By view and key.
    heads: BTreeMap<(String, Vec<u8>), Head>,
    nodes: BTreeMap<NodeName, Bytes>,
    /// `None` for a removed member.
    live_entries: BTreeMap<LiveEntryKey, Option<Vec<u8>>>,
    /// Next offset of the partition state.
    pub(crate) next_offset: i64,
    /// Added to `next_offset` after each read of live entries.
    pub(crate) offset_step: i64,
}

impl BoardStore {
    /// Publishes a version of a key today.
    pub(crate) fn publish(&mut self, job: &Job<Board>, key: i64, entries: &[EntryValues]) {
        self.publish_on(TODAY, job, key, entries);
    }

    /// Publishes a version of a key on a day, at 13:00 UTC. It has many small nodes.
    pub(crate) fn publish_on(
        &mut self,
        day: Date,
        job: &Job<Board>,
        key: i64,
        entries: &[EntryValues],
    ) {
        let published_at = day.at(13, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap();
        let stamp_us = published_at.timestamp().as_microsecond();
        let (mut by_rank, mut by_member) = (Vec::new(), Vec::new());
        for values in entries {
            let (member, entry) = encode_entry(job, values);
            let rank = rank_key(&entry.board, &entry.score, &member);
            by_rank.push((rank, entry.payload));
            by_member.push((member_key(&member, &entry.board), entry.score));
        }
        let by_rank = self.add_tree(by_rank);
        let by_member = (!job.score().0.is_empty()).then(|| self.add_tree(by_member));
        let name = (job.view().to_owned(), encode_key(job, key));
        let replaced = self.heads.get(&name);
        let head = Head {
            epoch: BOARD_EPOCH,
            root: VersionTrees::encode(&by_rank, by_member.as_deref()).into(),
            stamp_us: Some(stamp_us),
            earlier: replaced.and_then(|head| head.find_earlier_root(stamp_us)),
        };
        self.heads.insert(name, head);
    }

    /// Adds the nodes of a tree with these keys and values, and returns its root.
    fn add_tree(&mut self, mut items: Vec<(Vec<u8>, Vec<u8>)>) -> Bytes {
        items.sort();
        let mut builder = TreeBuilder::new(TreeOptions {
            leaf_items_mean: 3,
            inner_children_mean: 3,
            ..TreeOptions::default()
        });
        for (key, value) in items {
            builder.push(&key, 1, &value).unwrap();
        }
        let tree = builder.finish();
        let nodes = tree.nodes.into_iter();
        self.nodes
            .extend(nodes.map(|(id, bytes)| (*id.as_bytes(), bytes)));
        tree.root
    }

    /// Sets the live entry of a member. It replaces all published entries of the member under the
    /// key, so an empty one removes the member.
    pub(crate) fn set_live_entry(
        &mut self,
        job: &Job<Board>,
        key: i64,
        member: i64,
        entries: &[EntryValues],
    ) {
        let entries = entries.iter().map(|values| encode_entry(job, values).1);
        let entries: Vec<BoardEntry> = entries.collect();
        let live_entry = (!entries.is_empty()).then(|| MemberEntries { entries }.encode());
        let member = job.member().encode_values(&[KeyValue::Int(member)]);
        let name = (job.view().to_owned(), encode_key(job, key), member.unwrap());
        self.live_entries.insert(name, live_entry);
    }

    pub(super) const fn has_views(&self) -> bool {
        !self.views.is_empty()
    }

    pub(super) fn build_run_records(&self) -> RunRecords {
        let run = Run {
            epoch: BOARD_EPOCH,
            state: RunState::Complete,
            cuts: vec![BOARD_CUT],
            stamp_us: 1,
            token: String::new(),
        };
        let views = self.views.iter();
        RunRecords {
            runs: Runs::from_iter(self.has_views().then_some(run)),
            complete_epochs: views.map(|view| (view.clone(), BOARD_EPOCH)).collect(),
        }
    }

    pub(super) fn build_partition_state(&self) -> PartitionState {
        PartitionState {
            generation: 1,
            position: Cut {
                next_offset: self.next_offset,
                last: None,
            },
            epoch: BOARD_EPOCH + 1,
            oldest: BOARD_EPOCH + 1,
            bounds: BTreeMap::from([(BOARD_EPOCH, BOARD_CUT)]),
            replay_until: 0,
            misrouted_epoch: None,
            since: self.views.iter().map(|view| (view.clone(), 0)).collect(),
        }
    }

    pub(super) fn find_live_entries(&self, query: &EntryQuery) -> LiveEntries {
        let matching = self
            .live_entries
            .iter()
            .filter(|((view, key, _), _)| *view == query.view && *key == query.key);
        let matching: Vec<_> = matching
            .map(|((.., member), entry)| (member, entry))
            .collect();
        LiveEntries {
            partitions: UInt32Array::from(vec![0; matching.len()]),
            epochs: UInt64Array::from(vec![BOARD_EPOCH + 1; matching.len()]),
            members: BinaryArray::from_iter_values(matching.iter().map(|(member, _)| member)),
            entries: BinaryArray::from_iter(matching.iter().map(|(_, entry)| entry.as_deref())),
            live_counts: Vec::new(),
            stored_count: matching.len() as u64,
        }
    }

    pub(super) fn find_head(&self, view: &str, key: &[u8]) -> Option<Head> {
        self.heads.get(&(view.to_owned(), key.to_vec())).cloned()
    }

    pub(super) fn find_nodes(&self, names: &[NodeName]) -> Vec<Option<Bytes>> {
        let nodes = names.iter().map(|name| self.nodes.get(name).cloned());
        nodes.collect()
    }
}

fn encode_key(job: &Job<Board>, key: i64) -> Vec<u8> {
    job.key().encode_values(&[KeyValue::Int(key)]).unwrap()
}

/// Encodes the member and the entry of a row. Columns without a value are 0 or null.
fn encode_entry(job: &Job<Board>, entry: &EntryValues) -> (Vec<u8>, BoardEntry) {
    let encode = |shape: &KeyShape| {
        let values = shape.0.iter().map(|column| match column.name.as_str() {
            "athlete_id" | "effort_id" => KeyValue::Int(entry.member),
            "elapsed_time" => KeyValue::Int(entry.elapsed_time_s),
            "period" => KeyValue::Int(entry.period),
            "gender" => KeyValue::Text(entry.gender.to_owned()),
            _ if column.kind == KeyKind::Int => KeyValue::Int(0),
            _ if column.kind == KeyKind::Instant => KeyValue::Instant(0),
            _ => KeyValue::Null,
        });
        shape.encode_values(&values.collect::<Vec<_>>()).unwrap()
    };
    let board_entry = BoardEntry {
        board: encode(job.board_columns()),
        score: encode(job.score()),
        payload: encode(job.payload()),
        weight: 1,
    };
    (encode(job.member()), board_entry)
}
