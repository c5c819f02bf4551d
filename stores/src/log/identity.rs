//! Verifies the identity of a log.
//!
//! A topic may be deleted and recreated with the same name, or a log may be lost. Then offsets
//! denote other records. A record that was read before is the evidence: its offset, its checksum,
//! and the time of its append.

use schemas::seam::{LastRecord, Offset};

use super::LogRead;
use crate::{Error, Result};

/// The remedy for a lost log. Live state, archive and views are derived from it, so all of them
/// must be rebuilt.
pub const LOST_REMEDY: &str = "Restore the log (on Kafka, the topic). Or start over and ingest all data again, with another namespace for stores on servers, and an empty data folder for embedded stores";

/// The log is not the one that was read before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogIdentityError {
    /// The log ends before the last offset that was read.
    #[error(
        "the log ends at offset {end}, before the record at offset {offset} that was read earlier: records were lost, or the topic was recreated"
    )]
    Shorter {
        /// The offset of the record that was read last.
        offset: Offset,
        /// The end of the log.
        end: Offset,
    },
    /// The log has another record at the last offset that was read, or none.
    #[error(
        "the record at offset {offset} differs from the one that was read earlier: the topic was recreated"
    )]
    Replaced {
        /// The offset of the record that was read last.
        offset: Offset,
    },
}

/// Checks whether a partition still contains the record that was read last. A record that may have
/// expired proves nothing.
///
/// # Errors
/// Those of the log.
pub async fn verify_log_identity(
    log: &dyn LogRead,
    topic: &str,
    partition: u32,
    last: LastRecord,
) -> Result<std::result::Result<(), LogIdentityError>> {
    let offset = last.offset;
    let fetched = match log.fetch_fresh(topic, partition, offset).await {
        Ok(fetched) => fetched,
        Err(Error::OffsetOutOfRange {
            requested, start, ..
        }) if requested < start => return Ok(Ok(())),
        Err(Error::OffsetOutOfRange { end, .. }) => {
            return Ok(Err(LogIdentityError::Shorter { offset, end }));
        }
        Err(error) => return Err(error),
    };
    Ok(match fetched.records.offsets.values().first() {
        None => Err(LogIdentityError::Shorter {
            offset,
            end: fetched.end,
        }),
        Some(_) if fetched.records.record_at(0) == last => Ok(()),
        Some(_) => Err(LogIdentityError::Replaced { offset }),
    })
}

/// Verifies the log of one partition repeatedly, at the cost of one lookup in its index.
///
/// A lost log does not come back. So if the log is verified *after* records were fetched, by a
/// record that was read before, all of them are of the same log, even if they were read ahead.
#[derive(Debug, Default)]
pub struct LogIdentityVerifier {
    known: Option<KnownPosition>,
}

/// A time in the verified log, and the first record since then. Records are only appended, so it
/// stays the first one. In a recreated log another record is the first one, almost certainly the
/// first of the log.
#[derive(Debug, Clone, Copy)]
struct KnownPosition {
    logged_at_ms: i64,
    first: Offset,
}

impl LogIdentityVerifier {
    /// Checks whether the partition still contains the records up to `last`: by the time of the
    /// last lookup, otherwise by that record itself, like [`verify_log_identity`].
    ///
    /// # Errors
    /// Those of the log.
    pub async fn verify(
        &mut self,
        log: &dyn LogRead,
        topic: &str,
        partition: u32,
        last: LastRecord,
    ) -> Result<std::result::Result<(), LogIdentityError>> {
        let find_first_offset = |ms| log.offset_at(topic, partition, ms);
        if let Some(KnownPosition {
            logged_at_ms,
            first,
        }) = self.known
            && find_first_offset(logged_at_ms).await? == first
        {
            return Ok(Ok(()));
        }
        // Looks up the time first, then the record, so that the time belongs to the verified log.
        let first = find_first_offset(last.logged_at_ms).await?;
        let verified = verify_log_identity(log, topic, partition, last).await?;
        // A log that begins at this time can't be distinguished from a recreated one.
        self.known = (verified.is_ok() && first > 0).then_some(KnownPosition {
            logged_at_ms: last.logged_at_ms,
            first,
        });
        Ok(verified)
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
