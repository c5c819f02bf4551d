//! One consumer that reads a partition on and on.
//!
//! It is told where to begin when it is made, and never sought about. How far it has come is told by
//! its position, which passes what no record is shown of: the marks of transactions, and records of
//! those that were aborted.

use std::time::{Duration, Instant};

use arrow::array::{BinaryBuilder, Int64Builder};
use rdkafka::Offset as At;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Message, OwnedMessage};
use rdkafka::types::RDKafkaErrorCode as Code;
use schemas::seam::Offset;
use std::sync::Arc;

use super::cluster::{Cluster, Ear};
use crate::Result;
use crate::log::{FetchLimit, Records};

/// One fetch brings no more bytes than this, whatever was asked for: offsets in an array are 32
/// bits wide.
const FETCH_BYTES_MAX: usize = 1 << 30;
/// Records that room is made for at once.
const ROOM: usize = 1 << 16;
/// How long one look for the next record waits.
const POLL: Duration = Duration::from_millis(100);
/// How long nothing comes, although something is there, before a new consumer is asked.
const STUCK: Duration = Duration::from_millis(500);

/// How much is fetched before it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// For one who reads on and on.
    Much,
    /// For one who reads a stretch, and nothing after it.
    Little,
}

impl Ahead {
    const fn kib(self) -> u32 {
        match self {
            // The client takes about thrice as much memory for small records, for each partition.
            Self::Much => 8 << 10,
            Self::Little => 1 << 10,
        }
    }
}

/// A consumer of one partition.
pub(super) struct Reader {
    cluster: Arc<Cluster>,
    /// There until it is dropped.
    consumer: Option<BaseConsumer<Ear>>,
    pub(super) partition: Partition,
    /// Where it goes on.
    pub(super) next: Offset,
    /// A record that had no place in the last fetch.
    held: Option<OwnedMessage>,
    /// Nothing was read from it yet, so the first record may take its time.
    is_new: bool,
}

/// A partition, by the topic's name on the brokers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Partition {
    pub(super) topic: String,
    pub(super) number: i32,
}

/// How a read ended.
pub(super) enum Read {
    /// With records, perhaps none, and where to go on.
    Records(Box<Records>, Offset),
    /// Nothing came, although something should be there: ask a new consumer.
    Stuck,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("partition", &self.partition)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(consumer) = self.consumer.take() {
            self.cluster.close(consumer);
        }
    }
}

impl Reader {
    pub(super) fn open(
        cluster: &Arc<Cluster>,
        partition: &Partition,
        from: Offset,
        ahead: Ahead,
    ) -> Result<Self> {
        let doing = format!("opening {}/{}", partition.topic, partition.number);
        cluster.may_open(&doing)?;
        let fault = |error: KafkaError| cluster.fault(&doing, &error);
        let mut config = cluster.config();
        config
            .set("group.id", cluster.namespace.group("backstitch.reader"))
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("check.crcs", "true")
            .set("fetch.message.max.bytes", (4 << 20).to_string())
            .set("queued.max.messages.kbytes", ahead.kib().to_string())
            // Once so much is ahead the client looks again after this time, which is a second unless said: by then what was ahead
            // has long been taken, and who reads on and on waits for most of it.
            .set("fetch.queue.backoff.ms", "10")
            .set("fetch.error.backoff.ms", "100");
        let consumer: BaseConsumer<Ear> =
            config.create_with_context(cluster.ear()).map_err(fault)?;
        let mut assignment = TopicPartitionList::new();
        assignment
            .add_partition_offset(&partition.topic, partition.number, At::Offset(from))
            .and_then(|()| consumer.assign(&assignment))
            .map_err(fault)?;
        metrics::counter!("backstitch_kafka_consumers_opened_total").increment(1);
        Ok(Self {
            cluster: Arc::clone(cluster),
            consumer: Some(consumer),
            partition: partition.clone(),
            next: from,
            held: None,
            is_new: true,
        })
    }

