//! The live state of one log partition, and the atomic changes to it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Epoch, Generation, Offset};

/// The record that was applied last. It later shows whether the log is still the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LastRecord {
    /// Its offset.
    pub offset: Offset,
    /// The CRC-32 of its value.
    pub checksum: u32,
    /// When it was logged, in milliseconds since the Unix epoch.
    pub logged_at_ms: i64,
}

/// A position in a partition, with the last record before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cut {
    /// The next offset to apply: all records below it are counted.
    pub next_offset: Offset,
    /// The last record below `next_offset`, if there is any.
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

/// The compare-and-set target of a partition state. A change succeeds only if the worker names the
/// current checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The incarnation of the partition state.
    pub generation: Generation,
    /// The next offset to apply.
    pub next_offset: Offset,
    /// The epoch that is being filled.
    pub epoch: Epoch,
}

/// The checkpoint of a partition state is not the expected one. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the checkpoint of the partition state is not the expected one")]
pub struct CheckpointMismatch {
    /// The current checkpoint; `None` if the partition state is missing.
    pub actual: Option<Checkpoint>,
}

/// The reason why an epoch could not be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndEpochError {
    /// The partition state does not exist.
    #[error("the partition state is missing")]
    Missing,
    /// The partition state fills another epoch and has no end of the given one.
    #[error("the partition state fills epoch {} at offset {}", .0.epoch, .0.next_offset)]
    OtherEpoch(Checkpoint),
}

/// The live state of one log partition, without the live deltas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionState {
    /// Its incarnation.
    pub generation: Generation,
    /// The next offset to apply, with the last record that was applied.
    pub position: Cut,
    /// The epoch that is being filled.
    pub epoch: Epoch,
    /// The oldest epoch whose live deltas are retained.
    pub oldest: Epoch,
    /// The end of each earlier epoch that is remembered.
    pub bounds: BTreeMap<Epoch, Cut>,
    /// By view: the offset from which on every event has been counted for it. A view that is
    /// missing here is counted from `position` on; nothing is counted for it yet.
    pub since: BTreeMap<String, Offset>,
    /// The end of the log when this generation began. Once the position reaches it, all records
    /// that an earlier generation may have counted are counted again.
    #[serde(default)]
    pub replay_until: Offset,
    /// The newest epoch in which a misrouted record was counted: its key belongs to another
    /// partition, because its producer partitions differently or knew fewer partitions. A reader
    /// then cannot rely on the one partition of a key.
    #[serde(default, rename = "strays")]
    pub misrouted_epoch: Option<Epoch>,
}

/// The start of a new generation of a partition state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GenerationStart {
    /// The newest complete run.
    pub newest: Epoch,
    /// The cut of that run, where the new generation begins.
    pub cut: Cut,
    /// The end of the log.
    pub log_end: Offset,
    /// A lower bound of the new generation that no earlier generation reached, such as the time. It
    /// prevents reuse of a number if the partition state is missing.
    pub generation_min: Generation,
}

impl PartitionState {
    /// Creates a generation that begins at the cut of the newest complete run.
    #[must_use]
    pub fn new_generation(generation: Generation, start: &GenerationStart) -> Self {
        let GenerationStart { newest, cut, .. } = *start;
        Self {
            generation,
            position: cut,
            epoch: newest + 1,
            oldest: newest + 1,
            bounds: BTreeMap::from([(newest, cut)]),
            since: BTreeMap::new(),
            replay_until: start.log_end,
            misrouted_epoch: None,
        }
    }

    /// Returns whether earlier answers may have included more of the log than this partition state
    /// does, because it is replaying the log after a rebuild.
    #[must_use]
    pub const fn is_replaying(&self) -> bool {
        self.position.next_offset < self.replay_until
    }

    /// Returns the offset from which on every event has been counted for a view.
    #[must_use]
    pub fn counted_since(&self, view: &str) -> Offset {
        let offset = self.since.get(view).copied();
        offset.unwrap_or(self.position.next_offset)
    }

