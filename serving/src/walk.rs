//! The rows of one lane: which are asked for, and what came of each layer, in the order of keys.

use std::collections::BTreeSet;

use arrow::array::BinaryArray;
use jobs::Job;
use jobs::merge::{BatchRow, Kept, LivePart};
use jobs::tables::of_kept_key;
use schemas::key::{KeyError, KeyValue};
use schemas::time::{Seconds, Span, Width};
use stores::live::LiveParts;
use stores::views::{FoundRows, PartQuery, TallyShape};

use crate::plan::{Lane, Layout, part_starts};

/// A lane with what is known of it before its rows are read.
pub(crate) struct Walk<'a> {
    pub(crate) lane: &'a Lane,
    pub(crate) parts: Option<&'a LiveParts>,
    /// When there is anything, where that was looked up.
    pub(crate) calendar: Option<&'a BTreeSet<Seconds>>,
}

impl<'a> Walk<'a> {
    /// The walk over a lane that is counted, with what was read to know where there is anything.
    pub(crate) fn of(
        (index, lane): (usize, &'a Lane),
        layout: &Layout,
        starts: &'a [BTreeSet<Seconds>],
        parts: &'a [LiveParts],
    ) -> Self {
        Self {
            lane,
            parts: parts.get(layout.helpers.len() + index),
            calendar: lane.calendar.and_then(|calendar| starts.get(calendar)),
        }
    }

    /// The row keys of the live parts, in the lane's own view.
    pub(crate) fn live_keys(&self) -> Result<Option<BinaryArray>, KeyError> {
        let Some(parts) = self.parts else {
            return Ok(None);
        };
        Ok(Some(match &self.lane.rollup {
            Some(rollup) => rollup.keys(&parts.rows)?,
            None => parts.rows.clone(),
        }))
    }
}

/// The table partitions and key ranges of a lane, ascending, each with the key from which on rows
/// and live parts belong to it.
pub(crate) fn part_queries(
    lane: &Lane,
    calendar: Option<&BTreeSet<Seconds>>,
) -> Result<Vec<(PartQuery, Vec<u8>)>, KeyError> {
    let partition = lane.job.partition();
    let known: Option<BTreeSet<Seconds>> =
        calendar.map(|starts| starts.iter().map(|start| partition.floor(*start)).collect());
    let mut queries = Vec::new();
    for span in &lane.spans {
        let range = key_range(&lane.job, span)?;
        for start in part_starts(partition, span, known.as_ref()) {
            let mut begin = range.0.clone();
            if partition != Width::All {
                begin = begin.max(lane.job.row().encode_values(&[KeyValue::Time(start)])?);
            }
            let query = PartQuery {
                part: TallyShape::part(start, &lane.key),
                range: range.clone(),
            };
            queries.push((query, begin));
        }
    }
    Ok(queries)
}

/// The row keys of a span of buckets.
pub(crate) fn key_range(job: &Job, span: &Span) -> Result<(Vec<u8>, Option<Vec<u8>>), KeyError> {
    let key = |at: Seconds| job.row().encode_values(&[KeyValue::Time(at)]);
    let from = span.from.map(key).transpose()?.unwrap_or_default();
    Ok((from, span.to.map(key).transpose()?))
}

pub(crate) fn kept_rows(found: Option<&FoundRows>) -> Result<Vec<Kept<'_>>, KeyError> {
    let Some(found) = found else {
        return Ok(Vec::new());
    };
    let rows = found.rows.iter().flatten().zip(found.counts.iter());
    rows.filter_map(|(key, count)| Some((key, count?)))
        .map(|(key, count)| {
            let (key, epoch) = of_kept_key(key)?;
            Ok(Kept { key, epoch, count })
        })
        .collect()
}

pub(crate) fn batch_rows(found: &FoundRows) -> impl Iterator<Item = BatchRow<'_>> {
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

/// Live parts in the order of their keys.
pub(crate) fn sorted<'a>(
    keys: Option<&'a BinaryArray>,
    parts: Option<&'a LiveParts>,
) -> Vec<LivePart<'a>> {
    let (Some(keys), Some(parts)) = (keys, parts) else {
        return Vec::new();
    };
    let values = parts.epochs.values().iter().zip(parts.counts.values());
    let mut live: Vec<LivePart<'_>> = keys
        .iter()
        .zip(values)
        .filter_map(|(key, (epoch, count))| {
            Some(LivePart {
                key: key?,
                epoch: *epoch,
                count: *count,
            })
        })
        .collect();
    live.sort_by_key(|part| part.key);
    live
}
