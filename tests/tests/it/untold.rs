//! What waits to be told, or can't be decided: runs wait for the first, and counting goes on over the
//! second.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use batch::{Progress, RunReport, RunRequest};
use bytes::Bytes;
use schemas::achievement::{ACHIEVEMENTS, AchievementKind, BOARD_CHANGES, OutboxMessage};
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
/// No step takes so long.
const LONG: Duration = Duration::from_secs(60);

/// A table of achievements that takes none while it is shut.
#[derive(Debug)]
struct Table {
    inner: Arc<dyn AchievementsWrite>,
    is_shut: AtomicBool,
}

#[async_trait]
impl AchievementsRead for Table {
    async fn achievements(
        &self,
        of: AchievementOwner,
        kind: Option<AchievementKind>,
        before: Option<&AchievementCursor>,
        limit: usize,
    ) -> Result<Vec<OutboxMessage>> {
        self.inner.achievements(of, kind, before, limit).await
    }

    async fn published_through(&self, slot: PartitionId) -> Result<Option<Offset>> {
        self.inner.published_through(slot).await
    }
}

#[async_trait]
impl AchievementsWrite for Table {
    async fn write(&self, achievements: &[OutboxMessage]) -> Result<()> {
        if self.is_shut.load(Ordering::Relaxed) {
            return Err(away());
        }
        self.inner.write(achievements).await
    }

    async fn record_published_through(&self, slot: PartitionId, through: Offset) -> Result<()> {
        self.inner.record_published_through(slot, through).await
    }
}

#[async_trait]
impl AchievementsErase for Table {
    async fn count_naming(&self, athlete_id: i64) -> Result<u64> {
        self.inner.count_naming(athlete_id).await
    }

    async fn erase(&self, athlete_id: i64) -> Result<()> {
        self.inner.erase(athlete_id).await
    }
}

