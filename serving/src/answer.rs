//! Putting counts into the shape that was asked for.
//!
//! Pure: totals with their comparison, points of a series, ranked rows of a breakdown and where
//! they come from. It must not know how they are written out.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;
use schemas::key::KeyValue;
use schemas::provenance::{Origin, Provenance};
use schemas::time::{Range, Seconds};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::question::{Prefer, Segments};
use crate::read::{Reach, Reading, Standing};
use crate::tally::{Cell, Pair, Sketch, Tally};

/// A count that does not fit the integers of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a count of {0} does not fit a 64-bit integer: ask for a shorter period")]
pub(crate) struct Overflow(i128);

/// The answer to a question for one number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Total {
    /// The sum of the amounts of all events.
    pub(crate) count: i64,
    /// That of the period before, where it was asked for; null where there is no period before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, required = false)]
    pub(crate) previous: Option<Option<i64>>,
    /// (count - previous) / previous; null where previous is 0 or there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, required = false)]
    pub(crate) change: Option<Option<f64>>,
    #[serde(flatten)]
    pub(crate) range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// The range that an answer is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct AnswerRange {
    /// The first instant, in UTC; null if there is no first.
    pub(crate) from: Option<String>,
    /// The instant just after the last, in UTC; null if there is no last.
    pub(crate) to: Option<String>,
    /// Whether the range holds the present moment: it is not over, and it is compared with the same
    /// elapsed part of the one before.
    pub(crate) running: bool,
}

/// What was asked, as an answer is put into shape by it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) range: Range,
    /// Whether the range holds the present moment.
    pub(crate) running: bool,
    /// Whether the period before was asked for.
    pub(crate) compared: bool,
    pub(crate) prefer: Prefer,
}

impl Frame {
    pub(crate) fn shown(&self) -> AnswerRange {
        AnswerRange {
            from: self.range.from.map(shown),
            to: self.range.to.map(shown),
            running: self.running,
        }
    }

    /// Where a value comes from, which is the one that is preferred.
    fn origin(&self, cell: &Cell, epoch: u64) -> Origin {
        match self.prefer {
            Prefer::Realtime => Origin::Realtime,
            Prefer::Newest | Prefer::Batch => cell.origin(epoch),
        }
    }

    /// Where an answer of these cells comes from, and how far it reaches.
    pub(crate) fn provenance<'a>(
        &self,
        cells: impl IntoIterator<Item = &'a Cell>,
        standing: Standing,
        run: &Reach,
    ) -> Provenance {
        let mut all = Cell::default();
        for cell in cells {
            all.see(&cell.preferred(self.prefer));
        }
        self.of_layers(all, standing, run)
    }

    /// The same of cells whose preferred values were put together already.
    fn of_layers(&self, all: Cell, mut standing: Standing, run: &Reach) -> Provenance {
        let origin = self.origin(&all, standing.epoch);
        if self.prefer != Prefer::Newest {
            // Rows of a run that is not complete are of another position than the others.
            standing.complete &= !all.is_ahead;
        }
        if self.prefer == Prefer::Batch && origin == Origin::Batch {
            standing.position.clone_from(&run.position);
            standing.as_of_ms = run.as_of_ms;
        }
        provenance(origin, standing)
    }
}

/// One point of a series.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Point {
    /// When the point begins, in UTC; it ends where the next one begins.
    pub(crate) at: String,
    /// The sum of the amounts of its events.
    pub(crate) count: i64,
    /// Which layers had a part in it.
    #[schema(value_type = OriginShape)]
    pub(crate) source: Origin,
}

/// The answer to a question for a chart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Series {
    pub(crate) points: Vec<Point>,
    /// The points of the period before, where they were asked for and there is such a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) previous: Option<Vec<Point>>,
    #[serde(flatten)]
    pub(crate) range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// The answer to a question for how many different ones there are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Uniques {
    /// Of what: listener.
    pub(crate) of: String,
    /// How many there are, about. Never add up such numbers: who comes on two days is one.
    pub(crate) count: i64,
    /// The standard error of `count` as a part of it: two of three estimates are nearer than this, and
    /// 19 of 20 nearer than twice this.
    pub(crate) relative_error: f64,
    /// That of the period before, where it was asked for; null where there is no period before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, required = false)]
    pub(crate) previous: Option<Option<i64>>,
    /// The standard error of `previous` as a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, required = false)]
    pub(crate) previous_relative_error: Option<Option<f64>>,
    /// (count - previous) / previous, which has the errors of both; null where previous is 0 or there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, required = false)]
    pub(crate) change: Option<Option<f64>>,
    #[serde(flatten)]
    pub(crate) range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// One point of a series of different ones.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct UniquesPoint {
    /// When the point begins, in UTC; it ends where the next one begins.
    pub(crate) at: String,
    /// How many different ones there are, about.
    pub(crate) count: i64,
    /// The standard error of `count` as a part of it.
    pub(crate) relative_error: f64,
    /// Which layers had a part in it.
    #[schema(value_type = OriginShape)]
    pub(crate) source: Origin,
}

