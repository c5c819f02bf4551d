//! Reports the topics. Their retention is set in the log itself; this module warns if it is too
//! short.
//!
//! Unfinished runs, rebuilt live state, and republished board changes read the log from the cuts of
//! the newest complete run on. Dead letters of the same range are needed as long, since they say
//! what did not count.

use schemas::achievement::BOARD_CHANGES_TOPIC;
use schemas::seam::Offset;
use schemas::source::{Source, SourceKind};
use stores::log::{TopicRetention, list_topic_names};

use super::policy::Retention;
use super::report::{DataKind, KindReport};
use crate::Result;

const DAY_MS: u64 = 86_400_000;

/// The part of a source's log that is needed.
#[derive(Debug, Clone, Copy, Default)]
struct NeededRange {
    /// The minimum age of the oldest needed record, in milliseconds.
    age_ms: u64,
    /// The first partition that lacks needed records: partition, first needed offset, first offset
    /// of the log.
    lost: Option<(usize, Offset, Offset)>,
}

impl Retention {
    /// Reports all topics.
    pub(super) async fn report_topics(&self) -> Result<Vec<KindReport>> {
        let log = &self.batch.ports.log;
        let mut needed = Vec::new();
        for source in Source::LOGGED {
            needed.push((source, self.needed_range(source).await?));
        }
        let mut reports = Vec::new();
        for topic in list_topic_names() {
            let spans = log.spans(topic).await?;
            if spans.is_empty() {
                continue;
            }
            let retention = log.retention(topic).await?;
            let mut report = KindReport::new(DataKind::Topic, None, format_retention(retention));
            report.topic = Some(topic.to_owned());
            let records = spans
                .iter()
                .map(|span| (span.end - span.start).unsigned_abs());
            report.stored.count = records.sum();
            for (source, needed) in &needed {
                if !must_cover(topic, *source) {
                    continue;
                }
                report.source = (topic != BOARD_CHANGES_TOPIC).then_some(*source);
                let is_log = topic == source.topic();
                report
                    .warnings
                    .extend(retention_warnings(*source, *needed, retention, is_log));
            }
            reports.push(report);
        }
        Ok(reports)
    }

    /// Returns the needed part of the log, which starts at the newest complete run's cuts.
    async fn needed_range(&self, source: Source) -> Result<NeededRange> {
        let ports = &self.batch.ports;
        let runs = ports.views.runs(source).await?.runs;
        let spans = ports.log.spans(source.topic()).await?;
        let now_ms = ports.clock.now_ms();
        let mut needed = NeededRange::default();
        for (partition, span) in spans.iter().enumerate() {
            let Some(cut) = runs.cut(runs.newest_complete(), partition) else {
                continue;
            };
            if cut.next_offset >= span.end {
                continue;
            }
            if cut.next_offset < span.start && needed.lost.is_none() {
                needed.lost = Some((partition, cut.next_offset, span.start));
            }
            // The needed records were logged after the last record before the cut.
            let logged_at_ms = cut.last.map(|last| last.logged_at_ms);
            let age_ms = logged_at_ms.map_or(0, |at_ms| now_ms.saturating_sub(at_ms));
            let age_ms = u64::try_from(age_ms).unwrap_or(0);
            needed.age_ms = needed.age_ms.max(age_ms);
        }
        Ok(needed)
    }
}

/// Returns whether a topic must be kept as long as the log of a source.
fn must_cover(topic: &str, source: Source) -> bool {
    topic == source.topic()
        || topic == source.dead_letter_topic()
        || (topic == BOARD_CHANGES_TOPIC && source.kind() == SourceKind::Entities)
}

/// Returns warnings if the retention of a topic is too short.
fn retention_warnings(
    source: Source,
    needed: NeededRange,
    retention: Option<TopicRetention>,
    is_log: bool,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some((partition, from, start)) = needed.lost.filter(|_| is_log) {
        warnings.push(format!(
            "partition {partition} lacks needed records: the newest complete run of {source} ends at offset {from}, but the log begins at {start}. Live state cannot be rebuilt before a batch run is complete; increase retention.ms"
        ));
    }
    let age_ms = retention.and_then(|retention| retention.age_ms);
    if let Some(age_ms) = age_ms.filter(|age_ms| *age_ms < needed.age_ms) {
        warnings.push(format!(
            "records are deleted after {}, but those of the last {} are needed, since no complete run of {source} includes them: increase retention.ms, or run the batch layer more often",
            format_duration(age_ms),
            format_duration(needed.age_ms)
        ));
    }
    warnings
}

/// Describes the retention of a topic.
fn format_retention(retention: Option<TopicRetention>) -> String {
    let Some(retention) = retention else {
        return "unknown: this user needs the permission DESCRIBE_CONFIGS".to_owned();
    };
    let age = retention
        .age_ms
        .map(|ms| format!("retention.ms: {}", format_duration(ms)));
    let bytes = retention
        .bytes
        .map(|bytes| format!("retention.bytes: {bytes}"));
    match (age, bytes) {
        (None, None) => "forever".to_owned(),
        (Some(limit), None) | (None, Some(limit)) => limit,
        (Some(age), Some(bytes)) => format!("{age}, {bytes}"),
    }
}

/// Formats a duration, rounded down to a suitable unit.
fn format_duration(ms: u64) -> String {
    match ms {
        ms if ms >= 2 * DAY_MS => format!("{} days", ms / DAY_MS),
        ms if ms >= 7_200_000 => format!("{} hours", ms / 3_600_000),
        ms if ms >= 120_000 => format!("{} minutes", ms / 60_000),
        ms => format!("{} seconds", ms / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_age(age_ms: Option<u64>) -> Option<TopicRetention> {
        Some(TopicRetention {
            age_ms,
            bytes: None,
        })
    }

    #[test]
    fn warns_if_retention_is_too_short() {
        let needed = NeededRange {
            age_ms: 5 * DAY_MS,
            lost: None,
        };
        let warnings = |age_ms| retention_warnings(Source::Plays, needed, with_age(age_ms), true);
        assert!(warnings(None).is_empty());
        assert!(warnings(Some(7 * DAY_MS)).is_empty());
        let [warning] = warnings(Some(DAY_MS)).try_into().expect("one warning");
        assert!(
            warning.contains("after 24 hours") && warning.contains("last 5 days"),
            "{warning}"
        );
        assert!(retention_warnings(Source::Plays, needed, None, true).is_empty());
    }

    #[test]
    fn warns_of_lost_records_only_for_the_log() {
        let needed = NeededRange {
            age_ms: 0,
            lost: Some((1, 5, 9)),
        };
        assert_eq!(
            retention_warnings(Source::Plays, needed, with_age(None), true).len(),
            1
        );
        assert!(retention_warnings(Source::Plays, needed, with_age(None), false).is_empty());
    }

    #[test]
    fn describes_policies() {
        assert_eq!(format_retention(with_age(None)), "forever");
        assert_eq!(
            format_retention(with_age(Some(604_800_000))),
            "retention.ms: 7 days"
        );
        assert!(format_retention(None).contains("DESCRIBE_CONFIGS"));
    }
}
