//! The random histories that a law tries.

use std::ops::Range;

/// The seeds of the histories: one in `divisor` of `usual`, at least one. `BACKSTITCH_TEST_HISTORIES` replaces `usual`,
/// and `BACKSTITCH_TEST_SEED` sets where the seeds begin; `deploy/soak` sets both.
///
/// # Panics
/// If a variable is not a number.
#[must_use]
pub fn history_seeds(usual: u64, divisor: u64) -> Range<u64> {
    let count = number("BACKSTITCH_TEST_HISTORIES").unwrap_or(usual);
    let first = number("BACKSTITCH_TEST_SEED").map_or(0, |seed| seed.wrapping_mul(1_000_000));
    first..first + count.div_ceil(divisor)
}

fn number(variable: &str) -> Option<u64> {
    let set = std::env::var(variable).ok()?;
    Some(
        set.parse()
            .unwrap_or_else(|_| panic!("{variable}: {set:?} is not a number")),
    )
}
