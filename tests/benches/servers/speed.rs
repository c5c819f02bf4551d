//! The speed layer under other loads than `plays`: hot keys, very many keys, small and large
//! micro-batches, several processes of which one is killed, a stalling Redis, and catching up while
//! queries are answered.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use schemas::source::Source;
use serde_json::Value;
use tests::installation::Installation;
use tests::process::{CONFIG, Process, ResourceUsage, Server, run_ok};
use tests::servers::{self, Addresses};
use tests::world::World;
use tokio::runtime::Runtime;

use super::load::{Load, load};
use super::plays::{first_owner, generate_plays_with, live_sums, pause};
use super::{ROUNDS, bare, measure_time, median, print_figure, rate};

const PARTITIONS: u32 = 4;
const SPEED: [&str; 5] = ["speed", "--until-caught-up", "--source", "plays", "--json"];
const BENCH: &str = "bench.toml";
const FILE: &str = "plays.jsonl";
/// Distributions of the events: numbers of owners and tracks.
const SHAPES: [(&str, u64, u64); 3] = [
    ("1,000 owners, 20,000 tracks", 1_000, 20_000),
    ("hot keys: 4 owners, 8 tracks", 4, 8),
    (
        "very many: 200,000 owners, 1,000,000 tracks",
        200_000,
        1_000_000,
    ),
];
/// Maximum numbers of records in a micro-batch.
const RECORDS: [usize; 4] = [100, 1_000, 10_000, 50_000];
/// Events for each micro-batch size.
const RECORDS_ROWS: u64 = 500_000;
const PROCESSES: [usize; 3] = [1, 2, 4];
/// Maximum time of processes, and for rebuilding live state.
const CAUGHT_UP_MAX: Duration = Duration::from_secs(900);
/// Duration of each stall of Redis, and of the pause before it.
const STALL: Duration = Duration::from_millis(1_000);
const CONNECTIONS: usize = 32;

pub(crate) fn run(rows: u64) {
    println!(
        "speed: {rows} plays in {PARTITIONS} partitions; CPU of this process and of the main thread of Redis, µs an event"
    );
    for (index, (name, owners, tracks)) in SHAPES.into_iter().enumerate() {
        let installation = create_installation(rows, owners, tracks);
        shape(&installation, name, rows);
        if index == 0 {
            stalls(&installation, rows);
            processes(&installation, rows);
            catching_up(&installation, rows);
        }
    }
    let installation = create_installation(RECORDS_ROWS.min(rows), SHAPES[0].1, SHAPES[0].2);
    micro_batches(&installation, RECORDS_ROWS.min(rows));
}

/// Creates an installation with this many plays in its log.
fn create_installation(rows: u64, owners: u64, tracks: u64) -> Installation {
    let installation = Installation::with_partitions(PARTITIONS, &Addresses::default(), "");
    let [owners, tracks] = [owners, tracks].map(|number| number.to_string());
    let spread = ["--owners", &owners, "--tracks", &tracks];
    let file = generate_plays_with(&installation, FILE, rows, 1, &spread);
    run_ok(installation.data(), &["ingest", "plays", &file]);
    installation
}

/// Cost of counting all events.
struct CountingCost {
    took: Duration,
    process: ResourceUsage,
    redis_cpu_s: f64,
    redis_bytes: f64,
    micro_batches: u64,
}

/// Counts all events of an installation from scratch, during some other work.
fn count_all(
    installation: &Installation,
    config: &str,
    rows: u64,
    meanwhile: impl FnOnce(&mut Process),
) -> CountingCost {
    servers::delete_live_state_of(&installation.options().namespace);
    let before = redis_info();
    let (took, (outputs, process)) = measure_time(|| {
        let mut process = Process::start_with(installation.data(), config, &SPEED);
        meanwhile(&mut process);
        let (succeeded, outputs, measured) = process.finish_measured();
        assert!(succeeded, "{outputs:?}");
        (outputs, measured)
    });
    let after = redis_info();
    let report: Value = serde_json::from_str(&outputs[0]).expect("a report");
    let report = &report["plays"];
    assert_eq!(report["events"], rows, "everything is counted: {report}");
    let increase = |name: &str| after[name] - before[name];
    CountingCost {
        took,
        process,
        redis_cpu_s: increase("used_cpu_user_main_thread") + increase("used_cpu_sys_main_thread"),
        redis_bytes: increase("used_memory"),
        micro_batches: report["micro_batches"].as_u64().expect("a number"),
    }
}

