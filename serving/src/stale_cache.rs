//! Cache of earlier readings for the time when a store is unavailable. A stale answer is exact for
//! the position that it names, and is marked as incomplete.

use std::time::Duration;

use moka::sync::Cache;
use stores::ErrorKind;

use crate::ServingOptions;
use crate::read_error::ReadError;
use crate::read_position::ReadPosition;

/// Approximate overhead of an entry, in bytes.
const ENTRY_BYTES: usize = 256;
/// Maximum size of a cached reading: larger ones would displace all others.
const READING_BYTES_MAX: usize = 1 << 20;

/// A reading that can be cached.
pub(crate) trait Cacheable: Clone + Send + Sync + 'static {
    /// The position that the reading reflects.
    fn read_position_mut(&mut self) -> &mut ReadPosition;

    /// Approximate memory, in bytes.
    fn memory_bytes(&self) -> usize;
}

/// Readings by the hash of their request.
#[derive(Debug)]
pub(crate) struct StaleCache<T: Cacheable> {
    readings: Cache<u128, T>,
}

impl<T: Cacheable> StaleCache<T> {
    pub(crate) fn new(options: &ServingOptions) -> Self {
        let weight = |_: &u128, reading: &T| {
            u32::try_from(reading.memory_bytes() + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let readings = Cache::builder()
            .max_capacity(options.kept_bytes_max)
            .weigher(weight)
            .time_to_live(Duration::from_millis(options.kept_for_ms))
            .build();
        Self { readings }
    }

    /// Returns `read` and caches it; returns the cached reading instead if a store was unavailable.
    pub(crate) fn or_stale(&self, key: u128, read: Result<T, ReadError>) -> Result<T, ReadError> {
        match read {
            Ok(reading) => {
                if reading.memory_bytes() <= READING_BYTES_MAX {
                    self.readings.insert(key, reading.clone());
                }
                Ok(reading)
            }
            Err(ReadError::Store(error)) if error.kind() == ErrorKind::Retry => {
                let Some(mut reading) = self.readings.get(&key) else {
                    return Err(ReadError::Store(error));
                };
                tracing::warn!(%error, "a store is unavailable; the answer is an earlier reading");
                metrics::counter!("backstitch_serving_kept_answers_total").increment(1);
                reading.read_position_mut().complete = false;
                Ok(reading)
            }
            Err(error) => Err(error),
        }
    }
}
