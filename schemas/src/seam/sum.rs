//! Sums that a slot keeps of live states, so that nobody needs to read these to know how many rows a
//! board has.
//!
//! A sum is *against* an edition of its key's boards: it says what the live states of epochs after a
//! base put on the board, and what they take away of that edition. It is kept beside the states and
//! changes in the step in which they do, so it is right for any position of the slot, or missing. Three
//! rules keep it so:
//!
//! - Who changes states of a key says which sum of it was kept when the states of before were read, by
//!   a name that no other sum has ([`kept`]). Whoever does not know the sum that is there ends it.
//! - A sum begins as a mark. Only once the mark is there the states of the key are read, and what they
//!   add up to takes the place of the mark, if that is still there.
//! - A reader uses a sum only on the edition and the base that it is against ([`joins`]): an edition
//!   may be newer than its epoch says, so it is told by what it holds.

use super::Epoch;

/// What is kept of a key's sum by the step that changes its states: what takes the place of the sum
/// that is there, if that is the one which the worker believes to be there; else nothing.
#[must_use]
pub fn kept<T: PartialEq>(there: Option<&T>, believed: Option<&T>, next: Option<T>) -> Option<T> {
    if there == believed { next } else { None }
}

/// Whether a sum that is against an edition and a base counts for a read of that edition on that base.
/// No edition is one too.
#[must_use]
pub fn joins<R: PartialEq>(against: (Option<&R>, Epoch), read: (Option<&R>, Epoch)) -> bool {
    against == read
}
