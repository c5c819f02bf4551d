//! How much of the log the speed layer reads again for its duplicate window.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::BoxFuture;
use schemas::seam::Offset;
use schemas::source::Source;
use serde_json::json;
use stores::live::{LiveWrite, PartitionId};
use stores::log::{FetchLimit, FetchedRecords, Log, LogRead, LogWrite, NewRecords, Span};
use stores::{Error, Result};
use tests::plays;
use tests::world::World;
use tokio_util::sync::CancellationToken;

/// Timeout of each wait.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Records in the log before each test's own.
const OLD_RECORDS: usize = 300;

type Hook = Box<dyn FnOnce() -> BoxFuture<'static, Result<()>> + Send>;

/// A log that counts the fetched records of plays, and runs a hook once after a fetch.
struct WatchedLog {
    log: Arc<dyn Log>,
    fetched_count: AtomicUsize,
    hook: Mutex<Option<Hook>>,
}

impl fmt::Debug for WatchedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedLog").finish_non_exhaustive()
    }
}

impl WatchedLog {
    fn set(&self, hook: impl FnOnce() -> BoxFuture<'static, Result<()>> + Send + 'static) {
        *self.hook.lock().expect("no panic") = Some(Box::new(hook));
        self.fetched_count.store(0, SeqCst);
    }
}

#[async_trait]
impl LogRead for WatchedLog {
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
        let fetched = self.log.fetch(topic, partition, from, limit).await?;
        if topic == Source::Plays.topic() && !fetched.records.is_empty() {
            self.fetched_count.fetch_add(fetched.records.len(), SeqCst);
            let hook = self.hook.lock().expect("no panic").take();
            if let Some(hook) = hook {
                hook().await?;
            }
        }
        Ok(fetched)
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
}

