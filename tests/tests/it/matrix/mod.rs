//! The fault matrix: faults of processes and servers in a whole installation on real servers, while
//! questions are asked all the time. Each answer must be exact for its position, and in the end all
//! data must be present. Each test verifies that its fault happened.
//!
//! Seeds are fixed. `BACKSTITCH_TEST_SEED` sets another one, as `deploy/soak` does for hours.

mod damage;
mod hangs;
mod log;
mod proxied_servers;
mod redis;
mod runs;
mod scene;
mod views;
mod workers;

/// The seed of random choices.
fn seed(offset: u64) -> u64 {
    let set = std::env::var("BACKSTITCH_TEST_SEED").ok();
    let set: Option<u64> = set.map(|seed| seed.parse().expect("a seed"));
    set.map_or(offset, |set| set.wrapping_mul(1000) + offset)
}

/// Prints what happened, for readers of the test's output.
#[expect(clippy::print_stderr, reason = "a test reports its faults")]
fn print_result(fault: &str, happened: &str) {
    eprintln!("matrix: {fault}: {happened}");
}
