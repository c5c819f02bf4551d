//! How many partitions topics have, for those who write keys into them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::LogWrite;
use crate::Result;

/// How long it is believed how many there are: some may be added, and then keys have other places.
/// Whoever writes keys by an old count only makes work: readers find such records.
const BELIEVED_FOR: Duration = Duration::from_secs(2);

/// How many partitions topics have, as it was a moment ago.
#[derive(Debug, Clone)]
pub struct Partitions {
    log: Arc<dyn LogWrite>,
    of_new: u32,
    /// By topic: how many it has, and when that was asked.
    known: Arc<Mutex<BTreeMap<&'static str, (u32, Instant)>>>,
}

impl Partitions {
    /// Makes topics that are not there with `of_new` partitions.
    #[must_use]
    pub fn new(log: Arc<dyn LogWrite>, of_new: u32) -> Self {
        Self {
            log,
            of_new,
            known: Arc::default(),
        }
    }

    /// How many partitions a topic has; it is made if it is not there.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn of(&self, topic: &'static str) -> Result<u32> {
        let mut known = self.known.lock().await;
        if let Some((partitions, asked)) = known.get(topic)
            && asked.elapsed() < BELIEVED_FOR
        {
            return Ok(*partitions);
        }
        let partitions = self.log.ensure_topic(topic, self.of_new).await?;
        known.insert(topic, (partitions, Instant::now()));
        Ok(partitions)
    }
}
