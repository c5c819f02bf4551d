//! The log port: ordered, partitioned, append-only topics.
//!
//! Records travel as columns. Offsets rise within a partition and may have holes, so positions are
//! compared and never counted.

mod partitions;
mod recognise;
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
pub use partitions::Partitions;
pub use recognise::{LOST_REMEDY, OtherLog, Recogniser, recognise};
#[cfg(feature = "kafka")]
pub(crate) use topics::topics;
pub use topics::{make_topics, topic_names};

/// Records of one partition, column by column, in the order of their offsets.
#[derive(Debug, Clone)]
pub struct Records {
    /// The offsets; they rise, perhaps with holes.
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

    /// Whether there are none.
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

    /// How large the values are together.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        let ends = self.values.value_offsets();
        let (first, last) = (ends.first().unwrap_or(&0), ends.last().unwrap_or(&0));
        usize::try_from(last - first).unwrap_or(0)
    }

    /// The first record.
    #[must_use]
    pub fn first(&self) -> Option<LastRecord> {
        (!self.is_empty()).then(|| self.at(0))
    }

    /// The last record, by which it is known later whether the log is still the same one.
    #[must_use]
    pub fn last(&self) -> Option<LastRecord> {
        Some(self.at(self.len().checked_sub(1)?))
    }

    fn at(&self, index: usize) -> LastRecord {
        LastRecord {
            offset: self.offsets.value(index),
            checksum: crc32fast::hash(self.values.value(index)),
            logged_at_ms: self.logged_at_ms.value(index),
        }
    }
}

/// What a fetch found.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The records from the offset that was asked for, at most as many as were asked for.
    pub records: Records,
    /// The position after them: where to fetch from next. It may be beyond the last record's
    /// offset + 1 where the log has holes.
    pub next_offset: Offset,
    /// The position after the newest record of the partition at the time of the fetch.
    pub end: Offset,
}

/// How much one fetch may bring. At least one record comes if there is one.
#[derive(Debug, Clone, Copy)]
pub struct FetchLimit {
    /// Records, at most.
    pub records: usize,
    /// Bytes of values, at most.
    pub bytes: usize,
}

/// The part of a partition that the log still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first offset that is still there.
    pub start: Offset,
    /// The offset that the next record will have.
    pub end: Offset,
}

/// How long a topic keeps its records. What is older, or too much, may go at any moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptFor {
    /// Records that are older may go, in milliseconds; none does for its age if this is nothing.
    pub age_ms: Option<u64>,
    /// What a partition holds beyond so many bytes may go, the oldest first.
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
    /// The headers of each record, or nothing for none. They are for the tools of a log that has
    /// such; nothing here reads them, and a log without them leaves them out.
    pub headers: Vec<Headers>,
}

impl NewRecords {
    /// Keys with their values, each in the partition of its key among `partitions` of a topic.
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

/// Keys with their values, by the partition of the key.
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
        let of_partition = columns.map(|(partition, (mut keys, mut values))| NewRecords {
            partition,
            keys: keys.finish(),
            values: values.finish(),
            headers: Vec::new(),
        });
        of_partition.collect()
    }
}

/// Names and values that stand beside a record.
pub type Headers = Vec<(&'static str, Vec<u8>)>;

/// The partitions of a topic that are for this process to work on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assigned {
    /// All of them, also those that come.
    Everything,
    /// Some of them; the others are for other processes.
    Some(BTreeSet<u32>),
}

impl Assigned {
    /// Whether a partition is among them.
    #[must_use]
    pub fn has(&self, partition: u32) -> bool {
        match self {
            Self::Everything => true,
            Self::Some(mine) => mine.contains(&partition),
        }
    }
}

/// A place among those that share the partitions of a topic; it is given up when it is dropped.
///
/// What is assigned says who is to do the work, not who may: a change is told a little later than it
/// is made, and two processes may believe that a partition is theirs.
#[derive(Debug)]
pub struct Share {
    assigned: watch::Receiver<Assigned>,
    member: Box<dyn Any + Send + Sync>,
}

/// Leaving is waited for so long; then the others find out by themselves.
const LEAVE_FOR: Duration = Duration::from_secs(5);

impl Share {
    /// A share that a store tells changes of, until `member` is dropped and it has left.
    pub(crate) fn new(assigned: watch::Receiver<Assigned>, member: impl Any + Send + Sync) -> Self {
        Self {
            assigned,
            member: Box::new(member),
        }
    }

    /// All partitions for ever, whoever else works on them.
    #[must_use]
    pub fn everything() -> Self {
        let (told, assigned) = watch::channel(Assigned::Everything);
        Self::new(assigned, told)
    }

    /// What is this process's now.
    #[must_use]
    pub fn assigned(&self) -> Assigned {
        self.assigned.borrow().clone()
    }

    /// Waits until something else is assigned than when this was waited for last. It may be dropped
    /// at any point.
    pub async fn changed(&mut self) {
        if self.assigned.changed().await.is_err() {
            // Nobody will tell any more.
            std::future::pending::<()>().await;
        }
    }

    /// Gives it up, and waits until the others know.
    pub async fn leave(self) {
        let Self {
            mut assigned,
            member,
        } = self;
        drop(member);
        let left = async { while assigned.changed().await.is_ok() {} };
        if tokio::time::timeout(LEAVE_FOR, left).await.is_err() {
            tracing::warn!("the others are not told that this process shares no more; they wait");
        }
    }
}

