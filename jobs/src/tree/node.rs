//! Nodes for reading: decoded once, then searched without further allocation.

use super::wire::{self, BODY_BYTES_MAX, Columns};
use super::{NodeId, Sum, TreeDamage};

/// A decoded node: a leaf with items or an inner node with children, in key order. Its content
/// never changes, so stores may cache it without limit.
#[derive(Debug)]
pub struct Node {
    id: NodeId,
    level: u8,
    /// The concatenated keys, and the end of each.
    keys: Vec<u8>,
    key_ends: Vec<u32>,
    /// The sum of weights before each entry, and of all entries.
    weights: Vec<i64>,
    entries: Entries,
}

#[derive(Debug)]
enum Entries {
    Items {
        values: Box<[u8]>,
        value_ends: Vec<u32>,
    },
    Children {
        ids: Vec<NodeId>,
        /// As [`Node::weights`], for counts.
        counts: Vec<u64>,
    },
}

/// The data of a child in its parent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Child<'a> {
    pub(super) id: NodeId,
    pub(super) level: u8,
    pub(super) last_key: &'a [u8],
    pub(super) sum: Sum,
}

impl Node {
    /// Decodes a node. The tree checks that it is the requested one.
    ///
    /// # Errors
    /// [`TreeDamage`] if the bytes are not a node. Any input is safe.
    pub fn decode(bytes: &[u8]) -> Result<Self, TreeDamage> {
        let (level, body) = wire::decode_header(bytes)?;
        let mut columns = Columns::parse(&body)?;
        let length = columns.entries;
        let mut node = Self {
            id: NodeId::for_bytes(bytes),
            level,
            keys: Vec::new(),
            key_ends: Vec::with_capacity(length),
            weights: Vec::with_capacity(length + 1),
            entries: Entries::with_capacity(level, length),
        };
        node.weights.push(0);
        for _ in 0..length {
            node.read_entry(&mut columns)?;
        }
        if let Entries::Items { values, value_ends } = &mut node.entries {
            let length = value_ends.last().copied().unwrap_or(0);
            *values = columns.contents.take(length as usize)?.into();
        } else if length == 0 {
            return Err(TreeDamage::Content("it is an inner node without children"));
        }
        columns.check_consumed()?;
        node.keys.shrink_to_fit();
        Ok(node)
    }

    fn read_entry(&mut self, columns: &mut Columns<'_>) -> Result<(), TreeDamage> {
        self.read_key(columns)?;
        let weight = match &mut self.entries {
            Entries::Items { value_ends, .. } => {
                let weight = columns.numbers.read_weight()?;
                let start = value_ends.last().copied().unwrap_or(0) as usize;
                value_ends.push(checked_end(start, columns.numbers.read_length()?)?);
                weight
            }
            Entries::Children { ids, counts } => {
                let count = columns.numbers.read_number()?;
                if count == 0 {
                    return Err(TreeDamage::Content("a child is empty"));
                }
                let before = counts.last().copied().unwrap_or(0);
                counts.push(before.checked_add(count).ok_or(OVERFLOW)?);
                ids.push(columns.contents.read_id()?);
                columns.numbers.read_weight()?
            }
        };
        let before = self.weights.last().copied().unwrap_or(0);
        self.weights
            .push(before.checked_add(weight).ok_or(OVERFLOW)?);
        Ok(())
    }

    fn read_key(&mut self, columns: &mut Columns<'_>) -> Result<(), TreeDamage> {
        let shared = columns.lengths.read_length()?;
        let suffix_len = columns.lengths.read_length()?;
        let suffix = columns.keys.take(suffix_len)?;
        let start = self.keys.len();
        let previous = self.len().checked_sub(1).map(|last| self.key(last));
        let previous_suffix = match previous {
            None if shared == 0 => None,
            Some(previous) if shared <= previous.len() => previous.get(shared..),
            _ => {
                return Err(TreeDamage::Content(
                    "a key shares more bytes than the previous key has",
                ));
            }
        };
        if previous_suffix.is_some_and(|previous| previous >= suffix) {
            return Err(TreeDamage::Content("its keys are not ascending"));
        }
        let previous_start = start - previous.map_or(0, <[u8]>::len);
        let key_end = checked_end(start + shared, suffix.len())?;
        self.keys
            .extend_from_within(previous_start..previous_start + shared);
        self.keys.extend_from_slice(suffix);
        self.key_ends.push(key_end);
        Ok(())
    }

    /// Returns the hash of the bytes from which the node was decoded.
    #[must_use]
    pub const fn id(&self) -> NodeId {
        self.id
    }

