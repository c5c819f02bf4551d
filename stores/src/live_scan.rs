//! Pages of all live rows of a view in one partition.

use arrow::array::{Array, BinaryArray, BinaryBuilder, Int64Array, UInt64Array};
use schemas::seam::{Epoch, PartitionState};

use crate::live_rows::{Deltas, Entries};

/// The position of a row in a scan: a group and a row, or a key and a member.
pub type ScanKey = (Vec<u8>, Vec<u8>);

/// A page of a view's deltas.
#[derive(Debug, Clone)]
pub struct ScannedDeltas {
    /// The partition state of the page's moment; `None` if it is missing.
    pub state: Option<PartitionState>,
    /// Groups, rows and the sums of the deltas, in the order of group and row.
    pub deltas: Deltas,
    /// The key after which the next page begins; `None` on the last page.
    pub next: Option<ScanKey>,
}

/// A page of a view's live entries.
#[derive(Debug, Clone)]
pub struct ScannedEntries {
    /// The partition state of the page's moment; `None` if it is missing.
    pub state: Option<PartitionState>,
    /// The newest entry of each member, in the order of key and member.
    pub entries: Entries,
    /// The epoch of each entry.
    pub epochs: UInt64Array,
    /// The key after which the next page begins; `None` on the last page.
    pub next: Option<ScanKey>,
}

/// Builds a page of deltas from rows in scan order.
pub(crate) fn build_deltas_page(
    view: &str,
    state: Option<PartitionState>,
    rows: impl IntoIterator<Item = (ScanKey, i64)>,
    is_last: bool,
) -> ScannedDeltas {
    let (mut groups, mut keys) = (BinaryBuilder::new(), BinaryBuilder::new());
    let mut counts = Vec::new();
    for ((group, row), count) in rows {
        groups.append_value(group);
        keys.append_value(row);
        counts.push(count);
    }
    let (groups, rows) = (groups.finish(), keys.finish());
    let next = if is_last {
        None
    } else {
        last_key(&groups, &rows)
    };
    ScannedDeltas {
        state,
        deltas: Deltas {
            view: view.to_owned(),
            grouped_by: String::new(),
            groups,
            rows,
            counts: Int64Array::from(counts),
        },
        next,
    }
}

/// A live entry with its epoch; `None` if the member has nothing under the key any more.
pub(crate) type EntryWithEpoch = (Epoch, Option<Vec<u8>>);

/// Builds a page of live entries from rows in scan order.
pub(crate) fn build_entries_page(
    view: &str,
    state: Option<PartitionState>,
    rows: impl IntoIterator<Item = (ScanKey, EntryWithEpoch)>,
    is_last: bool,
) -> ScannedEntries {
    let (mut keys, mut members) = (BinaryBuilder::new(), BinaryBuilder::new());
    let (mut entries, mut epochs) = (BinaryBuilder::new(), Vec::new());
    for ((key, member), (epoch, entry)) in rows {
        keys.append_value(key);
        members.append_value(member);
        entries.append_option(entry);
        epochs.push(epoch);
    }
    let (keys, members) = (keys.finish(), members.finish());
    let next = if is_last {
        None
    } else {
        last_key(&keys, &members)
    };
    ScannedEntries {
        state,
        entries: Entries {
            view: view.to_owned(),
            keys,
            members,
            entries: entries.finish(),
        },
        epochs: UInt64Array::from(epochs),
        next,
    }
}

fn last_key(keys: &BinaryArray, rows: &BinaryArray) -> Option<ScanKey> {
    let last = keys.len().checked_sub(1)?;
    Some((keys.value(last).to_vec(), rows.value(last).to_vec()))
}
