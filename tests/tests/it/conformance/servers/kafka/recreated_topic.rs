//! A topic that is deleted, recreated and filled beyond the read position while a reader continues.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI64};

use async_trait::async_trait;
use schemas::seam::{LastRecord, Offset};
use stores::log::{FetchedRecords, LOST_REMEDY};
use tests::world::archive_version;
use tokio::sync::Semaphore;

use super::*;

/// Number of records in the old topic.
const OLD_RECORDS: u32 = 400;

/// Recreates the topic as soon as possible, and fills it with other plays. Uses existing clients to
/// be as fast as possible.
async fn recreate_and_fill(name: &str, pause: Duration, count: u32) {
    let (admin, options) = (admin(), AdminOptions::new());
    let producer: BaseProducer = client(&[("linger.ms", "0")]);
    let topic = NewTopic::new(name, 1, TopicReplication::Fixed(1))
        .set("message.timestamp.type", "LogAppendTime");
    let deleted = admin.delete_topics(&[name], &options).await;
    deleted.expect("deleting")[0].as_ref().expect("deleted");
    tokio::time::sleep(pause).await;
    let started = Instant::now();
    while let Err(reason) = &admin
        .create_topics([&topic], &options)
        .await
        .expect("an answer")[0]
    {
        assert!(started.elapsed() < WAIT_MAX, "{reason:?}");
    }
    for number in 0..count {
        let value = play("new", number, 900_000 + number);
        let record = BaseRecord::<str, str>::to(name)
            .partition(0)
            .payload(&value);
        producer.send(record).expect("sending");
    }
    producer.flush(WAIT_MAX).expect("sent");
}

fn play(event: &str, number: u32, owner: u32) -> String {
    format!(
        r#"{{"event_id":"{event} {number}","track_id":10,"owner_id":{owner},"kind":"play","at":"2026-03-01T00:00:00Z"}}"#
    )
}

/// The identifying data of every record of partition 0.
async fn record_identities(log: &dyn LogRead) -> Result<Vec<LastRecord>> {
    let records = log.fetch(TOPIC, 0, 0, EVERYTHING).await?.records;
    let identities = (0..records.len()).filter_map(|index| records.slice(index, 1).last());
    Ok(identities.collect())
}

/// The position of the speed layer.
async fn position(world: &World) -> (Offset, Option<LastRecord>) {
    let live = world.stores.live.read_deltas(Source::Plays, 1, &[]).await;
    let state = live.expect("live state").partition_states.remove(0);
    state.map_or((0, None), |state| {
        (state.position.next_offset, state.position.last)
    })
}

/// A log that delays one read of the partition until the new topic is full.
#[derive(Debug)]
struct DelayedLog {
    log: Arc<dyn Log>,
    /// The log delays the first read at or after this offset.
    hold_from: AtomicI64,
    /// If true, the delay is after the read, instead of before it.
    reads_before_hold: bool,
    has_held_read: AtomicBool,
    resume: Semaphore,
}

