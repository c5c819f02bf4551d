//! Explains a rank: the entries before it, by layer.

use super::{BoardSnapshot, ReadError, rank_key};
use crate::tree::NodeReader;

/// The number of entries before an entry. Its index from 0 is `version` − `removed` + `live`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RankBreakdown {
    /// Entries of the version, including an earlier one of the same member.
    pub version: u64,
    /// Entries of the version that live entries removed.
    pub removed: u64,
    /// Live entries.
    pub live: u64,
}

impl RankBreakdown {
    /// Returns the index, from 0.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.version - self.removed + self.live
    }
}

impl<N: NodeReader> BoardSnapshot<'_, N> {
    /// Explains a member's rank. Returns `None` if the member is not on the board.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn explain_rank(
        &self,
        member: &[u8],
    ) -> Result<Option<RankBreakdown>, ReadError<N::Error>> {
        if self.has_live_entry(member) {
            let index = self.added.iter().position(|ranked| ranked.member == member);
            return Ok(index.map(|index| {
                let position = self.positions.get(index).copied().unwrap_or(0);
                self.breakdown_at(position, index)
            }));
        }
        let entry = self.find_unchanged([member].into()).await?.pop();
        Ok(entry.map(|(before, ranked)| {
            let position = before.count.saturating_sub(self.start.count);
            let added = self.added.iter();
            let live = added.filter(|other| other.sort_key() < ranked.sort_key());
            self.breakdown_at(position, live.count())
        }))
    }

    /// Counts the entries at or before a score and a member, even if the board has no such
    /// entry. This is the index of the next entry.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn count_up_to(
        &self,
        score: &[u8],
        member: &[u8],
    ) -> Result<u64, ReadError<N::Error>> {
        let live = self
            .added
            .partition_point(|other| other.sort_key() <= (score, member));
        let Some(version) = &self.key_boards.version else {
            return Ok(live as u64);
        };
        // The first key after the key of such an entry.
        let mut key = rank_key(&self.board, score, member);
        key.push(0);
        let before = version.by_rank.ranks(self.nodes, &[&key]).await?.pop();
        let before = before.unwrap_or_default().count;
        let position = before.clamp(self.start.count, self.end.count) - self.start.count;
        Ok(self.breakdown_at(position, live).index())
    }

    fn breakdown_at(&self, position: u64, live: usize) -> RankBreakdown {
        RankBreakdown {
            version: position,
            removed: self.count_removed_before(position),
            live: live as u64,
        }
    }
}
