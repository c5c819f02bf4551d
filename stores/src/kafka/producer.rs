//! Appending: one idempotent producer for the process.
//!
//! Each record is reported when it is on as many brokers as it must be, or when that failed. What
//! waits to be sent is bounded: who appends more waits until some of it is gone.

use std::num::TryFromIntError;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::Array;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode as Code;
use schemas::seam::Offset;

use super::cluster::{Cluster, Ear};
use crate::log::NewRecords;
use crate::{Error, Result};

/// Records that wait to be sent, at most, and their size.
const QUEUE_RECORDS_MAX: usize = 200_000;
const QUEUE_KIB_MAX: usize = 128 << 10;
/// How long one look for room or for the end waits; whatever happens before wakes it.
const LOOK: Duration = Duration::from_millis(50);
/// A report may come so much later than its time is over.
const GRACE: Duration = Duration::from_secs(5);

/// What appends.
pub(super) struct Appender {
    cluster: Arc<Cluster>,
    /// Made at the first append, and made anew after a fatal error.
    producer: Mutex<Option<Arc<Sending>>>,
}

/// A producer, which may wait for brokers when it is dropped.
struct Sending {
    cluster: Arc<Cluster>,
    producer: Option<ThreadedProducer<Courier>>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(producer) = self.producer.take() {
            self.cluster.close(producer);
        }
    }
}

impl std::fmt::Debug for Appender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Appender").finish_non_exhaustive()
    }
}

/// What takes reports.
struct Courier(Ear);

impl ClientContext for Courier {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.0.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.error(error, reason);
    }
}

impl ProducerContext for Courier {
    type DeliveryOpaque = Arc<Group>;

    fn delivery(&self, result: &DeliveryResult<'_>, group: Arc<Group>) {
        match result {
            Ok(message) => {
                group.first.fetch_min(message.offset(), Ordering::Relaxed);
            }
            Err((error, _)) => group.call.failed(error),
        }
        group.call.reported();
    }
}

/// A record with its group.
type Record<'a> = BaseRecord<'a, [u8], [u8], Arc<Group>>;

/// One call's records of one partition.
#[derive(Debug)]
struct Group {
    call: Arc<Call>,
    /// The least offset that was reported: records of a group keep their order.
    first: AtomicI64,
}

/// One call.
#[derive(Debug, Default)]
struct Call {
    /// Records that no report came of yet.
    open: AtomicUsize,
    error: Mutex<Option<KafkaError>>,
    woken: Condvar,
}

impl Call {
    fn failed(&self, error: &KafkaError) {
        self.error().get_or_insert_with(|| error.clone());
    }

    fn reported(&self) {
        self.open.fetch_sub(1, Ordering::Release);
        self.woken.notify_all();
    }

    fn error(&self) -> MutexGuard<'_, Option<KafkaError>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits a little for reports.
    fn wait(&self) {
        let guard = self.error();
        let _woken = self.woken.wait_timeout(guard, LOOK);
    }
}

impl Appender {
    pub(super) const fn new(cluster: Arc<Cluster>) -> Self {
        Self {
            cluster,
            producer: Mutex::new(None),
        }
    }