impl DelayedLog {
    fn new(namespace: &Namespace, from: Offset, reads_before_hold: bool) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            log: Arc::new(KafkaLog::open(&options(), namespace)?),
            hold_from: AtomicI64::new(from),
            reads_before_hold,
            has_held_read: AtomicBool::new(false),
            resume: Semaphore::new(0),
        }))
    }

    /// Waits until a read is delayed.
    async fn wait_until_held(&self) {
        let started = Instant::now();
        while !self.has_held_read.load(SeqCst) {
            assert!(started.elapsed() < WAIT_MAX, "no record was read");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[async_trait]
impl LogRead for DelayedLog {
    async fn spans(&self, topic: &str) -> Result<Vec<Span>> {
        self.log.spans(topic).await
    }

    async fn fetch(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: FetchLimit,
    ) -> Result<FetchedRecords> {
        let is_held = from >= self.hold_from.load(SeqCst) && !self.has_held_read.load(SeqCst);
        let read = match is_held && self.reads_before_hold {
            true => Some(self.log.fetch(topic, partition, from, limit).await?),
            false => None,
        };
        if is_held {
            self.has_held_read.store(true, SeqCst);
            drop(self.resume.acquire().await);
        }
        match read {
            Some(read) => Ok(read),
            None => self.log.fetch(topic, partition, from, limit).await,
        }
    }

    async fn fetch_fresh(
        &self,
        topic: &str,
        partition: u32,
        offset: Offset,
    ) -> Result<FetchedRecords> {
        self.log.fetch_fresh(topic, partition, offset).await
    }

    async fn offset_at(&self, topic: &str, partition: u32, logged_at_ms: i64) -> Result<Offset> {
        self.log.offset_at(topic, partition, logged_at_ms).await
    }

    async fn join_group(&self, topic: &str) -> Result<GroupMembership> {
        self.log.join_group(topic).await
    }
}

#[async_trait]
impl LogWrite for DelayedLog {
    async fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<u32> {
        self.log.ensure_topic(topic, partitions).await
    }

    async fn append(
        &self,
        topic: &str,
        groups: &[NewRecords],
        logged_at_ms: i64,
    ) -> Result<Vec<Offset>> {
        self.log.append(topic, groups, logged_at_ms).await
    }
}

/// When a worker first sees the new topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encounter {
    /// At any read, while the old topic is deleted and the new one is created after a pause.
    AnyTime(Duration),
    /// At its next read, which starts after the new topic is full.
    Full,
    /// At its read after next; the next one completed before the old topic was deleted.
    FullAfterOldRecords,
}

/// Runs a worker that reads partition state and run records only once.
async fn recreate_under_worker(counted: Offset, encounter: Encounter) -> Result<()> {
    let namespace = servers::namespace();
    let mut world = World::new().await;
    let from = match encounter {
        Encounter::AnyTime(_) => Offset::MAX,
        _ => counted,
    };
    let reads_before_hold = encounter == Encounter::FullAfterOldRecords;
    let delayed_log = DelayedLog::new(&namespace, from, reads_before_hold)?;
    world.stores.log = Arc::clone(&delayed_log) as _;
    world.speed_options.look_interval_ms = 60_000;
    delayed_log.ensure_topic(TOPIC, 1).await?;
    let plays: Vec<String> = (0..OLD_RECORDS).map(|n| play("old", n, n)).collect();
    world.ingest(&plays).await;
    let old = record_identities(&*delayed_log.log).await?;
    assert_eq!(old.len(), OLD_RECORDS as usize);
    let speed = world.speed().await;
    let scenario = async {
        let mut pause = Duration::ZERO;
        if let Encounter::AnyTime(delay) = encounter {
            pause = delay;
            let started = Instant::now();
            while position(&world).await.0 < counted {
                assert!(started.elapsed() < WAIT_MAX, "no record was counted");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        } else {
            delayed_log.wait_until_held().await;
        }
        recreate_and_fill(&namespace.topic(TOPIC), pause, 3 * OLD_RECORDS).await;
        delayed_log.resume.close();
    };
    let counting = tokio::time::timeout(WAIT_MAX, speed.run(false, CancellationToken::new()));
    let (counting, ()) = tokio::join!(counting, scenario);
    let error = counting
        .expect("the worker stops")
        .expect_err("a log identity error");
    let text = error.to_string();
    let expected_texts: &[&str] = match encounter {
        Encounter::AnyTime(_) => &["recreated", "records were lost"],
        _ => &["recreated"],
    };
    let is_expected = |text: &str| expected_texts.iter().any(|part| text.contains(part));
    assert!(is_expected(&text), "{text}");
    let (next_offset, last) = position(&world).await;
    assert!(
        next_offset <= i64::from(OLD_RECORDS),
        "{next_offset}: {text}"
    );
    let last = last.expect("something was counted");
    let index = usize::try_from(last.offset).expect("an offset");
    assert_eq!(old[index], last, "{text}");
    // A worker that starts later gets the error, too.
    let speed = world.speed().await;
    let restarted = speed.run(true, CancellationToken::new()).await;
    let text = restarted.expect_err("a log identity error").to_string();
    assert!(is_expected(&text), "{text}");
    assert_eq!(position(&world).await, (next_offset, Some(last)));
    delete_topics(&namespace).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_at_the_end_counts_nothing_of_the_new_topic() -> Result<()> {
    let pauses = [0, 40, 700].map(|ms| Encounter::AnyTime(Duration::from_millis(ms)));
    for encounter in [Encounter::Full, Encounter::FullAfterOldRecords]
        .into_iter()
        .chain(pauses)
    {
        eprintln!("{encounter:?}");
        Box::pin(recreate_under_worker(400, encounter)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_a_backlog_counts_nothing_of_the_new_topic() -> Result<()> {
    let pauses = [0, 100].map(|ms| Encounter::AnyTime(Duration::from_millis(ms)));
    for encounter in [Encounter::Full, Encounter::FullAfterOldRecords]
        .into_iter()
        .chain(pauses)
    {
        eprintln!("{encounter:?}");
        Box::pin(recreate_under_worker(30, encounter)).await?;
    }
    Ok(())
}

/// The topic is deleted and not recreated. The worker waits a little, since a broker may not know a
/// new partition yet, and then reports that the log was lost. A worker that starts now does the
/// same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_reports_a_deleted_topic() -> Result<()> {
    let namespace = servers::namespace();
    let mut world = World::new().await;
    world.stores.log = Arc::new(KafkaLog::open(&options(), &namespace)?);
    world.stores.log.ensure_topic(TOPIC, 1).await?;
    let plays: Vec<String> = (0..OLD_RECORDS).map(|n| play("old", n, n)).collect();
    world.ingest(&plays).await;
    let speed = world.speed().await;
    let scenario = async {
        let started = Instant::now();
        while position(&world).await.0 < OLD_RECORDS.into() {
            assert!(started.elapsed() < WAIT_MAX, "no record was counted");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        delete_topics(&namespace).await;
    };
    let counting = tokio::time::timeout(WAIT_MAX, speed.run(false, CancellationToken::new()));
    let (counted, ()) = tokio::join!(counting, scenario);
    let restarted = world
        .speed()
        .await
        .run(true, CancellationToken::new())
        .await;
    for counted in [counted.expect("the task ends"), restarted] {
        let error = counted.expect_err("a missing topic");
        let text = error.to_string();
        assert!(text.contains(LOST_REMEDY), "{error:?}");
        assert_eq!(position(&world).await.0, i64::from(OLD_RECORDS));
    }
    Ok(())
}

/// The topic is recreated while a run archives it. No record of the new topic enters the archive,
/// even if the archive is empty and cannot identify the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_archives_nothing_of_the_new_topic() -> Result<()> {
    for (is_first, reads_before_hold) in
        [(true, false), (true, true), (false, false), (false, true)]
    {
        let namespace = servers::namespace();
        let mut world = World::new().await;
        let delayed_log = DelayedLog::new(&namespace, Offset::MAX, reads_before_hold)?;
        world.stores.log = Arc::clone(&delayed_log) as _;
        delayed_log.ensure_topic(TOPIC, 1).await?;
        let mut first_offset = 0;
        if !is_first {
            let plays: Vec<String> = (1000..1100).map(|n| play("first", n, n)).collect();
            world.ingest(&plays).await;
            world.catch_up().await;
            let request = batch::RunRequest::default();
            world.run(&request).await.expect("a run");
            first_offset = 100;
        }
        let plays: Vec<String> = (0..OLD_RECORDS).map(|n| play("old", n, n)).collect();
        world.ingest(&plays).await;
        world.catch_up().await;
        delayed_log.hold_from.store(first_offset + 20, SeqCst);
        let scenario = async {
            delayed_log.wait_until_held().await;
            recreate_and_fill(&namespace.topic(TOPIC), Duration::ZERO, 3 * OLD_RECORDS).await;
            delayed_log.resume.close();
        };
        let request = batch::RunRequest::default();
        let (run, ()) = tokio::join!(world.run(&request), scenario);
        let is_recreated = |text: &str| text.contains("recreated");
        let text = run.expect_err("a log identity error").to_string();
        assert!(is_recreated(&text), "{text}");
        let repeated = world.run(&request).await.expect_err("a log identity error");
        assert!(is_recreated(&repeated.to_string()), "{repeated}");
        // One file may have been complete before.
        let archived_count = count_archived(&world).await;
        assert!(archived_count < first_offset + 100, "{archived_count}");
        delete_topics(&namespace).await;
    }
    Ok(())
}

/// The number of events in the archive.
async fn count_archived(world: &World) -> i64 {
    let version = archive_version(&world.stores.archive).await;
    let files = version["files"].as_array().into_iter().flatten();
    let days = files.flat_map(|file| file["days"].as_object().expect("days").values());
    days.map(|day| day["rows"].as_i64().expect("rows")).sum()
}
