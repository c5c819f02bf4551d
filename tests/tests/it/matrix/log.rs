//! The log: a broker that is killed, topics that are made again or get more partitions.

use std::time::Duration;

use rdkafka::admin::{AdminOptions, NewPartitions, NewTopic, TopicReplication};
use schemas::source::Source;
use stores::log::LOST_REMEDY;
use tests::own::OwnServer;
use tests::recount::Lines;
use tests::servers::kafka_admin;

use super::scene::{Scene, Setting};
use super::{seed, tell};

/// The broker is killed while producers, workers and runs use it, and starts again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_is_killed_and_starts_again_on_servers() {
    let mut kafka = OwnServer::kafka(None);
    let mut setting = Setting::default();
    setting.direct.kafka = kafka.address();
    setting.through.kafka = kafka.address();
    let mut scene = Scene::begin(&setting, seed(18)).await;
    let worker = scene.worker();
    let (mut failed, mut again) = (0, 0);
    for _ in 0..2 {
        scene.take_plays(300).await;
        scene.take_rows(2).await;
        let file = scene.write_plays(300);
        let ingest = ["ingest", "plays", file.as_str()];
        let producer = scene.start(&ingest);
        let run = scene.start(&["batch", "run"]);
        tokio::time::sleep(Duration::from_millis(700)).await;
        scene.world.disturb();
        kafka.kill();
        tokio::time::sleep(Duration::from_secs(3)).await;
        kafka.start_again();
        for process in [producer, run] {
            let (succeeded, said) = process.finish();
            assert!(succeeded || said[1].contains("Kafka"), "{said:?}");
            failed += usize::from(!succeeded);
        }
        // Whatever of the file was taken: what comes twice counts once.
        assert!(scene.start(&ingest).wait(), "it is taken in");
        scene.settle().await;
        scene.answers_again().await;
        scene.compare().await;
        again = worker.said()[1].matches("trying again").count();
    }
    assert!(worker.end().0);
    scene.end().await;
    tell(
        "Kafka's broker killed and started again",
        &format!("twice; {failed} processes failed, the worker tried {again} times again"),
    );
}

/// The topic is deleted under a running worker, made again under its name, and filled with other
/// records: fewer than were counted, or more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_is_made_again_on_servers() {
    for (round, refilled) in [100, 900].into_iter().enumerate() {
        let setting = Setting::default();
        let mut scene = Scene::begin(&setting, seed(19 + round as u64)).await;
        let mut worker = scene.worker();
        scene.take_plays(300).await;
        scene.settle().await;
        scene.run_batch(&[]).await;
        scene.take_plays(100).await;
        scene.settle().await;
        let counted = scene.plays_counted().await;
        let truth = Lines::of(&scene.world.raw_log().await);
        let topic = scene.place.topic(Source::Plays);
        let deleted = kafka_admin()
            .delete_topics(&[&topic], &AdminOptions::new())
            .await;
        assert!(deleted.expect("Kafka").iter().all(Result::is_ok));
        remade(&topic).await;
        scene.take_plays(refilled).await;
        let begun = tokio::time::Instant::now();
        while worker.is_running() {
            assert!(
                begun.elapsed() < Duration::from_secs(40),
                "it goes on: {:?}",
                worker.said()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (succeeded, said) = worker.finish();
        assert!(!succeeded && said[1].contains(LOST_REMEDY), "{said:?}");
        let run = scene.start(&["batch", "run"]);
        let (succeeded, said) = run.finish();
        let is_recreated = said[1].contains("recreated");
        assert!(!succeeded && is_recreated, "{said:?}");
        assert_eq!(
            scene.plays_counted().await,
            counted,
            "nothing of it is counted"
        );
        let heard = scene.heard_until_now().await;
        heard.check(&truth);
        tell(
            "a topic is made again",
            &format!("with {refilled} records; worker and run refused it at {counted}"),
        );
    }
}

async fn remade(topic: &str) {
    let again = NewTopic::new(topic, 2, TopicReplication::Fixed(1));
    loop {
        let made = kafka_admin()
            .create_topics([&again], &AdminOptions::new())
            .await;
        match made.expect("Kafka").pop().expect("an answer") {
            Ok(_) => return,
            // It is still being deleted.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Topics get more partitions while producers and workers use them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_added_on_servers() {
    let mut scene = Scene::begin(&Setting::default(), seed(21)).await;
    let worker = scene.worker();
    scene.take_plays(300).await;
    scene.take_rows(4).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    for source in [Source::Plays, Source::Efforts] {
        let topic = scene.place.topic(source);
        let more = [NewPartitions::new(&topic, 5)];
        let added = kafka_admin()
            .create_partitions(&more, &AdminOptions::new())
            .await;
        assert!(added.expect("Kafka").iter().all(Result::is_ok));
    }
    for round in ["x", "y", "z"] {
        // No event of before: one that comes again in another partition is found by a batch run only.
        let lines = scene.traffic.apart(round, 300);
        scene.world.ingest(&lines).await;
        scene.take_rows(4).await;
    }
    scene.settle().await;
    let mut moved = Vec::new();
    for source in [Source::Plays, Source::Efforts] {
        let counted = scene.counted(source, 5).await.expect("all partitions");
        moved.push(counted[2..].iter().sum::<i64>());
    }
    // Boards whose rows were told of in two partitions are whole again after a run.
    scene.run_batch(&[]).await;
    scene.compare().await;
    assert!(worker.end().0);
    scene.end().await;
    tell(
        "partitions are added",
        &format!("{moved:?} records of plays and efforts are in new ones"),
    );
    assert!(moved.iter().all(|records| *records > 0), "{moved:?}");
}
