//! Fields with their values, decoded from replies and from packed rows.

use redis::Value;

use super::packed::{self, Sums, rows_of};

/// Fields with their values.
pub(super) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Decodes alternating fields and values.
pub(super) fn decode_pairs(values: Vec<Value>) -> Option<Pairs> {
    let mut pairs = Vec::with_capacity(values.len() / 2);
    let mut values = values.into_iter();
    while let Some(field) = values.next() {
        let (Value::BulkString(field), Value::BulkString(value)) = (field, values.next()?) else {
            return None;
        };
        pairs.push((field, value));
    }
    Some(pairs)
}

/// Decodes the rows of one view from a shared string. Returns `None` if the string does not decode.
pub(super) fn unpack_string(string: &[u8], view: usize) -> Option<Pairs> {
    Some(encode_sums(rows_of(string, view)?))
}

/// Decodes the rows of chunks. Returns `None` if a chunk does not decode.
pub(super) fn unpack_chunks(chunks: &Pairs) -> Option<Pairs> {
    let chunks = chunks.iter().map(|(_, chunk)| chunk.as_slice());
    Some(encode_sums(packed::summed(chunks)?))
}

fn encode_sums(sums: Sums<'_>) -> Pairs {
    let sums = sums.into_iter();
    let pairs = sums.map(|(row, sum)| (row.to_vec(), sum.to_string().into_bytes()));
    pairs.collect()
}
