//! Whether events are where their owners belong.

use schemas::partition::partition_of;

/// Owners that are remembered; a power of two.
const KNOWN: usize = 1 << 12;

/// Which owners belong to one partition. Each event asks, and few owners have most of the events: so
/// those that were at home lately are remembered, one in each place, and are not hashed again.
#[derive(Debug)]
pub(crate) struct Homes {
    partition: u32,
    /// How many partitions there were when owners were looked at.
    partitions: u32,
    known: Vec<Option<i64>>,
}

impl Homes {
    pub(crate) fn new(partition: u32) -> Self {
        Self {
            partition,
            partitions: 0,
            known: vec![None; KNOWN],
        }
    }

    /// Whether one of the owners belongs to another partition, where there are so many.
    pub(crate) fn has_strays(&mut self, owners: &[i64], partitions: u32) -> bool {
        if partitions != self.partitions {
            self.partitions = partitions;
            self.known.fill(None);
        }
        for owner in owners {
            let Some(known) = self.known.get_mut(place(*owner)) else {
                continue;
            };
            if *known == Some(*owner) {
                continue;
            }
            if partition_of(owner.to_string().as_bytes(), partitions) != self.partition {
                return true;
            }
            *known = Some(*owner);
        }
        false
    }
}

/// Where an owner is remembered: below [`KNOWN`]. Multiplying by a number without a pattern spreads
/// ids that have one.
fn place(owner: i64) -> usize {
    let spread = owner
        .cast_unsigned()
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(KNOWN.trailing_zeros());
    usize::try_from(spread).unwrap_or(0) & (KNOWN - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_stray(owner: i64, partition: u32, partitions: u32) -> bool {
        partition_of(owner.to_string().as_bytes(), partitions) != partition
    }

    /// The plain rule, for every owner: whatever was seen before, and when partitions are added.
    #[test]
    fn strays_are_told_as_if_nothing_was_remembered() {
        let (partition, mut homes) = (1, Homes::new(1));
        let ids = |step: i64| (-300..300_i64).map(move |n| n.wrapping_mul(step));
        let owners: Vec<i64> = [1, 4096, 1 << 40, i64::MAX / 301]
            .into_iter()
            .flat_map(ids)
            .collect();
        for partitions in [1, 2, 3, 2, 7] {
            for _ in 0..2 {
                for owner in &owners {
                    let told = homes.has_strays(&[*owner], partitions);
                    assert_eq!(told, is_stray(*owner, partition, partitions), "{owner}");
                }
                let at_home = owners.iter().copied();
                let mut at_home: Vec<i64> = at_home
                    .filter(|owner| !is_stray(*owner, partition, partitions))
                    .collect();
                assert!(!homes.has_strays(&at_home, partitions));
                let stray = owners
                    .iter()
                    .find(|owner| is_stray(**owner, partition, partitions));
                at_home.push(*stray.expect("one"));
                assert!(homes.has_strays(&at_home, partitions));
            }
        }
    }
}
