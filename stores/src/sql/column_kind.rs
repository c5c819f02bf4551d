//! The kinds of values that a column of an app's view must represent.

use super::rows::Column;

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
    pub(super) fn from_column(name: &str, column: &Column) -> Self {
        match column {
            Column::Ints(_) if name.ends_with("_us") => Self::TimestampUs,
            Column::Ints(_) => Self::Integer,
            Column::Floats(_) => Self::Fraction,
            Column::Texts(_) => Self::Text,
            Column::Booleans(_) => Self::Boolean,
        }
    }
}
