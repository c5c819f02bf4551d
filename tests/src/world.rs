//! A complete installation in this process: embedded stores in a temporary folder, every layer, and
//! the API on its own port.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batch::{
    Batch, BatchOptions, BatchPorts, ErasePorts, Eraser, RunReport, RunRequest, VersionOptions,
};
use jobs::{Catalog, Engine, EngineOptions, tree};
use schemas::clock::FixedClock;
use schemas::plays::{BEFORE_THE_LOG, Decoder, Line};
use schemas::random::SeededRandom;
use schemas::source::Source;
use serving::{Serving, ServingOptions, ServingPorts};
use speed::{Speed, SpeedOptions, SpeedPorts, SpeedReport};
use stores::erasures::Suppressions;
use stores::intake::{Intake, IntakePorts, IntakeReport};
use stores::log::{FetchLimit, LogWrite, NewRecords};
use stores::namespace::Namespace;
use stores::{Stores, StoresOptions};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::http::Client;
use crate::recount::Recount;
use crate::servers::{self, Addresses};

/// Default number of partitions.
pub const PARTITIONS: u32 = 2;
/// More partitions than any test uses.
const PARTITIONS_MAX: u32 = 8;
/// Longer than any lease that is not renewed.
const LEASE_MAX: Duration = Duration::from_secs(120);
/// Initial time of the clock: 2026-03-05T12:00:00Z.
pub const NOW_MS: i64 = 1_772_712_000_000;

/// A complete installation.
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
    /// Options of the speed layer.
    pub speed_options: SpeedOptions,
    /// Options of the batch layer.
    pub batch_options: BatchOptions,
    live_expectations: Arc<Mutex<LiveExpectations>>,
    /// Its namespace, if it is on servers.
    namespace: Option<Namespace>,
    /// Deletes its data from the shared servers on drop.
    cleanup: Option<Arc<NamespaceCleanup>>,
    backfills: Arc<Mutex<Backfills>>,
}

/// The lines of backfills.
#[derive(Debug, Default)]
struct Backfills {
    /// The lines of each finished backfill, in order.
    finished: Vec<Vec<String>>,
    /// The lines of the last backfill if it was interrupted. Its last step may still run on a
    /// thread of its own.
    interrupted: Option<Vec<String>>,
}

/// Expectations about live state.
#[derive(Debug, Default)]
struct LiveExpectations {
    /// The furthest position seen, by partition.
    positions: Vec<i64>,
    /// True if live state was deleted or a store was disturbed.
    disturbed: bool,
    /// True if live counts were ever wrong: drift from them is stored next to the batch rows.
    miscounted: bool,
}

#[derive(Debug)]
enum Folder {
    Temporary(TempDir),
    Existing(PathBuf),
}

/// Deletes an installation from shared servers when its last `World` is dropped.
#[derive(Debug)]
struct NamespaceCleanup(StoresOptions);

impl Drop for NamespaceCleanup {
    fn drop(&mut self) {
        servers::delete_installation(&self.0);
    }
}

impl Folder {
    fn path(&self) -> &Path {
        match self {
            Self::Temporary(folder) => folder.path(),
            Self::Existing(path) => path,
        }
    }
}