#[async_trait]
impl LogWrite for WatchedLog {
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

/// All plays belong to one owner, so they are in one partition.
fn play(id: usize) -> String {
    plays::play(id, json!({}))
}

fn numbered_plays(ids: impl IntoIterator<Item = usize>) -> Vec<String> {
    ids.into_iter().map(play).collect()
}

/// An installation with a watched log and some plays.
async fn create_world() -> (World, Arc<WatchedLog>) {
    let mut world = World::new().await;
    world.speed_options.look_interval_ms = 1;
    let watched_log = Arc::new(WatchedLog {
        log: Arc::clone(&world.stores.log),
        fetched_count: AtomicUsize::new(0),
        hook: Mutex::new(None),
    });
    world.stores.log = Arc::clone(&watched_log) as _;
    world.ingest(&numbered_plays(0..OLD_RECORDS)).await;
    (world, watched_log)
}

/// The partition of the plays and its checkpoint.
async fn read_plays_checkpoint(world: &World) -> Option<(PartitionId, i64, u64)> {
    let states = world.stores.live.partition_states(Source::Plays, 0..2);
    let states = states.await.expect("live state");
    let play_states = (0..).zip(states).filter_map(|(partition, state)| {
        let state = state.filter(|state| state.position.next_offset > 0)?;
        let source = Source::Plays;
        let id = PartitionId { source, partition };
        Some((id, state.position.next_offset, state.epoch))
    });
    play_states.max_by_key(|(_, next_offset, _)| *next_offset)
}

async fn wait_for(world: &World, records: usize) -> (PartitionId, u64) {
    let started = Instant::now();
    loop {
        if let Some((id, next_offset, epoch)) = read_plays_checkpoint(world).await
            && usize::try_from(next_offset).is_ok_and(|n| n >= records)
        {
            return (id, epoch);
        }
        assert!(started.elapsed() < WAIT_MAX, "live state is incomplete");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The disturbance of a worker between a fetch and the apply.
#[derive(Debug, Clone, Copy)]
enum Disturbance {
    /// A run ends the epoch.
    EpochEnds,
    /// The log fails.
    Fails,
    /// Another worker applies the same records.
    IsOvertaken,
}

/// Counts `new` events after the `OLD_RECORDS` ones, with a disturbance at the first fetch, and
/// then all of them again. Returns the number of records that were fetched for the `new` ones.
async fn count_fetched(disturbance: Disturbance, new: usize) -> usize {
    let (world, watched_log) = create_world().await;
    let speed = world.speed().await;
    let stop = CancellationToken::new();
    let scenario = async {
        let (id, epoch) = wait_for(&world, OLD_RECORDS).await;
        let live: Arc<dyn LiveWrite> = Arc::clone(&world.stores.live) as _;
        let mut plain = world.with_catalog(world.catalog.clone());
        plain.stores.log = Arc::clone(&watched_log.log);
        let disturbed = CancellationToken::new();
        let ended = disturbed.clone().drop_guard();
        watched_log.set(move || {
            Box::pin(async move {
                let _ended = ended;
                match disturbance {
                    Disturbance::EpochEnds => {
                        live.end_epoch(id, epoch).await?.expect("ending the epoch");
                    }
                    Disturbance::Fails => {
                        return Err(Error::Unavailable {
                            operation: "the log".to_owned(),
                            reason: "a test".to_owned(),
                        });
                    }
                    Disturbance::IsOvertaken => {
                        let report = plain.catch_up().await;
                        assert_eq!(report.events, u64::try_from(new).expect("few"));
                    }
                }
                Ok(())
            })
        });
        world
            .ingest(&numbered_plays(OLD_RECORDS..OLD_RECORDS + new))
            .await;
        wait_for(&world, OLD_RECORDS + new).await;
        // The other worker must not process the events that follow.
        disturbed.cancelled().await;
        // All events again: the window contains each of them, including those of the disturbed
        // batch.
        world.ingest(&numbered_plays(0..OLD_RECORDS + new)).await;
        wait_for(&world, 2 * (OLD_RECORDS + new)).await;
        stop.cancel();
        watched_log.fetched_count.load(SeqCst) - (OLD_RECORDS + new)
    };
    let counting = tokio::time::timeout(WAIT_MAX * 2, speed.run(false, stop.clone()));
    let (report, fetched) = tokio::join!(counting, scenario);
    let report = report.expect("the worker stops").expect("counting");
    let duplicates = u64::try_from(OLD_RECORDS + new).expect("few");
    assert_eq!(report.duplicates, duplicates, "{report:?}");
    fetched
}

/// An apply that is refused at the end of an epoch fetches its own records again, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_an_epoch_does_not_read_the_window_again() {
    assert_eq!(count_fetched(Disturbance::EpochEnds, 3).await, 6);
}

/// An apply that failed does the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_does_not_read_the_window_again() {
    assert_eq!(count_fetched(Disturbance::Fails, 3).await, 6);
}

/// Records that another worker applied are read for the window only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_another_worker_are_added_to_the_window() {
    assert_eq!(count_fetched(Disturbance::IsOvertaken, 3).await, 6);
}

/// A starting worker reads only the events of its window again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_reads_no_more_than_the_window_holds() {
    let (mut world, watched_log) = create_world().await;
    world.speed_options.dedup_events_max = 64;
    world.catch_up().await;
    watched_log.fetched_count.store(0, SeqCst);
    let report = world.catch_up().await;
    assert_eq!((report.events, report.duplicates), (0, 0));
    assert_eq!(watched_log.fetched_count.load(SeqCst), 64 + 64 / 32);
    // A record is compared with the 63 events before it.
    world
        .ingest(&numbered_plays([
            OLD_RECORDS - 63,
            OLD_RECORDS - 63,
            OLD_RECORDS - 65,
        ]))
        .await;
    let report = world.catch_up().await;
    assert_eq!((report.events, report.duplicates), (1, 2));
}

/// Records that are not events do not count toward the window, so the worker reads older records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_do_not_count_toward_the_window() {
    let (mut world, _) = create_world().await;
    world.speed_options.dedup_events_max = 64;
    world.catch_up().await;
    let (id, _) = wait_for(&world, OLD_RECORDS).await;
    let bad: Vec<&[u8]> = vec![b"{".as_slice(); 150];
    world.append_raw(id.partition, &bad).await;
    let report = world.catch_up().await;
    assert_eq!(report.dead_letters, 150);
    world
        .ingest(&numbered_plays([
            OLD_RECORDS - 63,
            OLD_RECORDS - 63,
            OLD_RECORDS - 65,
        ]))
        .await;
    let report = world.catch_up().await;
    assert_eq!((report.events, report.duplicates), (1, 2));
}