/// The answer to a question for a chart of different ones.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct UniquesSeries {
    /// Of what: listener.
    pub(crate) of: String,
    pub(crate) points: Vec<UniquesPoint>,
    /// The points of the period before, where they were asked for and there is such a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) previous: Option<Vec<UniquesPoint>>,
    #[serde(flatten)]
    pub(crate) range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// A value that is counted apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum RowKey {
    Int(i64),
    Text(String),
}

/// One row of a breakdown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Row {
    /// The value; null for events that have none.
    pub(crate) key: Option<RowKey>,
    /// The sum of the amounts of its events.
    pub(crate) count: i64,
    /// count / total; null where the total is 0.
    pub(crate) share: Option<f64>,
    /// The count of the period before, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, required = false)]
    pub(crate) previous: Option<Option<i64>>,
    /// (count - previous) / previous; null where previous is 0 or there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, required = false)]
    pub(crate) change: Option<Option<f64>>,
    /// Which layers had a part in the row.
    #[schema(value_type = OriginShape)]
    pub(crate) source: Origin,
}

impl Row {
    /// The value as text.
    pub(crate) fn key_text(&self) -> Option<String> {
        match self.key.as_ref()? {
            RowKey::Int(id) => Some(id.to_string()),
            RowKey::Text(text) => Some(text.clone()),
        }
    }
}

/// The answer to a question for a ranking.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Breakdown {
    /// Largest count first, then by key, null last among equals. Keys whose count is 0 are left out.
    pub(crate) rows: Vec<Row>,
    /// The sum over all rows, also those of other pages.
    pub(crate) total: i64,
    /// Where the next page begins; null on the last one.
    pub(crate) cursor: Option<String>,
    #[serde(flatten)]
    pub(crate) range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// Where an answer comes from, and how far it reaches.
#[derive(Debug, ToSchema)]
#[schema(as = Provenance)]
#[expect(
    dead_code,
    reason = "only describes the schema of a type that knows no OpenAPI"
)]
pub(crate) struct ProvenanceShape {
    /// Which layers had a part in the answer.
    source: OriginShape,
    /// When the newest event that the answer includes was logged; null while there is none.
    #[schema(format = DateTime)]
    as_of: Option<String>,
    /// The epoch of the newest complete batch run that the answer rests on; 0 before the first.
    epoch: u64,
    /// False while live state that began anew (after a loss, or for the first time) has not come to
    /// where the log ended then: the answer is exact for `position`, and an earlier one may have
    /// held more. False of what was counted in the canonical store, which may have changed since `as_of`.
    complete: bool,
    /// By source, the next offset of each log partition.
    position: BTreeMap<String, Vec<i64>>,
    /// How many backfills of events that never were in the log the answer holds besides; left out
    /// where there is none.
    #[schema(required = false)]
    backfills: u64,
}

/// batch: nothing newer than the batch rows had a part; realtime: no batch row had; merged: both;
/// canonical: neither, it was counted in the canonical store at `as_of`.
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

/// A place in a ranking: what comes after it is the next page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) count: i64,
    pub(crate) key: KeyValue,
}

impl Place {
    /// Largest count first, then by key, null last among equals.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        let is_null = |place: &Self| place.key == KeyValue::Null;
        other
            .count
            .cmp(&self.count)
            .then_with(|| is_null(self).cmp(&is_null(other)))
            .then_with(|| self.key.cmp(&other.key))
    }
}

/// A page of a ranking.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) rows: Vec<Row>,
    pub(crate) total: i64,
    /// The last place of the page, if there is another page.
    pub(crate) last: Option<Place>,
    pub(crate) provenance: Provenance,
}

/// The total of the last segment; of two segments the first is the period before.
pub(crate) fn total(reading: Reading, frame: &Frame) -> Result<Total, Overflow> {
    let cells = match reading.tally {
        Tally::Segments(cells) => cells,
        Tally::Keys(_) | Tally::Sketches(_) | Tally::Rows(_) => Vec::new(),
    };
    let (before, now) = of_two(&cells);
    let value = |cell: &Cell| fit(cell.preferred(frame.prefer).count);
    let count = now.map_or(Ok(0), value)?;
    let previous = before.map(value).transpose()?;
    Ok(Total {
        count,
        previous: frame.compared.then_some(previous),
        change: frame.compared.then(|| change(count, previous)),
        range: frame.shown(),
        provenance: frame.provenance(&cells, reading.standing, &reading.run),
    })
}

