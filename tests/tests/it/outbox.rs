//! From the outbox of the entity store into the log, and what the speed layer reads for them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use schemas::entities::{Group, parse, parse_notification};
use schemas::partition::partition_of;
use schemas::seam::Offset;
use schemas::source::Source;
use serde_json::json;
use stores::entities::NOTIFICATIONS_MAX;
use stores::intake::{Intake, IntakePorts};
use stores::log::{FetchLimit, LogWrite, NewRecords};
use stores::relay::{self, OutboxRelay};
use stores::{Error, Result};
use tests::world::{NOW_MS, PARTITIONS, World};
use tokio_util::sync::CancellationToken;

/// A log whose first appends fail.
#[derive(Debug)]
struct FailingLog {
    log: Arc<dyn LogWrite>,
    failures_left: AtomicUsize,
}

impl FailingLog {
    fn new(world: &World, failures: usize) -> Arc<Self> {
        Arc::new(Self {
            log: Arc::clone(&world.stores.log) as _,
            failures_left: failures.into(),
        })
    }
}

#[async_trait::async_trait]
impl LogWrite for FailingLog {
    async fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<u32> {
        self.log.ensure_topic(topic, partitions).await
    }

    async fn append(
        &self,
        topic: &str,
        groups: &[NewRecords],
        logged_at_ms: i64,
    ) -> Result<Vec<Offset>> {
        let fewer = |failures: usize| failures.checked_sub(1);
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        if self.failures_left.fetch_update(set, get, fewer).is_ok() {
            return Err(Error::Unavailable {
                operation: "appending".to_owned(),
                reason: "the log is unavailable".to_owned(),
            });
        }
        self.log.append(topic, groups, logged_at_ms).await
    }
}

fn effort(id: i64, segment_id: i64, athlete_id: i64) -> String {
    json!({
        "id": id, "segment_id": segment_id, "athlete_id": athlete_id, "activity_id": 1,
        "elapsed_time": 60 + id % 7, "started_at": "2026-03-01T10:00:00Z",
    })
    .to_string()
}

fn relay(world: &World, log: Arc<dyn LogWrite>) -> OutboxRelay {
    let entity_store = Arc::clone(&world.stores.entities) as _;
    OutboxRelay::new(entity_store, log, Arc::clone(&world.clock) as _, PARTITIONS)
}

async fn intake(world: &World, log: Arc<dyn LogWrite>, source: Source) -> Intake {
    let ports = IntakePorts {
        log,
        entities: Arc::clone(&world.stores.entities) as _,
        suppressions: stores::erasures::Suppressions::none(),
        clock: Arc::clone(&world.clock) as _,
    };
    let intake = Intake::open(ports, source, PARTITIONS).await;
    intake.expect("an intake")
}

/// Commits rows without publishing their notifications.
async fn commit(world: &World, source: Source, lines: &[String], now_ms: i64) {
    let rows = lines.iter().map(|line| parse(source, line.as_bytes()));
    let rows: Vec<_> = rows.collect::<Result<_, _>>().expect("rows");
    let entity_store = &world.stores.entities;
    entity_store.apply(&rows, now_ms).await.expect("applying");
}

async fn pending_count(world: &World, source: Source) -> u64 {
    let pending_count = world.stores.entities.outbox_status(source).await;
    pending_count.expect("the outbox").notifications
}

/// The groups in the log of a source, and the number of notifications.
async fn read_published(world: &World, source: Source) -> (BTreeSet<Group>, usize) {
    let (mut groups, mut count) = (BTreeSet::new(), 0);
    let log = &world.stores.log;
    let spans = log.spans(source.topic()).await.expect("the log");
    for (partition, span) in (0..).zip(spans) {
        let mut offset = span.start;
        while offset < span.end {
            let limit = FetchLimit {
                records: 50_000,
                bytes: 1 << 24,
            };
            let fetched = log.fetch(source.topic(), partition, offset, limit).await;
            let fetched = fetched.expect("fetching");
            for value in fetched.records.values.iter().flatten() {
                groups.insert(parse_notification(source, value).expect("a notification"));
                count += 1;
            }
            offset = fetched.next_offset;
        }
    }
    (groups, count)
}

