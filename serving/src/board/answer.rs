//! Putting rows of boards into the shape that was asked for.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jobs::{Board, Job};
use schemas::provenance::{Origin, Provenance};
use schemas::seam::Epoch;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::earlier::Earlier;
use super::entries::Entry;
use super::read::BoardReading;
use crate::answer::{ProvenanceShape, provenance};
use crate::read::Standing;

/// A page of a board.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BoardPage {
    /// How many rows there are within all filters, also those of other pages.
    pub(crate) total: u64,
    /// In the order of ranks.
    #[schema(value_type = Vec<EntryShape>)]
    pub(crate) entries: Vec<Entry>,
    /// Where the next page begins; null on the last one.
    pub(crate) cursor: Option<String>,
    /// With `history=true`: the batch run of an earlier day (UTC) that the places of then are of; null if there was
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PreviousBoard>)]
    pub(crate) previous: Option<Option<PreviousBoard>>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// One athlete on a board.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BoardPlace {
    /// How many rows there are within all filters.
    pub(crate) total: u64,
    #[schema(value_type = EntryShape)]
    pub(crate) entry: Option<Entry>,
    /// The rows around it, in the order of ranks, the own one among them.
    #[schema(value_type = Vec<EntryShape>)]
    pub(crate) neighbours: Vec<Entry>,
    /// The share of the rows that the place is at least as good as, in percent:
    /// 100 × (total − rank + 1) ÷ total, rounded to one decimal, halves up. The first place has 100.
    #[schema(example = 87.5)]
    pub(crate) percentile: f64,
    /// How far the place before is away; null for the first place.
    #[schema(value_type = Option<GapShape>)]
    pub(crate) gap: Option<Map<String, Value>>,
    /// With `history=true`: the athlete's place after the last batch run of an earlier day (UTC); null if
    /// there was no such run, or the athlete was not on the board then.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PreviousPlace>)]
    pub(crate) previous: Option<Option<PreviousPlace>>,
    /// With `history=true`: how many places better than then, the previous rank less this one; null
    /// where `previous` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>)]
    pub(crate) change: Option<Option<i64>>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// An athlete's place on a board at the end of an earlier day: what the batch layer had made of the same
/// board with the same filters, without anything newer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PreviousPlace {
    /// 1 is the first place.
    pub(crate) rank: u64,
    /// How many rows there were within all filters; who is in a club, or is followed, is as it is now.
    pub(crate) total: u64,
    /// The batch run that made it.
    pub(crate) epoch: Epoch,
    /// The day of that run, in UTC.
    #[schema(value_type = String, format = Date)]
    pub(crate) date: Date,
}

/// A board at the end of an earlier day: what the batch layer had made of it with the same filters, without
/// anything newer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PreviousBoard {
    /// How many rows there were within all filters; who is in a club, or is followed, is as it is now.
    pub(crate) total: u64,
    /// The batch run that made it.
    pub(crate) epoch: Epoch,
    /// The day of that run, in UTC.
    #[schema(value_type = String, format = Date)]
    pub(crate) date: Date,
}

impl PreviousBoard {
    pub(crate) fn of(earlier: &Earlier) -> Self {
        let at = Timestamp::from_microsecond(earlier.at_us).unwrap_or_default();
        Self {
            total: earlier.total,
            epoch: earlier.epoch,
            date: at.to_zoned(TimeZone::UTC).date(),
        }
    }
}

impl PreviousPlace {
    /// The place then of the row that is `at` among those that were read, if it had one.
    pub(crate) fn of(earlier: &Earlier, at: usize) -> Option<Self> {
        let place = earlier.places.get(at).copied().flatten()?;
        let PreviousBoard { total, epoch, date } = PreviousBoard::of(earlier);
        Some(Self {
            rank: place + 1,
            total,
            epoch,
            date,
        })
    }
}

/// How far the place before is away on a board of segments; other boards have columns of their own.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = BoardGap)]
#[expect(
    dead_code,
    reason = "pages read some of the columns that a view decides"
)]
pub(crate) struct GapShape {
    /// Of the place before.
    pub(crate) rank: u64,
    /// Who has it.
    pub(crate) athlete_id: i64,
    /// By how many seconds it is better: 0 or more.
    pub(crate) elapsed_time: i64,
}

