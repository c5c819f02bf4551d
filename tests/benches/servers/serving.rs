//! Statistics over HTTP: response times, bytes read for them, and the rate compared with the same
//! server answering a constant.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};

use jiff::ToSpan;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use tests::http::Client;
use tests::installation::Installation;
use tests::process::{Server, run_ok};
use tests::servers::Addresses;

use super::load::{CONNECTIONS, load};
use super::plays::generate_plays;
use super::print_figure;

const STATS: &str = "/api/v1/stats/plays";
const PARTITIONS: u32 = 4;
const CONFIG: &str = "bench.toml";
/// Tenths of the events that are in batch rows; live state has the others.
const BATCH_TENTHS: usize = 9;
/// A track with a play in every hour of five years, and its owner.
const OLD_TRACK: i64 = 900_000_001;
const OLD_OWNER: i64 = 900_000_000;
const OLD_YEARS: i16 = 5;

pub(crate) fn run(rows: u64) {
    let installation = Installation::with_partitions(PARTITIONS, &Addresses::default(), "");
    let file = generate_plays(&installation, "plays.jsonl", rows, 1);
    let profile = EventProfile::read(&file);
    let (first, second) = split_events(&installation, &file, rows);
    let old = write_old_track(&installation, &profile);
    run_ok(installation.data(), &["ingest", "plays", &old, &first]);
    let speed = ["speed", "--until-caught-up", "--source", "plays"];
    run_ok(installation.data(), &speed);
    run_ok(installation.data(), &["batch", "run"]);
    run_ok(installation.data(), &["ingest", "plays", &second]);
    run_ok(installation.data(), &speed);
    println!(
        "serving: {rows} plays, {BATCH_TENTHS} of 10 in Cassandra, the others in Redis; the busiest owner has {}, a quiet one {}",
        profile.owners[0].1, profile.owners[1].1
    );
    for (memory, bytes) in [("rows in memory", "67108864"), ("no rows in memory", "0")] {
        println!("{memory} (serving.row_cache_bytes_max = {bytes})");
        let more = format!("\n[serving]\nrow_cache_bytes_max = {bytes}\n");
        installation.configure(CONFIG, &Addresses::default(), &more);
        let server = Server::start_with(installation.data(), CONFIG, &[]);
        measure(&server, &profile);
    }
}

/// Properties of the events that the questions use.
struct EventProfile {
    /// The busiest owner and one with few events, with their numbers of events.
    owners: [(i64, u64); 2],
    /// A busy track.
    track: i64,
    /// The day of the newest event.
    date: String,
}

impl EventProfile {
    fn read(file: &str) -> Self {
        let lines = BufReader::new(std::fs::File::open(file).expect("the plays")).lines();
        let (mut owners, mut tracks) = (HashMap::<i64, u64>::new(), HashMap::<i64, u64>::new());
        let mut newest = String::new();
        for line in lines {
            let play: Value = serde_json::from_str(&line.expect("a line")).expect("a play");
            *owners
                .entry(play["owner_id"].as_i64().expect("an owner"))
                .or_default() += 1;
            *tracks
                .entry(play["track_id"].as_i64().expect("a track"))
                .or_default() += 1;
            let at = play["at"].as_str().expect("a time");
            if at > newest.as_str() {
                at.clone_into(&mut newest);
            }
        }
        let sorted = |counts: HashMap<i64, u64>| {
            let mut counts: Vec<(i64, u64)> = counts.into_iter().collect();
            counts.sort_by_key(|(id, count)| (std::cmp::Reverse(*count), *id));
            counts
        };
        let (owners, tracks) = (sorted(owners), sorted(tracks));
        let quiet = owners[owners.len() * 9 / 10];
        Self {
            owners: [owners[0], quiet],
            track: tracks[0].0,
            date: newest[..10].to_owned(),
        }
    }

