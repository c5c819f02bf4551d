//! Which dead letters are asked for.

use schemas::dead_letter::kind_of;
use schemas::seam::Offset;
use schemas::source::Source;

use super::{CLOCKS_DIFFER_MS, Letter};
use crate::Result;
use crate::log::{LogRead, Span};

/// Which dead letters are asked for; all of them by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Those of one source.
    pub source: Option<Source>,
    /// Those whose reason, or the kind of it, has this text in it.
    pub reason: Option<String>,
    /// Those that were set aside then or later, in milliseconds since the Unix epoch.
    pub since_ms: Option<i64>,
}

/// A partition of a dead-letter topic, with what of it is to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    pub(super) source: Source,
    pub(super) partition: u32,
    pub(super) span: Span,
}

impl Asked {
    /// The sources whose letters are asked for.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        let one = self.source;
        let all = Source::ALL.into_iter();
        all.filter(move |source| one.is_none_or(|one| one == *source))
    }

    /// Whether a letter is one of those.
    #[must_use]
    pub fn takes(&self, letter: &Letter) -> bool {
        let content = &letter.content;
        self.source.is_none_or(|source| source == letter.id.source)
            && self.since_ms.is_none_or(|since| content.at_ms >= since)
            && self.reason.as_deref().is_none_or(|text| {
                content.reason.contains(text) || kind_of(&content.reason).contains(text)
            })
    }

    /// Where letters of a source may stand that are asked for, by partition.
    pub(super) async fn stretches(
        &self,
        log: &dyn LogRead,
        source: Source,
    ) -> Result<Vec<Stretch>> {
        let topic = source.dead_letter_topic();
        let mut stretches = Vec::new();
        for (partition, mut span) in (0..).zip(log.spans(topic).await?) {
            if let Some(since_ms) = self.since_ms
                && span.start < span.end
            {
                // What is logged in order was set aside in another perhaps, but none after it was logged.
                let since_ms = since_ms.saturating_sub(CLOCKS_DIFFER_MS);
                let first: Offset = log.offset_at(topic, partition, since_ms).await?;
                span.start = first.clamp(span.start, span.end);
            }
            stretches.push(Stretch {
                source,
                partition,
                span,
            });
        }
        Ok(stretches)
    }
}
