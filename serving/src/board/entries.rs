//! Rows of a board as answers show them, as values until they are written.

use std::sync::Arc;

use jobs::board::Ranked;
use jobs::{Board, Job};
use schemas::key::{KeyError, KeyValue};
use schemas::shown::key_value;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::earlier::Earlier;
use super::read::BoardReading;

/// The name of the first field.
const RANK: &str = "rank";
/// The names of the last fields, where the places of an earlier day are told.
pub(crate) const SINCE: [&str; 2] = ["previous_rank", "change"];

/// A row of a board: rank, member, score, and what the view shows besides.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) rank: u64,
    /// Of the fields after the rank.
    names: Arc<[String]>,
    /// In the order of the names.
    values: Vec<KeyValue>,
    /// Where the places of an earlier day are told: the rank of then, if it had one.
    previous: Option<Option<u64>>,
}

/// The rows of a reading; where it is asked for, with the ranks that they had at the end of an earlier day.
pub(crate) fn entries(
    job: &Job<Board>,
    reading: &BoardReading,
    earlier: Option<&Option<Earlier>>,
) -> Result<Vec<Entry>, KeyError> {
    let shapes = [job.member(), job.score(), job.shown()];
    let columns = shapes.into_iter().flat_map(|shape| &shape.0);
    let names: Arc<[String]> = columns.map(|column| column.name.clone()).collect();
    let entry = |(at, row): (usize, &Ranked)| {
        let mut values = job.member().decode_values(&row.member)?;
        values.extend(job.score().decode_values(&row.score)?);
        // What is only filtered by comes after what is shown.
        let payload = job.payload().decode_values(&row.payload)?;
        values.extend(payload.into_iter().take(job.shown().0.len()));
        let places = reading.places.as_ref();
        let place = places.and_then(|places| places.get(at).copied());
        let rank = |place: u64| place + 1;
        Ok(Entry {
            rank: rank(place.unwrap_or(reading.first + at as u64)),
            names: Arc::clone(&names),
            values,
            previous: earlier.map(|earlier| earlier.as_ref()?.places.get(at)?.map(rank)),
        })
    };
    reading.rows.iter().enumerate().map(entry).collect()
}

impl Entry {
    /// Where places of an earlier day are told: its rank then, and how many places better it is now; neither if
    /// it had none.
    fn since(&self) -> Option<[Value; 2]> {
        let previous = self.previous?;
        let signed = |rank: u64| i64::try_from(rank).unwrap_or(i64::MAX);
        let change = previous.map(|then| signed(then) - signed(self.rank));
        Some([previous.into(), change.into()])
    }

    /// Its fields after the rank.
    fn fields(&self) -> impl Iterator<Item = (&str, &KeyValue)> {
        self.names.iter().map(String::as_str).zip(&self.values)
    }

    /// A field of it; nothing where it has none of this name.
    pub(crate) fn field(&self, name: &str) -> Option<Value> {
        if name == RANK {
            return Some(self.rank.into());
        }
        let (_, value) = self.fields().find(|(own, _)| *own == name)?;
        Some(key_value(value))
    }

    /// Adds its fields to others.
    pub(crate) fn put_into(&self, fields: &mut Map<String, Value>) {
        fields.insert(RANK.to_owned(), self.rank.into());
        fields.extend(
            self.fields()
                .map(|(name, value)| (name.to_owned(), key_value(value))),
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
                other => fields.serialize_entry(name, &key_value(other))?,
            }
        }
        for (name, value) in SINCE.iter().zip(self.since().into_iter().flatten()) {
            fields.serialize_entry(name, &value)?;
        }
        fields.end()
    }
}
