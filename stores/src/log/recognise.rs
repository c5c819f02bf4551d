//! Whether a log is still the one that was read before.
//!
//! A topic may be deleted and made again under the same name, or a log be lost: then offsets mean other
//! records. What shows it is a record that was read: its offset, its checksum, and when it was
//! appended.

use schemas::seam::{LastRecord, Offset};

use super::LogRead;
use crate::{Error, Result};

/// What helps where a log was lost. Live state, archive and views are made of it, so they all have to be
/// others.
pub const LOST_REMEDY: &str = "Restore the log (on Kafka, the topic). Or begin anew and ingest again: with another namespace for what is on servers, and an empty data folder for what is not";

/// The log is not the one that was read before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OtherLog {
    /// It does not reach to where it was read.
    #[error(
        "the log ends at {end}, before the record at offset {offset} that was read: records were lost, or the topic was made again"
    )]
    Shorter {
        /// The record that was read last.
        offset: Offset,
        /// Where the log ends.
        end: Offset,
    },
    /// It holds another record where it was read, or none.
    #[error("the record at offset {offset} is not the one that was read: the topic was made again")]
    Replaced {
        /// The record that was read last.
        offset: Offset,
    },
}

/// Looks whether a partition still holds the record that was read last. One that is old enough to
/// be gone from the log shows nothing.
///
/// # Errors
/// Those of the log.
pub async fn recognise(
    log: &dyn LogRead,
    topic: &str,
    partition: u32,
    last: LastRecord,
) -> Result<std::result::Result<(), OtherLog>> {
    let offset = last.offset;
    let fetched = match log.fetch_afresh(topic, partition, offset).await {
        Ok(fetched) => fetched,
        Err(Error::OffsetOutOfRange { asked, start, .. }) if asked < start => return Ok(Ok(())),
        Err(Error::OffsetOutOfRange { end, .. }) => {
            return Ok(Err(OtherLog::Shorter { offset, end }));
        }
        Err(error) => return Err(error),
    };
    Ok(match fetched.records.offsets.values().first() {
        None => Err(OtherLog::Shorter {
            offset,
            end: fetched.end,
        }),
        Some(_) if fetched.records.at(0) == last => Ok(()),
        Some(_) => Err(OtherLog::Replaced { offset }),
    })
}

/// Recognises the log of one partition again and again, at the cost of one look at its index.
///
/// A log that was lost does not come back. So if the log is recognised *after* records were fetched, by
/// one that was read before, they are all of the same log, whatever was read ahead and whenever.
#[derive(Debug, Default)]
pub struct Recogniser {
    known: Option<Moment>,
}

/// A moment in the log that is recognised, and the first record since. Records are only appended, so
/// this record stays the first one; in a log that was made since, another one is, as good as
/// certainly its very first.
#[derive(Debug, Clone, Copy)]
struct Moment {
    logged_at_ms: i64,
    first: Offset,
}

impl Recogniser {
    /// Looks whether the partition still holds what was read of it up to `last`: by the moment that
    /// was looked up before, else by that record itself, as [`recognise`] does.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn recognise(
        &mut self,
        log: &dyn LogRead,
        topic: &str,
        partition: u32,
        last: LastRecord,
    ) -> Result<std::result::Result<(), OtherLog>> {
        let first_at = |ms| log.offset_at(topic, partition, ms);
        if let Some(Moment {
            logged_at_ms,
            first,
        }) = self.known
            && first_at(logged_at_ms).await? == first
        {
            return Ok(Ok(()));
        }
        // First the moment, then the record: so the moment is of the log that is recognised.
        let first = first_at(last.logged_at_ms).await?;
        let found = recognise(log, topic, partition, last).await?;
        // A log that begins with the moment can't be told from one that was made since.
        self.known = (found.is_ok() && first > 0).then_some(Moment {
            logged_at_ms: last.logged_at_ms,
            first,
        });
        Ok(found)
    }
}

#[cfg(test)]
#[path = "recognise_tests.rs"]
mod tests;
