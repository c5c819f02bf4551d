//! Batch runs on a scheduler with executors, as processes. They publish the same rows as a local
//! run on the same events, also if an executor is killed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arrow::array::Array as _;
use serde_json::Value;
use stores::view_scan::ScanShare;
use tests::installation::Installation;
use tests::process::{CONFIG, Process, run, run_ok};

/// Limits that split runs into many small tasks.
const CONFIGURATION: &str = "[batch]\ntask_rows_max = 300\nsnapshot_rows_max = 200\nresult_bytes_max = 65536\ngrace_ms = 10\n";
/// The minimum: the scheduler waits this long for a lost executor.
const TIMEOUT: [&str; 2] = ["--executor-timeout", "5"];
const ROWS_MAX: usize = 10_000;

/// A scheduler and its executors.
struct Cluster {
    scheduler: Process,
    address: String,
    executors: Vec<Process>,
}

impl Cluster {
    /// Starts a scheduler, and an executor on each data folder.
    async fn start(folders: &[&Path]) -> Self {
        let folder = std::env::temp_dir();
        let args = [
            "scheduler",
            "--listen",
            "127.0.0.1:0",
            TIMEOUT[0],
            TIMEOUT[1],
        ];
        let scheduler = Process::start(&folder, &args);
        let mut cluster = Self {
            address: wait_for_address(&scheduler).await,
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
        wait_for_address(&executor).await;
        self.executors.push(executor);
    }

    fn engine(&self) -> String {
        format!("ballista://{}", self.address)
    }

    /// Ends all processes, executors first.
    fn end(self) {
        for process in self.executors.into_iter().chain([self.scheduler]) {
            let (succeeded, output) = process.end();
            assert!(succeeded, "{output:?}");
        }
    }
}

/// Waits until a process prints the address on which it listens.
async fn wait_for_address(process: &Process) -> String {
    let started = Instant::now();
    loop {
        let [out, err] = process.outputs();
        if let Some((_, address)) = out.split_once("listening on ")
            && address.ends_with('\n')
        {
            return address.trim().to_owned();
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{out} {err}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Generates events and rows of every source, and ingests them into both installations.
fn ingest(installations: [&Installation; 2], seed: &str, rows: [u32; 6]) {
    let sources = [
        "athletes",
        "clubs",
        "applications",
        "plays",
        "efforts",
        "authorizations",
    ];
    for (source, rows) in sources.into_iter().zip(rows) {
        let file = installations[0]
            .folder()
            .join(format!("{source}-{seed}.jsonl"));
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
        run_ok(installations[0].data(), &args);
        for installation in installations {
            run_ok(installation.data(), &["ingest", source, &file]);
        }
    }
    for installation in installations {
        run_ok(installation.data(), &["speed", "--until-caught-up"]);
    }
}

fn create_installation() -> Installation {
    create_installation_with("")
}

/// An installation whose executors also publish.
fn create_publishing_installation() -> Installation {
    create_installation_with("executors_publish = true\n")
}

fn create_installation_with(settings: &str) -> Installation {
    let installation = Installation::embedded();
    std::fs::create_dir_all(installation.data()).expect("a folder");
    let configuration = format!("{CONFIGURATION}{settings}");
    std::fs::write(installation.data().join(CONFIG), configuration).expect("a configuration");
    installation
}

/// Runs a batch; returns the reports without their durations.
fn run_batch(data: &Path, args: &[&str]) -> Value {
    let args = [&["--json", "batch", "run"], args].concat();
    let mut reports: Value = serde_json::from_str(&run_ok(data, &args)).expect("JSON");
    for report in reports.as_array_mut().expect("several sources") {
        assert_eq!(report["warnings"], Value::Array(Vec::new()), "{report}");
        report["seconds"].take();
    }
    reports
}

/// Returns by view its rows, or the roots of its boards, which are hashes of their rows.
async fn read_published(installation: &Installation) -> BTreeMap<String, Vec<(Vec<u8>, Vec<u8>)>> {
    let world = installation.world().await;
    let views = &world.stores.views;
    let mut rows_by_view = BTreeMap::new();
    for job in world.catalog.jobs() {
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = views.scan_rows(job.view(), ScanShare::ALL, after.as_ref(), ROWS_MAX);
            let page = page.await.expect("a store");
            // A view that only the speed layer counts has no table.
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
        rows_by_view.insert(job.view().to_owned(), rows);
    }
    for job in world.catalog.boards() {
        let (mut heads, mut after) = (Vec::new(), None);
        loop {
            let page = views.scan_heads(job.view(), ScanShare::ALL, after.as_deref(), ROWS_MAX);
            let page = page.await.expect("a store").expect("a table");
            let heads_of_page = page.heads.into_iter();
            heads.extend(heads_of_page.map(|head| (head.key, head.root.to_vec())));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        rows_by_view.insert(job.view().to_owned(), heads);
    }
    rows_by_view
}

async fn compare(local: &Installation, remote: &Installation) {
    let (expected, actual) = (read_published(local).await, read_published(remote).await);
    assert!(expected.len() > 20, "{:?}", expected.keys());
    assert_eq!(
        expected.keys().collect::<Vec<_>>(),
        actual.keys().collect::<Vec<_>>()
    );
    for (view, rows) in &expected {
        let difference = actual[view]
            .iter()
            .zip(rows)
            .find(|(actual, row)| actual != row);
        assert_eq!(difference, None, "{view}");
        assert_eq!(actual[view].len(), rows.len(), "{view}");
    }
    let filled = expected.values().filter(|rows| !rows.is_empty());
    assert!(filled.count() > 20, "most views have rows");
}

/// Returns the files below a folder whose names match.
fn find_files(folder: &Path, matches: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            paths.extend(find_files(&path, matches));
        } else if matches(&entry.file_name().to_string_lossy()) {
            paths.push(path);
        }
    }
    paths
}

fn input_files(data: &Path) -> Vec<PathBuf> {
    find_files(&data.join("archive"), &|name| name.contains("-note-"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_executors_publish_the_same_rows() {
    let installations = [create_installation(), create_publishing_installation()];
    let [local, remote] = &installations;
    let cluster = {
        ingest([local, remote], "1", [60, 20, 8, 2_500, 900, 200]);
        Cluster::start(&[remote.data(), remote.data()]).await
    };
    let engine = cluster.engine();
    for round in 0..3 {
        let full: &[&str] = if round == 2 { &["--full"] } else { &[] };
        if round == 1 {
            ingest([local, remote], "2", [20, 5, 2, 400, 150, 60]);
        }
        let expected = run_batch(local.data(), full);
        let reports = run_batch(remote.data(), &[full, &["--engine", &engine]].concat());
        assert_eq!(reports, expected, "round {round}");
        compare(local, remote).await;
    }
    assert_eq!(input_files(remote.data()), Vec::<PathBuf>::new());
    for executor in &cluster.executors {
        let [_, log] = executor.outputs();
        for task in ["days", "publish"] {
            let message = format!("task done task=\"{task}\"");
            assert!(log.contains(&message), "both executors ran tasks: {log}");
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
    run_ok(remote.data(), &job);
    run_ok(local.data(), &job[..4]);
    compare(local, remote).await;
    cluster.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_executor_changes_no_row() {
    let installations = [create_installation(), create_publishing_installation()];
    let [local, remote] = &installations;
    let mut cluster = Cluster::start(&[remote.data(), remote.data()]).await;
    for (seed, task) in [("3", "task=\"days\""), ("4", "task=\"publish\"")] {
        ingest([local, remote], seed, [60, 20, 8, 4_000, 900, 200]);
        let expected = run_batch(local.data(), &[]);
        let engine = cluster.engine();
        let args = ["--json", "batch", "run", "--engine", &engine];
        let count_tasks = |executor: &Process| executor.outputs()[1].matches(task).count();
        let count_before = count_tasks(&cluster.executors[0]);
        let batch = Process::start(remote.data(), &args);
        let started = Instant::now();
        while count_tasks(&cluster.executors[0]) < count_before + 2 {
            assert!(
                started.elapsed() < Duration::from_secs(300),
                "{:?}",
                batch.outputs()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(
            !input_files(remote.data()).is_empty(),
            "the run is in progress"
        );
        assert!(cluster.executors.remove(0).kill(), "the executor had ended");
        let (succeeded, output) = batch.finish();
        assert!(succeeded, "{output:?}");
        let mut reports: Value = serde_json::from_str(&output[0]).expect("JSON");
        for report in reports.as_array_mut().expect("several sources") {
            report["seconds"].take();
        }
        assert_eq!(reports, expected, "round {seed}");
        compare(local, remote).await;
        assert_eq!(input_files(remote.data()), Vec::<PathBuf>::new());
        cluster.add(remote.data()).await;
    }
    cluster.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduled_runs_continue_with_new_executors() {
    let (installation, other) = (create_installation(), create_installation());
    ingest([&installation, &other], "5", [20, 4, 2, 300, 100, 20]);
    let mut cluster = Cluster::start(&[installation.data()]).await;
    let engine = cluster.engine();
    let args = ["batch", "schedule", "--every", "1", "--engine", &engine];
    let schedule = Process::start(installation.data(), &args);
    cluster.executors[0].wait_for_output("task done").await;
    let executor = cluster.executors.remove(0);
    assert!(executor.kill(), "the executor had ended");
    cluster.add(installation.data()).await;
    ingest([&installation, &other], "6", [20, 4, 2, 300, 100, 20]);
    cluster.executors[0].wait_for_output("task done").await;
    cluster.end();
    schedule.wait_for_output("no scheduler answers at").await;
    let (succeeded, output) = schedule.end();
    assert!(succeeded, "it waits for a scheduler: {output:?}");
    run_ok(installation.data(), &["batch", "run"]);
    // Exits with 3 if a row differs from the archive.
    for view in ["plays_detail", "plays_owner_day"] {
        let args = ["restorate", "--view", view, "--expected", "archive"];
        run_ok(installation.data(), &args);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_without_usable_executors_fail_with_a_reason() {
    let (installation, other) = (create_installation(), create_installation());
    ingest([&installation, &other], "4", [20, 4, 2, 300, 100, 20]);
    // An address without a listener.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let unused = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let check_refused = |engine: &str, reason: &str| {
        let started = Instant::now();
        let output = run(installation.data(), &["batch", "run", "--engine", engine]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
        assert_eq!(stderr.trim().lines().count(), 1, "{stderr}");
        assert!(started.elapsed() < Duration::from_secs(28), "{stderr}");
    };
    check_refused(&format!("ballista://{unused}"), "no scheduler answers at");
    let mut cluster = Cluster::start(&[other.data()]).await;
    check_refused(&cluster.engine(), "cannot read the input of a stage");
    assert_eq!(input_files(installation.data()), Vec::<PathBuf>::new());
    // With an executor on the right data folder the same run continues.
    let executor = cluster.executors.remove(0);
    assert!(executor.end().0);
    cluster.add(installation.data()).await;
    let reports = run_batch(installation.data(), &["--engine", &cluster.engine()]);
    assert_eq!(reports, run_batch(other.data(), &[]));
    compare(&other, &installation).await;
    cluster.end();
}
