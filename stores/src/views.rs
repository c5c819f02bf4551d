//! The views port: run records, batch rows, and which run is the newest complete one of each view.
//!
//! A batch row of a tally holds a count and the epoch that it holds for. Rows are written with the
//! stamp of their run, and a row with a later stamp stays: so a load may be repeated, and one that
//! was overtaken changes nothing. Nothing else writes these tables.
//!
//! The boards of a key are an *edition*: a head, which holds the epoch and the root of what the
//! batch layer made of them, and the nodes that the root refers to, by the hash of their content. A
//! head is written last and in one step, and its nodes stay as they are until long after another
//! head has taken its place: so whoever has read a head sees all boards of the key as of one epoch,
//! also in the middle of a load. Beside its root a head keeps the one of an earlier day: so yesterday's
//! ranks can be read beside today's.

use std::collections::BTreeMap;

use arrow::array::{BinaryArray, Int64Array, UInt32Array, UInt64Array};
use async_trait::async_trait;
use bytes::Bytes;
use schemas::key::KeyShape;
use schemas::seam::{Cut, Epoch, Run, Runs};
use schemas::source::Source;
use schemas::time::Width;
use serde::{Deserialize, Serialize};

use crate::Result;
pub use crate::run_rules::RUNS_KEPT;
use crate::view_scan::ViewsScan;

/// The shape of a tally's rows: how its keys are made up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TallyShape {
    /// The view with the version of its definition, as `name@version`.
    pub view: String,
    /// The columns by which a tally is asked for: owner or track.
    pub group: KeyShape,
    /// How much time one partition of the table holds; [`Width::All`] for no division by time.
    pub partition: Width,
    /// The row key within group and partition: the bucket, where there is one, then the dimensions.
    pub row: KeyShape,
}

impl TallyShape {
    /// The key of the table partition that holds a group's rows of the time that begins at
    /// `start_seconds` (a start of [`TallyShape::partition`]; 0 where that is [`Width::All`]). Time
    /// stands first, so that a run that touches few days touches few places.
    #[must_use]
    pub fn part(start_seconds: i64, group: &[u8]) -> Vec<u8> {
        let mut part = Vec::with_capacity(8 + group.len());
        part.extend_from_slice(&(start_seconds.cast_unsigned() ^ (1 << 63)).to_be_bytes());
        part.extend_from_slice(group);
        part
    }

    /// The time and the group that a key of a table partition is made of; nothing if it is too short for one.
    #[must_use]
    pub fn split_part(part: &[u8]) -> Option<(i64, &[u8])> {
        let (time, group) = part.split_first_chunk::<8>()?;
        let time = u64::from_be_bytes(*time) ^ (1 << 63);
        Some((time.cast_signed(), group))
    }
}

/// What the table of a view holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ViewShape {
    /// The rows of a tally.
    Tally(TallyShape),
    /// The editions of boards.
    Board(BoardShape),
}

impl From<TallyShape> for ViewShape {
    fn from(shape: TallyShape) -> Self {
        Self::Tally(shape)
    }
}

impl ViewShape {
    /// The view with the version of its definition.
    #[must_use]
    pub fn view(&self) -> &str {
        match self {
            Self::Tally(shape) => &shape.view,
            Self::Board(shape) => &shape.view,
        }
    }
}

/// The shape of boards: how what is in their nodes is made up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoardShape {
    /// The view with the version of its definition, as `name@version`.
    pub view: String,
    /// What is asked for: a segment, an application.
    pub key: KeyShape,
    /// What tells the boards of a key apart.
    pub boards: KeyShape,
    /// The member.
    pub member: KeyShape,
    /// What ranks members.
    pub score: KeyShape,
    /// What is stored besides.
    pub payload: KeyShape,
}

/// The name of a node: a hash of its bytes.
pub type NodeName = [u8; 16];

/// What the batch layer made of the boards of one key: where it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The epoch that the boards hold.
    pub epoch: Epoch,
    /// The root.
    pub root: Bytes,
    /// The stamp with which it was written: its moment in microseconds since the Unix epoch. Nothing
    /// where an older version of a store wrote it.
    pub stamp_us: Option<i64>,
    /// The root that the key had after the last run of an earlier day, where there was one.
    pub earlier: Option<EarlierRoot>,
}

/// A root that a head keeps beside its own, with all that it leads to: what the boards were at the end
/// of an earlier day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierRoot {
    /// The epoch that it holds.
    pub epoch: Epoch,
    /// The stamp with which it was written.
    pub stamp_us: i64,
    /// The root.
    pub root: Bytes,
}

impl Head {
    /// The root that the key had after the last run of a day before that of a moment, as far as it is
    /// kept. Days are those of UTC. It is what a head keeps that is written in the place of this one,
    /// and what a reader of that moment calls earlier.
    #[must_use]
    pub fn earlier_at(&self, at_us: i64) -> Option<EarlierRoot> {
        let own = self.stamp_us.map(|stamp_us| EarlierRoot {
            epoch: self.epoch,
            stamp_us,
            root: self.root.clone(),
        });
        let is_before = |root: &EarlierRoot| day_of(root.stamp_us) < day_of(at_us);
        own.filter(is_before)
            .or_else(|| self.earlier.clone().filter(is_before))
    }
}

