//! Kafka.

mod more_partitions;
mod recreated_topic;
mod secure;
mod silent_broker;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::Array;
use rdkafka::admin::{AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::config::{ClientConfig, FromClientConfig};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset as TopicOffset, TopicPartitionList};
use schemas::dead_letter::DeadLetter;
use schemas::source::Source;
use stores::intake::append_dead_letters;
use stores::kafka::{KafkaLog, KafkaOptions};
use stores::log::{
    Assignment, FetchLimit, GroupMembership, Log, LogIdentityError, LogRead, LogWrite, NewRecords,
    Span, create_topics, verify_log_identity,
};
use stores::namespace::Namespace;
use stores::{Error, ErrorKind, Result, Server as _, Stores};
use tests::conformance::{binary, bytes};
use tests::servers::{self, delete_topics, kafka_admin as admin};
use tests::world::World;
use tokio_util::sync::CancellationToken;

use super::embedded::Folder;
use super::{Stage, WAIT_MAX, retry_until_ok};

const TOPIC: &str = "backstitch.plays.v1";

/// Topics of one namespace, with a data folder for the other stores.
struct Topics {
    namespace: Namespace,
    folder: Folder,
}

fn options() -> KafkaOptions {
    KafkaOptions {
        bootstrap_servers: servers::kafka(),
        ..KafkaOptions::default()
    }
}

impl Stage for Topics {
    async fn create() -> Self {
        Self {
            namespace: servers::namespace(),
            folder: Folder::create().await,
        }
    }

    async fn ports(&self) -> Result<Stores> {
        Ok(Stores {
            log: Arc::new(KafkaLog::open(&options(), &self.namespace)?),
            ..self.folder.ports().await?
        })
    }

    async fn clear(self) -> Result<()> {
        delete_topics(&self.namespace).await;
        Ok(())
    }
}

super::laws_of! { Topics; log }

/// A plain Kafka client, for actions that the adapter never takes.
fn client<T: FromClientConfig>(settings: &[(&str, &str)]) -> T {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers::kafka());
    for (key, value) in settings {
        config.set(*key, *value);
    }
    config.create().expect("a client")
}

/// Waits until a member is assigned exactly these partitions.
async fn wait_assigned(membership: &mut GroupMembership, expected: &[u32]) {
    let expected = Assignment::Some(expected.iter().copied().collect());
    let reached = async {
        while membership.assigned() != expected {
            membership.changed().await;
        }
    };
    let reached = tokio::time::timeout(WAIT_MAX, reached).await;
    reached.unwrap_or_else(|_| panic!("{:?} instead of {expected:?}", membership.assigned()));
}

fn assigned_partitions(membership: &GroupMembership) -> BTreeSet<u32> {
    match membership.assigned() {
        Assignment::Some(partitions) => partitions,
        Assignment::All => panic!("everything"),
    }
}

/// Two members share the partitions without overlap, and the remaining one takes over.
#[tokio::test]
async fn members_share_and_take_over() -> Result<()> {
    let topics = Topics::create().await;
    // A member learns of a rebalance with its next heartbeat, after a quarter of this timeout. A
    // silent member is removed after three quarters.
    let options = KafkaOptions {
        session_timeout_ms: 20_000,
        ..options()
    };
    let first_log = KafkaLog::open(&options, &topics.namespace)?;
    let second_log = KafkaLog::open(&options, &topics.namespace)?;
    first_log.ensure_topic(TOPIC, 4).await?;
    let mut first = first_log.join_group(TOPIC).await?;
    wait_assigned(&mut first, &[0, 1, 2, 3]).await;
    let mut second = second_log.join_group(TOPIC).await?;
    let split = async {
        while (
            assigned_partitions(&first).len(),
            assigned_partitions(&second).len(),
        ) != (2, 2)
        {
            tokio::select! {
                () = first.changed() => {}
                () = second.changed() => {}
            }
        }
    };
    tokio::time::timeout(WAIT_MAX, split)
        .await
        .expect("both halves");
    assert!(assigned_partitions(&first).is_disjoint(&assigned_partitions(&second)));
    let started = Instant::now();
    first.leave().await;
    wait_assigned(&mut second, &[0, 1, 2, 3]).await;
    let waited = started.elapsed();
    assert!(
        waited < Duration::from_secs(12),
        "reported too late: {waited:?}"
    );
    // Added partitions are shared, too.
    let name = topics.namespace.topic(TOPIC);
    let new_partitions = [NewPartitions::new(&name, 5)];
    let added = admin()
        .create_partitions(&new_partitions, &AdminOptions::new())
        .await;
    added.expect("adding")[0].as_ref().expect("added");
    wait_assigned(&mut second, &[0, 1, 2, 3, 4]).await;
    second.leave().await;
    topics.clear().await
}

