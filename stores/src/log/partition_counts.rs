//! The number of partitions of topics, for writers of keyed records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::LogWrite;
use crate::Result;

/// The lifetime of a cached number. New partitions change the partition of keys. Records with an
/// outdated partition only cost work: readers detect them.
const CACHE_TTL: Duration = Duration::from_secs(2);

/// The cached number of partitions of topics.
#[derive(Debug, Clone)]
pub struct PartitionCounts {
    log: Arc<dyn LogWrite>,
    new_topic_partitions: u32,
    /// By topic, the number and the time of the lookup.
    cache: Arc<Mutex<BTreeMap<&'static str, (u32, Instant)>>>,
}

impl PartitionCounts {
    /// Missing topics are created with this number of partitions.
    #[must_use]
    pub fn new(log: Arc<dyn LogWrite>, new_topic_partitions: u32) -> Self {
        Self {
            log,
            new_topic_partitions,
            cache: Arc::default(),
        }
    }

    /// The number of partitions of a topic, which is created if it does not exist.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn count(&self, topic: &'static str) -> Result<u32> {
        let mut cache = self.cache.lock().await;
        if let Some((partitions, read_at)) = cache.get(topic)
            && read_at.elapsed() < CACHE_TTL
        {
            return Ok(*partitions);
        }
        let partitions = self
            .log
            .ensure_topic(topic, self.new_topic_partitions)
            .await?;
        cache.insert(topic, (partitions, Instant::now()));
        Ok(partitions)
    }
}
