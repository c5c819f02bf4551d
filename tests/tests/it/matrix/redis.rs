//! Live state that is lost or replaced by an earlier state.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemas::source::Source;
use tests::dedicated_servers::DedicatedServer;
use tests::process::Process;
use tests::proxy::{Gate, Holds, Proxy};

use super::scene::{Scene, Setting};
use super::workers::sum_field;
use super::{print_result, seed};

fn setting(redis: &str) -> Setting {
    let mut setting = Setting::default();
    setting.direct.redis = redis.to_owned();
    setting.proxied.redis = redis.to_owned();
    setting
}

fn stop_and_count_rebuilds(worker: Process) -> u64 {
    let (succeeded, message) = worker.end();
    assert!(succeeded, "{message:?}");
    sum_field(&message[0], "heals")
}

/// All keys are deleted, also while a worker runs and between batch runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushall_on_servers() {
    let redis = DedicatedServer::redis();
    let mut scene = Scene::begin(&setting(&redis.address()), seed(6)).await;
    let worker = scene.worker();
    for round in 0..3 {
        scene.ingest_plays(600).await;
        scene.ingest_rows(4).await;
        if round == 1 {
            scene.settle().await;
        }
        scene.world.disturb();
        assert_eq!(redis.run_redis_command(&["FLUSHALL"]), "OK");
        scene.ask_rows(4).await;
        scene.settle().await;
        scene.compare().await;
        if round < 2 {
            scene.run_batch(&[]).await;
            scene.compare().await;
        }
    }
    let rebuilds = stop_and_count_rebuilds(worker);
    scene.end().await;
    print_result(
        "FLUSHALL",
        &format!("3 times, {rebuilds} partition states started a new generation"),
    );
    assert!(rebuilds >= 6, "{rebuilds}");
}

/// Redis is killed, and restarts without its last writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_without_its_last_second_on_servers() {
    let mut redis = DedicatedServer::redis();
    let mut scene = Scene::begin(&setting(&redis.address()), seed(7)).await;
    let worker = scene.worker();
    let mut rewound = 0;
    for round in 0..3 {
        scene.ingest_plays(200).await;
        scene.ingest_rows(3).await;
        scene.settle().await;
        let (file, length) = newest_append_file(redis.folder());
        scene.ingest_plays(200).await;
        scene.ingest_rows(3).await;
        scene.settle().await;
        if round == 1 {
            // Then the restored state is older than the latest run, and starts a new generation.
            scene.run_batch(&[]).await;
        }
        let counted = scene.counted_plays().await;
        scene.world.disturb();
        let counts_before = scene.answer_counts();
        redis.kill();
        let file = OpenOptions::new().write(true).open(file).expect("the file");
        file.set_len(length).expect("a shorter file");
        // The worker must not count before the test has read the restored state.
        worker.signal("-STOP");
        redis.restart();
        let counted_after = scene.counted_plays().await;
        assert!(
            counted_after < counted,
            "nothing was lost: {counted_after} of {counted}"
        );
        rewound += counted - counted_after;
        scene.mark_live_reset(counts_before);
        scene.ask_rows(2).await;
        worker.signal("-CONT");
        scene.settle().await;
        scene.compare().await;
    }
    stop_and_count_rebuilds(worker);
    scene.end().await;
    print_result(
        "Redis without its last second",
        &format!("killed 3 times, {rewound} records were lost"),
    );
}

/// The newest append-only file, and its length.
fn newest_append_file(folder: &Path) -> (PathBuf, u64) {
    let folder = folder.join("data/redis/appendonlydir");
    let files = std::fs::read_dir(folder).expect("appended commands");
    let files = files.map(|file| file.expect("a file").path());
    let mut files: Vec<PathBuf> = files
        .filter(|file| file.to_string_lossy().ends_with(".incr.aof"))
        .collect();
    files.sort();
    let file = files.pop().expect("a file");
    let length = file.metadata().expect("a file").len();
    (file, length)
}

/// The server is lost, and a replica without the last writes is promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_promoted_that_lacks_the_last_writes_on_servers() {
    let mut primary = DedicatedServer::redis();
    let replica = DedicatedServer::redis();
    let (replica_gate, client_gate) = (Arc::<Gate>::default(), Arc::<Gate>::default());
    let replication_proxy = Proxy::start(&primary.address(), &replica_gate).await;
    let client_proxy = Proxy::start(&primary.address(), &client_gate).await;
    let (host, port) = replication_proxy.address.split_once(':').expect("a port");
    assert_eq!(replica.run_redis_command(&["REPLICAOF", host, port]), "OK");
    let mut scene = Scene::begin(&setting(&client_proxy.address), seed(8)).await;
    let worker = scene.worker();
    scene.ingest_plays(300).await;
    scene.ingest_rows(3).await;
    scene.settle().await;
    while !replica
        .run_redis_command(&["INFO", "replication"])
        .contains("master_link_status:up")
        || replica.run_redis_command(&["DBSIZE"]) != primary.run_redis_command(&["DBSIZE"])
    {
        tokio::task::yield_now().await;
    }
    replica_gate.hold(Holds::Replies);
    scene.ingest_plays(300).await;
    scene.ingest_rows(3).await;
    scene.settle().await;
    let counted = scene.counted_plays().await;
    scene.world.disturb();
    worker.signal("-STOP");
    let since = scene.answer_counts();
    primary.kill();
    replica_gate.cut();
    assert_eq!(replica.run_redis_command(&["REPLICAOF", "NO", "ONE"]), "OK");
    client_proxy.forward_to(&replica.address());
    client_gate.cut();
    let counted_after = scene.counted_plays().await;
    assert!(
        counted_after < counted,
        "the replica had everything: {counted_after} of {counted}"
    );
    scene.mark_live_reset(since);
    scene.ask_rows(2).await;
    worker.signal("-CONT");
    scene.ingest_plays(100).await;
    scene.settle().await;
    assert_eq!(scene.lag(Source::Plays).await, Some(0));
    stop_and_count_rebuilds(worker);
    scene.end().await;
    print_result(
        "a replica is promoted",
        &format!("{} records were lost", counted - counted_after),
    );
}
