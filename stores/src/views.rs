//! The views port: run records, batch rows, and the newest complete run of each view.
//!
//! A batch row of an aggregate holds a count and the epoch that it is valid for. Rows are written
//! with the stamp of their run, and a row with a later stamp stays. So a load may be repeated, and
//! an outdated load changes nothing. Only batch runs write these tables.
//!
//! The boards of a key form a *version*: a head, which holds the epoch and the root, and the nodes
//! that the root refers to by the hash of their content. The head is written last and in one step.
//! Its nodes stay for a grace period after another head has replaced it. So a reader of a head sees
//! all boards of the key as of one epoch, even during a load. A head also keeps the root of an
//! earlier day, so that yesterday's ranks can be read beside today's.

use std::collections::BTreeMap;

use arrow::array::{BinaryArray, Int64Array, UInt32Array, UInt64Array};
use async_trait::async_trait;
use bytes::Bytes;
use schemas::key::KeyShape;
use schemas::seam::{Cut, Epoch, Run, Runs};
use schemas::source::Source;
use schemas::time::BucketWidth;
use serde::{Deserialize, Serialize};

use crate::Result;
pub use crate::run_rules::{RUN_RECORDS_MAX, RunStamp};
use crate::view_scan::ViewsScan;

/// The layout of the rows of an aggregate view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AggregateShape {
    /// The view with the version of its definition, as `name@version`.
    pub view: String,
    /// The columns of the group: owner or track.
    pub group: KeyShape,
    /// The time range of one table partition; [`BucketWidth::All`] for no partitioning by time.
    pub partition: BucketWidth,
    /// The row key within group and partition: the time bucket, if any, then the dimensions.
    pub row: KeyShape,
}

impl AggregateShape {
    /// The key of the table partition that holds a group's rows of the time range that begins at
    /// `start_seconds` (0 for [`BucketWidth::All`]). The time comes first, so that the rows of a
    /// run that changes few days are close together.
    #[must_use]
    pub fn encode_partition_key(start_seconds: i64, group: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(8 + group.len());
        key.extend_from_slice(&(start_seconds.cast_unsigned() ^ (1 << 63)).to_be_bytes());
        key.extend_from_slice(group);
        key
    }

    /// Splits a partition key into time and group; `None` if it is too short.
    #[must_use]
    pub fn split_partition_key(key: &[u8]) -> Option<(i64, &[u8])> {
        let (time, group) = key.split_first_chunk::<8>()?;
        let time = u64::from_be_bytes(*time) ^ (1 << 63);
        Some((time.cast_signed(), group))
    }
}

/// The layout of the table of a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ViewShape {
    /// Rows of an aggregate.
    Aggregate(AggregateShape),
    /// Versions of boards.
    Board(BoardShape),
}

impl From<AggregateShape> for ViewShape {
    fn from(shape: AggregateShape) -> Self {
        Self::Aggregate(shape)
    }
}

impl ViewShape {
    /// The view with the version of its definition.
    #[must_use]
    pub fn view(&self) -> &str {
        match self {
            Self::Aggregate(shape) => &shape.view,
            Self::Board(shape) => &shape.view,
        }
    }
}

/// The layout of boards and their nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoardShape {
    /// The view with the version of its definition, as `name@version`.
    pub view: String,
    /// The key of a query: a segment or an application.
    pub key: KeyShape,
    /// The columns that distinguish the boards of a key.
    pub boards: KeyShape,
    /// The member.
    pub member: KeyShape,
    /// The ranked values.
    pub score: KeyShape,
    /// Other stored values.
    pub payload: KeyShape,
}

/// The name of a node: a hash of its bytes.
pub type NodeName = [u8; 16];

/// The entry point to the published boards of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The epoch that the boards cover.
    pub epoch: Epoch,
    /// The root.
    pub root: Bytes,
    /// The stamp of the write, in microseconds since the Unix epoch; `None` if an older version of
    /// a store wrote it.
    pub stamp_us: Option<i64>,
    /// The root after the last run of an earlier day, if any.
    pub earlier: Option<EarlierRoot>,
}

