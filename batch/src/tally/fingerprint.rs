//! Sums of changes by a hash of the key, by which the two sides of a drift are compared.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// One for each value of 16 bits of the hash.
const BUCKETS: usize = 1 << 16;

/// Sums of changes by a hash of the key.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Fingerprint(Vec<(u64, u64)>);

/// As it travels: the numbers of all buckets, packed.
impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        let sums = fingerprint.0.iter();
        let bytes = sums.flat_map(|(sum, weighted)| [sum.to_le_bytes(), weighted.to_le_bytes()]);
        BASE64.encode(bytes.collect::<Vec<_>>().concat())
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes = BASE64.decode(text).map_err(|error| error.to_string())?;
        let (numbers, rest) = bytes.as_chunks::<8>();
        let (pairs, odd) = numbers.as_chunks::<2>();
        if pairs.len() != BUCKETS || !rest.is_empty() || !odd.is_empty() {
            return Err(format!("a fingerprint of {} bytes", bytes.len()));
        }
        let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let pairs = pairs.iter();
        let sums = pairs.map(|[sum, weighted]| (number(sum), number(weighted)));
        Ok(Self(sums.collect()))
    }
}

impl Fingerprint {
    pub(crate) fn new() -> Self {
        Self(vec![(0, 0); BUCKETS])
    }

    /// Notes what the batch layer changed.
    pub(crate) fn batch(&mut self, group: &[u8], row: &[u8], delta: i64) {
        self.add(group, row, delta);
    }

    pub(super) fn add(&mut self, group: &[u8], row: &[u8], delta: i64) {
        let (bucket, weight) = place(group, row);
        if let Some((sum, weighted)) = self.0.get_mut(bucket) {
            let delta = delta.cast_unsigned();
            *sum = sum.wrapping_add(delta);
            // Differences of two keys in one bucket can cancel out; weighted by their hashes as well
            // they don't.
            *weighted = weighted.wrapping_add(delta.wrapping_mul(weight | 1));
        }
    }

    /// Adds what was noted elsewhere.
    pub(crate) fn add_all(&mut self, other: &Self) {
        for ((sum, weighted), (more, more_weighted)) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.wrapping_add(*more);
            *weighted = weighted.wrapping_add(*more_weighted);
        }
    }

    pub(super) fn differs(&self, group: &[u8], row: &[u8]) -> bool {
        let (bucket, _) = place(group, row);
        self.0.get(bucket).is_some_and(|sums| *sums != (0, 0))
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.iter().all(|sums| *sums == (0, 0))
    }
}

fn place(group: &[u8], row: &[u8]) -> (usize, u64) {
    let mut hasher = Xxh3::new();
    hasher.update(group);
    hasher.update(row);
    let [a, b, rest @ ..] = hasher.digest128().to_le_bytes();
    let mut weight = [0; 8];
    weight.copy_from_slice(&rest[6..]);
    (
        usize::from(u16::from_le_bytes([a, b])),
        u64::from_le_bytes(weight),
    )
}
