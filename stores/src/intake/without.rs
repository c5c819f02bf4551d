//! Events that come in of listeners who are suppressed are taken without the listener.

use arrow::array::BinaryBuilder;
use schemas::avro::{Writers, is_framed};
use schemas::plays::anonymous_lines;

use super::Keyed;
use crate::erasures::Suppressed;
use crate::{Error, Result};

impl Keyed {
    /// Takes those who are suppressed out of events that are lines. Of records of Avro that was done where
    /// the schemas of their writers were at hand.
    pub(super) fn leave_out(&mut self, suppressed: &Suppressed) -> Result<()> {
        if suppressed.newest_listener() == 0 {
            return Ok(());
        }
        for group in &mut self.groups {
            let lines = group.values.iter().flatten();
            let lines = lines.map(|bytes| if is_framed(bytes) { &[] } else { bytes });
            let found = without(lines, &Writers::default(), suppressed)?;
            if found.is_empty() {
                continue;
            }
            let mut values = BinaryBuilder::new();
            for (index, bytes) in group.values.iter().enumerate() {
                values.append_option(found.get(&index).map(Vec::as_slice).or(bytes));
            }
            group.values = values.finish();
        }
        Ok(())
    }
}

/// The records, by their index, of those who are suppressed, as lines without them.
pub(super) fn without<'a>(
    records: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
    writers: &Writers,
    suppressed: &Suppressed,
) -> Result<std::collections::BTreeMap<usize, Vec<u8>>> {
    anonymous_lines(records, writers, |id| suppressed.has_listener(id))
        .map_err(|error| Error::broken("taking a listener out of events", error))
}
