//! Pending notifications, for which runs wait, and boards with lost nodes, which do not stop
//! counting.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use batch::{Progress, RunReport, RunRequest};
use bytes::Bytes;
use schemas::achievement::{
    ACHIEVEMENTS_TOPIC, AchievementKind, BOARD_CHANGES_TOPIC, OutboxMessage,
};
use schemas::seam::{Epoch, Offset};
use schemas::source::Source;
use serde_json::{Value, json};
use speed::SpeedPorts;
use stores::achievements::{
    AchievementCursor, AchievementOwner, AchievementsErase, AchievementsRead, AchievementsWrite,
};
use stores::live::PartitionId;
use stores::views::{Head, NodeName, PartitionQuery, RunDetails, RunRecords, ViewRows, ViewsRead};
use stores::{Error, Result};
use tests::topic::messages;
use tests::world::{PARTITIONS, World};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const SOURCE: Source = Source::Efforts;
/// Limit of each step.
const STEP_MAX: Duration = Duration::from_secs(60);

/// A table of achievements that rejects writes while it is closed.
#[derive(Debug)]
struct AchievementTable {
    inner: Arc<dyn AchievementsWrite>,
    is_closed: AtomicBool,
}

#[async_trait]
impl AchievementsRead for AchievementTable {
    async fn achievements(
        &self,
        owner: AchievementOwner,
        kind: Option<AchievementKind>,
        before: Option<&AchievementCursor>,
        limit: usize,
    ) -> Result<Vec<OutboxMessage>> {
        self.inner.achievements(owner, kind, before, limit).await
    }

    async fn published_end(&self, partition_id: PartitionId) -> Result<Option<Offset>> {
        self.inner.published_end(partition_id).await
    }
}

#[async_trait]
impl AchievementsWrite for AchievementTable {
    async fn write(&self, achievements: &[OutboxMessage]) -> Result<()> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(unavailable());
        }
        self.inner.write(achievements).await
    }

    async fn record_published_end(&self, partition_id: PartitionId, end: Offset) -> Result<()> {
        self.inner.record_published_end(partition_id, end).await
    }
}

#[async_trait]
impl AchievementsErase for AchievementTable {
    async fn count_naming(&self, athlete_id: i64) -> Result<u64> {
        self.inner.count_naming(athlete_id).await
    }

    async fn erase(&self, athlete_id: i64) -> Result<()> {
        self.inner.erase(athlete_id).await
    }
}

fn unavailable() -> Error {
    Error::Unavailable {
        operation: "a test".to_owned(),
        reason: "unavailable".to_owned(),
    }
}

fn effort(segment: i64, athlete: i64, elapsed_time: i64) -> String {
    let id = segment * 1_000 + athlete;
    json!({
        "id": id, "segment_id": segment, "athlete_id": athlete, "activity_id": id,
        "elapsed_time": elapsed_time, "started_at": "2026-01-01T00:00:00Z",
    })
    .to_string()
}

/// Reads all messages of a topic.
async fn read_topic(world: &World, topic: &str) -> Vec<Value> {
    let partitions = messages(&*world.stores.log, topic).await;
    let partitions = partitions.unwrap_or_default().into_iter().flatten();
    partitions.map(|(_, message)| message).collect()
}

/// The ids of the published board changes.
async fn read_published_ids(world: &World) -> BTreeSet<String> {
    let changes = read_topic(world, BOARD_CHANGES_TOPIC).await;
    let ids = changes.iter().map(|change| change["id"].to_string());
    ids.collect()
}

/// Segment and athlete of the published board changes, except those with ids in `before`.
async fn read_changed_groups(world: &World, before: &BTreeSet<String>) -> BTreeSet<(i64, i64)> {
    let changes = read_topic(world, BOARD_CHANGES_TOPIC).await;
    let int = |change: &Value, name: &str| change[name].as_i64().expect("a number");
    let group = |change: &Value| (int(change, "segment_id"), int(change, "athlete_id"));
    let new_changes = changes
        .iter()
        .filter(|change| !before.contains(&change["id"].to_string()));
    new_changes.map(group).collect()
}