/// The day of a moment in microseconds, from that of the Unix epoch on.
const fn day_of(at_us: i64) -> i64 {
    at_us.div_euclid(86_400_000_000)
}

/// An edition to write, or a part of it.
#[derive(Debug, Clone)]
pub struct NewEdition {
    /// The encoded key.
    pub key: Vec<u8>,
    /// Nodes: each is there before the head is. Nodes of one name have the same bytes.
    pub nodes: Vec<(NodeName, Bytes)>,
    /// The head, once all nodes are written: it takes the place of the one before.
    pub head: Option<NewHead>,
    /// Whether nodes are written that seem to be there: somebody may have changed them.
    pub is_anew: bool,
    /// Whether the head keeps no root of an earlier day: that may hold somebody who was erased.
    pub is_alone: bool,
}

/// A head to write.
#[derive(Debug, Clone)]
pub struct NewHead {
    /// The root.
    pub root: Bytes,
    /// The names of all nodes that the root leads to. Each was given with the stamp of the head, in
    /// its edition or in parts of it before: what another try wrote may be deleted.
    pub names: Vec<NodeName>,
}

/// Rows to write: encoded partition, encoded row key, count. A count that is null says that no
/// event gives this row any more; the row stays as a marker, since a missing row would be taken
/// for one of an older epoch.
#[derive(Debug, Clone)]
pub struct NewRows {
    /// Encoded table partitions ([`TallyShape::part`]), ascending.
    pub parts: BinaryArray,
    /// Encoded row keys, ascending within a partition.
    pub rows: BinaryArray,
    /// The counts.
    pub counts: Int64Array,
}

/// Rows of one table partition to read, all or those within a range of row keys.
#[derive(Debug, Clone)]
pub struct PartQuery {
    /// The encoded table partition.
    pub part: Vec<u8>,
    /// A half-open range of encoded row keys: a missing end is open. Empty bytes begin at the first.
    pub range: (Vec<u8>, Option<Vec<u8>>),
}

/// Rows that were read.
#[derive(Debug, Clone)]
pub struct FoundRows {
    /// Which query each row answers, by its index.
    pub queries: UInt32Array,
    /// The encoded row keys.
    pub rows: BinaryArray,
    /// The counts; null where no event gives the row any more.
    pub counts: Int64Array,
    /// The epochs that the rows hold.
    pub epochs: UInt64Array,
}

/// The run records of a source and the newest complete epoch of each view, read in one step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunsSeen {
    /// The run records.
    pub runs: Runs,
    /// By view (`name@version`): the newest complete epoch. A view without any is at epoch 0.
    pub newest: BTreeMap<String, Epoch>,
}

/// The results whose rows the table of a view may hold. What a try of a run computed for a view is a
/// result; the batch layer names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableResults {
    /// The one that was published last: without the others the table holds exactly its rows.
    pub published: Option<String>,
    /// Those of which something may have been written since.
    pub begun: Vec<String>,
}

/// Keys of rows: encoded table partitions and row keys.
#[derive(Debug, Clone)]
pub struct RowKeys {
    /// Encoded table partitions.
    pub parts: BinaryArray,
    /// Encoded row keys.
    pub rows: BinaryArray,
}

impl RowKeys {
    /// No keys.
    #[must_use]
    pub fn none() -> Self {
        let none = || BinaryArray::from_iter_values(std::iter::empty::<&[u8]>());
        Self {
            parts: none(),
            rows: none(),
        }
    }
}

/// What is told of a run: everything that is not needed for the seam.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunStory {
    /// The run.
    pub run: Run,
    /// When it was first proposed, in milliseconds since the Unix epoch.
    pub started_at_ms: i64,
    /// When it was completed or abandoned.
    pub ended_at_ms: Option<i64>,
    /// Rows, seconds by stage, drift, failed checks: as the batch layer wrote it.
    pub report: serde_json::Value,
}

/// Reading batch rows and run records.
#[async_trait]
pub trait ViewsRead: std::fmt::Debug + Send + Sync {
    /// The run records and the newest complete epochs, in one step. Runs that are over and older than
    /// any that a row or a slot can still refer to may be left out.
    async fn runs(&self, source: Source) -> Result<RunsSeen>;

    /// Rows of several table partitions of a view in one round trip; nothing if the view has no
    /// table, since it was never made or has been deleted.
    async fn rows(&self, view: &str, queries: &[PartQuery]) -> Result<Option<FoundRows>>;

    /// The heads of several keys of a view of boards in one round trip, each where it is known;
    /// nothing if the view has no table.
    async fn heads(&self, view: &str, keys: &[Vec<u8>]) -> Result<Option<Vec<Option<Head>>>>;

    /// Nodes of one key in one round trip, each where it is there: those of a head that was
    /// replaced long ago are not.
    async fn nodes(&self, view: &str, key: &[u8], names: &[NodeName])
    -> Result<Vec<Option<Bytes>>>;

