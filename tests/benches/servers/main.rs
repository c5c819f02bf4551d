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
    let names: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let requested_rows = std::env::var("BACKSTITCH_BENCH_ROWS").ok();
    let requested_rows = requested_rows.map(|rows| rows.parse::<u64>().expect("a number of rows"));
    let rows = requested_rows.unwrap_or(ROWS);
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
        names.iter().all(|name| known.contains(&&**name)),
        "there are the benchmarks {}, not {names:?}",
        known.join(", ")
    );
    let is_requested =
        |name: &str| names.is_empty() || names.iter().any(|requested| requested == name);
    if is_requested("plays") {
        plays::run(rows);
    }
    if is_requested("speed") {
        speed::run(rows);
    }
    if is_requested("incremental") {
        incremental::run(rows);
    }
    if is_requested("dumps") {
        dumps::run(rows);
    }
    if is_requested("serving") {
        serving::run(rows);
    }
    if is_requested("boards") {
        boards::run(rows.min(BOARD_ROWS));
    }
    if is_requested("applications") {
        applications::run(rows);
    }
    if is_requested("applications") || is_requested("recounts") {
        recounts::run(rows);
    }
    if is_requested("scan") {
        scan::run(rows);
    }
    if is_requested("restorate") {
        restorate::run(requested_rows.unwrap_or(COMPARED_ROWS));
    }
}

/// Measures a function; returns the time and its result.
fn measure_time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begun = Instant::now();
    let result = work();
    (begun.elapsed(), result)
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
fn print_figure(label: impl Display, figure: impl Display) {
    println!("{label:<64} {figure}");
}

/// Prints the rates of several rounds and their median.
fn print_rates(label: &str, rates: &[f64]) -> f64 {
    let median = median(rates.to_vec());
    let by_round: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
    print_figure(
        label,
        format_args!("{median:.0}/s ({})", by_round.join(", ")),
    );
    median
}
