//! A consumer that reads one partition sequentially.
//!
//! The start offset is set at creation, and the consumer never seeks. Progress is the consumer's
//! position, which also advances past transaction markers and records of aborted transactions.

use std::time::{Duration, Instant};

use arrow::array::{BinaryBuilder, Int64Builder};
use rdkafka::Offset as KafkaOffset;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Message, OwnedMessage};
use rdkafka::types::RDKafkaErrorCode as Code;
use schemas::seam::Offset;
use std::sync::Arc;

use super::cluster::{ClientCallbacks, Cluster};
use crate::Result;
use crate::log::{FetchLimit, Records};

/// Upper limit of a fetch, because the offsets within an Arrow array have 32 bits.
const FETCH_BYTES_MAX: usize = 1 << 30;
/// Upper limit of the records for which arrays are allocated in advance.
const PREALLOCATED_RECORDS_MAX: usize = 1 << 16;
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// A consumer that received nothing for this long, although there are records, is replaced.
const STALL_TIMEOUT: Duration = Duration::from_millis(500);

/// How much a consumer fetches in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefetch {
    /// For sequential reading without an end.
    Large,
    /// For a single range of offsets.
    Small,
}

impl Prefetch {
    const fn queue_kib(self) -> u32 {
        match self {
            // With small records, the client uses about three times as much memory per partition.
            Self::Large => 8 << 10,
            Self::Small => 1 << 10,
        }
    }
}

/// A consumer of one partition.
pub(super) struct Reader {
    cluster: Arc<Cluster>,
    /// `None` only while the reader is dropped.
    consumer: Option<BaseConsumer<ClientCallbacks>>,
    pub(super) partition: Partition,
    /// The next offset to read.
    pub(super) next_offset: Offset,
    /// A record that was received but exceeded the size limit of the last fetch.
    carried_over: Option<OwnedMessage>,
    /// Set until the first read ends: connecting may delay the first record.
    is_new: bool,
}

/// A partition, with the topic's name on the brokers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Partition {
    pub(super) topic: String,
    pub(super) number: i32,
}

/// The outcome of a read.
pub(super) enum ReadOutcome {
    /// Records, perhaps none, and the next offset to read.
    Records(Box<Records>, Offset),
    /// Received no records although there should be some; replace the consumer.
    Stalled,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("partition", &self.partition)
            .field("next_offset", &self.next_offset)
            .finish_non_exhaustive()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(consumer) = self.consumer.take() {
            self.cluster.close_in_background(consumer);
        }
    }
}

impl Reader {
    pub(super) fn open(
        cluster: &Arc<Cluster>,
        partition: &Partition,
        from: Offset,
        prefetch: Prefetch,
    ) -> Result<Self> {
        let operation = format!(
            "creating a consumer of {}/{}",
            partition.topic, partition.number
        );
        cluster.wait_for_closing_clients(&operation)?;
        let classify = |error: KafkaError| cluster.classify_error(&operation, &error);
        let mut config = cluster.build_config();
        config
            .set("group.id", cluster.namespace.group("backstitch.reader"))
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("check.crcs", "true")
            .set("fetch.message.max.bytes", (4 << 20).to_string())
            .set(
                "queued.max.messages.kbytes",
                prefetch.queue_kib().to_string(),
            )
            // The pause after the prefetch queue is full. The default of 1 s is too long: the
            // reader empties the queue sooner, and then waits.
            .set("fetch.queue.backoff.ms", "10")
            .set("fetch.error.backoff.ms", "100");
        let consumer: BaseConsumer<ClientCallbacks> = config
            .create_with_context(cluster.callbacks())
            .map_err(classify)?;
        let mut assignment = TopicPartitionList::new();
        assignment
            .add_partition_offset(
                &partition.topic,
                partition.number,
                KafkaOffset::Offset(from),
            )
            .and_then(|()| consumer.assign(&assignment))
            .map_err(classify)?;
        metrics::counter!("backstitch_kafka_consumers_opened_total").increment(1);
        Ok(Self {
            cluster: Arc::clone(cluster),
            consumer: Some(consumer),
            partition: partition.clone(),
            next_offset: from,
            carried_over: None,
            is_new: true,
        })
    }

