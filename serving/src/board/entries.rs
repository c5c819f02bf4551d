//! Rows of a board as answers show them, as values until they are written.

use std::ops::Range;
use std::sync::Arc;

use jobs::{Board, Job};
use schemas::key::{KeyError, KeyValue};
use schemas::shown::key_value;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::earlier::Earlier;
use super::read::BoardReading;

/// The name of the first field.
const RANK: &str = "rank";
/// The names of the last fields, where the places of an earlier day are told.
pub(crate) const SINCE: [&str; 2] = ["previous_rank", "change"];

/// Rows of a board: rank, member, score, and what the view shows besides.
#[derive(Debug)]
struct Shown {
    ranks: Vec<u64>,
    /// Of the fields after the rank.
    names: Vec<String>,
    /// By row, in the order of the names.
    values: Vec<Vec<KeyValue>>,
    /// Where the places of an earlier day are told: by row, the rank of then if it had one.
    previous: Option<Vec<Option<u64>>>,
}

/// Some rows that follow each other.
#[derive(Debug, Clone)]
pub(crate) struct Entries {
    shown: Arc<Shown>,
    rows: Range<usize>,
}

/// One row.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    shown: Arc<Shown>,
    row: usize,
}

impl Entries {
    /// The rows of a reading; where it is asked for, with the ranks that they had at the end of an earlier day.
    pub(crate) fn of(
        job: &Job<Board>,
        reading: &BoardReading,
        earlier: Option<&Option<Earlier>>,
    ) -> Result<Self, KeyError> {
        let rank = |place: &Option<u64>| place.map(|place| place + 1);
        let ranks = |earlier: &Earlier| earlier.places.iter().map(rank).collect();
        let previous = earlier.map(|earlier| earlier.as_ref().map_or_else(Vec::new, ranks));
        let shapes = [job.member(), job.score(), job.shown()];
        let columns = shapes.into_iter().flat_map(|shape| &shape.0);
        let names = columns.map(|column| column.name.clone()).collect();
        let mut values = Vec::with_capacity(reading.rows.len());
        for row in &reading.rows {
            let mut of_row = job.member().decode_values(&row.member)?;
            of_row.extend(job.score().decode_values(&row.score)?);
            // What is only filtered by comes after what is shown.
            let payload = job.payload().decode_values(&row.payload)?;
            of_row.extend(payload.into_iter().take(job.shown().0.len()));
            values.push(of_row);
        }
        let ranks: Vec<u64> = match &reading.places {
            Some(places) => places.iter().map(|place| place + 1).collect(),
            None => (reading.first + 1..).take(values.len()).collect(),
        };
        let rows = 0..values.len().min(ranks.len());
        let shown = Arc::new(Shown {
            ranks,
            names,
            values,
            previous,
        });
        Ok(Self { shown, rows })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> {
        let shown = Arc::clone(&self.shown);
        self.rows.clone().map(move |row| Entry {
            shown: Arc::clone(&shown),
            row,
        })
    }

    /// The row at a place among these.
    pub(crate) fn get(&self, at: usize) -> Option<Entry> {
        let row = self.rows.clone().nth(at)?;
        let shown = Arc::clone(&self.shown);
        Some(Entry { shown, row })
    }

    /// Only the row at a place among these.
    pub(crate) fn only(&self, at: usize) -> Self {
        let mut rows = self.rows.clone();
        let row = rows.nth(at).unwrap_or(self.rows.end);
        Self {
            shown: Arc::clone(&self.shown),
            rows: row..self.rows.end.min(row + 1),
        }
    }
}

impl Entry {
    fn rank(&self) -> Option<u64> {
        self.shown.ranks.get(self.row).copied()
    }

    /// Where places of an earlier day are told: its rank then, and how many places better it is now; neither if
    /// it had none.
    fn since(&self) -> Option<[Value; 2]> {
        let previous = self.shown.previous.as_ref()?.get(self.row).copied();
        let previous = previous.flatten();
        let signed = |rank: u64| i64::try_from(rank).unwrap_or(i64::MAX);
        let both = previous.zip(self.rank());
        let change = both.map(|(then, now)| signed(then) - signed(now));
        Some([previous.into(), change.into()])
    }

    /// Its fields after the rank.
    fn fields(&self) -> impl Iterator<Item = (&str, &KeyValue)> {
        let values = self.shown.values.get(self.row).into_iter().flatten();
        self.shown.names.iter().map(String::as_str).zip(values)
    }

    /// A field of it; nothing where it has none of this name.
    pub(crate) fn field(&self, name: &str) -> Option<Value> {
        if name == RANK {
            return self.rank().map(Value::from);
        }
        if let Some(at) = SINCE.iter().position(|own| *own == name)
            && let Some(since) = self.since()
        {
            return since.into_iter().nth(at);
        }
        let (_, value) = self.fields().find(|(own, _)| *own == name)?;
        Some(key_value(value))
    }

    /// Adds its fields to others.
    pub(crate) fn put_into(&self, fields: &mut Map<String, Value>) {
        fields.insert(RANK.to_owned(), self.rank().into());
        fields.extend(
            self.fields()
                .map(|(name, value)| (name.to_owned(), key_value(value))),
        );
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        fields.serialize_entry(RANK, &self.rank())?;
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

impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(Some(self.rows.len()))?;
        for entry in self.iter() {
            rows.serialize_element(&entry)?;
        }
        rows.end()
    }
}
