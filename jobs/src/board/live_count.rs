//! Live counts: sums over the live entries of a key, relative to a version of one board.
//!
//! A live count gives the number of entries of the board and the layers that contribute, without
//! reading the live entries.

use schemas::seam::Epoch;
use schemas::seam::live_count::matches_version;

use super::key_boards::BoardSnapshot;
use crate::tree::{NodeId, NodeReader, Sum};

/// The first byte of the stored form.
const LAYOUT: u8 = 1;

/// A sum over the live entries of one key in the epochs after a base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveCount {
    /// The hash of the version's roots; `None` if there is no version.
    version: Option<NodeId>,
    /// The base epoch.
    base: Epoch,
    /// Entries of the version whose members have live entries.
    removed: Sum,
    /// Live entries on the board.
    added: Sum,
}

impl LiveCount {
    /// Computes the count of a board that was merged from the version with these roots and the live
    /// entries after `base`.
    #[must_use]
    pub fn compute<N: NodeReader>(
        root: Option<&[u8]>,
        base: Epoch,
        snapshot: &BoardSnapshot<'_, N>,
    ) -> Self {
        let (removed, added) = snapshot.live_sums();
        Self {
            version: root.map(NodeId::for_bytes),
            base,
            removed,
            added,
        }
    }

    /// Returns whether the count applies to a read of the version with these roots and this base.
    #[must_use]
    pub fn applies_to(&self, root: Option<&[u8]>, base: Epoch) -> bool {
        let version = root.map(NodeId::for_bytes);
        matches_version((self.version.as_ref(), self.base), (version.as_ref(), base))
    }

    /// Returns the count after some members change. `before` and `after` are the counts over only
    /// these members. Returns `None` if the counts contradict each other.
    #[must_use]
    pub fn apply_change(self, before: &Self, after: &Self) -> Option<Self> {
        Some(Self {
            removed: replace_part(self.removed, before.removed, after.removed)?,
            added: replace_part(self.added, before.added, after.added)?,
            ..self
        })
    }

    /// Computes the number and the total weight of the board's entries from those of the version.
    /// Returns `None` if the version has fewer entries than are removed.
    #[must_use]
    pub fn total(&self, version: Sum) -> Option<Sum> {
        replace_part(version, self.removed, self.added)
    }

    /// Returns whether an entry of the version remains on the board, and whether a live entry added
    /// or removed an entry. `version` is the sum of the version.
    #[must_use]
    pub const fn contributing_layers(&self, version: Sum) -> (bool, bool) {
        let is_live = self.removed.count > 0 || self.added.count > 0;
        (version.count > self.removed.count, is_live)
    }

    /// Encodes the stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![LAYOUT, u8::from(self.version.is_some())];
        if let Some(version) = &self.version {
            bytes.extend_from_slice(version.as_bytes());
        }
        bytes.extend_from_slice(&self.base.to_be_bytes());
        for sum in [self.removed, self.added] {
            bytes.extend_from_slice(&sum.count.to_be_bytes());
            bytes.extend_from_slice(&sum.weight.to_be_bytes());
        }
        bytes
    }

    /// Decodes the stored form. Returns `None` for other bytes, such as those of another layout.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, mut rest) = bytes.split_first_chunk::<2>()?;
        let version = match head {
            [LAYOUT, 0] => None,
            [LAYOUT, 1] => {
                let (version, after) = rest.split_first_chunk::<{ NodeId::LEN }>()?;
                rest = after;
                Some(NodeId::from(*version))
            }
            _ => return None,
        };
        let mut read_u64 = || {
            let (bytes, after) = rest.split_first_chunk::<8>()?;
            rest = after;
            Some(u64::from_be_bytes(*bytes))
        };
        let base = read_u64()?;
        let mut read_sum = || {
            Some(Sum {
                count: read_u64()?,
                weight: read_u64()?.cast_signed(),
            })
        };
        let (removed, added) = (read_sum()?, read_sum()?);
        rest.is_empty().then_some(Self {
            version,
            base,
            removed,
            added,
        })
    }
}

/// Subtracts one part of a sum and adds another. Returns `None` on overflow.
fn replace_part(sum: Sum, subtracted: Sum, added: Sum) -> Option<Sum> {
    Sum {
        count: sum.count.checked_sub(subtracted.count)?,
        weight: sum.weight.checked_sub(subtracted.weight)?,
    }
    .checked_add(added)
}
