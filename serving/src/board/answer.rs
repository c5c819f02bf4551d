//! Putting rows of boards into the shape that was asked for.

use arrow::array::ArrayRef;
use jobs::board::Ranked;
use jobs::{Board, Job};
use schemas::key::{KeyError, KeyShape};
use schemas::provenance::{Origin, Provenance};
use schemas::shown::value;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::read::BoardReading;
use crate::answer::{ProvenanceShape, provenance};
use crate::read::Standing;

/// A page of a board.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct BoardPage {
    /// How many rows there are within all filters, also those of other pages.
    pub(crate) total: u64,
    /// In the order of ranks.
    #[schema(value_type = Vec<EntryShape>)]
    pub(crate) entries: Vec<Map<String, Value>>,
    /// Where the next page begins; null on the last one.
    pub(crate) cursor: Option<String>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// One athlete on a board.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct BoardPlace {
    /// How many rows there are within all filters.
    pub(crate) total: u64,
    #[schema(value_type = EntryShape)]
    pub(crate) entry: Map<String, Value>,
    /// The rows around it, in the order of ranks, the own one among them.
    #[schema(value_type = Vec<EntryShape>)]
    pub(crate) neighbours: Vec<Map<String, Value>>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// How much there is of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Counts {
    /// Efforts that are neither deleted nor hidden.
    pub(crate) efforts: i64,
    /// Different athletes with such an effort.
    pub(crate) athletes: u64,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// A row of a board of segments; other boards have columns of their own.
#[derive(Debug, ToSchema)]
#[schema(as = BoardEntry)]
#[expect(dead_code, reason = "only describes rows whose columns a view decides")]
pub(crate) struct EntryShape {
    /// 1 is the first place.
    rank: u64,
    athlete_id: i64,
    /// Whole seconds.
    elapsed_time: i64,
    effort_id: i64,
    activity_id: i64,
    /// In UTC.
    #[schema(format = DateTime)]
    started_at: String,
}

/// The rows of a reading as an answer shows them: rank, member, score, and what the view shows
/// besides.
pub(crate) fn entries(
    job: &Job<Board>,
    reading: &BoardReading,
) -> Result<Vec<Map<String, Value>>, KeyError> {
    let rows = || reading.rows.iter();
    let columns = [
        columns(job.member(), rows().map(|row| row.member.as_slice()))?,
        columns(job.score(), rows().map(|row| row.score.as_slice()))?,
        columns(job.payload(), rows().map(|row| row.payload.as_slice()))?,
    ];
    let shown = |name: &str| {
        let hidden = job.payload().0.iter().any(|column| column.name == name)
            && !job.shown().0.iter().any(|column| column.name == name);
        !hidden
    };
    let mut entries = Vec::with_capacity(reading.rows.len());
    for (row, place) in (0..reading.rows.len()).zip(reading.first..) {
        let mut entry = Map::new();
        entry.insert("rank".to_owned(), (place + 1).into());
        for (name, column) in columns.iter().flatten().filter(|(name, _)| shown(name)) {
            entry.insert(name.clone(), value(column, row));
        }
        entries.push(entry);
    }
    Ok(entries)
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

fn columns<'a>(
    shape: &KeyShape,
    keys: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<(String, ArrayRef)>, KeyError> {
    let columns = shape.decode(keys)?;
    let names = shape.0.iter().map(|column| column.name.clone());
    Ok(names.zip(columns).collect())
}

/// The fields of entries as texts, for CSV.
pub(crate) fn csv_row(names: &[&str], entry: &Map<String, Value>) -> Vec<String> {
    let text = |name: &&str| match entry.get(*name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    names.iter().map(text).collect()
}

/// The row of a member among those that were read.
pub(crate) fn row_at(reading: &BoardReading, place: u64) -> Option<&Ranked> {
    let index = place.checked_sub(reading.first)?;
    reading.rows.get(usize::try_from(index).ok()?)
}
