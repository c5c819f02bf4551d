//! What is wrong with rows that can't be taken.

use super::rows::{Cell, Sink};

/// What is wrong with a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// The line ends in the middle.
    CutOff,
    /// The line is no JSON: the values alone, with commas between them.
    NoJson,
    /// A field holds something else than it should, or nothing. In columns, a value of another type
    /// is missing: so a field that may be missing has other faults.
    Instead(&'static str, Cell<'static>),
}

impl Fault {
    /// The field is missing.
    pub(super) const fn missing(field: &'static str) -> Self {
        Self::Instead(field, Cell::Absent)
    }

    /// The number is a text.
    pub(super) const fn quoted(field: &'static str) -> Self {
        Self::Instead(field, Cell::Json("\"17\""))
    }

    /// The integer has a fraction.
    pub(super) const fn fractional(field: &'static str) -> Self {
        Self::Instead(field, Cell::Json("17.5"))
    }

    /// The integer is beyond 64 bits.
    pub(super) const fn huge(field: &'static str) -> Self {
        Self::Instead(field, Cell::Json("99000000000000000000"))
    }

    /// The date does not exist.
    pub(super) const fn no_date(field: &'static str) -> Self {
        Self::Instead(field, Cell::Json("\"2025-02-30T12:00:00Z\""))
    }

    /// The text is none of those that are expected.
    pub(super) const fn text(field: &'static str, text: &'static str) -> Self {
        Self::Instead(field, Cell::Text(text))
    }

    /// The integer is impossible.
    pub(super) const fn int(field: &'static str, n: i64) -> Self {
        Self::Instead(field, Cell::Int(n))
    }
}

/// Hands fields on, with what is wrong with them.
///
/// What is wrong with a line as a whole can't be seen in fields: then the first one is missing.
pub(super) struct Spoiled<'a, S> {
    sink: &'a mut S,
    fault: Fault,
    is_first: bool,
}

impl<'a, S: Sink> Spoiled<'a, S> {
    pub(super) fn new(sink: &'a mut S, fault: Fault) -> Self {
        Self {
            sink,
            fault,
            is_first: true,
        }
    }
}

impl<S: Sink> Sink for Spoiled<'_, S> {
    fn put(&mut self, name: &'static str, cell: Cell<'_>) {
        let is_first = std::mem::take(&mut self.is_first);
        let cell = match self.fault {
            Fault::Instead(field, other) if field == name => other,
            Fault::CutOff | Fault::NoJson if is_first => Cell::Absent,
            _ => cell,
        };
        self.sink.put(name, cell);
    }
}
