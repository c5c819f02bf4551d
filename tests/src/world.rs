//! A whole installation in this process: embedded stores in a temporary folder, every layer, and
//! the API on a port of its own.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batch::{
    Batch, BatchOptions, BatchPorts, EditionOptions, ErasePorts, Eraser, RunReport, RunRequest,
};
use jobs::{Catalog, Engine, EngineOptions, tree};
use schemas::clock::FixedClock;
use schemas::draws::SeededDraws;
use schemas::plays::{BEFORE_THE_LOG, Decoder, Line};
use schemas::source::Source;
use serving::{Serving, ServingOptions, ServingPorts};
use speed::{Speed, SpeedOptions, SpeedPorts, SpeedReport};
use stores::erasures::Suppressions;
use stores::intake::{Intake, IntakePorts, Taken};
use stores::log::{FetchLimit, LogWrite, NewRecords};
use stores::namespace::Namespace;
use stores::{Stores, StoresOptions};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::http::Client;
use crate::recount::Recount;
use crate::servers::{self, Addresses};

/// The world's partitions.
pub const PARTITIONS: u32 = 2;
/// More than any test has.
const PARTITIONS_MAX: u32 = 8;
/// No lease lasts so long once nobody renews it.
const LEASE_MAX: Duration = Duration::from_secs(120);
/// When the world's clock stands at the beginning: 2026-03-05T12:00:00Z.
pub const NOW_MS: i64 = 1_772_712_000_000;

/// A whole installation.
#[derive(Debug)]
pub struct World {
    folder: Folder,
    /// Its stores.
    pub stores: Stores,
    /// Its views.
    pub catalog: Catalog,
    engine: Engine,
    /// Its clock.
    pub clock: Arc<FixedClock>,
    /// What the speed layer works with.
    pub speed_options: SpeedOptions,
    /// What the batch layer works with.
    pub batch_options: BatchOptions,
    counted: Arc<Mutex<Counted>>,
    /// What it is called on servers, where it is on any.
    namespace: Option<Namespace>,
    /// Deletes what it has on servers that are its own.
    own: Option<Arc<OwnNamespace>>,
    backfills: Arc<Mutex<Backfills>>,
}

/// The lines of backfills.
#[derive(Debug, Default)]
struct Backfills {
    /// Of those that came to their end, in their order.
    done: Vec<Vec<String>>,
    /// Of the last one, which was cut off. Its last step may still be under way on a thread of its own.
    last: Option<Vec<String>>,
}

/// What is known of live state.
#[derive(Debug, Default)]
struct Counted {
    /// By partition: the furthest position that was seen.
    positions: Vec<i64>,
    /// Whether live state was deleted, or something else is wrong with the stores.
    disturbed: bool,
    /// Whether something else was counted live once than there was: that is kept beside the batch rows.
    miscounted: bool,
}

#[derive(Debug)]
enum Folder {
    Own(TempDir),
    Given(PathBuf),
}

/// What nobody needs any more after the last of its worlds.
#[derive(Debug)]
struct OwnNamespace(StoresOptions);

impl Drop for OwnNamespace {
    fn drop(&mut self) {
        servers::forget(&self.0);
    }
}

impl Folder {
    fn path(&self) -> &Path {
        match self {
            Self::Own(folder) => folder.path(),
            Self::Given(path) => path,
        }
    }
}

