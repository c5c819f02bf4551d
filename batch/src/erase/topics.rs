//! Topics that name athletes: notifications, board changes, and achievements. A log can only be
//! deleted from its beginning, so records up to the last one that names an athlete are deleted, and
//! later ones stay.

use schemas::achievement::{NotificationPosition, mentions_athlete};
use schemas::entities::Notifications;
use schemas::seam::Offset;
use schemas::source::Source;
use serde::Deserialize;
use stores::erasures::{PersonKind, SearchedPeople, may_mention_kind};
use stores::log::Records;
use stores::registry::read_writer_schemas;

use super::eraser::Eraser;
use super::topic_scan::OffsetRange;
use crate::{Error, Result};

/// The source position in a board message.
#[derive(Debug, Deserialize)]
struct BoardMessage {
    position: NotificationPosition,
}

/// The records of a topic, decoded to find athletes.
enum TopicRecords {
    /// Notifications of a source.
    Notifications(Source, Notifications),
    /// Board changes or achievements.
    Messages,
}

impl TopicRecords {
    /// Returns whether the record at an index names an athlete that satisfies `is_wanted`.
    fn mentions(&self, index: usize, record: &[u8], is_wanted: impl Fn(i64) -> bool) -> bool {
        match self {
            Self::Messages => mentions_athlete(record, is_wanted),
            Self::Notifications(source, notifications) => {
                match notifications.group(index, record) {
                    Ok(group) => is_wanted(group.member),
                    Err(_) => may_mention_kind(*source, record, PersonKind::Athlete, is_wanted),
                }
            }
        }
    }
}

impl Eraser {
    /// Counts the records of a topic that name each searched athlete.
    pub(super) async fn count_in_topic(
        &self,
        topic: &str,
        counts: &mut SearchedPeople,
    ) -> Result<()> {
        for (partition, span) in (0_u32..).zip(self.log.spans(topic).await?) {
            let range = OffsetRange {
                partition,
                start: span.start,
                end: span.end,
            };
            self.for_each_batch(topic, range, async |records: &Records| {
                let decoded = self.decode_topic(topic, records).await?;
                for (index, value) in iter_values(records).enumerate() {
                    counts
                        .count_mentions(|is_searched| decoded.mentions(index, value, is_searched));
                }
                Ok(true)
            })
            .await?;
        }
        Ok(())
    }

    /// Deletes each partition of a topic up to the last record below `end` that names such an
    /// athlete.
    pub(super) async fn trim_records_naming(
        &self,
        topic: &str,
        end: impl Fn(usize) -> Offset,
        is_wanted: impl Fn(i64) -> bool,
    ) -> Result<()> {
        let mut ends = Vec::new();
        for (partition, span) in (0_u32..).zip(self.log.spans(topic).await?) {
            let until = span.end.min(end(ends.len()));
            let range = OffsetRange {
                partition,
                start: span.start,
                end: until,
            };
            ends.push(self.find_end_of_mentions(topic, range, &is_wanted).await?);
        }
        if ends.iter().any(|end| *end > 0) {
            self.log.trim(topic, &ends).await?;
        }
        Ok(())
    }

    /// Deletes messages like [`Eraser::trim_records_naming`], up to the first message about a
    /// change after the cuts of runs.
    pub(super) async fn trim_messages(
        &self,
        topic: &str,
        cuts: &[(Source, Vec<Offset>)],
        is_wanted: impl Fn(i64) -> bool,
    ) -> Result<()> {
        let mut ends = Vec::new();
        for (partition, span) in (0_u32..).zip(self.log.spans(topic).await?) {
            let mut end = span.end;
            let range = OffsetRange {
                partition,
                start: span.start,
                end: span.end,
            };
            self.for_each_batch(topic, range, async |records: &Records| {
                let messages = records.offsets.values().iter().zip(&records.values);
                for (offset, value) in messages {
                    if is_after_cuts(value.unwrap_or_default(), cuts) {
                        end = end.min(*offset);
                        return Ok(false);
                    }
                }
                Ok(true)
            })
            .await?;
            ends.push(end);
        }
        let end = |partition: usize| ends.get(partition).copied().unwrap_or(0);
        self.trim_records_naming(topic, end, is_wanted).await
    }

    /// Returns the offset after the last record of a range that names such an athlete; 0 if none
    /// does.
    async fn find_end_of_mentions(
        &self,
        topic: &str,
        range: OffsetRange,
        is_wanted: &impl Fn(i64) -> bool,
    ) -> Result<Offset> {
        let mut end = 0;
        self.for_each_batch(topic, range, async |records: &Records| {
            let decoded = self.decode_topic(topic, records).await?;
            let offsets = records.offsets.values().iter();
            for (index, (offset, value)) in offsets.zip(iter_values(records)).enumerate() {
                if decoded.mentions(index, value, is_wanted) {
                    end = offset + 1;
                }
            }
            Ok(true)
        })
        .await?;
        Ok(end)
    }

    async fn decode_topic(&self, topic: &str, records: &Records) -> Result<TopicRecords> {
        let mut sources = Source::LOGGED.into_iter();
        let Some(source) = sources.find(|source| source.topic() == topic) else {
            return Ok(TopicRecords::Messages);
        };
        let writers = read_writer_schemas(&*self.batch.ports.schemas, &records.values).await?;
        let notifications = Notifications::read(source, iter_values(records), &writers)
            .map_err(|error| Error::fault("decoding notifications", error))?;
        Ok(TopicRecords::Notifications(source, notifications))
    }
}

fn iter_values(records: &Records) -> impl Iterator<Item = &[u8]> {
    records.values.iter().map(Option::unwrap_or_default)
}

/// Returns whether a message is about a change that no run covers; false for a message without a
/// position.
fn is_after_cuts(message: &[u8], cuts: &[(Source, Vec<Offset>)]) -> bool {
    let Ok(BoardMessage { position }) = serde_json::from_slice(message) else {
        return false;
    };
    let source_cuts = cuts.iter().find(|(source, _)| *source == position.source);
    let partition = usize::try_from(position.partition).unwrap_or(usize::MAX);
    let cut = source_cuts.and_then(|(_, cuts)| cuts.get(partition));
    cut.is_none_or(|cut| position.offset >= *cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_messages_after_the_cuts() {
        let cuts = [(Source::Efforts, vec![10, 5])];
        let message = |source: &str, partition: u32, offset: i64| {
            let position =
                serde_json::json!({"source": source, "partition": partition, "offset": offset});
            serde_json::json!({"position": position}).to_string()
        };
        let after = |message: String| is_after_cuts(message.as_bytes(), &cuts);
        assert!(!after(message("efforts", 0, 9)) && after(message("efforts", 0, 10)));
        assert!(!after(message("efforts", 1, 4)) && after(message("efforts", 1, 5)));
        assert!(after(message("efforts", 2, 0)) && after(message("authorizations", 0, 0)));
        assert!(!after("no message".to_owned()));
    }
}
