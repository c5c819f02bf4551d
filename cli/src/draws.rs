//! The one place where a random number is taken from the machine.

use std::hash::{BuildHasher, Hasher, RandomState};

use schemas::draws::SeededDraws;

/// Numbers that nobody knows before.
pub(crate) fn unforeseen() -> SeededDraws {
    // The keys of a hash table are made of what the system gives at random.
    SeededDraws::new(RandomState::new().build_hasher().finish())
}
