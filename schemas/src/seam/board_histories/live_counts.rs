//! Live counts, and what entries add to the boards of a version.

use super::entity_rows::{BOARDS, GONE, MEMBERS, State};
use super::live_entry::LiveEntry;
use super::versions::Root;
use crate::seam::Epoch;

/// A stored live count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredCount {
    pub(super) name: u64,
    /// `None` for a placeholder.
    pub(super) value: Option<LiveCount>,
}

/// The number of entries that live states after a base add to each board of a version, minus those
/// that they remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LiveCount {
    pub(super) root: Option<Root>,
    pub(super) base: Epoch,
    pub(super) change: [i32; BOARDS],
}

/// The change of a key's live count in an apply.
pub(super) struct LiveCountChange {
    pub(super) key: usize,
    pub(super) expected: Option<StoredCount>,
    pub(super) next: Option<StoredCount>,
}

/// The members of a version.
pub(super) struct Members {
    states: [State; MEMBERS],
    base: Epoch,
}

impl LiveCount {
    /// Returns whether it is what the entries of its key, all of them, add up to.
    pub(super) fn equals(&self, entries: &[LiveEntry]) -> bool {
        let members = Members::new(self.root.as_ref(), self.base);
        self.change == members.after(entries, &[None; MEMBERS])
    }
}

impl Members {
    pub(super) fn new(root: Option<&Root>, base: Epoch) -> Self {
        let mut states = [GONE; MEMBERS];
        let nodes = root.into_iter().flat_map(|root| root.nodes.iter());
        for row in nodes.flat_map(|node| node.rows()) {
            states[row.member][row.board] = row.score;
        }
        Self { states, base }
    }

    /// Computes the changes of each board by entries and then by new states.
    pub(super) fn after(
        &self,
        entries: &[LiveEntry],
        new: &[Option<State>; MEMBERS],
    ) -> [i32; BOARDS] {
        let mut change = [0; BOARDS];
        for (member, old) in self.states.iter().enumerate() {
            let counting = entries
                .iter()
                .filter(|entry| entry.group.member() == member && entry.epoch > self.base);
            let newest = counting.max_by_key(|entry| entry.epoch);
            let Some(now) = new[member].or(newest.map(|entry| entry.state)) else {
                continue;
            };
            for board in 0..BOARDS {
                change[board] += i32::from(now[board] > 0) - i32::from(old[board] > 0);
            }
        }
        change
    }
}
