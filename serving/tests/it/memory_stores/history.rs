//! A history of plays, and the batch rows, live deltas and partition states that follow from it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use jobs::sketch::compute_cell;
use jobs::{Catalog, Job, Layers};
use schemas::key::{KeyColumn, KeyKind, KeyValue};
use schemas::partition::partition_of;
use schemas::seam::{Cut, Epoch, LastRecord, PartitionState, Run, RunState};
use schemas::time::BucketWidth;
use stores::views::AggregateShape;

use super::MemoryStores;

/// A play event, as its columns that views count by.
#[derive(Debug, Clone)]
pub(crate) struct PlayEvent {
    pub(crate) time_s: i64,
    pub(crate) int_columns: BTreeMap<&'static str, i64>,
    pub(crate) text_columns: BTreeMap<&'static str, String>,
    /// The event adds this to its counts. A correction may be negative.
    pub(crate) amount: i64,
}

impl PlayEvent {
    /// Returns the value of a column, which is null if the event lacks it.
    pub(crate) fn column_value(&self, column: &KeyColumn) -> KeyValue {
        let name = column.name.as_str();
        if let Some(base) = name.strip_suffix("_cell") {
            let id = self.int_columns.get(format!("{base}_id").as_str());
            return id.map_or(KeyValue::Null, |id| KeyValue::Int(compute_cell(*id)));
        }
        match column.kind {
            KeyKind::Int => {
                let int = self.int_columns.get(name);
                int.map_or(KeyValue::Null, |int| KeyValue::Int(*int))
            }
            _ => {
                let text = self.text_columns.get(name);
                text.map_or(KeyValue::Null, |text| KeyValue::Text(text.clone()))
            }
        }
    }

    /// Returns the log partition: that of the owner.
    fn partition(&self, partition_count: u32) -> usize {
        let owner = self.int_columns["owner_id"].to_string();
        partition_of(owner.as_bytes(), partition_count) as usize
    }
}

/// How far the batch and speed layers have processed a history. The speed layer has processed every
/// event.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerProgress {
    /// For each run from run 1: the number of events below its cuts.
    pub(crate) cuts: Vec<usize>,
    /// The newest complete run. Later runs are sealed.
    pub(crate) newest_complete: Epoch,
    /// Live deltas are pruned up to this epoch.
    pub(crate) pruned: Epoch,
    /// The run after the newest complete one has written some of its rows: those whose row key ends
    /// with a byte that is this modulo 3.
    pub(crate) written_remainder: u8,
}

impl MemoryStores {
    /// Builds the stores of an installation that has processed `plays` as far as `progress`.
    pub(crate) fn from_history(
        catalog: &Catalog,
        plays: &[PlayEvent],
        partition_count: u32,
        progress: &LayerProgress,
    ) -> Self {
        let cuts_at = |event_count: usize| compute_cuts(&plays[..event_count], partition_count);
        let runs = progress
            .cuts
            .iter()
            .zip(1..)
            .map(|(event_count, epoch)| Run {
                epoch,
                state: if epoch <= progress.newest_complete {
                    RunState::Complete
                } else {
                    RunState::Sealed
                },
                cuts: cuts_at(*event_count),
                stamp_us: 1,
                token: String::new(),
            });
        let epoch_count = progress.cuts.len() as Epoch;
        let state = |partition: usize| PartitionState {
            generation: 1,
            position: cuts_at(plays.len())[partition],
            epoch: epoch_count + 1,
            oldest: progress.pruned + 1,
            bounds: (progress.pruned..=epoch_count)
                .map(|epoch| {
                    let event_count = match usize::try_from(epoch).unwrap() {
                        0 => 0,
                        epoch => progress.cuts[epoch - 1],
                    };
                    (epoch, cuts_at(event_count)[partition])
                })
                .collect(),
            replay_until: 0,
            misrouted_epoch: None,
            since: catalog
                .jobs()
                .iter()
                .map(|job| (job.view().to_owned(), 0))
                .collect(),
        };
        let states = (0..partition_count as usize).map(|partition| Some(state(partition)));
        let mut stores = Self {
            partition_count,
            partition_states: Mutex::new(states.collect()),
            runs: runs.collect(),
            newest_complete: progress.newest_complete,
            ..Self::default()
        };
        for job in catalog.jobs() {
            stores.add_counts(job, plays, progress);
        }
        stores
    }

    /// Adds the batch rows and live deltas of a view.
    fn add_counts(&mut self, job: &Job, plays: &[PlayEvent], progress: &LayerProgress) {
        let rows = self.rows.entry(job.view().to_owned()).or_default();
        let deltas = self.deltas.entry(job.view().to_owned()).or_default();
        let newest = progress.newest_complete;
        let has_later_run = newest < progress.cuts.len() as Epoch;
        for (index, play) in plays.iter().enumerate() {
            let keys = RowKeys::from_play(job, play);
            let epoch = progress.cuts.partition_point(|cut| *cut <= index) as Epoch + 1;
            let last_byte = keys.row.last();
            let is_written = last_byte.is_some_and(|byte| byte % 3 == progress.written_remainder);
            let row_epoch = newest + Epoch::from(is_written && has_later_run);
            if epoch <= row_epoch {
                let stored = rows.entry((keys.partition, keys.row.clone())).or_default();
                *stored = (stored.0 + play.amount, row_epoch);
            }
            if epoch > progress.pruned && job.layers().include(Layers::Speed) {
                let partition = u32::try_from(play.partition(self.partition_count)).unwrap();
                let delta_key = ((keys.group, keys.row), partition, epoch);
                *deltas.entry(delta_key).or_default() += play.amount;
            }
        }
    }
}

/// Returns the cut of each partition after some plays. The logged time of its last record is their
/// number, in milliseconds.
fn compute_cuts(plays: &[PlayEvent], partition_count: u32) -> Vec<Cut> {
    let mut next_offsets = vec![0; partition_count as usize];
    for play in plays {
        next_offsets[play.partition(partition_count)] += 1;
    }
    let cuts = next_offsets.into_iter().map(|next_offset| Cut {
        next_offset,
        last: (next_offset > 0).then_some(LastRecord {
            offset: next_offset - 1,
            checksum: 0,
            logged_at_ms: plays.len() as i64,
        }),
    });
    cuts.collect()
}

/// Encoded keys of the row of an event in a view.
struct RowKeys {
    group: Vec<u8>,
    /// Key of the table partition.
    partition: Vec<u8>,
    row: Vec<u8>,
}

impl RowKeys {
    fn from_play(job: &Job, play: &PlayEvent) -> Self {
        let group = job.group().0.iter();
        let group: Vec<KeyValue> = group.map(|column| play.column_value(column)).collect();
        let group = job.group().encode_values(&group).unwrap();
        let row = job.row().0.iter().map(|column| match column.kind {
            KeyKind::Time => KeyValue::Time(job.bucket().floor(play.time_s)),
            _ => play.column_value(column),
        });
        let row: Vec<KeyValue> = row.collect();
        let partition_start_s = match job.table_partition() {
            BucketWidth::All => 0,
            width => width.floor(play.time_s),
        };
        Self {
            partition: AggregateShape::encode_partition_key(partition_start_s, &group),
            group,
            row: job.row().encode_values(&row).unwrap(),
        }
    }
}
