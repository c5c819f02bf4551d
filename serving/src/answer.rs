//! Builds answers from counts: totals with a comparison, points of a series and rows of a
//! breakdown, each with its provenance. Pure functions, independent of the output format.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;
use schemas::key::KeyValue;
use schemas::provenance::{Origin, Provenance};
use schemas::time::{TimeRange, UnixSeconds};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::aggregation::{Aggregation, PeriodPair, Sketch};
use crate::layered_count::LayeredCount;
use crate::read::{Reading, Watermark};
use crate::read_position::ReadPosition;
use crate::stats_query::{Prefer, TimeSegments};

/// A count that does not fit the integers of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a count of {0} does not fit a 64-bit integer: ask for a shorter period")]
pub(crate) struct Overflow(i128);

/// Answer to a request for one number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Total {
    /// The sum of the amounts of all events.
    pub(crate) count: i64,
    /// The count of the previous period, if requested; null if there is no previous period.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, required = false)]
    pub(crate) previous: Option<Option<i64>>,
    /// (count - previous) / previous; null if previous is 0 or missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, required = false)]
    pub(crate) change: Option<Option<f64>>,
    #[serde(flatten)]
    pub(crate) range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// Time range of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct AnswerRange {
    /// The first instant, in UTC; null if the range has no beginning.
    pub(crate) from: Option<String>,
    /// The instant just after the last, in UTC; null if the range has no end.
    pub(crate) to: Option<String>,
    /// True if the range includes the present moment. If so, it is compared with the same elapsed
    /// part of the previous range.
    pub(crate) running: bool,
}

/// Parameters of a request that determine the form of its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerSpec {
    pub(crate) range: TimeRange,
    /// True if the range includes the present moment.
    pub(crate) is_running: bool,
    /// True if the previous period was requested.
    pub(crate) is_compared: bool,
    pub(crate) prefer: Prefer,
}

impl AnswerSpec {
    pub(crate) fn answer_range(&self) -> AnswerRange {
        AnswerRange {
            from: self.range.from.map(format_seconds),
            to: self.range.to.map(format_seconds),
            running: self.is_running,
        }
    }

    /// Origin of the preferred value.
    fn origin(&self, sum: &LayeredCount, epoch: u64) -> Origin {
        match self.prefer {
            Prefer::Realtime => Origin::Realtime,
            Prefer::Newest | Prefer::Batch => sum.origin(epoch),
        }
    }

    /// Provenance of an answer that consists of `sums`.
    pub(crate) fn provenance<'a>(
        &self,
        sums: impl IntoIterator<Item = &'a LayeredCount>,
        read_position: ReadPosition,
        watermark: &Watermark,
    ) -> Provenance {
        let mut layers = LayeredCount::default();
        for sum in sums {
            layers.add_layers(&sum.preferred(self.prefer));
        }
        self.merged_provenance(layers, read_position, watermark)
    }

    /// Provenance of an answer from the merged layers of its preferred values.
    fn merged_provenance(
        &self,
        layers: LayeredCount,
        mut read_position: ReadPosition,
        watermark: &Watermark,
    ) -> Provenance {
        let origin = self.origin(&layers, read_position.epoch);
        if self.prefer != Prefer::Newest {
            // Rows of an incomplete run reflect another position than the other rows.
            read_position.complete &= !layers.is_ahead;
        }
        if self.prefer == Prefer::Batch && origin == Origin::Batch {
            read_position.position.clone_from(&watermark.position);
            read_position.as_of_ms = watermark.as_of_ms;
        }
        build_provenance(origin, read_position)
    }
}

/// One point of a series.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Point {
    /// Start of the point, in UTC; it ends where the next one starts.
    pub(crate) at: String,
    /// The sum of the amounts of its events.
    pub(crate) count: i64,
    /// The layers that contributed.
    #[schema(value_type = OriginShape)]
    pub(crate) source: Origin,
}

