//! Rows one after the other, each of which becomes a JSON object.
//!
//! The fields of a record are those of its source, in the order of [`fields`](crate::ingest::fields::fields).

use serde::Serialize;

use super::fault::Fault;

/// One row.
#[derive(Debug, Clone, PartialEq)]
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

/// The rows of a source.
pub(super) trait Rows {
    /// What a row says.
    type Record: Serialize;
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