const EVERYTHING: FetchLimit = FetchLimit {
    records: usize::MAX,
    bytes: usize::MAX,
};

fn group(values: impl IntoIterator<Item = String>) -> NewRecords {
    let values = binary(values);
    NewRecords {
        partition: 0,
        keys: binary((0..values.len()).map(|_| "key")),
        values,
        headers: Vec::new(),
    }
}

/// Creates a topic with settings that the adapter would not choose.
async fn create_topic(name: &str, settings: &[(&str, &str)]) {
    let mut topic = NewTopic::new(name, 1, TopicReplication::Fixed(1));
    for (key, value) in settings {
        topic = topic.set(key, value);
    }
    let created = admin().create_topics([&topic], &AdminOptions::new()).await;
    created.expect("creating")[0].as_ref().expect("created");
}

/// Reads a partition to its end in fetches of `records`, and returns offsets and values.
async fn read(log: &dyn LogRead, records: usize) -> Result<Vec<(i64, Vec<u8>)>> {
    let limit = FetchLimit {
        records,
        bytes: usize::MAX,
    };
    let mut entries = Vec::new();
    let mut offset = log.spans(TOPIC).await?[0].start;
    loop {
        let fetched = log.fetch(TOPIC, 0, offset, limit).await?;
        if fetched.next_offset == offset {
            assert_eq!(fetched.end, offset, "the log has more records");
            return Ok(entries);
        }
        let offsets = fetched.records.offsets.values().to_vec();
        entries.extend(offsets.into_iter().zip(bytes(&fetched.records.values)));
        offset = fetched.next_offset;
    }
}

/// Transactions leave control records, and aborted ones leave hidden records. A reader reaches the
/// end all the same, whether it starts now or waits at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps_are_skipped() -> Result<()> {
    let topics = Topics::create().await;
    let log = topics.ports().await?.log;
    log.ensure_topic(TOPIC, 1).await?;
    let name = topics.namespace.topic(TOPIC);
    let producer: BaseProducer = client(&[("transactional.id", name.as_str())]);
    producer.init_transactions(WAIT_MAX).expect("a producer");
    let transaction = |values: &[&str], commits: bool| {
        producer.begin_transaction().expect("a transaction");
        for value in values {
            let record = BaseRecord::<[u8], str>::to(&name)
                .partition(0)
                .payload(value);
            producer.send(record).expect("sending");
        }
        producer.flush(WAIT_MAX).expect("sent");
        if commits {
            producer.commit_transaction(WAIT_MAX).expect("committed");
        } else {
            producer.abort_transaction(WAIT_MAX).expect("aborted");
        }
    };
    let values = |entries: &[(i64, Vec<u8>)]| -> Vec<String> {
        let texts = entries
            .iter()
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        texts.collect()
    };
    transaction(&["a", "b"], true);
    transaction(&["c", "d", "e"], false);
    assert_eq!(values(&read(&*log, 100).await?), ["a", "b"]);
    transaction(&["f"], true);
    transaction(&["g", "h"], false);
    transaction(&["i"], false);
    for records in [1, 2, 100] {
        let entries = read(&*log, records).await?;
        assert_eq!(values(&entries), ["a", "b", "f"], "in fetches of {records}");
        assert!(entries.is_sorted());
    }
    // A reader that waits at the end passes new gaps.
    let mut offset = log.spans(TOPIC).await?[0].end;
    for round in 0..4 {
        transaction(&["lost"], false);
        let value = format!("kept {round}");
        transaction(&[&value], true);
        let mut visible = Vec::new();
        let started = Instant::now();
        loop {
            let fetched = log.fetch(TOPIC, 0, offset, EVERYTHING).await?;
            // A commit may be acknowledged shortly before it is visible.
            if fetched.next_offset == offset && !visible.is_empty() {
                break;
            }
            assert!(started.elapsed() < WAIT_MAX, "no record is visible");
            visible.extend(bytes(&fetched.records.values));
            offset = fetched.next_offset;
        }
        assert_eq!(visible, [value.into_bytes()]);
    }
    // Uncommitted records are invisible.
    producer.begin_transaction().expect("a transaction");
    let record = BaseRecord::<[u8], str>::to(&name)
        .partition(0)
        .payload("open");
    producer.send(record).expect("sending");
    producer.flush(WAIT_MAX).expect("sent");
    let fetched = log.fetch(TOPIC, 0, offset, EVERYTHING).await?;
    assert_eq!((fetched.next_offset, fetched.end), (offset, offset));
    producer.abort_transaction(WAIT_MAX).expect("aborted");
    topics.clear().await
}

