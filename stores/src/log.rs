//! The log port: ordered, partitioned, append-only topics.
//!
//! Records are passed as columns. Offsets rise within a partition and may have gaps, so code
//! compares positions and never counts them.

mod identity;
mod partition_counts;
mod topics;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arrow::array::{Array, BinaryArray, BinaryBuilder, Int64Array};
use async_trait::async_trait;
use schemas::partition::partition_of;
use schemas::seam::{LastRecord, Offset};
use tokio::sync::watch;

use crate::Result;
pub use identity::{LOST_REMEDY, LogIdentityError, LogIdentityVerifier, verify_log_identity};
pub use partition_counts::PartitionCounts;
#[cfg(feature = "kafka")]
pub(crate) use topics::list_topics;
pub use topics::{create_topics, list_topic_names};

/// Records of one partition, as columns, in the order of their offsets.
#[derive(Debug, Clone)]
pub struct Records {
    /// The offsets, ascending, possibly with gaps.
    pub offsets: Int64Array,
    /// When each record was appended, in milliseconds since the Unix epoch, by the clock of the log
    /// if it has one.
    pub logged_at_ms: Int64Array,
    /// The keys.
    pub keys: BinaryArray,
    /// The values.
    pub values: BinaryArray,
}

impl Records {
    /// No records.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            offsets: Vec::<i64>::new().into(),
            logged_at_ms: Vec::<i64>::new().into(),
            keys: BinaryArray::from_vec(Vec::new()),
            values: BinaryArray::from_vec(Vec::new()),
        }
    }

    /// The number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The records from index `from` on, at most `length` of them.
    #[must_use]
    pub fn slice(&self, from: usize, length: usize) -> Self {
        Self {
            offsets: self.offsets.slice(from, length),
            logged_at_ms: self.logged_at_ms.slice(from, length),
            keys: self.keys.slice(from, length),
            values: self.values.slice(from, length),
        }
    }

    /// The total size of the values.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        let ends = self.values.value_offsets();
        let (first, last) = (ends.first().unwrap_or(&0), ends.last().unwrap_or(&0));
        usize::try_from(last - first).unwrap_or(0)
    }

    /// The first record.
    #[must_use]
    pub fn first(&self) -> Option<LastRecord> {
        (!self.is_empty()).then(|| self.record_at(0))
    }

    /// The last record, by which the log is identified later.
    #[must_use]
    pub fn last(&self) -> Option<LastRecord> {
        Some(self.record_at(self.len().checked_sub(1)?))
    }

    fn record_at(&self, index: usize) -> LastRecord {
        LastRecord {
            offset: self.offsets.value(index),
            checksum: crc32fast::hash(self.values.value(index)),
            logged_at_ms: self.logged_at_ms.value(index),
        }
    }
}

/// The result of a fetch.
#[derive(Debug, Clone)]
pub struct FetchedRecords {
    /// The records from the requested offset, within the limit.
    pub records: Records,
    /// The offset to fetch from next. It may be greater than the last record's offset + 1 if the
    /// log has gaps.
    pub next_offset: Offset,
    /// The end of the partition at the time of the fetch.
    pub end: Offset,
}

/// The limit of one fetch. At least one record is returned if there is one.
#[derive(Debug, Clone, Copy)]
pub struct FetchLimit {
    /// The maximum number of records.
    pub records: usize,
    /// The maximum size of the values.
    pub bytes: usize,
}

/// The part of a partition that the log still contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first offset that the log still contains.
    pub start: Offset,
    /// The offset of the next record.
    pub end: Offset,
}

/// The retention of a topic. Older records, or those beyond the size, may be deleted at any moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TopicRetention {
    /// The age in milliseconds after which records may be deleted; `None` for no limit.
    pub age_ms: Option<u64>,
    /// The size in bytes of a partition beyond which the oldest records may be deleted; `None` for
    /// no limit.
    pub bytes: Option<u64>,
}

/// Records to append to one partition.
#[derive(Debug, Clone)]
pub struct NewRecords {
    /// The partition.
    pub partition: u32,
    /// The keys, one for each value.
    pub keys: BinaryArray,
    /// The values.
    pub values: BinaryArray,
    /// The headers of each record, or empty for none. They are for tools of the log; this program
    /// does not read them, and a log without headers drops them.
    pub headers: Vec<Headers>,
}

