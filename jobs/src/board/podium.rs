//! The first places of a board, and what somebody achieves when one changes.
//!
//! It is told the changes of a board one after the other, and knows nothing but the first rows: what
//! is achieved depends only on those. It must not know where rows come from nor who is told.

use schemas::achievement::Kind;

use super::standings::Ranked;
use super::state::Place;

/// The places that are told.
const TOP: usize = 10;
/// Bytes of the first column of a score.
const FIRST_COLUMN: usize = 8;

/// The first rows of one board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Podium {
    /// In the order of ranks.
    rows: Vec<Ranked>,
    /// Whether these are all rows of the board.
    is_whole: bool,
}

/// What a change brought to somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What it is.
    pub kind: Kind,
    /// The place after the change, from 1 to 10; none where that is further behind, or the member is
    /// not on the board any more.
    pub rank: Option<u64>,
    /// The row that it is about, with its member: of a crown that was lost the one that had held it.
    pub row: Ranked,
    /// Of a crown that was lost: who has it now, if anybody has.
    pub taken_by: Option<Vec<u8>>,
}

impl Podium {
    /// So many rows are known of a board that was just read.
    pub const ROWS: usize = 32;

    /// The podium of a board whose first [`Podium::ROWS`] rows are these: all of it, if there are
    /// fewer.
    #[must_use]
    pub fn of(mut rows: Vec<Ranked>) -> Self {
        let is_whole = rows.len() < Self::ROWS;
        rows.truncate(Self::ROWS);
        Self { rows, is_whole }
    }

    /// Whether so many rows have left that it does not tell who comes next: the board is to be read
    /// again before it changes.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        !self.is_whole && self.rows.len() <= TOP
    }

    /// Who is first.
    #[must_use]
    pub fn first(&self) -> Option<&Ranked> {
        self.rows.first()
    }

    /// Puts what a member has on the board now in the place of what it had, and answers what that
    /// brought to whom. The podium must not be short.
    pub fn change(&mut self, member: &[u8], after: Option<&Place>) -> Vec<Event> {
        let row = after.filter(|place| self.is_known((&place.score, member)));
        let is_there = self.rows.iter().any(|row| row.member == member);
        if row.is_none() && !is_there {
            return Vec::new();
        }
        let before: Vec<Ranked> = self.rows.iter().take(TOP).cloned().collect();
        self.put(member, row);
        let mut events = Vec::new();
        let (old, new) = (before.first(), self.rows.first());
        let holder = |row: Option<&Ranked>| row.map(|row| row.member.clone());
        if holder(old) != holder(new) {
            events.extend(old.map(|row| Event {
                kind: Kind::CrownLost,
                rank: self.rank(&row.member),
                row: row.clone(),
                taken_by: holder(new),
            }));
            events.extend(new.map(|row| Event {
                kind: Kind::Crown,
                rank: Some(1),
                row: row.clone(),
                taken_by: None,
            }));
        }
        for (rank, row) in (1..).zip(&self.rows).take(TOP).skip(1) {
            let had = before.iter().find(|old| old.member == row.member);
            let is_new = match had {
                None => true,
                Some(old) => row.member == member && row.score < old.score,
            };
            if is_new {
                events.push(Event {
                    kind: Kind::TopTen,
                    rank: Some(rank),
                    row: row.clone(),
                    taken_by: None,
                });
            }
        }
        events
    }

    /// The record that a member sets by this change, if it does, after [`Podium::change`]: it had
    /// something on the board before, and the first column of its score is better now.
    #[must_use]
    pub fn record(
        &self,
        member: &[u8],
        before: Option<&Place>,
        after: Option<&Place>,
    ) -> Option<Event> {
        let (before, after) = (before?, after?);
        let first = |place: &Place| place.score.get(..FIRST_COLUMN).map(<[u8]>::to_vec);
        (first(after)? < first(before)?).then(|| Event {
            kind: Kind::PersonalRecord,
            rank: self.rank(member),
            row: Ranked::of(member, after),
            taken_by: None,
        })
    }

    fn rank(&self, member: &[u8]) -> Option<u64> {
        let mut ranked = (1..).zip(&self.rows).take(TOP);
        ranked
            .find(|(_, row)| row.member == member)
            .map(|(rank, _)| rank)
    }

    /// Whether a row of this order is not behind the last one that is known: what is there stays
    /// unknown.
    fn is_known(&self, order: (&[u8], &[u8])) -> bool {
        self.is_whole || self.rows.last().is_some_and(|last| order <= last.order())
    }

    /// Puts a known row in the place of what a member had.
    fn put(&mut self, member: &[u8], after: Option<&Place>) {
        self.rows.retain(|row| row.member != member);
        let Some(row) = after.map(|place| Ranked::of(member, place)) else {
            return;
        };
        let at = self
            .rows
            .partition_point(|other| other.order() < row.order());
        self.rows.insert(at, row);
        if self.rows.len() > Self::ROWS {
            self.rows.truncate(Self::ROWS);
            self.is_whole = false;
        }
    }
}

#[cfg(test)]
#[path = "podium_tests.rs"]
mod tests;