/// A fetch of deleted records fails with a range error.
#[tokio::test]
async fn deleted_records_are_out_of_range() -> Result<()> {
    let topics = Topics::create().await;
    let log = topics.ports().await?.log;
    log.ensure_topic(TOPIC, 1).await?;
    log.append(TOPIC, &[group((0..10).map(|n| n.to_string()))], 0)
        .await?;
    let limit = FetchLimit {
        records: 3,
        bytes: usize::MAX,
    };
    assert_eq!(log.fetch(TOPIC, 0, 0, limit).await?.next_offset, 3);
    let mut ends = TopicPartitionList::new();
    let name = topics.namespace.topic(TOPIC);
    ends.add_partition_offset(&name, 0, TopicOffset::Offset(7))
        .expect("an offset");
    let deleted = admin().delete_records(&ends, &AdminOptions::new()).await;
    deleted.expect("deleting");
    assert_eq!(log.spans(TOPIC).await?, [Span { start: 7, end: 10 }]);
    for offset in [0, 3, 6] {
        let error = log
            .fetch(TOPIC, 0, offset, EVERYTHING)
            .await
            .expect_err("deleted");
        assert!(
            matches!(error, Error::OffsetOutOfRange { requested, start: 7, end: 10, .. } if requested == offset),
            "{error}"
        );
    }
    assert_eq!(read(&*log, 100).await?.len(), 3);
    topics.clear().await
}

/// A compacted topic would lose records.
#[tokio::test]
async fn a_compacted_topic_is_refused() -> Result<()> {
    let topics = Topics::create().await;
    let log = topics.ports().await?.log;
    create_topic(
        &topics.namespace.topic(TOPIC),
        &[("cleanup.policy", "compact,delete")],
    )
    .await;
    for error in [
        log.ensure_topic(TOPIC, 1).await.expect_err("compacted"),
        log.fetch(TOPIC, 0, 0, EVERYTHING)
            .await
            .expect_err("compacted"),
        log.append(TOPIC, &[group(["a".to_owned()])], 0)
            .await
            .expect_err("compacted"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Fatal);
        assert!(error.to_string().contains("cleanup.policy"), "{error}");
    }
    topics.clear().await
}

/// A key or a value may be null; then it is empty.
#[tokio::test]
async fn null_is_empty() -> Result<()> {
    let topics = Topics::create().await;
    let log = topics.ports().await?.log;
    log.ensure_topic(TOPIC, 1).await?;
    let name = topics.namespace.topic(TOPIC);
    let producer: BaseProducer = client(&[]);
    for record in [
        BaseRecord::<str, str>::to(&name).payload("no key"),
        BaseRecord::to(&name).key("no value"),
        BaseRecord::to(&name),
    ] {
        producer.send(record.partition(0)).expect("sending");
    }
    producer.flush(WAIT_MAX).expect("sent");
    let records = log.fetch(TOPIC, 0, 0, EVERYTHING).await?.records;
    assert_eq!(
        (records.keys.null_count(), records.values.null_count()),
        (0, 0)
    );
    let none = Vec::new;
    assert_eq!(bytes(&records.keys), [none(), b"no value".to_vec(), none()]);
    assert_eq!(bytes(&records.values), [b"no key".to_vec(), none(), none()]);
    topics.clear().await
}

