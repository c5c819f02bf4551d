//! Live counts, and the changes of board sizes from which they follow.

use schemas::seam::Epoch;

use super::entity_rows::{ABSENT, BOARDS, KEY_MEMBERS, Scores};
use super::live_entries::LiveEntry;
use super::versions::Root;

/// A stored live count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredCount {
    pub(super) name: u64,
    /// `None` for a placeholder.
    pub(super) value: Option<LiveCount>,
}

/// The changes of board sizes by the live entries after a base, compared with a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LiveCount {
    pub(super) root: Option<Root>,
    pub(super) base: Epoch,
    pub(super) size_changes: [i32; BOARDS],
}

/// The change of a key's live count in an apply.
pub(super) struct LiveCountChange {
    pub(super) key: usize,
    pub(super) expected: Option<StoredCount>,
    pub(super) next: Option<StoredCount>,
}

/// The members of a version.
pub(super) struct VersionMembers {
    scores: [Scores; KEY_MEMBERS],
    base: Epoch,
}

impl LiveCount {
    /// Returns whether the count equals the sum of all entries of its key.
    pub(super) fn equals_sum(&self, entries: &[LiveEntry]) -> bool {
        let members = VersionMembers::new(self.root.as_ref(), self.base);
        self.size_changes == members.sum_changes(entries, &[None; KEY_MEMBERS])
    }
}

impl VersionMembers {
    pub(super) fn new(root: Option<&Root>, base: Epoch) -> Self {
        let mut scores = [ABSENT; KEY_MEMBERS];
        let nodes = root.into_iter().flat_map(|root| root.nodes.iter());
        for entry in nodes.flat_map(|node| node.entries()) {
            scores[entry.member][entry.board] = entry.score;
        }
        Self { scores, base }
    }

    /// Sums the changes of board sizes by live entries, of which new scores replace some.
    pub(super) fn sum_changes(
        &self,
        entries: &[LiveEntry],
        new_scores: &[Option<Scores>; KEY_MEMBERS],
    ) -> [i32; BOARDS] {
        let mut changes = [0; BOARDS];
        for (member, old) in self.scores.iter().enumerate() {
            let counting = entries
                .iter()
                .filter(|entry| entry.member.number() == member && entry.epoch > self.base);
            let newest = counting.max_by_key(|entry| entry.epoch);
            let Some(new) = new_scores[member].or(newest.map(|entry| entry.scores)) else {
                continue;
            };
            for board in 0..BOARDS {
                changes[board] += i32::from(new[board] > 0) - i32::from(old[board] > 0);
            }
        }
        changes
    }
}
