//! Throughput of the complete system on real servers compared with the servers and bare clients in
//! the same run: `deploy/bench [plays] [speed] [incremental] [dumps] [serving] [boards]
//! [applications] [recounts] [scan] [restorate]`. `BACKSTITCH_BENCH_ROWS` sets the number of rows;
//! `applications` includes `recounts`.
//!
//! Nothing here is a test: figures depend on the machine, their ratios less.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod applications;
mod bare;
mod boards;
mod dumps;
mod incremental;
mod load;
mod minimal;
mod plays;
mod recounts;
mod restorate;
mod scan;
mod serving;
mod speed;
mod sql;
mod stored;
mod streams;

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Default number of events, and of rows to dump.
const ROWS: u64 = 5_000_000;
/// Default number of events whose counts are compared.
const COMPARED_ROWS: u64 = 10_000_000;
/// Maximum number of rows of the largest board.
const BOARD_ROWS: u64 = 1_000_000;
/// Number of rounds of each comparison; the variants alternate.
const ROUNDS: usize = 3;

fn main() {
    let named: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let said = std::env::var("BACKSTITCH_BENCH_ROWS").ok();
    let said = said.map(|rows| rows.parse::<u64>().expect("a number of rows"));
    let rows = said.unwrap_or(ROWS);
    let known = [
        "plays",
        "speed",
        "incremental",
        "dumps",
        "serving",
        "boards",
        "applications",
        "recounts",
        "scan",
        "restorate",
    ];
    assert!(
        named.iter().all(|name| known.contains(&&**name)),
        "there are the benchmarks {}, not {named:?}",
        known.join(", ")
    );
    let is_asked = |name: &str| named.is_empty() || named.iter().any(|one| one == name);
    if is_asked("plays") {
        plays::run(rows);
    }
    if is_asked("speed") {
        speed::run(rows);
    }
    if is_asked("incremental") {
        incremental::run(rows);
    }
    if is_asked("dumps") {
        dumps::run(rows);
    }
    if is_asked("serving") {
        serving::run(rows);
    }
    if is_asked("boards") {
        boards::run(rows.min(BOARD_ROWS));
    }
    if is_asked("applications") {
        applications::run(rows);
    }
    if is_asked("applications") || is_asked("recounts") {
        recounts::run(rows);
    }
    if is_asked("scan") {
        scan::run(rows);
    }
    if is_asked("restorate") {
        restorate::run(said.unwrap_or(COMPARED_ROWS));
    }
}

/// Measures a function; returns the time and its result.
fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begun = Instant::now();
    let done = work();
    (begun.elapsed(), done)
}

/// Returns the number of items per second.
#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn rate(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints a figure.
fn say(what: impl Display, figure: impl Display) {
    println!("{what:<64} {figure}");
}

/// Prints the rates of several rounds and their median.
fn say_rates(what: &str, rates: &[f64]) -> f64 {
    let median = median(rates.to_vec());
    let each: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
    say(what, format_args!("{median:.0}/s ({})", each.join(", ")));
    median
}
