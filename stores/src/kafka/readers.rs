//! The consumers that are kept between fetches.
//!
//! Who reads on where it stopped is given the consumer that it had, with what that has fetched ahead;
//! who asks elsewhere is given a new one. Those that nobody asks for any more are closed.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdkafka::consumer::BaseConsumer;
use schemas::seam::Offset;

use super::cluster::{Ear, listen};
use super::reader::{Partition, Reader};

/// Kept for one partition, at most: several may read it.
const OF_PARTITION_MAX: usize = 2;
/// Closed if not asked for so long: what it has fetched ahead may be of a topic that was made again
/// since.
const IDLE_MAX: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_secs(1);

/// Readers at rest, the one that rests longest first.
#[derive(Debug)]
pub(super) struct Readers {
    resting: Arc<Mutex<Vec<(Instant, Reader)>>>,
    /// Where partitions ended when they were looked at last.
    ends: Mutex<HashMap<Partition, Offset>>,
    readers_max: usize,
    /// Its end ends the thread that looks after them.
    _until: SyncSender<()>,
}

impl Readers {
    /// Also listens to `asker`, which nobody polls.
    pub(super) fn new(readers_max: usize, asker: Weak<BaseConsumer<Ear>>) -> std::io::Result<Self> {
        let resting = Arc::new(Mutex::new(Vec::new()));
        let (until, ended) = sync_channel(0);
        let kept = Arc::downgrade(&resting);
        let keeper = std::thread::Builder::new().name("kafka-keeper".to_owned());
        keeper.spawn(move || {
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if let Some(asker) = asker.upgrade() {
                    listen(&asker);
                }
                if let Some(kept) = kept.upgrade() {
                    close_idle(&kept);
                }
            }
        })?;
        Ok(Self {
            resting,
            ends: Mutex::default(),
            readers_max: readers_max.max(1),
            _until: until,
        })
    }

    /// The reader that goes on at `from`.
    pub(super) fn take(&self, partition: &Partition, from: Offset) -> Option<Reader> {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it =
            |(_, reader): &(_, Reader)| reader.next == from && reader.partition == *partition;
        let index = resting.iter().position(is_it)?;
        let (since, reader) = resting.remove(index);
        (since.elapsed() < IDLE_MAX).then_some(reader)
    }

    /// Keeps a reader, perhaps in the place of others.
    pub(super) fn keep(&self, reader: Reader) {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let partition = reader.partition.clone();
        resting.push((Instant::now(), reader));
        let of_it = |(_, reader): &(_, Reader)| reader.partition == partition;
        if resting.iter().filter(|kept| of_it(kept)).count() > OF_PARTITION_MAX
            && let Some(index) = resting.iter().position(of_it)
        {
            resting.remove(index);
        }
        if resting.len() > self.readers_max {
            resting.remove(0);
        }
    }

    /// Notes where a partition ends; answers false if that was further on before. Then the topic was
    /// made again, or records were lost, and whoever reads it reads something else.
    pub(super) fn goes_on(&self, partition: &Partition, end: Offset) -> bool {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        match ends.insert(partition.clone(), end) {
            Some(before) if before > end => {
                drop(ends);
                self.forget(&partition.topic);
                false
            }
            _ => true,
        }
    }

    /// Gives up those of a topic.
    pub(super) fn forget(&self, topic: &str) {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.retain(|(_, reader)| reader.partition.topic != topic);
    }
}

fn close_idle(resting: &Mutex<Vec<(Instant, Reader)>>) {
    let mut resting = resting.lock().unwrap_or_else(PoisonError::into_inner);
    resting.retain(|(since, _)| since.elapsed() < IDLE_MAX);
}
