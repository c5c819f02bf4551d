//! The reference engines, each in a process of its own that runs `reference.py`.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::decoded::{Totals, totals};
use super::input::Input;
use super::job::Job;
use super::ours::flush_disk;
use super::{Measurement, OURS, THREADS, recreate_folder};

/// The default of `BACKSTITCH_BENCH_ENGINES`. Results are compared with the first engine.
const ENGINES: &str = "duckdb duckdb-sorted polars pyspark";

/// The value that selects no reference engine.
const NONE: &str = "none";

/// Returns the reference engines in the order of the table.
pub(crate) fn engines() -> Vec<String> {
    let engines = std::env::var("BACKSTITCH_BENCH_ENGINES").unwrap_or_else(|_| ENGINES.to_owned());
    if engines.trim() == NONE {
        return Vec::new();
    }
    engines.split_whitespace().map(str::to_owned).collect()
}

/// Measures a job on an engine, with results in a folder of `work`.
pub(crate) fn measure(engine: &str, job: &Job, input: &Input, work: &Path) -> Measurement {
    let out = &work.join(engine);
    let spill = work.join("spill");
    recreate_folder(&spill);
    recreate_folder(out);
    flush_disk();
    let output = python("reference.py")
        .arg(engine)
        .arg(job.name)
        .arg(input.files())
        .arg(job.folder())
        .arg(out)
        .arg(spill)
        .arg(THREADS.to_string())
        .output();
    Measurement::parse(&parse_output(engine, output))
}

/// Returns the number of rows of a job's results, which must be equal for all engines.
pub(crate) fn expect_same(job: &Job, work: &Path, engines: &[String]) -> u64 {
    let first = engines.first().expect("a reference");
    let others = engines.iter().skip(1).map(String::as_str);
    let mut rows = 0;
    for other in others.chain(std::iter::once(OURS)) {
        let spill = work.join("spill");
        recreate_folder(&spill);
        let output = python("compare.py")
            .arg(job.name)
            .arg(job.folder())
            .arg(work.join(first))
            .arg(work.join(other))
            .arg(spill)
            .output();
        let report = parse_output("compare.py", output);
        rows = report["rows"].as_u64().expect("a number of rows");
    }
    rows
}

/// Checks that a job's aggregates equal DuckDB's totals of the events in every bucket, and returns
/// their number of rows. Used for inputs too large to compare row by row.
pub(crate) fn expect_same_totals(job: &Job, input: &Input, work: &Path) -> u64 {
    let spill = work.join("spill");
    recreate_folder(&spill);
    let output = python("totals.py")
        .arg(input.files())
        .arg(job.folder())
        .arg(spill)
        .arg(THREADS.to_string())
        .output();
    let expected: Totals =
        serde_json::from_value(parse_output("totals.py", output)).expect("totals by view");
    let (actual, rows) = totals(job, &work.join("data"));
    assert_eq!(expected, actual, "what each bucket of each view has");
    rows
}

fn python(program: &str) -> Command {
    let python = std::env::var_os("BACKSTITCH_BENCH_PYTHON").unwrap_or_else(|| "python3".into());
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/batch");
    let mut command = Command::new(python);
    command.arg(programs.join(program)).stderr(Stdio::inherit());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Parses the last line printed by a program as JSON.
fn parse_output(program: &str, output: std::io::Result<Output>) -> Value {
    let output = output.expect("starting Python");
    assert!(output.status.success(), "{program}: {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).expect("JSON")
}
