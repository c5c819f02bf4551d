//! The live state of one partition, and the scripts that change it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Epoch, Generation, Offset};

/// The record that was taken last: it shows later whether the log is still the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LastRecord {
    /// Its offset.
    pub offset: Offset,
    /// The CRC-32 of its value.
    pub checksum: u32,
    /// When it was logged, in milliseconds since the Unix epoch.
    pub logged_at_ms: i64,
}

/// A position in a partition together with the last record before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cut {
    /// Everything below is counted.
    pub next_offset: Offset,
    /// The last record below, if there is any.
    pub last: Option<LastRecord>,
}

impl Cut {
    /// The beginning of a partition.
    #[must_use]
    pub const fn start() -> Self {
        Self {
            next_offset: 0,
            last: None,
        }
    }
}

/// What a worker must believe exactly for a slot to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// The slot's life.
    pub generation: Generation,
    /// The position up to which the log is counted.
    pub next_offset: Offset,
    /// The epoch that is being filled.
    pub epoch: Epoch,
}

/// The slot does not stand where it was believed to; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the slot stands elsewhere than was believed")]
pub struct Moved {
    /// Where it stands; nothing if it is missing.
    pub at: Option<Fence>,
}

/// Why an epoch could not be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RollRefused {
    /// There is no slot.
    #[error("the slot is missing")]
    Missing,
    /// The slot fills another epoch and knows no end of this one.
    #[error("the slot fills epoch {} at offset {}", .0.epoch, .0.next_offset)]
    Elsewhere(Fence),
}

/// The live state of one log partition, without the parts themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The number of its life.
    pub generation: Generation,
    /// The position up to which the log is counted.
    pub position: Cut,
    /// The epoch that is being filled.
    pub epoch: Epoch,
    /// The oldest epoch whose parts are still kept.
    pub oldest: Epoch,
    /// Where epochs ended.
    pub bounds: BTreeMap<Epoch, Cut>,
    /// By view: the offset from which on every event has been counted for it. A view that is not
    /// here has been counted from `position` on, which is to say: not yet.
    pub since: BTreeMap<String, Offset>,
    /// Where the log ended when this life began: what a life before may have counted is counted
    /// again once the position is there.
    #[serde(default)]
    pub replay_until: Offset,
    /// The newest epoch in which a record was counted whose key belongs to another partition: from a
    /// producer that divides keys in another way, or knew fewer partitions. A reader can't name the
    /// one partition of a key then.
    #[serde(default)]
    pub strays: Option<Epoch>,
}

/// The life that a slot is given anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewLife {
    /// The newest complete run.
    pub newest: Epoch,
    /// Its cut, where the new life begins.
    pub cut: Cut,
    /// Where the log ends.
    pub log_end: Offset,
    /// A generation that was not used before even if the slot is missing: the time will do.
    pub hint: Generation,
}

impl Slot {
    /// A new life that begins at the cut of the newest complete run.
    #[must_use]
    pub fn new_generation(generation: Generation, life: &NewLife) -> Self {
        let NewLife { newest, cut, .. } = *life;
        Self {
            generation,
            position: cut,
            epoch: newest + 1,
            oldest: newest + 1,
            bounds: BTreeMap::from([(newest, cut)]),
            since: BTreeMap::new(),
            replay_until: life.log_end,
            strays: None,
        }
    }

    /// Whether answers that were given before the slot began anew may have held more of the log
    /// than this slot does.
    #[must_use]
    pub const fn is_replaying(&self) -> bool {
        self.position.next_offset < self.replay_until
    }

    /// The offset from which on every event has been counted for a view.
    #[must_use]
    pub fn counted_since(&self, view: &str) -> Offset {
        let since = self.since.get(view).copied();
        since.unwrap_or(self.position.next_offset)
    }

    /// What a worker must believe.
    #[must_use]
    pub const fn fence(&self) -> Fence {
        Fence {
            generation: self.generation,
            next_offset: self.position.next_offset,
            epoch: self.epoch,
        }
    }

    /// Moves the position to `next` if the fence is exactly `believed`; the caller adds the
    /// micro-batch's parts to the epoch `believed.epoch` in the same step. `views` are all views
    /// that were folded, also those to which nothing was added.
    ///
    /// # Errors
    /// [`Moved`] if the fence is elsewhere, or if `next` lies before it; nothing changes then.
    pub fn apply(&mut self, believed: &Fence, next: Cut, views: &[&str]) -> Result<(), Moved> {
        self.expect(believed)?;
        if next.next_offset < believed.next_offset {
            return Err(self.moved());
        }
        self.since.retain(|view, _| views.contains(&view.as_str()));
        for view in views {
            if !self.since.contains_key(*view) {
                self.since.insert((*view).to_owned(), believed.next_offset);
            }
        }
        self.position = next;
        Ok(())
    }

    /// Remembers that a record which was counted just now belongs to another partition.
    pub const fn note_strays(&mut self) {
        self.strays = Some(self.epoch);
    }

    /// Ends the epoch `believed.epoch` at the fence: a recorded cut is put back.
    ///
    /// # Errors
    /// [`Moved`] if the fence is elsewhere; nothing changes then.
    pub fn impose(&mut self, believed: &Fence) -> Result<(), Moved> {
        self.expect(believed)?;
        self.end_epoch();
        Ok(())
    }

    /// Ends `epoch` where the slot stands, or answers where it ended.
    ///
    /// # Errors
    /// [`RollRefused`] if the slot fills another epoch and knows no end of this one.
    pub fn roll(&mut self, epoch: Epoch) -> Result<Cut, RollRefused> {
        if let Some(bound) = self.bounds.get(&epoch) {
            return Ok(*bound);
        }
        if self.epoch != epoch {
            return Err(RollRefused::Elsewhere(self.fence()));
        }
        self.end_epoch();
        Ok(self.position)
    }

    /// Lets go of the epochs up to `epoch`, if that one ended exactly at the run's cut; answers
    /// whether anything changed. Only `keep_bounds` old bounds are remembered.
    pub fn drop_through(&mut self, epoch: Epoch, cut: Cut, keep_bounds: u64) -> bool {
        let stands = self
            .bounds
            .get(&epoch)
            .is_some_and(|bound| bound.next_offset == cut.next_offset);
        if !stands || self.oldest > epoch {
            return false;
        }
        self.oldest = epoch + 1;
        self.bounds = self.bounds.split_off(&epoch.saturating_sub(keep_bounds));
        true
    }

    /// A new life, if the slot still stands as it was `seen`. The new generation is larger than the
    /// present one, and at least the hint: where the slot is missing the hint is all that keeps its
    /// number from one that was used before.
    ///
    /// # Errors
    /// [`Moved`] if the slot stands elsewhere; nothing is to be changed then.
    pub fn heal(slot: Option<&Self>, seen: Option<Fence>, life: &NewLife) -> Result<Self, Moved> {
        let at = slot.map(Self::fence);
        if at != seen {
            return Err(Moved { at });
        }
        let after = slot.map_or(1, |slot| slot.generation.saturating_add(1));
        Ok(Self::new_generation(after.max(life.hint), life))
    }

    fn end_epoch(&mut self) {
        self.bounds.insert(self.epoch, self.position);
        self.epoch += 1;
    }

    fn expect(&self, believed: &Fence) -> Result<(), Moved> {
        if self.fence() == *believed {
            Ok(())
        } else {
            Err(self.moved())
        }
    }

    const fn moved(&self) -> Moved {
        Moved {
            at: Some(self.fence()),
        }
    }
}
