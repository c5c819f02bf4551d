//! Rows of a board as answers show them, as values until they are written.

use std::ops::Range;
use std::sync::Arc;

use jobs::{Board, Job};
use schemas::key::{KeyError, KeyValue};
use schemas::shown::key_value;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::read::BoardReading;

/// The name of the first field.
const RANK: &str = "rank";

/// Rows of a board: rank, member, score, and what the view shows besides.
#[derive(Debug)]
struct Shown {
    ranks: Vec<u64>,
    /// Of the fields after the rank.
    names: Vec<String>,
    /// By row, in the order of the names.
    values: Vec<Vec<KeyValue>>,
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
    /// The rows of a reading.
    pub(crate) fn of(job: &Job<Board>, reading: &BoardReading) -> Result<Self, KeyError> {
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
        let mut fields = serializer.serialize_map(Some(1 + self.shown.names.len()))?;
        fields.serialize_entry(RANK, &self.rank())?;
        for (name, value) in self.fields() {
            match value {
                KeyValue::Int(n) => fields.serialize_entry(name, n)?,
                KeyValue::Text(text) => fields.serialize_entry(name, text)?,
                other => fields.serialize_entry(name, &key_value(other))?,
            }
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
