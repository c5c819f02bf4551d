//! Ports, settings and requests of the batch layer.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use jobs::tree;
use schemas::clock::Clock;
use schemas::options;
use stores::archive::Archive;
use stores::counts::CountsWrite;
use stores::entities::EntityRead;
use stores::erasures::Suppressions;
use stores::lease::Leases;
use stores::live::LiveWrite;
use stores::log::LogRead;
use stores::records::Records;
use stores::registry::SchemaSource;
use stores::views::ViewsWrite;

/// The stores that the batch layer uses.
#[derive(Debug, Clone)]
pub struct BatchPorts {
    /// The log to archive.
    pub log: Arc<dyn LogRead>,
    /// Live state, whose epochs runs end and prune.
    pub live: Arc<dyn LiveWrite>,
    /// Rows and run records.
    pub views: Arc<dyn ViewsWrite>,
    /// Counts of members by day.
    pub counts: Arc<dyn CountsWrite>,
    /// Records of reconciliations, schedules, approvals, corrections and alerts.
    pub records: Arc<dyn Records>,
    /// The entity store, of which runs take snapshots.
    pub entities: Arc<dyn EntityRead>,
    /// Events, snapshots and results.
    pub archive: Archive,
    /// The list of erased people.
    pub suppressions: Suppressions,
    /// Leases that exclude concurrent runs.
    pub leases: Arc<dyn Leases>,
    /// The schemas of Avro records.
    pub schemas: Arc<dyn SchemaSource>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

options! {
    /// Settings of the batch layer.
    pub struct BatchOptions {
        /// How long readers may use what a run replaced before it is deleted and live epochs are
        /// pruned.
        pub grace_ms: u64 = 2_000,
        /// How long to wait for a partition that cannot end its epoch yet.
        pub roll_wait_ms: u64 = 10_000,
        /// How long a run of boards waits for the speed layer without progress. Then the run
        /// publishes the present entries of members with pending notifications. Changes below the
        /// cut that the speed layer has not published are lost if live state is lost.
        pub speed_wait_ms: u64 = 1_000,
        /// Approximate events in one archive file.
        pub archive_rows_max: usize = 1_000_000,
        /// Approximate bytes of records in one archive file. Bounds the memory for it.
        pub archive_bytes_max: usize = 256 * 1024 * 1024,
        /// How long compacted files remain, for processes that read or copy the archive.
        pub archive_merged_wait_ms: u64 = 3_600_000,
        /// How long an archiver that follows the log waits for events to fill a file.
        pub archive_wait_ms: u64 = 30_000,
        /// Approximate events or rows that one task reads. The days of a task are computed
        /// together.
        pub task_rows_max: u64 = 1_000_000,
        /// How long a remote executor may take for a task before another one gets it.
        pub task_seconds_max: u64 = 3_600,
        /// True if remote executors also write the rows of aggregates. They need the view store
        /// then.
        pub executors_publish: bool = false,
        /// Approximate rows of one snapshot file, which are computed together in memory. The rows
        /// of one key are never divided.
        pub snapshot_rows_max: u64 = 250_000,
        /// Approximate bytes of one result file. Bounds the memory for it.
        pub result_bytes_max: usize = 64 * 1024 * 1024,
        /// Rows that are written in one step.
        pub publish_rows: usize = 50_000,
        /// Maximum size of the expected values that another system or a query of the entity store
        /// supplies. They are stored on disk.
        pub expected_bytes_max: u64 = 8 * 1024 * 1024 * 1024,
        /// How long supplying the expected values may take.
        pub expected_wait_ms: u64 = 600_000,
        /// The holder's name in the leases of this process: the process and its machine. Not a
        /// setting.
        #[serde(skip)]
        pub holder: String = format!("process {}", std::process::id()),
        /// Rows of live state or of a table that a comparison reads at once. Not a setting.
        #[serde(skip)]
        pub scan_rows: usize = 20_000,
        /// Boards with fewer rows are not checked for a decrease. Not a setting.
        #[serde(skip)]
        pub check_rows_min: u64 = 1_000,
        /// How versions of boards are built. Not a setting: versions share nodes only if they were
        /// built in the same way.
        #[serde(skip)]
        pub versions: VersionOptions = VersionOptions::default(),
    }
}

/// How versions of boards are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionOptions {
    /// How rows are divided into nodes.
    pub tree: tree::TreeOptions,
    /// Approximate bytes of nodes of one key that are buffered until its head is known.
    pub nodes_bytes_max: usize,
}

impl Default for VersionOptions {
    fn default() -> Self {
        Self {
            tree: tree::TreeOptions::default(),
            nodes_bytes_max: 8 * 1024 * 1024,
        }
    }
}

/// The request of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunRequest {
    /// The jobs to compute at the newest run's cuts. Empty: all jobs at new cuts.
    pub jobs: Vec<String>,
    /// Recomputes everything, not only what changed.
    pub full: bool,
    /// Publishes even if a check fails.
    pub force: bool,
    /// Keys of boards to compute and write even if they seem unchanged.
    pub rewrite: BTreeSet<i64>,
    /// True if the heads of the rewritten keys drop the root of the earlier day.
    pub forget_earlier: bool,
}

impl RunRequest {
    /// Returns whether the run computes a job.
    pub(crate) fn includes(&self, job: &str) -> bool {
        self.jobs.is_empty() || self.jobs.iter().any(|name| name == job)
    }
}

/// Receives the progress of a run.
pub trait Progress: Debug + Send + Sync {
    /// Starts a stage with `total` items (0 if unknown).
    fn stage(&self, name: &str, total: u64);
    /// Adds `done` finished items of the stage.
    fn advance(&self, done: u64);
}

impl Progress for () {
    fn stage(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
}