/// Returns the numeric fields of Redis's `INFO`.
fn redis_info() -> BTreeMap<String, f64> {
    let info = servers::run_redis_command(&["INFO", "everything"]);
    let numbers = info.lines().filter_map(|line| {
        let (name, value) = line.trim().split_once(':')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    numbers.collect()
}

#[expect(clippy::cast_precision_loss, reason = "a figure")]
fn print_counting_cost(label: &str, rows: u64, counted: &CountingCost) {
    let each = |seconds: f64| seconds * 1e6 / rows as f64;
    print_figure(
        label,
        format_args!(
            "{:.0}/s; CPU {:.2} and {:.2} µs; Redis keeps {:.0} bytes an event; {} micro-batches; at most {:.0} MiB",
            rate(rows, counted.took),
            each(counted.process.cpu_s),
            each(counted.redis_cpu_s),
            counted.redis_bytes / rows as f64,
            counted.micro_batches,
            counted.process.memory_bytes as f64 / f64::from(1 << 20),
        ),
    );
}

/// Measures the median round of one distribution, compared with decoding alone in the same rounds.
fn shape(installation: &Installation, name: &str, rows: u64) {
    let topic = installation.topic(Source::Plays);
    let partitions = i32::try_from(PARTITIONS).expect("partitions");
    let (mut decoded, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (took, count) = measure_time(|| bare::consume_and_decode(&topic, partitions));
        assert_eq!(count, rows, "everything is decoded");
        decoded.push(rate(count, took));
        ours.push(count_all(installation, CONFIG, rows, |_| {}));
    }
    ours.sort_by_key(|counted| counted.took);
    print_counting_cost(name, rows, &ours[ROUNDS / 2]);
    let ratios = rate(rows, ours[ROUNDS / 2].took) / median(decoded);
    print_figure(
        "  ratio to a bare consumer that decodes",
        format_args!("{ratios:.2}"),
    );
}

fn micro_batches(installation: &Installation, rows: u64) {
    for records in RECORDS {
        let more = format!("\n[speed]\nrecords_max = {records}\n");
        installation.configure(BENCH, &Addresses::default(), &more);
        let counted = count_all(installation, BENCH, rows, |_| {});
        print_counting_cost(
            &format!("micro-batches of up to {records} records"),
            rows,
            &counted,
        );
    }
}

/// Counts while Redis stalls half of the time.
fn stalls(installation: &Installation, rows: u64) {
    let stalled = count_all(installation, CONFIG, rows, |process| {
        while process.is_running() {
            let stall_ms = STALL.as_millis().to_string();
            assert_eq!(
                servers::run_redis_command(&["CLIENT", "PAUSE", &stall_ms, "ALL"]).trim(),
                "OK"
            );
            let until = Instant::now() + 2 * STALL;
            while process.is_running() && Instant::now() < until {
                process.measure_usage();
                pause(Duration::from_millis(20));
            }
        }
    });
    print_counting_cost("Redis stalls half of the time", rows, &stalled);
}

/// Counts with several processes that share the partitions, then kills one of two.
fn processes(installation: &Installation, rows: u64) {
    let runtime = Runtime::new().expect("a runtime");
    let world = runtime.block_on(installation.world());
    let expected = amounts(&installation.folder().join(FILE));
    for (count, is_killed) in PROCESSES
        .map(|count| (count, false))
        .into_iter()
        .chain([(2, true)])
    {
        servers::delete_live_state_of(&installation.options().namespace);
        let start = || Process::start(installation.data(), &["speed", "--source", "plays"]);
        let begun = Instant::now();
        let mut processes: Vec<Process> = (0..count).map(|_| start()).collect();
        let until = if is_killed { rows / 3 } else { rows };
        wait_for(&runtime, &world, until, begun);
        let mut recovery = String::new();
        if is_killed {
            let killed = Instant::now();
            let positions = position(&runtime, &world);
            assert!(processes.remove(0).kill(), "it was at work");
            // The remaining processes own the partitions once the group has rebalanced.
            let have_all_advanced = |current: &[i64]| {
                current
                    .iter()
                    .zip(&positions)
                    .all(|(current, earlier)| current > earlier)
            };
            while !have_all_advanced(&position(&runtime, &world)) {
                assert!(begun.elapsed() < CAUGHT_UP_MAX, "{positions:?}");
                pause(Duration::from_millis(20));
            }
            recovery = format!(
                "; all partitions go on after {:.1} s",
                killed.elapsed().as_secs_f64()
            );
            wait_for(&runtime, &world, rows, begun);
        }
        let took = begun.elapsed();
        for process in processes {
            let (succeeded, outputs) = process.end();
            assert!(succeeded, "{outputs:?}");
        }
        let sums = live_sums(&runtime, &world, PARTITIONS, "plays_detail");
        assert_eq!(sums.1, expected, "each event once");
        let label = if is_killed {
            ", one killed after a third"
        } else {
            ""
        };
        let rate = rate(rows, took);
        print_figure(
            format!("{count} processes{label}"),
            format_args!("{rate:.0}/s{recovery}"),
        );
    }
}

/// Returns the sum of the amounts of the plays in a file.
fn amounts(file: &Path) -> i64 {
    let lines = BufReader::new(File::open(file).expect("the plays")).lines();
    let amount = |line: std::io::Result<String>| {
        let play: Value = serde_json::from_str(&line.expect("a line")).expect("a play");
        play["amount"].as_i64().unwrap_or(1)
    };
    lines.map(amount).sum()
}

/// Returns the position of each partition state; 0 for a missing one.
fn position(runtime: &Runtime, world: &World) -> Vec<i64> {
    let read = world
        .stores
        .live
        .read_deltas(Source::Plays, PARTITIONS, &[]);
    let states = runtime.block_on(read).expect("live state").partition_states;
    let offsets = states
        .into_iter()
        .map(|state| state.map_or(0, |state| state.position.next_offset));
    offsets.collect()
}

fn wait_for(runtime: &Runtime, world: &World, rows: u64, begun: Instant) {
    let rows = i64::try_from(rows).expect("a number");
    while position(runtime, world).iter().sum::<i64>() < rows {
        assert!(
            begun.elapsed() < CAUGHT_UP_MAX,
            "{:?}",
            position(runtime, world)
        );
        pause(Duration::from_millis(20));
    }
}

/// Counts the log from scratch while a server answers.
fn catching_up(installation: &Installation, rows: u64) {
    let runtime = Runtime::new().expect("a runtime");
    run_ok(installation.data(), &SPEED);
    let owner = first_owner(&installation.folder().join(FILE));
    let path = format!("/api/v1/stats/plays/total?owner_id={owner}");
    let server = Server::start(installation.data(), &[]);
    assert_eq!(server.client.get(&path).0, 200);
    let questions = [vec![path]];
    let run_load = || runtime.block_on(load(server.client.address(), &questions, CONNECTIONS));
    let format_load = |load: &Load| {
        assert_eq!(load.failed, 0, "all are answered");
        format!(
            "p50 {:.2} p99 {:.2} ms, {:.0}/s",
            load.p50_ms, load.p99_ms, load.rate
        )
    };
    print_figure(
        "a total at 32 connections, nothing to count",
        format_load(&run_load()),
    );
    let mut rounds: Vec<Load> = Vec::new();
    let counted = count_all(installation, CONFIG, rows, |process| {
        while process.is_running() {
            process.measure_usage();
            rounds.push(run_load());
        }
    });
    // The last round may have ended after counting did.
    rounds.truncate(rounds.len().saturating_sub(1).max(1));
    rounds.sort_by(|a, b| a.p99_ms.total_cmp(&b.p99_ms));
    print_figure(
        "  the same while the log is counted, median round",
        format_load(&rounds[rounds.len() / 2]),
    );
    print_figure("  the worst round", format_load(&rounds[rounds.len() - 1]));
    print_counting_cost("  counting meanwhile", rows, &counted);
}
