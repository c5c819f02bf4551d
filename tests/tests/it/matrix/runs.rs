//! Batch runs that are killed in each stage, run concurrently, or resume after another run has
//! replaced them.

use std::time::Duration;

use rand::Rng;
use tests::process::Process;

use super::scene::{Scene, Setting};
use super::{print_result, seed};

pub(super) const RUN: [&str; 4] = ["batch", "run", "--log-level", "warn,batch=debug"];
/// The number of stages of plays and of efforts; those of authorizations are the same.
const STAGES_MAX: usize = 14;

/// The names of the stages that a run has begun.
fn begun_stages(run: &Process) -> Vec<String> {
    let message = run.outputs()[1].clone();
    let started = message
        .lines()
        .filter(|line| line.contains("stage started stage="));
    let name = |line: &str| line.split('"').nth(1).map(str::to_owned);
    started.filter_map(name).collect()
}

/// Waits until a run has begun this number of stages, or has ended; returns whether it still runs.
pub(super) async fn wait_stages(run: &mut Process, count: usize) -> bool {
    while run.is_running() {
        if begun_stages(run).len() >= count {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    false
}

/// A run is killed in each of its stages, and another run follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_run_is_killed_in_each_stage_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(10)).await;
    let worker = scene.worker();
    scene.run_batch(&[]).await;
    scene.ingest_plays(60).await;
    scene.ingest_rows(2).await;
    let mut complete_run = scene.start(&RUN);
    while complete_run.is_running() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let names = begun_stages(&complete_run);
    assert!(
        names.len() >= STAGES_MAX,
        "{names:?} {:?}",
        complete_run.finish()
    );
    let mut killed = Vec::new();
    for (index, name) in names.iter().take(STAGES_MAX).enumerate() {
        scene.ingest_plays(60).await;
        scene.ingest_rows(2).await;
        // The lease of the killed run expires.
        let mut run = loop {
            let mut run = scene.start(&RUN);
            if wait_stages(&mut run, index + 1).await {
                break run;
            }
            let (succeeded, message) = run.finish();
            let is_busy =
                message[1].contains("a batch run is under way") || message[1].contains("lease");
            assert!(succeeded || is_busy, "{message:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let wait = scene.rng.random_range(0..25);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        if run.is_running() {
            killed.push(begun_stages(&run).pop().unwrap_or_else(|| name.clone()));
        }
        run.kill();
        scene.ask_rows(1).await;
        scene.world.mark_live_restored();
    }
    scene.settle().await;
    assert!(worker.end().0);
    scene.end().await;
    print_result(
        "batch run killed in each stage",
        &format!("killed in {killed:?}"),
    );
    assert!(killed.len() > STAGES_MAX / 2, "{killed:?}");
}

/// Two runs at the same time: one works, the other is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_batch_runs_at_once_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(11)).await;
    let worker = scene.worker();
    let mut refused = 0;
    for round in 0..6 {
        scene.ingest_plays(200).await;
        scene.ingest_rows(3).await;
        let runs = [(); 2].map(|()| scene.start(&RUN[..2]));
        for run in runs {
            let (succeeded, message) = run.finish();
            if !succeeded {
                assert!(
                    message[1].contains("a batch run is under way"),
                    "{message:?}"
                );
                refused += 1;
            }
        }
        if refused > 0 && round > 0 {
            break;
        }
    }
    scene.settle().await;
    assert!(worker.end().0);
    scene.end().await;
    print_result("two batch runs at once", &format!("{refused} refused"));
    assert!(refused > 0, "no run was refused");
}

/// A run is paused for longer than its lease, another one replaces it, and then it resumes its
/// writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overtaken_batch_run_resumes_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(12)).await;
    let worker = scene.worker();
    scene.run_batch(&[]).await;
    let mut overtaken = 0;
    for stage in ["publish", "compute", "seal"] {
        scene.ingest_plays(300).await;
        scene.ingest_rows(3).await;
        scene.settle().await;
        let mut paused_run = scene.start(&RUN);
        while paused_run.is_running() && !begun_stages(&paused_run).iter().any(|name| name == stage)
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(paused_run.is_running(), "{:?}", paused_run.outputs());
        paused_run.signal("-STOP");
        scene.run_batch(&[]).await;
        scene.ingest_plays(50).await;
        scene.compare().await;
        paused_run.signal("-CONT");
        let (succeeded, message) = paused_run.finish();
        overtaken += usize::from(!succeeded && message[1].contains("lease"));
        scene.settle().await;
        scene.compare().await;
    }
    assert!(worker.end().0);
    scene.end().await;
    print_result(
        "an overtaken batch run resumes",
        &format!("{overtaken} of 3 found their lease lost"),
    );
    assert!(overtaken > 0, "{overtaken}");
}