/// A speed layer that runs until the end of a test.
struct RunningSpeed {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl RunningSpeed {
    async fn start(world: &World, ports: SpeedPorts) -> Self {
        let speed = world.speed_on_ports(SOURCE, ports).await;
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let token = stop.clone();
        tasks.spawn(async move {
            speed.run(false, token).await.expect("speed");
        });
        Self { stop, tasks }
    }

    /// Waits until all notifications are counted, and with `published` until the outboxes are
    /// empty.
    async fn wait_until_counted(&mut self, world: &World, published: bool) {
        let started = Instant::now();
        let topic = SOURCE.topic();
        loop {
            assert!(
                started.elapsed() < STEP_MAX,
                "the speed layer did not count all notifications"
            );
            assert!(
                self.tasks.try_join_next().is_none(),
                "the speed layer has ended"
            );
            let ends = world.stores.log.spans(topic).await.expect("the log");
            let outboxes = world.stores.live.outboxes(SOURCE, 0..PARTITIONS, 1).await;
            let outboxes = outboxes.expect("live state");
            let is_done = outboxes.iter().zip(&ends).all(|(outbox, span)| {
                outbox.as_ref().is_some_and(|outbox| {
                    outbox.state.position.next_offset >= span.end
                        && (outbox.pending == 0 || !published)
                })
            });
            if is_done && !ends.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("the end of the speed layer");
        }
    }
}

/// Records whether a run waits, and whether the table was closed when it started to publish.
#[derive(Debug)]
struct RunObserver {
    table: Arc<AchievementTable>,
    waits: AtomicBool,
    published_while_closed: AtomicBool,
}

impl Progress for RunObserver {
    fn stage(&self, name: &str, _: u64) {
        match name {
            "wait" => self.waits.store(true, Ordering::Relaxed),
            "publish" => {
                let is_closed = self.table.is_closed.load(Ordering::Relaxed);
                self.published_while_closed
                    .store(is_closed, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    fn advance(&self, _: u64) {}
}

/// Counts efforts that cannot be published while the table is closed, and runs a batch that covers
/// them. With `opens`, the table opens while the run waits. Then live state is lost.
async fn lose_live_after_a_run(world: &mut World, opens: bool) -> (RunReport, Arc<RunObserver>) {
    let table = Arc::new(AchievementTable {
        inner: Arc::clone(&world.stores.achievements),
        is_closed: AtomicBool::new(true),
    });
    world.stores.achievements = Arc::clone(&table) as _;
    world.intake(SOURCE).await;
    let mut speed = RunningSpeed::start(world, world.speed_ports()).await;
    let lines: Vec<String> = (1..=20).map(|n| effort(1 + n % 3, n, 100 - n)).collect();
    world.ingest_into(SOURCE, &lines).await;
    speed.wait_until_counted(world, false).await;
    assert!(
        read_changed_groups(world, &BTreeSet::new())
            .await
            .is_empty()
    );
    let observer = Arc::new(RunObserver {
        table: Arc::clone(&table),
        waits: AtomicBool::new(false),
        published_while_closed: AtomicBool::new(false),
    });
    let open = async {
        while opens && !observer.waits.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if opens {
            tokio::time::sleep(Duration::from_millis(300)).await;
            table.is_closed.store(false, Ordering::Relaxed);
        }
    };
    let (request, stop) = (RunRequest::default(), CancellationToken::new());
    let batch = world.batch();
    let run = Box::pin(batch.run(SOURCE, &request, &*observer, &stop));
    let (report, ()) = tokio::join!(run, open);
    speed.end().await;
    world.delete_live_state();
    table.is_closed.store(false, Ordering::Relaxed);
    world.catch_up_on(SOURCE).await;
    (report.expect("a run"), observer)
}

/// A run waits until all changes it covers are published, so that lost live state loses none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_waits_until_its_changes_are_published() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = 20_000;
    let (report, observer) = Box::pin(lose_live_after_a_run(&mut world, true)).await;
    assert!(!observer.published_while_closed.load(Ordering::Relaxed));
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    assert_eq!(
        read_changed_groups(&world, &BTreeSet::new()).await.len(),
        20
    );
    assert!(!read_topic(&world, ACHIEVEMENTS_TOPIC).await.is_empty());
}

/// The wait is limited; then the run warns about unpublished changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_warns_about_unpublished_changes() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = 50;
    let (report, observer) = Box::pin(lose_live_after_a_run(&mut world, false)).await;
    assert!(observer.published_while_closed.load(Ordering::Relaxed));
    let warnings = report.warnings.join("\n");
    let names_partition = |n: u32| warnings.contains(&n.to_string());
    assert!(
        warnings.contains("unpublished board changes in partition(s)"),
        "{warnings}"
    );
    assert!((0..PARTITIONS).any(names_partition), "{warnings}");
    assert!(
        read_changed_groups(&world, &BTreeSet::new())
            .await
            .is_empty()
    );
}

/// Live state is lost while a run waits, and is rebuilt from the run before without reaching the
/// cut. The run completes, and counting continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_generation_below_the_cut_does_not_block_the_run() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = 1_500;
    world.intake(SOURCE).await;
    let lines: Vec<String> = (1..=6).map(|n| effort(1 + n % 3, n, 100 - n)).collect();
    world.ingest_into(SOURCE, &lines).await;
    world.catch_up_on(SOURCE).await;
    let request = RunRequest::default();
    world.run_on(SOURCE, &request).await.expect("a run");
    let table = Arc::new(AchievementTable {
        inner: Arc::clone(&world.stores.achievements),
        is_closed: AtomicBool::new(true),
    });
    world.stores.achievements = Arc::clone(&table) as _;
    let mut speed = RunningSpeed::start(&world, world.speed_ports()).await;
    let lines: Vec<String> = (1..=30).map(|n| effort(1 + n % 3, n, 80 - n)).collect();
    world.ingest_into(SOURCE, &lines).await;
    speed.wait_until_counted(&world, false).await;
    speed.end().await;
    let observer = RunObserver {
        table: Arc::clone(&table),
        waits: AtomicBool::new(false),
        published_while_closed: AtomicBool::new(false),
    };
    let (batch, stop) = (world.batch(), CancellationToken::new());
    world.speed_options.records_max = 1;
    let lose_live = async {
        while !observer.waits.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world.delete_live_state();
        let speed = RunningSpeed::start(&world, world.speed_ports()).await;
        while count_records(&world).await < 9 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        speed.end().await;
        count_records(&world).await
    };
    let run = Box::pin(batch.run(SOURCE, &request, &observer, &stop));
    let (report, counted_records) = tokio::join!(run, lose_live);
    assert!(
        counted_records < 36,
        "no notification is left below the cut"
    );
    let warnings = report.expect("a run").warnings.join("\n");
    assert!(warnings.contains("live state of partition"), "{warnings}");
    table.is_closed.store(false, Ordering::Relaxed);
    let caught_up = tokio::time::timeout(STEP_MAX, world.catch_up_on(SOURCE)).await;
    caught_up.expect("catching up");
    world.mark_live_restored();
    let served = world.serve().await;
    for segment in 1..=3 {
        let path = format!("/api/v1/boards/segments/{segment}");
        let board = served.client.fetch_json(&path).await;
        let entries = board["entries"].as_array().expect("entries").iter();
        let times = entries.map(|entry| entry["elapsed_time"].as_i64().expect("a time"));
        let expected = (1..=30_i64)
            .filter(|n| 1 + n % 3 == segment)
            .map(|n| 80 - n);
        let expected: Vec<i64> = expected.rev().collect();
        assert_eq!(times.collect::<Vec<_>>(), expected, "{board}");
    }
    served.end().await;
}

/// Returns the number of counted notifications.
async fn count_records(world: &World) -> i64 {
    let outboxes = world.stores.live.outboxes(SOURCE, 0..PARTITIONS, 1).await;
    let outboxes = outboxes.expect("live state").into_iter().flatten();
    outboxes
        .map(|outbox| outbox.state.position.next_offset)
        .sum()
}

/// A fault in reads of board nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeFault {
    None,
    Missing,
    Damaged,
    /// Damaged in the first read only, as from a damaged replica.
    DamagedOnce,
    /// Unavailable in the first five reads.
    Unavailable,
}

/// Views whose node reads have a fault.
#[derive(Debug)]
struct FaultyViews {
    inner: Arc<dyn ViewsRead>,
    fault: Mutex<NodeFault>,
    /// The segment whose nodes are faulty; 0 for all segments.
    segment: AtomicU8,
    reads: AtomicU32,
}

impl FaultyViews {
    fn set_fault(&self, fault: NodeFault) {
        *self.fault.lock().expect("no panic") = fault;
        self.reads.store(0, Ordering::Relaxed);
    }
}

#[async_trait]
impl ViewsRead for FaultyViews {
    async fn runs(&self, source: Source) -> Result<RunRecords> {
        self.inner.runs(source).await
    }