/// Reading topics.
#[async_trait]
pub trait LogRead: std::fmt::Debug + Send + Sync {
    /// What each partition of the topic holds; empty if there is no such topic.
    async fn spans(&self, topic: &str) -> Result<Vec<Span>>;

    /// How many partitions the topic has; 0 if there is no such topic. What a reader needs to know of
    /// the log: it costs no round trip where that can be saved, may be a few seconds old, and never
    /// falls while this is open.
    async fn partitions(&self, topic: &str) -> Result<u32> {
        self.partitions_now(topic).await
    }

    /// How many partitions the topic has as far as is known now; 0 if there is no such topic. One who
    /// asks may be told of fewer than there are while they are being added.
    async fn partitions_now(&self, topic: &str) -> Result<u32> {
        let spans = self.spans(topic).await?;
        Ok(u32::try_from(spans.len()).unwrap_or(u32::MAX))
    }

    /// The offset that the next record of a partition will have; 0 if there is no such partition.
    async fn end(&self, topic: &str, partition: u32) -> Result<Offset> {
        let spans = self.spans(topic).await?;
        Ok(spans.get(partition as usize).map_or(0, |span| span.end))
    }

    /// The offset that the next record of each partition will have, as of now; empty if there is no such
    /// topic. The cost is that of one request, so a follower of many partitions may call it often.
    async fn ends(&self, topic: &str) -> Result<Vec<Offset>> {
        let spans = self.spans(topic).await?;
        Ok(spans.iter().map(|span| span.end).collect())
    }

    /// The records of a partition from `from` on. None, and `next_offset == from`, at the end. None,
    /// and `next_offset` beyond `from`, where the log has a hole before the end.
    ///
    /// They may have been read ahead, and a topic that is deleted and made again meanwhile shows in
    /// nothing but its records: whoever makes something of them looks afterwards whether the log is
    /// still the one that it was ([`Recogniser`]).
    ///
    /// # Errors
    /// [`crate::Error::OffsetOutOfRange`] if `from` is before the first offset that is still there
    /// or after the end: never a silent jump.
    async fn fetch(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: FetchLimit,
    ) -> Result<Fetched>;

    /// The same for one who does not go on where it ends: nothing more is read ahead for that, or kept.
    ///
    /// # Errors
    /// As [`LogRead::fetch`].
    async fn fetch_apart(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: FetchLimit,
    ) -> Result<Fetched> {
        self.fetch(topic, partition, from, limit).await
    }

    /// The first record from `offset` on, if there is one, as the log is now: what was read ahead
    /// before this call does not count.
    ///
    /// # Errors
    /// As [`LogRead::fetch`].
    async fn fetch_afresh(&self, topic: &str, partition: u32, offset: Offset) -> Result<Fetched> {
        let one = FetchLimit {
            records: 1,
            bytes: usize::MAX,
        };
        self.fetch(topic, partition, offset, one).await
    }

    /// The offset of the first record of the partition that was appended at `logged_at_ms` or
    /// later; the end if there is none.
    async fn offset_at(&self, topic: &str, partition: u32, logged_at_ms: i64) -> Result<Offset>;

    /// How long the topic keeps its records; nothing where that can't be seen, or there is no such topic. A log
    /// that has no such thing keeps all of them.
    async fn kept_for(&self, topic: &str) -> Result<Option<KeptFor>> {
        let _any = topic;
        Ok(Some(KeptFor::default()))
    }

    /// Joins those that share the partitions of a topic among them: each partition is one process's
    /// at a time, but for moments. A log that has no such thing gives each of them every partition.
    async fn share(&self, topic: &str) -> Result<Share> {
        let _everything = topic;
        Ok(Share::everything())
    }
}

/// Writing topics.
#[async_trait]
pub trait LogWrite: std::fmt::Debug + Send + Sync {
    /// Makes the topic with so many partitions if it is not there, and answers how many it has. One
    /// that is there stays as it is: with more partitions an owner's events would go to another
    /// partition than the earlier ones.
    async fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<u32>;

    /// Appends to partitions of one topic, durably when it answers, and answers the offset of the
    /// first record that each group got. Records of one group stay in their order; those that others
    /// append at the same time may come between them.
    ///
    /// A log with a clock of its own stamps records with that. Any other stamps them with
    /// `logged_at_ms`, or with the time of the record before where that is later. So times in a
    /// partition never fall, but for what a log's own clock does when it is set back.
    ///
    /// # Errors
    /// Those of the log. One that refuses writes nothing; after any other nothing is certain, and the
    /// records may be given again.
    async fn append(
        &self,
        topic: &str,
        groups: &[NewRecords],
        logged_at_ms: i64,
    ) -> Result<Vec<Offset>>;

    /// Deletes the records of a topic below these offsets, by partition; what is not there any more is no
    /// error. The offsets of the others stay as they are, and so does where each partition ends. A log on a
    /// server may keep the bytes for a while, which nobody can read any more.
    ///
    /// # Errors
    /// Those of the log; [`crate::Error::Refused`] from one that can't delete.
    async fn trim(&self, topic: &str, before: &[Offset]) -> Result<()> {
        let _offsets = before;
        Err(crate::Error::Refused(format!(
            "{topic}: this log deletes nothing before its time"
        )))
    }
}

/// Reading and writing topics.
pub trait Log: LogRead + LogWrite {}

impl<T: LogRead + LogWrite> Log for T {}
