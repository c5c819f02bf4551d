//! Collects the entries of a node in columns until the node is encoded.

use bytes::Bytes;

use super::wire::{self, ENTRY_BYTES};
use super::{NodeId, Sum};
use schemas::leb128;

/// A node under construction.
#[derive(Debug, Default)]
pub(super) struct NodeDraft {
    entries: usize,
    lengths: Vec<u8>,
    numbers: Vec<u8>,
    keys: Vec<u8>,
    contents: Vec<u8>,
    last_key: Vec<u8>,
    bytes: usize,
    sum: Sum,
}

/// An encoded node, with the data for its parent.
#[derive(Debug)]
pub(super) struct EncodedNode {
    pub(super) id: NodeId,
    pub(super) bytes: Bytes,
    pub(super) last_key: Vec<u8>,
    pub(super) sum: Sum,
}

impl NodeDraft {
    /// The number of entries.
    pub(super) const fn entries(&self) -> usize {
        self.entries
    }

    /// Bytes of the entries with full keys. A body never has more.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an item to a leaf. The weight must not be negative.
    pub(super) fn push_item(&mut self, key: &[u8], weight: i64, value: &[u8]) {
        let numbers = [weight.cast_unsigned(), value.len() as u64];
        self.push(key, Sum { count: 1, weight }, numbers, value);
    }

    /// Adds a child to an inner node.
    pub(super) fn push_child(&mut self, child: &EncodedNode) {
        let numbers = [child.sum.count, child.sum.weight.cast_unsigned()];
        self.push(&child.last_key, child.sum, numbers, child.id.as_bytes());
    }

    fn push(&mut self, key: &[u8], sum: Sum, numbers: [u64; 2], content: &[u8]) {
        self.sum = self.sum.plus(sum);
        let byte_pairs = self.last_key.iter().zip(key);
        let shared = byte_pairs.take_while(|(last, byte)| last == byte).count();
        let suffix = key.get(shared..).unwrap_or_default();
        leb128::write(&mut self.lengths, shared as u64);
        leb128::write(&mut self.lengths, suffix.len() as u64);
        self.keys.extend_from_slice(suffix);
        for number in numbers {
            leb128::write(&mut self.numbers, number);
        }
        self.contents.extend_from_slice(content);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(suffix);
        self.entries += 1;
        self.bytes += key.len() + content.len() + ENTRY_BYTES;
    }

    /// Encodes the node and starts the next one.
    pub(super) fn encode_and_reset(&mut self, level: u8, compress: bool) -> EncodedNode {
        let columns = [&self.lengths, &self.numbers, &self.keys, &self.contents];
        let mut body = Vec::with_capacity(columns.iter().map(|c| c.len()).sum::<usize>() + 16);
        leb128::write(&mut body, self.entries as u64);
        for column in columns.iter().take(3) {
            leb128::write(&mut body, column.len() as u64);
        }
        for column in columns {
            body.extend_from_slice(column);
        }
        let bytes = wire::encode(level, &body, compress);
        let encoded = EncodedNode {
            id: NodeId::for_bytes(&bytes),
            bytes: Bytes::from(bytes),
            last_key: std::mem::take(&mut self.last_key),
            sum: std::mem::take(&mut self.sum),
        };
        for column in [
            &mut self.lengths,
            &mut self.numbers,
            &mut self.keys,
            &mut self.contents,
        ] {
            column.clear();
        }
        (self.entries, self.bytes) = (0, 0);
        encoded
    }
}