/// A change may affect more groups than one publish covers, and an outbox may hold more than one
/// read returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_notification_is_published() {
    let segments = i64::try_from(NOTIFICATIONS_MAX + relay::OUTBOX_BATCH + 5).expect("small");
    let world = World::new().await;
    let lines: Vec<String> = (0..segments).map(|n| effort(n, n, 7)).collect();
    commit(&world, Source::Efforts, &lines, NOW_MS).await;
    let groups: BTreeSet<Group> = (0..segments).map(|key| Group { key, member: 7 }).collect();
    let log: Arc<dyn LogWrite> = Arc::clone(&world.stores.log) as _;
    let newest = world.stores.entities.outbox_status(Source::Efforts).await;
    let newest = newest.expect("the outbox").newest;
    let relay = relay(&world, Arc::clone(&log));
    let never_stop = CancellationToken::new();
    let published_count = relay.drain(Source::Efforts, newest, &never_stop).await;
    assert_eq!(published_count.expect("sending"), groups.len() as u64);
    assert!(read_published(&world, Source::Efforts).await == (groups.clone(), groups.len()));
    assert_eq!(pending_count(&world, Source::Efforts).await, 0);

    let line = br#"{"id":7,"gender":"F"}"#;
    let athletes = intake(&world, log, Source::Athletes).await;
    let ingested = athletes.ingest("f", [(1, &line[..])].into_iter()).await;
    assert_eq!(ingested.expect("ingesting").accepted, 1);
    let published_again = read_published(&world, Source::Efforts).await;
    assert!(published_again == (groups.clone(), 2 * groups.len()));
    assert_eq!(pending_count(&world, Source::Efforts).await, 0);

    // A cancelled publisher leaves the rest for the speed layer.
    let stop = CancellationToken::new();
    stop.cancel();
    let line = br#"{"id":7,"gender":"M"}"#;
    let athletes = athletes.with_stop(stop);
    let ingested = athletes.ingest("f", [(1, &line[..])].into_iter()).await;
    assert_eq!(ingested.expect("ingesting").accepted, 1);
    let remaining = groups.len() - NOTIFICATIONS_MAX;
    assert_eq!(
        pending_count(&world, Source::Efforts).await,
        remaining as u64
    );
}

/// Notifications that could not be appended stay, and are published with the next ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_append_loses_nothing() {
    let world = World::new().await;
    let log = FailingLog::new(&world, 1);
    let efforts = intake(&world, Arc::clone(&log) as _, Source::Efforts).await;
    let line = effort(1, 2, 3);
    let checked = efforts.check("f", [(1, line.as_bytes())].into_iter());
    let failed = efforts
        .write(checked)
        .await
        .expect_err("an unreachable server");
    assert!(
        failed.to_string().contains("the log is unavailable"),
        "{failed}"
    );
    assert_eq!(pending_count(&world, Source::Efforts).await, 1);

    // Each source has its own notifications.
    let other_source = json!({
        "id": 1, "application_id": 5, "athlete_id": 3, "created_at": "2026-03-01T10:00:00Z",
    });
    commit(
        &world,
        Source::Authorizations,
        &[other_source.to_string()],
        NOW_MS,
    )
    .await;
    let relay = relay(&world, log);
    let never_stop = CancellationToken::new();
    let sent = relay.drain(Source::Efforts, i64::MAX, &never_stop).await;
    assert_eq!(sent.expect("sending"), 1);
    let group = Group { key: 2, member: 3 };
    assert_eq!(
        read_published(&world, Source::Efforts).await,
        ([group].into(), 1)
    );
    assert_eq!(pending_count(&world, Source::Authorizations).await, 1);
    let report = world.catch_up_on(Source::Authorizations).await;
    assert_eq!(
        (
            report.events,
            pending_count(&world, Source::Authorizations).await
        ),
        (1, 0)
    );
}

