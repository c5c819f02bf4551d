//! Plays: from Kafka to Redis, rows into Cassandra, and the time to rebuild lost live state.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use schemas::seam::Epoch;
use schemas::source::Source;
use serde_json::Value;
use stores::live::PartitionId;
use tests::installation::Installation;
use tests::process::{Process, Server, run_ok};
use tests::servers::{self, Addresses};
use tests::world::World;
use tokio::runtime::Runtime;

use super::{ROUNDS, bare, measure_time, median, print_figure, print_rates, rate, streams};

const PARTITIONS: u32 = 4;
const PAGE_ROWS: usize = 10_000;
/// Events since the last run when live state is lost.
const SINCE_RUN: u64 = 1_000_000;
/// Approximate number of rows in all views that a play changes.
const ROWS_PER_PLAY: u64 = 9;
/// Maximum time to rebuild live state.
const REBUILD_MAX: Duration = Duration::from_secs(600);

pub(crate) fn run(rows: u64) {
    let installation = Installation::with_partitions(PARTITIONS, &Addresses::default(), "");
    let file = generate_plays(&installation, "plays.jsonl", rows, 1);
    println!("plays: {rows} events in {PARTITIONS} partitions");
    let (took, _) = measure_time(|| run_ok(installation.data(), &["ingest", "plays", &file]));
    print_figure(
        "JSON lines to Kafka",
        format_args!("{:.0}/s", rate(rows, took)),
    );
    kafka_to_redis(&installation, rows);
    cassandra(&installation, rows);
    rebuild(&installation, &file, rows);
}

/// Generates a file of plays.
pub(crate) fn generate_plays(
    installation: &Installation,
    name: &str,
    rows: u64,
    seed: u64,
) -> String {
    generate_plays_with(installation, name, rows, seed, &[])
}

/// Generates a file of plays with more arguments.
pub(crate) fn generate_plays_with(
    installation: &Installation,
    name: &str,
    rows: u64,
    seed: u64,
    extra_args: &[&str],
) -> String {
    let path = installation
        .folder()
        .join(name)
        .to_string_lossy()
        .into_owned();
    let (rows, seed) = (rows.to_string(), seed.to_string());
    let args = [
        "generate", "plays", "--rows", &rows, "--seed", &seed, "-o", &path,
    ];
    run_ok(installation.data(), &[&args, extra_args].concat());
    path
}