    async fn rows(&self, view: &str, queries: &[PartitionQuery]) -> Result<Option<ViewRows>> {
        self.inner.rows(view, queries).await
    }

    async fn heads(&self, view: &str, keys: &[Vec<u8>]) -> Result<Option<Vec<Option<Head>>>> {
        self.inner.heads(view, keys).await
    }

    async fn nodes(
        &self,
        view: &str,
        key: &[u8],
        names: &[NodeName],
    ) -> Result<Vec<Option<Bytes>>> {
        let nodes = self.inner.nodes(view, key, names).await?;
        let segment = self.segment.load(Ordering::Relaxed);
        if segment > 0 && key.last() != Some(&segment) {
            return Ok(nodes);
        }
        let earlier_reads = self.reads.fetch_add(1, Ordering::Relaxed);
        let fault = *self.fault.lock().expect("no panic");
        match fault {
            NodeFault::None => Ok(nodes),
            NodeFault::DamagedOnce if earlier_reads > 0 => Ok(nodes),
            NodeFault::Missing => Ok(vec![None; names.len()]),
            NodeFault::Damaged | NodeFault::DamagedOnce => {
                let damaged = |bytes: Bytes| {
                    let mut bytes = bytes.to_vec();
                    if let Some(last) = bytes.last_mut() {
                        *last ^= 1;
                    }
                    Bytes::from(bytes)
                };
                Ok(nodes.into_iter().map(|bytes| bytes.map(damaged)).collect())
            }
            NodeFault::Unavailable if earlier_reads < 5 => Err(unavailable()),
            NodeFault::Unavailable => Ok(nodes),
        }
    }

