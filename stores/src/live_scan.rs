//! Pages of all that is live of a view in one slot.

use arrow::array::{Array, BinaryArray, BinaryBuilder, Int64Array, UInt64Array};
use schemas::seam::{Epoch, Slot};

use crate::Result;
use crate::live::{Deltas, LiveRead, SlotId, States};

/// Where a page ends: a group and a row, or a key and a member.
pub type LivePlace = (Vec<u8>, Vec<u8>);

/// A page of a view's deltas.
#[derive(Debug, Clone)]
pub struct ScannedDeltas {
    /// The slot as it stood when the page was read, with its fence; nothing where it is missing.
    pub slot: Option<Slot>,
    /// Groups, rows and the sums of the deltas, in the order of group and row.
    pub deltas: Deltas,
    /// Where the next page begins; nothing if there is none.
    pub next: Option<LivePlace>,
}

/// A page of a view's states.
#[derive(Debug, Clone)]
pub struct ScannedStates {
    /// The slot as it stood when the page was read, with its fence; nothing where it is missing.
    pub slot: Option<Slot>,
    /// The newest state of each member, in the order of key and member.
    pub states: States,
    /// The epoch of each state.
    pub epochs: UInt64Array,
    /// Where the next page begins; nothing if there is none.
    pub next: Option<LivePlace>,
}

/// What a page of deltas is made of, in its order.
pub(crate) fn deltas_page(
    view: &str,
    slot: Option<Slot>,
    rows: impl IntoIterator<Item = (LivePlace, i64)>,
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
    let next = if is_last { None } else { last(&groups, &rows) };
    ScannedDeltas {
        slot,
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

/// A state with its epoch; nothing where the member has nothing under the key any more.
pub(crate) type StateOf = (Epoch, Option<Vec<u8>>);

/// What a page of states is made of, in its order.
pub(crate) fn states_page(
    view: &str,
    slot: Option<Slot>,
    rows: impl IntoIterator<Item = (LivePlace, StateOf)>,
    is_last: bool,
) -> ScannedStates {
    let (mut keys, mut members) = (BinaryBuilder::new(), BinaryBuilder::new());
    let (mut states, mut epochs) = (BinaryBuilder::new(), Vec::new());
    for ((key, member), (epoch, state)) in rows {
        keys.append_value(key);
        members.append_value(member);
        states.append_option(state);
        epochs.push(epoch);
    }
    let (keys, members) = (keys.finish(), members.finish());
    let next = if is_last { None } else { last(&keys, &members) };
    ScannedStates {
        slot,
        states: States {
            view: view.to_owned(),
            keys,
            members,
            states: states.finish(),
        },
        epochs: UInt64Array::from(epochs),
        next,
    }
}

fn last(keys: &BinaryArray, rows: &BinaryArray) -> Option<LivePlace> {
    let last = keys.len().checked_sub(1)?;
    Some((keys.value(last).to_vec(), rows.value(last).to_vec()))
}

/// As many deltas as are asked for, if there are as many, from as many pages as that takes.
pub(crate) async fn deltas_of_pages<L: LiveRead + ?Sized>(
    live: &L,
    (slot, view): (SlotId, &str),
    epochs: (Epoch, Epoch),
    mut after: Option<LivePlace>,
    limit: usize,
) -> Result<Deltas> {
    let mut rows: Vec<(LivePlace, i64)> = Vec::new();
    loop {
        let left = limit - rows.len();
        let page = live.scan_deltas(slot, view, epochs, after, left).await?;
        if rows.is_empty() && (page.next.is_none() || page.deltas.counts.len() >= limit) {
            return Ok(page.deltas);
        }
        let found = page.deltas.groups.iter().zip(&page.deltas.rows);
        for ((group, row), count) in found.zip(page.deltas.counts.values()) {
            let place = (
                group.unwrap_or_default().to_vec(),
                row.unwrap_or_default().to_vec(),
            );
            rows.push((place, *count));
        }
        after = page.next;
        if after.is_none() || rows.len() >= limit {
            return Ok(deltas_page(view, None, rows, true).deltas);
        }
    }
}