/// Answer to a request for a series.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Series {
    pub(crate) points: Vec<Point>,
    /// The points of the previous period, if requested and if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) previous: Option<Vec<Point>>,
    #[serde(flatten)]
    pub(crate) range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// Answer to a request for a number of distinct values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Uniques {
    /// The counted column: listener.
    pub(crate) of: String,
    /// Estimated number of distinct values. Do not add such numbers: a listener of two days is one
    /// listener.
    pub(crate) count: i64,
    /// Standard error of `count`, relative to it: two of three estimates deviate by less than this,
    /// and 19 of 20 by less than twice this.
    pub(crate) relative_error: f64,
    /// The count of the previous period, if requested; null if there is no previous period.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, required = false)]
    pub(crate) previous: Option<Option<i64>>,
    /// Standard error of `previous`, relative to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, required = false)]
    pub(crate) previous_relative_error: Option<Option<f64>>,
    /// (count - previous) / previous, with the errors of both; null if previous is 0 or missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, required = false)]
    pub(crate) change: Option<Option<f64>>,
    #[serde(flatten)]
    pub(crate) range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// One point of a series of distinct counts.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct UniquesPoint {
    /// Start of the point, in UTC; it ends where the next one starts.
    pub(crate) at: String,
    /// Estimated number of distinct values.
    pub(crate) count: i64,
    /// Standard error of `count`, relative to it.
    pub(crate) relative_error: f64,
    /// The layers that contributed.
    #[schema(value_type = OriginShape)]
    pub(crate) source: Origin,
}

/// Answer to a request for a series of distinct counts.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct UniquesSeries {
    /// The counted column: listener.
    pub(crate) of: String,
    pub(crate) points: Vec<UniquesPoint>,
    /// The points of the previous period, if requested and if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) previous: Option<Vec<UniquesPoint>>,
    #[serde(flatten)]
    pub(crate) range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// Key of a row of a breakdown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum RowKey {
    Int(i64),
    Text(String),
}

/// One row of a breakdown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Row)]
pub(crate) struct BreakdownRow {
    /// The value of the column; null for events without a value.
    pub(crate) key: Option<RowKey>,
    /// The sum of the amounts of its events.
    pub(crate) count: i64,
    /// count / total; null where the total is 0.
    pub(crate) share: Option<f64>,
    /// The count of the previous period, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, required = false)]
    pub(crate) previous: Option<Option<i64>>,
    /// (count - previous) / previous; null if previous is 0 or missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, required = false)]
    pub(crate) change: Option<Option<f64>>,
    /// The layers that contributed to the row.
    #[schema(value_type = OriginShape)]
    pub(crate) source: Origin,
}

impl BreakdownRow {
    /// The key as text.
    pub(crate) fn key_text(&self) -> Option<String> {
        match self.key.as_ref()? {
            RowKey::Int(id) => Some(id.to_string()),
            RowKey::Text(text) => Some(text.clone()),
        }
    }
}

/// Answer to a request for a breakdown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Breakdown {
    /// Largest count first, then by key; among equal counts null is last. Keys with count 0 are
    /// omitted.
    pub(crate) rows: Vec<BreakdownRow>,
    /// The sum over all rows, including those of other pages.
    pub(crate) total: i64,
    /// Cursor of the next page; null on the last page.
    pub(crate) cursor: Option<String>,
    #[serde(flatten)]
    pub(crate) range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// Origin of an answer and the position that it reflects.
#[derive(Debug, ToSchema)]
#[schema(as = Provenance)]
#[expect(
    dead_code,
    reason = "only describes the schema of a type that knows no OpenAPI"
)]
pub(crate) struct ProvenanceShape {
    /// The layers that contributed to the answer.
    source: OriginShape,
    /// Log time of the newest event that the answer includes; null if it includes none.
    #[schema(format = DateTime)]
    as_of: Option<String>,
    /// Epoch of the newest complete batch run that the answer includes; 0 before the first run.
    epoch: u64,
    /// False while rebuilt or new live state has not reached the end that the log had when the
    /// rebuild began: the answer is exact for `position`, but an earlier answer may have included
    /// more. Always false for counts of the entity store, which may have changed since `as_of`.
    complete: bool,
    /// By source, the next offset of each log partition.
    position: BTreeMap<String, Vec<i64>>,
    /// Number of backfills included (events that never were in the log); omitted if 0.
    #[schema(required = false)]
    backfills: u64,
}

/// batch: only batch rows contributed; realtime: only live counts contributed; merged: both
/// contributed; canonical: counted in the entity store at `as_of`.
#[derive(Debug, ToSchema)]
#[schema(as = Origin, rename_all = "lowercase")]
#[expect(
    dead_code,
    reason = "only describes the schema of a type that knows no OpenAPI"
)]
pub(crate) enum OriginShape {
    Batch,
    Realtime,
    Merged,
    Canonical,
}

