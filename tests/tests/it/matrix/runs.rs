//! Runs of the batch layer that are killed in each stage, run side by side, and come back after
//! another has taken their place.

use std::time::Duration;

use rand::Rng;
use tests::process::Process;

use super::scene::{Scene, Setting};
use super::{seed, tell};

pub(super) const RUN: [&str; 4] = ["batch", "run", "--log-level", "warn,batch=debug"];
/// So many stages of plays and of efforts; those of authorizations are the same again.
const STAGES_MAX: usize = 14;

/// The stages that a run has begun so far, by their names.
fn stages(run: &Process) -> Vec<String> {
    let said = run.said()[1].clone();
    let begun = said.lines().filter(|line| line.contains("begins stage="));
    let name = |line: &str| line.split('"').nth(1).map(str::to_owned);
    begun.filter_map(name).collect()
}

/// Waits until a run has begun so many stages, or has ended; whether it is still there.
pub(super) async fn has_begun(run: &mut Process, count: usize) -> bool {
    while run.is_running() {
        if stages(run).len() >= count {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    false
}

/// A run is killed in each of its stages; another one follows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_run_is_killed_in_each_stage_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(10)).await;
    let worker = scene.worker();
    scene.run_batch(&[]).await;
    scene.take_plays(60).await;
    scene.take_rows(2).await;
    let mut whole = scene.start(&RUN);
    while whole.is_running() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let names = stages(&whole);
    assert!(names.len() >= STAGES_MAX, "{names:?} {:?}", whole.finish());
    let mut killed = Vec::new();
    for (index, name) in names.iter().take(STAGES_MAX).enumerate() {
        scene.take_plays(60).await;
        scene.take_rows(2).await;
        // The lease of the one that was killed before ends by itself.
        let mut run = loop {
            let mut run = scene.start(&RUN);
            if has_begun(&mut run, index + 1).await {
                break run;
            }
            let (succeeded, said) = run.finish();
            let busy = said[1].contains("a batch run is under way") || said[1].contains("lease");
            assert!(succeeded || busy, "{said:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let wait = scene.rng.random_range(0..25);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        if run.is_running() {
            killed.push(stages(&run).pop().unwrap_or_else(|| name.clone()));
        }
        run.kill();
        scene.ask_rows(1).await;
        scene.world.live_is_back();
    }
    scene.settle().await;
    assert!(worker.end().0);
    scene.end().await;
    tell(
        "batch run killed in each stage",
        &format!("killed in {killed:?}"),
    );
    assert!(killed.len() > STAGES_MAX / 2, "{killed:?}");
}

/// Two runs at the same time: one does the work, the other is told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_batch_runs_at_once_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(11)).await;
    let worker = scene.worker();
    let mut refused = 0;
    for round in 0..6 {
        scene.take_plays(200).await;
        scene.take_rows(3).await;
        let both = [(); 2].map(|()| scene.start(&RUN[..2]));
        for run in both {
            let (succeeded, said) = run.finish();
            if !succeeded {
                assert!(said[1].contains("a batch run is under way"), "{said:?}");
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
    tell("two batch runs at once", &format!("{refused} refused"));
    assert!(refused > 0, "they never met");
}

/// A run is silent for longer than its lease, another one takes its place, and then it goes on with
/// what it was about to write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_run_goes_on_after_it_was_overtaken_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(12)).await;
    let worker = scene.worker();
    scene.run_batch(&[]).await;
    let mut overtaken = 0;
    for stage in ["publish", "compute", "seal"] {
        scene.take_plays(300).await;
        scene.take_rows(3).await;
        scene.settle().await;
        let mut late = scene.start(&RUN);
        while late.is_running() && !stages(&late).iter().any(|name| name == stage) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(late.is_running(), "{:?}", late.said());
        late.signal("-STOP");
        scene.run_batch(&[]).await;
        scene.take_plays(50).await;
        scene.compare().await;
        late.signal("-CONT");
        let (succeeded, said) = late.finish();
        overtaken += usize::from(!succeeded && said[1].contains("lease"));
        scene.settle().await;
        scene.compare().await;
    }
    assert!(worker.end().0);
    scene.end().await;
    tell(
        "a batch run is overtaken and goes on",
        &format!("{overtaken} of 3 found their lease lost"),
    );
    assert!(overtaken > 0, "{overtaken}");
}
