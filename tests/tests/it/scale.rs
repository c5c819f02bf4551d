//! Batch runs on a scheduler with executors, as processes: what they publish is what a local run publishes of the same
//! events, also if an executor is killed in the middle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arrow::array::Array as _;
use serde_json::Value;
use stores::view_scan::ScanShare;
use tests::place::Place;
use tests::process::{CONFIG, Process, done, run};

/// Small tasks, so that there are many.
const CONFIGURATION: &str = "[batch]\ntask_rows_max = 300\nsnapshot_rows_max = 200\nresult_bytes_max = 65536\ngrace_ms = 10\n";
/// The least that there is: an executor that is lost is waited for so long.
const TIMEOUT: [&str; 2] = ["--executor-timeout", "5"];
const ROWS_MAX: usize = 10_000;

/// A scheduler and its executors.
struct Cluster {
    scheduler: Process,
    address: String,
    executors: Vec<Process>,
}

impl Cluster {
    /// A scheduler with an executor on each of some data folders.
    async fn start(folders: &[&Path]) -> Self {
        let anywhere = std::env::temp_dir();
        let args = [
            "scheduler",
            "--listen",
            "127.0.0.1:0",
            TIMEOUT[0],
            TIMEOUT[1],
        ];
        let scheduler = Process::start(&anywhere, &args);
        let mut cluster = Self {
            address: listening(&scheduler).await,
            scheduler,
            executors: Vec::new(),
        };
        for folder in folders {
            cluster.add(folder).await;
        }
        cluster
    }

    async fn add(&mut self, data: &Path) {
        let args = ["executor", "--threads", "1", "--scheduler", &self.address];
        let executor = Process::start(data, &args);
        listening(&executor).await;
        self.executors.push(executor);
    }

    fn engine(&self) -> String {
        format!("ballista://{}", self.address)
    }

    /// Ends all, executors first.
    fn end(self) {
        for process in self.executors.into_iter().chain([self.scheduler]) {
            let (succeeded, said) = process.end();
            assert!(succeeded, "{said:?}");
        }
    }
}

