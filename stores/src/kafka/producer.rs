//! Appends records through one idempotent producer per process.
//!
//! The client library reports each record when enough brokers have acknowledged it, or when it
//! failed. The queue of unsent records is bounded: an append waits while the queue is full.

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

use super::cluster::{ClientCallbacks, Cluster};
use crate::log::NewRecords;
use crate::{Error, Result};

/// Upper limit of records in the producer's queue.
const QUEUE_RECORDS_MAX: usize = 200_000;
/// Upper limit of the size of the producer's queue.
const QUEUE_KIB_MAX: usize = 128 << 10;
/// Upper limit of one wait for queue space. It is short because the client frees the space of a
/// record just after its delivery report.
const QUEUE_WAIT_MAX: Duration = Duration::from_millis(50);
/// How long a call waits for delivery reports beyond the delivery timeout.
const REPORT_GRACE: Duration = Duration::from_secs(5);

/// Appends records to topics.
pub(super) struct Appender {
    cluster: Arc<Cluster>,
    /// Created at the first append, and replaced after a fatal error.
    producer: Mutex<Option<Arc<ProducerHandle>>>,
}

/// A producer that is closed in the background, because dropping it may wait for brokers.
struct ProducerHandle {
    cluster: Arc<Cluster>,
    producer: Option<ThreadedProducer<DeliveryCallbacks>>,
    queue_space: Arc<QueueSpace>,
}

impl Drop for ProducerHandle {
    fn drop(&mut self) {
        if let Some(producer) = self.producer.take() {
            self.cluster.close_in_background(producer);
        }
    }
}

impl std::fmt::Debug for Appender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Appender").finish_non_exhaustive()
    }
}

/// Callbacks of the producer: they receive delivery reports.
struct DeliveryCallbacks {
    client: ClientCallbacks,
    queue_space: Arc<QueueSpace>,
}

impl ClientContext for DeliveryCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.client.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.client.error(error, reason);
    }
}

impl ProducerContext for DeliveryCallbacks {
    type DeliveryOpaque = Arc<RecordGroup>;

    fn delivery(&self, result: &DeliveryResult<'_>, group: Arc<RecordGroup>) {
        match result {
            Ok(message) => {
                let offset = message.offset();
                group.first_offset.fetch_min(offset, Ordering::Relaxed);
            }
            Err((error, _)) => group.call.record_error(error),
        }
        group.call.record_report();
        self.queue_space.record_report();
    }
}

/// Wakes calls that wait for queue space when a record of any call leaves the queue.
#[derive(Debug, Default)]
struct QueueSpace {
    waiting: AtomicUsize,
    /// Delivery reports that arrived while a call waited.
    reports: Mutex<u64>,
    woken: Condvar,
}

impl QueueSpace {
    fn record_report(&self) {
        // Takes the lock only if a call waits: waits are rare, and every record has a report.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            *self.lock_reports() += 1;
            self.woken.notify_all();
        }
    }

    fn lock_reports(&self) -> MutexGuard<'_, u64> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts reports until the returned value is dropped.
    fn start_wait(&self) -> QueueSpaceWait<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        QueueSpaceWait(self)
    }
}

/// A call that waits for queue space.
struct QueueSpaceWait<'a>(&'a QueueSpace);

impl Drop for QueueSpaceWait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl QueueSpaceWait<'_> {
    fn count_reports(&self) -> u64 {
        *self.0.lock_reports()
    }

    /// Waits until the number of reports differs from `reports_before`. Returns false after
    /// [`QUEUE_WAIT_MAX`].
    fn wait(&self, reports_before: u64) -> bool {
        let is_same = |reports: &mut u64| *reports == reports_before;
        let waited =
            (self.0.woken).wait_timeout_while(self.0.lock_reports(), QUEUE_WAIT_MAX, is_same);
        let (_reports, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        !waited.timed_out()
    }
}

/// A record with its group.
type GroupedRecord<'a> = BaseRecord<'a, [u8], [u8], Arc<RecordGroup>>;

/// The records of one call and one partition.
#[derive(Debug)]
struct RecordGroup {
    call: Arc<AppendCall>,
    /// The smallest offset reported so far. It becomes that of the first record, because records of
    /// a group keep their order.
    first_offset: AtomicI64,
}

/// The progress of one call of [`Appender::append`].
#[derive(Debug, Default)]
struct AppendCall {
    /// Records without a delivery report.
    unreported: AtomicUsize,
    error: Mutex<Option<KafkaError>>,
    woken: Condvar,
}

