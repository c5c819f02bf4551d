//! Merges batch rows with live deltas, key by key.
//!
//! This module decides which deltas count in a value, and which layers contributed. Its input is
//! what a read found in the required order: run records, then partition states with their deltas,
//! then rows. It is independent of stores and of the meaning of keys.

use schemas::seam::{self, Epoch, PartitionState, Runs};

/// The run records and partition states of a read. They show whether live state and batch rows of
/// a view join.
#[derive(Debug, Clone, Copy)]
pub struct SeamSnapshot<'a> {
    /// The view, as `name@version`.
    pub view: &'a str,
    /// The view whose deltas are merged: this one, or a finer one (see [`crate::Rollup`]).
    pub live_view: &'a str,
    /// The newest complete epoch of the view, read before everything else.
    pub newest_epoch: Epoch,
    /// The run records, read together with `newest_epoch`.
    pub runs: &'a Runs,
    /// The partition states by partition, each read together with its deltas.
    pub partition_states: &'a [Option<PartitionState>],
    /// The only partition with events of the merged keys, if known.
    pub only_partition: Option<usize>,
}

/// A batch row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRow<'a> {
    /// The encoded row key.
    pub key: &'a [u8],
    /// The count; `None` if no event has this row any more.
    pub count: Option<i64>,
    /// The epoch of the row.
    pub epoch: Epoch,
}

/// A live delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveDelta<'a> {
    /// The encoded row key.
    pub key: &'a [u8],
    /// The epoch in which it was counted.
    pub epoch: Epoch,
    /// The increment.
    pub count: i64,
}

/// A nonzero difference between the live count and the batch count of a key, found by one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochDrift<'a> {
    /// The encoded row key.
    pub key: &'a [u8],
    /// The first epoch that the run compared.
    pub epoch: Epoch,
    /// The live count minus the batch count.
    pub count: i64,
}

/// The merged value of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergedRow<'a> {
    /// The encoded row key.
    pub key: &'a [u8],
    /// The count of all events before the positions of the partition states. It may be 0 after
    /// corrections.
    pub count: i128,
    /// The part of the count from the batch row.
    pub batch_count: i128,
    /// The live count minus the batch count, for the events of the batch row.
    pub drift: i128,
    /// True if a batch row contributed.
    pub has_batch: bool,
    /// True if a live delta contributed.
    pub has_live: bool,
    /// True if the batch row belongs to a run that is still being published.
    pub is_ahead: bool,
    /// The epoch of the batch row; `None` if there is none.
    pub row_epoch: Option<Epoch>,
    /// Only deltas of later epochs are added.
    pub base_epoch: Epoch,
}

/// The reason why a partition's live state can't be added to batch rows now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeamGap {
    /// There is no partition state.
    Missing,
    /// The run was recorded after the run records were read, or its record was lost.
    Unrecorded,
    /// The partition state has no boundary for this epoch, or one that differs from the run's cut.
    Boundary,
    /// The partition state was pruned beyond the epoch of the rows.
    Pruned,
    /// Live state counts the view only from a later offset, because its definition is new.
    Uncounted,
    /// The view has a complete run but no rows, because they were deleted with its definition.
    Deleted,
}

/// The live state of a partition does not join the batch rows exactly: there is a gap or an
/// overlap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "live state of partition {partition} does not join the batch rows of view {view} after epoch {base}: {}",
    self.gap.reason()
)]
pub struct SeamMismatch {
    /// The view.
    pub view: String,
    /// The partition.
    pub partition: usize,
    /// The epoch after which deltas would be added.
    pub base: Epoch,
    /// The reason.
    pub gap: SeamGap,
}

impl SeamGap {
    /// Returns the cause and the remedy.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Missing => {
                "there is no live state; `backstitch speed` builds it, and may be doing so now"
            }
            Self::Unrecorded => "its run has just been recorded; read again",
            Self::Boundary => {
                "the live epoch did not end at the run's cut; the speed layer will rebuild it"
            }
            Self::Pruned => {
                "live state was pruned beyond the epoch of these rows: either a newer run has just completed, so read again; or the run records were lost, and `backstitch speed` rebuilds live state"
            }
            Self::Deleted => "its rows were deleted with its definition; read again",
            Self::Uncounted => {
                "live state counts this view only from a later offset, because its definition is new or the run records were lost; run `backstitch speed`, then `backstitch batch run`"
            }
        }
    }
}

