//! A board of a million athletes, from the cache in Redis and from the rows in Cassandra: response
//! times compared with a minimal server of the same board, and the cost of updates.

use std::fmt::Write;
use std::time::{Duration, Instant};

use schemas::source::Source;
use serde_json::{Value, json};
use stores::Stores;
use stores::live::PartitionId;
use tests::installation::Installation;
use tests::process::{Process, Server, run_ok};
use tests::servers::Addresses;
use tokio::runtime::Runtime;

use super::load::{CONNECTIONS, load};
use super::minimal::Minimal;
use super::{measure_time, print_figure, rate};

const PARTITIONS: u32 = 4;
/// The segment with all athletes, and one with some of them.
const LARGE: i64 = 1;
const SMALL: i64 = 2;
const SMALL_ROWS: u64 = 10_000;
const CLUB: i64 = 1;
const CLUB_MEMBERS: usize = 10_000;
/// Number of athletes that are requested.
const REQUESTED_ATHLETES: usize = 1_000;
/// Number of efforts that are faster than earlier ones.
const BETTER: u64 = 50_000;
/// Rows in one write of the bare client.
const BARE_ROWS: usize = 500;
/// Maximum time to fill a cache.
const FILL_MAX: Duration = Duration::from_secs(600);
const CACHED: &str = "cached.toml";
const UNCACHED: &str = "uncached.toml";
const BOARDS: &str = "/api/v1/boards/segments";

pub(crate) fn run(rows: u64) {
    let installation = Installation::with_partitions(PARTITIONS, &Addresses::default(), "");
    for (name, bytes) in [(CACHED, "8589934592"), (UNCACHED, "0")] {
        let more = format!("\n[speed]\nboard_cache_bytes_max = {bytes}\n");
        installation.configure(name, &Addresses::default(), &more);
    }
    println!("boards: {rows} athletes on a segment, {SMALL_ROWS} on another");
    import_rows(&installation, rows);
    let club = members(rows, CLUB_MEMBERS);
    let runtime = Runtime::new().expect("a runtime");
    let mut minimal = runtime.block_on(Minimal::fill(rows, club.clone(), time));
    let small = runtime.block_on(Minimal::fill(SMALL_ROWS, club, time));
    let server = Server::start_with(installation.data(), CACHED, &[]);
    let speed = Process::start_with(
        installation.data(),
        CACHED,
        &["speed", "--source", "efforts"],
    );
    let world = runtime.block_on(installation.world());
    fill_cache(&server, &runtime, &world.stores, LARGE, rows);
    fill_cache(&server, &runtime, &world.stores, SMALL, SMALL_ROWS);
    print_memory(&runtime, &world.stores, &mut minimal, rows);
    check(&server, &runtime, &mut minimal, rows);
    for (segment, count, board) in [(LARGE, rows, &minimal), (SMALL, SMALL_ROWS, &small)] {
        let hits = hits(&server);
        println!("{count} athletes, from the cache in Redis:");
        measure(&server, &runtime, segment, count, Some(board));
        assert!(hits < self::hits(&server), "the cache answers");
    }
    let (is_done, outputs) = speed.end();
    assert!(is_done, "{outputs:?}");
    measure_updates(&installation, &runtime, &mut minimal, rows);
    drop(server);
    runtime.block_on(async {
        minimal.delete().await;
        small.delete().await;
    });
    run_ok_with(&installation, UNCACHED, &["batch", "run"]);
    let server = Server::start_with(installation.data(), UNCACHED, &[]);
    for (segment, count) in [(LARGE, rows), (SMALL, SMALL_ROWS)] {
        println!("{count} athletes, from the rows in Cassandra:");
        measure(&server, &runtime, segment, count, None);
    }
}

/// Returns the seconds of an athlete's effort; many athletes share a time.
const fn time(athlete: i64) -> i64 {
    60 + athlete.wrapping_mul(7_919) % 9_973
}

/// Returns athletes spread evenly over the board.
fn members(rows: u64, count: usize) -> Vec<i64> {
    let rows = i64::try_from(rows).expect("rows");
    let count = i64::try_from(count).expect("a number").min(rows);
    (0..count).map(|index| 1 + index * (rows / count)).collect()
}

fn effort(athlete: i64, segment: i64, time: i64, version: u64) -> Value {
    json!({"id": segment * 10_000_000_000 + athlete, "segment_id": segment, "athlete_id": athlete,
        "activity_id": athlete, "elapsed_time": time, "started_at": "2026-01-01T00:00:00Z",
        "version": version})
}

pub(crate) fn write(
    installation: &Installation,
    name: &str,
    rows: impl Iterator<Item = Value>,
) -> String {
    let mut text = String::new();
    for row in rows {
        writeln!(text, "{row}").expect("text");
    }
    let path = installation.folder().join(name);
    std::fs::write(&path, text).expect("a file");
    path.to_string_lossy().into_owned()
}

