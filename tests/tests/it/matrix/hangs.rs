//! Connections that hang: they stay open, and no byte passes any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tests::proxy::{Gate, Holds};

use super::rig::{Named, Rig};
use super::scene::Scene;
use super::{seed, tell};

/// Longer than any call may take, with the patience that a scene gives.
const HANGS: Duration = Duration::from_secs(7);
/// A run that can't go on has ended by then.
const RUN_MAX: Duration = Duration::from_secs(45);

/// Worker, API and a run all lose one server, which is there again after a while; first as if nothing had
/// been, then with all connections cut.
async fn hangs(server: Named, name: &str, own: u64) {
    let gate = Arc::<Gate>::default();
    let mut rig = Rig::before(&[(server, Arc::clone(&gate))].into()).await;
    rig.setting.serves_through = true;
    let mut scene = Scene::begin(&rig.setting, seed(own)).await;
    scene.run_batch(&[]).await;
    let worker = scene.worker();
    let mut ended_by_it = 0;
    for cut in [false, true] {
        scene.take_plays(300).await;
        scene.take_rows(3).await;
        let held = gate.held();
        scene.world.disturb();
        let mut run = scene.start(&["batch", "run"]);
        gate.hold_after(40, Holds::Everything);
        gate.held_since(held).await;
        tokio::time::sleep(HANGS).await;
        scene.ask_rows(1).await;
        if cut {
            gate.cut();
        }
        gate.hold(Holds::Nothing);
        let begun = Instant::now();
        while run.is_running() {
            assert!(begun.elapsed() < RUN_MAX, "it waits for ever");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (succeeded, said) = run.finish();
        if !succeeded {
            assert!(said[1].contains(name), "{said:?}");
            ended_by_it += 1;
        }
        scene.settle().await;
        scene.answers_again().await;
        scene.compare().await;
    }
    let (succeeded, said) = worker.end();
    assert!(succeeded, "{said:?}");
    let held = gate.held();
    let heard = scene.end().await;
    tell(
        &format!("connections to {name} hang"),
        &format!(
            "{held} pieces held back, {ended_by_it} of 2 runs ended, {:?}",
            heard.counts()
        ),
    );
    assert!(held > 0, "nothing was held back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_kafka_hang_on_servers() {
    Box::pin(hangs(Named::Kafka, "Kafka", 13)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_redis_hang_on_servers() {
    Box::pin(hangs(Named::Redis, "Redis", 14)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_cassandra_hang_on_servers() {
    Box::pin(hangs(Named::Cassandra, "Cassandra", 15)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_postgresql_hang_on_servers() {
    Box::pin(hangs(Named::PostgreSql, "PostgreSQL", 16)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_s3_hang_on_servers() {
    Box::pin(hangs(Named::S3, "S3", 17)).await;
}
