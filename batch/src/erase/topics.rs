//! Topics that name athletes: notifications, what is told of boards, and achievements. A log is deleted from its
//! beginning only, so what names nobody goes with what does; what comes after the last one that does stays.

use schemas::achievement::{Position, names_athlete};
use schemas::entities::Notifications;
use schemas::seam::Offset;
use schemas::source::Source;
use serde::Deserialize;
use stores::erasures::mentions_athlete;
use stores::log::Records;
use stores::registry::writers_of;

use super::Eraser;
use super::search::FETCH;
use crate::{Error, Result};

/// A message that was told of a board, as far as it says what it came of.
#[derive(Debug, Deserialize)]
struct Placed {
    position: Position,
}

/// What is found in a partition.
#[derive(Debug, Clone, Copy, Default)]
struct Named {
    /// Records that name somebody.
    count: u64,
    /// After the last of them.
    until: Offset,
}

impl Eraser {
    /// How many records of a topic name such an athlete.
    pub(super) async fn naming(&self, topic: &str, is_wanted: impl Fn(i64) -> bool) -> Result<u64> {
        let mut found = 0;
        let spans = self.log.spans(topic).await?;
        for (partition, span) in (0_u32..).zip(spans) {
            let within = (partition, span.start, span.end);
            found += self.named(topic, within, &is_wanted).await?.count;
        }
        Ok(found)
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
            before.push(self.named(topic, within, &is_wanted).await?.until);
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

    async fn named(
        &self,
        topic: &str,
        within: (u32, Offset, Offset),
        is_wanted: &impl Fn(i64) -> bool,
    ) -> Result<Named> {
        let mut named = Named::default();
        self.each(topic, within, async |records: &Records| {
            let found = self.which(topic, records, is_wanted).await?;
            named.count += found.len() as u64;
            let last = found.last().map(|index| records.offsets.value(*index) + 1);
            named.until = last.unwrap_or(named.until);
            Ok(true)
        })
        .await?;
        Ok(named)
    }

    /// The records that name such an athlete, by their index.
    async fn which(
        &self,
        topic: &str,
        records: &Records,
        is_wanted: &impl Fn(i64) -> bool,
    ) -> Result<Vec<usize>> {
        let values = || records.values.iter().map(Option::unwrap_or_default);
        let mut sources = Source::LOGGED.into_iter();
        let Some(source) = sources.find(|source| source.topic() == topic) else {
            let named = values().enumerate();
            let named = named.filter(|(_, value)| names_athlete(value, is_wanted));
            return Ok(named.map(|(index, _)| index).collect());
        };
        let writers = writers_of(&*self.batch.ports.schemas, &records.values).await?;
        let notifications = Notifications::read(source, values(), &writers)
            .map_err(|error| Error::fault("decoding notifications", error))?;
        let named = values().enumerate().filter(|(index, value)| {
            match notifications.group(*index, value) {
                Ok(group) => is_wanted(group.member),
                Err(_) => mentions_athlete(source, value, is_wanted),
            }
        });
        Ok(named.map(|(index, _)| index).collect())
    }

    /// Hands on the records of a stretch, some at a time, for as long as more are wanted.
    async fn each(
        &self,
        topic: &str,
        (partition, mut next, end): (u32, Offset, Offset),
        mut look: impl AsyncFnMut(&Records) -> Result<bool>,
    ) -> Result<()> {
        while next < end {
            let fetched = match self.log.fetch_apart(topic, partition, next, FETCH).await {
                // It was trimmed meanwhile, or its time was over.
                Err(stores::Error::OffsetOutOfRange { start, .. }) if start > next => {
                    next = start;
                    continue;
                }
                fetched => fetched?,
            };
            if fetched.next_offset == next {
                break;
            }
            next = fetched.next_offset;
            let offsets = fetched.records.offsets.values();
            let below = offsets.partition_point(|offset| *offset < end);
            if !look(&fetched.records.slice(0, below)).await? {
                break;
            }
        }
        Ok(())
    }
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