impl World {
    /// An empty installation.
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self::on(
            Folder::Own(folder),
            Catalog::built_in().expect("the built-in views"),
        )
        .await
    }

    /// An installation on a folder that may hold one already.
    pub async fn open(folder: &Path) -> Self {
        let catalog = Catalog::built_in().expect("the built-in views");
        Self::on(Folder::Given(folder.to_owned()), catalog).await
    }

    async fn on(folder: Folder, catalog: Catalog) -> Self {
        let path = folder.path();
        let stores = Stores::embedded(path).await.expect("the embedded stores");
        Self::over(folder, stores, catalog)
    }

    /// An empty installation on servers.
    pub async fn on_servers() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = servers::options(folder.path(), &Addresses::default());
        for server in options.servers().expect("options that can be used") {
            server.migrate().await.expect("migrating");
        }
        let stores = Stores::open(&options).await.expect("the stores");
        let world = Self::of_servers(folder.path(), stores, options.namespace.clone());
        Self {
            folder: Folder::Own(folder),
            own: Some(Arc::new(OwnNamespace(options))),
            ..world
        }
    }

    /// An installation on servers that may be there already.
    #[must_use]
    pub fn of_servers(folder: &Path, stores: Stores, namespace: Namespace) -> Self {
        let catalog = Catalog::built_in().expect("the built-in views");
        let world = Self::over(Folder::Given(folder.to_owned()), stores, catalog);
        Self {
            namespace: Some(namespace),
            ..world
        }
    }

    fn over(folder: Folder, stores: Stores, catalog: Catalog) -> Self {
        let path = folder.path();
        let spill = path.join("spill");
        std::fs::create_dir_all(&spill).expect("a folder to spill to");
        let engine = Engine::new(EngineOptions {
            threads: 2,
            memory_bytes: 512 << 20,
            spill_folder: spill,
            spill_bytes_max: 1 << 30,
        });
        Self {
            folder,
            stores,
            catalog,
            engine: engine.expect("a query engine"),
            clock: Arc::new(FixedClock::at_ms(NOW_MS)),
            speed_options: SpeedOptions {
                records_max: 7,
                groups_max: 3,
                rows_max: 4,
                sum_states: 2,
                poll_interval_ms: 1,
                look_interval_ms: 5,
                run_wait_ms: 200,
                ..SpeedOptions::default()
            },
            batch_options: BatchOptions {
                grace_ms: 0,
                roll_wait_ms: 3_000,
                speed_wait_ms: 0,
                archive_rows_max: 50,
                archive_bytes_max: 4_000,
                result_bytes_max: 8_000,
                archive_wait_ms: 0,
                task_rows_max: 40,
                snapshot_rows_max: 5,
                publish_rows: 9,
                scan_rows: 5,
                check_rows_min: 1_000,
                // A few rows make a tree of several levels, and a key that is written in parts.
                editions: EditionOptions {
                    tree: tree::Options {
                        leaf_items_mean: 3,
                        inner_children_mean: 3,
                        ..tree::Options::default()
                    },
                    nodes_bytes_max: 300,
                },
                ..BatchOptions::default()
            },
            counted: Arc::default(),
            namespace: None,
            own: None,
            backfills: Arc::default(),
        }
    }

    /// The same installation with other views: a process of a newer build.
    #[must_use]
    pub fn with_catalog(&self, catalog: Catalog) -> Self {
        Self {
            folder: Folder::Given(self.path().to_owned()),
            stores: self.stores.clone(),
            catalog,
            engine: self.engine.clone(),
            clock: Arc::clone(&self.clock),
            speed_options: self.speed_options.clone(),
            batch_options: self.batch_options.clone(),
            counted: Arc::clone(&self.counted),
            namespace: self.namespace.clone(),
            own: self.own.clone(),
            backfills: Arc::clone(&self.backfills),
        }
    }

    /// The data folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What it is called on servers, where it is on any.
    #[must_use]
    pub const fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// The way in for the lines of a source.
    pub async fn intake(&self, source: Source) -> Intake {
        let ports = IntakePorts {
            log: Arc::clone(&self.stores.log) as _,
            canon: Arc::clone(&self.stores.canon) as _,
            suppressions: Suppressions::new(Arc::clone(&self.stores.erasures)),
            clock: Arc::clone(&self.clock) as _,
        };
        let intake = Intake::open(ports, source, PARTITIONS).await;
        intake.expect("an intake")
    }

    /// What erases people.
    #[must_use]
    pub fn eraser(&self) -> Eraser {
        let ports = ErasePorts {
            log: Arc::clone(&self.stores.log),
            canon: Arc::clone(&self.stores.canon) as _,
            canon_erase: Arc::clone(&self.stores.canon_erase),
            achievements: Arc::clone(&self.stores.achievements),
            data_folder: self.stores.data_folder.clone(),
            partitions: PARTITIONS,
        };
        Eraser::build(self.batch(), ports)
    }

    /// Takes plays in.
    pub async fn ingest(&self, lines: &[String]) -> Taken {
        self.ingest_into(Source::Plays, lines).await
    }

    /// Takes lines of a source in.
    pub async fn ingest_into(&self, source: Source, lines: &[String]) -> Taken {
        let numbered = (1..).zip(lines.iter().map(|line| line.as_bytes()));
        let taken = self.intake(source).await.take("test", numbered).await;
        taken.expect("ingesting")
    }

    /// Appends records to the log as another producer would, unchecked.
    pub async fn append_raw(&self, partition: u32, lines: &[&[u8]]) {
        let keys = lines.iter().map(|_| Some(b"x".as_slice())).collect();
        let records = NewRecords {
            partition,
            keys,
            values: lines.iter().map(|line| Some(*line)).collect(),
            headers: Vec::new(),
        };
        let now_ms = schemas::clock::Clock::now_ms(&*self.clock);
        let topic = Source::Plays.topic();
        self.stores
            .log
            .append(topic, &[records], now_ms)
            .await
            .expect("appending");
    }

    /// Takes events straight into the archive: all of them, or none.
    pub fn backfill(&self, lines: &[String]) -> impl Future<Output = ()> + Send + 'static {
        // The one before has come to its end by now, or never will.
        self.backfills.lock().expect("no panic").last = None;
        let (batch, lines) = (self.batch(), lines.to_vec());
        async move {
            let mut backfill = batch.backfill(Source::Plays).await.expect("a backfill");
            let places = lines.iter().map(|line| Line {
                offset: BEFORE_THE_LOG,
                logged_at_ms: NOW_MS,
                bytes: line.as_bytes(),
            });
            let decoded = Decoder::new(0).decode(places).expect("events");
            backfill.add(decoded.events).await.expect("writing events");
            backfill.finish().await.expect("a backfill");
        }
    }

    /// Notes the lines of a backfill that may have been cut off: they count if it came to its end.
    pub async fn settle_backfill(&self, lines: Vec<String>) {
        self.look_for_backfills().await;
        self.backfills.lock().expect("no panic").last = Some(lines);
        self.look_for_backfills().await;
    }

    async fn look_for_backfills(&self) {
        let version = archive_version(&self.stores.archive).await;
        let there = version["backfills"].as_u64().unwrap_or(0);
        let there = usize::try_from(there).expect("few backfills");
        let mut backfills = self.backfills.lock().expect("no panic");
        if there > backfills.done.len()
            && let Some(lines) = backfills.last.take()
        {
            backfills.done.push(lines);
        }
    }

    /// The plain truth of plays up to a position, with the backfills that an answer names.
    pub async fn recount(&self, provenance: &serde_json::Value, position: &[i64]) -> Recount {
        let held = provenance["backfills"].as_u64().unwrap_or(0);
        let held = usize::try_from(held).expect("few backfills");
        self.look_for_backfills().await;
        let mut partitions = self.raw_log().await;
        let mut until = position.to_vec();
        until.resize(partitions.len(), 0);
        let backfills = self.backfills.lock().expect("no panic");
        assert!(held <= backfills.done.len(), "{provenance}");
        for lines in backfills.done.iter().take(held) {
            partitions.push(lines.clone());
            until.push(i64::try_from(lines.len()).expect("few lines"));
        }
        Recount::of(&partitions, &until)
    }

    /// Every record of the log, by partition, from offset 0 on.
    pub async fn raw_log(&self) -> Vec<Vec<String>> {
        let topic = Source::Plays.topic();
        let spans = self.stores.log.spans(topic).await.expect("the log");
        let mut partitions = Vec::new();
        for (partition, span) in (0..).zip(spans) {
            let mut lines: Vec<String> = Vec::new();
            let mut at = 0;
            while at < span.end {
                let limit = FetchLimit {
                    records: 10_000,
                    bytes: 1 << 24,
                };
                let fetched = self
                    .stores
                    .log
                    .fetch(topic, partition, at, limit)
                    .await
                    .expect("fetching");
                let values = fetched.records.values.iter().flatten();
                lines.extend(values.map(|value| String::from_utf8_lossy(value).into_owned()));
                at = fetched.next_offset;
            }
            partitions.push(lines);
        }
        partitions
    }

    /// How far the speed layer has counted, by partition: every answer to a later question holds
    /// that much, or says that it does not.
    pub async fn counted(&self) -> Vec<i64> {
        let read = self.stores.live.read(Source::Plays, PARTITIONS_MAX, &[]);
        let slots = read.await.expect("live state").slots;
        let mut counted = self.counted.lock().expect("no panic");
        counted.positions.resize(slots.len(), 0);
        for (furthest, slot) in counted.positions.iter_mut().zip(&slots) {
            let position = slot.as_ref().map_or(0, |slot| slot.position.next_offset);
            *furthest = position.max(*furthest);
        }
        counted.positions.clone()
    }

    /// Deletes live state.
    pub fn lose_live(&self) {
        // What was lost before may not have been made again yet.
        let was_lost = self.counted.lock().expect("no panic").disturbed;
        self.disturb();
        if let Some(namespace) = &self.namespace {
            servers::forget_live(namespace);
            return;
        }
        let mut deleted = 0;
        for entry in std::fs::read_dir(self.path()).expect("the data folder") {
            let entry = entry.expect("an entry");
            if entry.file_name().to_string_lossy().starts_with("live.db") {
                // A process may clear away what is left at the same moment.
                deleted += usize::from(std::fs::remove_file(entry.path()).is_ok());
            }
        }
        assert!(deleted > 0 || was_lost, "there is no live.db");
    }

    /// Something is wrong with the stores: questions may find no answer, or an earlier one.
    pub fn disturb(&self) {
        self.counted.lock().expect("no panic").disturbed = true;
    }

    /// Live state is as it was some time ago: what was counted since is not any more.
    pub fn live_fell_back(&self) {
        self.counted.lock().expect("no panic").positions.clear();
    }

    /// Whether questions may find no answer, or an earlier one.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.counted.lock().expect("no panic").disturbed
    }

    /// Somebody has changed what was counted live: what it had been is told for ever where that is asked for.
    pub fn live_was_damaged(&self) {
        self.counted.lock().expect("no panic").miscounted = true;
    }

    /// Whether somebody has ever changed what was counted live.
    #[must_use]
    pub fn had_damaged_live(&self) -> bool {
        self.counted.lock().expect("no panic").miscounted
    }

    /// The speed layer has caught up: from here on everything must be answered again.
    pub fn live_is_back(&self) {
        self.counted.lock().expect("no panic").disturbed = false;
    }

    /// The speed layer of plays.
    pub async fn speed(&self) -> Speed {
        self.speed_of(Source::Plays).await
    }

    /// The speed layer of a source.
    pub async fn speed_of(&self, source: Source) -> Speed {
        self.speed_writing(source, Arc::clone(&self.stores.log) as _)
            .await
    }

    /// The speed layer of a source with another way to write the log.
    pub async fn speed_writing(&self, source: Source, log_writes: Arc<dyn LogWrite>) -> Speed {
        let ports = SpeedPorts {
            log_writes,
            ..self.speed_ports()
        };
        self.speed_over(source, ports).await
    }

    /// What a speed layer works on.
    #[must_use]
    pub fn speed_ports(&self) -> SpeedPorts {
        SpeedPorts {
            schemas: Arc::clone(&self.stores.schemas) as _,
            log: Arc::clone(&self.stores.log) as _,
            log_writes: Arc::clone(&self.stores.log) as _,
            canon: Arc::clone(&self.stores.canon) as _,
            live: Arc::clone(&self.stores.live) as _,
            views: Arc::clone(&self.stores.views) as _,
            achievements: Arc::clone(&self.stores.achievements) as _,
            hook: self.stores.hook.clone(),
            recounts: Arc::clone(&self.stores.canon) as _,
            records: Arc::clone(&self.stores.records),
            suppressions: Suppressions::new(Arc::clone(&self.stores.erasures)),
            clock: Arc::clone(&self.clock) as _,
            draws: Arc::new(SeededDraws::new(1)),
        }
    }

    /// The speed layer of a source on ports of its own.
    pub async fn speed_over(&self, source: Source, ports: SpeedPorts) -> Speed {
        let options = self.speed_options.clone();
        Speed::build(ports, &self.catalog, &self.engine, source, options)
            .await
            .expect("a speed layer")
    }

    /// Counts all plays that are in the log.
    pub async fn catch_up(&self) -> SpeedReport {
        let done = self.catch_up_on(Source::Plays).await;
        self.live_is_back();
        done
    }

    /// Lets the speed layer of a source come to the end of its log.
    pub async fn catch_up_on(&self, source: Source) -> SpeedReport {
        let speed = self.speed_of(source).await;
        let done = speed.run(true, CancellationToken::new()).await;
        done.expect("catching up")
    }

    /// A batch layer.
    #[must_use]
    pub fn batch(&self) -> Batch {
        let ports = batch_ports(&self.stores, Arc::clone(&self.clock));
        let options = self.batch_options.clone();
        Batch::build(ports, self.catalog.clone(), self.engine.clone(), options)
    }

    /// One batch run of plays.
    ///
    /// # Errors
    /// Those of the run.
    pub async fn run(&self, request: &RunRequest) -> batch::Result<RunReport> {
        self.run_on(Source::Plays, request).await
    }

    /// One batch run of a source.
    ///
    /// # Errors
    /// Those of the run.
    pub async fn run_on(&self, source: Source, request: &RunRequest) -> batch::Result<RunReport> {
        let stop = CancellationToken::new();
        self.batch().run(source, request, &(), &stop).await
    }

    /// One batch run of a source, once the lease of one that was cut off in the middle is over.
    ///
    /// # Panics
    /// If the run does not succeed, or the lease does not end.
    pub async fn run_once_free(&self, source: Source, request: &RunRequest) -> RunReport {
        let begun = Instant::now();
        loop {
            match self.run_on(source, request).await {
                Err(batch::Error::Busy(why)) => {
                    assert!(begun.elapsed() < LEASE_MAX, "{why}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                done => return done.expect("a run"),
            }
        }
    }

    /// The API, without a socket.
    ///
    /// # Panics
    /// If it can't be built.
    #[must_use]
    pub fn serving(&self) -> Serving {
        let ports = ServingPorts {
            log: Arc::clone(&self.stores.log) as _,
            ingest: Arc::clone(&self.stores.log) as _,
            canon: Arc::clone(&self.stores.canon) as _,
            live: Arc::clone(&self.stores.live) as _,
            views: Arc::clone(&self.stores.views) as _,
            achievements: Arc::clone(&self.stores.achievements) as _,
            counts: Arc::clone(&self.stores.counts) as _,
            records: Arc::clone(&self.stores.records),
            keys: Arc::clone(&self.stores.keys),
            schemas: Arc::clone(&self.stores.schemas),
            suppressions: Suppressions::new(Arc::clone(&self.stores.erasures)),
            clock: Arc::clone(&self.clock) as _,
        };
        let options = ServingOptions {
            partitions: PARTITIONS,
            ..ServingOptions::default()
        };
        Serving::build(ports, self.catalog.clone(), options, None).expect("serving")
    }

    /// Starts the API.
    pub async fn serve(&self) -> Served {
        let serving = self.serving();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let until = stop.clone();
        #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
        let task = tokio::spawn(async move {
            serving
                .run(listener, until)
                .await
                .map_err(|e| e.to_string())
        });
        Served {
            client: Client::new(&format!("http://{address}")),
            stop,
            task,
        }
    }
}

/// The ports of a batch layer over an installation's stores.
#[must_use]
pub fn batch_ports(stores: &Stores, clock: Arc<FixedClock>) -> BatchPorts {
    BatchPorts {
        schemas: Arc::clone(&stores.schemas) as _,
        log: Arc::clone(&stores.log) as _,
        live: Arc::clone(&stores.live) as _,
        views: Arc::clone(&stores.views) as _,
        counts: Arc::clone(&stores.counts) as _,
        canon: Arc::clone(&stores.canon) as _,
        records: Arc::clone(&stores.records),
        archive: stores.archive.clone(),
        leases: Arc::clone(&stores.leases) as _,
        suppressions: Suppressions::new(Arc::clone(&stores.erasures)),
        clock: clock as _,
    }
}

/// A running API.
#[derive(Debug)]
pub struct Served {
    /// Asks it.
    pub client: Client,
    stop: CancellationToken,
    task: JoinHandle<Result<(), String>>,
}

impl Served {
    /// Stops it and waits for its end.
    pub async fn end(self) {
        self.stop.cancel();
        self.task.await.expect("serving ended").expect("serving");
    }
}

/// The newest version of the archive of plays; null if there is none.
///
/// # Panics
/// If the archive cannot be read.
pub async fn archive_version(archive: &stores::archive::Archive) -> serde_json::Value {
    let versions = archive.list("archive/plays/versions").await;
    let Some(path) = versions.expect("the archive").pop() else {
        return serde_json::Value::Null;
    };
    let bytes = archive.get(&path).await.expect("the archive");
    let bytes = bytes.expect("a version");
    // A checksum follows.
    let mut values = serde_json::Deserializer::from_slice(&bytes).into_iter();
    values.next().expect("a version").expect("JSON")
}
