//! Cost of a run after few events compared with a run that computes everything.

use std::collections::BTreeMap;

use serde_json::Value;
use tests::installation::Installation;
use tests::process::done;
use tests::servers::Addresses;

use super::plays::generated_with;
use super::{ROUNDS, median, say};

const PARTITIONS: u32 = 4;
/// One event in this many is new.
const PART: u64 = 100;
/// One percent of the 28 days of the earlier events, directly after them.
const NEWEST: [&str; 4] = [
    "--from",
    "2026-01-01T00:00:00Z",
    "--until",
    "2026-01-01T06:43:12Z",
];

pub(crate) fn run(rows: u64) {
    let installation = Installation::with_partitions(PARTITIONS, &Addresses::default(), "");
    let few = rows / PART;
    println!("incremental: {rows} events in {PARTITIONS} partitions, and {few} more at a time");
    take_in(&installation, rows, 1, &[]);
    let first = batch(&installation, &[]);
    say_run("the run that takes all of them in", &first);
    let (mut newest, mut late) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        take_in(&installation, few, 2 * round + 2, &NEWEST);
        newest.push(after(
            &installation,
            &first,
            "after the newest, within a day",
        ));
        take_in(&installation, few, 2 * round + 3, &[]);
        late.push(after(
            &installation,
            &first,
            "after late ones, of all 28 days",
        ));
    }
    let full = batch(&installation, &["--full"]);
    say_run("a run with --full, of everything", &full);
    assert_eq!(
        full["rows_written"], 0,
        "what few events changed is what all of them give: {full}"
    );
    say(
        "newest: median ratio to the first run",
        format_percent(median(newest)),
    );
    say(
        "late: median ratio to the first run",
        format_percent(median(late)),
    );
}

fn take_in(installation: &Installation, rows: u64, seed: u64, between: &[&str]) {
    let file = generated_with(installation, &format!("{seed}.jsonl"), rows, seed, between);
    done(installation.data(), &["ingest", "plays", &file]);
    std::fs::remove_file(&file).expect("the file");
    let speed = ["speed", "--until-caught-up", "--source", "plays"];
    done(installation.data(), &speed);
}

/// Runs a batch after few events; returns its time relative to the first one.
fn after(installation: &Installation, first: &Value, what: &str) -> f64 {
    let run = batch(installation, &[]);
    assert_eq!(run["full"], false, "{run}");
    say_run(what, &run);
    let (before, now) = (stages(first), stages(&run));
    let by_stage: Vec<String> = now
        .iter()
        .map(|(stage, seconds)| match before.get(stage) {
            Some(before) => format!("{stage} {}", format_percent(seconds / before)),
            None => format!("{stage} {seconds:.2} s"),
        })
        .collect();
    let ratio = total(&run) / total(first);
    say("  of the first run", format_percent(ratio));
    say("  by stage", by_stage.join(", "));
    ratio
}

fn batch(installation: &Installation, more: &[&str]) -> Value {
    let args = [&["batch", "run", "--json"], more].concat();
    let report = done(installation.data(), &args);
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

fn say_run(what: &str, run: &Value) {
    say(
        what,
        format_args!(
            "{:.1} s, {} events read, {} rows written, {} as they were",
            total(run),
            run["rows_read"],
            run["rows_written"],
            run["rows_skipped"]
        ),
    );
    let each = stages(run);
    let each: Vec<String> = each.iter().map(|(of, s)| format!("{of} {s:.2}")).collect();
    say("  by stage, s", each.join(", "));
}

fn format_percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}
