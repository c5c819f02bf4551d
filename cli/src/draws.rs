//! The only source of randomness from the operating system.

use std::hash::{BuildHasher, Hasher, RandomState};

use schemas::random::SeededRandom;

/// Random numbers with a seed from the operating system.
pub(crate) fn unforeseen() -> SeededRandom {
    // Hash table keys come from the operating system's random numbers.
    SeededRandom::new(RandomState::new().build_hasher().finish())
}
