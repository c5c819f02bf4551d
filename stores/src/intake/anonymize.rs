//! Removes suppressed listeners from ingested events.

use arrow::array::BinaryBuilder;
use schemas::avro::{WriterSchemas, is_framed};
use schemas::plays::redact_lines;

use super::KeyedEvents;
use crate::erasures::SuppressedPeople;
use crate::{Error, Result};

impl KeyedEvents {
    /// Removes suppressed listeners from events that are lines. Avro records were anonymized where
    /// their schemas were known.
    pub(super) fn anonymize(&mut self, suppressed: &SuppressedPeople) -> Result<()> {
        if suppressed.newest_listener() == 0 {
            return Ok(());
        }
        for group in &mut self.groups {
            let lines = group.values.iter().flatten();
            let lines = lines.map(|bytes| if is_framed(bytes) { &[] } else { bytes });
            let anonymized = anonymize_lines(lines, &WriterSchemas::default(), suppressed)?;
            if anonymized.is_empty() {
                continue;
            }
            let mut values = BinaryBuilder::new();
            for (index, bytes) in group.values.iter().enumerate() {
                values.append_option(anonymized.get(&index).map(Vec::as_slice).or(bytes));
            }
            group.values = values.finish();
        }
        Ok(())
    }
}

/// Returns the records of suppressed listeners by index, as lines without the listener.
pub(super) fn anonymize_lines<'a>(
    records: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
    writers: &WriterSchemas,
    suppressed: &SuppressedPeople,
) -> Result<std::collections::BTreeMap<usize, Vec<u8>>> {
    redact_lines(records, writers, |id| suppressed.contains_listener(id))
        .map_err(|error| Error::broken("removing a listener from events", error))
}