impl NewRecords {
    /// Groups keys and values by the partition of the key, for a topic with `partitions`
    /// partitions.
    #[must_use]
    pub fn by_key(
        records: impl IntoIterator<Item = (String, Vec<u8>)>,
        partitions: u32,
    ) -> Vec<Self> {
        let mut columns = KeyedColumns::default();
        for (key, value) in records {
            columns.add(partitions, key.as_bytes(), &value);
        }
        columns.finish()
    }
}

/// Keys and values by the partition of the key.
#[derive(Debug, Default)]
pub(crate) struct KeyedColumns(BTreeMap<u32, (BinaryBuilder, BinaryBuilder)>);

impl KeyedColumns {
    pub(crate) fn add(&mut self, partitions: u32, key: &[u8], value: &[u8]) {
        let partition = partition_of(key, partitions);
        let (keys, values) = self.0.entry(partition).or_default();
        keys.append_value(key);
        values.append_value(value);
    }

    pub(crate) fn finish(self) -> Vec<NewRecords> {
        let columns = self.0.into_iter();
        let records = columns.map(|(partition, (mut keys, mut values))| NewRecords {
            partition,
            keys: keys.finish(),
            values: values.finish(),
            headers: Vec::new(),
        });
        records.collect()
    }
}

/// The names and values of a record's headers.
pub type Headers = Vec<(&'static str, Vec<u8>)>;

/// The partitions of a topic that are assigned to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assignment {
    /// All partitions, including new ones.
    All,
    /// These partitions. The others are assigned to other processes.
    Some(BTreeSet<u32>),
}

impl Assignment {
    /// Returns whether a partition is assigned.
    #[must_use]
    pub fn contains(&self, partition: u32) -> bool {
        match self {
            Self::All => true,
            Self::Some(partitions) => partitions.contains(&partition),
        }
    }
}

/// Membership in the group of processes that share the partitions of a topic. Dropping it leaves
/// the group.
///
/// The assignment says which process should do the work, not which one may do it. A process learns
/// of a change with a delay, so two processes may consider a partition their own.
#[derive(Debug)]
pub struct GroupMembership {
    assigned: watch::Receiver<Assignment>,
    member: Box<dyn Any + Send + Sync>,
}

/// The maximum time to wait for leaving. The other members then detect it by a timeout.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

impl GroupMembership {
    /// A membership whose assignment a store updates until `member` is dropped and has left the
    /// group.
    pub(crate) fn new(
        assigned: watch::Receiver<Assignment>,
        member: impl Any + Send + Sync,
    ) -> Self {
        Self {
            assigned,
            member: Box::new(member),
        }
    }

    /// A membership that always has all partitions.
    #[must_use]
    pub fn all_partitions() -> Self {
        let (sender, assigned) = watch::channel(Assignment::All);
        Self::new(assigned, sender)
    }

    /// The current assignment.
    #[must_use]
    pub fn assigned(&self) -> Assignment {
        self.assigned.borrow().clone()
    }

    /// Waits until the assignment differs from the one at the last call. It is cancel-safe.
    pub async fn changed(&mut self) {
        if self.assigned.changed().await.is_err() {
            // The assignment can't change any more.
            std::future::pending::<()>().await;
        }
    }

    /// Leaves the group, and waits until the other members know.
    pub async fn leave(self) {
        let Self {
            mut assigned,
            member,
        } = self;
        drop(member);
        let closed = async { while assigned.changed().await.is_ok() {} };
        if tokio::time::timeout(LEAVE_TIMEOUT, closed).await.is_err() {
            tracing::warn!(
                "cannot leave the group in time; the other members wait until this member times out"
            );
        }
    }
}

/// Reads topics.
#[async_trait]
pub trait LogRead: std::fmt::Debug + Send + Sync {
    /// The contained range of each partition; empty if the topic does not exist.
    async fn spans(&self, topic: &str) -> Result<Vec<Span>>;

    /// The number of partitions of the topic; 0 if it does not exist. It avoids a round trip if
    /// possible, may be some seconds old, and never decreases while the log is open.
    async fn partition_count(&self, topic: &str) -> Result<u32> {
        self.current_partition_count(topic).await
    }

    /// The current number of partitions of the topic; 0 if it does not exist. It may be too low
    /// while partitions are being added.
    async fn current_partition_count(&self, topic: &str) -> Result<u32> {
        let spans = self.spans(topic).await?;
        Ok(u32::try_from(spans.len()).unwrap_or(u32::MAX))
    }

