//! The topics of an installation.

use schemas::source::Source;

use super::Log;
use crate::Result;

/// The topics of every source with how many partitions each gets, where those of events and
/// notifications get `partitions`.
pub(crate) fn topics(partitions: u32) -> impl Iterator<Item = (&'static str, u32)> {
    let logs = Source::LOGGED.map(|source| (source.topic(), partitions));
    let letters = Source::ALL.map(|source| (source.dead_letter_topic(), 1));
    logs.into_iter().chain(letters)
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