/// The root of the boards at the end of an earlier day, which a head keeps with all its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierRoot {
    /// The epoch that it covers.
    pub epoch: Epoch,
    /// The stamp of its write.
    pub stamp_us: i64,
    /// The root.
    pub root: Bytes,
}

impl Head {
    /// The root after the last run of a day before the day (UTC) of a moment, if it is still kept.
    /// A head that replaces this one keeps that root, and a reader at that moment uses it as the
    /// earlier root.
    #[must_use]
    pub fn find_earlier_root(&self, time_us: i64) -> Option<EarlierRoot> {
        let current = self.stamp_us.map(|stamp_us| EarlierRoot {
            epoch: self.epoch,
            stamp_us,
            root: self.root.clone(),
        });
        let is_before = |root: &EarlierRoot| day_from_us(root.stamp_us) < day_from_us(time_us);
        current
            .filter(is_before)
            .or_else(|| self.earlier.clone().filter(is_before))
    }
}

/// The day of a time in microseconds, counted from the Unix epoch.
const fn day_from_us(time_us: i64) -> i64 {
    time_us.div_euclid(86_400_000_000)
}

/// A version to write, or a part of one.
#[derive(Debug, Clone)]
pub struct NewVersion {
    /// The encoded key.
    pub key: Vec<u8>,
    /// Nodes. All of them are stored before the head. Nodes of one name have the same bytes.
    pub nodes: Vec<(NodeName, Bytes)>,
    /// The new head, once all nodes are written.
    pub head: Option<NewHead>,
    /// True if nodes are rewritten even if they seem to exist, because their content may have been
    /// changed.
    pub rewrites_nodes: bool,
    /// True if the head keeps no root of an earlier day, which may contain an erased athlete.
    pub drops_earlier_root: bool,
}

/// A head to write.
#[derive(Debug, Clone)]
pub struct NewHead {
    /// The root.
    pub root: Bytes,
    /// The names of all nodes below the root. Each was written with the stamp of the head, in this
    /// part of the version or in earlier ones, because nodes of another try may be deleted.
    pub names: Vec<NodeName>,
}

/// Rows to write. A null count is a marker: no event produces this row any more. A missing row
/// would be taken for one of an older epoch.
#[derive(Debug, Clone)]
pub struct NewRows {
    /// Encoded table partitions ([`AggregateShape::encode_partition_key`]), ascending.
    pub partitions: BinaryArray,
    /// Encoded row keys, ascending within a partition.
    pub rows: BinaryArray,
    /// The counts.
    pub counts: Int64Array,
}

/// A query for rows of one table partition, within a range of row keys.
#[derive(Debug, Clone)]
pub struct PartitionQuery {
    /// The encoded table partition.
    pub partition: Vec<u8>,
    /// A half-open range of encoded row keys; a missing end is unbounded, and an empty start is the
    /// first key.
    pub range: (Vec<u8>, Option<Vec<u8>>),
}

/// Rows of a query result.
#[derive(Debug, Clone)]
pub struct ViewRows {
    /// The index of the query of each row.
    pub queries: UInt32Array,
    /// The encoded row keys.
    pub rows: BinaryArray,
    /// The counts; null if no event produces the row any more.
    pub counts: Int64Array,
    /// The epochs that the rows are valid for.
    pub epochs: UInt64Array,
}

/// The run records of a source and the newest complete epoch of each view, read in one step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunRecords {
    /// The run records.
    pub runs: Runs,
    /// The newest complete epoch by view (`name@version`). A view without an entry is at epoch 0.
    pub complete_epochs: BTreeMap<String, Epoch>,
}

/// The results whose rows the table of a view may hold. A result is the output of one try of a run
/// for a view; the batch layer names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableResults {
    /// The result that was published last. Without the others, the table holds exactly its rows.
    pub published: Option<String>,
    /// Results that may have been written in part since.
    pub begun: Vec<String>,
}