/// How many different values the last segment has; of two segments the first is the period before.
pub(crate) fn uniques(reading: Reading, frame: &Frame, of: &str) -> Uniques {
    let sketches = match reading.tally {
        Tally::Sketches(sketches) => sketches,
        Tally::Keys(_) | Tally::Segments(_) | Tally::Rows(_) => Vec::new(),
    };
    let (before, now) = of_two(&sketches);
    let (count, relative_error) = now.map_or((0, 0.0), estimated);
    let before = before.map(estimated);
    let previous = before.map(|(count, _)| count);
    Uniques {
        of: of.to_owned(),
        count,
        relative_error,
        previous: frame.compared.then_some(previous),
        previous_relative_error: frame.compared.then(|| before.map(|(_, error)| error)),
        change: frame.compared.then(|| change(count, previous)),
        range: frame.shown(),
        provenance: frame.provenance(
            sketches.iter().map(Sketch::layers),
            reading.standing,
            &reading.run,
        ),
    }
}

/// How many different values each point has; the first `previous` segments are those of the period
/// before.
pub(crate) fn uniques_series(
    reading: Reading,
    frame: &Frame,
    of: &str,
    previous: Option<usize>,
) -> UniquesSeries {
    let sketches = match reading.tally {
        Tally::Sketches(sketches) => sketches,
        Tally::Keys(_) | Tally::Segments(_) | Tally::Rows(_) => Vec::new(),
    };
    let epoch = reading.standing.epoch;
    let points = reading.segments.ranges().iter().zip(&sketches);
    let points = points.map(|(range, sketch)| {
        let (count, relative_error) = estimated(sketch);
        UniquesPoint {
            at: shown(range.from.unwrap_or_default()),
            count,
            relative_error,
            source: frame.origin(sketch.layers(), epoch),
        }
    });
    let cells: Vec<Cell> = sketches.iter().map(|sketch| *sketch.layers()).collect();
    let kept = trimmed(frame.range, &reading.segments, &cells);
    let (before, points) = parted(points.collect(), previous, kept);
    UniquesSeries {
        of: of.to_owned(),
        points,
        previous: before,
        range: frame.shown(),
        provenance: frame.provenance(&cells, reading.standing, &reading.run),
    }
}

/// The estimate of a sketch as a whole number, and its error.
#[expect(
    clippy::cast_possible_truncation,
    reason = "an estimate is below 2^63: more cells than that are not told apart"
)]
fn estimated(sketch: &Sketch) -> (i64, f64) {
    let found = sketch.estimate();
    // Three places are more than the error is known to.
    let error = (found.relative_error * 1_000.0).ceil() / 1_000.0;
    (found.count.round() as i64, error)
}

/// The period before, if there is one, and the period.
const fn of_two<T>(both: &[T]) -> (Option<&T>, Option<&T>) {
    match both {
        [before, now] => (Some(before), Some(now)),
        [now] => (None, Some(now)),
        _ => (None, None),
    }
}

/// The points of the period before, where there are such, and those of the period that are kept.
fn parted<T>(
    mut points: Vec<T>,
    previous: Option<usize>,
    kept: std::ops::Range<usize>,
) -> (Option<Vec<T>>, Vec<T>) {
    match previous {
        Some(count) => {
            let now = points.split_off(count.min(points.len()));
            (Some(points), now)
        }
        None => {
            let kept = points.into_iter().skip(kept.start).take(kept.len());
            (None, kept.collect())
        }
    }
}

/// The points of a series; the first `previous` segments are those of the period before.
pub(crate) fn series(
    reading: Reading,
    frame: &Frame,
    previous: Option<usize>,
) -> Result<Series, Overflow> {
    let cells = match &reading.tally {
        Tally::Segments(cells) => cells.as_slice(),
        Tally::Keys(_) | Tally::Sketches(_) | Tally::Rows(_) => &[],
    };
    let epoch = reading.standing.epoch;
    let points = reading.segments.ranges().iter().zip(cells);
    let points = points.map(|(range, cell)| {
        let cell = cell.preferred(frame.prefer);
        Ok(Point {
            at: shown(range.from.unwrap_or_default()),
            count: fit(cell.count)?,
            source: frame.origin(&cell, epoch),
        })
    });
    let points = points.collect::<Result<Vec<_>, _>>()?;
    let kept = trimmed(frame.range, &reading.segments, cells);
    let (before, points) = parted(points, previous, kept);
    Ok(Series {
        points,
        previous: before,
        range: frame.shown(),
        provenance: frame.provenance(cells, reading.standing, &reading.run),
    })
}

