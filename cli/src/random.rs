//! The only module that reads random numbers of the operating system.

use std::hash::{BuildHasher, Hasher, RandomState};

use schemas::random::SeededRandom;

/// Creates random numbers with a seed from the operating system.
pub(crate) fn create_seeded_random() -> SeededRandom {
    // Hash table keys come from the operating system's random numbers.
    SeededRandom::new(RandomState::new().build_hasher().finish())
}
