//! Cassandra is away.

use std::time::Duration;

use tests::own::OwnServer;

use super::scene::{Counts, Scene, Setting};
use super::{seed, tell};

/// Cassandra is killed while a run publishes, and is away while questions are asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cassandra_is_killed_during_a_load_and_reads_on_servers() {
    let mut cassandra = OwnServer::cassandra();
    let mut setting = Setting::default();
    setting.direct.cassandra = cassandra.address();
    setting.through.cassandra = cassandra.address();
    let mut scene = Scene::begin(&setting, seed(9)).await;
    scene.run_batch(&[]).await;
    let worker = scene.worker();
    let mut during = Counts::default();
    for stage in ["publish", "compute"] {
        scene.take_plays(300).await;
        scene.take_rows(3).await;
        scene.settle().await;
        scene.compare().await;
        let mut run = scene.start(&["batch", "run", "--log-level", "warn,batch=debug"]);
        while !run.said()[1].contains(&format!("stage=\"{stage}\"")) {
            assert!(run.is_running(), "{:?}", run.said());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        scene.world.disturb();
        let before = scene.heard();
        cassandra.kill();
        scene.take_plays(100).await;
        let (succeeded, said) = run.finish();
        assert!(!succeeded, "a run without Cassandra: {said:?}");
        let last = said[1].trim().lines().last().unwrap_or_default().to_owned();
        assert!(last.contains("Cassandra"), "{last}");
        scene.answers_of_before(before).await;
        during = scene.heard();
        cassandra.start_again();
        scene.settle().await;
        scene.answers_again().await;
        scene.compare().await;
        scene.run_batch(&[]).await;
        scene.compare().await;
    }
    let (succeeded, said) = worker.end();
    assert!(succeeded, "{said:?}");
    let heard = scene.end().await;
    tell(
        "Cassandra killed during a load and reads",
        &format!(
            "killed twice; {during:?} until then, in the end {:?}",
            heard.counts()
        ),
    );
}
