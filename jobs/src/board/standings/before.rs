//! What stands before a row: of the sheet, and of what is newer.

use super::{OnBoard, ReadError, rank_key};
use crate::tree::Nodes;

/// How a place came about: the rows that stand before it. The place, from 0 on, is `sheet` less `taken_away` and `live`
/// on top.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Before {
    /// Rows of the sheet's board, an earlier one of the member itself among them.
    pub sheet: u64,
    /// Those of them that newer states took away.
    pub taken_away: u64,
    /// Rows of newer states.
    pub live: u64,
}

impl Before {
    /// The place, from 0 on.
    #[must_use]
    pub const fn place(&self) -> u64 {
        self.sheet - self.taken_away + self.live
    }
}

impl<N: Nodes> OnBoard<'_, N> {
    /// What stands before the row of a member; nothing if the member is not on the board.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn before(&self, member: &[u8]) -> Result<Option<Before>, ReadError<N::Error>> {
        if self.is_live(member) {
            let own = self.added.iter().position(|ranked| ranked.member == member);
            return Ok(own.map(|index| {
                let position = self.positions.get(index).copied().unwrap_or(0);
                self.counted(position, index)
            }));
        }
        let found = self.unchanged([member].into()).await?.pop();
        Ok(found.map(|(before, ranked)| {
            let position = before.count.saturating_sub(self.start.count);
            let added = self.added.iter();
            let live = added.filter(|other| other.order() < ranked.order());
            self.counted(position, live.count())
        }))
    }

    /// The number of rows that rank at or before a score and a member, whether the board has such a row or not: the place
    /// of the next row, from 0 on.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn count_up_to(
        &self,
        score: &[u8],
        member: &[u8],
    ) -> Result<u64, ReadError<N::Error>> {
        let live = self
            .added
            .partition_point(|other| other.order() <= (score, member));
        let Some(sheet) = &self.standings.sheet else {
            return Ok(live as u64);
        };
        // The first key after that of such a row.
        let mut key = rank_key(&self.board, score, member);
        key.push(0);
        let before = sheet.by_rank.ranks(self.nodes, &[&key]).await?.pop();
        let before = before.unwrap_or_default().count;
        let position = before.clamp(self.start.count, self.end.count) - self.start.count;
        Ok(self.counted(position, live).place())
    }

    fn counted(&self, position: u64, live: usize) -> Before {
        Before {
            sheet: position,
            taken_away: self.removed_before(position),
            live: live as u64,
        }
    }
}
