//! One dead letter, by its place in the log.

use schemas::dead_letter::{DeadLetter, LetterId};

use crate::log::{FetchLimit, Fetched, LogRead};
use crate::{Error, Result};

/// A dead letter where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Its place, by which it goes.
    pub id: LetterId,
    /// When it was appended, in milliseconds since the Unix epoch, by the clock of the log if it has one.
    pub logged_at_ms: i64,
    /// What it says. Of a record that is no dead letter: that, with the record's bytes, its place and its
    /// time.
    pub content: DeadLetter,
    /// Whether the record is no dead letter.
    pub is_broken: bool,
}

impl Letter {
    /// The letter that a record is.
    fn read(id: LetterId, logged_at_ms: i64, value: &[u8]) -> Self {
        let read = serde_json::from_slice(value);
        let is_broken = read.is_err();
        let content = read.unwrap_or_else(|error| DeadLetter {
            source: id.source.name().to_owned(),
            reason: format!(
                "this record is no dead letter ({error}): look what else writes to {}",
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

    /// How much memory it takes, in bytes, but for what every letter takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let content = &self.content;
        content.raw.len() + content.reason.len() + content.origin.len()
    }

    /// Those of a fetch that stand before `end`, where `first` says of which partition they are.
    pub(super) fn all(fetched: &Fetched, first: LetterId, end: i64) -> Vec<Self> {
        let records = &fetched.records;
        let places = records.offsets.values().iter();
        let places = places.zip(records.logged_at_ms.values());
        places
            .zip(&records.values)
            .take_while(|((offset, _), _)| **offset < end)
            .map(|((offset, logged_at_ms), value)| {
                let id = LetterId {
                    offset: *offset,
                    ..first
                };
                Self::read(id, *logged_at_ms, value.unwrap_or_default())
            })
            .collect()
    }
}

/// The dead letter of this id; none if there is none.
///
/// # Errors
/// Those of the log.
pub async fn find(log: &dyn LogRead, id: LetterId) -> Result<Option<Letter>> {
    let one = FetchLimit {
        records: 1,
        bytes: usize::MAX,
    };
    let topic = id.source.dead_letter_topic();
    let fetched = match log.fetch_apart(topic, id.partition, id.offset, one).await {
        Err(Error::OffsetOutOfRange { .. } | Error::NoPartition { .. }) => return Ok(None),
        fetched => fetched?,
    };
    // After a hole another one comes.
    let end = id.offset.saturating_add(1);
    Ok(Letter::all(&fetched, id, end).pop())
}
