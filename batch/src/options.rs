//! What the batch layer is given, and what can be set.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use jobs::tree;
use schemas::clock::Clock;
use schemas::options;
use stores::archive::Archive;
use stores::canon::CanonRead;
use stores::counts::CountsWrite;
use stores::erasures::Suppressions;
use stores::lease::Leases;
use stores::live::LiveWrite;
use stores::log::LogRead;
use stores::records::Records;
use stores::registry::Schemas;
use stores::views::ViewsWrite;

/// The stores that the batch layer works with.
#[derive(Debug, Clone)]
pub struct BatchPorts {
    /// The log that it archives.
    pub log: Arc<dyn LogRead>,
    /// The live state whose epochs it ends and lets go of.
    pub live: Arc<dyn LiveWrite>,
    /// The rows and run records that it writes.
    pub views: Arc<dyn ViewsWrite>,
    /// Counts of members by day.
    pub counts: Arc<dyn CountsWrite>,
    /// Records of reconciliations, schedules, approvals, corrections and alerts.
    pub records: Arc<dyn Records>,
    /// The canonical rows that snapshots are taken of.
    pub canon: Arc<dyn CanonRead>,
    /// Snapshots and results.
    pub archive: Archive,
    /// Whose events count without them.
    pub suppressions: Suppressions,
    /// What keeps two runs apart.
    pub leases: Arc<dyn Leases>,
    /// The schemas of records of Avro.
    pub schemas: Arc<dyn Schemas>,
    /// The present moment.
    pub clock: Arc<dyn Clock>,
}

options! {
    /// What can be set.
    pub struct BatchOptions {
        /// How long readers that saw the run before may go on before live epochs are let go.
        pub grace_ms: u64 = 2_000,
        /// How long to wait for a partition that can't end its epoch yet.
        pub roll_wait_ms: u64 = 10_000,
        /// How long the speed layer may stand still before a run publishes boards: of members that it has been
        /// told of and has not come to, what stood before. And before a run covers what it has not told to
        /// others: that is lost if live state is.
        pub speed_wait_ms: u64 = 1_000,
        /// Events in one file of the archive, about.
        pub archive_rows_max: usize = 1_000_000,
        /// Bytes of records that go into one file of the archive, about: bounds the memory for it.
        pub archive_bytes_max: usize = 256 * 1024 * 1024,
        /// How long files stay that were merged into larger ones, for who reads or copies the archive meanwhile.
        pub archive_merged_wait_ms: u64 = 3_600_000,
        /// How long events wait for enough others to fill a file, where the archiver follows the log.
        pub archive_wait_ms: u64 = 30_000,
        /// Events or rows that one task reads, about: the days of a task are computed together.
        pub task_rows_max: u64 = 1_000_000,
        /// How long an executor elsewhere may take for a task before it is given to another one.
        pub task_seconds_max: u64 = 3_600,
        /// Whether executors elsewhere also write the rows of tallies: they need the store of the views then.
        pub executors_publish: bool = false,
        /// Rows of one file of a snapshot, about: they are computed together, in memory. The rows of one
        /// key are never divided.
        pub snapshot_rows_max: u64 = 250_000,
        /// Bytes of one file of a result, about: bounds the memory for it.
        pub result_bytes_max: usize = 64 * 1024 * 1024,
        /// Rows that are published in one step.
        pub publish_rows: usize = 50_000,
        /// Bytes of what another system, or a query of the canonical store, says is expected, at most: so much of it lies
        /// on the disk.
        pub expected_bytes_max: u64 = 8 * 1024 * 1024 * 1024,
        /// How long that may take.
        pub expected_wait_ms: u64 = 600_000,
        /// Who holds the leases of this process, for people: the process and its machine. This is no
        /// setting.
        #[serde(skip)]
        pub holder: String = format!("process {}", std::process::id()),
        /// Rows of live state or of a table that are read together where both are compared. This is no setting.
        #[serde(skip)]
        pub scan_rows: usize = 20_000,
        /// Boards that had fewer rows than this say nothing about a trend. This is no setting.
        #[serde(skip)]
        pub check_rows_min: u64 = 1_000,
        /// How editions of boards are made. This is no setting: editions share nodes only with those that
        /// were made in the same way.
        #[serde(skip)]
        pub editions: EditionOptions = EditionOptions::default(),
    }
}

/// How editions of boards are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EditionOptions {
    /// How rows are cut into nodes.
    pub tree: tree::Options,
    /// Nodes of one key that are held back until its head is known, in bytes, about.
    pub nodes_bytes_max: usize,
}

impl Default for EditionOptions {
    fn default() -> Self {
        Self {
            tree: tree::Options::default(),
            nodes_bytes_max: 8 * 1024 * 1024,
        }
    }
}

/// What a run is asked to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunRequest {
    /// Only these jobs, at the newest run's cuts; all, at new cuts, if empty.
    pub jobs: Vec<String>,
    /// Recompute everything, not only the time buckets that were touched.
    pub full: bool,
    /// Publish even if a check fails.
    pub force: bool,
    /// Keys of boards that are computed and written in any case, also what seems to be there.
    pub rewrite: BTreeSet<i64>,
    /// Of these keys nothing is kept of an earlier day.
    pub forget_earlier: bool,
}

impl RunRequest {
    /// Whether the run computes a job.
    pub(crate) fn wants(&self, job: &str) -> bool {
        self.jobs.is_empty() || self.jobs.iter().any(|name| name == job)
    }
}

/// Who is told how far a run has come.
pub trait Progress: Debug + Send + Sync {
    /// A stage begins, with so many things to do (0: not known).
    fn stage(&self, name: &str, total: u64);
    /// So many things of the stage are done.
    fn advance(&self, done: u64);
}

impl Progress for () {
    fn stage(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
}
