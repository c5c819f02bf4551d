//! Live counts of boards. The size of a board follows from its live count without a read of its
//! live entries.
//!
//! A live count is relative to one version of the key's boards and to a base epoch. It counts the
//! board entries that live entries of later epochs add to that version, and those that they remove
//! from it. It is stored beside the live entries and changes in the same step. So for any position
//! of the partition state it is either right or missing. Three rules guarantee this:
//!
//! - A change of a key's live entries names the live count that was stored when they were read
//!   ([`next_count`]). A write that does not name the current count invalidates it.
//! - A live count begins as a placeholder. The live entries of the key are read only after the
//!   placeholder is stored. Their sum replaces the placeholder if it is still there.
//! - A reader uses a live count only with the same version and base ([`matches_version`]). A
//!   version may be newer than its epoch says, so it is identified by its content.

use super::Epoch;

/// Returns the live count to store when the live entries of a key change: `next` if the stored
/// count is the one that the worker expects, else none.
#[must_use]
pub fn next_count<T: PartialEq>(
    stored: Option<&T>,
    expected: Option<&T>,
    next: Option<T>,
) -> Option<T> {
    if stored == expected { next } else { None }
}

/// Returns whether a live count applies to a read: both have the same version and the same base
/// epoch. A missing version equals a missing version.
#[must_use]
pub fn matches_version<R: PartialEq>(
    count_version: (Option<&R>, Epoch),
    read_version: (Option<&R>, Epoch),
) -> bool {
    count_version == read_version
}
