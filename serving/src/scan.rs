//! Input and rows of one scan: the table partitions to read, and the rows of each layer in key
//! order.

use std::collections::BTreeSet;

use arrow::array::BinaryArray;
use jobs::Job;
use jobs::merge::{BatchRow, EpochDrift, LiveDelta};
use jobs::tables::decode_drift_key;
use schemas::key::{KeyError, KeyValue};
use schemas::time::{Seconds, Span, Width};
use stores::live::LiveDeltas;
use stores::views::{AggregateShape, PartitionQuery, ViewRows};

use crate::plan::{Layout, ViewScan, partition_starts};

/// A scan with the data that is known before its rows are read.
pub(crate) struct PreparedScan<'a> {
    pub(crate) scan: &'a ViewScan,
    pub(crate) deltas: Option<&'a LiveDeltas>,
    /// Bucket starts that hold data, if they were looked up.
    pub(crate) calendar: Option<&'a BTreeSet<Seconds>>,
}

impl<'a> PreparedScan<'a> {
    /// Prepares a counted scan with its live deltas and its calendar.
    pub(crate) fn new(
        index: usize,
        scan: &'a ViewScan,
        layout: &Layout,
        starts: &'a [BTreeSet<Seconds>],
        deltas: &'a [LiveDeltas],
    ) -> Self {
        Self {
            scan,
            deltas: deltas.get(layout.helpers.len() + index),
            calendar: scan.calendar.and_then(|calendar| starts.get(calendar)),
        }
    }

    /// Row keys of the live deltas, converted to the scan's own view.
    pub(crate) fn live_keys(&self) -> Result<Option<BinaryArray>, KeyError> {
        let Some(deltas) = self.deltas else {
            return Ok(None);
        };
        Ok(Some(match &self.scan.rollup {
            Some(rollup) => rollup.roll_up_keys(&deltas.rows)?,
            None => deltas.rows.clone(),
        }))
    }
}

/// Table partitions and key ranges of a scan, in ascending order, each with the first key whose
/// rows and live deltas belong to it.
pub(crate) fn partition_queries(
    scan: &ViewScan,
    calendar: Option<&BTreeSet<Seconds>>,
) -> Result<Vec<(PartitionQuery, Vec<u8>)>, KeyError> {
    let partition = scan.job.table_partition();
    let known_starts: Option<BTreeSet<Seconds>> =
        calendar.map(|starts| starts.iter().map(|start| partition.floor(*start)).collect());
    let mut queries = Vec::new();
    for span in &scan.spans {
        let range = key_range(&scan.job, span)?;
        for start in partition_starts(partition, span, known_starts.as_ref()) {
            let mut begin = range.0.clone();
            if partition != Width::All {
                begin = begin.max(scan.job.row().encode_values(&[KeyValue::Time(start)])?);
            }
            let query = PartitionQuery {
                partition: AggregateShape::partition_key(start, &scan.key),
                range: range.clone(),
            };
            queries.push((query, begin));
        }
    }
    Ok(queries)
}

/// Row keys of a range of buckets.
pub(crate) fn key_range(job: &Job, span: &Span) -> Result<(Vec<u8>, Option<Vec<u8>>), KeyError> {
    let key = |at: Seconds| job.row().encode_values(&[KeyValue::Time(at)]);
    let from = span.from.map(key).transpose()?.unwrap_or_default();
    Ok((from, span.to.map(key).transpose()?))
}

/// Decodes rows of a drift table.
pub(crate) fn drift_rows(found: Option<&ViewRows>) -> Result<Vec<EpochDrift<'_>>, KeyError> {
    let Some(found) = found else {
        return Ok(Vec::new());
    };
    let rows = found.rows.iter().flatten().zip(found.counts.iter());
    rows.filter_map(|(key, count)| Some((key, count?)))
        .map(|(key, count)| {
            let (key, epoch) = decode_drift_key(key)?;
            Ok(EpochDrift { key, epoch, count })
        })
        .collect()
}

/// Batch rows in key order.
pub(crate) fn batch_rows(found: &ViewRows) -> impl Iterator<Item = BatchRow<'_>> {
    let values = found.counts.iter().zip(found.epochs.values());
    found
        .rows
        .iter()
        .zip(values)
        .filter_map(|(key, (count, epoch))| {
            Some(BatchRow {
                key: key?,
                count,
                epoch: *epoch,
            })
        })
}

/// Live deltas in the order of their keys.
pub(crate) fn sorted_deltas<'a>(
    keys: Option<&'a BinaryArray>,
    deltas: Option<&'a LiveDeltas>,
) -> Vec<LiveDelta<'a>> {
    let (Some(keys), Some(deltas)) = (keys, deltas) else {
        return Vec::new();
    };
    let values = deltas.epochs.values().iter().zip(deltas.counts.values());
    let mut live: Vec<LiveDelta<'_>> = keys
        .iter()
        .zip(values)
        .filter_map(|(key, (epoch, count))| {
            Some(LiveDelta {
                key: key?,
                epoch: *epoch,
                count: *count,
            })
        })
        .collect();
    live.sort_by_key(|delta| delta.key);
    live
}