/// A timestamp from a clock that is ahead delays nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn future_timestamps_delay_nothing() {
    let world = World::new().await;
    let ahead_ms = NOW_MS + 86_400_000;
    commit(&world, Source::Efforts, &[effort(1, 2, 3)], ahead_ms).await;
    let report = world.catch_up_on(Source::Efforts).await;
    assert_eq!(
        (report.events, pending_count(&world, Source::Efforts).await),
        (1, 0)
    );

    commit(&world, Source::Efforts, &[effort(2, 2, 3)], ahead_ms).await;
    let (speed, stop) = (
        world.speed_of(Source::Efforts).await,
        CancellationToken::new(),
    );
    let running = speed.run(false, stop.clone());
    let published = async {
        while pending_count(&world, Source::Efforts).await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.cancel();
    };
    let work = async { tokio::join!(running, published) };
    let ended = tokio::time::timeout(Duration::from_secs(60), work).await;
    ended.expect("a published notification").0.expect("speed");
}

/// Records in the log are processed, even if the remaining notifications cannot be published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unpublishable_notifications_delay_nothing() {
    let world = World::new().await;
    world.ingest_into(Source::Efforts, &[effort(1, 2, 3)]).await;
    commit(&world, Source::Efforts, &[effort(2, 4, 5)], NOW_MS).await;
    let log = FailingLog::new(&world, usize::MAX);
    let speed = world
        .speed_with_log_writer(Source::Efforts, Arc::clone(&log) as _)
        .await;
    let stop = CancellationToken::new();
    let wait_until_counted = |groups: usize| {
        let world = &world;
        async move {
            loop {
                let live = &world.stores.live;
                let read = live.read_deltas(Source::Efforts, PARTITIONS, &[]).await;
                let states = read
                    .expect("live state")
                    .partition_states
                    .into_iter()
                    .flatten();
                let counted_records: i64 = states.map(|state| state.position.next_offset).sum();
                if usize::try_from(counted_records).expect("an offset") >= groups {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let watched = async {
        wait_until_counted(1).await;
        assert_eq!(pending_count(&world, Source::Efforts).await, 1);
        log.failures_left.store(1, Ordering::SeqCst);
        wait_until_counted(2).await;
        stop.cancel();
    };
    let work = async { tokio::join!(speed.run(false, stop.clone()), watched) };
    let ended = tokio::time::timeout(Duration::from_secs(60), work).await;
    ended.expect("two counts").0.expect("speed");
    assert_eq!(pending_count(&world, Source::Efforts).await, 0);
}

/// The boards do not depend on the number of rows that are read at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_budget_changes_no_board() {
    let lines: Vec<String> = (0..60).map(|id| effort(id, 1, id * id % 11)).collect();
    let mut answers = Vec::new();
    for rows_max in [100_000, 7, 1] {
        let mut world = World::new().await;
        world.speed_options.rows_max = rows_max;
        world.speed_options.groups_max = 10_000;
        world.speed_options.records_max = 10_000;
        world.ingest_into(Source::Efforts, &lines).await;
        // A notification of an unknown row.
        let log = &world.stores.log;
        let records = NewRecords {
            partition: partition_of(b"1", PARTITIONS),
            keys: std::iter::once(Some(b"1")).collect(),
            values: std::iter::once(Some(b"{}")).collect(),
            headers: Vec::new(),
        };
        for topic in [Source::Efforts.topic(); 2] {
            let records = [records.clone()];
            log.append(topic, &records, NOW_MS)
                .await
                .expect("appending");
        }
        world.ingest_into(Source::Efforts, &lines).await;
        let report = world.catch_up_on(Source::Efforts).await;
        assert_eq!(report.dead_letters, 2);
        let notified = report.events + report.duplicates;
        let groups = 6;
        assert_eq!(notified, 2 * groups, "{report:?}");
        assert_eq!(report.micro_batches > 2, rows_max < 100, "{report:?}");
        let served = world.serve().await;
        let board = served
            .client
            .get_json("/api/v1/boards/segments/1?limit=1000");
        assert_eq!(board["total"], groups, "{board}");
        answers.push(board["entries"].clone());
        served.end().await;
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}
