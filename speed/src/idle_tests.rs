//! When idle workers wake, and the number of requests.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use async_trait::async_trait;
use schemas::seam::GenerationStart;
use stores::Stores;
use stores::live::{LiveWrite, PartitionId};
use stores::log::{FetchLimit, FetchedRecords, Span};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;

const SOURCE: Source = Source::Plays;
const PARTITIONS: u32 = 64;
/// Longer than any wait of the tests.
const LONG: Duration = Duration::from_secs(60);

/// A log that supports only reads of its ends.
#[derive(Debug)]
struct Ends {
    ends: Mutex<Vec<Offset>>,
    reads: AtomicUsize,
    is_gone: AtomicUsize,
}

fn refuse<T>() -> stores::Result<T> {
    Err(stores::Error::Refused("not for idle workers".to_owned()))
}

#[async_trait]
impl LogRead for Ends {
    async fn spans(&self, _: &str) -> stores::Result<Vec<Span>> {
        refuse()
    }

    async fn ends(&self, _: &str) -> stores::Result<Vec<Offset>> {
        self.reads.fetch_add(1, SeqCst);
        match self.is_gone.load(SeqCst) {
            0 => Ok(self.ends.lock().expect("no panic").clone()),
            _ => refuse(),
        }
    }

    async fn fetch(
        &self,
        _: &str,
        _: u32,
        _: Offset,
        _: FetchLimit,
    ) -> stores::Result<FetchedRecords> {
        refuse()
    }

    async fn offset_at(&self, _: &str, _: u32, _: i64) -> stores::Result<Offset> {
        refuse()
    }
}

struct Scene {
    log: Arc<Ends>,
    live: Arc<dyn LiveWrite>,
    watch: Arc<IdleWatch>,
    /// The checkpoint of each partition.
    checkpoints: Vec<Checkpoint>,
    _folder: TempDir,
}

impl Scene {
    /// Every partition has a state at the end of an empty log.
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let stores = Stores::embedded(folder.path()).await.expect("the stores");
        let runs = stores.views.runs(SOURCE).await.expect("the runs").runs;
        for partition in 0..PARTITIONS {
            let start: GenerationStart = runs.generation_start(partition as usize, 0, 1);
            let rebuilt = stores
                .live
                .rebuild(partition_id(partition), None, &start)
                .await;
            rebuilt.expect("live state").expect("a new generation");
        }
        let states = stores.live.partition_states(SOURCE, 0..PARTITIONS).await;
        let states = states.expect("live state").into_iter().flatten();
        let log = Arc::new(Ends {
            ends: Mutex::new(vec![0; PARTITIONS as usize]),
            reads: AtomicUsize::new(0),
            is_gone: AtomicUsize::new(0),
        });
        let watch = IdleWatch {
            log: Arc::clone(&log) as _,
            live: Arc::clone(&stores.live) as _,
            views: stores.views as _,
            source: SOURCE,
            log_interval_ms: 1,
            state_interval_ms: 1,
            runs_interval_ms: 1,
            reads: watch::Sender::default(),
        };
        Self {
            log,
            live: stores.live as _,
            watch: Arc::new(watch),
            checkpoints: states.map(|state| state.checkpoint()).collect(),
            _folder: folder,
        }
    }

    /// A waiting worker with the run records of an installation without runs.
    #[expect(
        clippy::disallowed_methods,
        reason = "a test ends with its runtime, and its tasks with it"
    )]
    async fn wait(&self, partition: u32) -> JoinHandle<Wake> {
        let waiting_workers = self.watch.reads.receiver_count();
        let (watch, checkpoint) = (
            Arc::clone(&self.watch),
            self.checkpoints[partition as usize],
        );
        let waiting = tokio::spawn(async move {
            let runs = RunRecords::default();
            let idle = IdleWorker {
                partition,
                partitions: PARTITIONS,
                checkpoint,
                runs: &runs,
                wait_start: watch.start_wait(),
            };
            watch.wait(idle, LONG, &CancellationToken::new()).await
        });
        while self.watch.reads.receiver_count() == waiting_workers {
            tokio::task::yield_now().await;
        }
        waiting
    }

    async fn read(&self, subject: Subject) {
        self.watch.read(subject).await.expect("a read");
    }
}

