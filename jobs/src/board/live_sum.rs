//! What the live states of a key make of one board of an edition, as sums: enough to know how many rows
//! the board has, and which layers had a part in it, without reading the states.

use schemas::seam::Epoch;
use schemas::seam::sum::joins;

use super::standings::OnBoard;
use crate::tree::{NodeId, Nodes, Sum};

/// The bytes of a sum begin with the version of their layout.
const LAYOUT: u8 = 1;

/// A sum over the live states of one key of epochs after a base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveSum {
    /// The hash of the roots of the edition that it is against; nothing where there was none.
    edition: Option<NodeId>,
    /// The base.
    base: Epoch,
    /// What is not on the edition's board any more, since its member has a live state.
    removed: Sum,
    /// What live states put there.
    added: Sum,
}

impl LiveSum {
    /// The sum over the states that stand on a board, against the edition that has these roots, on a base.
    #[must_use]
    pub fn of<N: Nodes>(root: Option<&[u8]>, base: Epoch, on_board: &OnBoard<'_, N>) -> Self {
        let (removed, added) = on_board.live();
        Self {
            edition: root.map(NodeId::of),
            base,
            removed,
            added,
        }
    }

    /// Whether it counts for a read of the edition with these roots on a base.
    #[must_use]
    pub fn joins(&self, root: Option<&[u8]>, base: Epoch) -> bool {
        let edition = root.map(NodeId::of);
        joins((self.edition.as_ref(), self.base), (edition.as_ref(), base))
    }

    /// The sum once some members, whose states summed up to `before`, have those that sum up to `after`;
    /// nothing if that can't be.
    #[must_use]
    pub fn moved(self, before: &Self, after: &Self) -> Option<Self> {
        Some(Self {
            removed: moved(self.removed, before.removed, after.removed)?,
            added: moved(self.added, before.added, after.added)?,
            ..self
        })
    }

    /// How many rows the board has, where the edition's alone has `edition` rows, and what their weights
    /// add up to; nothing if the edition has not as many as are taken away.
    #[must_use]
    pub fn total(&self, edition: Sum) -> Option<Sum> {
        moved(edition, self.removed, self.added)
    }

    /// Whether a row of an edition with so many rows is on the board, and whether a live state had a part
    /// in it.
    #[must_use]
    pub const fn layers(&self, edition: Sum) -> (bool, bool) {
        let is_live = self.removed.count > 0 || self.added.count > 0;
        (edition.count > self.removed.count, is_live)
    }

    /// As it is stored.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![LAYOUT, u8::from(self.edition.is_some())];
        if let Some(edition) = &self.edition {
            bytes.extend_from_slice(edition.as_bytes());
        }
        bytes.extend_from_slice(&self.base.to_be_bytes());
        for sum in [self.removed, self.added] {
            bytes.extend_from_slice(&sum.count.to_be_bytes());
            bytes.extend_from_slice(&sum.weight.to_be_bytes());
        }
        bytes
    }

    /// What [`LiveSum::encode`] gave; nothing for other bytes, such as those of another version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, mut rest) = bytes.split_first_chunk::<2>()?;
        let edition = match head {
            [LAYOUT, 0] => None,
            [LAYOUT, 1] => {
                let (edition, after) = rest.split_first_chunk::<{ NodeId::LEN }>()?;
                rest = after;
                Some(NodeId::from(*edition))
            }
            _ => return None,
        };
        let mut number = || {
            let (number, after) = rest.split_first_chunk::<8>()?;
            rest = after;
            Some(u64::from_be_bytes(*number))
        };
        let base = number()?;
        let mut sum = || {
            Some(Sum {
                count: number()?,
                weight: number()?.cast_signed(),
            })
        };
        let (removed, added) = (sum()?, sum()?);
        rest.is_empty().then_some(Self {
            edition,
            base,
            removed,
            added,
        })
    }
}

/// A sum less one part of it and with another.
fn moved(sum: Sum, less: Sum, more: Sum) -> Option<Sum> {
    Sum {
        count: sum.count.checked_sub(less.count)?,
        weight: sum.weight.checked_sub(less.weight)?,
    }
    .checked_add(more)
}
