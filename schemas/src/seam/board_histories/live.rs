//! Live state: partition states with the entries of their workers.

use std::rc::Rc;

use super::live_counts::StoredCount;
use super::live_entry::LiveEntry;
use crate::seam::{Generation, PartitionState};

pub(super) const VIEW: &str = "board@1";

/// The live state of a partition: the partition state and the entries, which change together.
#[derive(Clone, Default)]
pub(super) struct Live {
    pub(super) partition_state: Option<Rc<PartitionState>>,
    pub(super) entries: Vec<LiveEntry>,
    /// By generation and key.
    pub(super) sums: Vec<((Generation, usize), StoredCount)>,
}

/// A partition state, the entries of a key, and its stored live count.
pub(super) type StateRead = Option<(Rc<PartitionState>, Vec<LiveEntry>, Option<StoredCount>)>;

impl Live {
    pub(super) fn sum(&self, id: (Generation, usize)) -> Option<&StoredCount> {
        let mut found = self.sums.iter().filter(|(of, _)| *of == id);
        found.next().map(|(_, count)| count)
    }

    pub(super) fn set_count(&mut self, id: (Generation, usize), count: Option<StoredCount>) {
        self.sums.retain(|(of, _)| *of != id);
        self.sums.extend(count.map(|count| (id, count)));
    }

    pub(super) fn put(&mut self, new: LiveEntry) {
        let id = |entry: &LiveEntry| (entry.generation, entry.epoch, entry.group);
        match self.entries.iter_mut().find(|old| id(old) == id(&new)) {
            Some(old) => old.state = new.state,
            None => self.entries.push(new),
        }
    }
}
