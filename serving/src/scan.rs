//! One scan: the table partitions to read, and the rows of each layer in key
//! order.

use std::collections::BTreeSet;

use arrow::array::BinaryArray;
use jobs::Job;
use jobs::merge::{BatchRow, EpochDrift, LiveDelta};
use jobs::tables::decode_drift_key;
use schemas::key::{KeyError, KeyValue};
use schemas::time::{BucketSpan, BucketWidth, UnixSeconds};
use stores::live::LiveDeltas;
use stores::views::{AggregateShape, PartitionQuery, ViewRows};

use crate::plan::{Layout, ViewScan, partition_starts};

/// A scan with the data that is known before its rows are read.
pub(crate) struct PreparedScan<'a> {
    pub(crate) scan: &'a ViewScan,
    pub(crate) deltas: Option<&'a LiveDeltas>,
    /// Bucket starts that hold data, if they were looked up.
    pub(crate) calendar: Option<&'a BTreeSet<UnixSeconds>>,
}

impl<'a> PreparedScan<'a> {
    /// Prepares a counted scan with its live deltas and its calendar.
    pub(crate) fn new(
        index: usize,
        scan: &'a ViewScan,
        layout: &Layout,
        starts: &'a [BTreeSet<UnixSeconds>],
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

/// Builds the queries for the table partitions and key ranges of a scan, in ascending order. Each
/// has the first key whose rows and live deltas belong to it.
pub(crate) fn build_partition_queries(
    scan: &ViewScan,
    calendar: Option<&BTreeSet<UnixSeconds>>,
) -> Result<Vec<(PartitionQuery, Vec<u8>)>, KeyError> {
    let partition = scan.job.table_partition();
    let known_starts: Option<BTreeSet<UnixSeconds>> =
        calendar.map(|starts| starts.iter().map(|start| partition.floor(*start)).collect());
    let mut queries = Vec::new();
    for span in &scan.spans {
        let range = encode_key_range(&scan.job, span)?;
        for start in partition_starts(partition, span, known_starts.as_ref()) {
            let mut begin = range.0.clone();
            if partition != BucketWidth::All {
                begin = begin.max(scan.job.row().encode_values(&[KeyValue::Time(start)])?);
            }
            let query = PartitionQuery {
                partition: AggregateShape::encode_partition_key(start, &scan.key),
                range: range.clone(),
            };
            queries.push((query, begin));
        }
    }
    Ok(queries)
}

/// Encodes a range of buckets as a range of row keys.
pub(crate) fn encode_key_range(
    job: &Job,
    span: &BucketSpan,
) -> Result<(Vec<u8>, Option<Vec<u8>>), KeyError> {
    let encode = |start: UnixSeconds| job.row().encode_values(&[KeyValue::Time(start)]);
    let from = span.from.map(encode).transpose()?.unwrap_or_default();
    Ok((from, span.to.map(encode).transpose()?))
}

/// Decodes rows of a drift table.
pub(crate) fn decode_drift_rows(rows: Option<&ViewRows>) -> Result<Vec<EpochDrift<'_>>, KeyError> {
    let Some(rows) = rows else {
        return Ok(Vec::new());
    };
    let keys_and_counts = rows.rows.iter().flatten().zip(rows.counts.iter());
    keys_and_counts
        .filter_map(|(key, count)| Some((key, count?)))
        .map(|(key, count)| {
            let (key, epoch) = decode_drift_key(key)?;
            Ok(EpochDrift { key, epoch, count })
        })
        .collect()
}

/// Iterates over batch rows in key order.
pub(crate) fn iter_batch_rows(rows: &ViewRows) -> impl Iterator<Item = BatchRow<'_>> {
    let values = rows.counts.iter().zip(rows.epochs.values());
    rows.rows
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

/// Sorts live deltas by key.
pub(crate) fn sort_deltas<'a>(
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