fn partition_id(partition: u32) -> PartitionId {
    PartitionId {
        source: SOURCE,
        partition,
    }
}

/// One request serves all idle workers. It wakes only the ones with new records.
#[tokio::test]
async fn idle_workers_share_their_requests() {
    let scene = Scene::new().await;
    let mut waiting = Vec::new();
    for partition in 0..PARTITIONS {
        waiting.push(scene.wait(partition).await);
    }
    assert_eq!(
        scene.log.reads.load(SeqCst),
        0,
        "a waiting worker reads nothing"
    );
    scene.read(Subject::Log).await;
    scene.read(Subject::States).await;
    scene.read(Subject::Runs).await;
    scene.log.ends.lock().expect("no panic")[5] = 1;
    scene.read(Subject::Log).await;
    assert_eq!(waiting.remove(5).await.expect("a wake"), Wake::Log);
    assert_eq!(scene.log.reads.load(SeqCst), 2);
    assert_eq!(scene.watch.reads.receiver_count(), PARTITIONS as usize - 1);
}

/// Records that were read before the wait began end it at once.
#[tokio::test]
async fn earlier_records_end_a_wait_at_once() {
    let scene = Scene::new().await;
    scene.log.ends.lock().expect("no panic")[3] = 1;
    scene.read(Subject::Log).await;
    let idle = IdleWorker {
        partition: 3,
        partitions: PARTITIONS,
        checkpoint: scene.checkpoints[3],
        runs: &RunRecords::default(),
        wait_start: scene.watch.start_wait(),
    };
    let stop = CancellationToken::new();
    assert_eq!(scene.watch.wait(idle, LONG, &stop).await, Wake::Log);
}

/// Workers look for records themselves while the shared read of the log hangs.
#[tokio::test]
async fn a_hanging_log_read_wakes_workers() {
    let scene = Scene::new().await;
    let idle = IdleWorker {
        partition: 3,
        partitions: PARTITIONS,
        checkpoint: scene.checkpoints[3],
        runs: &RunRecords::default(),
        wait_start: scene.watch.start_wait(),
    };
    let stop = CancellationToken::new();
    let step = Duration::from_millis(50);
    let woken = loop {
        match scene.watch.wait(idle, step, &stop).await {
            Wake::Timeout => {}
            wake => break wake,
        }
    };
    assert_eq!(woken, Wake::Log);
    scene.read(Subject::Log).await;
    assert_eq!(scene.watch.wait(idle, step, &stop).await, Wake::Timeout);
}

/// A state that changed before the wait began wakes with the next read, even if that read finds no
/// change.
#[tokio::test]
async fn an_earlier_state_change_ends_a_wait() {
    let scene = Scene::new().await;
    scene.read(Subject::Log).await;
    let ended = scene
        .live
        .end_epoch(partition_id(2), scene.checkpoints[2].epoch)
        .await;
    ended.expect("live state").expect("the epoch ends");
    scene.read(Subject::States).await;
    let (changed, unchanged) = (scene.wait(2).await, scene.wait(3).await);
    scene.read(Subject::States).await;
    assert_eq!(changed.await.expect("a wake"), Wake::Refresh);
    assert!(!unchanged.is_finished());
}

/// A log that ends before the checkpoint wakes the worker, unless the read began before the wait.
#[tokio::test]
async fn a_shortened_log_wakes_the_worker() {
    let mut scene = Scene::new().await;
    scene.read(Subject::Log).await;
    scene.checkpoints[1].next_offset = 1;
    let waiting = scene.wait(1).await;
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    scene.read(Subject::Log).await;
    // An equal read is compared together with the next states.
    scene.read(Subject::States).await;
    assert_eq!(waiting.await.expect("a wake"), Wake::Log);
}

/// A failed read wakes all workers, once per failure.
#[tokio::test]
async fn a_failed_read_wakes_all_workers() {
    let scene = Scene::new().await;
    scene.log.is_gone.store(1, SeqCst);
    let waiting = scene.wait(0).await;
    let stop = CancellationToken::new();
    let running = Arc::clone(&scene.watch).run(stop.clone());
    let scenario = async {
        assert_eq!(waiting.await.expect("a wake"), Wake::Refresh);
        stop.cancel();
    };
    let (outcome, ()) = tokio::join!(running, scenario);
    outcome.expect("no error");
}
