//! The assignment of keys to log partitions.
//!
//! The rule is Kafka's default partitioner (murmur2 of the key's bytes), so producers of other
//! systems use the same partition for an owner's events. Duplicates of an event are therefore in
//! one partition, and a read by owner needs one partition state.

/// Returns the partition of a key in a topic with `partitions`.
///
/// `partitions` must be at least 1; 0 counts as 1.
#[must_use]
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions.max(1)
}

/// The 32-bit `MurmurHash2` with the seed that Kafka's clients use. Source: Austin Appleby's
/// public-domain algorithm; seed and sign mask as in Kafka's `Utils.murmur2`.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut h = 0x9747_b28c_u32 ^ length;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        k = k.wrapping_mul(M);
        k ^= k >> R;
        k = k.wrapping_mul(M);
        h = h.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (i, &byte) in rest.iter().enumerate().rev() {
            h ^= u32::from(byte) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `org.apache.kafka.common.utils.Utils.murmur2`, as its own unit test lists them.
    #[test]
    fn murmur2_agrees_with_kafka() {
        let cases: [(&[u8], i32); 5] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (
                b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
        ];
        for (key, expected) in cases {
            assert_eq!(murmur2(key).cast_signed(), expected, "{key:?}");
        }
    }

    #[test]
    fn partitions_are_in_range_and_all_used() {
        let mut is_used = [false; 7];
        for id in 0..1000_i64 {
            let p = partition_of(id.to_string().as_bytes(), 7);
            is_used[p as usize] = true;
        }
        assert!(is_used.iter().all(|used| *used));
        assert_eq!(partition_of(b"x", 0), 0);
    }
}