    /// The offset of the next record of a partition; 0 if it does not exist.
    async fn end(&self, topic: &str, partition: u32) -> Result<Offset> {
        let spans = self.spans(topic).await?;
        Ok(spans.get(partition as usize).map_or(0, |span| span.end))
    }

    /// The offset of the next record of each partition; empty if the topic does not exist. It costs
    /// one request, so a follower of many partitions may call it often.
    async fn ends(&self, topic: &str) -> Result<Vec<Offset>> {
        let spans = self.spans(topic).await?;
        Ok(spans.iter().map(|span| span.end).collect())
    }

    /// Fetches the records of a partition from `from`. At the end it returns none, and `next_offset
    /// == from`. In a gap before the end it returns none, and `next_offset` is greater than `from`.
    ///
    /// Records may have been read ahead, and only their content shows that a topic was deleted and
    /// recreated meanwhile. So a caller that processes them must verify afterwards that the log is
    /// still the same ([`LogIdentityVerifier`]).
    ///
    /// # Errors
    /// [`crate::Error::OffsetOutOfRange`] if `from` is before the first contained offset or after
    /// the end; it never skips records silently.
    async fn fetch(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: FetchLimit,
    ) -> Result<FetchedRecords>;

    /// Fetches without reading ahead, for callers that do not continue at the end of the result.
    ///
    /// # Errors
    /// As [`LogRead::fetch`].
    async fn fetch_once(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: FetchLimit,
    ) -> Result<FetchedRecords> {
        self.fetch(topic, partition, from, limit).await
    }

    /// Fetches the first record from `offset`, if there is one, from the current log. Data that was
    /// read ahead earlier is ignored.
    ///
    /// # Errors
    /// As [`LogRead::fetch`].
    async fn fetch_fresh(
        &self,
        topic: &str,
        partition: u32,
        offset: Offset,
    ) -> Result<FetchedRecords> {
        let limit = FetchLimit {
            records: 1,
            bytes: usize::MAX,
        };
        self.fetch(topic, partition, offset, limit).await
    }

    /// The offset of the first record of the partition that was appended at `logged_at_ms` or
    /// later; the end if there is none.
    async fn offset_at(&self, topic: &str, partition: u32, logged_at_ms: i64) -> Result<Offset>;

    /// The retention of the topic; `None` if it can't be read or the topic does not exist. A log
    /// without retention keeps all records.
    async fn retention(&self, topic: &str) -> Result<Option<TopicRetention>> {
        let _unused = topic;
        Ok(Some(TopicRetention::default()))
    }

    /// Joins the group that shares the partitions of a topic. Each partition is assigned to one
    /// process at a time, except during short transitions. A log without groups assigns every
    /// partition to each process.
    async fn join_group(&self, topic: &str) -> Result<GroupMembership> {
        let _unused = topic;
        Ok(GroupMembership::all_partitions())
    }
}

/// Writes topics.
#[async_trait]
pub trait LogWrite: std::fmt::Debug + Send + Sync {
    /// Creates the topic with this number of partitions if it does not exist, and returns its
    /// number of partitions. An existing topic stays unchanged, because more partitions would move
    /// an owner's later events to another partition.
    async fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<u32>;

    /// Appends to partitions of one topic, durably, and returns the offset of each group's first
    /// record. Records of one group keep their order; records of other writers may come in between.
    ///
    /// A log with a clock uses it for the timestamps. Any other log uses `logged_at_ms`, or the
    /// timestamp of the previous record if that is later. So timestamps in a partition never fall,
    /// except if the log's own clock is set back.
    ///
    /// # Errors
    /// Those of the log. After [`crate::Error::Refused`] nothing was written. After any other error
    /// the result is unknown, and the records may be appended again.
    async fn append(
        &self,
        topic: &str,
        groups: &[NewRecords],
        logged_at_ms: i64,
    ) -> Result<Vec<Offset>>;

    /// Deletes the records of a topic below these offsets, by partition. Missing records are no
    /// error. Other offsets and the ends of partitions stay. A server may keep the bytes for a
    /// while, but they can't be read any more.
    ///
    /// # Errors
    /// Those of the log; [`crate::Error::Refused`] from a log that can't delete.
    async fn trim(&self, topic: &str, before: &[Offset]) -> Result<()> {
        let _unused = before;
        Err(crate::Error::Refused(format!(
            "{topic}: this log does not support deleting records"
        )))
    }
}

/// Reads and writes topics.
pub trait Log: LogRead + LogWrite {}

impl<T: LogRead + LogWrite> Log for T {}