impl AppendCall {
    fn record_error(&self, error: &KafkaError) {
        self.lock_error().get_or_insert_with(|| error.clone());
    }

    fn record_report(&self) {
        if self.unreported.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The lock prevents a lost wake-up: a waiting call either sees the last report or is
            // woken by it.
            let _error = self.lock_error();
            self.woken.notify_all();
        }
    }

    fn lock_error(&self) -> MutexGuard<'_, Option<KafkaError>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all records are reported. Returns false if the deadline passes first.
    fn wait_until(&self, deadline: Instant) -> bool {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let is_incomplete =
            |_: &mut Option<KafkaError>| self.unreported.load(Ordering::Acquire) > 0;
        let waited = (self.woken).wait_timeout_while(self.lock_error(), remaining, is_incomplete);
        let (_error, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        !waited.timed_out()
    }
}

impl Appender {
    pub(super) const fn new(cluster: Arc<Cluster>) -> Self {
        Self {
            cluster,
            producer: Mutex::new(None),
        }
    }

    /// Returns the producer. Creates one at the first call, and replaces one that had a fatal
    /// error.
    fn current_producer(&self, operation: &str) -> Result<Arc<ProducerHandle>> {
        let mut current = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = current.as_ref()
            && let Some(producer) = &handle.producer
        {
            let Some((code, reason)) = producer.client().fatal_error() else {
                return Ok(Arc::clone(handle));
            };
            tracing::warn!(%code, reason, "the Kafka producer failed; replacing it");
        }
        self.cluster.wait_for_closing_clients(operation)?;
        let timeout_ms = self.cluster.options.delivery_timeout_ms.max(1);
        let mut config = self.cluster.build_config();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("compression.type", "lz4")
            // Callers append many records at once and wait for them, so lingering would only add
            // latency.
            .set("linger.ms", "1")
            .set("batch.size", (1 << 20).to_string())
            .set("delivery.timeout.ms", timeout_ms.to_string())
            .set(
                "queue.buffering.max.messages",
                QUEUE_RECORDS_MAX.to_string(),
            )
            .set("queue.buffering.max.kbytes", QUEUE_KIB_MAX.to_string());
        let queue_space = Arc::<QueueSpace>::default();
        let producer = config
            .create_with_context(DeliveryCallbacks {
                client: self.cluster.callbacks(),
                queue_space: Arc::clone(&queue_space),
            })
            .map_err(|error| self.cluster.classify_error(operation, &error))?;
        let handle = Arc::new(ProducerHandle {
            cluster: Arc::clone(&self.cluster),
            producer: Some(producer),
            queue_space,
        });
        *current = Some(Arc::clone(&handle));
        Ok(handle)
    }

    /// Appends records, and returns the offset of the first record of each group, or `None` for an
    /// empty group.
    pub(super) fn append(&self, topic: &str, groups: &[NewRecords]) -> Result<Vec<Option<Offset>>> {
        let operation = format!("appending to {topic}");
        let handle = self.current_producer(&operation)?;
        let Some(producer) = &handle.producer else {
            let reason = "the producer was closed";
            return Err(self.cluster.unavailable(&operation, reason));
        };
        let deadline = Instant::now() + self.cluster.options.delivery_timeout() + REPORT_GRACE;
        let call = Arc::new(AppendCall::default());
        let sender = RecordSender {
            cluster: &self.cluster,
            producer,
            queue_space: &handle.queue_space,
            call: &call,
            operation: &operation,
            deadline,
        };
        let mut sent_groups = Vec::with_capacity(groups.len());
        for records in groups {
            let group = Arc::new(RecordGroup {
                call: Arc::clone(&call),
                first_offset: AtomicI64::new(Offset::MAX),
            });
            for index in 0..records.values.len() {
                let record = to_record(topic, records, index, &group)
                    .map_err(|error| Error::Refused(format!("{operation}: {error}")))?;
                sender.send(record)?;
            }
            sent_groups.push(group);
        }
        if !call.wait_until(deadline) {
            let reason = "the client reported no result before the deadline";
            return Err(self.cluster.unavailable(&operation, reason));
        }
        if let Some(error) = &*call.lock_error() {
            return Err(self.cluster.classify_error(&operation, error));
        }
        let first_offset = |group: Arc<RecordGroup>| {
            let offset = group.first_offset.load(Ordering::Relaxed);
            (offset != Offset::MAX).then_some(offset)
        };
        Ok(sent_groups.into_iter().map(first_offset).collect())
    }
}

