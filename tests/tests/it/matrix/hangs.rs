//! Connections that hang: they stay open without transferring any bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tests::proxy::{Gate, Holds};

use super::proxied_servers::{ProxiedServers, ServerName};
use super::scene::Scene;
use super::{print_result, seed};

/// Longer than any call may take with the scene's timeouts.
const HANG: Duration = Duration::from_secs(7);
/// A run that cannot continue has ended by then.
const RUN_MAX: Duration = Duration::from_secs(45);

/// A worker, the API and a run lose one server, which returns after a while: first with the same
/// connections, then with all connections closed.
async fn check_hangs(server: ServerName, name: &str, seed_offset: u64) {
    let gate = Arc::<Gate>::default();
    let mut proxied_servers =
        ProxiedServers::in_front_of(&[(server, Arc::clone(&gate))].into()).await;
    proxied_servers.setting.api_uses_proxies = true;
    let mut scene = Scene::begin(&proxied_servers.setting, seed(seed_offset)).await;
    scene.run_batch(&[]).await;
    let worker = scene.worker();
    let mut failed_runs = 0;
    for closes_connections in [false, true] {
        scene.ingest_plays(300).await;
        scene.ingest_rows(3).await;
        let held_chunks = gate.held_chunks();
        scene.world.disturb();
        let mut run = scene.start(&["batch", "run"]);
        gate.hold_after(40, Holds::Everything);
        gate.wait_for_held(held_chunks).await;
        tokio::time::sleep(HANG).await;
        scene.ask_rows(1).await;
        if closes_connections {
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
            failed_runs += 1;
        }
        scene.settle().await;
        scene.wait_complete_answers().await;
        scene.compare().await;
    }
    let (succeeded, message) = worker.end();
    assert!(succeeded, "{message:?}");
    let held_chunks = gate.held_chunks();
    let answers = scene.end().await;
    print_result(
        &format!("connections to {name} hang"),
        &format!(
            "{held_chunks} packets held, {failed_runs} of 2 runs ended, {:?}",
            answers.counts()
        ),
    );
    assert!(held_chunks > 0, "no answer was held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_kafka_hang_on_servers() {
    Box::pin(check_hangs(ServerName::Kafka, "Kafka", 13)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_redis_hang_on_servers() {
    Box::pin(check_hangs(ServerName::Redis, "Redis", 14)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_cassandra_hang_on_servers() {
    Box::pin(check_hangs(ServerName::Cassandra, "Cassandra", 15)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_postgresql_hang_on_servers() {
    Box::pin(check_hangs(ServerName::PostgreSql, "PostgreSQL", 16)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_s3_hang_on_servers() {
    Box::pin(check_hangs(ServerName::S3, "S3", 17)).await;
}
