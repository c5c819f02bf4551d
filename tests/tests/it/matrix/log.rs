//! The log: a broker that is killed, and topics that are recreated or get more partitions.

use std::time::Duration;

use rdkafka::admin::{AdminOptions, NewPartitions, NewTopic, TopicReplication};
use schemas::source::Source;
use stores::log::LOST_REMEDY;
use tests::dedicated_servers::DedicatedServer;
use tests::recount::Lines;
use tests::servers::kafka_admin;

use super::scene::{Scene, Setting};
use super::{print_result, seed};

/// The broker is killed while producers, workers and runs use it, and restarts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_is_killed_and_starts_again_on_servers() {
    let mut kafka = DedicatedServer::kafka(None);
    let mut setting = Setting::default();
    setting.direct.kafka = kafka.address();
    setting.proxied.kafka = kafka.address();
    let mut scene = Scene::begin(&setting, seed(18)).await;
    let worker = scene.worker();
    let (mut failed, mut retries) = (0, 0);
    for _ in 0..2 {
        scene.ingest_plays(300).await;
        scene.ingest_rows(2).await;
        let file = scene.write_plays(300);
        let ingest = ["ingest", "plays", file.as_str()];
        let producer = scene.start(&ingest);
        let run = scene.start(&["batch", "run"]);
        tokio::time::sleep(Duration::from_millis(700)).await;
        scene.world.disturb();
        kafka.kill();
        tokio::time::sleep(Duration::from_secs(3)).await;
        kafka.restart();
        for process in [producer, run] {
            let (succeeded, message) = process.finish();
            assert!(succeeded || message[1].contains("Kafka"), "{message:?}");
            failed += usize::from(!succeeded);
        }
        // Any part of the file may have been ingested; duplicates count once.
        assert!(scene.start(&ingest).wait(), "the ingest failed");
        scene.settle().await;
        scene.wait_complete_answers().await;
        scene.compare().await;
        retries = worker.outputs()[1].matches("trying again").count();
    }
    assert!(worker.end().0);
    scene.end().await;
    print_result(
        "Kafka's broker killed and started again",
        &format!("twice; {failed} processes failed, the worker tried {retries} times again"),
    );
}

/// The topic is deleted under a running worker, recreated, and filled with other records: fewer
/// than were counted, or more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_is_recreated_on_servers() {
    for (round, new_records) in [100, 900].into_iter().enumerate() {
        let setting = Setting::default();
        let mut scene = Scene::begin(&setting, seed(19 + round as u64)).await;
        let mut worker = scene.worker();
        scene.ingest_plays(300).await;
        scene.settle().await;
        scene.run_batch(&[]).await;
        scene.ingest_plays(100).await;
        scene.settle().await;
        let counted_before = scene.counted_plays().await;
        let truth = Lines::parse(&scene.world.raw_log().await);
        let topic = scene.installation.topic(Source::Plays);
        let deleted = kafka_admin()
            .delete_topics(&[&topic], &AdminOptions::new())
            .await;
        assert!(deleted.expect("Kafka").iter().all(Result::is_ok));
        recreate_topic(&topic).await;
        scene.ingest_plays(new_records).await;
        let started = tokio::time::Instant::now();
        while worker.is_running() {
            assert!(
                started.elapsed() < Duration::from_secs(40),
                "the process still runs: {:?}",
                worker.outputs()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (succeeded, message) = worker.finish();
        assert!(
            !succeeded && message[1].contains(LOST_REMEDY),
            "{message:?}"
        );
        let run = scene.start(&["batch", "run"]);
        let (succeeded, message) = run.finish();
        let is_recreated = message[1].contains("recreated");
        assert!(!succeeded && is_recreated, "{message:?}");
        assert_eq!(
            scene.counted_plays().await,
            counted_before,
            "records of the new topic were counted"
        );
        let answers = scene.stop_questions().await;
        answers.check(&truth);
        print_result(
            "a recreated topic",
            &format!("with {new_records} records; worker and run refused it at {counted_before}"),
        );
    }
}

async fn recreate_topic(topic: &str) {
    let new_topic = NewTopic::new(topic, 2, TopicReplication::Fixed(1));
    loop {
        let created = kafka_admin()
            .create_topics([&new_topic], &AdminOptions::new())
            .await;
        match created.expect("Kafka").pop().expect("an answer") {
            Ok(_) => return,
            // The topic is still being deleted.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Topics get more partitions while producers and workers use them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_added_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(21)).await;
    let worker = scene.worker();
    scene.ingest_plays(300).await;
    scene.ingest_rows(4).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    for source in [Source::Plays, Source::Efforts] {
        let topic = scene.installation.topic(source);
        let new_partitions = [NewPartitions::new(&topic, 5)];
        let added = kafka_admin()
            .create_partitions(&new_partitions, &AdminOptions::new())
            .await;
        assert!(added.expect("Kafka").iter().all(Result::is_ok));
    }
    for round in ["x", "y", "z"] {
        // No repeated events: only a batch run finds a duplicate in another partition.
        let lines = scene.play_generator.generate_with_prefix(round, 300);
        scene.world.ingest(&lines).await;
        scene.ingest_rows(4).await;
    }
    scene.settle().await;
    let mut moved = Vec::new();
    for source in [Source::Plays, Source::Efforts] {
        let next_offsets = scene.next_offsets(source, 5).await.expect("all partitions");
        moved.push(next_offsets[2..].iter().sum::<i64>());
    }
    // Boards with notifications in two partitions are exact again after a run.
    scene.run_batch(&[]).await;
    scene.compare().await;
    assert!(worker.end().0);
    scene.end().await;
    print_result(
        "partitions are added",
        &format!("{moved:?} records of plays and efforts are in new ones"),
    );
    assert!(moved.iter().all(|records| *records > 0), "{moved:?}");
}
