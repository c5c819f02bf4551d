//! What all sources have in common: rows one after the other, and each as named values.
//!
//! A record tells its fields to a [`Sink`] and knows no format; a format is a sink and knows no
//! source.

use super::fault::{Fault, Spoiled};

/// A value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cell<'a> {
    /// The field is not there.
    Absent,
    Int(i64),
    Number(f64),
    Text(&'a str),
    /// Milliseconds since the Unix epoch.
    Time(i64),
    Bool(bool),
    /// Something that is of another type than the field: JSON as it is written. In a typed column
    /// nothing stands in its place.
    Json(&'a str),
}

impl From<i64> for Cell<'_> {
    fn from(n: i64) -> Self {
        Self::Int(n)
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Cell<'_> {
    fn from(is: bool) -> Self {
        Self::Bool(is)
    }
}

impl<'a, T: Into<Self>> From<Option<T>> for Cell<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Cell::Absent, Into::into)
    }
}

/// Takes the fields of a row.
pub(crate) trait Sink {
    /// Takes the next field. Every field of the source comes, in the order of
    /// [`fields`](crate::ingest::fields), also one that is absent.
    fn put(&mut self, name: &'static str, cell: Cell<'_>);
}

/// What a row says.
pub(crate) trait Record {
    /// Tells all fields.
    fn put(&self, sink: &mut impl Sink);
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row<R> {
    /// What it says, or would say if it were not malformed.
    pub(crate) record: R,
    /// What is wrong with it, if anything is.
    pub(crate) fault: Option<Fault>,
    /// Whether it repeats an earlier row, as that was or edited.
    pub(crate) repeated: bool,
    /// Whether it is a newer version of an earlier row.
    pub(crate) edited: bool,
    /// Whether it comes late: an old event, or an older version than one that came before.
    pub(crate) late: bool,
}

impl<R> Row<R> {
    /// A row that is like most.
    pub(super) fn new(record: R) -> Self {
        Self {
            record,
            fault: None,
            repeated: false,
            edited: false,
            late: false,
        }
    }
}

impl<R: Record> Row<R> {
    /// Tells all fields, with what is wrong with them.
    pub(super) fn put(&self, sink: &mut impl Sink) {
        match self.fault {
            None => self.record.put(sink),
            Some(fault) => self.record.put(&mut Spoiled::new(sink, fault)),
        }
    }
}

/// The rows of a source.
pub(super) trait Rows {
    /// What a row says.
    type Record: Record;
    /// The next row.
    fn next(&mut self) -> Row<Self::Record>;
}

/// Which fractions of the rows are out of the ordinary.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Mix {
    /// Rows that repeat an earlier one. Of an entity half of them are edits: newer versions.
    pub(crate) duplicates: f64,
    /// Events that are hours or days older than their neighbours; versions of an entity that are
    /// older than one that came before.
    pub(crate) late: f64,
    /// Rows that can't be taken.
    pub(crate) malformed: f64,
}