/// Position in a breakdown, after which the next page starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BreakdownPosition {
    pub(crate) count: i64,
    pub(crate) key: KeyValue,
}

impl BreakdownPosition {
    /// Largest count first, then by key; among equal counts null is last.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        let is_null = |position: &Self| position.key == KeyValue::Null;
        other
            .count
            .cmp(&self.count)
            .then_with(|| is_null(self).cmp(&is_null(other)))
            .then_with(|| self.key.cmp(&other.key))
    }
}

/// Page of a breakdown.
#[derive(Debug)]
pub(crate) struct BreakdownPage {
    pub(crate) rows: Vec<BreakdownRow>,
    pub(crate) total: i64,
    /// Position of the last row, if there is another page.
    pub(crate) last: Option<BreakdownPosition>,
    pub(crate) provenance: Provenance,
}

/// Builds the total of the last segment; of two segments, the first is the previous period.
pub(crate) fn build_total(reading: Reading, spec: &AnswerSpec) -> Result<Total, Overflow> {
    let sums = match reading.aggregation {
        Aggregation::Segments(sums) => sums,
        Aggregation::Keys(_) | Aggregation::Sketches(_) | Aggregation::Rows(_) => Vec::new(),
    };
    let (previous_sum, sum) = split_previous(&sums);
    let to_count = |sum: &LayeredCount| to_i64(sum.preferred(spec.prefer).count);
    let count = sum.map_or(Ok(0), to_count)?;
    let previous = previous_sum.map(to_count).transpose()?;
    Ok(Total {
        count,
        previous: spec.is_compared.then_some(previous),
        change: spec.is_compared.then(|| compute_change(count, previous)),
        range: spec.answer_range(),
        provenance: spec.provenance(&sums, reading.read_position, &reading.run_watermark),
    })
}

/// Builds the distinct count of the last segment; of two segments, the first is the previous
/// period.
pub(crate) fn build_uniques(reading: Reading, spec: &AnswerSpec, column: &str) -> Uniques {
    let sketches = match reading.aggregation {
        Aggregation::Sketches(sketches) => sketches,
        Aggregation::Keys(_) | Aggregation::Segments(_) | Aggregation::Rows(_) => Vec::new(),
    };
    let (previous_sketch, sketch) = split_previous(&sketches);
    let (count, relative_error) = sketch.map_or((0, 0.0), round_estimate);
    let previous_estimate = previous_sketch.map(round_estimate);
    let previous = previous_estimate.map(|(count, _)| count);
    Uniques {
        of: column.to_owned(),
        count,
        relative_error,
        previous: spec.is_compared.then_some(previous),
        previous_relative_error: spec
            .is_compared
            .then(|| previous_estimate.map(|(_, error)| error)),
        change: spec.is_compared.then(|| compute_change(count, previous)),
        range: spec.answer_range(),
        provenance: spec.provenance(
            sketches.iter().map(Sketch::layers),
            reading.read_position,
            &reading.run_watermark,
        ),
    }
}

/// Builds a series of distinct counts; the first `previous_count` segments are those of the
/// previous period.
pub(crate) fn build_uniques_series(
    reading: Reading,
    spec: &AnswerSpec,
    column: &str,
    previous_count: Option<usize>,
) -> UniquesSeries {
    let sketches = match reading.aggregation {
        Aggregation::Sketches(sketches) => sketches,
        Aggregation::Keys(_) | Aggregation::Segments(_) | Aggregation::Rows(_) => Vec::new(),
    };
    let epoch = reading.read_position.epoch;
    let points = reading.segments.ranges().iter().zip(&sketches);
    let points = points.map(|(range, sketch)| {
        let (count, relative_error) = round_estimate(sketch);
        UniquesPoint {
            at: format_seconds(range.from.unwrap_or_default()),
            count,
            relative_error,
            source: spec.origin(sketch.layers(), epoch),
        }
    });
    let sums: Vec<LayeredCount> = sketches.iter().map(|sketch| *sketch.layers()).collect();
    let kept_range = find_kept_points(spec.range, &reading.segments, &sums);
    let (previous_points, points) = split_periods(points.collect(), previous_count, kept_range);
    UniquesSeries {
        of: column.to_owned(),
        points,
        previous: previous_points,
        range: spec.answer_range(),
        provenance: spec.provenance(&sums, reading.read_position, &reading.run_watermark),
    }
}

