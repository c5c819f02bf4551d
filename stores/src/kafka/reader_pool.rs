//! Idle consumers, reused between fetches.
//!
//! A fetch that continues where an earlier one ended reuses that consumer and its prefetched
//! records. Other fetches get a new consumer. Consumers that stay unused are closed.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdkafka::consumer::BaseConsumer;
use schemas::seam::Offset;

use super::cluster::{ClientCallbacks, drain_events};
use super::reader::{Partition, Reader};

/// Upper limit of idle readers of one partition, which several callers may read.
const IDLE_PER_PARTITION_MAX: usize = 2;
/// Idle readers are closed after this time, because their prefetched records may belong to a topic
/// that was recreated since.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// A reader without a caller.
#[derive(Debug)]
struct IdleReader {
    since: Instant,
    reader: Reader,
}

/// Idle readers, the longest idle first.
#[derive(Debug)]
pub(super) struct ReaderPool {
    idle: Arc<Mutex<Vec<IdleReader>>>,
    /// The last known ends of partitions.
    ends: Mutex<HashMap<Partition, Offset>>,
    readers_max: usize,
    /// Dropping it ends the maintenance thread.
    _stop: SyncSender<()>,
}

impl ReaderPool {
    /// Starts a thread that closes idle readers. The thread also drains the events of
    /// `metadata_client`, which nothing else polls regularly.
    pub(super) fn new(
        readers_max: usize,
        metadata_client: Weak<BaseConsumer<ClientCallbacks>>,
    ) -> std::io::Result<Self> {
        let idle = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = sync_channel(0);
        let maintained = Arc::downgrade(&idle);
        let thread = std::thread::Builder::new().name("kafka-readers".to_owned());
        thread.spawn(move || {
            while stopped.recv_timeout(MAINTENANCE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if let Some(client) = metadata_client.upgrade() {
                    drain_events(&client);
                }
                if let Some(idle) = maintained.upgrade() {
                    close_expired(&idle);
                }
            }
        })?;
        Ok(Self {
            idle,
            ends: Mutex::default(),
            readers_max: readers_max.max(1),
            _stop: stop,
        })
    }

    /// Removes and returns an idle reader whose next offset is `from`.
    pub(super) fn take(&self, partition: &Partition, from: Offset) -> Option<Reader> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let is_match = |IdleReader { reader, .. }: &IdleReader| {
            reader.next_offset == from && reader.partition == *partition
        };
        let index = idle.iter().position(is_match)?;
        let IdleReader { since, reader } = idle.remove(index);
        (since.elapsed() < IDLE_TIMEOUT).then_some(reader)
    }

    /// Adds an idle reader. Closes the longest idle one if the partition or the pool then has too
    /// many.
    pub(super) fn put_back(&self, reader: Reader) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let partition = reader.partition.clone();
        let since = Instant::now();
        idle.push(IdleReader { since, reader });
        let reads_partition = |idle: &IdleReader| idle.reader.partition == partition;
        let count = idle.iter().filter(|reader| reads_partition(reader)).count();
        if count > IDLE_PER_PARTITION_MAX
            && let Some(index) = idle.iter().position(reads_partition)
        {
            idle.remove(index);
        }
        if idle.len() > self.readers_max {
            idle.remove(0);
        }
    }

    /// Records the end of a partition. Returns false if the end decreased: the topic was recreated,
    /// or records were lost. Then the idle readers of the topic are closed.
    pub(super) fn record_end(&self, partition: &Partition, end: Offset) -> bool {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        match ends.insert(partition.clone(), end) {
            Some(previous_end) if previous_end > end => {
                drop(ends);
                self.close_topic(&partition.topic);
                false
            }
            _ => true,
        }
    }

    /// Closes the idle readers of a topic.
    pub(super) fn close_topic(&self, topic: &str) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.reader.partition.topic != topic);
    }
}

fn close_expired(idle: &Mutex<Vec<IdleReader>>) {
    let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
    idle.retain(|reader| reader.since.elapsed() < IDLE_TIMEOUT);
}
