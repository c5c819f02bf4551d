//! Files of the archive that many small runs leave: few stay, and they hold what all of them held.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use arrow::array::Array as _;
use schemas::source::Source;
use serde_json::json;
use stores::view_scan::ScanShare;
use tests::place::Place;
use tests::process::{CONFIG, done};

/// Runs with a few events each.
const RUNS: i64 = 24;
const OF_RUN: i64 = 12;
/// More than a file may have after some merges.
const CONFIGURATION: &str = "[batch]\narchive_rows_max = 120\ngrace_ms = 1\n";
const ROWS_MAX: usize = 10_000;
/// In every third run.
const ERASED: i64 = 77;

/// Events of three days, each at another time.
fn events(run: i64) -> String {
    let mut lines = String::new();
    for n in 0..OF_RUN {
        let (number, day) = (run * OF_RUN + n, 1 + (run + n) % 3);
        let listener = if run % 3 == 0 && n == 0 { ERASED } else { n };
        let event = json!({
            "event_id": format!("e{number}"), "owner_id": 1 + n % 3, "track_id": 1 + n, "kind": "play",
            "listener_id": listener, "at": format!("2026-03-{day:02}T{:02}:{:02}:00Z", number % 24, number % 60),
        });
        writeln!(lines, "{event}").expect("a string");
    }
    lines
}

fn run(place: &Place, lines: &str) {
    place.ingest("plays", lines);
    done(place.data(), &["speed", "--until-caught-up"]);
    done(place.data(), &["batch", "run"]);
}

/// How many files are in a folder of the archive.
fn files(data: &Path, folder: &str) -> usize {
    let files = std::fs::read_dir(data.join("archive/archive/plays").join(folder));
    files.map_or(0, Iterator::count)
}

/// By view, the counts by row.
async fn published(place: &Place) -> BTreeMap<String, BTreeMap<Vec<u8>, Option<i64>>> {
    let world = place.world().await;
    let views = &world.stores.views;
    let mut all = BTreeMap::new();
    for job in world
        .catalog
        .jobs()
        .filter(|job| job.source() == Source::Plays)
    {
        let (mut rows, mut after) = (BTreeMap::new(), None);
        loop {
            let page = views.scan_rows(job.view(), ScanShare::ALL, after.as_ref(), ROWS_MAX);
            let page = page.await.expect("a store");
            let Some(page) = page else { break };
            for row in 0..page.rows.len() {
                let key = [page.parts.value(row), b"/", page.rows.value(row)].concat();
                rows.insert(key, page.counts.iter().nth(row).flatten());
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        all.insert(job.view().to_owned(), rows);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_leave_few_files_and_every_event() {
    let (place, at_once) = (Place::embedded(), Place::embedded());
    for place in [&place, &at_once] {
        std::fs::create_dir_all(place.data()).expect("a folder");
        std::fs::write(place.data().join(CONFIG), CONFIGURATION).expect("a configuration");
    }
    let mut most = 0;
    for number in 0..RUNS {
        run(&place, &events(number));
        most = most.max(files(place.data(), "data"));
    }
    // What lies in merged files comes once more, and is known.
    let again: String = [0, 5, 11].map(events).concat();
    run(&place, &again);
    let all: String = (0..RUNS).map(events).collect();
    run(&at_once, &all);
    let expected = published(&at_once).await;
    assert!(expected.values().filter(|rows| !rows.is_empty()).count() > 5);
    assert_eq!(published(&place).await, expected);

    // What was merged last goes with the next run.
    let before = files(place.data(), "manifests") + files(place.data(), "merged");
    assert!(before < 25, "{before} manifests of {} runs", RUNS + 1);
    run(&place, "");
    assert!(files(place.data(), "merged") > 0, "manifests were merged");
    let (data, manifests) = (
        files(place.data(), "data"),
        files(place.data(), "manifests"),
    );
    assert!(
        data < 16 && manifests < 16,
        "{data} files, {manifests} manifests"
    );
    assert!(most < 24, "{most} files at some time");

    // Computed anew from merged files alone, it is the same.
    done(place.data(), &["batch", "run", "--full"]);
    assert_eq!(published(&place).await, expected);
    // A file that is lost is made anew from the log, as any other.
    let folder = place.data().join("archive/archive/plays/data");
    for file in std::fs::read_dir(folder).expect("a folder").flatten() {
        std::fs::remove_file(file.path()).expect("a file");
    }
    let restorate = [
        "restorate",
        "--view",
        "plays_detail",
        "--expected",
        "archive",
        "--apply",
    ];
    done(place.data(), &restorate);
    assert_eq!(files(place.data(), "data"), data);
    done(place.data(), &["check"]);
    // And so it is once somebody is erased.
    for place in [&place, &at_once] {
        done(place.data(), &["erase", "--listener", &ERASED.to_string()]);
        done(place.data(), &["batch", "run"]);
    }
    let without = published(&at_once).await;
    assert_ne!(without, expected);
    assert_eq!(published(&place).await, without);
}