/// Estimates the distinct values of a sketch as a whole number, and its relative error.
#[expect(
    clippy::cast_possible_truncation,
    reason = "an estimate is below 2^63: a sketch has fewer cells"
)]
fn round_estimate(sketch: &Sketch) -> (i64, f64) {
    let estimate = sketch.estimate();
    // The error is not known to more than three decimals.
    let error = (estimate.relative_error * 1_000.0).ceil() / 1_000.0;
    (estimate.count.round() as i64, error)
}

/// Splits segments into the previous period, if there is one, and the requested period.
const fn split_previous<T>(segments: &[T]) -> (Option<&T>, Option<&T>) {
    match segments {
        [previous, current] => (Some(previous), Some(current)),
        [current] => (None, Some(current)),
        _ => (None, None),
    }
}

/// Splits points into those of the previous period, if there is one, and the kept ones of the
/// range.
fn split_periods<T>(
    mut points: Vec<T>,
    previous_count: Option<usize>,
    kept_range: std::ops::Range<usize>,
) -> (Option<Vec<T>>, Vec<T>) {
    match previous_count {
        Some(count) => {
            let current = points.split_off(count.min(points.len()));
            (Some(points), current)
        }
        None => {
            let kept_points = points
                .into_iter()
                .skip(kept_range.start)
                .take(kept_range.len());
            (None, kept_points.collect())
        }
    }
}

/// Builds a series; the first `previous_count` segments are those of the previous period.
pub(crate) fn build_series(
    reading: Reading,
    spec: &AnswerSpec,
    previous_count: Option<usize>,
) -> Result<Series, Overflow> {
    let sums = match &reading.aggregation {
        Aggregation::Segments(sums) => sums.as_slice(),
        Aggregation::Keys(_) | Aggregation::Sketches(_) | Aggregation::Rows(_) => &[],
    };
    let epoch = reading.read_position.epoch;
    let points = reading.segments.ranges().iter().zip(sums);
    let points = points.map(|(range, sum)| {
        let sum = sum.preferred(spec.prefer);
        Ok(Point {
            at: format_seconds(range.from.unwrap_or_default()),
            count: to_i64(sum.count)?,
            source: spec.origin(&sum, epoch),
        })
    });
    let points = points.collect::<Result<Vec<_>, _>>()?;
    let kept_range = find_kept_points(spec.range, &reading.segments, sums);
    let (previous_points, points) = split_periods(points, previous_count, kept_range);
    Ok(Series {
        points,
        previous: previous_points,
        range: spec.answer_range(),
        provenance: spec.provenance(sums, reading.read_position, &reading.run_watermark),
    })
}

/// Builds a page of the keys of the last segment that follow `after`; of two segments, the first is
/// the previous period. Keys with count 0 are omitted: those that only the previous period has, and
/// those whose events were all corrected to zero.
pub(crate) fn build_breakdown(
    reading: Reading,
    spec: &AnswerSpec,
    after: Option<&BreakdownPosition>,
    limit: usize,
) -> Result<BreakdownPage, Overflow> {
    let keys = match reading.aggregation {
        Aggregation::Keys(keys) => keys,
        Aggregation::Segments(_) | Aggregation::Sketches(_) | Aggregation::Rows(_) => {
            crate::aggregation::KeyedSums::default()
        }
    };
    let is_compared = spec.is_compared;
    let has_previous = reading.segments.len() > 1;
    let current = usize::from(has_previous);
    let mut total_count = 0_i128;
    let mut layers = LayeredCount::default();
    let mut positioned: Vec<(BreakdownPosition, PeriodPair)> = Vec::new();
    for (key, pair) in keys.into_rows() {
        let pair = pair.map(|sum| sum.preferred(spec.prefer));
        for sum in &pair {
            layers.add_layers(sum);
        }
        let Some(sum) = pair.get(current).filter(|sum| sum.count != 0) else {
            continue;
        };
        total_count += sum.count;
        let position = BreakdownPosition {
            count: to_i64(sum.count)?,
            key,
        };
        if after.is_none_or(|after| after.compare(&position) == Ordering::Less) {
            positioned.push((position, pair));
        }
    }
    let has_more = positioned.len() > limit;
    if has_more {
        positioned.select_nth_unstable_by(limit, |a, b| a.0.compare(&b.0));
        positioned.truncate(limit);
    }
    positioned.sort_unstable_by(|a, b| a.0.compare(&b.0));
    let total = to_i64(total_count)?;
    let last = positioned
        .last()
        .filter(|_| has_more)
        .map(|(position, _)| position.clone());
    let epoch = reading.read_position.epoch;
    let rows = positioned
        .into_iter()
        .map(|(position, pair)| {
            let previous = match pair.first() {
                Some(sum) if has_previous => Some(to_i64(sum.count)?),
                _ => None,
            };
            Ok(BreakdownRow {
                share: compute_ratio(position.count, total),
                previous: is_compared.then_some(previous),
                change: is_compared.then(|| compute_change(position.count, previous)),
                source: spec.origin(&pair.get(current).copied().unwrap_or_default(), epoch),
                count: position.count,
                key: to_row_key(position.key),
            })
        })
        .collect::<Result<_, Overflow>>()?;
    Ok(BreakdownPage {
        rows,
        total,
        last,
        provenance: spec.merged_provenance(layers, reading.read_position, &reading.run_watermark),
    })
}

