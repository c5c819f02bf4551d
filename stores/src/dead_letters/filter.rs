//! Selects dead letters by source, reason and time.

use schemas::dead_letter::reason_kind;
use schemas::seam::Offset;
use schemas::source::Source;

use super::{CLOCK_SKEW_MS, StoredDeadLetter};
use crate::Result;
use crate::log::{LogRead, Span};

/// A filter for dead letters; the default selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Only dead letters of this source.
    pub source: Option<Source>,
    /// Only dead letters whose reason, or kind of reason, contains this text.
    pub reason: Option<String>,
    /// Only dead letters from this time on, in milliseconds since the Unix epoch.
    pub since_ms: Option<i64>,
}

/// A range of offsets in a partition of a dead-letter topic that is still to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnreadRange {
    pub(super) source: Source,
    pub(super) partition: u32,
    pub(super) span: Span,
}

impl DeadLetterFilter {
    /// The selected sources.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        let selected = self.source;
        let all = Source::ALL.into_iter();
        all.filter(move |source| selected.is_none_or(|selected| selected == *source))
    }

    /// Returns whether the filter selects a dead letter.
    #[must_use]
    pub fn matches(&self, dead_letter: &StoredDeadLetter) -> bool {
        let content = &dead_letter.content;
        self.source
            .is_none_or(|source| source == dead_letter.id.source)
            && self.since_ms.is_none_or(|since| content.at_ms >= since)
            && self.reason.as_deref().is_none_or(|text| {
                content.reason.contains(text) || reason_kind(&content.reason).contains(text)
            })
    }

    /// Finds the ranges, by partition, that may contain selected dead letters of a source.
    pub(super) async fn find_unread_ranges(
        &self,
        log: &dyn LogRead,
        source: Source,
    ) -> Result<Vec<UnreadRange>> {
        let topic = source.dead_letter_topic();
        let mut ranges = Vec::new();
        for (partition, mut span) in (0..).zip(log.spans(topic).await?) {
            if let Some(since_ms) = self.since_ms
                && span.start < span.end
            {
                // Dead letters may be logged in another order than that of their times, but never
                // before their time.
                let since_ms = since_ms.saturating_sub(CLOCK_SKEW_MS);
                let first: Offset = log.offset_at(topic, partition, since_ms).await?;
                span.start = first.clamp(span.start, span.end);
            }
            ranges.push(UnreadRange {
                source,
                partition,
                span,
            });
        }
        Ok(ranges)
    }
}