fn away() -> Error {
    Error::Unavailable {
        what: "a test".to_owned(),
        why: "it is away".to_owned(),
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

/// All messages of a topic.
async fn told(world: &World, topic: &str) -> Vec<Value> {
    let all = messages(&*world.stores.log, topic).await;
    let all = all.unwrap_or_default().into_iter().flatten();
    all.map(|(_, message)| message).collect()
}

/// The ids of the changes of boards that were told.
async fn ids(world: &World) -> BTreeSet<String> {
    let told = told(world, BOARD_CHANGES).await;
    told.iter().map(|told| told["id"].to_string()).collect()
}

/// Segment and athlete of the changes of boards that were told, but for those `before`.
async fn changed(world: &World, before: &BTreeSet<String>) -> BTreeSet<(i64, i64)> {
    let told = told(world, BOARD_CHANGES).await;
    let int = |told: &Value, name: &str| told[name].as_i64().expect("a number");
    let group = |told: &Value| (int(told, "segment_id"), int(told, "athlete_id"));
    let new = told
        .iter()
        .filter(|told| !before.contains(&told["id"].to_string()));
    new.map(group).collect()
}

/// A speed layer that works until the end of a test.
struct Working {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Working {
    async fn start(world: &World, ports: SpeedPorts) -> Self {
        let speed = world.speed_over(SOURCE, ports).await;
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let until = stop.clone();
        tasks.spawn(async move {
            speed.run(false, until).await.expect("speed");
        });
        Self { stop, tasks }
    }

    /// Waits until it has counted everything, and told it if that is `is_told`.
    async fn is_at_the_end(&mut self, world: &World, is_told: bool) {
        let begun = Instant::now();
        let topic = SOURCE.topic();
        loop {
            assert!(begun.elapsed() < LONG, "the speed layer does not get there");
            assert!(self.tasks.try_join_next().is_none(), "it has ended");
            let ends = world.stores.log.spans(topic).await.expect("the log");
            let outboxes = world.stores.live.outboxes(SOURCE, 0..PARTITIONS, 1).await;
            let outboxes = outboxes.expect("live state");
            let is_there = outboxes.iter().zip(&ends).all(|(outbox, span)| {
                outbox.as_ref().is_some_and(|outbox| {
                    outbox.state.position.next_offset >= span.end
                        && (outbox.pending == 0 || !is_told)
                })
            });
            if is_there && !ends.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("it ended well");
        }
    }
}

/// Notes when a run begins to wait, and whether the table was open when it went on.
#[derive(Debug)]
struct Watch {
    table: Arc<Table>,
    waits: AtomicBool,
    went_on_shut: AtomicBool,
}

impl Progress for Watch {
    fn stage(&self, name: &str, _: u64) {
        match name {
            "wait" => self.waits.store(true, Ordering::Relaxed),
            "publish" => {
                let is_shut = self.table.is_shut.load(Ordering::Relaxed);
                self.went_on_shut.store(is_shut, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    fn advance(&self, _: u64) {}
}

/// Efforts that are counted and not told, since the table is shut, and a run that covers them; after a
/// while the table is opened if that is to be. Then live state is lost.
async fn lose_after_a_run(world: &mut World, opens: bool) -> (RunReport, Arc<Watch>) {
    let table = Arc::new(Table {
        inner: Arc::clone(&world.stores.achievements),
        is_shut: AtomicBool::new(true),
    });
    world.stores.achievements = Arc::clone(&table) as _;
    world.intake(SOURCE).await;
    let mut working = Working::start(world, world.speed_ports()).await;
    let lines: Vec<String> = (1..=20).map(|n| effort(1 + n % 3, n, 100 - n)).collect();
    world.ingest_into(SOURCE, &lines).await;
    working.is_at_the_end(world, false).await;
    assert!(changed(world, &BTreeSet::new()).await.is_empty());
    let watch = Arc::new(Watch {
        table: Arc::clone(&table),
        waits: AtomicBool::new(false),
        went_on_shut: AtomicBool::new(false),
    });
    let open = async {
        while opens && !watch.waits.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if opens {
            tokio::time::sleep(Duration::from_millis(300)).await;
            table.is_shut.store(false, Ordering::Relaxed);
        }
    };
    let (request, stop) = (RunRequest::default(), CancellationToken::new());
    let batch = world.batch();
    let run = Box::pin(batch.run(SOURCE, &request, &*watch, &stop));
    let (report, ()) = tokio::join!(run, open);
    working.end().await;
    world.lose_live();
    table.is_shut.store(false, Ordering::Relaxed);
    world.catch_up_on(SOURCE).await;
    (report.expect("a run"), watch)
}

/// A run covers only what was told: so that nothing is lost with live state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_waits_until_what_it_covers_is_told() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = 20_000;
    let (report, watch) = Box::pin(lose_after_a_run(&mut world, true)).await;
    assert!(!watch.went_on_shut.load(Ordering::Relaxed));
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    assert_eq!(changed(&world, &BTreeSet::new()).await.len(), 20);
    assert!(!told(&world, ACHIEVEMENTS).await.is_empty());
}

/// It does not wait for ever; and says what may be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_says_what_it_covers_untold() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = 50;
    let (report, watch) = Box::pin(lose_after_a_run(&mut world, false)).await;
    assert!(watch.went_on_shut.load(Ordering::Relaxed));
    let said = report.warnings.join("\n");
    let partitions = |n: u32| said.contains(&n.to_string());
    assert!(
        said.contains("unpublished board changes in partition(s)"),
        "{said}"
    );
    assert!((0..PARTITIONS).any(partitions), "{said}");
    assert!(changed(&world, &BTreeSet::new()).await.is_empty());
}

/// Live state is lost while a run waits, and begins again at the run before, without coming to the cut:
/// the run holds what lies below, and whoever counts it again goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_life_that_has_not_come_to_the_cut_holds_nobody_up() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = 1_500;
    world.intake(SOURCE).await;
    let lines: Vec<String> = (1..=6).map(|n| effort(1 + n % 3, n, 100 - n)).collect();
    world.ingest_into(SOURCE, &lines).await;
    world.catch_up_on(SOURCE).await;
    let request = RunRequest::default();
    world.run_on(SOURCE, &request).await.expect("a run");
    let table = Arc::new(Table {
        inner: Arc::clone(&world.stores.achievements),
        is_shut: AtomicBool::new(true),
    });
    world.stores.achievements = Arc::clone(&table) as _;
    let mut working = Working::start(&world, world.speed_ports()).await;
    let lines: Vec<String> = (1..=30).map(|n| effort(1 + n % 3, n, 80 - n)).collect();
    world.ingest_into(SOURCE, &lines).await;
    working.is_at_the_end(&world, false).await;
    working.end().await;
    let watch = Watch {
        table: Arc::clone(&table),
        waits: AtomicBool::new(false),
        went_on_shut: AtomicBool::new(false),
    };
    let (batch, stop) = (world.batch(), CancellationToken::new());
    world.speed_options.records_max = 1;
    let lose = async {
        while !watch.waits.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world.lose_live();
        let working = Working::start(&world, world.speed_ports()).await;
        while counted(&world).await < 9 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        working.end().await;
        counted(&world).await
    };
    let run = Box::pin(batch.run(SOURCE, &request, &watch, &stop));
    let (report, counted) = tokio::join!(run, lose);
    assert!(counted < 36, "nothing is left below the cut");
    let warnings = report.expect("a run").warnings.join("\n");
    assert!(warnings.contains("live state of partition"), "{warnings}");
    table.is_shut.store(false, Ordering::Relaxed);
    let caught_up = tokio::time::timeout(LONG, world.catch_up_on(SOURCE)).await;
    caught_up.expect("it goes on");
    world.live_is_back();
    let served = world.serve().await;
    for segment in 1..=3 {
        let path = format!("/api/v1/boards/segments/{segment}");
        let board = served.client.ask(&path).await;
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

/// How many notifications live state has counted.
async fn counted(world: &World) -> i64 {
    let outboxes = world.stores.live.outboxes(SOURCE, 0..PARTITIONS, 1).await;
    let outboxes = outboxes.expect("live state").into_iter().flatten();
    outboxes
        .map(|outbox| outbox.state.position.next_offset)
        .sum()
}

/// What becomes of the nodes of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nodes {
    Whole,
    Gone,
    Damaged,
    /// Damaged at the first read, as by a replica.
    DamagedOnce,
    Away,
}

/// Views whose nodes may be gone or damaged.
#[derive(Debug)]
struct Views {
    inner: Arc<dyn ViewsRead>,
    nodes: Mutex<Nodes>,
    /// Of which segment; 0 of all.
    segment: AtomicU8,
    asked: AtomicU32,
}

impl Views {
    fn are(&self, nodes: Nodes) {
        *self.nodes.lock().expect("no panic") = nodes;
        self.asked.store(0, Ordering::Relaxed);
    }
}

#[async_trait]
impl ViewsRead for Views {
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
        let found = self.inner.nodes(view, key, names).await?;
        let segment = self.segment.load(Ordering::Relaxed);
        if segment > 0 && key.last() != Some(&segment) {
            return Ok(found);
        }
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let nodes = *self.nodes.lock().expect("no panic");
        match nodes {
            Nodes::Whole => Ok(found),
            Nodes::DamagedOnce if asked > 0 => Ok(found),
            Nodes::Gone => Ok(vec![None; names.len()]),
            Nodes::Damaged | Nodes::DamagedOnce => {
                let damaged = |bytes: Bytes| {
                    let mut bytes = bytes.to_vec();
                    if let Some(last) = bytes.last_mut() {
                        *last ^= 1;
                    }
                    Bytes::from(bytes)
                };
                Ok(found.into_iter().map(|bytes| bytes.map(damaged)).collect())
            }
            Nodes::Away if asked < 5 => Err(away()),
            Nodes::Away => Ok(found),
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

/// Each athlete's effort on two segments becomes faster; answers what was told before.
async fn go_faster(world: &World, athletes: std::ops::Range<i64>, time: i64) -> BTreeSet<String> {
    let told = ids(world).await;
    let lines: Vec<String> = athletes
        .flat_map(|athlete| [1, 2].map(|segment| effort(segment, athlete, time - athlete)))
        .collect();
    world.ingest_into(SOURCE, &lines).await;
    told
}

fn groups(segments: &[i64], athletes: std::ops::Range<i64>) -> BTreeSet<(i64, i64)> {
    let of = |athlete: i64| segments.iter().map(move |segment| (*segment, athlete));
    athletes.flat_map(of).collect()
}

/// A world whose boards are published, with a speed layer that reads its nodes through what may damage
/// those of segment 1.
async fn published() -> (World, Arc<Views>, Working) {
    let mut world = World::new().await;
    world.speed_options.groups_max = 100;
    world.speed_options.rows_max = 1_000;
    world.speed_options.records_max = 100;
    world.intake(SOURCE).await;
    go_faster(&world, 0..40, 1_000).await;
    world.catch_up_on(SOURCE).await;
    world
        .run_on(SOURCE, &RunRequest::default())
        .await
        .expect("a run");
    let views = Arc::new(Views {
        inner: Arc::clone(&world.stores.views) as _,
        nodes: Mutex::new(Nodes::Whole),
        segment: AtomicU8::new(1),
        asked: AtomicU32::new(0),
    });
    let ports = SpeedPorts {
        views: Arc::clone(&views) as _,
        ..world.speed_ports()
    };
    let working = Working::start(&world, ports).await;
    (world, views, working)
}

/// Counting goes on over boards whose nodes are lost, and others are told; once a run has made them
/// anew they are told again.
async fn counting_goes_on_over(nodes: Nodes) {
    let (world, views, mut working) = published().await;
    views.are(nodes);
    let before = go_faster(&world, 0..10, 900).await;
    working.is_at_the_end(&world, true).await;
    assert_eq!(changed(&world, &before).await, groups(&[2], 0..10));
    // What is known to be lost is not read again and again.
    let asked = views.asked.load(Ordering::Relaxed);
    let before = go_faster(&world, 0..10, 850).await;
    working.is_at_the_end(&world, true).await;
    assert_eq!(changed(&world, &before).await, groups(&[2], 0..10));
    assert_eq!(views.asked.load(Ordering::Relaxed), asked);

    views.are(Nodes::Whole);
    let full = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    world.run_on(SOURCE, &full).await.expect("a run");
    let before = go_faster(&world, 5..20, 800).await;
    working.is_at_the_end(&world, true).await;
    assert_eq!(changed(&world, &before).await, groups(&[1, 2], 5..20));
    let last = told(&world, BOARD_CHANGES).await;
    let first_segment = last
        .iter()
        .rfind(|told| told["segment_id"] == 1)
        .expect("one");
    let athlete = first_segment["athlete_id"].as_i64().expect("an athlete");
    let was = if athlete < 10 { 850 } else { 1_000 } - athlete;
    assert_eq!(first_segment["changes"][0]["before"]["elapsed_time"], was);
    // The fastest of all is told to have the crown from who had it.
    let told = told(&world, ACHIEVEMENTS).await;
    let mut crowns = told
        .iter()
        .filter(|told| told["kind"] == "crown" && told["segment_id"] == 1);
    assert_eq!(crowns.next_back().expect("one")["athlete_id"], 19);
    working.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counting_goes_on_over_nodes_that_are_gone() {
    Box::pin(counting_goes_on_over(Nodes::Gone)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counting_goes_on_over_damaged_nodes() {
    Box::pin(counting_goes_on_over(Nodes::Damaged)).await;
}

/// What is wrong for a moment only is waited for: nothing is passed over. Answers how often nodes were
/// asked for.
async fn nothing_is_passed_over(nodes: Nodes) -> u32 {
    let (world, views, mut working) = published().await;
    views.are(nodes);
    let before = go_faster(&world, 0..10, 900).await;
    working.is_at_the_end(&world, true).await;
    assert_eq!(changed(&world, &before).await, groups(&[1, 2], 0..10));
    working.end().await;
    views.asked.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_is_waited_for() {
    assert!(Box::pin(nothing_is_passed_over(Nodes::Away)).await > 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_damaged_once_are_read_again() {
    assert!(Box::pin(nothing_is_passed_over(Nodes::DamagedOnce)).await > 1);
}