fn kafka_to_redis(installation: &Installation, rows: u64) {
    let topic = installation.topic(Source::Plays);
    let partitions = i32::try_from(PARTITIONS).expect("partitions");
    let (mut bare_rates, mut decoded, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    let mut streams = streams::STORES.map(|store| (store, Vec::new()));
    let mut report = None;
    for _ in 0..ROUNDS {
        let (took, count) = measure_time(|| bare::consume(&topic, partitions));
        assert_eq!(count, rows, "everything is consumed");
        bare_rates.push(rate(count, took));
        let (took, count) = measure_time(|| bare::consume_and_decode(&topic, partitions));
        assert_eq!(count, rows, "everything is decoded");
        decoded.push(rate(count, took));
        servers::delete_live_state_of(&installation.options().namespace);
        let args = ["speed", "--until-caught-up", "--source", "plays", "--json"];
        let (took, output) = measure_time(|| run_ok(installation.data(), &args));
        let our_report: Value = serde_json::from_str(&output).expect("a report");
        assert_eq!(
            our_report["plays"]["events"], rows,
            "everything is counted: {our_report}"
        );
        ours.push(rate(rows, took));
        for (store, rates) in &mut streams {
            let Some(counted) = streams::count(&topic, rows, installation.folder(), store) else {
                continue;
            };
            assert_eq!(counted["events"], rows, "everything is counted: {counted}");
            let seconds = counted["seconds"].as_f64().expect("seconds");
            rates.push(rate(rows, Duration::from_secs_f64(seconds)));
            report = Some(counted);
        }
    }
    let bare = print_rates("a bare consumer, Kafka to nowhere", &bare_rates);
    let decoded = print_rates("a bare consumer that decodes", &decoded);
    let ours = print_rates("speed layer, Kafka to Redis", &ours);
    print_figure("  ratio to consuming", format_args!("{:.2}", ours / bare));
    print_figure("  ratio to decoding", format_args!("{:.2}", ours / decoded));
    let Some(report) = report else {
        println!("Kafka Streams is left out: deploy/bench fetches it");
        return;
    };
    for (store, rates) in streams {
        let reference = print_rates(&format!("Kafka Streams, exactly once, {store}"), &rates);
        print_figure("  ratio to it", format_args!("{:.2}", ours / reference));
    }
    expect_the_same(installation, &report);
}

/// Compares the number of rows and their sum in each view's live state with the reference's counts.
fn expect_the_same(installation: &Installation, reference: &Value) {
    let runtime = Runtime::new().expect("a runtime");
    let world = runtime.block_on(installation.world());
    for (name, expected) in reference["views"].as_object().expect("views") {
        let (rows, sum) = live_sums(&runtime, &world, PARTITIONS, name);
        assert_eq!(
            (expected["rows"].as_u64(), expected["sum"].as_i64()),
            (Some(rows), Some(sum)),
            "{name}"
        );
    }
    println!("  the same rows and sums in each view");
}

/// Returns the number of rows and their sum in the live state of a view.
pub(crate) fn live_sums(
    runtime: &Runtime,
    world: &World,
    partitions: u32,
    name: &str,
) -> (u64, i64) {
    let job = world.catalog.job(name).expect("a job");
    let (mut rows, mut sum) = (0_u64, 0_i64);
    for partition in 0..partitions {
        let id = PartitionId {
            source: Source::Plays,
            partition,
        };
        let mut after = None;
        loop {
            let epochs = (0, Epoch::MAX >> 1);
            let live = &world.stores.live;
            let page = live.scan_deltas(id, job.view(), epochs, after, PAGE_ROWS);
            let page = runtime.block_on(page).expect("a page");
            rows += page.deltas.counts.len() as u64;
            sum += page.deltas.counts.values().iter().sum::<i64>();
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    (rows, sum)
}

fn cassandra(installation: &Installation, rows: u64) {
    let runtime = Runtime::new().expect("a runtime");
    // The first writer would meet a server that has not yet compiled its hot code.
    runtime.block_on(bare::write_rows(&bare::full_steps(rows * ROWS_PER_PLAY)));
    let (took, report) = measure_time(|| run_ok(installation.data(), &["batch", "run", "--json"]));
    let report: Value = serde_json::from_str(&report).expect("a report");
    let written = report["rows_written"].as_u64().expect("rows");
    let publish = report["seconds"]["publish"].as_f64().expect("seconds");
    let ours = rate(written, Duration::from_secs_f64(publish));
    print_figure(
        "the run that takes them in, s",
        format_args!("{:.1}", took.as_secs_f64()),
    );
    print_figure("  by stage", &report["seconds"]);
    print_figure(
        format!("rows of views to Cassandra, {written} rows"),
        format_args!("{ours:.0}/s"),
    );
    let namespace = &installation.options().namespace;
    let sizes = runtime.block_on(async {
        let mut sizes = Vec::new();
        for job in installation.world().await.catalog.jobs() {
            sizes.extend(bare::partitions(namespace, job.view()).await);
        }
        sizes
    });
    assert_eq!(
        sizes.iter().sum::<u64>(),
        written,
        "every row has its place"
    );
    let average = format!("{:.1} rows on average", mean(written, sizes.len()));
    for (label, sizes) in [
        (format!("partitions of as many rows ({average})"), sizes),
        (
            "partitions of 1,000 rows".to_owned(),
            bare::full_steps(written),
        ),
    ] {
        let rates: Vec<f64> = (0..ROUNDS)
            .map(|_| rate(written, runtime.block_on(bare::write_rows(&sizes))))
            .collect();
        let bare = print_rates(&format!("bare batches into {label}"), &rates);
        print_figure("  ratio to it", format_args!("{:.2}", ours / bare));
    }
}

/// Returns the mean number of rows in a partition.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn mean(rows: u64, partitions: usize) -> f64 {
    rows as f64 / partitions as f64
}

/// Deletes live state under a running worker, with [`SINCE_RUN`] events since the last run.
fn rebuild(installation: &Installation, file_before: &str, rows: u64) {
    let since = SINCE_RUN.min(rows);
    let file = generate_plays(installation, "since.jsonl", since, 2);
    run_ok(installation.data(), &["ingest", "plays", &file]);
    let speed = ["speed", "--until-caught-up", "--source", "plays"];
    run_ok(installation.data(), &speed);
    let owner = first_owner(Path::new(file_before));
    let question = format!("/api/v1/stats/plays/total?owner_id={owner}");
    let server = Server::start(installation.data(), &[]);
    let complete = server.client.get_json(&question);
    assert_eq!(complete["provenance"]["complete"], true, "{complete}");
    let _worker = Process::start(installation.data(), &["speed", "--source", "plays"]);
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        servers::delete_live_state_of(&installation.options().namespace);
        loop {
            let (status, body) = server.client.get(&question);
            let answer: Value = serde_json::from_str(&body).unwrap_or_default();
            let provenance = &answer["provenance"];
            let is_complete = status == 200
                && provenance["complete"] == true
                && provenance["position"] == complete["provenance"]["position"];
            if is_complete {
                assert_eq!(answer["count"], complete["count"], "the same answer again");
                break;
            }
            assert!(begun.elapsed() < REBUILD_MAX, "{status} {body}");
            pause(Duration::from_millis(50));
        }
        took.push(begun.elapsed().as_secs_f64());
    }
    let label = format!("live state lost, {since} events since the run: whole again, s");
    print_figure(
        label,
        format_args!("{:.1} ({took:.1?})", median(took.clone())),
    );
}

/// Returns the owner of the first play in a file.
pub(crate) fn first_owner(file: &Path) -> i64 {
    let mut line = String::new();
    BufReader::new(File::open(file).expect("the plays"))
        .read_line(&mut line)
        .expect("a play");
    let play: Value = serde_json::from_str(&line).expect("a play");
    play["owner_id"].as_i64().expect("an owner")
}

#[expect(clippy::disallowed_methods, reason = "a benchmark asks at its leisure")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