/// Sends the records of one call.
struct RecordSender<'a> {
    cluster: &'a Cluster,
    producer: &'a ThreadedProducer<DeliveryCallbacks>,
    queue_space: &'a QueueSpace,
    call: &'a AppendCall,
    operation: &'a str,
    deadline: Instant,
}

impl RecordSender<'_> {
    /// Adds a record to the producer's queue. Waits while the queue is full.
    fn send(&self, mut record: GroupedRecord<'_>) -> Result<()> {
        let mut has_refreshed = false;
        let mut waiting = None::<QueueSpaceWait<'_>>;
        loop {
            // Read before the attempt, so that a report during it is not missed.
            let reports_before = waiting.as_ref().map(QueueSpaceWait::count_reports);
            // Counted before the attempt, because the report may arrive immediately.
            self.call.unreported.fetch_add(1, Ordering::Relaxed);
            let (error, returned_record) = match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err(rejected) => rejected,
            };
            self.call.unreported.fetch_sub(1, Ordering::Relaxed);
            record = returned_record;
            match error.rdkafka_error_code() {
                Some(Code::QueueFull) if Instant::now() < self.deadline => {}
                // The partition was added after the producer last read metadata.
                Some(Code::UnknownPartition) if !has_refreshed => {
                    has_refreshed = true;
                    let timeout = self.cluster.options.request_timeout();
                    let client = self.producer.client();
                    let refreshed = client.fetch_metadata(Some(record.topic), timeout);
                    refreshed.map_err(|error| self.classify_error(&error))?;
                    continue;
                }
                _ => return Err(self.classify_error(&error)),
            }
            if let Some(error) = &*self.call.lock_error() {
                return Err(self.classify_error(error));
            }
            metrics::counter!("backstitch_kafka_queue_full_total").increment(1);
            if let (Some(waiting), Some(reports_before)) = (&waiting, reports_before) {
                waiting.wait(reports_before);
            } else {
                waiting = Some(self.queue_space.start_wait());
            }
        }
    }

    fn classify_error(&self, error: &KafkaError) -> Error {
        self.cluster.classify_error(self.operation, error)
    }
}

fn to_record<'a>(
    topic: &'a str,
    records: &'a NewRecords,
    index: usize,
    group: &Arc<RecordGroup>,
) -> std::result::Result<GroupedRecord<'a>, TryFromIntError> {
    let partition = i32::try_from(records.partition)?;
    let mut record = BaseRecord::with_opaque_to(topic, Arc::clone(group))
        .partition(partition)
        .key(records.keys.value(index))
        .payload(records.values.value(index));
    if let Some(new_headers) = records.headers.get(index) {
        let mut headers = OwnedHeaders::new_with_capacity(new_headers.len());
        for (key, value) in new_headers {
            headers = headers.insert(Header {
                key,
                value: Some(value.as_slice()),
            });
        }
        record = record.headers(headers);
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that misses the wake-up of its last report would wait until its deadline.
    #[test]
    fn last_report_wakes_the_call() {
        let (start, limit) = (Instant::now(), Duration::from_secs(60));
        let (sender, calls) = std::sync::mpsc::sync_channel::<Arc<AppendCall>>(0);
        let reporter = std::thread::spawn(move || {
            calls.iter().for_each(|call| call.record_report());
        });
        for _ in 0..20_000 {
            let call = Arc::new(AppendCall::default());
            call.unreported.store(1, Ordering::Relaxed);
            sender.send(Arc::clone(&call)).expect("a reporter");
            assert!(call.wait_until(start + 2 * limit));
        }
        drop(sender);
        reporter.join().expect("a reporter");
        assert!(start.elapsed() < limit, "a call missed a wake-up");
    }

    #[test]
    fn call_without_all_reports_ends_at_its_deadline() {
        let call = AppendCall::default();
        call.unreported.store(2, Ordering::Relaxed);
        call.record_report();
        assert!(!call.wait_until(Instant::now()));
        call.record_report();
        assert!(call.wait_until(Instant::now()));
    }

    /// Reports of other calls free queue space, too, also if they arrive before the wait.
    #[test]
    fn report_of_any_call_wakes_calls_that_wait_for_queue_space() {
        let queue_space = QueueSpace::default();
        queue_space.record_report();
        let waiting = queue_space.start_wait();
        let reports_before = waiting.count_reports();
        assert!(!waiting.wait(reports_before), "no report arrived since");
        queue_space.record_report();
        assert!(waiting.wait(reports_before));
        drop(waiting);
        queue_space.record_report();
        assert_eq!(*queue_space.lock_reports(), 1, "no call waits");
    }
}
