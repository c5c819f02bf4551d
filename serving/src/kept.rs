//! Readings that were answered, kept for when a store does not answer: such an answer is exact for the
//! position that it names, and says that it is not complete.

use std::time::Duration;

use moka::sync::Cache;
use stores::ErrorKind;

use crate::ServingOptions;
use crate::read::{ReadError, Standing};

/// What an entry takes besides what is in it, in bytes, about.
const ENTRY_BYTES: usize = 256;
/// A reading of more bytes than this is not kept: it would displace all others.
const READING_BYTES_MAX: usize = 1 << 20;

/// What can be kept.
pub(crate) trait Keep: Clone + Send + Sync + 'static {
    /// How far it reaches.
    fn standing(&mut self) -> &mut Standing;

    /// How much memory it takes, in bytes, about.
    fn bytes(&self) -> usize;
}

/// Readings by question.
#[derive(Debug)]
pub(crate) struct Kept<T: Keep> {
    readings: Cache<u128, T>,
}

impl<T: Keep> Kept<T> {
    pub(crate) fn new(options: &ServingOptions) -> Self {
        let weight = |_: &u128, reading: &T| {
            u32::try_from(reading.bytes() + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let readings = Cache::builder()
            .max_capacity(options.kept_bytes_max)
            .weigher(weight)
            .time_to_live(Duration::from_millis(options.kept_for_ms))
            .build();
        Self { readings }
    }

    /// What was read, which is kept under the hash of its question; or what was kept, where a store did not answer.
    pub(crate) fn or_kept(&self, key: u128, read: Result<T, ReadError>) -> Result<T, ReadError> {
        match read {
            Ok(reading) => {
                if reading.bytes() <= READING_BYTES_MAX {
                    self.readings.insert(key, reading.clone());
                }
                Ok(reading)
            }
            Err(ReadError::Store(error)) if error.kind() == ErrorKind::Retry => {
                let Some(mut reading) = self.readings.get(&key) else {
                    return Err(ReadError::Store(error));
                };
                tracing::warn!(%error, "an earlier answer is given again");
                metrics::counter!("backstitch_serving_kept_answers_total").increment(1);
                reading.standing().complete = false;
                Ok(reading)
            }
            Err(error) => Err(error),
        }
    }
}
