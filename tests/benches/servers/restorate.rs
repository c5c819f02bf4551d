//! The Reconciler (`backstitch reconcile`): compared keys per second and memory by the kind of
//! expected counts, compared with reading the same table and joining the same files directly; and
//! the time to detect and repair each kind of damage.

mod boards;
mod damage;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use arrow::datatypes::{DataType, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures::TryStreamExt;
use jobs::tables::{TableGeneration, table_name};
use parquet::arrow::ArrowWriter;
use serde_json::Value;
use std::io::{BufWriter, Write};
use tests::installation::Installation;
use tests::process::{Process, run_ok};
use tests::servers::Addresses;
use tests::world::World;
use tokio::runtime::Runtime;

use super::{measure_time, print_figure, rate, scan};

/// A view with nearly one key for each event.
const VIEW: &str = "plays_detail";
const PARTITIONS: u32 = 4;
/// Number of past events for each event that arrived through the log since.
const PAST: u64 = 20;

pub(crate) fn run(rows: u64) {
    let installation = Installation::with_partitions(PARTITIONS, &Addresses::default(), "");
    println!(
        "restorate: {rows} events of the past and {} since, in {PARTITIONS} partitions",
        rows / PAST
    );
    import_events(&installation, rows);
    let runtime = Runtime::new().expect("a runtime");
    let archive = compare(&installation, "archive", VIEW, "archive", 0);
    let table = find_table(&runtime.block_on(installation.world()), VIEW);
    let namespace = &installation.options().namespace;
    let (took, table_rows) = measure_time(|| runtime.block_on(scan::read_bare(namespace, &table)));
    print_figure(
        "  the driver alone reads the rows",
        figure(table_rows, took),
    );
    let bare = rate(table_rows, took);
    print_figure("  ratio", format_args!("{:.2}", archive.rate() / bare));
    files(&installation, &runtime);
    damage::run(&installation, &runtime);
    boards::run(rows, &runtime);
}

/// Backfills past events into the archive, runs a batch, and ingests newer events that live state
/// counts.
fn import_events(installation: &Installation, rows: u64) {
    let data = installation.data();
    let first = generate_plays(installation, "first.parquet", 1, 3);
    run_ok(data, &["ingest", "plays", &first]);
    speed(installation);
    let past = generate_plays(installation, "past.parquet", rows, 1);
    run_ok(data, &["backfill", "plays", &past]);
    let (took, _) = measure_time(|| run_ok(data, &["batch", "run"]));
    print_figure(
        "the run that takes them in, s",
        format_args!("{:.1}", took.as_secs_f64()),
    );
    let since = generate_plays(installation, "since.parquet", rows / PAST, 2);
    run_ok(data, &["ingest", "plays", &since]);
    speed(installation);
}

fn speed(installation: &Installation) {
    run_ok(
        installation.data(),
        &["speed", "--until-caught-up", "--source", "plays"],
    );
}

fn generate_plays(installation: &Installation, name: &str, rows: u64, seed: u64) -> String {
    let path = installation
        .folder()
        .join(name)
        .to_string_lossy()
        .into_owned();
    let (rows, seed) = (rows.to_string(), seed.to_string());
    let args = [
        "generate", "plays", "--rows", &rows, "--seed", &seed, "-o", &path,
    ];
    run_ok(installation.data(), &args);
    path
}

/// The result of a reconciliation.
struct Reconciliation {
    keys: u64,
    took: Duration,
    report: Value,
    log: String,
}

impl Reconciliation {
    fn rate(&self) -> f64 {
        rate(self.keys, self.took)
    }
}

/// Runs a reconciliation in a process of its own; returns its report and peak memory.
fn reconcile(
    installation: &Installation,
    view: &str,
    expected: &str,
    extra_args: &[&str],
) -> (Reconciliation, u64) {
    let args = [
        "reconcile",
        "--json",
        "--view",
        view,
        "--expected",
        expected,
    ];
    let args = [&args[..], extra_args].concat();
    let (took, (_, outputs, measured)) =
        measure_time(|| Process::start(installation.data(), &args).finish_measured());
    let report: Value = serde_json::from_str(&outputs[0]).unwrap_or_default();
    let reconciled = Reconciliation {
        keys: report["keys"].as_u64().unwrap_or(0),
        took,
        report,
        log: outputs[1].clone(),
    };
    (reconciled, measured.memory_bytes)
}

/// Compares, and expects this many differences.
fn compare(
    installation: &Installation,
    label: &str,
    view: &str,
    expected: &str,
    differ: u64,
) -> Reconciliation {
    let (reconciled, bytes) = reconcile(installation, view, expected, &[]);
    assert_eq!(
        reconciled.report["differ"], differ,
        "{} {}",
        reconciled.report, reconciled.log
    );
    assert!(reconciled.keys > 0, "{}", reconciled.report);
    let figure = figure(reconciled.keys, reconciled.took);
    print_figure(
        format!("{view} against {label}"),
        format_args!("{figure}, at most {} MiB", bytes >> 20),
    );
    reconciled
}

fn figure(count: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    format!("{count} in {seconds:.1} s, {:.0}/s", rate(count, took))
}

/// Returns the table that queries of a view read, after one backfill.
fn find_table(world: &World, view: &str) -> String {
    let job = world.catalog.job(view).expect("a view");
    let generation = TableGeneration {
        backfills: 1,
        ..TableGeneration::default()
    };
    table_name(job.view(), generation)
}

/// Measures the same counts as files: compared with the served counts, and with each other by the
/// query engine alone.
fn files(installation: &Installation, runtime: &Runtime) {
    let counts = installation.folder().join("counts.parquet");
    let csv = installation.folder().join("counts.csv");
    let keys = runtime.block_on(write_counts(installation, &counts, &csv));
    let mut ours = Vec::new();
    for (label, path) in [("a Parquet file", &counts), ("a CSV file", &csv)] {
        let path = path.to_string_lossy();
        let comparison = compare(installation, label, VIEW, &path, 0);
        assert_eq!(comparison.keys, keys, "{label} has all keys");
        ours.push(comparison);
    }
    let (took, differ) = measure_time(|| runtime.block_on(join_bare(&counts)));
    assert_eq!(differ, 0, "the same file");
    print_figure(
        "  DataFusion alone joins two such Parquet files",
        figure(keys, took),
    );
    let bare = rate(keys, took);
    let ratios: Vec<String> = ours
        .iter()
        .map(|comparison| format!("{:.2}", comparison.rate() / bare))
        .collect();
    print_figure("  ratios", ratios.join(", "));
}

fn context() -> SessionContext {
    SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2))
}

