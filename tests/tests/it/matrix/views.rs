//! An unavailable Cassandra.

use std::time::Duration;

use tests::dedicated_servers::DedicatedServer;

use super::scene::{Counts, Scene, Setting};
use super::{print_result, seed};

/// Cassandra is killed while a run publishes, and is unavailable while questions are asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cassandra_is_killed_while_a_run_publishes_on_servers() {
    let mut cassandra = DedicatedServer::cassandra();
    let mut setting = Setting::default();
    setting.direct.cassandra = cassandra.address();
    setting.proxied.cassandra = cassandra.address();
    let mut scene = Scene::begin(&setting, seed(9)).await;
    scene.run_batch(&[]).await;
    let worker = scene.worker();
    let mut counts = Counts::default();
    for stage in ["publish", "compute"] {
        scene.ingest_plays(300).await;
        scene.ingest_rows(3).await;
        scene.settle().await;
        scene.compare().await;
        let mut run = scene.start(&["batch", "run", "--log-level", "warn,batch=debug"]);
        while !run.outputs()[1].contains(&format!("stage=\"{stage}\"")) {
            assert!(run.is_running(), "{:?}", run.outputs());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        scene.world.disturb();
        let counts_before = scene.answer_counts();
        cassandra.kill();
        scene.ingest_plays(100).await;
        let (succeeded, message) = run.finish();
        assert!(!succeeded, "a run without Cassandra: {message:?}");
        let last = message[1]
            .trim()
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned();
        assert!(last.contains("Cassandra"), "{last}");
        scene.wait_earlier_answer(counts_before).await;
        counts = scene.answer_counts();
        cassandra.restart();
        scene.settle().await;
        scene.wait_complete_answers().await;
        scene.compare().await;
        scene.run_batch(&[]).await;
        scene.compare().await;
    }
    let (succeeded, message) = worker.end();
    assert!(succeeded, "{message:?}");
    let answers = scene.end().await;
    print_result(
        "Cassandra killed during a load and reads",
        &format!(
            "killed twice; {counts:?} until then, in the end {:?}",
            answers.counts()
        ),
    );
}