/// Keys of rows: encoded table partitions and row keys.
#[derive(Debug, Clone)]
pub struct RowKeys {
    /// Encoded table partitions.
    pub partitions: BinaryArray,
    /// Encoded row keys.
    pub rows: BinaryArray,
}

impl RowKeys {
    /// No keys.
    #[must_use]
    pub fn none() -> Self {
        let none = || BinaryArray::from_iter_values(std::iter::empty::<&[u8]>());
        Self {
            partitions: none(),
            rows: none(),
        }
    }
}

/// The details of a run that the protocol with the speed layer does not need.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunDetails {
    /// The run.
    pub run: Run,
    /// When it was first proposed, in milliseconds since the Unix epoch.
    pub started_at_ms: i64,
    /// When it was completed or abandoned.
    pub ended_at_ms: Option<i64>,
    /// The report of the batch layer: rows, seconds by stage, drift, failed checks.
    pub report: serde_json::Value,
}

/// Reads batch rows and run records.
#[async_trait]
pub trait ViewsRead: std::fmt::Debug + Send + Sync {
    /// Reads the run records and the newest complete epochs, in one step. Finished runs that no row
    /// and no partition state can refer to may be left out.
    async fn runs(&self, source: Source) -> Result<RunRecords>;

    /// Reads rows of several table partitions of a view in one round trip; `None` if the view has
    /// no table.
    async fn rows(&self, view: &str, queries: &[PartitionQuery]) -> Result<Option<ViewRows>>;

    /// Reads the heads of several keys of a view of boards in one round trip; `None` if the view
    /// has no table.
    async fn heads(&self, view: &str, keys: &[Vec<u8>]) -> Result<Option<Vec<Option<Head>>>>;

    /// Reads nodes of one key in one round trip. Nodes of a head that was replaced long ago are
    /// missing.
    async fn nodes(&self, view: &str, key: &[u8], names: &[NodeName])
    -> Result<Vec<Option<Bytes>>>;

    /// The details of runs before an epoch, newest first, at most `limit`.
    async fn list_run_details(
        &self,
        source: Source,
        before: Option<Epoch>,
        limit: usize,
    ) -> Result<Vec<RunDetails>>;

    /// The details of one run.
    async fn run_details(&self, source: Source, epoch: Epoch) -> Result<Option<RunDetails>>;
}

/// Writes batch rows and run records. Records change by compare-and-set.
#[async_trait]
pub trait ViewsWrite: ViewsRead + ViewsScan {
    /// The recommended maximum number of concurrent publishers. A store that serializes writes
    /// gains nothing from more.
    fn publishers_max(&self) -> usize {
        usize::MAX
    }

    /// Creates the table of a view if it does not exist.
    async fn ensure_view(&self, source: Source, shape: &ViewShape) -> Result<()>;

    /// Records the proposed cuts of run `epoch`, replaces an older proposal of the same run, and
    /// assigns a unique stamp.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if the run is sealed already, or is not the next one.
    async fn propose(
        &self,
        source: Source,
        epoch: Epoch,
        cuts: &[Cut],
        token: &str,
        now_ms: i64,
    ) -> Result<Run>;

    /// Seals the proposal with this token. Its cuts never change afterwards.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if the proposal was replaced.
    async fn seal(&self, source: Source, epoch: Epoch, token: &str) -> Result<Run>;

    /// Starts a try to publish run `epoch`: from now on the tables may hold rows of these results,
    /// by view. Returns a stamp that is larger than all earlier ones, so that late writes of an
    /// earlier try change nothing.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if a newer run has been recorded.
    async fn begin_publishing(
        &self,
        source: Source,
        epoch: Epoch,
        results: &BTreeMap<String, String>,
        now_ms: i64,
    ) -> Result<i64>;

    /// By view, the results whose rows its table may hold.
    async fn results(&self, source: Source) -> Result<BTreeMap<String, TableResults>>;