/// A record that is too large is refused before anything is written.
#[tokio::test]
async fn too_large_records_are_refused() -> Result<()> {
    let topics = Topics::create().await;
    let ports = topics.ports().await?;
    ports.log.ensure_topic(TOPIC, 1).await?;
    let groups = [group(["small".to_owned()]), group(["x".repeat(17 << 20)])];
    let error = ports
        .log
        .append(TOPIC, &groups, 0)
        .await
        .expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::Reject);
    assert!(error.to_string().contains("record_bytes_max"), "{error}");
    assert_eq!(ports.log.spans(TOPIC).await?, [Span { start: 0, end: 0 }]);
    // The brokers may allow less than this process.
    topics.clear().await?;
    let topics = Topics::create().await;
    let log = topics.ports().await?.log;
    let small = [("max.message.bytes", "10000")];
    create_topic(&topics.namespace.topic(TOPIC), &small).await;
    let noise: String = (0..100_000_u64)
        .map(|n| (n * n * 7919 % 1_000_003).to_string())
        .collect();
    let error = log
        .append(TOPIC, &[group([noise])], 0)
        .await
        .expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::Reject);
    assert!(error.to_string().contains("max.message.bytes"), "{error}");
    topics.clear().await
}

/// A reader of a recreated topic gets an error, or the records of the new topic.
#[tokio::test]
async fn a_recreated_topic_is_detected() -> Result<()> {
    let topics = Topics::create().await;
    let log = topics.ports().await?.log;
    let name = topics.namespace.topic(TOPIC);
    log.ensure_topic(TOPIC, 1).await?;
    log.append(TOPIC, &[group((0..10).map(|n| format!("old {n}")))], 0)
        .await?;
    let limit = FetchLimit {
        records: 5,
        bytes: usize::MAX,
    };
    let last = log
        .fetch(TOPIC, 0, 0, limit)
        .await?
        .records
        .last()
        .expect("a record");
    let tenth = log
        .fetch(TOPIC, 0, 5, EVERYTHING)
        .await?
        .records
        .last()
        .expect("a record");
    for (count, shorter) in [(3, true), (20, false)] {
        let deleted = admin().delete_topics(&[&name], &AdminOptions::new()).await;
        deleted.expect("deleting")[0].as_ref().expect("deleted");
        recreate_topic(&*log).await;
        log.append(TOPIC, &[group((0..count).map(|n| format!("new {n}")))], 0)
            .await?;
        let verified = verify_log_identity(&*log, TOPIC, 0, tenth).await?;
        assert_eq!(
            matches!(verified, Err(LogIdentityError::Shorter { .. })),
            shorter,
            "{verified:?}"
        );
        assert!(verified.is_err());
        assert!(verify_log_identity(&*log, TOPIC, 0, last).await?.is_err());
        // A cached consumer never mixes records of both topics.
        let values: Vec<Vec<u8>> = read(&*log, 2).await?.into_iter().map(|r| r.1).collect();
        let expected: Vec<Vec<u8>> = (0..count)
            .map(|n| format!("new {n}").into_bytes())
            .collect();
        assert_eq!(values, expected);
    }
    topics.clear().await
}

