//! The binary as processes on one data folder: killed at any moment, run side by side, and with the
//! live store gone. Answers are compared with a recount of the raw log.

use std::path::Path;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tests::http::Client;
use tests::place::Place;
use tests::process::{Process, Server, done, run};
use tests::questions::{Traffic, ask_and_compare};
use tests::world::World;

const QUESTIONS: usize = 12;

pub(crate) async fn compare(world: &World, client: &Client, rng: &mut SmallRng, questions: usize) {
    for _ in 0..questions {
        ask_and_compare(world, client, rng).await;
    }
}

fn write_lines(folder: &Path, name: &str, lines: &[String]) -> String {
    let file = folder.join(name);
    std::fs::write(&file, lines.join("\n")).expect("a file");
    file.to_string_lossy().into_owned()
}

/// Ingests once in peace, so that the log and the slots are there.
fn begin(data: &Path, traffic: &mut Traffic, count: usize) {
    let file = write_lines(
        data.parent().expect("a folder"),
        "first.jsonl",
        &traffic.lines(count),
    );
    done(data, &["ingest", "plays", &file]);
    done(data, &["speed", "--until-caught-up"]);
}

/// Runs a batch once nobody else does: the lease of a run that was killed lasts a while on servers.
async fn run_batch(data: &Path, more: &[&str]) {
    let args = [&["batch", "run"], more].concat();
    for _ in 0..120 {
        let output = run(data, &args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            return;
        }
        assert!(said.contains("a batch run is under way"), "{said}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("the lease of a run that was killed does not end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_anywhere_and_run_again_everything_is_exact() {
    killed_anywhere(&Place::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_anywhere_and_run_again_everything_is_exact_on_servers() {
    killed_anywhere(&Place::on_servers()).await;
}

async fn killed_anywhere(place: &Place) {
    let data = place.data();
    let mut rng = SmallRng::seed_from_u64(7);
    let mut traffic = Traffic::new(7);
    begin(data, &mut traffic, 300);
    let world = place.world().await;
    let server = Server::start(data, &[]);
    let mut killed = 0;
    for round in 0..16 {
        let file = write_lines(
            place.folder(),
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
            done(data, &ingest);
        }
        let process = Process::start(data, args);
        let wait = Duration::from_millis(rng.random_range(20..1_200));
        tokio::time::sleep(wait / 2).await;
        compare(&world, &server.client, &mut rng, 1).await;
        tokio::time::sleep(wait / 2).await;
        killed += usize::from(process.kill());
        compare(&world, &server.client, &mut rng, 2).await;
        if round % 4 == 0 {
            done(data, &ingest);
        }
    }
    assert!(
        killed >= 8,
        "only {killed} processes were still running when they were killed"
    );
    done(data, &["speed", "--until-caught-up"]);
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
    run_batch(data, &[]).await;
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
    run_batch(data, &["--full"]).await;
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_speed_workers_count_every_event_once() {
    two_workers(&Place::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_speed_workers_count_every_event_once_on_servers() {
    two_workers(&Place::on_servers()).await;
}

async fn two_workers(place: &Place) {
    let data = place.data();
    let mut rng = SmallRng::seed_from_u64(8);
    let mut traffic = Traffic::new(8);
    begin(data, &mut traffic, 50);
    let world = place.world().await;
    let server = Server::start(data, &[]);
    let both = [
        Process::start(data, &["speed"]),
        Process::start(data, &["speed"]),
    ];
    for round in 0..4 {
        let file = write_lines(
            place.folder(),
            &format!("{round}.jsonl"),
            &traffic.lines(400),
        );
        done(data, &["ingest", "plays", &file]);
        compare(&world, &server.client, &mut rng, 3).await;
    }
    done(data, &["speed", "--until-caught-up"]);
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
    for process in both {
        assert!(process.kill(), "a worker ended by itself");
    }
    done(data, &["batch", "run"]);
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_state_that_is_deleted_is_replayed() {
    deleted_live_state(&Place::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_state_that_is_deleted_is_replayed_on_servers() {
    deleted_live_state(&Place::on_servers()).await;
}

async fn deleted_live_state(place: &Place) {
    let data = place.data();
    let mut rng = SmallRng::seed_from_u64(9);
    let mut traffic = Traffic::new(9);
    begin(data, &mut traffic, 300);
    let world = place.world().await;
    done(data, &["batch", "run"]);
    let file = write_lines(place.folder(), "more.jsonl", &traffic.lines(300));
    done(data, &["ingest", "plays", &file]);
    done(data, &["speed", "--until-caught-up"]);
    let server = Server::start(data, &[]);
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
    world.lose_live();
    done(data, &["speed", "--until-caught-up"]);
    world.live_is_back();
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
    // Also the next run is exact, and knows that it has nothing to compare with.
    let report = done(data, &["batch", "run", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["epoch"], 2, "{report}");
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_batch_run_at_once_is_refused() {
    a_second_run(&Place::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_batch_run_at_once_is_refused_on_servers() {
    a_second_run(&Place::on_servers()).await;
}

async fn a_second_run(place: &Place) {
    let data = place.data();
    begin(data, &mut Traffic::new(1), 20);
    let world = place.world().await;
    let held = world
        .stores
        .leases
        .acquire("batch-plays", "the test")
        .await
        .expect("a lease");
    assert!(held.is_ok());
    let refused = run(data, &["batch", "run"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("the test"), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    drop(held);
    done(data, &["batch", "run"]);
}