    /// The producer; another one if the last one can't go on.
    fn sending(&self, doing: &str) -> Result<Arc<Sending>> {
        let mut held = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sending) = held.as_ref()
            && let Some(producer) = &sending.producer
        {
            let Some((code, why)) = producer.client().fatal_error() else {
                return Ok(Arc::clone(sending));
            };
            tracing::warn!(%code, why, "Kafka's producer can't go on; another one is made");
        }
        self.cluster.may_open(doing)?;
        let timeout = self.cluster.options.delivery_timeout_ms.max(1);
        let mut config = self.cluster.config();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("compression.type", "lz4")
            // Whoever appends gives many records at once and waits for them.
            .set("linger.ms", "1")
            .set("batch.size", (1 << 20).to_string())
            .set("delivery.timeout.ms", timeout.to_string())
            .set(
                "queue.buffering.max.messages",
                QUEUE_RECORDS_MAX.to_string(),
            )
            .set("queue.buffering.max.kbytes", QUEUE_KIB_MAX.to_string());
        let producer = config
            .create_with_context(Courier(self.cluster.ear()))
            .map_err(|error| self.cluster.fault(doing, &error))?;
        let sending = Arc::new(Sending {
            cluster: Arc::clone(&self.cluster),
            producer: Some(producer),
        });
        *held = Some(Arc::clone(&sending));
        Ok(sending)
    }

    /// Appends, and answers by group the offset of its first record; nothing for a group without
    /// records.
    pub(super) fn append(&self, topic: &str, groups: &[NewRecords]) -> Result<Vec<Option<Offset>>> {
        let doing = format!("appending to {topic}");
        let sending = self.sending(&doing)?;
        let Some(producer) = &sending.producer else {
            return Err(self.cluster.unavailable(&doing, "the producer was closed"));
        };
        let deadline = Instant::now() + self.cluster.options.delivery_timeout() + GRACE;
        let call = Arc::new(Call::default());
        let mut firsts = Vec::with_capacity(groups.len());
        for records in groups {
            let group = Arc::new(Group {
                call: Arc::clone(&call),
                first: AtomicI64::new(Offset::MAX),
            });
            for index in 0..records.values.len() {
                let record = record(topic, records, index, &group)
                    .map_err(|why| Error::Refused(format!("{doing}: {why}")))?;
                self.send(&doing, producer, record, &call, deadline)?;
            }
            firsts.push(group);
        }
        while call.open.load(Ordering::Acquire) > 0 {
            if Instant::now() >= deadline {
                let why = "no report of what was appended";
                return Err(self.cluster.unavailable(&doing, why));
            }
            call.wait();
        }
        if let Some(error) = &*call.error() {
            return Err(self.cluster.fault(&doing, error));
        }
        let first = |group: Arc<Group>| {
            let first = group.first.load(Ordering::Relaxed);
            (first != Offset::MAX).then_some(first)
        };
        Ok(firsts.into_iter().map(first).collect())
    }

    /// Hands one record over, when there is room.
    fn send(
        &self,
        doing: &str,
        producer: &ThreadedProducer<Courier>,
        mut record: Record<'_>,
        call: &Call,
        deadline: Instant,
    ) -> Result<()> {
        let mut has_looked = false;
        loop {
            // Before it is sent: the report may come at once.
            call.open.fetch_add(1, Ordering::Relaxed);
            let (error, again) = match producer.send(record) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            call.open.fetch_sub(1, Ordering::Relaxed);
            record = again;
            match error.rdkafka_error_code() {
                Some(Code::QueueFull) if Instant::now() < deadline => {}
                // It was added after this producer looked last.
                Some(Code::UnknownPartition) if !has_looked => {
                    has_looked = true;
                    let timeout = self.cluster.options.request_timeout();
                    let looked = producer
                        .client()
                        .fetch_metadata(Some(record.topic), timeout);
                    looked.map_err(|error| self.cluster.fault(doing, &error))?;
                    continue;
                }
                _ => return Err(self.cluster.fault(doing, &error)),
            }
            if let Some(error) = &*call.error() {
                return Err(self.cluster.fault(doing, error));
            }
            metrics::counter!("backstitch_kafka_queue_full_total").increment(1);
            call.wait();
        }
    }
}

fn record<'a>(
    topic: &'a str,
    records: &'a NewRecords,
    index: usize,
    group: &Arc<Group>,
) -> std::result::Result<Record<'a>, TryFromIntError> {
    let partition = i32::try_from(records.partition)?;
    let mut record = BaseRecord::with_opaque_to(topic, Arc::clone(group))
        .partition(partition)
        .key(records.keys.value(index))
        .payload(records.values.value(index));
    if let Some(of_record) = records.headers.get(index) {
        let mut headers = OwnedHeaders::new_with_capacity(of_record.len());
        for (key, value) in of_record {
            headers = headers.insert(Header {
                key,
                value: Some(value.as_slice()),
            });
        }
        record = record.headers(headers);
    }
    Ok(record)
}
