//! Topics: how long the log keeps them is set where they are; here it is told, and warned of what is too short.
//!
//! A run that is not finished, live state that begins anew and whoever tells again what it told of boards read the log from the cuts of the
//! newest complete run on. Dead letters of that stretch say what did not count, so they are needed as long.

use schemas::achievement::BOARD_CHANGES;
use schemas::seam::Offset;
use schemas::source::{Source, SourceKind};
use stores::log::{KeptFor, topic_names};

use super::{Kind, KindReport, Retention};
use crate::Result;

const DAY_MS: u64 = 86_400_000;

/// What is needed of a source's log.
#[derive(Debug, Clone, Copy, Default)]
struct Needed {
    /// How old the oldest record is that is needed, at least, in milliseconds.
    age_ms: u64,
    /// The first partition that does not have all that is needed, from which offset on it is needed, and where it begins.
    lost: Option<(usize, Offset, Offset)>,
}

impl Retention {
    /// All topics.
    pub(super) async fn topics(&self) -> Result<Vec<KindReport>> {
        let log = &self.batch.ports.log;
        let mut needed = Vec::new();
        for source in Source::LOGGED {
            needed.push((source, self.needed(source).await?));
        }
        let mut reports = Vec::new();
        for topic in topic_names() {
            let spans = log.spans(topic).await?;
            if spans.is_empty() {
                continue;
            }
            let kept = log.kept_for(topic).await?;
            let mut report = KindReport::new(Kind::Topic, None, words(kept));
            report.topic = Some(topic.to_owned());
            let records = spans
                .iter()
                .map(|span| (span.end - span.start).unsigned_abs());
            report.held.count = records.sum();
            for (source, needed) in &needed {
                if !is_read(topic, *source) {
                    continue;
                }
                report.source = (topic != BOARD_CHANGES).then_some(*source);
                let own = topic == source.topic();
                report.warnings.extend(warning(*source, *needed, kept, own));
            }
            reports.push(report);
        }
        Ok(reports)
    }

    /// What is needed of the log: everything from the newest complete run's cuts on.
    async fn needed(&self, source: Source) -> Result<Needed> {
        let ports = &self.batch.ports;
        let runs = ports.views.runs(source).await?.runs;
        let spans = ports.log.spans(source.topic()).await?;
        let now_ms = ports.clock.now_ms();
        let mut needed = Needed::default();
        for (partition, span) in spans.iter().enumerate() {
            let Some(cut) = runs.cut(runs.newest(), partition) else {
                continue;
            };
            if cut.next_offset >= span.end {
                continue;
            }
            if cut.next_offset < span.start && needed.lost.is_none() {
                needed.lost = Some((partition, cut.next_offset, span.start));
            }
            // What is needed was logged after the last record before it.
            let logged_at_ms = cut.last.map(|last| last.logged_at_ms);
            let age_ms = logged_at_ms.map_or(0, |at_ms| now_ms.saturating_sub(at_ms));
            let age_ms = u64::try_from(age_ms).unwrap_or(0);
            needed.age_ms = needed.age_ms.max(age_ms);
        }
        Ok(needed)
    }
}

/// Whether what is needed of a source's log is needed of a topic too.
fn is_read(topic: &str, source: Source) -> bool {
    topic == source.topic()
        || topic == source.dead_letter_topic()
        || (topic == BOARD_CHANGES && source.kind() == SourceKind::Entities)
}

/// What is wrong with how long a topic is kept.
fn warning(source: Source, needed: Needed, kept: Option<KeptFor>, own: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some((partition, from, start)) = needed.lost.filter(|_| own) {
        warnings.push(format!(
            "records of partition {partition} from {from} on are needed, since the newest complete run of {source} ends there, and the log begins at {start}: live state can't begin anew before a batch run is complete. Make retention.ms longer"
        ));
    }
    let age_ms = kept.and_then(|kept| kept.age_ms);
    if let Some(age_ms) = age_ms.filter(|age_ms| *age_ms < needed.age_ms) {
        warnings.push(format!(
            "records go after {}, and those of the last {} are needed, since no run of {source} is complete that holds them: make retention.ms longer, or run the batch layer more often",
            span(age_ms),
            span(needed.age_ms)
        ));
    }
    warnings
}

/// How long a topic is kept, in words.
fn words(kept: Option<KeptFor>) -> String {
    let Some(kept) = kept else {
        return "can't be seen: this user needs DESCRIBE_CONFIGS".to_owned();
    };
    let age = kept.age_ms.map(|ms| format!("retention.ms: {}", span(ms)));
    let bytes = kept.bytes.map(|bytes| format!("retention.bytes: {bytes}"));
    match (age, bytes) {
        (None, None) => "for ever".to_owned(),
        (Some(one), None) | (None, Some(one)) => one,
        (Some(age), Some(bytes)) => format!("{age}, {bytes}"),
    }
}

/// A span of time, rounded down to the unit that says most.
fn span(ms: u64) -> String {
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

    fn kept(age_ms: Option<u64>) -> Option<KeptFor> {
        Some(KeptFor {
            age_ms,
            bytes: None,
        })
    }

    #[test]
    fn what_is_too_short_is_told() {
        let needed = Needed {
            age_ms: 5 * DAY_MS,
            lost: None,
        };
        let told = |age_ms| warning(Source::Plays, needed, kept(age_ms), true);
        assert!(told(None).is_empty());
        assert!(told(Some(7 * DAY_MS)).is_empty());
        let [one] = told(Some(DAY_MS)).try_into().expect("one warning");
        assert!(
            one.contains("after 24 hours") && one.contains("last 5 days"),
            "{one}"
        );
        assert!(warning(Source::Plays, needed, None, true).is_empty());
    }

    #[test]
    fn what_is_lost_is_told_of_the_log_alone() {
        let needed = Needed {
            age_ms: 0,
            lost: Some((1, 5, 9)),
        };
        assert_eq!(warning(Source::Plays, needed, kept(None), true).len(), 1);
        assert!(warning(Source::Plays, needed, kept(None), false).is_empty());
    }

    #[test]
    fn policies_in_words() {
        assert_eq!(words(kept(None)), "for ever");
        assert_eq!(words(kept(Some(604_800_000))), "retention.ms: 7 days");
        assert!(words(None).contains("DESCRIBE_CONFIGS"));
    }
}