impl SeamSnapshot<'_> {
    /// Checks that the deltas after epoch `base` join rows of that epoch, in every relevant
    /// partition.
    ///
    /// # Errors
    /// [`SeamMismatch`] for the first partition that does not join.
    pub fn check(&self, base: Epoch) -> Result<(), SeamMismatch> {
        match self.only_partition {
            Some(partition) => self.check_partition(partition, base),
            None => (0..self.partition_states.len())
                .try_for_each(|partition| self.check_partition(partition, base)),
        }
    }

    fn check_partition(&self, partition: usize, base: Epoch) -> Result<(), SeamMismatch> {
        let mismatch = |gap| SeamMismatch {
            view: self.view.to_owned(),
            partition,
            base,
            gap,
        };
        let Some(state) = self
            .partition_states
            .get(partition)
            .and_then(Option::as_ref)
        else {
            return Err(mismatch(SeamGap::Missing));
        };
        if seam::is_readable(state, partition, base, self.runs, self.live_view) {
            return Ok(());
        }
        let Some(cut) = self.runs.sealed_cut(base, partition) else {
            return Err(mismatch(SeamGap::Unrecorded));
        };
        let counted_since = state.counted_since(self.live_view);
        let is_pruned = state.oldest > base.saturating_add(1);
        // A view without runs is new. The pruned epochs never counted it.
        let is_new = is_pruned && self.newest_epoch == 0;
        Err(mismatch(if is_new || counted_since > cut.next_offset {
            SeamGap::Uncounted
        } else if is_pruned {
            SeamGap::Pruned
        } else {
            SeamGap::Boundary
        }))
    }

    /// Checks that the view has a table, if a run has published rows.
    ///
    /// # Errors
    /// [`SeamMismatch`] if the table is missing.
    pub fn check_table(&self, has_table: bool) -> Result<(), SeamMismatch> {
        if has_table || self.newest_epoch == 0 {
            return Ok(());
        }
        Err(SeamMismatch {
            view: self.view.to_owned(),
            partition: self.only_partition.unwrap_or(0),
            base: self.newest_epoch,
            gap: SeamGap::Deleted,
        })
    }
}

/// Merges the rows and deltas of one group. Returns the value of every key that has an event, in
/// key order. Input may have any order; ascending input is fastest.
///
/// # Errors
/// [`SeamMismatch`] if any value could be wrong. Then read again, starting with the run records.
pub fn merge<'a>(
    seam: &SeamSnapshot<'_>,
    rows: impl IntoIterator<Item = BatchRow<'a>>,
    deltas: impl IntoIterator<Item = LiveDelta<'a>>,
) -> Result<Vec<MergedRow<'a>>, SeamMismatch> {
    merge_with_drift(seam, rows, deltas, [])
}

/// Like [`merge`], with recorded drift of earlier epochs.
///
/// # Errors
/// As [`merge`].
pub fn merge_with_drift<'a>(
    seam: &SeamSnapshot<'_>,
    rows: impl IntoIterator<Item = BatchRow<'a>>,
    deltas: impl IntoIterator<Item = LiveDelta<'a>>,
    drifts: impl IntoIterator<Item = EpochDrift<'a>>,
) -> Result<Vec<MergedRow<'a>>, SeamMismatch> {
    seam.check(seam.newest_epoch)?;
    let mut checked_bases = vec![seam.newest_epoch];
    let mut contributions: Vec<(&'a [u8], Contribution)> = Vec::new();
    contributions.extend(rows.into_iter().map(Contribution::from_row));
    contributions.extend(deltas.into_iter().map(Contribution::from_delta));
    contributions.extend(drifts.into_iter().map(Contribution::from_drift));
    contributions.sort_by_key(|(key, _)| *key);

    let mut values = Vec::new();
    for same_key in contributions.chunk_by(|(a, _), (b, _)| a == b) {
        let Some((key, _)) = same_key.first() else {
            continue;
        };
        let row = same_key
            .iter()
            .filter_map(|(_, contribution)| contribution.as_row())
            .max();
        let base = seam::base_epoch(row.map_or(0, |(epoch, _)| epoch), seam.newest_epoch);
        if !checked_bases.contains(&base) {
            seam.check(base)?;
            checked_bases.push(base);
        }
        let row_count = row.and_then(|(_, count)| count);
        let batch_count = row_count.map_or(0, i128::from);
        let mut value = MergedRow {
            key,
            count: batch_count,
            batch_count,
            drift: 0,
            has_batch: row_count.is_some(),
            has_live: false,
            is_ahead: base > seam.newest_epoch,
            row_epoch: row.map(|(epoch, _)| epoch),
            base_epoch: base,
        };
        for (_, contribution) in same_key {
            match contribution {
                Contribution::Delta { epoch, count } if *epoch > base => {
                    value.count += i128::from(*count);
                    value.has_live = true;
                }
                // Drift of later epochs belongs to a newer row.
                Contribution::Drift { epoch, count } if *epoch <= base => {
                    value.drift += i128::from(*count);
                }
                Contribution::Row { .. }
                | Contribution::Delta { .. }
                | Contribution::Drift { .. } => {}
            }
        }
        if value.has_batch || value.has_live || value.drift != 0 {
            values.push(value);
        }
    }
    Ok(values)
}

/// A row, a delta or a drift, without its key.
#[derive(Debug, Clone, Copy)]
enum Contribution {
    Row { epoch: Epoch, count: Option<i64> },
    Delta { epoch: Epoch, count: i64 },
    Drift { epoch: Epoch, count: i64 },
}

impl Contribution {
    fn from_row(row: BatchRow<'_>) -> (&[u8], Self) {
        let BatchRow { key, count, epoch } = row;
        (key, Self::Row { epoch, count })
    }

    fn from_delta(delta: LiveDelta<'_>) -> (&[u8], Self) {
        let LiveDelta { key, epoch, count } = delta;
        (key, Self::Delta { epoch, count })
    }

    fn from_drift(drift: EpochDrift<'_>) -> (&[u8], Self) {
        let EpochDrift { key, epoch, count } = drift;
        (key, Self::Drift { epoch, count })
    }

    const fn as_row(&self) -> Option<(Epoch, Option<i64>)> {
        match self {
            Self::Row { epoch, count } => Some((*epoch, *count)),
            Self::Delta { .. } | Self::Drift { .. } => None,
        }
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
