//! Builds answers from the rows of boards.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jobs::{Board, Job};
use schemas::provenance::{Origin, Provenance};
use schemas::seam::Epoch;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::earlier::EarlierBoard;
use super::entries::Entry;
use super::reading::BoardReading;
use crate::answer::{ProvenanceShape, build_provenance};
use crate::read_position::ReadPosition;

/// A page of a board.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BoardPage {
    /// Number of rows that match all filters, including those of other pages.
    pub(crate) total: u64,
    /// Entries in the order of ranks.
    #[schema(value_type = Vec<EntryShape>)]
    pub(crate) entries: Vec<Entry>,
    /// Cursor of the next page; null on the last page.
    pub(crate) cursor: Option<String>,
    /// With `history=true`: the batch run of an earlier day (UTC) that the previous ranks come
    /// from; null if there was no such run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PreviousBoard>)]
    pub(crate) previous: Option<Option<PreviousBoard>>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// One athlete on a board.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BoardPlace)]
pub(crate) struct AthleteRank {
    /// Number of rows that match all filters.
    pub(crate) total: u64,
    #[schema(value_type = EntryShape)]
    pub(crate) entry: Option<Entry>,
    /// The adjacent rows in the order of ranks, including the athlete's own row.
    #[schema(value_type = Vec<EntryShape>)]
    pub(crate) neighbours: Vec<Entry>,
    /// Percentage of the rows that this rank is at least as good as:
    /// 100 × (total − rank + 1) ÷ total, rounded to one decimal, halves up. Rank 1 has 100.
    #[schema(example = 87.5)]
    pub(crate) percentile: f64,
    /// Difference from the preceding entry; null for the first entry.
    #[schema(value_type = Option<GapShape>)]
    pub(crate) gap: Option<Map<String, Value>>,
    /// With `history=true`: the athlete's rank after the last batch run of an earlier day (UTC);
    /// null if there was no such run or the athlete was not on the board then.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PreviousRank>)]
    pub(crate) previous: Option<Option<PreviousRank>>,
    /// With `history=true`: the previous rank minus the present rank; null if `previous` is null.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>)]
    pub(crate) change: Option<Option<i64>>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// An athlete's rank on a board at the end of an earlier day, with the same filters, according to
/// the batch layer alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PreviousPlace)]
pub(crate) struct PreviousRank {
    /// The rank; 1 is the first.
    pub(crate) rank: u64,
    /// Number of rows that matched all filters, with the present members of a club and follows.
    pub(crate) total: u64,
    /// Epoch of the batch run that published the board.
    pub(crate) epoch: Epoch,
    /// Day of that run, in UTC.
    #[schema(value_type = String, format = Date)]
    pub(crate) date: Date,
}

/// A board at the end of an earlier day, with the same filters, according to the batch layer alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PreviousBoard {
    /// Number of rows that matched all filters, with the present members of a club and follows.
    pub(crate) total: u64,
    /// Epoch of the batch run that published the board.
    pub(crate) epoch: Epoch,
    /// Day of that run, in UTC.
    #[schema(value_type = String, format = Date)]
    pub(crate) date: Date,
}

impl PreviousBoard {
    pub(crate) fn new(earlier: &EarlierBoard) -> Self {
        let published_at = Timestamp::from_microsecond(earlier.published_at_us).unwrap_or_default();
        Self {
            total: earlier.total,
            epoch: earlier.epoch,
            date: published_at.to_zoned(TimeZone::UTC).date(),
        }
    }
}

impl PreviousRank {
    /// The earlier rank of the row at index `index` of the read rows, if it had one.
    pub(crate) fn new(earlier: &EarlierBoard, index: usize) -> Option<Self> {
        let earlier_index = earlier.indexes.get(index).copied().flatten()?;
        let PreviousBoard { total, epoch, date } = PreviousBoard::new(earlier);
        Some(Self {
            rank: earlier_index + 1,
            total,
            epoch,
            date,
        })
    }
}

/// Difference from the preceding entry of a segment board; other boards have other columns.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = BoardGap)]
#[expect(
    dead_code,
    reason = "pages read some of the columns that a view decides"
)]
pub(crate) struct GapShape {
    /// Rank of the preceding entry.
    pub(crate) rank: u64,
    /// Athlete of the preceding entry.
    pub(crate) athlete_id: i64,
    /// By how many seconds the preceding entry is faster: 0 or more.
    pub(crate) elapsed_time: i64,
}