/// Where a process says that it listens.
async fn listening(process: &Process) -> String {
    let since = Instant::now();
    loop {
        let [out, err] = process.said();
        if let Some((_, at)) = out.split_once("listening on ")
            && at.ends_with('\n')
        {
            return at.trim().to_owned();
        }
        assert!(since.elapsed() < Duration::from_secs(30), "{out} {err}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Makes up events and rows of every source, and takes them into both places.
fn ingest(places: [&Place; 2], seed: &str, rows: [u32; 6]) {
    let sources = [
        "athletes",
        "clubs",
        "applications",
        "plays",
        "efforts",
        "authorizations",
    ];
    for (source, rows) in sources.into_iter().zip(rows) {
        let file = places[0].folder().join(format!("{source}-{seed}.jsonl"));
        let file = file.to_string_lossy().into_owned();
        let rows = rows.to_string();
        let mut args = vec!["generate", source, "--rows", &rows, "--seed", seed];
        match source {
            "plays" => args.extend(["--owners", "9", "--tracks", "40", "--duplicates", "0.1"]),
            "efforts" => args.extend(["--segments", "30", "--athletes", "60"]),
            "clubs" => args.extend(["--athletes", "60"]),
            "authorizations" => args.extend(["--athletes", "60", "--applications", "8"]),
            _ => {}
        }
        args.extend(["-o", &file]);
        done(places[0].data(), &args);
        for place in places {
            done(place.data(), &["ingest", source, &file]);
        }
    }
    for place in places {
        done(place.data(), &["speed", "--until-caught-up"]);
    }
}

fn configured() -> Place {
    configured_with("")
}

/// A place whose executors publish as well.
fn publishing() -> Place {
    configured_with("executors_publish = true\n")
}

fn configured_with(more: &str) -> Place {
    let place = Place::embedded();
    std::fs::create_dir_all(place.data()).expect("a folder");
    let configuration = format!("{CONFIGURATION}{more}");
    std::fs::write(place.data().join(CONFIG), configuration).expect("a configuration");
    place
}

/// What runs say of themselves, without how long they took.
fn reports(data: &Path, args: &[&str]) -> Value {
    let args = [&["--json", "batch", "run"], args].concat();
    let mut reports: Value = serde_json::from_str(&done(data, &args)).expect("JSON");
    for report in reports.as_array_mut().expect("several sources") {
        assert_eq!(report["warnings"], Value::Array(Vec::new()), "{report}");
        report["seconds"].take();
    }
    reports
}

/// By view: its rows, or the roots of its boards, which name their rows by what is in them.
async fn published(place: &Place) -> BTreeMap<String, Vec<(Vec<u8>, Vec<u8>)>> {
    let world = place.world().await;
    let views = &world.stores.views;
    let mut all = BTreeMap::new();
    for job in world.catalog.jobs() {
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = views.scan_rows(job.view(), ScanShare::ALL, after.as_ref(), ROWS_MAX);
            let page = page.await.expect("a store");
            // A view of the speed layer alone has no table.
            let Some(page) = page else { break };
            for row in 0..page.rows.len() {
                let key = [page.partitions.value(row), b"/", page.rows.value(row)].concat();
                let value = format!(
                    "{:?} {}",
                    page.counts.iter().nth(row),
                    page.epochs.value(row)
                );
                rows.push((key, value.into_bytes()));
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        all.insert(job.view().to_owned(), rows);
    }
    for job in world.catalog.boards() {
        let (mut heads, mut after) = (Vec::new(), None);
        loop {
            let page = views.scan_heads(job.view(), ScanShare::ALL, after.as_deref(), ROWS_MAX);
            let page = page.await.expect("a store").expect("a table");
            let each = page.heads.into_iter();
            heads.extend(each.map(|head| (head.key, head.root.to_vec())));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        all.insert(job.view().to_owned(), heads);
    }
    all
}

async fn compare(local: &Place, elsewhere: &Place) {
    let (expected, found) = (published(local).await, published(elsewhere).await);
    assert!(expected.len() > 20, "{:?}", expected.keys());
    assert_eq!(
        expected.keys().collect::<Vec<_>>(),
        found.keys().collect::<Vec<_>>()
    );
    for (view, rows) in &expected {
        let wrong = found[view]
            .iter()
            .zip(rows)
            .find(|(found, row)| found != row);
        assert_eq!(wrong, None, "{view}");
        assert_eq!(found[view].len(), rows.len(), "{view}");
    }
    let filled = expected.values().filter(|rows| !rows.is_empty());
    assert!(filled.count() > 20, "most views have rows");
}

/// The files of a kind that lie somewhere below a folder.
fn files(folder: &Path, is_one: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, is_one));
        } else if is_one(&entry.file_name().to_string_lossy()) {
            found.push(path);
        }
    }
    found
}

fn notes(data: &Path) -> Vec<PathBuf> {
    files(&data.join("archive"), &|name| name.contains("-note-"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_view_is_the_same_by_two_executors() {
    let places = [configured(), publishing()];
    let [local, elsewhere] = &places;
    let cluster = {
        ingest([local, elsewhere], "1", [60, 20, 8, 2_500, 900, 200]);
        Cluster::start(&[elsewhere.data(), elsewhere.data()]).await
    };
    let engine = cluster.engine();
    for round in 0..3 {
        let full: &[&str] = if round == 2 { &["--full"] } else { &[] };
        if round == 1 {
            ingest([local, elsewhere], "2", [20, 5, 2, 400, 150, 60]);
        }
        let expected = reports(local.data(), full);
        let found = reports(elsewhere.data(), &[full, &["--engine", &engine]].concat());
        assert_eq!(found, expected, "round {round}");
        compare(local, elsewhere).await;
    }
    assert_eq!(notes(elsewhere.data()), Vec::<PathBuf>::new());
    for executor in &cluster.executors {
        let [_, log] = executor.said();
        for task in ["days", "publish"] {
            let done = format!("task done task=\"{task}\"");
            assert!(log.contains(&done), "both have worked: {log}");
        }
    }
    let job = [
        "batch",
        "run",
        "--job",
        "plays_owner_day",
        "--engine",
        &engine,
    ];
    done(elsewhere.data(), &job);
    done(local.data(), &job[..4]);
    compare(local, elsewhere).await;
    cluster.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_is_killed_changes_nothing() {
    let places = [configured(), publishing()];
    let [local, elsewhere] = &places;
    let mut cluster = Cluster::start(&[elsewhere.data(), elsewhere.data()]).await;
    for (seed, task) in [("3", "task=\"days\""), ("4", "task=\"publish\"")] {
        ingest([local, elsewhere], seed, [60, 20, 8, 4_000, 900, 200]);
        let expected = reports(local.data(), &[]);
        let engine = cluster.engine();
        let args = ["--json", "batch", "run", "--engine", &engine];
        let done = |executor: &Process| executor.said()[1].matches(task).count();
        let before = done(&cluster.executors[0]);
        let batch = Process::start(elsewhere.data(), &args);
        let since = Instant::now();
        while done(&cluster.executors[0]) < before + 2 {
            assert!(
                since.elapsed() < Duration::from_secs(300),
                "{:?}",
                batch.said()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!notes(elsewhere.data()).is_empty(), "the run goes on");
        assert!(cluster.executors.remove(0).kill(), "it was at work");
        let (succeeded, said) = batch.finish();
        assert!(succeeded, "{said:?}");
        let mut found: Value = serde_json::from_str(&said[0]).expect("JSON");
        for report in found.as_array_mut().expect("several sources") {
            report["seconds"].take();
        }
        assert_eq!(found, expected, "round {seed}");
        compare(local, elsewhere).await;
        assert_eq!(notes(elsewhere.data()), Vec::<PathBuf>::new());
        cluster.add(elsewhere.data()).await;
    }
    cluster.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_of_a_schedule_go_on_when_executors_are_there_again() {
    let (place, other) = (configured(), configured());
    ingest([&place, &other], "5", [20, 4, 2, 300, 100, 20]);
    let mut cluster = Cluster::start(&[place.data()]).await;
    let engine = cluster.engine();
    let args = ["batch", "schedule", "--every", "1", "--engine", &engine];
    let schedule = Process::start(place.data(), &args);
    cluster.executors[0].until_said("task done").await;
    let executor = cluster.executors.remove(0);
    assert!(executor.kill(), "it was there");
    cluster.add(place.data()).await;
    ingest([&place, &other], "6", [20, 4, 2, 300, 100, 20]);
    cluster.executors[0].until_said("task done").await;
    cluster.end();
    schedule.until_said("no scheduler answers at").await;
    let (succeeded, said) = schedule.end();
    assert!(succeeded, "it waits for a scheduler: {said:?}");
    done(place.data(), &["batch", "run"]);
    // It exits with 3 where a row is not what the archive gives.
    for view in ["plays_detail", "plays_owner_day"] {
        let args = ["restorate", "--view", view, "--expected", "archive"];
        done(place.data(), &args);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_can_not_have_tasks_carried_out_says_why() {
    let (place, other) = (configured(), configured());
    ingest([&place, &other], "4", [20, 4, 2, 300, 100, 20]);
    // Nobody listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let nobody = free.local_addr().expect("an address").to_string();
    drop(free);
    let refused = |engine: &str, why: &str| {
        let since = Instant::now();
        let output = run(place.data(), &["batch", "run", "--engine", engine]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{said}");
        assert_eq!(said.trim().lines().count(), 1, "{said}");
        assert!(since.elapsed() < Duration::from_secs(28), "{said}");
    };
    refused(&format!("ballista://{nobody}"), "no scheduler answers at");
    let mut cluster = Cluster::start(&[other.data()]).await;
    refused(&cluster.engine(), "cannot read the input of a stage");
    assert_eq!(notes(place.data()), Vec::<PathBuf>::new());
    // With the right one the same run goes on.
    let executor = cluster.executors.remove(0);
    assert!(executor.end().0);
    cluster.add(place.data()).await;
    let found = reports(place.data(), &["--engine", &cluster.engine()]);
    assert_eq!(found, reports(other.data(), &[]));
    compare(&other, &place).await;
    cluster.end();
}
