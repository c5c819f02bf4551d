//! The kinds of values that a column of an app's view must represent.

use super::rows::ColumnValues;

/// The required type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// An integer of up to 64 bits.
    Integer,
    /// Microseconds since 1970, as an integer.
    TimestampUs,
    /// A number with a fraction.
    Fraction,
    Text,
    Boolean,
}

impl ColumnKind {
    pub(super) fn from_column(name: &str, column: &ColumnValues) -> Self {
        match column {
            ColumnValues::Ints(_) if name.ends_with("_us") => Self::TimestampUs,
            ColumnValues::Ints(_) => Self::Integer,
            ColumnValues::Floats(_) => Self::Fraction,
            ColumnValues::Texts(_) => Self::Text,
            ColumnValues::Booleans(_) => Self::Boolean,
        }
    }
}