/// Counts all events by the columns of the view with a separate query; returns the number of rows.
/// Referrers are not distinguished, because CSV has no difference between an empty and a missing
/// value.
async fn write_counts(installation: &Installation, into: &Path, csv: &Path) -> u64 {
    let context = context();
    for name in ["first", "past", "since"] {
        let path = installation.folder().join(format!("{name}.parquet"));
        let path = path.to_string_lossy();
        let read = context.register_parquet(name, &*path, ParquetReadOptions::default());
        read.await.expect("events");
    }
    let columns = "owner_id, track_id, listener_id, country, app_id, kind";
    let events = ["first", "past", "since"]
        .map(|name| format!("SELECT {columns}, at, coalesce(amount, 1) AS amount FROM {name}"));
    let query = format!(
        "SELECT owner_id, bucket, track_id, listener_id, country, app_id, kind,
             sum(amount) AS expected
         FROM (SELECT date_bin(INTERVAL '15 minutes', at) AS bucket, {columns}, amount FROM ({}))
         GROUP BY {columns}, bucket",
        events.join(" UNION ALL ")
    );
    let counts = context.sql(&query).await.expect("a query");
    let mut counts = counts.execute_stream().await.expect("counts");
    let schema = counts.schema();
    let file = File::create(into).expect("a file");
    let mut parquet = ArrowWriter::try_new(file, schema, None).expect("a file");
    let mut lines = BufWriter::new(File::create(csv).expect("a file"));
    let (mut rows, options) = (0, FormatOptions::default().with_null(""));
    while let Some(batch) = counts.try_next().await.expect("counts") {
        if rows == 0 {
            let schema = batch.schema();
            let names: Vec<&str> = schema
                .fields()
                .iter()
                .map(|field| field.name().as_str())
                .collect();
            writeln!(lines, "{}", names.join(",")).expect("a line");
        }
        rows += batch.num_rows() as u64;
        parquet.write(&batch).expect("rows");
        let columns: Vec<_> = batch
            .columns()
            .iter()
            .map(|column| match column.data_type() {
                DataType::Timestamp(TimeUnit::Microsecond | TimeUnit::Nanosecond, _) => {
                    let seconds = DataType::Timestamp(TimeUnit::Second, Some("+00:00".into()));
                    arrow::compute::cast(column, &seconds).expect("seconds")
                }
                _ => std::sync::Arc::clone(column),
            })
            .collect();
        let columns: Vec<_> = columns
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &options).expect("texts"))
            .collect();
        for row in 0..batch.num_rows() {
            let cells: Vec<String> = columns
                .iter()
                .map(|cells| quote_csv(&cells.value(row).to_string()))
                .collect();
            writeln!(lines, "{}", cells.join(",")).expect("a line");
        }
    }
    parquet.close().expect("a file");
    lines.flush().expect("a file");
    rows
}

fn quote_csv(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// Returns the number of rows that differ between a file and itself, joined on all columns.
async fn join_bare(counts: &Path) -> u64 {
    let context = context();
    let path = counts.to_string_lossy();
    for name in ["one", "other"] {
        let read = context.register_parquet(name, &*path, ParquetReadOptions::default());
        read.await.expect("counts");
    }
    let plain = ["owner_id", "bucket", "track_id", "kind"].map(str::to_owned);
    let ids = ["listener_id", "app_id"].map(|name| (name, "-1"));
    let nullable = ids.into_iter().chain([("country", "''")]);
    let coalesced =
        |table: &str, name: &str, none: &str| format!("coalesce({table}.{name}, {none})");
    let plain = plain
        .iter()
        .map(|name| format!("one.{name} = other.{name}"));
    let nullable = nullable.map(|(name, none)| {
        format!(
            "{} = {}",
            coalesced("one", name, none),
            coalesced("other", name, none)
        )
    });
    let conditions: Vec<String> = plain.chain(nullable).collect();
    let query = format!(
        "SELECT count(*) FROM one FULL JOIN other ON {} WHERE one.expected IS DISTINCT FROM other.expected",
        conditions.join(" AND ")
    );
    let batches = context.sql(&query).await.expect("a query");
    let batches = batches.collect().await.expect("an answer");
    let count =
        arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(batches[0].column(0));
    count.value(0).unsigned_abs()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark looks now and then")]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