/// Formats an instant in UTC as RFC 3339.
pub(crate) fn format_seconds(time: UnixSeconds) -> String {
    Timestamp::from_second(time).map_or_else(|_| time.to_string(), |time| time.to_string())
}

/// Formats an instant in UTC as RFC 3339, with milliseconds if they are not zero.
pub(crate) fn format_ms(time_ms: i64) -> String {
    Timestamp::from_millisecond(time_ms)
        .map_or_else(|_| time_ms.to_string(), |time| time.to_string())
}

pub(crate) fn to_i64(count: i128) -> Result<i64, Overflow> {
    i64::try_from(count).map_err(|_| Overflow(count))
}

fn compute_ratio(count: i64, total: i64) -> Option<f64> {
    (total != 0).then(|| count as f64 / total as f64)
}

fn compute_change(count: i64, previous: Option<i64>) -> Option<f64> {
    let previous = previous.filter(|previous| *previous != 0)?;
    // 128 bits, since the difference of two counts may not fit 64.
    let difference = i128::from(count) - i128::from(previous);
    Some(difference as f64 / previous as f64)
}

/// Converts the key of a row to the form in answers.
pub(crate) fn to_row_key(key: KeyValue) -> Option<RowKey> {
    match key {
        KeyValue::Null => None,
        KeyValue::Int(n) | KeyValue::Time(n) | KeyValue::Instant(n) => Some(RowKey::Int(n)),
        KeyValue::Text(text) => Some(RowKey::Text(text)),
    }
}

/// Finds the indexes of the points to keep: on an open side, points without events are cut off.
fn find_kept_points(
    range: TimeRange,
    segments: &TimeSegments,
    sums: &[LayeredCount],
) -> std::ops::Range<usize> {
    let first = sums.iter().position(LayeredCount::has_events);
    let last = sums.iter().rposition(LayeredCount::has_events);
    let start = match (range.from, first) {
        (Some(_), _) => 0,
        (None, first) => first.unwrap_or(segments.len()),
    };
    let end = match (range.to, last) {
        (Some(_), _) => segments.len(),
        (None, last) => last.map_or(start, |last| last + 1),
    };
    start..end.max(start)
}

/// Builds the provenance of an answer at a read position, and counts the answer in the metrics.
pub(crate) fn build_provenance(source: Origin, read_position: ReadPosition) -> Provenance {
    metrics::counter!("backstitch_serving_answers_total", "source" => source.name()).increment(1);
    Provenance {
        source,
        as_of: read_position.as_of_ms.map(format_ms),
        epoch: read_position.epoch,
        complete: read_position.complete,
        position: BTreeMap::from([(
            read_position.source.name().to_owned(),
            read_position.position,
        )]),
        backfills: read_position.backfills,
    }
}

/// Builds the provenance of a count that the entity store computed, and counts the answer in the
/// metrics. The rows may have changed since, and the count has no position in a log.
pub(crate) fn entity_store_provenance(counted_at_ms: i64) -> Provenance {
    let source = Origin::Canonical;
    metrics::counter!("backstitch_serving_answers_total", "source" => source.name()).increment(1);
    Provenance {
        source,
        as_of: Some(format_ms(counted_at_ms)),
        epoch: 0,
        complete: false,
        position: BTreeMap::new(),
        backfills: 0,
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
