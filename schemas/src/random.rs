//! The random number generator that services receive as a parameter, so that tests are repeatable.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of random numbers.
pub trait RandomNumbers: Debug + Send + Sync {
    /// Returns the next number, uniformly distributed over 64 bits and independent of earlier ones.
    fn next_u64(&self) -> u64;
}

/// A generator that is deterministic for a seed: `SplitMix64` (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub struct SeededRandom(AtomicU64);

impl SeededRandom {
    /// Creates a generator from a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl RandomNumbers for SeededRandom {
    fn next_u64(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let state = self.0.fetch_add(STEP, Ordering::Relaxed);
        let mixed = state.wrapping_add(STEP);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_numbers() {
        let draws = SeededRandom::new(1_234_567);
        let drawn = [draws.next_u64(), draws.next_u64(), draws.next_u64()];
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(drawn, published);
    }
}