    /// Returns the questions by name: requests that are sent in sequence.
    fn questions(&self) -> Vec<(String, Vec<String>)> {
        let (date, tz) = (&self.date, "tz=Europe/Berlin");
        let mut questions = vec![("a constant".to_owned(), vec!["/livez".to_owned()])];
        for (size, (owner, _)) in ["busy", "quiet"].into_iter().zip(self.owners) {
            let owner_filter = format!("owner_id={owner}&{tz}");
            for (label, path) in [
                ("total", format!("total?{owner_filter}&period=all")),
                (
                    "30-day series",
                    format!("series?{owner_filter}&period=30d&date={date}&interval=day"),
                ),
                (
                    "year by day",
                    format!("series?{owner_filter}&period=year&date={date}&interval=day"),
                ),
                (
                    "top countries, 30 days",
                    format!("breakdown?{owner_filter}&period=30d&date={date}&by=country"),
                ),
                (
                    "top tracks, year",
                    format!("breakdown?{owner_filter}&period=year&date={date}&by=track"),
                ),
                (
                    "listeners, 30 days",
                    format!("uniques?{owner_filter}&period=30d&date={date}"),
                ),
            ] {
                questions.push((
                    format!("{size} owner, {label}"),
                    vec![format!("{STATS}/{path}")],
                ));
            }
        }
        let track = format!(
            "track_id={}&{tz}&period=year&date={date}&interval=hour",
            self.track
        );
        questions.push((
            "busy track, year by hour".to_owned(),
            vec![format!("{STATS}/series?{track}")],
        ));
        let newest = self.date();
        let years = (0..OLD_YEARS).map(|year| {
            let track_filter = format!("track_id={OLD_TRACK}&{tz}&period=year&interval=hour");
            format!(
                "{STATS}/series?{track_filter}&date={}",
                newest.saturating_sub(year.years())
            )
        });
        questions.push((
            format!("a play every hour, {OLD_YEARS} years by hour in as many requests"),
            years.collect(),
        ));
        questions
    }

    fn date(&self) -> Date {
        self.date.parse().expect("a date")
    }
}

/// Returns the plays of the old track up to the day before the newest event.
fn write_old_track(installation: &Installation, profile: &EventProfile) -> String {
    let end = profile.date().to_zoned(TimeZone::UTC).expect("midnight");
    let begin = end.saturating_sub(OLD_YEARS.years());
    let mut lines = String::new();
    for at in begin
        .timestamp()
        .series(1.hour())
        .take_while(|at| *at < end.timestamp())
    {
        let play = json!({"event_id": at.to_string(), "track_id": OLD_TRACK, "owner_id": OLD_OWNER,
            "listener_id": 1, "kind": "play", "at": at.to_string()});
        lines.push_str(&format!("{play}\n"));
    }
    let path = installation.folder().join("old.jsonl");
    std::fs::write(&path, lines).expect("a file");
    path.to_string_lossy().into_owned()
}

/// Splits the events into two files.
fn split_events(installation: &Installation, file: &str, rows: u64) -> (String, String) {
    let text = std::fs::read_to_string(file).expect("the plays");
    let lines = usize::try_from(rows).expect("rows") * BATCH_TENTHS / 10;
    let cut = text
        .match_indices('\n')
        .nth(lines - 1)
        .map_or(text.len(), |(offset, _)| offset + 1);
    let write = |name: &str, text: &str| {
        let path = installation.folder().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_string_lossy().into_owned()
    };
    (
        write("first.jsonl", &text[..cut]),
        write("second.jsonl", &text[cut..]),
    )
}

fn measure(server: &Server, profile: &EventProfile) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut constant: HashMap<usize, f64> = HashMap::new();
    for (label, paths) in profile.questions() {
        let before = read_bytes(&server.client);
        let mut response_bytes = 0;
        for path in &paths {
            let (status, body) = server.client.get(path);
            assert_eq!(status, 200, "{path}: {body}");
            response_bytes += body.len();
        }
        let bytes = read_bytes(&server.client) - before;
        let mut figures = format!("{bytes:>9.0} bytes read, {response_bytes:>7} answered");
        for connections in CONNECTIONS {
            let rounds = [paths.clone()];
            let load = runtime.block_on(load(server.client.address(), &rounds, connections));
            assert_eq!(load.failed, 0, "{label}");
            let constant_rate = *constant.entry(connections).or_insert(load.rate);
            figures.push_str(&format!(
                "; {connections}: p50 {:.2} p99 {:.2} ms, {:.0}/s ({:.2})",
                load.p50_ms,
                load.p99_ms,
                load.rate,
                load.rate / constant_rate
            ));
        }
        print_figure(label, figures);
    }
}

/// Returns the number of bytes that the service has read from its stores.
fn read_bytes(client: &Client) -> f64 {
    let (_, text) = client.get("/metrics");
    text.lines()
        .filter(|line| line.starts_with("backstitch_serving_read_bytes_total"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}
