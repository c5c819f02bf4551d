//! Processes on one data folder: killed at random moments, run concurrently, and with live state
//! lost. Responses are compared with a recount of the raw log.

use std::path::Path;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tests::http::Client;
use tests::installation::Installation;
use tests::play_queries::{PlayGenerator, check_random_query};
use tests::process::{Process, Server, run, run_ok};
use tests::world::World;

const QUERIES: usize = 12;

pub(crate) async fn compare(world: &World, client: &Client, rng: &mut SmallRng, count: usize) {
    for _ in 0..count {
        check_random_query(world, client, rng).await;
    }
}

fn write_lines(folder: &Path, name: &str, lines: &[String]) -> String {
    let file = folder.join(name);
    std::fs::write(&file, lines.join("\n")).expect("a file");
    file.to_string_lossy().into_owned()
}

/// Ingests and counts once, which creates the log and the partition states.
fn ingest_and_count(data: &Path, traffic: &mut PlayGenerator, count: usize) {
    let file = write_lines(
        data.parent().expect("a folder"),
        "first.jsonl",
        &traffic.lines(count),
    );
    run_ok(data, &["ingest", "plays", &file]);
    run_ok(data, &["speed", "--until-caught-up"]);
}

/// Runs a batch, and retries while the lease of a killed run is still valid.
async fn run_batch(data: &Path, options: &[&str]) {
    let args = [&["batch", "run"], options].concat();
    for _ in 0..120 {
        let output = run(data, &args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            return;
        }
        assert!(stderr.contains("a batch run is under way"), "{stderr}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("the lease of a killed run did not expire");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_after_kills_at_random_moments() {
    check_counts_after_kills(&Installation::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_after_kills_at_random_moments_on_servers() {
    check_counts_after_kills(&Installation::on_servers()).await;
}

async fn check_counts_after_kills(installation: &Installation) {
    let data = installation.data();
    let mut rng = SmallRng::seed_from_u64(7);
    let mut traffic = PlayGenerator::new(7);
    ingest_and_count(data, &mut traffic, 300);
    let world = installation.world().await;
    let server = Server::start(data, &[]);
    let mut killed = 0;
    for round in 0..16 {
        let file = write_lines(
            installation.folder(),
            &format!("{round}.jsonl"),
            &traffic.lines(200),
        );
        let ingest = ["ingest", "plays", file.as_str()];
        let args: &[&str] = match round % 4 {
            0 => &ingest,
            1 => &["speed"],
            2 => &["archive"],
            _ => &["batch", "run"],
        };
        if round % 4 != 0 {
            run_ok(data, &ingest);
        }
        let process = Process::start(data, args);
        let wait = Duration::from_millis(rng.random_range(20..1_200));
        tokio::time::sleep(wait / 2).await;
        compare(&world, &server.client, &mut rng, 1).await;
        tokio::time::sleep(wait / 2).await;
        killed += usize::from(process.kill());
        compare(&world, &server.client, &mut rng, 2).await;
        if round % 4 == 0 {
            run_ok(data, &ingest);
        }
    }
    assert!(
        killed >= 8,
        "only {killed} processes were still running when they were killed"
    );
    run_ok(data, &["speed", "--until-caught-up"]);
    compare(&world, &server.client, &mut rng, QUERIES).await;
    run_batch(data, &[]).await;
    compare(&world, &server.client, &mut rng, QUERIES).await;
    run_batch(data, &["--full"]).await;
    compare(&world, &server.client, &mut rng, QUERIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_speed_workers_count_every_event_once() {
    check_two_workers(&Installation::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_speed_workers_count_every_event_once_on_servers() {
    check_two_workers(&Installation::on_servers()).await;
}

async fn check_two_workers(installation: &Installation) {
    let data = installation.data();
    let mut rng = SmallRng::seed_from_u64(8);
    let mut traffic = PlayGenerator::new(8);
    ingest_and_count(data, &mut traffic, 50);
    let world = installation.world().await;
    let server = Server::start(data, &[]);
    let workers = [
        Process::start(data, &["speed"]),
        Process::start(data, &["speed"]),
    ];
    for round in 0..4 {
        let file = write_lines(
            installation.folder(),
            &format!("{round}.jsonl"),
            &traffic.lines(400),
        );
        run_ok(data, &["ingest", "plays", &file]);
        compare(&world, &server.client, &mut rng, 3).await;
    }
    run_ok(data, &["speed", "--until-caught-up"]);
    compare(&world, &server.client, &mut rng, QUERIES).await;
    for process in workers {
        assert!(process.kill(), "a worker ended by itself");
    }
    run_ok(data, &["batch", "run"]);
    compare(&world, &server.client, &mut rng, QUERIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_live_state_is_replayed() {
    check_deleted_live_state(&Installation::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_live_state_is_replayed_on_servers() {
    check_deleted_live_state(&Installation::on_servers()).await;
}

async fn check_deleted_live_state(installation: &Installation) {
    let data = installation.data();
    let mut rng = SmallRng::seed_from_u64(9);
    let mut traffic = PlayGenerator::new(9);
    ingest_and_count(data, &mut traffic, 300);
    let world = installation.world().await;
    run_ok(data, &["batch", "run"]);
    let file = write_lines(installation.folder(), "more.jsonl", &traffic.lines(300));
    run_ok(data, &["ingest", "plays", &file]);
    run_ok(data, &["speed", "--until-caught-up"]);
    let server = Server::start(data, &[]);
    compare(&world, &server.client, &mut rng, QUERIES).await;
    world.delete_live_state();
    run_ok(data, &["speed", "--until-caught-up"]);
    world.mark_live_restored();
    compare(&world, &server.client, &mut rng, QUERIES).await;
    // The next run is exact, too.
    let report = run_ok(data, &["batch", "run", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["epoch"], 2, "{report}");
    compare(&world, &server.client, &mut rng, QUERIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_concurrent_batch_run_is_rejected() {
    check_second_run(&Installation::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_concurrent_batch_run_is_rejected_on_servers() {
    check_second_run(&Installation::on_servers()).await;
}

async fn check_second_run(installation: &Installation) {
    let data = installation.data();
    ingest_and_count(data, &mut PlayGenerator::new(1), 20);
    let world = installation.world().await;
    let lease = world
        .stores
        .leases
        .acquire("batch-plays", "the test")
        .await
        .expect("a lease");
    assert!(lease.is_ok());
    let refused = run(data, &["batch", "run"]);
    assert_eq!(refused.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(stderr.contains("the test"), "{stderr}");
    assert_eq!(stderr.trim().lines().count(), 1, "{stderr}");
    drop(lease);
    run_ok(data, &["batch", "run"]);
}
