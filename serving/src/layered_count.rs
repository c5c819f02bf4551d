//! A sum and the layers that contributed to it.

use jobs::merge::MergedRow;
use schemas::provenance::Origin;

use crate::stats_query::Prefer;

/// A sum and the layers that contributed to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LayeredCount {
    pub(crate) count: i128,
    /// The part of `count` from batch rows.
    pub(crate) batch_count: i128,
    /// Live count minus batch count of the events that batch rows hold.
    pub(crate) drift: i128,
    pub(crate) has_batch: bool,
    pub(crate) has_live: bool,
    /// True if a batch row belongs to a run that is still being published.
    pub(crate) is_ahead: bool,
}

impl LayeredCount {
    pub(crate) fn add(&mut self, value: &MergedRow<'_>) {
        self.count += value.count;
        self.batch_count += value.batch_count;
        self.drift += value.drift;
        self.has_batch |= value.has_batch;
        self.has_live |= value.has_live;
        self.is_ahead |= value.is_ahead;
    }

    /// Returns the preferred value: all events, the batch rows if there are any, or the live
    /// counts.
    pub(crate) const fn preferred(mut self, prefer: Prefer) -> Self {
        match prefer {
            Prefer::Batch if self.has_batch => {
                self.count = self.batch_count;
                self.has_live = false;
            }
            Prefer::Realtime => {
                self.count += self.drift;
                self.has_live |= self.has_batch;
                self.has_batch = false;
            }
            Prefer::Batch | Prefer::Newest => {}
        }
        self
    }

    /// Records that the layers of `other` contributed.
    pub(crate) const fn add_layers(&mut self, other: &Self) {
        self.has_batch |= other.has_batch;
        self.has_live |= other.has_live;
        self.is_ahead |= other.is_ahead;
    }

    /// True if any event contributed.
    pub(crate) const fn has_events(&self) -> bool {
        self.has_batch || self.has_live || self.drift != 0
    }

    pub(crate) const fn origin(&self, epoch: u64) -> Origin {
        Origin::from_layers(self.has_batch, self.has_live, epoch)
    }
}
