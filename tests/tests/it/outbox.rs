//! From the outbox of the canonical store into the log, and what the speed layer reads again.

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

/// A log that does not answer the first so many times when something is appended.
#[derive(Debug)]
struct Unavailable {
    log: Arc<dyn LogWrite>,
    times: AtomicUsize,
}

impl Unavailable {
    fn times(world: &World, times: usize) -> Arc<Self> {
        Arc::new(Self {
            log: Arc::clone(&world.stores.log) as _,
            times: times.into(),
        })
    }
}

#[async_trait::async_trait]
impl LogWrite for Unavailable {
    async fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<u32> {
        self.log.ensure_topic(topic, partitions).await
    }

    async fn append(
        &self,
        topic: &str,
        groups: &[NewRecords],
        logged_at_ms: i64,
    ) -> Result<Vec<Offset>> {
        let fewer = |times: usize| times.checked_sub(1);
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        if self.times.fetch_update(set, get, fewer).is_ok() {
            return Err(Error::Unavailable {
                what: "appending".to_owned(),
                why: "nobody answers".to_owned(),
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
    let canon = Arc::clone(&world.stores.entities) as _;
    OutboxRelay::new(canon, log, Arc::clone(&world.clock) as _, PARTITIONS)
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

/// Commits rows, and tells nobody.
async fn commit(world: &World, source: Source, lines: &[String], now_ms: i64) {
    let rows = lines.iter().map(|line| parse(source, line.as_bytes()));
    let rows: Vec<_> = rows.collect::<Result<_, _>>().expect("rows");
    let canon = &world.stores.entities;
    canon.apply(&rows, now_ms).await.expect("applying");
}

async fn waiting(world: &World, source: Source) -> u64 {
    let waiting = world.stores.entities.outbox_status(source).await;
    waiting.expect("the outbox").notifications
}

/// The groups that the log of a source tells of, and how many notifications there are.
async fn told(world: &World, source: Source) -> (BTreeSet<Group>, usize) {
    let (mut groups, mut count) = (BTreeSet::new(), 0);
    let log = &world.stores.log;
    let spans = log.spans(source.topic()).await.expect("the log");
    for (partition, span) in (0..).zip(spans) {
        let mut at = span.start;
        while at < span.end {
            let limit = FetchLimit {
                records: 50_000,
                bytes: 1 << 24,
            };
            let fetched = log.fetch(source.topic(), partition, at, limit).await;
            let fetched = fetched.expect("fetching");
            for value in fetched.records.values.iter().flatten() {
                groups.insert(parse_notification(source, value).expect("a notification"));
                count += 1;
            }
            at = fetched.next_offset;
        }
    }
    (groups, count)
}

/// What a change touches may be more than is told at once, and an outbox may hold more than is read
/// at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_told_however_much() {
    let segments = i64::try_from(NOTIFICATIONS_MAX + relay::OUTBOX_BATCH + 5).expect("small");
    let world = World::new().await;
    let lines: Vec<String> = (0..segments).map(|n| effort(n, n, 7)).collect();
    commit(&world, Source::Efforts, &lines, NOW_MS).await;
    let all: BTreeSet<Group> = (0..segments).map(|key| Group { key, member: 7 }).collect();
    let log: Arc<dyn LogWrite> = Arc::clone(&world.stores.log) as _;
    let newest = world.stores.entities.outbox_status(Source::Efforts).await;
    let newest = newest.expect("the outbox").newest;
    let relay = relay(&world, Arc::clone(&log));
    let go_on = CancellationToken::new();
    let sent = relay.drain(Source::Efforts, newest, &go_on).await;
    assert_eq!(sent.expect("sending"), all.len() as u64);
    assert!(told(&world, Source::Efforts).await == (all.clone(), all.len()));
    assert_eq!(waiting(&world, Source::Efforts).await, 0);

    let line = br#"{"id":7,"gender":"F"}"#;
    let athletes = intake(&world, log, Source::Athletes).await;
    let taken = athletes.ingest("f", [(1, &line[..])].into_iter()).await;
    assert_eq!(taken.expect("taking").accepted, 1);
    let again = told(&world, Source::Efforts).await;
    assert!(again == (all.clone(), 2 * all.len()));
    assert_eq!(waiting(&world, Source::Efforts).await, 0);

    // Who is told to stop leaves the rest for the speed layer.
    let stop = CancellationToken::new();
    stop.cancel();
    let line = br#"{"id":7,"gender":"M"}"#;
    let athletes = athletes.with_stop(stop);
    let taken = athletes.ingest("f", [(1, &line[..])].into_iter()).await;
    assert_eq!(taken.expect("taking").accepted, 1);
    let left = all.len() - NOTIFICATIONS_MAX;
    assert_eq!(waiting(&world, Source::Efforts).await, left as u64);
}

/// What could not be appended stays, and goes with what is sent next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_fails_once_loses_nothing() {
    let world = World::new().await;
    let log = Unavailable::times(&world, 1);
    let efforts = intake(&world, Arc::clone(&log) as _, Source::Efforts).await;
    let line = effort(1, 2, 3);
    let checked = efforts.check("f", [(1, line.as_bytes())].into_iter());
    let failed = efforts.write(checked).await.expect_err("nobody answers");
    assert!(failed.to_string().contains("nobody answers"), "{failed}");
    assert_eq!(waiting(&world, Source::Efforts).await, 1);

    // Each source's notifications are its own.
    let of_other = json!({
        "id": 1, "application_id": 5, "athlete_id": 3, "created_at": "2026-03-01T10:00:00Z",
    });
    commit(
        &world,
        Source::Authorizations,
        &[of_other.to_string()],
        NOW_MS,
    )
    .await;
    let relay = relay(&world, log);
    let go_on = CancellationToken::new();
    let sent = relay.drain(Source::Efforts, i64::MAX, &go_on).await;
    assert_eq!(sent.expect("sending"), 1);
    let group = Group { key: 2, member: 3 };
    assert_eq!(told(&world, Source::Efforts).await, ([group].into(), 1));
    assert_eq!(waiting(&world, Source::Authorizations).await, 1);
    let report = world.catch_up_on(Source::Authorizations).await;
    assert_eq!(
        (report.events, waiting(&world, Source::Authorizations).await),
        (1, 0)
    );
}

/// A stamp from a clock that is ahead holds nothing up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stamps_in_the_future_do_not_wait() {
    let world = World::new().await;
    let ahead_ms = NOW_MS + 86_400_000;
    commit(&world, Source::Efforts, &[effort(1, 2, 3)], ahead_ms).await;
    let report = world.catch_up_on(Source::Efforts).await;
    assert_eq!(
        (report.events, waiting(&world, Source::Efforts).await),
        (1, 0)
    );

    commit(&world, Source::Efforts, &[effort(2, 2, 3)], ahead_ms).await;
    let (speed, stop) = (
        world.speed_of(Source::Efforts).await,
        CancellationToken::new(),
    );
    let running = speed.run(false, stop.clone());
    let told = async {
        while waiting(&world, Source::Efforts).await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.cancel();
    };
    let both = async { tokio::join!(running, told) };
    let ended = tokio::time::timeout(Duration::from_secs(60), both).await;
    ended.expect("it is told").0.expect("speed");
}

/// Records that are in the log are counted, also while what was left can't be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_sent_holds_nothing_up() {
    let world = World::new().await;
    world.ingest_into(Source::Efforts, &[effort(1, 2, 3)]).await;
    commit(&world, Source::Efforts, &[effort(2, 4, 5)], NOW_MS).await;
    let log = Unavailable::times(&world, usize::MAX);
    let speed = world
        .speed_writing(Source::Efforts, Arc::clone(&log) as _)
        .await;
    let stop = CancellationToken::new();
    let counted = |groups: usize| {
        let world = &world;
        async move {
            loop {
                let live = &world.stores.live;
                let read = live.read_deltas(Source::Efforts, PARTITIONS, &[]).await;
                let slots = read
                    .expect("live state")
                    .partition_states
                    .into_iter()
                    .flatten();
                let all: i64 = slots.map(|slot| slot.position.next_offset).sum();
                if usize::try_from(all).expect("an offset") >= groups {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let watched = async {
        counted(1).await;
        assert_eq!(waiting(&world, Source::Efforts).await, 1);
        log.times.store(1, Ordering::SeqCst);
        counted(2).await;
        stop.cancel();
    };
    let both = async { tokio::join!(speed.run(false, stop.clone()), watched) };
    let ended = tokio::time::timeout(Duration::from_secs(60), both).await;
    ended.expect("both are counted").0.expect("speed");
    assert_eq!(waiting(&world, Source::Efforts).await, 0);
}

/// However few rows are read at once, the boards are the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_of_rows_changes_no_board() {
    let lines: Vec<String> = (0..60).map(|id| effort(id, 1, id * id % 11)).collect();
    let mut answers = Vec::new();
    for rows_max in [100_000, 7, 1] {
        let mut world = World::new().await;
        world.speed_options.rows_max = rows_max;
        world.speed_options.groups_max = 10_000;
        world.speed_options.records_max = 10_000;
        world.ingest_into(Source::Efforts, &lines).await;
        // Nobody's notification.
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
        let board = served.client.json("/api/v1/boards/segments/1?limit=1000");
        assert_eq!(board["total"], groups, "{board}");
        answers.push(board["entries"].clone());
        served.end().await;
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}
