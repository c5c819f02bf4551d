//! Topics that name athletes: notifications, what is told of boards, and achievements. A log is deleted from its
//! beginning only, so what names nobody goes with what does; what comes after the last one that does stays.

use schemas::achievement::{Position, names_athlete};
use schemas::entities::Notifications;
use schemas::seam::Offset;
use schemas::source::Source;
use serde::Deserialize;
use stores::erasures::{Kind, Sought, mentions};
use stores::log::Records;
use stores::registry::writers_of;

use super::Eraser;
use crate::{Error, Result};

/// A message that was told of a board, as far as it says what it came of.
#[derive(Debug, Deserialize)]
struct Placed {
    position: Position,
}

/// Records of a topic, as far as they tell whom they name.
enum Naming {
    /// Notifications of a source.
    Notifications(Source, Notifications),
    /// What others are told.
    Messages,
}

impl Naming {
    /// Whether the record of that index names such an athlete.
    fn names(&self, index: usize, record: &[u8], is_wanted: impl Fn(i64) -> bool) -> bool {
        match self {
            Self::Messages => names_athlete(record, is_wanted),
            Self::Notifications(source, all) => match all.group(index, record) {
                Ok(group) => is_wanted(group.member),
                Err(_) => mentions(*source, record, Kind::Athlete, is_wanted),
            },
        }
    }
}

impl Eraser {
    /// Counts the records of a topic that name each athlete who is sought.
    pub(super) async fn naming(&self, topic: &str, found: &mut Sought) -> Result<()> {
        for (partition, span) in (0_u32..).zip(self.log.spans(topic).await?) {
            let within = (partition, span.start, span.end);
            self.each(topic, within, async |records: &Records| {
                let naming = self.read(topic, records).await?;
                for (index, value) in values(records).enumerate() {
                    found.once(|has| naming.names(index, value, has));
                }
                Ok(true)
            })
            .await?;
        }
        Ok(())
    }

    /// Deletes a topic up to the last record below an end that names such an athlete.
    pub(super) async fn trim_naming(
        &self,
        topic: &str,
        end: impl Fn(usize) -> Offset,
        is_wanted: impl Fn(i64) -> bool,
    ) -> Result<()> {
        let mut before = Vec::new();
        for (partition, span) in (0_u32..).zip(self.log.spans(topic).await?) {
            let until = span.end.min(end(before.len()));
            let within = (partition, span.start, until);
            before.push(self.after_last(topic, within, &is_wanted).await?);
        }
        if before.iter().any(|before| *before > 0) {
            self.log.trim(topic, &before).await?;
        }
        Ok(())
    }

    /// The same of a topic of what was told, up to the first message of what lies after the cuts of runs.
    pub(super) async fn trim_told(
        &self,
        topic: &str,
        cuts: &[(Source, Vec<Offset>)],
        is_wanted: impl Fn(i64) -> bool,
    ) -> Result<()> {
        let mut ends = Vec::new();
        for (partition, span) in (0_u32..).zip(self.log.spans(topic).await?) {
            let mut end = span.end;
            let within = (partition, span.start, span.end);
            self.each(topic, within, async |records: &Records| {
                let placed = records.offsets.values().iter().zip(&records.values);
                for (offset, value) in placed {
                    if is_after(value.unwrap_or_default(), cuts) {
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
        self.trim_naming(topic, end, is_wanted).await
    }

    /// What comes after the last record of a stretch that names such an athlete; 0 if none does.
    async fn after_last(
        &self,
        topic: &str,
        within: (u32, Offset, Offset),
        is_wanted: &impl Fn(i64) -> bool,
    ) -> Result<Offset> {
        let mut after = 0;
        self.each(topic, within, async |records: &Records| {
            let naming = self.read(topic, records).await?;
            let offsets = records.offsets.values().iter();
            for (index, (offset, value)) in offsets.zip(values(records)).enumerate() {
                if naming.names(index, value, is_wanted) {
                    after = offset + 1;
                }
            }
            Ok(true)
        })
        .await?;
        Ok(after)
    }

    async fn read(&self, topic: &str, records: &Records) -> Result<Naming> {
        let mut sources = Source::LOGGED.into_iter();
        let Some(source) = sources.find(|source| source.topic() == topic) else {
            return Ok(Naming::Messages);
        };
        let writers = writers_of(&*self.batch.ports.schemas, &records.values).await?;
        let notifications = Notifications::read(source, values(records), &writers)
            .map_err(|error| Error::fault("decoding notifications", error))?;
        Ok(Naming::Notifications(source, notifications))
    }
}

fn values(records: &Records) -> impl Iterator<Item = &[u8]> {
    records.values.iter().map(Option::unwrap_or_default)
}

/// Whether a message came of something that no run covers; of one that does not say so nobody knows.
fn is_after(message: &[u8], cuts: &[(Source, Vec<Offset>)]) -> bool {
    let Ok(Placed { position }) = serde_json::from_slice(message) else {
        return false;
    };
    let of_source = cuts.iter().find(|(source, _)| *source == position.source);
    let partition = usize::try_from(position.partition).unwrap_or(usize::MAX);
    let cut = of_source.and_then(|(_, cuts)| cuts.get(partition));
    cut.is_none_or(|cut| position.offset >= *cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_run_covers_stays() {
        let cuts = [(Source::Efforts, vec![10, 5])];
        let message = |source: &str, partition: u32, offset: i64| {
            let position =
                serde_json::json!({"source": source, "partition": partition, "offset": offset});
            serde_json::json!({"position": position}).to_string()
        };
        let after = |message: String| is_after(message.as_bytes(), &cuts);
        assert!(!after(message("efforts", 0, 9)) && after(message("efforts", 0, 10)));
        assert!(!after(message("efforts", 1, 4)) && after(message("efforts", 1, 5)));
        assert!(after(message("efforts", 2, 0)) && after(message("authorizations", 0, 0)));
        assert!(!after("no message".to_owned()));
    }
}