/// Deleting a topic takes a moment.
async fn recreate_topic(log: &dyn Log) {
    let started = Instant::now();
    loop {
        match log.ensure_topic(TOPIC, 1).await {
            Ok(_)
                if log
                    .spans(TOPIC)
                    .await
                    .is_ok_and(|s| s == [Span { start: 0, end: 0 }]) =>
            {
                break;
            }
            outcome => assert!(started.elapsed() < WAIT_MAX, "{outcome:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Added partitions are visible at once.
#[tokio::test]
async fn added_partitions_are_visible() -> Result<()> {
    let topics = Topics::create().await;
    let log = topics.ports().await?.log;
    log.ensure_topic(TOPIC, 1).await?;
    log.append(TOPIC, &[group(["a".to_owned()])], 0).await?;
    let name = topics.namespace.topic(TOPIC);
    let new_partitions = [NewPartitions::new(&name, 3)];
    let added = admin()
        .create_partitions(&new_partitions, &AdminOptions::new())
        .await;
    added.expect("adding")[0].as_ref().expect("added");
    let started = Instant::now();
    while log.spans(TOPIC).await.map_or(0, |spans| spans.len()) < 3 {
        assert!(started.elapsed() < WAIT_MAX, "three partitions");
    }
    assert_eq!(log.ensure_topic(TOPIC, 1).await?, 3);
    let new = NewRecords {
        partition: 2,
        ..group(["b".to_owned()])
    };
    assert_eq!(log.append(TOPIC, &[new], 0).await?, [0]);
    assert_eq!(log.fetch(TOPIC, 2, 0, EVERYTHING).await?.records.len(), 1);
    topics.clear().await
}

/// Diagnostics report missing topics and wrong settings; a migration creates missing topics.
#[tokio::test]
async fn diagnostics_name_every_problem() -> Result<()> {
    let topics = Topics::create().await;
    let log = KafkaLog::open(&options(), &topics.namespace)?;
    let settings = [("cleanup.policy", "compact"), ("max.message.bytes", "1000")];
    create_topic(&topics.namespace.topic(TOPIC), &settings).await;
    let diagnostics = log.diagnostics().await?.join("\n");
    for expected_problem in [
        "backstitch.efforts.v1, ",
        "v1 is compacted",
        "LogAppendTime",
        "1000 bytes",
    ] {
        assert!(
            diagnostics.contains(expected_problem),
            "{expected_problem}: {diagnostics}"
        );
    }
    delete_topics(&topics.namespace).await;
    // Deleting a topic takes a moment.
    while !log.spans(TOPIC).await.is_ok_and(|spans| spans.is_empty()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let created = create_topics(&log, 2).await?;
    assert!(!created.is_empty());
    assert_eq!(create_topics(&log, 2).await?, []);
    assert_eq!(log.diagnostics().await?, Vec::<String>::new());
    topics.clear().await
}

/// Errors about unreachable brokers name the address and no secrets, and no call waits forever.
#[tokio::test]
async fn unreachable_brokers_are_named() -> Result<()> {
    let closed_port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    for address in [
        "127.0.0.1:1".to_owned(),
        closed_port.local_addr().expect("an address").to_string(),
    ] {
        let options = KafkaOptions {
            bootstrap_servers: address.clone(),
            request_timeout_ms: 500,
            delivery_timeout_ms: 500,
            security_protocol: "sasl_plaintext".to_owned(),
            sasl_mechanism: "PLAIN".to_owned(),
            sasl_username: "somebody".to_owned(),
            sasl_password: "open sesame".to_owned().into(),
            ..KafkaOptions::default()
        };
        let log = KafkaLog::open(&options, &servers::namespace())?;
        let started = Instant::now();
        for error in [
            log.spans(TOPIC).await.expect_err("an unreachable server"),
            log.fetch(TOPIC, 0, 0, EVERYTHING)
                .await
                .expect_err("an unreachable server"),
            log.offset_at(TOPIC, 0, 0)
                .await
                .expect_err("an unreachable server"),
            log.ensure_topic(TOPIC, 1)
                .await
                .expect_err("an unreachable server"),
            log.append(TOPIC, &[group(["a".to_owned()])], 0)
                .await
                .expect_err("an unreachable server"),
            log.diagnostics().await.expect_err("an unreachable server"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            let text = format!("{error} {error:?} {log:?}");
            assert!(text.contains(&address), "{text}");
            assert!(!text.contains("open sesame"), "{text}");
        }
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{:?}",
            started.elapsed()
        );
        let mut membership = log.join_group(TOPIC).await?;
        let waited = tokio::time::timeout(Duration::from_millis(200), membership.changed()).await;
        assert!(waited.is_err(), "nothing is assigned");
    }
    Ok(())
}

/// The headers of a dead letter contain its original position.
#[tokio::test]
async fn dead_letters_have_headers() -> Result<()> {
    let topics = Topics::create().await;
    let log = topics.ports().await?.log;
    let topic = Source::Plays.dead_letter_topic();
    log.ensure_topic(topic, 1).await?;
    let letter = DeadLetter {
        source: "plays".to_owned(),
        reason: "kind: missing".to_owned(),
        origin: format!("{TOPIC}/2@7"),
        at_ms: 1,
        raw: b"{}".to_vec(),
    };
    append_dead_letters(&*log, Source::Plays, &[letter], 1).await?;
    let consumer: BaseConsumer = client(&[("group.id", "nobody")]);
    let mut start = TopicPartitionList::new();
    let name = topics.namespace.topic(topic);
    start
        .add_partition_offset(&name, 0, TopicOffset::Beginning)
        .expect("an offset");
    consumer.assign(&start).expect("assigned");
    let message = consumer
        .poll(WAIT_MAX)
        .expect("a message in time")
        .expect("a dead letter");
    let headers = message.headers().expect("headers").iter();
    let headers: Vec<_> = headers
        .map(|h| (h.key, h.value.unwrap_or_default()))
        .collect();
    assert_eq!(
        headers[1..],
        [
            ("__connect.errors.topic", TOPIC.as_bytes()),
            ("__connect.errors.partition", b"2".as_slice()),
            ("__connect.errors.offset", b"7".as_slice()),
        ]
    );
    assert_eq!(log.fetch(topic, 0, 0, EVERYTHING).await?.records.len(), 1);
    topics.clear().await
}

/// Two speed layers share the partitions and count every play once, and the remaining one takes
/// over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speed_layers_share_the_work() -> Result<()> {
    let namespace = servers::namespace();
    let mut world = World::new().await;
    world.stores.log = Arc::new(KafkaLog::open(&options(), &namespace)?);
    let plays = |from: u32| -> Vec<String> {
        let play = |n: u32| {
            format!(
                r#"{{"event_id":"e{n}","track_id":10,"owner_id":{n},"kind":"play","at":"2026-03-01T00:00:00Z"}}"#
            )
        };
        (from..from + 200).map(play).collect()
    };
    world.ingest(&plays(0)).await;
    let first = world.speed().await;
    world.stores.log = Arc::new(KafkaLog::open(&options(), &namespace)?);
    let second = world.speed().await;
    let (stop_first, stop_second) = (CancellationToken::new(), CancellationToken::new());
    let wait_until_counted = async || {
        let started = Instant::now();
        let spans = world.stores.log.spans(TOPIC).await.expect("the log");
        let ends: Vec<i64> = spans.iter().map(|span| span.end).collect();
        loop {
            let partitions = u32::try_from(ends.len()).expect("partitions");
            let live = world
                .stores
                .live
                .read_deltas(Source::Plays, partitions, &[])
                .await;
            let states = live.expect("live state").partition_states;
            let offsets = states
                .iter()
                .map(|state| state.as_ref().map_or(0, |s| s.position.next_offset));
            if offsets.eq(ends.iter().copied()) {
                break;
            }
            assert!(started.elapsed() < WAIT_MAX, "{states:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let scenario = async {
        wait_until_counted().await;
        world.ingest(&plays(1000)).await;
        wait_until_counted().await;
        stop_first.cancel();
        world.ingest(&plays(2000)).await;
        wait_until_counted().await;
        stop_second.cancel();
    };
    let (first, second, ()) = tokio::join!(
        first.run(false, stop_first.clone()),
        second.run(false, stop_second.clone()),
        scenario
    );
    let (first, second) = (first.expect("speed"), second.expect("speed"));
    assert_eq!(first.events + second.events, 600, "{first:?} {second:?}");
    assert!(second.events > 0, "the other worker did not take over");
    delete_topics(&namespace).await;
    Ok(())
}
