//! Rows that become JSON objects.
//!
//! The fields of a record are those of its source, in the order of
//! [`fields`](crate::ingest::fields::fields).

use serde::Serialize;

use super::fault::Fault;

/// A generated row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row<R> {
    /// Fields of the row without its fault.
    pub(crate) record: R,
    pub(crate) fault: Option<Fault>,
    /// True if it repeats an earlier row, unchanged or edited.
    pub(crate) is_repeated: bool,
    /// True if it is a newer version of an earlier row.
    pub(crate) is_edited: bool,
    /// True for an old event, or a version older than an earlier row.
    pub(crate) is_late: bool,
}

impl<R> Row<R> {
    /// An ordinary row.
    pub(super) fn new(record: R) -> Self {
        Self {
            record,
            fault: None,
            is_repeated: false,
            is_edited: false,
            is_late: false,
        }
    }
}

/// The rows of a source, as an endless stream.
pub(super) trait GeneratedRows {
    /// Fields of a row.
    type Record: Serialize;
    /// Generates the next row.
    fn next_row(&mut self) -> Row<Self::Record>;
}

/// Fractions of unusual rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RowMix {
    /// Rows that repeat an earlier one. For entities, half of them are newer versions.
    pub(crate) duplicates: f64,
    /// Events that are hours or days older than their neighbors; superseded versions of an entity.
    pub(crate) late: f64,
    /// Malformed rows.
    pub(crate) malformed: f64,
}