    /// Returns the memory of the node, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let entries = match &self.entries {
            Entries::Items { values, value_ends } => {
                values.len() + size_of_val(value_ends.as_slice())
            }
            Entries::Children { ids, counts } => {
                size_of_val(ids.as_slice()) + size_of_val(counts.as_slice())
            }
        };
        let ends = size_of_val(self.key_ends.as_slice()) + size_of_val(self.weights.as_slice());
        size_of::<Self>() + self.keys.len() + ends + entries
    }

    /// Iterates over the keys of its items, or the last keys of its children.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.key(index))
    }

    /// Returns the sum of the items in the node or below it.
    #[must_use]
    pub fn sum(&self) -> Sum {
        self.sum_before(self.len())
    }

    /// Returns the number of levels below it.
    pub(super) const fn level(&self) -> u8 {
        self.level
    }

    /// Returns the number of entries.
    pub(super) const fn len(&self) -> usize {
        self.key_ends.len()
    }

    /// Returns the key of an item, or the last key of a child; empty if there is no such entry.
    pub(super) fn key(&self, index: usize) -> &[u8] {
        slice_at(&self.keys, &self.key_ends, index)
    }

    /// Returns the sum of the entries before an entry; of all entries if there is no such entry.
    pub(super) fn sum_before(&self, index: usize) -> Sum {
        let index = index.min(self.len());
        let count = match &self.entries {
            Entries::Items { .. } => index as u64,
            Entries::Children { counts, .. } => counts.get(index).copied().unwrap_or(0),
        };
        let weight = self.weights.get(index).copied().unwrap_or(0);
        Sum { count, weight }
    }

    /// Returns the value of an item; empty if there is none.
    pub(super) fn value(&self, index: usize) -> &[u8] {
        match &self.entries {
            Entries::Items { values, value_ends } => slice_at(values, value_ends, index),
            Entries::Children { .. } => &[],
        }
    }

    /// Returns the sum of one entry.
    pub(super) fn sum_at(&self, index: usize) -> Sum {
        let (before, after) = (self.sum_before(index), self.sum_before(index + 1));
        Sum {
            count: after.count - before.count,
            weight: after.weight - before.weight,
        }
    }

    pub(super) fn child(&self, index: usize) -> Option<Child<'_>> {
        let Entries::Children { ids, .. } = &self.entries else {
            return None;
        };
        Some(Child {
            id: *ids.get(index)?,
            level: self.level.checked_sub(1)?,
            last_key: self.key(index),
            sum: self.sum_at(index),
        })
    }

    /// Iterates over all children; none for a leaf.
    pub(super) fn children(&self) -> impl Iterator<Item = Child<'_>> {
        (0..self.len()).map_while(|index| self.child(index))
    }

    /// Finds the first entry that is or may contain `key` or a greater key.
    pub(super) fn seek(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.key(middle) < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Finds the entries that are or contain the items at these positions.
    pub(super) fn entries_at(&self, positions: std::ops::Range<u64>) -> std::ops::Range<usize> {
        let (from, to) = (positions.start, positions.end);
        match &self.entries {
            Entries::Items { .. } => {
                let clamp = |position| {
                    usize::try_from(position).map_or(self.len(), |index| index.min(self.len()))
                };
                clamp(from)..clamp(to)
            }
            Entries::Children { counts, .. } => {
                let ends = counts.get(1..).unwrap_or_default();
                let starts = counts.get(..self.len()).unwrap_or_default();
                ends.partition_point(|end| *end <= from)
                    ..starts.partition_point(|start| *start < to)
            }
        }
    }
}

impl Entries {
    fn with_capacity(level: u8, length: usize) -> Self {
        if level == 0 {
            return Self::Items {
                values: Box::default(),
                value_ends: Vec::with_capacity(length),
            };
        }
        let mut counts = Vec::with_capacity(length + 1);
        counts.push(0);
        Self::Children {
            ids: Vec::with_capacity(length),
            counts,
        }
    }
}

const OVERFLOW: TreeDamage = TreeDamage::Content("its sums are too large");

/// Returns the end of a slice if it is within the size limit of a node.
fn checked_end(start: usize, length: usize) -> Result<u32, TreeDamage> {
    let end = start
        .checked_add(length)
        .filter(|end| *end <= BODY_BYTES_MAX);
    end.and_then(|end| u32::try_from(end).ok())
        .ok_or(wire::TOO_LONG)
}

fn slice_at<'a>(bytes: &'a [u8], ends: &[u32], index: usize) -> &'a [u8] {
    let start = index
        .checked_sub(1)
        .map_or(Some(0), |previous| ends.get(previous).copied());
    let end = ends.get(index).copied();
    start
        .zip(end)
        .and_then(|(start, end)| bytes.get(start as usize..end as usize))
        .unwrap_or_default()
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
