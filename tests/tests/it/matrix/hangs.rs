//! Connections that hang: they stay open without transferring any bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tests::proxy::{Gate, Holds};

use super::rig::{ProxiedServers, ServerName};
use super::scene::Scene;
use super::{print_result, seed};

/// Longer than any call may take with the scene's timeouts.
const HANG: Duration = Duration::from_secs(7);
/// A run that cannot continue has ended by then.
const RUN_MAX: Duration = Duration::from_secs(45);

/// A worker, the API and a run lose one server, which returns after a while: first with the same
/// connections, then with all connections closed.
async fn hangs(server: ServerName, name: &str, own: u64) {
    let gate = Arc::<Gate>::default();
    let mut rig = ProxiedServers::in_front_of(&[(server, Arc::clone(&gate))].into()).await;
    rig.setting.api_uses_proxies = true;
    let mut scene = Scene::begin(&rig.setting, seed(own)).await;
    scene.run_batch(&[]).await;
    let worker = scene.worker();
    let mut ended_by_it = 0;
    for cut in [false, true] {
        scene.ingest_plays(300).await;
        scene.ingest_rows(3).await;
        let held_answers = gate.held();
        scene.world.disturb();
        let mut run = scene.start(&["batch", "run"]);
        gate.hold_after(40, Holds::Everything);
        gate.wait_for_held(held_answers).await;
        tokio::time::sleep(HANG).await;
        scene.ask_rows(1).await;
        if cut {
            gate.cut();
        }
        gate.hold(Holds::Nothing);
        let started = Instant::now();
        while run.is_running() {
            assert!(started.elapsed() < RUN_MAX, "the run does not end");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (succeeded, message) = run.finish();
        if !succeeded {
            assert!(message[1].contains(name), "{message:?}");
            ended_by_it += 1;
        }
        scene.settle().await;
        scene.wait_complete_answers().await;
        scene.compare().await;
    }
    let (succeeded, message) = worker.end();
    assert!(succeeded, "{message:?}");
    let held_answers = gate.held();
    let answers = scene.end().await;
    print_result(
        &format!("connections to {name} hang"),
        &format!(
            "{held_answers} packets held, {ended_by_it} of 2 runs ended, {:?}",
            answers.counts()
        ),
    );
    assert!(held_answers > 0, "no answer was held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_kafka_hang_on_servers() {
    Box::pin(hangs(ServerName::Kafka, "Kafka", 13)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_redis_hang_on_servers() {
    Box::pin(hangs(ServerName::Redis, "Redis", 14)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_cassandra_hang_on_servers() {
    Box::pin(hangs(ServerName::Cassandra, "Cassandra", 15)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_postgresql_hang_on_servers() {
    Box::pin(hangs(ServerName::PostgreSql, "PostgreSQL", 16)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_s3_hang_on_servers() {
    Box::pin(hangs(ServerName::S3, "S3", 17)).await;
}
