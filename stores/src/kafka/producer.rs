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
/// How long a wait for room lasts at most: the client frees the room of a record just after its report.
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
    room: Arc<Room>,
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
struct Courier {
    ear: Ear,
    room: Arc<Room>,
}

impl ClientContext for Courier {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.ear.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.ear.error(error, reason);
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
        self.room.reported();
    }
}

/// Wakes calls that wait until the client has room for another record, whosever records go.
#[derive(Debug, Default)]
struct Room {
    waiting: AtomicUsize,
    /// Reports that came while a call waited.
    reports: Mutex<u64>,
    woken: Condvar,
}

impl Room {
    fn reported(&self) {
        // Reports come for each record, and a call seldom waits.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            *self.reports() += 1;
            self.woken.notify_all();
        }
    }

    fn reports(&self) -> MutexGuard<'_, u64> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on reports are counted.
    fn enter(&self) -> RoomWait<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        RoomWait(self)
    }
}

/// A call that waits for room.
struct RoomWait<'a>(&'a Room);

impl Drop for RoomWait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RoomWait<'_> {
    fn reports(&self) -> u64 {
        *self.0.reports()
    }

    /// Waits a little until more reports came than `before`; false if none did.
    fn wait(&self, before: u64) -> bool {
        let is_same = |reports: &mut u64| *reports == before;
        let waited = self
            .0
            .woken
            .wait_timeout_while(self.0.reports(), LOOK, is_same);
        let (_reports, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        !waited.timed_out()
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
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            // With the lock: a call that waits has either seen the last report or is woken by it.
            let _error = self.error();
            self.woken.notify_all();
        }
    }

    fn error(&self) -> MutexGuard<'_, Option<KafkaError>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all records are reported; false if they are not by then.
    fn wait_until(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let is_open = |_: &mut Option<KafkaError>| self.open.load(Ordering::Acquire) > 0;
        let waited = self.woken.wait_timeout_while(self.error(), left, is_open);
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
        let room = Arc::<Room>::default();
        let producer = config
            .create_with_context(Courier {
                ear: self.cluster.ear(),
                room: Arc::clone(&room),
            })
            .map_err(|error| self.cluster.fault(doing, &error))?;
        let sending = Arc::new(Sending {
            cluster: Arc::clone(&self.cluster),
            producer: Some(producer),
            room,
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
                self.send((&doing, deadline), (producer, &sending.room), record, &call)?;
            }
            firsts.push(group);
        }
        if !call.wait_until(deadline) {
            let why = "no report of what was appended";
            return Err(self.cluster.unavailable(&doing, why));
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
        (doing, deadline): (&str, Instant),
        (producer, room): (&ThreadedProducer<Courier>, &Room),
        mut record: Record<'_>,
        call: &Call,
    ) -> Result<()> {
        let (mut has_looked, mut waiting) = (false, None::<RoomWait<'_>>);
        loop {
            // Before the try: a report that comes during it is not missed.
            let before = waiting.as_ref().map(RoomWait::reports);
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
            if let (Some(waiting), Some(before)) = (&waiting, before) {
                waiting.wait(before);
            } else {
                waiting = Some(room.enter());
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that misses the wake-up of its last report waits until its deadline.
    #[test]
    fn the_last_report_wakes_a_call() {
        let (begun, deadline) = (Instant::now(), Duration::from_secs(60));
        let (send, calls) = std::sync::mpsc::sync_channel::<Arc<Call>>(0);
        let reporter = std::thread::spawn(move || calls.iter().for_each(|call| call.reported()));
        for _ in 0..20_000 {
            let call = Arc::new(Call::default());
            call.open.store(1, Ordering::Relaxed);
            send.send(Arc::clone(&call)).expect("a reporter");
            assert!(call.wait_until(begun + 2 * deadline));
        }
        drop(send);
        reporter.join().expect("a reporter");
        assert!(begun.elapsed() < deadline, "a wake-up was missed");
    }

    #[test]
    fn a_call_without_its_last_report_ends_at_its_deadline() {
        let call = Call::default();
        call.open.store(2, Ordering::Relaxed);
        call.reported();
        assert!(!call.wait_until(Instant::now()));
        call.reported();
        assert!(call.wait_until(Instant::now()));
    }

    /// Reports of other calls make room, too, also those that come before the wait.
    #[test]
    fn a_report_of_any_call_wakes_those_that_wait_for_room() {
        let room = Room::default();
        room.reported();
        let waiting = room.enter();
        let before = waiting.reports();
        assert!(!waiting.wait(before), "none came since");
        room.reported();
        assert!(waiting.wait(before));
        drop(waiting);
        room.reported();
        assert_eq!(*room.reports(), 1, "nobody waits");
    }
}
