//! The compute stage of a Backstitch batch run: from the archive's files to result files, as in the
//! product.
//!
//! It runs the product on a copy of an installation and stops the run at the end of that stage;
//! nothing is published.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use batch::{Batch, BatchOptions, Error, Progress, RunRequest};
use futures::{StreamExt, TryStreamExt};
use jobs::{Catalog, Engine, EngineOptions};
use schemas::clock::FixedClock;
use schemas::source::Source;
use serde_json::json;
use stores::Stores;
use stores::archive::Archive;
use stores::entities::EntityRead;
use tests::world::batch_ports;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::entity_dump::{Dump, Rows};
use super::input::Input;
use super::job::Job;
use super::machine::read_field;
use super::{Measurement, THREADS};

/// The first argument of this program in the process that measures itself.
pub(crate) const COMMAND: &str = "ours";
/// The defaults of the settings.
const MEMORY_BYTES: usize = 2 << 30;
const SPILL_BYTES_MAX: u64 = 64 << 30;
/// Rows in a batch read from a snapshot's file.
const BATCH_ROWS: usize = 16_384;
/// The measured stage.
const STAGE: &str = "compute";

/// Measures a job on a copy of its input's installation, in another process.
pub(crate) fn measure_in_process(job: &Job, input: &Input, work: &Path) -> Measurement {
    let data = work.join("data");
    input.copy_to(&data);
    flush_disk();
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .arg(COMMAND)
        .arg(job.name)
        .arg(&data)
        .stderr(Stdio::inherit())
        .output()
        .expect("starting this program");
    assert!(output.status.success(), "ours: {}", output.status);
    Measurement::parse(&serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// Flushes earlier writes to disk, so that no engine waits for another one's.
pub(crate) fn flush_disk() {
    let synced = Command::new("sync").status();
    assert!(synced.expect("sync").success(), "sync");
}

/// Measures a job on an installation, in this process.
pub(crate) fn measure(job: &Job, data: &Path) -> String {
    let meter = Meter::default();
    let outcome = runtime().block_on(async {
        let stores = Stores::embedded(data).await.expect("the embedded stores");
        let rows = Input::snapshot(data);
        let entities: Option<Arc<dyn EntityRead>> = match job.source {
            Source::Plays => None,
            _ => Some(Arc::new(Rows::new(dump(&rows)))),
        };
        let batch = build_batch(&stores, data, entities, job.catalog());
        let request = RunRequest::default();
        batch.run(job.source, &request, &meter, &meter.stop).await
    });
    assert!(
        matches!(outcome, Err(Error::Stopped)),
        "the run must stop after {STAGE}: {outcome:?}"
    );
    let (seconds, peak_bytes) = meter.ended().expect("a stage");
    let version = env!("CARGO_PKG_VERSION");
    json!({ "seconds": seconds, "peak_bytes": peak_bytes, "version": version }).to_string()
}

/// Creates a runtime with as many threads as the other engines have.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Creates a query engine with the product's settings.
pub(crate) fn engine(folder: &Path) -> Engine {
    let spill_folder = folder.join("spill");
    std::fs::create_dir_all(&spill_folder).expect("a folder to spill to");
    Engine::new(EngineOptions {
        threads: THREADS,
        memory_bytes: MEMORY_BYTES,
        spill_folder,
        spill_bytes_max: SPILL_BYTES_MAX,
    })
    .expect("a query engine")
}

/// Returns the batch layer of an installation, optionally with rows from another entity store.
pub(crate) fn build_batch(
    stores: &Stores,
    data: &Path,
    entities: Option<Arc<dyn EntityRead>>,
    catalog: Catalog,
) -> Batch {
    let mut ports = batch_ports(stores, Arc::new(FixedClock::new(now_ms())));
    ports.entities = entities.unwrap_or(ports.entities);
    Batch::new(ports, catalog, engine(data), BatchOptions::default())
}

/// The approximate start of this process, because the clock is fixed.
#[expect(
    clippy::disallowed_methods,
    reason = "the installation was made by processes that have it"
)]
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.expect("a time after 1970").as_millis();
    i64::try_from(since).expect("milliseconds")
}

/// Dumps the rows of a snapshot's files in order.
fn dump(folder: &Path) -> Dump {
    let archive = Archive::local(folder).expect("the snapshot's folder");
    let files = async move {
        let paths = archive.list("").await?;
        let files = futures::stream::iter(paths.into_iter().map(Ok));
        Ok::<_, stores::Error>(files.and_then(move |path: String| {
            let archive = archive.clone();
            async move { archive.read_columns(&path, None, BATCH_ROWS, None).await }
        }))
    };
    futures::stream::once(files)
        .try_flatten()
        .try_flatten()
        .boxed()
}

/// Measures time and peak memory of one stage of a run, and stops the run at its end.
#[derive(Debug, Default)]
struct Meter {
    stop: CancellationToken,
    begun: Mutex<Option<Instant>>,
    ended: Mutex<Option<(f64, u64)>>,
}

impl Meter {
    fn ended(&self) -> Option<(f64, u64)> {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress for Meter {
    fn stage(&self, name: &str, _: u64) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if name == STAGE {
            reset_peak();
            *begun = Some(Instant::now());
        } else if let Some(begun) = begun.take() {
            let measurement = (begun.elapsed().as_secs_f64(), peak_bytes());
            *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(measurement);
            self.stop.cancel();
        }
    }

    fn advance(&self, _: u64) {}
}

/// Resets the peak memory of this process.
fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("resetting the peak");
}

fn peak_bytes() -> u64 {
    let peak = read_field("/proc/self/status", "VmHWM:").expect("a peak");
    let kib: u64 = peak.trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}