impl World {
    /// Creates an empty installation.
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self::open_embedded(
            Folder::Temporary(folder),
            Catalog::built_in().expect("the built-in views"),
        )
        .await
    }

    /// Opens an installation in a folder, which may exist already.
    pub async fn open(folder: &Path) -> Self {
        let catalog = Catalog::built_in().expect("the built-in views");
        Self::open_embedded(Folder::Existing(folder.to_owned()), catalog).await
    }

    async fn open_embedded(folder: Folder, catalog: Catalog) -> Self {
        let path = folder.path();
        let stores = Stores::embedded(path).await.expect("the embedded stores");
        Self::with_stores(folder, stores, catalog)
    }

    /// Creates an empty installation on servers.
    pub async fn on_servers() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = servers::options(folder.path(), &Addresses::default());
        for server in options.servers().expect("options that can be used") {
            server.migrate().await.expect("migrating");
        }
        let stores = Stores::open(&options).await.expect("the stores");
        let world = Self::open_on_servers(folder.path(), stores, options.namespace.clone());
        Self {
            folder: Folder::Temporary(folder),
            cleanup: Some(Arc::new(NamespaceCleanup(options))),
            ..world
        }
    }

    /// Opens an installation on servers, which may exist already.
    #[must_use]
    pub fn open_on_servers(folder: &Path, stores: Stores, namespace: Namespace) -> Self {
        let catalog = Catalog::built_in().expect("the built-in views");
        let world = Self::with_stores(Folder::Existing(folder.to_owned()), stores, catalog);
        Self {
            namespace: Some(namespace),
            ..world
        }
    }

    fn with_stores(folder: Folder, stores: Stores, catalog: Catalog) -> Self {
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
            clock: Arc::new(FixedClock::new(NOW_MS)),
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
                // A few rows create a tree of several levels, and a key that is written in parts.
                versions: VersionOptions {
                    tree: tree::TreeOptions {
                        leaf_items_mean: 3,
                        inner_children_mean: 3,
                        ..tree::TreeOptions::default()
                    },
                    nodes_bytes_max: 300,
                },
                ..BatchOptions::default()
            },
            live_expectations: Arc::default(),
            namespace: None,
            cleanup: None,
            backfills: Arc::default(),
        }
    }

    /// Returns the same installation with other views, as in a process of a newer build.
    #[must_use]
    pub fn with_catalog(&self, catalog: Catalog) -> Self {
        Self {
            folder: Folder::Existing(self.path().to_owned()),
            stores: self.stores.clone(),
            catalog,
            engine: self.engine.clone(),
            clock: Arc::clone(&self.clock),
            speed_options: self.speed_options.clone(),
            batch_options: self.batch_options.clone(),
            live_expectations: Arc::clone(&self.live_expectations),
            namespace: self.namespace.clone(),
            cleanup: self.cleanup.clone(),
            backfills: Arc::clone(&self.backfills),
        }
    }

    /// Returns the data folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns its namespace, if it is on servers.
    #[must_use]
    pub const fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// Returns the intake of a source.
    pub async fn intake(&self, source: Source) -> Intake {
        let ports = IntakePorts {
            log: Arc::clone(&self.stores.log) as _,
            entities: Arc::clone(&self.stores.entities) as _,
            suppressions: Suppressions::new(Arc::clone(&self.stores.erasures)),
            clock: Arc::clone(&self.clock) as _,
        };
        let intake = Intake::open(ports, source, PARTITIONS).await;
        intake.expect("an intake")
    }

    /// Returns an eraser of people.
    #[must_use]
    pub fn eraser(&self) -> Eraser {
        let ports = ErasePorts {
            log: Arc::clone(&self.stores.log),
            entities: Arc::clone(&self.stores.entities) as _,
            entity_eraser: Arc::clone(&self.stores.entity_eraser),
            achievements: Arc::clone(&self.stores.achievements),
            data_folder: self.stores.data_folder.clone(),
            partitions: PARTITIONS,
        };
        Eraser::new(self.batch(), ports)
    }

    /// Ingests plays.
    pub async fn ingest(&self, lines: &[String]) -> IntakeReport {
        self.ingest_into(Source::Plays, lines).await
    }

    /// Ingests lines of a source.
    pub async fn ingest_into(&self, source: Source, lines: &[String]) -> IntakeReport {
        let numbered = (1..).zip(lines.iter().map(|line| line.as_bytes()));
        let report = self.intake(source).await.ingest("test", numbered).await;
        report.expect("ingesting")
    }

    /// Appends unchecked records to the log, as another producer would.
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

    /// Backfills events directly into the archive, all or none.
    pub fn backfill(&self, lines: &[String]) -> impl Future<Output = ()> + Send + 'static {
        // The previous backfill has finished by now or never will.
        self.backfills.lock().expect("no panic").interrupted = None;
        let (batch, lines) = (self.batch(), lines.to_vec());
        async move {
            let mut backfill = batch.backfill(Source::Plays).await.expect("a backfill");
            let log_lines = lines.iter().map(|line| Line {
                offset: BEFORE_THE_LOG,
                logged_at_ms: NOW_MS,
                bytes: line.as_bytes(),
            });
            let decoded = Decoder::new(0).decode(log_lines).expect("events");
            backfill.add(decoded.events).await.expect("writing events");
            backfill.finish().await.expect("a backfill");
        }
    }

    /// Records the lines of a backfill that may have been interrupted: they count if it finished.
    pub async fn settle_backfill(&self, lines: Vec<String>) {
        self.detect_backfills().await;
        self.backfills.lock().expect("no panic").interrupted = Some(lines);
        self.detect_backfills().await;
    }

    async fn detect_backfills(&self) {
        let version = archive_version(&self.stores.archive).await;
        let backfill_count = version["backfills"].as_u64().unwrap_or(0);
        let backfill_count = usize::try_from(backfill_count).expect("few backfills");
        let mut backfills = self.backfills.lock().expect("no panic");
        if backfill_count > backfills.finished.len()
            && let Some(lines) = backfills.interrupted.take()
        {
            backfills.finished.push(lines);
        }
    }

    /// Recounts plays up to a position, including the backfills that an answer names.
    pub async fn recount(&self, provenance: &serde_json::Value, position: &[i64]) -> Recount {
        let backfill_count = provenance["backfills"].as_u64().unwrap_or(0);
        let backfill_count = usize::try_from(backfill_count).expect("few backfills");
        self.detect_backfills().await;
        let mut partitions = self.raw_log().await;
        let mut ends = position.to_vec();
        ends.resize(partitions.len(), 0);
        let backfills = self.backfills.lock().expect("no panic");
        assert!(backfill_count <= backfills.finished.len(), "{provenance}");
        for lines in backfills.finished.iter().take(backfill_count) {
            partitions.push(lines.clone());
            ends.push(i64::try_from(lines.len()).expect("few lines"));
        }
        Recount::new(&partitions, &ends)
    }

    /// Returns every record of the log by partition, from offset 0.
    pub async fn raw_log(&self) -> Vec<Vec<String>> {
        let topic = Source::Plays.topic();
        let spans = self.stores.log.spans(topic).await.expect("the log");
        let mut partitions = Vec::new();
        for (partition, span) in (0..).zip(spans) {
            let mut lines: Vec<String> = Vec::new();
            let mut offset = 0;
            while offset < span.end {
                let limit = FetchLimit {
                    records: 10_000,
                    bytes: 1 << 24,
                };
                let fetched = self
                    .stores
                    .log
                    .fetch(topic, partition, offset, limit)
                    .await
                    .expect("fetching");
                let values = fetched.records.values.iter().flatten();
                lines.extend(values.map(|value| String::from_utf8_lossy(value).into_owned()));
                offset = fetched.next_offset;
            }
            partitions.push(lines);
        }
        partitions
    }

    /// Returns the counted position by partition. Every answer to a later query includes it, or
    /// declares itself incomplete.
    pub async fn counted_positions(&self) -> Vec<i64> {
        let read = self
            .stores
            .live
            .read_deltas(Source::Plays, PARTITIONS_MAX, &[]);
        let states = read.await.expect("live state").partition_states;
        let mut expectations = self.live_expectations.lock().expect("no panic");
        expectations.positions.resize(states.len(), 0);
        for (furthest, state) in expectations.positions.iter_mut().zip(&states) {
            let position = state.as_ref().map_or(0, |state| state.position.next_offset);
            *furthest = position.max(*furthest);
        }
        expectations.positions.clone()
    }

    /// Deletes live state.
    pub fn delete_live_state(&self) {
        // Live state that was lost before may not be rebuilt yet.
        let was_lost = self.live_expectations.lock().expect("no panic").disturbed;
        self.disturb();
        if let Some(namespace) = &self.namespace {
            servers::delete_live_state_of(namespace);
            return;
        }
        let mut deleted = 0;
        for entry in std::fs::read_dir(self.path()).expect("the data folder") {
            let entry = entry.expect("an entry");
            if entry.file_name().to_string_lossy().starts_with("live.db") {
                // Another process may remove leftovers at the same moment.
                deleted += usize::from(std::fs::remove_file(entry.path()).is_ok());
            }
        }
        assert!(deleted > 0 || was_lost, "live.db does not exist");
    }

    /// Declares a disturbance of the stores: queries may be refused or return an earlier answer.
    pub fn disturb(&self) {
        self.live_expectations.lock().expect("no panic").disturbed = true;
    }

    /// Declares that live state was reset to an earlier time and lost later counts.
    pub fn mark_live_reset(&self) {
        self.live_expectations
            .lock()
            .expect("no panic")
            .positions
            .clear();
    }

    /// Returns whether queries may be refused or return an earlier answer.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.live_expectations.lock().expect("no panic").disturbed
    }

    /// Declares that live counts were modified: drift queries report the earlier values from then
    /// on.
    pub fn mark_live_damaged(&self) {
        self.live_expectations.lock().expect("no panic").miscounted = true;
    }

    /// Returns whether live counts were ever modified.
    #[must_use]
    pub fn was_live_damaged(&self) -> bool {
        self.live_expectations.lock().expect("no panic").miscounted
    }

    /// Declares that the speed layer has caught up: from now on every query must be answered.
    pub fn mark_live_restored(&self) {
        self.live_expectations.lock().expect("no panic").disturbed = false;
    }

    /// Returns the speed layer of plays.
    pub async fn speed(&self) -> Speed {
        self.speed_of(Source::Plays).await
    }

    /// Returns the speed layer of a source.
    pub async fn speed_of(&self, source: Source) -> Speed {
        self.speed_with_log_writer(source, Arc::clone(&self.stores.log) as _)
            .await
    }

    /// Returns the speed layer of a source with another log writer.
    pub async fn speed_with_log_writer(
        &self,
        source: Source,
        log_writes: Arc<dyn LogWrite>,
    ) -> Speed {
        let ports = SpeedPorts {
            log_writes,
            ..self.speed_ports()
        };
        self.speed_on_ports(source, ports).await
    }

    /// Returns the ports of a speed layer.
    #[must_use]
    pub fn speed_ports(&self) -> SpeedPorts {
        SpeedPorts {
            schemas: Arc::clone(&self.stores.schemas) as _,
            log: Arc::clone(&self.stores.log) as _,
            log_writes: Arc::clone(&self.stores.log) as _,
            entities: Arc::clone(&self.stores.entities) as _,
            live: Arc::clone(&self.stores.live) as _,
            views: Arc::clone(&self.stores.views) as _,
            achievements: Arc::clone(&self.stores.achievements) as _,
            hook: self.stores.hook.clone(),
            recounts: Arc::clone(&self.stores.entities) as _,
            records: Arc::clone(&self.stores.records),
            suppressions: Suppressions::new(Arc::clone(&self.stores.erasures)),
            clock: Arc::clone(&self.clock) as _,
            draws: Arc::new(SeededRandom::new(1)),
        }
    }

    /// Returns the speed layer of a source on given ports.
    pub async fn speed_on_ports(&self, source: Source, ports: SpeedPorts) -> Speed {
        let options = self.speed_options.clone();
        Speed::build(ports, &self.catalog, &self.engine, source, options)
            .await
            .expect("a speed layer")
    }

    /// Counts all plays in the log.
    pub async fn catch_up(&self) -> SpeedReport {
        let report = self.catch_up_on(Source::Plays).await;
        self.mark_live_restored();
        report
    }

    /// Runs the speed layer of a source until the end of its log.
    pub async fn catch_up_on(&self, source: Source) -> SpeedReport {
        let speed = self.speed_of(source).await;
        let report = speed.run(true, CancellationToken::new()).await;
        report.expect("catching up")
    }

    /// Returns a batch layer.
    #[must_use]
    pub fn batch(&self) -> Batch {
        let ports = batch_ports(&self.stores, Arc::clone(&self.clock));
        let options = self.batch_options.clone();
        Batch::new(ports, self.catalog.clone(), self.engine.clone(), options)
    }

    /// Runs one batch of plays.
    ///
    /// # Errors
    /// Errors of the run.
    pub async fn run(&self, request: &RunRequest) -> batch::Result<RunReport> {
        self.run_on(Source::Plays, request).await
    }

    /// Runs one batch of a source.
    ///
    /// # Errors
    /// Errors of the run.
    pub async fn run_on(&self, source: Source, request: &RunRequest) -> batch::Result<RunReport> {
        let stop = CancellationToken::new();
        self.batch().run(source, request, &(), &stop).await
    }

    /// Runs one batch of a source, waiting for the lease of an interrupted run to expire.
    ///
    /// # Panics
    /// If the run fails or the lease does not expire.
    pub async fn run_after_lease(&self, source: Source, request: &RunRequest) -> RunReport {
        let begun = Instant::now();
        loop {
            match self.run_on(source, request).await {
                Err(batch::Error::Busy(reason)) => {
                    assert!(begun.elapsed() < LEASE_MAX, "{reason}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                outcome => return outcome.expect("a run"),
            }
        }
    }

    /// Returns the API without a socket.
    ///
    /// # Panics
    /// If it cannot be built.
    #[must_use]
    pub fn serving(&self) -> Serving {
        let ports = ServingPorts {
            log: Arc::clone(&self.stores.log) as _,
            ingest: Arc::clone(&self.stores.log) as _,
            entities: Arc::clone(&self.stores.entities) as _,
            live: Arc::clone(&self.stores.live) as _,
            views: Arc::clone(&self.stores.views) as _,
            achievements: Arc::clone(&self.stores.achievements) as _,
            counts: Arc::clone(&self.stores.counts) as _,
            records: Arc::clone(&self.stores.records),
            keys: Arc::clone(&self.stores.keys),
            leases: Arc::clone(&self.stores.leases),
            schemas: Arc::clone(&self.stores.schemas),
            suppressions: Suppressions::new(Arc::clone(&self.stores.erasures)),
            clock: Arc::clone(&self.clock) as _,
        };
        let options = ServingOptions {
            partitions: PARTITIONS,
            ..ServingOptions::default()
        };
        Serving::new(ports, self.catalog.clone(), options, None).expect("serving")
    }

    /// Starts the API.
    pub async fn serve(&self) -> Served {
        let serving = self.serving();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let serving_stop = stop.clone();
        #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
        let task = tokio::spawn(async move {
            serving
                .run(listener, serving_stop)
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

/// Returns the ports of a batch layer on an installation's stores.
#[must_use]
pub fn batch_ports(stores: &Stores, clock: Arc<FixedClock>) -> BatchPorts {
    BatchPorts {
        schemas: Arc::clone(&stores.schemas) as _,
        log: Arc::clone(&stores.log) as _,
        live: Arc::clone(&stores.live) as _,
        views: Arc::clone(&stores.views) as _,
        counts: Arc::clone(&stores.counts) as _,
        entities: Arc::clone(&stores.entities) as _,
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
    /// A client of it.
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

/// Returns the newest version of the archive of plays; null if there is none.
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