pub(crate) fn run_ok_with(installation: &Installation, config: &str, args: &[&str]) -> String {
    let mut command = tests::process::command_with(installation.data(), config, args);
    let output = command.output().expect("starting the binary");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {message}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Imports rows into PostgreSQL, Kafka, Redis and Cassandra.
fn import_rows(installation: &Installation, rows: u64) {
    let ids = || 1..=i64::try_from(rows).expect("rows");
    let athletes = ids().map(|id| json!({"id": id, "gender": if id % 3 == 0 { "F" } else { "M" }}));
    let athletes = write(installation, "athletes.jsonl", athletes);
    let clubs = members(rows, CLUB_MEMBERS).into_iter();
    let clubs = clubs.map(|id| json!({"club_id": CLUB, "athlete_id": id}));
    let clubs = write(installation, "clubs.jsonl", clubs);
    let small = ids().take(usize::try_from(SMALL_ROWS).expect("rows"));
    let efforts = ids().map(|id| effort(id, LARGE, time(id), 1));
    let efforts = efforts.chain(small.map(|id| effort(id, SMALL, time(id), 1)));
    let efforts = write(installation, "efforts.jsonl", efforts);
    for (source, file, count) in [
        ("athletes", &athletes, rows),
        ("clubs", &clubs, CLUB_MEMBERS as u64),
        ("efforts", &efforts, rows + SMALL_ROWS),
    ] {
        let (took, _) = measure_time(|| run_ok(installation.data(), &["ingest", source, file]));
        let label = format!("{source} from JSON lines into PostgreSQL");
        print_figure(label, format_args!("{:.0}/s", rate(count, took)));
    }
    let speed = ["speed", "--until-caught-up", "--source", "efforts"];
    let (took, _) = measure_time(|| run_ok(installation.data(), &speed));
    let label = "changed groups from PostgreSQL into Redis, before a first run";
    print_figure(
        label,
        format_args!("{:.0}/s", rate(rows + SMALL_ROWS, took)),
    );
    let (took, _) = measure_time(|| run_ok(installation.data(), &["batch", "run"]));
    let took = took.as_secs_f64();
    print_figure("the run that takes them in, s", format_args!("{took:.1}"));
    run_ok(installation.data(), &speed);
}

/// Returns the number of boards in the cache and their size in bytes.
pub(crate) fn measure_cache(runtime: &Runtime, stores: &Stores, source: Source) -> (usize, u64) {
    let cache = stores.live.board_cache().expect("a cache on servers");
    let (mut boards, mut bytes) = (0, 0);
    for partition in 0..PARTITIONS {
        let register = runtime.block_on(cache.read_register(PartitionId { source, partition }));
        for board in register.expect("a register").boards {
            boards += usize::from(board.bytes.is_some());
            bytes += board.bytes.unwrap_or(0);
        }
    }
    (boards, bytes)
}

#[expect(clippy::disallowed_methods, reason = "a benchmark asks at its leisure")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Returns how many boards this server has read from the cache.
fn hits(server: &Server) -> f64 {
    let (_, text) = server.client.get("/metrics");
    let lines = text.lines();
    let lines = lines.filter(|line| line.starts_with("backstitch_serving_board_cache_hits_total"));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// Requests a board until it is in the cache.
fn fill_cache(server: &Server, runtime: &Runtime, stores: &Stores, segment: i64, count: u64) {
    let (before, _) = measure_cache(runtime, stores, Source::Efforts);
    let begun = Instant::now();
    let answer = server
        .client
        .get_json(&format!("{BOARDS}/{segment}?limit=1"));
    assert_eq!(answer["total"], count);
    while measure_cache(runtime, stores, Source::Efforts).0 <= before {
        assert!(begun.elapsed() < FILL_MAX, "the board is filled");
        pause(Duration::from_millis(20));
    }
    let took = begun.elapsed();
    print_figure(
        format_args!("a board of {count} in the cache after the first request, s"),
        format_args!(
            "{:.2} ({:.0} rows/s)",
            took.as_secs_f64(),
            rate(count, took)
        ),
    );
}

fn print_memory(runtime: &Runtime, stores: &Stores, minimal: &mut Minimal, rows: u64) {
    #[expect(clippy::cast_precision_loss, reason = "bytes")]
    let each = |bytes: u64, rows: u64| bytes as f64 / rows as f64;
    let (ranks, shown) = runtime.block_on(minimal.bytes());
    let (ranks, shown) = (each(ranks, rows), each(shown, rows));
    let ours = each(
        measure_cache(runtime, stores, Source::Efforts).1,
        rows + SMALL_ROWS,
    );
    print_figure(
        "bytes an entry",
        format_args!(
            "{ours:.0}; a bare sorted set {ranks:.0} ({:.1}), with a hash of displayed values {:.0} ({:.1})",
            ours / ranks,
            ranks + shown,
            ours / (ranks + shown)
        ),
    );
}

/// Checks that both servers return the same rows.
fn check(server: &Server, runtime: &Runtime, minimal: &mut Minimal, rows: u64) {
    for first in [0, 149, rows / 2] {
        let page = format!("{BOARDS}/{LARGE}?offset={first}&limit=26");
        let answer = server.client.get_json(&page);
        let entries = answer["entries"].as_array().expect("entries");
        let first = i64::try_from(first).expect("an offset");
        let (bare, total) = runtime.block_on(minimal.rows(first, first + 25));
        assert_eq!(answer["total"], total);
        let times = |row: &Value| row["elapsed_time"].as_i64().expect("a time");
        let ours: Vec<i64> = entries.iter().map(times).collect();
        let theirs: Vec<i64> = bare.iter().map(|(_, time)| *time).collect();
        assert_eq!(ours, theirs, "{page}");
    }
}

/// Returns the questions by name, with paths for Backstitch and for the minimal server.
fn questions(segment: i64, count: u64) -> Vec<(&'static str, Vec<String>, Vec<String>)> {
    let board = format!("{BOARDS}/{segment}");
    let requested = members(count, REQUESTED_ATHLETES);
    let each =
        |ours: &dyn Fn(i64) -> String| requested.iter().map(|id| ours(*id)).collect::<Vec<_>>();
    let single = |path: String| vec![path];
    vec![
        (
            "top ten",
            single(format!("{board}?limit=10")),
            single("/page?offset=0&limit=10".into()),
        ),
        (
            "rank",
            each(&|id| format!("{board}/athletes/{id}?around=0")),
            each(&|id| format!("/around/{id}?around=0")),
        ),
        (
            "around, 5 and 5",
            each(&|id| format!("{board}/athletes/{id}")),
            each(&|id| format!("/around/{id}?around=5")),
        ),
        (
            "ranks 150 to 175",
            single(format!("{board}?offset=149&limit=26")),
            single("/page?offset=149&limit=26".into()),
        ),
        (
            "size",
            single(format!("/api/v1/segments/{segment}/counts")),
            single("/size".into()),
        ),
        (
            "club of 10,000, top ten",
            single(format!("{board}?club_id={CLUB}&limit=10")),
            single("/club".into()),
        ),
    ]
}

fn measure(
    server: &Server,
    runtime: &Runtime,
    segment: i64,
    count: u64,
    minimal: Option<&Minimal>,
) {
    let bare_address = minimal.map(|minimal| runtime.block_on(minimal.serve()));
    for (label, ours, theirs) in questions(segment, count) {
        let rounds = |paths: &[String]| -> Vec<Vec<String>> {
            paths.iter().map(|path| vec![path.clone()]).collect()
        };
        let (ours, theirs) = (rounds(&ours), rounds(&theirs));
        let mut figures = String::new();
        for connections in CONNECTIONS {
            let requests = load(server.client.address(), &ours, connections);
            let our_load = runtime.block_on(requests);
            write!(
                figures,
                " | {connections}: {:.2}, {:.2}; {:.0}/s",
                our_load.p50_ms, our_load.p99_ms, our_load.rate
            )
            .expect("text");
            if our_load.failed > 0 {
                write!(figures, ", {} failed", our_load.failed).expect("text");
            }
            if let Some(address) = &bare_address {
                let bare = runtime.block_on(load(address, &theirs, connections));
                let ratio = our_load.rate / bare.rate;
                write!(figures, " beside {:.0}/s ({ratio:.2})", bare.rate).expect("text");
            }
        }
        print_figure(label, figures);
    }
}

/// Measures faster efforts with the board in the cache and achievements published, then without the
/// cache.
fn measure_updates(
    installation: &Installation,
    runtime: &Runtime,
    minimal: &mut Minimal,
    rows: u64,
) {
    let better = BETTER.min(rows / 2);
    let args = ["speed", "--until-caught-up", "--source", "efforts"];
    for (version, config, label) in [
        (2, CACHED, "better efforts a second, the board in the cache"),
        (
            3,
            UNCACHED,
            "better efforts a second, no board in the cache",
        ),
    ] {
        let shift = i64::try_from(version).expect("a version") - 1;
        let changed: Vec<(i64, i64)> = members(rows, usize::try_from(better).expect("rows"))
            .into_iter()
            // Different athletes each time: live state already contains earlier changes.
            .map(|id| (id + shift, time(id + shift) - 1))
            .collect();
        let lines = changed
            .iter()
            .map(|(id, time)| effort(*id, LARGE, *time, version));
        let file = write(installation, "better.jsonl", lines);
        run_ok(installation.data(), &["ingest", "efforts", &file]);
        let (took, _) = measure_time(|| run_ok_with(installation, config, &args));
        let (bare, ()) = measure_time(|| {
            for rows in changed.chunks(BARE_ROWS) {
                runtime.block_on(minimal.put(rows));
            }
        });
        let (ours, bare) = (rate(better, took), rate(better, bare));
        print_figure(
            label,
            format_args!(
                "{ours:.0}/s beside bare ZADD and HSET {bare:.0}/s ({:.2})",
                ours / bare
            ),
        );
    }
}