    /// Returns the checkpoint.
    #[must_use]
    pub const fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            generation: self.generation,
            next_offset: self.position.next_offset,
            epoch: self.epoch,
        }
    }

    /// Moves the position to `next` if the checkpoint equals `expected`.
    ///
    /// In the same step, the caller adds the deltas of the micro-batch to the epoch
    /// `expected.epoch`. `views` are all views that were folded, including those without deltas.
    ///
    /// # Errors
    /// [`CheckpointMismatch`] if the checkpoint differs or `next` lies before it; nothing changes
    /// then.
    pub fn apply(
        &mut self,
        expected: &Checkpoint,
        next: Cut,
        views: &[&str],
    ) -> Result<(), CheckpointMismatch> {
        self.check_checkpoint(expected)?;
        if next.next_offset < expected.next_offset {
            return Err(self.mismatch());
        }
        self.since.retain(|view, _| views.contains(&view.as_str()));
        for view in views {
            if !self.since.contains_key(*view) {
                self.since.insert((*view).to_owned(), expected.next_offset);
            }
        }
        self.position = next;
        Ok(())
    }

    /// Records that the current epoch has a misrouted record.
    pub const fn record_misrouted(&mut self) {
        self.misrouted_epoch = Some(self.epoch);
    }

    /// Closes the epoch `expected.epoch` at its recorded cut, where the checkpoint is.
    ///
    /// # Errors
    /// [`CheckpointMismatch`] if the checkpoint differs; nothing changes then.
    pub fn close_epoch(&mut self, expected: &Checkpoint) -> Result<(), CheckpointMismatch> {
        self.check_checkpoint(expected)?;
        self.advance_epoch();
        Ok(())
    }

    /// Ends `epoch` at the current position and returns it. Returns the earlier end if `epoch` has
    /// ended already.
    ///
    /// # Errors
    /// [`EndEpochError`] if the partition state fills another epoch and has no end of `epoch`.
    pub fn end_epoch(&mut self, epoch: Epoch) -> Result<Cut, EndEpochError> {
        if let Some(bound) = self.bounds.get(&epoch) {
            return Ok(*bound);
        }
        if self.epoch != epoch {
            return Err(EndEpochError::OtherEpoch(self.checkpoint()));
        }
        self.advance_epoch();
        Ok(self.position)
    }

    /// Prunes the epochs up to `epoch` if that epoch ended exactly at the run's cut. Returns
    /// whether the state changed. Retains `keep_bounds` old bounds.
    pub fn prune_through(&mut self, epoch: Epoch, cut: Cut, keep_bounds: u64) -> bool {
        let is_at_cut = self
            .bounds
            .get(&epoch)
            .is_some_and(|bound| bound.next_offset == cut.next_offset);
        if !is_at_cut || self.oldest > epoch {
            return false;
        }
        self.oldest = epoch + 1;
        self.bounds = self.bounds.split_off(&epoch.saturating_sub(keep_bounds));
        true
    }

    /// Creates a new generation if the checkpoint is still the `expected` one.
    ///
    /// The new generation is larger than the current one and not below `generation_min`. If the
    /// partition state is missing, only `generation_min` prevents reuse of a number.
    ///
    /// # Errors
    /// [`CheckpointMismatch`] if the checkpoint differs; the caller must change nothing then.
    pub fn rebuild(
        current: Option<&Self>,
        expected: Option<Checkpoint>,
        start: &GenerationStart,
    ) -> Result<Self, CheckpointMismatch> {
        let actual = current.map(Self::checkpoint);
        if actual != expected {
            return Err(CheckpointMismatch { actual });
        }
        let generation = current.map_or(1, |state| state.generation.saturating_add(1));
        let generation = generation.max(start.generation_min);
        Ok(Self::new_generation(generation, start))
    }

    fn advance_epoch(&mut self) {
        self.bounds.insert(self.epoch, self.position);
        self.epoch += 1;
    }

    fn check_checkpoint(&self, expected: &Checkpoint) -> Result<(), CheckpointMismatch> {
        if self.checkpoint() == *expected {
            Ok(())
        } else {
            Err(self.mismatch())
        }
    }

    const fn mismatch(&self) -> CheckpointMismatch {
        CheckpointMismatch {
            actual: Some(self.checkpoint()),
        }
    }
}