    /// Reads records up to `end`. The caller read `end` before this call and, for a new reader,
    /// before creating it.
    ///
    /// Waits for records, but for none longer than [`STALL_TIMEOUT`]; on a new reader, not longer
    /// than `first_record_timeout`.
    pub(super) fn read(
        &mut self,
        end: Offset,
        limit: FetchLimit,
        first_record_timeout: Duration,
    ) -> KafkaResult<ReadOutcome> {
        let (records_max, bytes_max) = (limit.records.max(1), limit.bytes.min(FETCH_BYTES_MAX));
        let mut columns = RecordBuilder::new(records_max.min(PREALLOCATED_RECORDS_MAX));
        let Some(consumer) = &self.consumer else {
            return Ok(ReadOutcome::Stalled);
        };
        if let Some(message) = self.carried_over.take() {
            columns.push(&message);
            self.next_offset = message.offset() + 1;
        }
        let mut waiting_since = Instant::now();
        while columns.len < records_max && self.next_offset < end {
            match consumer.poll(POLL_TIMEOUT) {
                Some(Ok(message)) => {
                    if !columns.fits(&message, bytes_max) {
                        self.carried_over = Some(message.detach());
                        break;
                    }
                    if message.offset() >= self.next_offset {
                        columns.push(&message);
                        self.next_offset = message.offset() + 1;
                    }
                    // Reading the clock costs more than receiving a record.
                    if columns.len.is_multiple_of(1024) {
                        waiting_since = Instant::now();
                    }
                    continue;
                }
                // An end of partition proves no progress: it may be outdated, or come from a new
                // leader that lags behind the old one. Only the position counts.
                Some(Err(KafkaError::PartitionEOF(_))) | None => {}
                Some(Err(error)) if is_transient(&error) => {}
                // Returns the records that were read. The next read gets the error again.
                Some(Err(_)) if columns.len > 0 => break,
                Some(Err(error)) => return Err(error),
            }
            self.next_offset = self.next_offset.max(read_position(consumer)?);
            if self.next_offset >= end {
                continue;
            }
            let waited = waiting_since.elapsed();
            if waited > STALL_TIMEOUT && columns.len > 0 {
                break;
            }
            let timeout = match self.is_new {
                true => first_record_timeout,
                false => STALL_TIMEOUT,
            };
            if waited > timeout {
                return Ok(ReadOutcome::Stalled);
            }
        }
        self.is_new = false;
        Ok(ReadOutcome::Records(
            Box::new(columns.finish()),
            self.next_offset,
        ))
    }
}

/// The offset after the last record or transaction marker that the consumer passed; the minimum if
/// there was none.
fn read_position(consumer: &BaseConsumer<ClientCallbacks>) -> KafkaResult<Offset> {
    let position = consumer.position()?;
    let offset = position.elements().first().map(|element| element.offset());
    Ok(match offset {
        Some(KafkaOffset::Offset(offset)) => offset,
        _ => Offset::MIN,
    })
}

/// Returns whether the client recovers from an error by itself.
fn is_transient(error: &KafkaError) -> bool {
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

/// Builds [`Records`] from messages.
struct RecordBuilder {
    offsets: Int64Builder,
    logged_at_ms: Int64Builder,
    keys: BinaryBuilder,
    values: BinaryBuilder,
    len: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// The time of the last record with a timestamp, which stands in for a missing one.
    newest_ms: i64,
}

impl RecordBuilder {
    fn new(capacity: usize) -> Self {
        Self {
            offsets: Int64Builder::with_capacity(capacity),
            logged_at_ms: Int64Builder::with_capacity(capacity),
            keys: BinaryBuilder::with_capacity(capacity, 0),
            values: BinaryBuilder::with_capacity(capacity, 0),
            len: 0,
            key_bytes: 0,
            value_bytes: 0,
            newest_ms: 0,
        }
    }

    /// Returns whether a message fits within the limits. The first one always does.
    fn fits(&self, message: &impl Message, bytes_max: usize) -> bool {
        let byte_count = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
        self.len == 0
            || (self.value_bytes + byte_count(message.payload()) <= bytes_max
                && self.key_bytes + byte_count(message.key()) <= FETCH_BYTES_MAX)
    }

    /// Adds a message; a null key or value becomes an empty one.
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
