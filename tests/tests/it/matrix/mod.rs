//! The fault matrix: what may happen to processes and servers happens to a whole installation on
//! real servers, while questions are asked all the time. Each answer that was given must be exact for
//! the position that it names; afterwards everything is there again. And each test shows that its fault
//! did happen.
//!
//! Seeds are fixed; `BACKSTITCH_TEST_SEED` sets another one, as `deploy/soak` does for hours.

mod damage;
mod hangs;
mod log;
mod redis;
mod rig;
mod runs;
mod scene;
mod views;
mod workers;

/// What random choices begin with.
fn seed(own: u64) -> u64 {
    let set = std::env::var("BACKSTITCH_TEST_SEED").ok();
    let set: Option<u64> = set.map(|seed| seed.parse().expect("a seed"));
    set.map_or(own, |set| set.wrapping_mul(1000) + own)
}

/// Says what happened, for whoever looks.
#[expect(clippy::print_stderr, reason = "a test says what it did")]
fn tell(fault: &str, happened: &str) {
    eprintln!("matrix: {fault}: {happened}");
}
