//! Seeds of random histories.

use std::ops::Range;

/// Returns the seeds of the histories: `usual / divisor` of them, at least one.
/// `BACKSTITCH_TEST_HISTORIES` replaces `usual`, and `BACKSTITCH_TEST_SEED` sets the first seed;
/// `deploy/soak` sets both.
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
