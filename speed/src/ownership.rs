//! Detects misrouted events: events in another partition than their owner's.

use schemas::partition::partition_of;

/// Number of cached owners; a power of two.
const CACHED_OWNERS: usize = 1 << 12;

/// A cache of owners that belong to one partition. Every event is checked, and few owners have most
/// of the events. So recent owners are cached by position and not hashed again.
#[derive(Debug)]
pub(crate) struct OwnershipCache {
    partition: u32,
    /// The number of partitions for which the cache is valid.
    partitions: u32,
    owners: Vec<Option<i64>>,
}

impl OwnershipCache {
    pub(crate) fn new(partition: u32) -> Self {
        Self {
            partition,
            partitions: 0,
            owners: vec![None; CACHED_OWNERS],
        }
    }

    /// Returns whether one of the owners belongs to another of `partitions` partitions.
    pub(crate) fn has_misrouted(&mut self, owners: &[i64], partitions: u32) -> bool {
        if partitions != self.partitions {
            self.partitions = partitions;
            self.owners.fill(None);
        }
        for owner in owners {
            let Some(cached) = self.owners.get_mut(owner_index(*owner)) else {
                continue;
            };
            if *cached == Some(*owner) {
                continue;
            }
            if partition_of(owner.to_string().as_bytes(), partitions) != self.partition {
                return true;
            }
            *cached = Some(*owner);
        }
        false
    }
}

/// The position of an owner in the cache, below [`CACHED_OWNERS`]. Multiplication by an irregular
/// number spreads regular ids.
fn owner_index(owner: i64) -> usize {
    let spread = owner
        .cast_unsigned()
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(CACHED_OWNERS.trailing_zeros());
    usize::try_from(spread).unwrap_or(0) & (CACHED_OWNERS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_misrouted(owner: i64, partition: u32, partitions: u32) -> bool {
        partition_of(owner.to_string().as_bytes(), partitions) != partition
    }

    /// The results equal those without a cache, also when partitions are added.
    #[test]
    fn results_equal_those_without_a_cache() {
        let (partition, mut cache) = (1, OwnershipCache::new(1));
        let ids = |step: i64| (-300..300_i64).map(move |n| n.wrapping_mul(step));
        let owners: Vec<i64> = [1, 4096, 1 << 40, i64::MAX / 301]
            .into_iter()
            .flat_map(ids)
            .collect();
        for partitions in [1, 2, 3, 2, 7] {
            for _ in 0..2 {
                for owner in &owners {
                    let has_misrouted = cache.has_misrouted(&[*owner], partitions);
                    assert_eq!(
                        has_misrouted,
                        is_misrouted(*owner, partition, partitions),
                        "{owner}"
                    );
                }
                let owned = owners.iter().copied();
                let mut owned: Vec<i64> = owned
                    .filter(|owner| !is_misrouted(*owner, partition, partitions))
                    .collect();
                assert!(!cache.has_misrouted(&owned, partitions));
                let misrouted = owners
                    .iter()
                    .find(|owner| is_misrouted(**owner, partition, partitions));
                owned.push(*misrouted.expect("a misrouted owner"));
                assert!(cache.has_misrouted(&owned, partitions));
            }
        }
    }
}
