//! Explains a rank: the entries before it, by layer.

use super::{BoardSnapshot, ReadError, rank_key};
use crate::tree::Nodes;

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
    /// The index, from 0.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.version - self.removed + self.live
    }
}

impl<N: Nodes> BoardSnapshot<'_, N> {
    /// The breakdown of a member's rank, or `None` if the member is not on the board.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn rank_breakdown(
        &self,
        member: &[u8],
    ) -> Result<Option<RankBreakdown>, ReadError<N::Error>> {
        if self.is_live(member) {
            let own = self.added.iter().position(|ranked| ranked.member == member);
            return Ok(own.map(|index| {
                let position = self.positions.get(index).copied().unwrap_or(0);
                self.breakdown_at(position, index)
            }));
        }
        let found = self.find_unchanged([member].into()).await?.pop();
        Ok(found.map(|(before, ranked)| {
            let position = before.count.saturating_sub(self.start.count);
            let added = self.added.iter();
            let live = added.filter(|other| other.order() < ranked.order());
            self.breakdown_at(position, live.count())
        }))
    }

    /// The number of entries at or before a score and a member, even if the board has no such
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
            .partition_point(|other| other.order() <= (score, member));
        let Some(version) = &self.key_boards.version else {
            return Ok(live as u64);
        };
        // The first key after that of such an entry.
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
            removed: self.removed_before(position),
            live: live as u64,
        }
    }
}
