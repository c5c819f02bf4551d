//! Entries of a board, stored as values until they are serialized.

use std::sync::Arc;

use jobs::board::RankedEntry;
use jobs::{Board, Job};
use schemas::json_value;
use schemas::key::{KeyError, KeyValue};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::earlier::EarlierBoard;
use super::reading::BoardReading;

/// Name of the first field.
const RANK: &str = "rank";
/// Names of the last fields, if the answer includes earlier ranks.
pub(crate) const EARLIER_FIELDS: [&str; 2] = ["previous_rank", "change"];

/// Entry of a board: rank, member, score, and the columns that the view shows.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) rank: u64,
    /// Names of the fields after the rank.
    names: Arc<[String]>,
    /// Values in the order of the names.
    values: Vec<KeyValue>,
    /// The earlier rank, if any; the outer `None` means that the answer omits earlier ranks.
    previous: Option<Option<u64>>,
}

/// Builds the entries of a reading, with their earlier ranks if `earlier` is given.
pub(crate) fn build_entries(
    job: &Job<Board>,
    reading: &BoardReading,
    earlier: Option<&Option<EarlierBoard>>,
) -> Result<Vec<Entry>, KeyError> {
    let key_shapes = [job.member(), job.score(), job.shown()];
    let columns = key_shapes.into_iter().flat_map(|shape| &shape.0);
    let names: Arc<[String]> = columns.map(|column| column.name.clone()).collect();
    let entry = |(row_index, row): (usize, &RankedEntry)| {
        let mut values = job.member().decode_values(&row.member)?;
        values.extend(job.score().decode_values(&row.score)?);
        // Columns that are only filtered by follow the shown ones.
        let payload = job.payload().decode_values(&row.payload)?;
        values.extend(payload.into_iter().take(job.shown().0.len()));
        let indexes = reading.indexes.as_ref();
        let index = indexes.and_then(|indexes| indexes.get(row_index).copied());
        let rank = |index: u64| index + 1;
        Ok(Entry {
            rank: rank(index.unwrap_or(reading.first_index + row_index as u64)),
            names: Arc::clone(&names),
            values,
            previous: earlier.map(|earlier| earlier.as_ref()?.indexes.get(row_index)?.map(rank)),
        })
    };
    reading.rows.iter().enumerate().map(entry).collect()
}

impl Entry {
    /// The earlier rank and the change since, if the answer includes them; null without an earlier
    /// rank.
    fn earlier_values(&self) -> Option<[Value; 2]> {
        let previous = self.previous?;
        let signed = |rank: u64| i64::try_from(rank).unwrap_or(i64::MAX);
        let change = previous.map(|rank| signed(rank) - signed(self.rank));
        Some([previous.into(), change.into()])
    }

    /// The fields after the rank.
    fn fields(&self) -> impl Iterator<Item = (&str, &KeyValue)> {
        self.names.iter().map(String::as_str).zip(&self.values)
    }

    /// The value of a field; `None` if there is no field of this name.
    pub(crate) fn field(&self, name: &str) -> Option<Value> {
        if name == RANK {
            return Some(self.rank.into());
        }
        let (_, value) = self.fields().find(|(field_name, _)| *field_name == name)?;
        Some(json_value::from_key(value))
    }

    /// Inserts the fields into a JSON object.
    pub(crate) fn insert_into(&self, fields: &mut Map<String, Value>) {
        fields.insert(RANK.to_owned(), self.rank.into());
        fields.extend(
            self.fields()
                .map(|(name, value)| (name.to_owned(), json_value::from_key(value))),
        );
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        fields.serialize_entry(RANK, &self.rank)?;
        for (name, value) in self.fields() {
            match value {
                KeyValue::Int(n) => fields.serialize_entry(name, n)?,
                KeyValue::Text(text) => fields.serialize_entry(name, text)?,
                other => fields.serialize_entry(name, &json_value::from_key(other))?,
            }
        }
        for (name, value) in EARLIER_FIELDS
            .iter()
            .zip(self.earlier_values().into_iter().flatten())
        {
            fields.serialize_entry(name, &value)?;
        }
        fields.end()
    }
}
