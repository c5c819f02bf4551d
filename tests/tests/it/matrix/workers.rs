//! Workers that are killed, that fight, and that are taken their partitions while they work.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use schemas::source::Source;
use serde_json::Value;
use tests::proxy::{Gate, Holds};

use super::rig::{Named, Rig};
use super::scene::{Scene, Setting};
use super::{seed, tell};

const KILLS: usize = 12;
/// More than the session of a group of consumers lasts.
const SILENCE: Duration = Duration::from_millis(8_500);
/// What a worker says once it has been given something to do.
const HAS_PARTITIONS: &str = "partitions were assigned to this process";

/// A worker is killed after any request or answer to or from any server; what was under way then is
/// lost, or arrives after its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_killed_between_any_two_steps_on_servers() {
    let gate = Arc::<Gate>::default();
    let rig = Rig::behind(&gate).await;
    let mut scene = Scene::begin(&rig.setting, seed(1)).await;
    let work = ["speed", "--until-caught-up"];
    scene.take_plays(120).await;
    scene.take_rows(3).await;
    let before = gate.passed();
    assert!(scene.start(&work).wait(), "undisturbed it works");
    let pieces = gate.passed() - before;
    let (mut killed, mut moved) = (0, 0);
    for round in 0..KILLS as u64 {
        scene.take_plays(120).await;
        scene.take_rows(3).await;
        let counted = scene.plays_counted().await;
        let (after, holds) = (
            scene.rng.random_range(round % 2 * pieces / 2..pieces),
            scene.rng.random_range(0..3),
        );
        let holds = [Holds::Requests, Holds::Answers, Holds::Everything][holds];
        let held = gate.held();
        gate.hold_after(after, holds);
        let mut worker = scene.start(&work);
        while gate.held() == held && worker.is_running() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // What has gone to a server is done there.
        tokio::time::sleep(Duration::from_millis(30)).await;
        killed += usize::from(worker.kill());
        moved += usize::from(scene.plays_counted().await > counted);
        if scene.rng.random() {
            gate.cut();
        }
        gate.hold(Holds::Nothing);
        scene.ask_rows(2).await;
    }
    scene.catch_up().await;
    scene.end().await;
    tell(
        "worker killed between any two steps",
        &format!("{killed} of {KILLS} killed in {pieces} steps, {moved} had counted something"),
    );
    assert!(killed >= KILLS / 2 && moved > 0, "{killed} {moved}");
}

/// A worker is killed when Redis has applied a micro-batch and has told nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_killed_after_redis_applied_on_servers() {
    let gate = Arc::<Gate>::default();
    let rig = Rig::before(&[(Named::Redis, Arc::clone(&gate))].into()).await;
    let mut scene = Scene::begin(&rig.setting, seed(2)).await;
    let mut applied = 0;
    for round in 0..6 {
        scene.take_plays(80).await;
        let counted = scene.plays_counted().await;
        let held = gate.held();
        // Only a script that writes brings the record of a slot along.
        gate.hold_answer_to("replay_until");
        let mut worker = scene.start(&["speed", "--until-caught-up", "--source", "plays"]);
        while gate.held() == held && worker.is_running() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(worker.kill(), "round {round}: it waits for an answer");
        applied += usize::from(scene.plays_counted().await > counted);
        gate.cut();
        gate.hold(Holds::Nothing);
    }
    scene.catch_up().await;
    scene.end().await;
    tell(
        "worker killed after Redis applied",
        &format!("{applied} micro-batches of 6 workers were applied and not told"),
    );
    assert!(applied >= 4, "{applied}");
}

/// Two workers each believe that every partition is theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_fight_over_partitions_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(3)).await;
    let mut refused = 0;
    for round in 0..6 {
        scene.take_plays(800).await;
        scene.take_rows(3).await;
        let both = [(); 2].map(|()| scene.start(&["speed", "--until-caught-up", "--json"]));
        for worker in both {
            let (succeeded, said) = worker.finish();
            assert!(succeeded, "{said:?}");
            refused += refusals(&said[0]);
        }
        if refused > 0 && round > 0 {
            break;
        }
    }
    scene.settle().await;
    scene.end().await;
    tell(
        "two workers on each partition",
        &format!("{refused} refused by the fence"),
    );
    assert!(refused > 0, "they never met");
}

/// Partitions are taken from a worker in the middle of its work: others come, and it is silent for so
/// long that they take over, and then goes on where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebalance_in_the_middle_of_a_batch_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(4)).await;
    let (mut refused, mut went) = (0, 0);
    for round in 0..8 {
        let silent = scene.worker();
        silent.until_said(HAS_PARTITIONS).await;
        scene.take_plays(1_500).await;
        scene.take_rows(4).await;
        let counted = scene.plays_counted().await;
        // In the middle of its work.
        while scene.plays_counted().await == counted && scene.behind(Source::Plays).await != Some(0)
        {
            tokio::task::yield_now().await;
        }
        silent.signal("-STOP");
        let is_in_the_middle = scene.behind(Source::Plays).await > Some(0);
        let other = scene.worker();
        let began = tokio::time::Instant::now();
        while is_in_the_middle && began.elapsed() < SILENCE {
            scene.ask_rows(1).await;
        }
        silent.signal("-CONT");
        scene.settle().await;
        for worker in [silent, other] {
            let (succeeded, said) = worker.end();
            assert!(succeeded, "{said:?}");
            refused += refusals(&said[0]);
            went += said[1]
                .matches("partitions were revoked from this process")
                .count();
        }
        if refused > 0 && went > 0 && round > 0 {
            break;
        }
    }
    scene.end().await;
    tell(
        "rebalance in mid-batch",
        &format!("partitions went {went} times, {refused} refused by the fence"),
    );
    assert!(refused > 0 && went > 0, "{refused} {went}");
}

/// How often a worker was refused, by its report.
pub(super) fn refusals(report: &str) -> u64 {
    sum(report, "refusals")
}

/// A number of a worker's report, over all sources.
pub(super) fn sum(report: &str, name: &str) -> u64 {
    let report: Value = serde_json::from_str(report).expect("a report");
    let sources = report.as_object().expect("sources");
    sources.values().filter_map(|of| of[name].as_u64()).sum()
}

/// Events arrive several times, in files that are taken in again, some by producers that are killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_sends_duplicates_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(5)).await;
    let worker = scene.worker();
    worker.until_said(HAS_PARTITIONS).await;
    let mut killed = 0;
    for _ in 0..4 {
        let file = scene.write_plays(400);
        let ingest = ["ingest", "plays", file.as_str()];
        let producer = scene.start(&ingest);
        let wait = scene.rng.random_range(100..900);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        killed += usize::from(producer.kill());
        for _ in 0..2 {
            assert!(scene.start(&ingest).wait(), "it is taken in");
        }
    }
    scene.settle().await;
    let (succeeded, said) = worker.end();
    assert!(succeeded, "{said:?}");
    let duplicates = sum(&said[0], "duplicates");
    scene.end().await;
    tell(
        "producer sends duplicates",
        &format!("{duplicates} passed over live, {killed} producers killed"),
    );
    assert!(duplicates >= 1_200, "{duplicates}");
}
