//! Live rows of one view: deltas of an aggregate, or live entries of boards.

use arrow::array::{Array, BinaryArray, Int64Array};

/// The deltas that a micro-batch adds to one view. No two rows have the same group and row key.
#[derive(Debug, Clone)]
pub struct Deltas {
    /// The view, with its version: [`jobs` name and version joined by `@`](schemas::key).
    pub view: String,
    /// The columns that make up groups. Rows of views with equal columns may be stored together.
    pub grouped_by: String,
    /// Encoded group keys.
    pub groups: BinaryArray,
    /// Encoded row keys within the group.
    pub rows: BinaryArray,
    /// The deltas.
    pub counts: Int64Array,
}

/// The live entries that a micro-batch sets in one view of boards: for each key and member that it
/// touched, the new entry. No two rows have the same key and member.
#[derive(Debug, Clone)]
pub struct Entries {
    /// The view, with its version.
    pub view: String,
    /// Encoded keys.
    pub keys: BinaryArray,
    /// Encoded members.
    pub members: BinaryArray,
    /// The entries; null if the member has nothing under the key any more.
    pub entries: BinaryArray,
}

impl Entries {
    /// The entry at an index.
    #[must_use]
    pub fn entry(&self, index: usize) -> Option<&[u8]> {
        self.entries
            .is_valid(index)
            .then(|| self.entries.value(index))
    }
}