    async fn list_run_details(
        &self,
        source: Source,
        before: Option<Epoch>,
        limit: usize,
    ) -> Result<Vec<RunDetails>> {
        self.inner.list_run_details(source, before, limit).await
    }

    async fn run_details(&self, source: Source, epoch: Epoch) -> Result<Option<RunDetails>> {
        self.inner.run_details(source, epoch).await
    }
}

/// Improves each athlete's effort on two segments; returns the ids published before.
async fn improve_efforts(
    world: &World,
    athletes: std::ops::Range<i64>,
    time: i64,
) -> BTreeSet<String> {
    let before = read_published_ids(world).await;
    let lines: Vec<String> = athletes
        .flat_map(|athlete| [1, 2].map(|segment| effort(segment, athlete, time - athlete)))
        .collect();
    world.ingest_into(SOURCE, &lines).await;
    before
}

fn groups(segments: &[i64], athletes: std::ops::Range<i64>) -> BTreeSet<(i64, i64)> {
    let groups_of = |athlete: i64| segments.iter().map(move |segment| (*segment, athlete));
    athletes.flat_map(groups_of).collect()
}

/// A world with published boards, and a speed layer whose reads of nodes of segment 1 can fail.
async fn create_world_with_faulty_views() -> (World, Arc<FaultyViews>, RunningSpeed) {
    let mut world = World::new().await;
    world.speed_options.groups_max = 100;
    world.speed_options.rows_max = 1_000;
    world.speed_options.records_max = 100;
    world.intake(SOURCE).await;
    improve_efforts(&world, 0..40, 1_000).await;
    world.catch_up_on(SOURCE).await;
    world
        .run_on(SOURCE, &RunRequest::default())
        .await
        .expect("a run");
    let views = Arc::new(FaultyViews {
        inner: Arc::clone(&world.stores.views) as _,
        fault: Mutex::new(NodeFault::None),
        segment: AtomicU8::new(1),
        reads: AtomicU32::new(0),
    });
    let ports = SpeedPorts {
        views: Arc::clone(&views) as _,
        ..world.speed_ports()
    };
    let speed = RunningSpeed::start(&world, ports).await;
    (world, views, speed)
}

/// Counting continues on boards with lost nodes, and changes of other boards are published. Once a
/// run has rebuilt the nodes, changes of all boards are published.
async fn count_over_lost_nodes(fault: NodeFault) {
    let (world, views, mut speed) = create_world_with_faulty_views().await;
    views.set_fault(fault);
    let before = improve_efforts(&world, 0..10, 900).await;
    speed.wait_until_counted(&world, true).await;
    assert_eq!(
        read_changed_groups(&world, &before).await,
        groups(&[2], 0..10)
    );
    // Lost nodes are not read again.
    let reads = views.reads.load(Ordering::Relaxed);
    let before = improve_efforts(&world, 0..10, 850).await;
    speed.wait_until_counted(&world, true).await;
    assert_eq!(
        read_changed_groups(&world, &before).await,
        groups(&[2], 0..10)
    );
    assert_eq!(views.reads.load(Ordering::Relaxed), reads);

    views.set_fault(NodeFault::None);
    let full = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    world.run_on(SOURCE, &full).await.expect("a run");
    let before = improve_efforts(&world, 5..20, 800).await;
    speed.wait_until_counted(&world, true).await;
    assert_eq!(
        read_changed_groups(&world, &before).await,
        groups(&[1, 2], 5..20)
    );
    let changes = read_topic(&world, BOARD_CHANGES_TOPIC).await;
    let first_segment = changes
        .iter()
        .rfind(|change| change["segment_id"] == 1)
        .expect("one");
    let athlete = first_segment["athlete_id"].as_i64().expect("an athlete");
    let previous = if athlete < 10 { 850 } else { 1_000 } - athlete;
    assert_eq!(
        first_segment["changes"][0]["before"]["elapsed_time"],
        previous
    );
    // The fastest athlete gets the crown.
    let achievements = read_topic(&world, ACHIEVEMENTS_TOPIC).await;
    let mut crowns = achievements
        .iter()
        .filter(|achievement| achievement["kind"] == "crown" && achievement["segment_id"] == 1);
    assert_eq!(crowns.next_back().expect("one")["athlete_id"], 19);
    speed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counting_continues_over_missing_nodes() {
    Box::pin(count_over_lost_nodes(NodeFault::Missing)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counting_continues_over_damaged_nodes() {
    Box::pin(count_over_lost_nodes(NodeFault::Damaged)).await;
}

/// A temporary fault is retried and skips no board. Returns the number of node reads.
async fn retry_temporary_fault(fault: NodeFault) -> u32 {
    let (world, views, mut speed) = create_world_with_faulty_views().await;
    views.set_fault(fault);
    let before = improve_efforts(&world, 0..10, 900).await;
    speed.wait_until_counted(&world, true).await;
    assert_eq!(
        read_changed_groups(&world, &before).await,
        groups(&[1, 2], 0..10)
    );
    speed.end().await;
    views.reads.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unavailable_store_is_retried() {
    assert!(Box::pin(retry_temporary_fault(NodeFault::Unavailable)).await > 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_damaged_once_are_read_again() {
    assert!(Box::pin(retry_temporary_fault(NodeFault::DamagedOnce)).await > 1);
}