/// The rows of some athletes on the boards of some segments.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct BoardRanks {
    /// By segment in the order of the request, then by rank; whoever is not on a board has no row there.
    #[schema(value_type = Vec<RankShape>)]
    pub(crate) rows: Vec<Map<String, Value>>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// An athlete's row on a segment's board; other boards have columns of their own.
#[derive(Debug, ToSchema)]
#[schema(as = BoardRank)]
#[expect(dead_code, reason = "only describes rows whose columns a view decides")]
pub(crate) struct RankShape {
    segment_id: i64,
    /// 1 is the first place.
    rank: u64,
    /// How many rows the board has within all filters.
    total: u64,
    athlete_id: i64,
    /// Whole seconds.
    elapsed_time: i64,
    effort_id: i64,
    activity_id: i64,
    /// In UTC.
    #[schema(format = DateTime)]
    started_at: String,
}

/// How much there is of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Counts {
    /// Efforts that are neither deleted nor hidden.
    pub(crate) efforts: i64,
    /// Different athletes with such an effort.
    pub(crate) athletes: u64,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// A row of a board of segments; other boards have columns of their own.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = BoardEntry)]
#[expect(
    dead_code,
    reason = "pages read some of the columns that a view decides"
)]
pub(crate) struct EntryShape {
    /// 1 is the first place.
    pub(crate) rank: u64,
    pub(crate) athlete_id: i64,
    /// Whole seconds.
    pub(crate) elapsed_time: i64,
    pub(crate) effort_id: i64,
    pub(crate) activity_id: i64,
    /// In UTC.
    #[schema(format = DateTime)]
    pub(crate) started_at: String,
    /// On pages and neighbours with `history=true`: the rank after the last batch run of an earlier day (UTC); null if there was no such run, or
    /// the athlete was not on the board then.
    #[schema(required = false)]
    pub(crate) previous_rank: Option<u64>,
    /// On pages and neighbours with `history=true`: how many places better than then; null where `previous_rank` is.
    #[schema(required = false)]
    pub(crate) change: Option<i64>,
}

/// The share of a board's rows that a place (from 0 on) is at least as good as, in percent with one
/// decimal.
pub(crate) fn percentile(place: u64, total: u64) -> f64 {
    let total = u128::from(total.max(1));
    let as_good = total.saturating_sub(u128::from(place));
    let tenths = (2000 * as_good + total) / (2 * total);
    u32::try_from(tenths).map_or(0.0, |tenths| f64::from(tenths) / 10.0)
}

/// How far an entry is from the one before: whose that is, and the difference of what ranks them first.
pub(crate) fn gap(job: &Job<Board>, before: &Entry, own: &Entry) -> Map<String, Value> {
    let mut gap = Map::new();
    let names = job.member().0.iter().map(|column| column.name.as_str());
    for name in std::iter::once("rank").chain(names) {
        gap.extend(before.field(name).map(|value| (name.to_owned(), value)));
    }
    if let Some(score) = job.score().0.first() {
        let of = |entry: &Entry| entry.field(&score.name).as_ref().and_then(Value::as_i64);
        let difference = of(own).zip(of(before));
        // Canonical rows of an app's own may be as far apart as numbers can be.
        let difference = difference.map(|(own, before)| own.saturating_sub(before));
        gap.insert(score.name.clone(), difference.into());
    }
    gap
}

/// The names of an entry's fields, in their order.
pub(crate) fn field_names(job: &Job<Board>) -> Vec<&str> {
    let shapes = [job.member(), job.score(), job.shown()];
    let names = shapes.into_iter().flat_map(|shape| &shape.0);
    std::iter::once("rank")
        .chain(names.map(|column| column.name.as_str()))
        .collect()
}

/// Where a reading comes from.
pub(crate) fn of_reading<'a>(
    readings: impl IntoIterator<Item = &'a BoardReading>,
    standing: Standing,
) -> Provenance {
    let (batch, live) = readings
        .into_iter()
        .fold((false, false), |(batch, live), reading| {
            (batch || reading.layers.0, live || reading.layers.1)
        });
    provenance(Origin::of(batch, live, standing.epoch), standing)
}
