//! The first entries of a board, and the achievements that follow from a change.
//!
//! Changes of a board are applied one by one. Achievements depend only on the first entries. This
//! module is independent of the source of entries and of the receivers of messages.

use schemas::achievement::AchievementKind;

use super::key_boards::RankedEntry;
use super::member_entries::BoardEntry;

/// The number of ranks with achievements.
const TOP_COUNT: usize = 10;
/// The bytes of the first column of a score.
const FIRST_COLUMN_BYTES: usize = 8;

/// The first entries of one board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopEntries {
    /// In rank order.
    entries: Vec<RankedEntry>,
    /// True if these are all entries of the board.
    is_complete: bool,
}

/// An achievement that follows from a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AchievementEvent {
    /// The kind of achievement.
    pub kind: AchievementKind,
    /// The rank after the change, from 1 to 10. `None` if the rank is greater, or the member left
    /// the board.
    pub rank: Option<u64>,
    /// The entry with its member. For a lost crown, the entry of the previous holder.
    pub entry: RankedEntry,
    /// For a lost crown, the member who holds it now, if any.
    pub new_holder: Option<Vec<u8>>,
}

impl TopEntries {
    /// The number of entries that are kept after a board was read.
    pub const CAPACITY: usize = 32;

    /// Creates the top entries from the first [`TopEntries::CAPACITY`] entries of a board, or from
    /// all of them if there are fewer.
    #[must_use]
    pub fn new(mut entries: Vec<RankedEntry>) -> Self {
        let is_complete = entries.len() < Self::CAPACITY;
        entries.truncate(Self::CAPACITY);
        Self {
            entries,
            is_complete,
        }
    }

    /// Returns whether too few entries remain to apply a change. Then read the board again first.
    #[must_use]
    pub const fn needs_reload(&self) -> bool {
        !self.is_complete && self.entries.len() <= TOP_COUNT
    }

    /// Returns the entry with rank 1.
    #[must_use]
    pub fn first(&self) -> Option<&RankedEntry> {
        self.entries.first()
    }

    /// Replaces the entry of a member and returns the achievements. [`TopEntries::needs_reload`]
    /// must be false.
    pub fn apply(&mut self, member: &[u8], after: Option<&BoardEntry>) -> Vec<AchievementEvent> {
        let after = after.filter(|entry| self.is_in_range((&entry.score, member)));
        let was_known = self.entries.iter().any(|row| row.member == member);
        if after.is_none() && !was_known {
            return Vec::new();
        }
        let before: Vec<RankedEntry> = self.entries.iter().take(TOP_COUNT).cloned().collect();
        self.replace(member, after);
        let mut events = Vec::new();
        let (old_first, new_first) = (before.first(), self.entries.first());
        let holder = |row: Option<&RankedEntry>| row.map(|row| row.member.clone());
        if holder(old_first) != holder(new_first) {
            events.extend(old_first.map(|row| AchievementEvent {
                kind: AchievementKind::CrownLost,
                rank: self.find_rank(&row.member),
                entry: row.clone(),
                new_holder: holder(new_first),
            }));
            events.extend(new_first.map(|row| AchievementEvent {
                kind: AchievementKind::Crown,
                rank: Some(1),
                entry: row.clone(),
                new_holder: None,
            }));
        }
        for (rank, row) in (1..).zip(&self.entries).take(TOP_COUNT).skip(1) {
            let old = before.iter().find(|old| old.member == row.member);
            let is_new = match old {
                None => true,
                Some(old) => row.member == member && row.score < old.score,
            };
            if is_new {
                events.push(AchievementEvent {
                    kind: AchievementKind::TopTen,
                    rank: Some(rank),
                    entry: row.clone(),
                    new_holder: None,
                });
            }
        }
        events
    }

    /// Returns the personal record that a change sets. Returns `None` unless the member had an
    /// entry and the first column of its score improves. Call it after [`TopEntries::apply`].
    #[must_use]
    pub fn find_personal_record(
        &self,
        member: &[u8],
        before: Option<&BoardEntry>,
        after: Option<&BoardEntry>,
    ) -> Option<AchievementEvent> {
        let (before, after) = (before?, after?);
        let first_column =
            |entry: &BoardEntry| entry.score.get(..FIRST_COLUMN_BYTES).map(<[u8]>::to_vec);
        (first_column(after)? < first_column(before)?).then(|| AchievementEvent {
            kind: AchievementKind::PersonalRecord,
            rank: self.find_rank(member),
            entry: RankedEntry::new(member, after),
            new_holder: None,
        })
    }

    fn find_rank(&self, member: &[u8]) -> Option<u64> {
        let mut ranked = (1..).zip(&self.entries).take(TOP_COUNT);
        ranked
            .find(|(_, row)| row.member == member)
            .map(|(rank, _)| rank)
    }

    /// Returns whether an entry with this sort key is at or before the last known entry. Later
    /// entries are unknown.
    fn is_in_range(&self, sort_key: (&[u8], &[u8])) -> bool {
        self.is_complete
            || self
                .entries
                .last()
                .is_some_and(|last| sort_key <= last.sort_key())
    }

    /// Replaces the entry of a member by a known entry.
    fn replace(&mut self, member: &[u8], after: Option<&BoardEntry>) {
        self.entries.retain(|row| row.member != member);
        let Some(row) = after.map(|entry| RankedEntry::new(member, entry)) else {
            return;
        };
        let index = self
            .entries
            .partition_point(|other| other.sort_key() < row.sort_key());
        self.entries.insert(index, row);
        if self.entries.len() > Self::CAPACITY {
            self.entries.truncate(Self::CAPACITY);
            self.is_complete = false;
        }
    }
}

#[cfg(test)]
#[path = "top_entries_tests.rs"]
mod tests;