/// A page of the keys of the last segment, from after `after` on; of two segments the first is the
/// period before. Keys whose count is 0 are left out: those that only the period before has, and those
/// whose events were all corrected away.
pub(crate) fn breakdown(
    reading: Reading,
    frame: &Frame,
    after: Option<&Place>,
    limit: usize,
) -> Result<Page, Overflow> {
    let keys = match reading.tally {
        Tally::Keys(keys) => keys,
        Tally::Segments(_) | Tally::Sketches(_) | Tally::Rows(_) => crate::tally::Keys::default(),
    };
    let compared = frame.compared;
    let two = reading.segments.len() > 1;
    let now = usize::from(two);
    let mut sum = 0_i128;
    let mut layers = Cell::default();
    let mut places: Vec<(Place, Pair)> = Vec::new();
    for (key, pair) in keys.into_rows() {
        let pair = pair.map(|cell| cell.preferred(frame.prefer));
        for cell in &pair {
            layers.see(cell);
        }
        let Some(cell) = pair.get(now).filter(|cell| cell.count != 0) else {
            continue;
        };
        sum += cell.count;
        let place = Place {
            count: fit(cell.count)?,
            key,
        };
        if after.is_none_or(|after| after.order(&place) == Ordering::Less) {
            places.push((place, pair));
        }
    }
    let more = places.len() > limit;
    if more {
        places.select_nth_unstable_by(limit, |one, other| one.0.order(&other.0));
        places.truncate(limit);
    }
    places.sort_unstable_by(|one, other| one.0.order(&other.0));
    let total = fit(sum)?;
    let last = places
        .last()
        .filter(|_| more)
        .map(|(place, _)| place.clone());
    let epoch = reading.standing.epoch;
    let rows = places
        .into_iter()
        .map(|(place, pair)| {
            let previous = match pair.first() {
                Some(cell) if two => Some(fit(cell.count)?),
                _ => None,
            };
            Ok(Row {
                share: ratio(place.count, total),
                previous: compared.then_some(previous),
                change: compared.then(|| change(place.count, previous)),
                source: frame.origin(&pair.get(now).copied().unwrap_or_default(), epoch),
                count: place.count,
                key: row_key(place.key),
            })
        })
        .collect::<Result<_, Overflow>>()?;
    Ok(Page {
        rows,
        total,
        last,
        provenance: frame.of_layers(layers, reading.standing, &reading.run),
    })
}

/// An instant in UTC, in RFC 3339.
pub(crate) fn shown(at: Seconds) -> String {
    Timestamp::from_second(at).map_or_else(|_| at.to_string(), |at| at.to_string())
}

/// An instant in UTC, in RFC 3339 with milliseconds where there are any.
pub(crate) fn shown_ms(at_ms: i64) -> String {
    Timestamp::from_millisecond(at_ms).map_or_else(|_| at_ms.to_string(), |at| at.to_string())
}

pub(crate) fn fit(count: i128) -> Result<i64, Overflow> {
    i64::try_from(count).map_err(|_| Overflow(count))
}

fn ratio(count: i64, of: i64) -> Option<f64> {
    (of != 0).then(|| count as f64 / of as f64)
}

fn change(count: i64, previous: Option<i64>) -> Option<f64> {
    let previous = previous.filter(|previous| *previous != 0)?;
    // In 128 bits, since the difference of two counts may not fit 64.
    let difference = i128::from(count) - i128::from(previous);
    Some(difference as f64 / previous as f64)
}

/// The key of a row as answers show it.
pub(crate) fn row_key(key: KeyValue) -> Option<RowKey> {
    match key {
        KeyValue::Null => None,
        KeyValue::Int(n) | KeyValue::Time(n) | KeyValue::Instant(n) => Some(RowKey::Int(n)),
        KeyValue::Text(text) => Some(RowKey::Text(text)),
    }
}

/// The points that are kept: on an open side those without any event are left out.
fn trimmed(range: Range, segments: &Segments, cells: &[Cell]) -> std::ops::Range<usize> {
    let first = cells.iter().position(Cell::is_seen);
    let last = cells.iter().rposition(Cell::is_seen);
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

/// Where an answer comes from, and how far it reaches.
pub(crate) fn provenance(source: Origin, standing: Standing) -> Provenance {
    metrics::counter!("backstitch_serving_answers_total", "source" => source.name()).increment(1);
    Provenance {
        source,
        as_of: standing.as_of_ms.map(shown_ms),
        epoch: standing.epoch,
        complete: standing.complete,
        position: BTreeMap::from([(standing.source.name().to_owned(), standing.position)]),
        backfills: standing.backfills,
    }
}

/// Where an answer comes from that was counted in the canonical store then. What has changed since is not in it, and
/// nobody knows whether anything has; it has no position in a log.
pub(crate) fn counted(at_ms: i64) -> Provenance {
    let source = Origin::Canonical;
    metrics::counter!("backstitch_serving_answers_total", "source" => source.name()).increment(1);
    Provenance {
        source,
        as_of: Some(shown_ms(at_ms)),
        epoch: 0,
        complete: false,
        position: BTreeMap::new(),
        backfills: 0,
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
