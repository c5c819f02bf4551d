//! The topics of an installation.

use schemas::achievement::{ACHIEVEMENTS_TOPIC, BOARD_CHANGES_TOPIC};
use schemas::source::Source;

use super::Log;
use crate::Result;
use crate::alerts::RECONCILIATION_ALERTS;
use crate::notices::CAPACITY_NOTICES;

/// Lists all topics with their number of partitions. Topics of events, notifications and published
/// messages get `partitions`, those of dead letters one.
pub(crate) fn list_topics(partitions: u32) -> impl Iterator<Item = (&'static str, u32)> {
    let log_topics = Source::LOGGED.map(|source| (source.topic(), partitions));
    let dead_letters = Source::ALL.map(|source| (source.dead_letter_topic(), 1));
    let published = [
        ACHIEVEMENTS_TOPIC,
        BOARD_CHANGES_TOPIC,
        CAPACITY_NOTICES,
        RECONCILIATION_ALERTS,
    ]
    .map(|topic| (topic, partitions));
    log_topics.into_iter().chain(dead_letters).chain(published)
}

/// Lists the names of all topics.
pub fn list_topic_names() -> impl Iterator<Item = &'static str> {
    list_topics(1).map(|(topic, _)| topic)
}

/// Creates the missing topics; those of events, notifications and published messages with this
/// number of partitions. Returns the created topics with their partitions.
///
/// # Errors
/// Those of the log.
pub async fn create_topics(log: &dyn Log, partitions: u32) -> Result<Vec<(&'static str, u32)>> {
    let mut created = Vec::new();
    for (topic, partitions) in list_topics(partitions) {
        if log.spans(topic).await?.is_empty() {
            created.push((topic, log.ensure_topic(topic, partitions).await?));
        }
    }
    Ok(created)
}