    /// Reads on up to `end`, which was the end of the partition before this call; a new reader's
    /// before it was made. Waits for what is there, but not beyond `patience` for any record.
    pub(super) fn read(
        &mut self,
        end: Offset,
        limit: FetchLimit,
        patience: Duration,
    ) -> KafkaResult<Read> {
        let (records_max, bytes_max) = (limit.records.max(1), limit.bytes.min(FETCH_BYTES_MAX));
        let mut columns = Columns::new(records_max.min(ROOM));
        let Some(consumer) = &self.consumer else {
            return Ok(Read::Stuck);
        };
        if let Some(message) = self.held.take() {
            columns.push(&message);
            self.next = message.offset() + 1;
        }
        let mut waiting = Instant::now();
        while columns.len < records_max && self.next < end {
            match consumer.poll(POLL) {
                Some(Ok(message)) => {
                    if !columns.fits(&message, bytes_max) {
                        self.held = Some(message.detach());
                        break;
                    }
                    if message.offset() >= self.next {
                        columns.push(&message);
                        self.next = message.offset() + 1;
                    }
                    // Looking at a clock costs more than taking a record.
                    if columns.len.is_multiple_of(1024) {
                        waiting = Instant::now();
                    }
                    continue;
                }
                // It may be an end that was reached long ago, or that of a new leader which does not know
                // yet how far the old one had come: only the position says what was passed.
                Some(Err(KafkaError::PartitionEOF(_))) | None => {}
                Some(Err(error)) if passes(&error) => {}
                // What was read is good; the error comes again.
                Some(Err(_)) if columns.len > 0 => break,
                Some(Err(error)) => return Err(error),
            }
            self.next = self.next.max(position(consumer)?);
            let waited = waiting.elapsed();
            if self.next < end && waited > STUCK && columns.len > 0 {
                break;
            }
            if self.next < end && waited > if self.is_new { patience } else { STUCK } {
                return Ok(Read::Stuck);
            }
        }
        self.is_new = false;
        Ok(Read::Records(Box::new(columns.finish()), self.next))
    }
}

/// After the last record or mark that was passed; before everything if there was none.
fn position(consumer: &BaseConsumer<Ear>) -> KafkaResult<Offset> {
    let position = consumer.position()?;
    let of_one = position.elements().first().map(|one| one.offset());
    Ok(match of_one {
        Some(At::Offset(offset)) => offset,
        _ => Offset::MIN,
    })
}

/// Whether the client goes on by itself.
fn passes(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::AllBrokersDown
                | Code::BrokerTransportFailure
                | Code::Resolve
                | Code::OperationTimedOut
                | Code::RequestTimedOut
                | Code::LeaderNotAvailable
                | Code::NotLeaderForPartition
                | Code::CoordinatorNotAvailable
                | Code::CoordinatorLoadInProgress
                | Code::NotCoordinator
                | Code::NetworkException
        )
    )
}

/// Records as they come.
struct Columns {
    offsets: Int64Builder,
    logged_at_ms: Int64Builder,
    keys: BinaryBuilder,
    values: BinaryBuilder,
    len: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// For records without a time.
    newest_ms: i64,
}

impl Columns {
    fn new(room: usize) -> Self {
        Self {
            offsets: Int64Builder::with_capacity(room),
            logged_at_ms: Int64Builder::with_capacity(room),
            keys: BinaryBuilder::with_capacity(room, 0),
            values: BinaryBuilder::with_capacity(room, 0),
            len: 0,
            key_bytes: 0,
            value_bytes: 0,
            newest_ms: 0,
        }
    }

    /// The first one always does.
    fn fits(&self, message: &impl Message, bytes_max: usize) -> bool {
        let size = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
        self.len == 0
            || (self.value_bytes + size(message.payload()) <= bytes_max
                && self.key_bytes + size(message.key()) <= FETCH_BYTES_MAX)
    }

    /// A key or value that is null is an empty one.
    fn push(&mut self, message: &impl Message) {
        let key = message.key().unwrap_or_default();
        let value = message.payload().unwrap_or_default();
        self.newest_ms = message.timestamp().to_millis().unwrap_or(self.newest_ms);
        self.offsets.append_value(message.offset());
        self.logged_at_ms.append_value(self.newest_ms);
        self.keys.append_value(key);
        self.values.append_value(value);
        self.len += 1;
        self.key_bytes += key.len();
        self.value_bytes += value.len();
    }

    fn finish(mut self) -> Records {
        Records {
            offsets: self.offsets.finish(),
            logged_at_ms: self.logged_at_ms.finish(),
            keys: self.keys.finish(),
            values: self.values.finish(),
        }
    }
}
