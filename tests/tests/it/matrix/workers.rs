//! Workers that are killed, that compete, or that lose their partitions while they work.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use schemas::source::Source;
use serde_json::Value;
use tests::proxy::{Gate, Holds};

use super::proxied_servers::{ProxiedServers, ServerName};
use super::scene::{Scene, Setting};
use super::{print_result, seed};

const KILLS_MAX: usize = 12;
/// Longer than the session timeout of a consumer group.
const SILENCE: Duration = Duration::from_millis(8_500);
/// A worker logs this when it is assigned partitions.
const HAS_PARTITIONS: &str = "partitions were assigned to this process";

/// A worker is killed after any request to or reply from any server. Data in flight is lost, or
/// arrives after its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_killed_between_any_two_steps_on_servers() {
    let gate = Arc::<Gate>::default();
    let proxied_servers = ProxiedServers::all_behind(&gate).await;
    let mut scene = Scene::begin(&proxied_servers.setting, seed(1)).await;
    let work = ["speed", "--until-caught-up"];
    scene.ingest_plays(120).await;
    scene.ingest_rows(3).await;
    let before = gate.passed_chunks();
    assert!(scene.start(&work).wait(), "an undisturbed worker failed");
    let chunks = gate.passed_chunks() - before;
    let (mut killed, mut moved) = (0, 0);
    for round in 0..KILLS_MAX as u64 {
        scene.ingest_plays(120).await;
        scene.ingest_rows(3).await;
        let counted_before = scene.counted_plays().await;
        let (chunk_count, holds) = (
            scene.rng.random_range(round % 2 * chunks / 2..chunks),
            scene.rng.random_range(0..3),
        );
        let holds = [Holds::Requests, Holds::Replies, Holds::Everything][holds];
        let held_chunks = gate.held_chunks();
        gate.hold_after(chunk_count, holds);
        let mut worker = scene.start(&work);
        while gate.held_chunks() == held_chunks && worker.is_running() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Requests that have reached a server are executed.
        tokio::time::sleep(Duration::from_millis(30)).await;
        killed += usize::from(worker.kill());
        moved += usize::from(scene.counted_plays().await > counted_before);
        if scene.rng.random() {
            gate.cut();
        }
        gate.hold(Holds::Nothing);
        scene.ask_rows(2).await;
    }
    scene.catch_up().await;
    scene.end().await;
    print_result(
        "worker killed between any two steps",
        &format!("{killed} of {KILLS_MAX} killed in {chunks} steps, {moved} had counted something"),
    );
    assert!(killed >= KILLS_MAX / 2 && moved > 0, "{killed} {moved}");
}

/// A worker is killed after Redis has applied a micro-batch, before it receives the reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_killed_after_redis_applied_on_servers() {
    let gate = Arc::<Gate>::default();
    let proxied_servers =
        ProxiedServers::in_front_of(&[(ServerName::Redis, Arc::clone(&gate))].into()).await;
    let mut scene = Scene::begin(&proxied_servers.setting, seed(2)).await;
    let mut applied = 0;
    for round in 0..6 {
        scene.ingest_plays(80).await;
        let counted_before = scene.counted_plays().await;
        let held_chunks = gate.held_chunks();
        // Only a script that writes sends the record of a partition state.
        gate.hold_reply_to("replay_until");
        let mut worker = scene.start(&["speed", "--until-caught-up", "--source", "plays"]);
        while gate.held_chunks() == held_chunks && worker.is_running() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(worker.kill(), "round {round}: it waits for a reply");
        applied += usize::from(scene.counted_plays().await > counted_before);
        gate.cut();
        gate.hold(Holds::Nothing);
    }
    scene.catch_up().await;
    scene.end().await;
    print_result(
        "worker killed after Redis applied",
        &format!("{applied} micro-batches of 6 workers were applied without a reply"),
    );
    assert!(applied >= 4, "{applied}");
}

/// Two workers that each consider every partition theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_compete_for_partitions_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(3)).await;
    let mut refused = 0;
    for round in 0..6 {
        scene.ingest_plays(800).await;
        scene.ingest_rows(3).await;
        let workers = [(); 2].map(|()| scene.start(&["speed", "--until-caught-up", "--json"]));
        for worker in workers {
            let (succeeded, message) = worker.finish();
            assert!(succeeded, "{message:?}");
            refused += refusals(&message[0]);
        }
        if refused > 0 && round > 0 {
            break;
        }
    }
    scene.settle().await;
    scene.end().await;
    print_result(
        "two workers on each partition",
        &format!("{refused} refused writes"),
    );
    assert!(refused > 0, "no write was refused");
}

/// A worker loses its partitions while it works. Others join, and it pauses for so long that they
/// take over, and then resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebalance_in_the_middle_of_a_batch_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(4)).await;
    let (mut refused, mut revocations) = (0, 0);
    for round in 0..8 {
        let paused = scene.worker();
        paused.wait_for_output(HAS_PARTITIONS).await;
        scene.ingest_plays(1_500).await;
        scene.ingest_rows(4).await;
        let counted_before = scene.counted_plays().await;
        // In the middle of its work.
        while scene.counted_plays().await == counted_before
            && scene.lag(Source::Plays).await != Some(0)
        {
            tokio::task::yield_now().await;
        }
        paused.signal("-STOP");
        let is_in_the_middle = scene.lag(Source::Plays).await > Some(0);
        let second_worker = scene.worker();
        let started = tokio::time::Instant::now();
        while is_in_the_middle && started.elapsed() < SILENCE {
            scene.ask_rows(1).await;
        }
        paused.signal("-CONT");
        scene.settle().await;
        for worker in [paused, second_worker] {
            let (succeeded, message) = worker.end();
            assert!(succeeded, "{message:?}");
            refused += refusals(&message[0]);
            revocations += message[1]
                .matches("partitions were revoked from this process")
                .count();
        }
        if refused > 0 && revocations > 0 && round > 0 {
            break;
        }
    }
    scene.end().await;
    print_result(
        "rebalance in mid-batch",
        &format!("{revocations} revocations, {refused} refused writes"),
    );
    assert!(refused > 0 && revocations > 0, "{refused} {revocations}");
}

/// The number of refused writes in a worker's report.
pub(super) fn refusals(report: &str) -> u64 {
    sum_field(report, "refusals")
}

/// A number in a worker's report, over all sources.
pub(super) fn sum_field(report: &str, name: &str) -> u64 {
    let report: Value = serde_json::from_str(report).expect("a report");
    let sources = report.as_object().expect("sources");
    sources
        .values()
        .filter_map(|source| source[name].as_u64())
        .sum()
}

/// Events arrive several times: files are ingested again, and some producers are killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_sends_duplicates_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(5)).await;
    let worker = scene.worker();
    worker.wait_for_output(HAS_PARTITIONS).await;
    let mut killed = 0;
    for _ in 0..4 {
        let file = scene.write_plays(400);
        let ingest = ["ingest", "plays", file.as_str()];
        let producer = scene.start(&ingest);
        let wait = scene.rng.random_range(100..900);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        killed += usize::from(producer.kill());
        for _ in 0..2 {
            assert!(scene.start(&ingest).wait(), "the ingest failed");
        }
    }
    scene.settle().await;
    let (succeeded, message) = worker.end();
    assert!(succeeded, "{message:?}");
    let duplicates = sum_field(&message[0], "duplicates");
    scene.end().await;
    print_result(
        "producer sends duplicates",
        &format!("{duplicates} passed over live, {killed} producers killed"),
    );
    assert!(duplicates >= 1_200, "{duplicates}");
}