    /// Reads the keys of a view's rows that have a count and a stamp before `stamp_us`, in storage
    /// order, at most `limit` after the key `after`. After a result was written completely, these
    /// are the rows that it does not contain.
    async fn rows_before(
        &self,
        view: &str,
        stamp_us: i64,
        after: Option<(Vec<u8>, Vec<u8>)>,
        limit: usize,
    ) -> Result<RowKeys>;

    /// Writes rows of run `epoch`. A row with a larger stamp stays.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if a newer run has been recorded or the stamp was replaced.
    async fn publish(
        &self,
        source: Source,
        view: &str,
        epoch: Epoch,
        stamp_us: i64,
        rows: &NewRows,
    ) -> Result<()>;

    /// Deletes misplaced rows, which no run would write where they are, unless they have a larger
    /// stamp. Regular rows are replaced by markers instead, because a reader takes a missing row
    /// for one that never existed.
    ///
    /// # Errors
    /// As [`ViewsWrite::publish`].
    async fn delete_rows(
        &self,
        source: Source,
        view: &str,
        run_stamp: RunStamp,
        rows: &RowKeys,
    ) -> Result<()>;

    /// Writes versions of run `epoch` in order; a key gets one head per stamp. After
    /// [`ViewsWrite::collect_garbage`], a new stamp must be taken before the next version.
    ///
    /// In the same step, nodes below neither the head nor its earlier root become *garbage*, both
    /// replaced nodes and those of a head that is not written yet. Nodes below them stop being
    /// garbage. The stamps decide which earlier root the head keeps ([`Head::find_earlier_root`]).
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if a newer run has been recorded or the stamp was replaced.
    async fn publish_versions(
        &self,
        source: Source,
        view: &str,
        epoch: Epoch,
        stamp_us: i64,
        versions: &[NewVersion],
    ) -> Result<()>;

    /// The names of all stored nodes of a key, including garbage, to check the content of a store.
    async fn node_names(&self, view: &str, key: &[u8]) -> Result<Vec<NodeName>>;

    /// Deletes garbage nodes of a view, at most `limit`, and returns their number. The caller has
    /// waited until no reader uses the replaced heads.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if a newer run has been recorded or the stamp was replaced: that
    /// run's nodes have no head yet.
    async fn collect_garbage(
        &self,
        source: Source,
        view: &str,
        run_stamp: RunStamp,
        limit: usize,
    ) -> Result<usize>;

    /// Keys that have a head, in storage order, at most `limit` after the key `after`.
    async fn keys(&self, view: &str, after: Option<Vec<u8>>, limit: usize) -> Result<Vec<Vec<u8>>>;

    /// Records that views are complete at `epoch`, each with the result in its table, and with
    /// `run_ends` that the run is complete. A complete view never goes back.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if the run is not sealed, a newer one has been recorded, or
    /// another try has replaced the stamp.
    async fn complete(
        &self,
        source: Source,
        run_stamp: RunStamp,
        results: &BTreeMap<String, String>,
        run_ends: bool,
        now_ms: i64,
    ) -> Result<()>;

    /// Records that the result of a run failed its check. The next run covers its events too.
    async fn abandon(&self, source: Source, epoch: Epoch, now_ms: i64) -> Result<()>;

    /// Replaces the report of a run.
    async fn set_report(
        &self,
        source: Source,
        epoch: Epoch,
        report: &serde_json::Value,
    ) -> Result<()>;

    /// Forgets views that no job defines any more, so that their epochs do not prevent pruning.
    /// Rows of views that an earlier call forgot may be deleted; those of views that this call
    /// forgets must stay readable for readers that began before. `run_stamp` identifies the
    /// calling run.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if a newer run, which may know other views, has been recorded, or
    /// the stamp was replaced.
    async fn forget_views(
        &self,
        source: Source,
        run_stamp: RunStamp,
        kept_views: &[String],
    ) -> Result<()>;
}
