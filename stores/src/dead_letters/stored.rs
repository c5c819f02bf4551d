//! A dead letter with its position in the log.

use schemas::dead_letter::{DeadLetter, DeadLetterId};

use crate::log::{FetchLimit, FetchedRecords, LogRead};
use crate::{Error, Result};

/// A dead letter in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDeadLetter {
    /// Its position in the log, which is its id.
    pub id: DeadLetterId,
    /// When it was appended, in milliseconds since the Unix epoch, by the clock of the log if it
    /// has one.
    pub logged_at_ms: i64,
    /// The content. For a record that is not a dead letter, it says so, and has the record's bytes,
    /// position and time.
    pub content: DeadLetter,
    /// True if the record is not a dead letter.
    pub is_broken: bool,
}

impl StoredDeadLetter {
    /// Reads a record.
    fn parse(id: DeadLetterId, logged_at_ms: i64, value: &[u8]) -> Self {
        let parsed = serde_json::from_slice(value);
        let is_broken = parsed.is_err();
        let content = parsed.unwrap_or_else(|error| DeadLetter {
            source: id.source.name().to_owned(),
            reason: format!(
                "the record is not a dead letter ({error}): check which other program writes to {}",
                id.source.dead_letter_topic()
            ),
            origin: id.to_string(),
            at_ms: logged_at_ms,
            raw: value.to_vec(),
        });
        Self {
            id,
            logged_at_ms,
            content,
            is_broken,
        }
    }

    /// The bytes of its texts and content in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let content = &self.content;
        content.raw.len() + content.reason.len() + content.origin.len()
    }

    /// The dead letters of a fetch before the offset `end`; `first` names the partition.
    pub(super) fn from_fetch(fetched: &FetchedRecords, first: DeadLetterId, end: i64) -> Vec<Self> {
        let records = &fetched.records;
        let positions = records.offsets.values().iter();
        let positions = positions.zip(records.logged_at_ms.values());
        positions
            .zip(&records.values)
            .take_while(|((offset, _), _)| **offset < end)
            .map(|((offset, logged_at_ms), value)| {
                let id = DeadLetterId {
                    offset: *offset,
                    ..first
                };
                Self::parse(id, *logged_at_ms, value.unwrap_or_default())
            })
            .collect()
    }
}

/// Reads the dead letter with an id, if it exists.
///
/// # Errors
/// Those of the log.
pub async fn find(log: &dyn LogRead, id: DeadLetterId) -> Result<Option<StoredDeadLetter>> {
    let single_record = FetchLimit {
        records: 1,
        bytes: usize::MAX,
    };
    let topic = id.source.dead_letter_topic();
    let fetched = match log
        .fetch_once(topic, id.partition, id.offset, single_record)
        .await
    {
        Err(Error::OffsetOutOfRange { .. } | Error::NoPartition { .. }) => return Ok(None),
        fetched => fetched?,
    };
    // In a gap, the fetch returns a later record.
    let end = id.offset.saturating_add(1);
    Ok(StoredDeadLetter::from_fetch(&fetched, id, end).pop())
}
