//! The topics of an installation.

use schemas::achievement::{ACHIEVEMENTS, BOARD_CHANGES};
use schemas::source::Source;

use super::Log;
use crate::Result;
use crate::alerts::RECONCILIATION_ALERTS;
use crate::notices::CAPACITY_NOTICES;

/// The topics of every source with how many partitions each gets, where those of events and
/// notifications get `partitions`, as do those of what is told of boards.
pub(crate) fn topics(partitions: u32) -> impl Iterator<Item = (&'static str, u32)> {
    let logs = Source::LOGGED.map(|source| (source.topic(), partitions));
    let letters = Source::ALL.map(|source| (source.dead_letter_topic(), 1));
    let told = [
        ACHIEVEMENTS,
        BOARD_CHANGES,
        CAPACITY_NOTICES,
        RECONCILIATION_ALERTS,
    ]
    .map(|topic| (topic, partitions));
    logs.into_iter().chain(letters).chain(told)
}

/// The names of all topics.
pub fn topic_names() -> impl Iterator<Item = &'static str> {
    topics(1).map(|(topic, _)| topic)
}

/// Makes the topics of every source that are not there, those of events and notifications with so
/// many partitions; answers which were made, with their partitions.
///
/// # Errors
/// Those of the log.
pub async fn make_topics(log: &dyn Log, partitions: u32) -> Result<Vec<(&'static str, u32)>> {
    let mut made = Vec::new();
    for (topic, partitions) in topics(partitions) {
        if log.spans(topic).await?.is_empty() {
            made.push((topic, log.ensure_topic(topic, partitions).await?));
        }
    }
    Ok(made)
}
