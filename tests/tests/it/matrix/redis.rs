//! Live state that is lost, or is suddenly as it was some time ago.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemas::source::Source;
use tests::own::OwnServer;
use tests::process::Process;
use tests::proxy::{Gate, Holds, Proxy};

use super::scene::{Scene, Setting};
use super::workers::sum;
use super::{seed, tell};

fn setting(redis: &str) -> Setting {
    let mut setting = Setting::default();
    setting.direct.redis = redis.to_owned();
    setting.through.redis = redis.to_owned();
    setting
}

fn heals(worker: Process) -> u64 {
    let (succeeded, said) = worker.end();
    assert!(succeeded, "{said:?}");
    sum(&said[0], "heals")
}

/// Everything is deleted, also while a worker is at it and between runs of the batch layer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushall_on_servers() {
    let redis = OwnServer::redis();
    let mut scene = Scene::begin(&setting(&redis.address()), seed(6)).await;
    let worker = scene.worker();
    for round in 0..3 {
        scene.take_plays(600).await;
        scene.take_rows(4).await;
        if round == 1 {
            scene.settle().await;
        }
        scene.world.disturb();
        assert_eq!(redis.ask_redis(&["FLUSHALL"]), "OK");
        scene.ask_rows(4).await;
        scene.settle().await;
        scene.compare().await;
        if round < 2 {
            scene.run_batch(&[]).await;
            scene.compare().await;
        }
    }
    let heals = heals(worker);
    scene.end().await;
    tell(
        "FLUSHALL",
        &format!("3 times, {heals} slots began a new life"),
    );
    assert!(heals >= 6, "{heals}");
}

/// Redis is killed, and starts again without what it had written last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_without_its_last_second_on_servers() {
    let mut redis = OwnServer::redis();
    let mut scene = Scene::begin(&setting(&redis.address()), seed(7)).await;
    let worker = scene.worker();
    let mut rewound = 0;
    for round in 0..3 {
        scene.take_plays(200).await;
        scene.take_rows(3).await;
        scene.settle().await;
        let (file, length) = appended(redis.folder());
        scene.take_plays(200).await;
        scene.take_rows(3).await;
        scene.settle().await;
        if round == 1 {
            // Then what comes back is older than the newest run, and begins a new life there.
            scene.run_batch(&[]).await;
        }
        let counted = scene.plays_counted().await;
        scene.world.disturb();
        let before = scene.heard();
        redis.kill();
        let file = OpenOptions::new().write(true).open(file).expect("the file");
        file.set_len(length).expect("a shorter file");
        // The worker must not count before what is there now was seen.
        worker.signal("-STOP");
        redis.start_again();
        let now = scene.plays_counted().await;
        assert!(now < counted, "nothing was lost: {now} of {counted}");
        rewound += counted - now;
        scene.live_fell_back(before);
        scene.ask_rows(2).await;
        worker.signal("-CONT");
        scene.settle().await;
        scene.compare().await;
    }
    heals(worker);
    scene.end().await;
    tell(
        "Redis without its last second",
        &format!("killed 3 times, {rewound} records went back"),
    );
}

/// The newest file of appended commands, and how long it is.
fn appended(folder: &Path) -> (PathBuf, u64) {
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

/// The server is gone, and a replica takes its place to which the last writes had not come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_promoted_that_lacks_the_last_writes_on_servers() {
    let mut primary = OwnServer::redis();
    let replica = OwnServer::redis();
    let (between, before) = (Arc::<Gate>::default(), Arc::<Gate>::default());
    let stream = Proxy::to(&primary.address(), &between).await;
    let way = Proxy::to(&primary.address(), &before).await;
    let (host, port) = stream.address.split_once(':').expect("a port");
    assert_eq!(replica.ask_redis(&["REPLICAOF", host, port]), "OK");
    let mut scene = Scene::begin(&setting(&way.address), seed(8)).await;
    let worker = scene.worker();
    scene.take_plays(300).await;
    scene.take_rows(3).await;
    scene.settle().await;
    while !replica
        .ask_redis(&["INFO", "replication"])
        .contains("master_link_status:up")
        || replica.ask_redis(&["DBSIZE"]) != primary.ask_redis(&["DBSIZE"])
    {
        tokio::task::yield_now().await;
    }
    between.hold(Holds::Answers);
    scene.take_plays(300).await;
    scene.take_rows(3).await;
    scene.settle().await;
    let counted = scene.plays_counted().await;
    scene.world.disturb();
    worker.signal("-STOP");
    let heard = scene.heard();
    primary.kill();
    between.cut();
    assert_eq!(replica.ask_redis(&["REPLICAOF", "NO", "ONE"]), "OK");
    way.lead_to(&replica.address());
    before.cut();
    let now = scene.plays_counted().await;
    assert!(
        now < counted,
        "the replica had everything: {now} of {counted}"
    );
    scene.live_fell_back(heard);
    scene.ask_rows(2).await;
    worker.signal("-CONT");
    scene.take_plays(100).await;
    scene.settle().await;
    assert_eq!(scene.behind(Source::Plays).await, Some(0));
    heals(worker);
    scene.end().await;
    tell(
        "a replica is promoted",
        &format!("{} records went back", counted - now),
    );
}
