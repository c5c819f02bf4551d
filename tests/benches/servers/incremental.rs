//! Cost of a run after few events compared with a run that computes everything.

use std::collections::BTreeMap;

use serde_json::Value;
use tests::installation::Installation;
use tests::process::run_ok;
use tests::servers::Addresses;

use super::plays::generate_plays_with;
use super::{ROUNDS, median, print_figure};

const PARTITIONS: u32 = 4;
/// One event in this many is new.
const NEW_EVENT_INTERVAL: u64 = 100;
/// One percent of the 28 days of the earlier events, directly after them.
const NEWEST: [&str; 4] = [
    "--from",
    "2026-01-01T00:00:00Z",
    "--until",
    "2026-01-01T06:43:12Z",
];

pub(crate) fn run(rows: u64) {
    let installation = Installation::with_partitions(PARTITIONS, &Addresses::default(), "");
    let new_rows = rows / NEW_EVENT_INTERVAL;
    println!(
        "incremental: {rows} events in {PARTITIONS} partitions, and {new_rows} more at a time"
    );
    ingest_and_count(&installation, rows, 1, &[]);
    let first = batch(&installation, &[]);
    print_run("the run that takes all of them in", &first);
    let (mut newest, mut late) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        ingest_and_count(&installation, new_rows, 2 * round + 2, &NEWEST);
        newest.push(measure_after(
            &installation,
            &first,
            "after the newest, within a day",
        ));
        ingest_and_count(&installation, new_rows, 2 * round + 3, &[]);
        late.push(measure_after(
            &installation,
            &first,
            "after late ones, of all 28 days",
        ));
    }
    let full = batch(&installation, &["--full"]);
    print_run("a run with --full, of everything", &full);
    assert_eq!(
        full["rows_written"], 0,
        "what few events changed is what all of them give: {full}"
    );
    print_figure(
        "newest: median ratio to the first run",
        format_percent(median(newest)),
    );
    print_figure(
        "late: median ratio to the first run",
        format_percent(median(late)),
    );
}

fn ingest_and_count(installation: &Installation, rows: u64, seed: u64, between: &[&str]) {
    let file = generate_plays_with(installation, &format!("{seed}.jsonl"), rows, seed, between);
    run_ok(installation.data(), &["ingest", "plays", &file]);
    std::fs::remove_file(&file).expect("the file");
    let speed = ["speed", "--until-caught-up", "--source", "plays"];
    run_ok(installation.data(), &speed);
}

/// Runs a batch after few events; returns its time relative to the first one.
fn measure_after(installation: &Installation, first: &Value, label: &str) -> f64 {
    let run = batch(installation, &[]);
    assert_eq!(run["full"], false, "{run}");
    print_run(label, &run);
    let (first_stages, run_stages) = (stages(first), stages(&run));
    let by_stage: Vec<String> = run_stages
        .iter()
        .map(|(stage, seconds)| match first_stages.get(stage) {
            Some(first_stages) => format!("{stage} {}", format_percent(seconds / first_stages)),
            None => format!("{stage} {seconds:.2} s"),
        })
        .collect();
    let ratio = total(&run) / total(first);
    print_figure("  of the first run", format_percent(ratio));
    print_figure("  by stage", by_stage.join(", "));
    ratio
}

fn batch(installation: &Installation, extra_args: &[&str]) -> Value {
    let args = [&["batch", "run", "--json"], extra_args].concat();
    let report = run_ok(installation.data(), &args);
    serde_json::from_str(&report).expect("a report")
}

fn stages(run: &Value) -> BTreeMap<&str, f64> {
    let stages = run["seconds"].as_object().expect("stages").iter();
    stages
        .map(|(stage, seconds)| (&**stage, seconds.as_f64().expect("seconds")))
        .collect()
}

fn total(run: &Value) -> f64 {
    stages(run).values().sum()
}

fn print_run(label: &str, run: &Value) {
    print_figure(
        label,
        format_args!(
            "{:.1} s, {} events read, {} rows written, {} as they were",
            total(run),
            run["rows_read"],
            run["rows_written"],
            run["rows_skipped"]
        ),
    );
    let seconds_by_stage = stages(run);
    let seconds_by_stage: Vec<String> = seconds_by_stage
        .iter()
        .map(|(stage, s)| format!("{stage} {s:.2}"))
        .collect();
    print_figure("  by stage, s", seconds_by_stage.join(", "));
}

fn format_percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}