/// Rows of some athletes on the boards of some segments.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct BoardRanks {
    /// By segment in the order of the request, then by rank; athletes without an entry have no row.
    #[schema(value_type = Vec<RankShape>)]
    pub(crate) rows: Vec<Map<String, Value>>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// An athlete's row on a segment board; other boards have other columns.
#[derive(Debug, ToSchema)]
#[schema(as = BoardRank)]
#[expect(dead_code, reason = "describes rows whose columns depend on the view")]
pub(crate) struct RankShape {
    segment_id: i64,
    /// The rank; 1 is the first.
    rank: u64,
    /// Number of rows on the board that match all filters.
    total: u64,
    athlete_id: i64,
    /// In whole seconds.
    elapsed_time: i64,
    effort_id: i64,
    activity_id: i64,
    /// In UTC.
    #[schema(format = DateTime)]
    started_at: String,
}

/// Size of a segment's board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Counts {
    /// Number of efforts that are neither deleted nor hidden.
    pub(crate) efforts: i64,
    /// Number of distinct athletes with such an effort.
    pub(crate) athletes: u64,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// Entry of a segment board; other boards have other columns.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = BoardEntry)]
#[expect(
    dead_code,
    reason = "pages read some of the columns that a view decides"
)]
pub(crate) struct EntryShape {
    /// The rank; 1 is the first.
    pub(crate) rank: u64,
    pub(crate) athlete_id: i64,
    /// In whole seconds.
    pub(crate) elapsed_time: i64,
    pub(crate) effort_id: i64,
    pub(crate) activity_id: i64,
    /// In UTC.
    #[schema(format = DateTime)]
    pub(crate) started_at: String,
    /// On pages and neighbours with `history=true`: the rank after the last batch run of an earlier
    /// day (UTC); null if there was no such run or the athlete was not on the board then.
    #[schema(required = false)]
    pub(crate) previous_rank: Option<u64>,
    /// On pages and neighbours with `history=true`: the previous rank minus the present rank; null
    /// if `previous_rank` is null.
    #[schema(required = false)]
    pub(crate) change: Option<i64>,
}

/// Computes the percentage, with one decimal, of a board's rows that do not precede an index (from
/// 0).
pub(crate) fn compute_percentile(index: u64, total: u64) -> f64 {
    let total = u128::from(total.max(1));
    let not_preceding = total.saturating_sub(u128::from(index));
    let tenths = (2000 * not_preceding + total) / (2 * total);
    u32::try_from(tenths).map_or(0.0, |tenths| f64::from(tenths) / 10.0)
}

/// Builds the difference from the preceding entry: its rank and member, and the difference of the
/// first score column.
pub(crate) fn build_gap(job: &Job<Board>, preceding: &Entry, entry: &Entry) -> Map<String, Value> {
    let mut gap = Map::new();
    let names = job.member().0.iter().map(|column| column.name.as_str());
    for name in std::iter::once("rank").chain(names) {
        gap.extend(preceding.field(name).map(|value| (name.to_owned(), value)));
    }
    if let Some(score) = job.score().0.first() {
        let score_of = |entry: &Entry| entry.field(&score.name).as_ref().and_then(Value::as_i64);
        let difference = score_of(entry).zip(score_of(preceding));
        // Scores from the entity store may differ by more than an i64 can hold.
        let difference = difference.map(|(score, preceding)| score.saturating_sub(preceding));
        gap.insert(score.name.clone(), difference.into());
    }
    gap
}

/// The names of an entry's fields, in their order.
pub(crate) fn field_names(job: &Job<Board>) -> Vec<&str> {
    let key_shapes = [job.member(), job.score(), job.shown()];
    let names = key_shapes.into_iter().flat_map(|shape| &shape.0);
    std::iter::once("rank")
        .chain(names.map(|column| column.name.as_str()))
        .collect()
}

/// Merges the layers of `readings` into the provenance of one answer.
pub(crate) fn merge_provenance<'a>(
    readings: impl IntoIterator<Item = &'a BoardReading>,
    read_position: ReadPosition,
) -> Provenance {
    let (batch, live) = readings
        .into_iter()
        .fold((false, false), |(batch, live), reading| {
            (batch || reading.layers.0, live || reading.layers.1)
        });
    build_provenance(
        Origin::from_layers(batch, live, read_position.epoch),
        read_position,
    )
}