    /// The stories of the newest runs before one of them, newest first, at most `limit`.
    async fn stories(
        &self,
        source: Source,
        before: Option<Epoch>,
        limit: usize,
    ) -> Result<Vec<RunStory>>;

    /// The story of one run.
    async fn story(&self, source: Source, epoch: Epoch) -> Result<Option<RunStory>>;
}

/// Writing batch rows and run records. The records change by compare-and-set.
#[async_trait]
pub trait ViewsWrite: ViewsRead + ViewsScan {
    /// By how many rows should be published at the same time, at most: a store that writes one thing at a time gains
    /// nothing by more, and keeps them waiting.
    fn publishers_max(&self) -> usize {
        usize::MAX
    }

    /// Makes the table of a view if it is not there.
    async fn ensure_view(&self, source: Source, shape: &ViewShape) -> Result<()>;

    /// Records the cuts of run `epoch` as proposed, over an older proposal of the same run, and
    /// gives it a stamp that no run had before.
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

    /// Seals the proposal that carries `token`. From here on its cuts never change.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if that proposal no longer stands.
    async fn seal(&self, source: Source, epoch: Epoch, token: &str) -> Result<Run>;

    /// Begins to publish run `epoch` (once more): from here on the tables may hold rows of these
    /// results, named by view. Answers a new stamp, larger than all before it: what an earlier try
    /// still writes with an older one changes nothing.
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

    /// The keys of a view's rows that have a count and a stamp before `stamp_us`, in an order of the
    /// store's own, at most `limit` of them after the key `after`: once a result was written whole,
    /// these are the rows that it does not have.
    async fn rows_before(
        &self,
        view: &str,
        stamp_us: i64,
        after: Option<(Vec<u8>, Vec<u8>)>,
        limit: usize,
    ) -> Result<RowKeys>;

    /// Writes rows of run `epoch`. A row that has a larger stamp stays as it is.
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

    /// Deletes rows that no run would ever write where they are, each unless it has a larger stamp. What a run has
    /// written becomes a marker instead: a reader takes a row that is missing for one that never was.
    ///
    /// # Errors
    /// As [`ViewsWrite::publish`].
    async fn delete_rows(
        &self,
        source: Source,
        view: &str,
        at: (Epoch, i64),
        rows: &RowKeys,
    ) -> Result<()>;

    /// Writes editions of run `epoch`, in their order; a key gets one head with a stamp. Whoever
    /// publishes after [`ViewsWrite::collect_garbage`] takes a new stamp before.
    /// In the same step nodes become *garbage* that the key's head does not lead to, be it that it was
    /// replaced or is yet to come; what it leads to is none any more. A head leads to its earlier root's
    /// nodes as to its own. Which root that is, the stamps decide ([`Head::earlier_at`]).
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if a newer run has been recorded or the stamp was replaced.
    async fn publish_editions(
        &self,
        source: Source,
        view: &str,
        epoch: Epoch,
        stamp_us: i64,
        editions: &[NewEdition],
    ) -> Result<()>;

    /// The names of all nodes that are stored for a key, garbage among them: for looking whether a
    /// store keeps what it should and nothing else.
    async fn node_names(&self, view: &str, key: &[u8]) -> Result<Vec<NodeName>>;

    /// Deletes at most `limit` nodes of a view that are garbage, and answers how many. Whoever asks
    /// for it has waited until nobody reads the heads that were replaced.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if a newer run has been recorded or the stamp was replaced: what it
    /// is writing has no head yet.
    async fn collect_garbage(
        &self,
        source: Source,
        view: &str,
        (epoch, stamp_us): (Epoch, i64),
        limit: usize,
    ) -> Result<usize>;

    /// Keys that have a head, in an order of the store's own, at most `limit` of them after the key
    /// `after`.
    async fn keys(&self, view: &str, after: Option<Vec<u8>>, limit: usize) -> Result<Vec<Vec<u8>>>;

    /// Records that views are complete at `epoch`, each with the result that its table holds, and
    /// with `run_ends` that the run is. Once a view is complete at an epoch it never goes back.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if the run is not sealed, a newer one has been recorded or the stamp
    /// was replaced: then another try is publishing.
    async fn complete(
        &self,
        source: Source,
        (epoch, stamp_us): (Epoch, i64),
        results: &BTreeMap<String, String>,
        run_ends: bool,
        now_ms: i64,
    ) -> Result<()>;

    /// Records that the run's result failed its check: the next run covers its events too.
    async fn abandon(&self, source: Source, epoch: Epoch, now_ms: i64) -> Result<()>;

    /// Replaces the report of a run.
    async fn report(&self, source: Source, epoch: Epoch, report: &serde_json::Value) -> Result<()>;

    /// Forgets views that no job defines any more: their newest epochs no longer hold back the
    /// dropping of live epochs. Rows of views that an earlier call forgot may be deleted; a reader
    /// that began before this call must still find those of the others. `epoch` and `stamp_us` are of
    /// the run that says so.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if a newer run has been recorded or the stamp was replaced: somebody
    /// else may know of views that this run does not.
    async fn forget_views(
        &self,
        source: Source,
        (epoch, stamp_us): (Epoch, i64),
        keep: &[String],
    ) -> Result<()>;
}
