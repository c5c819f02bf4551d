//! Throughput of the batch layer's computation compared with DuckDB, Polars and PySpark on the same
//! Parquet files: `deploy/bench-batch [plays] [efforts] [authorizations] [peer-plays]
//! [peer-boards]`. `BACKSTITCH_BENCH_ROWS` sets the number of rows.
//!
//! Each measurement is a process of its own. Measurements of Backstitch are this program again,
//! selected by its first argument.
//!
//! Nothing here is a test, but Backstitch's result must equal DuckDB's row by row.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints its figures"
)]

mod decoded;
mod entity_dump;
mod input;
mod job;
mod machine;
mod ours;
mod reference;
mod table;

use std::path::{Path, PathBuf};

use serde_json::Value;

use input::Input;
use job::{JOBS, Job};
use table::Rounds;

/// The same allocator as in the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Default number of plays and efforts; authorizations are half as many.
const ROWS: u64 = 10_000_000;
/// Default number of rounds. The engines alternate within a round.
const ROUNDS: usize = 3;
/// The label of Backstitch in the table.
const OURS: &str = "ours";
/// Threads of every engine.
const THREADS: usize = 2;

/// The result of one measurement.
#[derive(Debug, Clone)]
struct Measurement {
    seconds: f64,
    /// Peak memory of the engine's processes during the computation.
    peak_bytes: u64,
    /// The engine's version.
    version: String,
}

impl Measurement {
    /// Parses the output of a process.
    fn parse(output: &Value) -> Self {
        Self {
            seconds: output["seconds"].as_f64().expect("seconds"),
            peak_bytes: output["peak_bytes"].as_u64().expect("bytes"),
            version: output["version"].as_str().expect("a version").to_owned(),
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    if let [command, job, folder] = arguments.as_slice() {
        let (job, folder) = (|| Job::find(job), Path::new(folder));
        match command.as_str() {
            ours::COMMAND => return println!("{}", ours::measure(job(), folder)),
            input::COMMAND => return input::take_snapshot(job().source, folder),
            _ => {}
        }
    }
    let requested: Vec<&Job> = arguments.iter().map(|name| Job::find(name)).collect();
    let rows = number("BACKSTITCH_BENCH_ROWS").unwrap_or(ROWS);
    let rounds = number("BACKSTITCH_BENCH_ROUNDS").map_or(ROUNDS, |n| {
        usize::try_from(n).expect("a number of rounds").max(1)
    });
    let folder = folder();
    println!("{}", machine::describe());
    for job in &JOBS {
        if requested.is_empty()
            || requested
                .iter()
                .any(|requested_job| requested_job.name == job.name)
        {
            run(job, rows, rounds, &folder);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok();
    value.map(|number| number.parse().expect("a number"))
}

/// Returns the folder of inputs, results and spill files.
fn folder() -> PathBuf {
    let value = std::env::var_os("BACKSTITCH_BENCH_FOLDER").map(PathBuf::from);
    value.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-batch"))
}

/// Runs one job on every engine in turn. The first engine changes from round to round.
fn run(job: &Job, rows: u64, rounds: usize, folder: &Path) {
    let input = Input::prepare(job.source, rows, folder);
    let work = folder.join("work");
    recreate_folder(&work);
    let engines = reference::engines();
    let mut figures = Rounds::new(engines.iter().map(String::as_str));
    let count = engines.len() + 1;
    let mut checked = String::new();
    for round in 0..rounds {
        input.warm();
        for turn in 0..count {
            let engine = (turn + round) % count;
            let name = engine.checked_sub(1).and_then(|index| engines.get(index));
            let measured = match name {
                None => ours::measure_in_process(job, &input, &work),
                Some(name) => reference::measure(name, job, &input, &work),
            };
            figures.add(engine, measured);
        }
        if round == 0 && engines.is_empty() {
            let rows = reference::expect_same_totals(job, &input, &work);
            checked = format!("The {rows} rows add up to the same in each bucket of each view.");
        } else if round == 0 {
            decoded::write(job, &work.join("data"), &work.join(OURS));
            let rows = reference::expect_same(job, &work, &engines);
            checked = format!("Every result has the same {rows} rows.");
        }
    }
    let title = format!("`{}`: {}", job.name, input.description());
    println!("{}", figures.table(&title, &checked));
    std::fs::remove_dir_all(&work).expect("deleting results");
}

/// Creates a folder, deleting an existing one.
fn recreate_folder(folder: &Path) {
    if folder.exists() {
        std::fs::remove_dir_all(folder).expect("deleting the folder");
    }
    std::fs::create_dir_all(folder).expect("a folder");
}
