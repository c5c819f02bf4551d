//! Merging batch rows with what is newer: the reader's half of the seam, key by key.
//!
//! It owns what counts in a value and which layers had a part in it. It is given what a read found
//! in the order that the seam demands (newest runs, then slots with their live parts, then rows)
//! and must not know how it was found, nor what the bytes of a key mean.

use schemas::seam::{self, Epoch, Runs, Slot};

/// What a read saw of the seam of one view.
#[derive(Debug, Clone, Copy)]
pub struct Seam<'a> {
    /// The view, as `name@version`.
    pub view: &'a str,
    /// The view whose live parts are merged: itself, or a finer one (see [`crate::Rollup`]).
    pub live: &'a str,
    /// The newest complete epoch of the view, read before everything else.
    pub newest: Epoch,
    /// The run records, read together with `newest`.
    pub runs: &'a Runs,
    /// The slots, by partition, each read together with its live parts.
    pub slots: &'a [Option<Slot>],
    /// The only partition whose events can be in the keys that are merged, where that is known.
    pub only: Option<usize>,
}

/// A batch row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRow<'a> {
    /// The encoded row key.
    pub key: &'a [u8],
    /// The count; nothing where no event gives the row any more.
    pub count: Option<i64>,
    /// The epoch that the row holds.
    pub epoch: Epoch,
}

/// A live part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LivePart<'a> {
    /// The encoded row key.
    pub key: &'a [u8],
    /// The epoch that it was counted in.
    pub epoch: Epoch,
    /// What it adds.
    pub count: i64,
}

/// What was counted live of a key in an epoch besides what the batch layer found: where the drift of a
/// run is not nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept<'a> {
    /// The encoded row key.
    pub key: &'a [u8],
    /// The first epoch of those that the run which found it compared.
    pub epoch: Epoch,
    /// What live state had counted more than the batch layer.
    pub count: i64,
}

/// The value of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged<'a> {
    /// The encoded row key.
    pub key: &'a [u8],
    /// The count of all events up to the slots' positions. It may be 0 where corrections took away
    /// what was there.
    pub count: i128,
    /// What of it the batch row holds.
    pub stored: i128,
    /// What live state had counted more of the events that the batch row holds.
    pub kept: i128,
    /// Whether a batch row had a part in it.
    pub batch: bool,
    /// Whether a live part had.
    pub live: bool,
    /// Whether the batch row is of a run that is still being published.
    pub is_ahead: bool,
    /// The epoch that the batch row holds; nothing where there is no row.
    pub row_epoch: Option<Epoch>,
    /// Live parts of later epochs count, and no others.
    pub base: Epoch,
}

/// Why a partition's live state can't be added to batch rows now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// There is no slot.
    Missing,
    /// The run was recorded after the run records were read, or its record was lost.
    Unrecorded,
    /// The slot does not know where the epoch ended, or knows another end than the run's cut.
    Boundary,
    /// The slot has let go of epochs that the rows do not hold yet.
    Dropped,
    /// The view is counted live only since a later offset: its definition is new.
    Uncounted,
    /// The view has a complete run, and no rows: they were deleted with its definition.
    Deleted,
}

/// The live state of a partition does not join the batch rows without hole or overlap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "partition {partition} is not whole for view {view} after epoch {base}: {}",
    self.gap.reason()
)]
pub struct NotWhole {
    /// The view.
    pub view: String,
    /// The partition.
    pub partition: usize,
    /// The epoch after which live parts would count.
    pub base: Epoch,
    /// Why.
    pub gap: Gap,
}

impl Gap {
    /// What is the matter, and what ends it.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Missing => {
                "there is no live state: `backstitch speed` makes it, and may be at it"
            }
            Self::Unrecorded => "its run has just been recorded; the next read sees it",
            Self::Boundary => {
                "the live epoch did not end at the run's cut; the speed layer will heal it"
            }
            Self::Dropped => {
                "live state has let go of epochs that these rows do not hold: a newer run has just been completed, and the next read sees it; or the run records were lost, and `backstitch speed` makes live state anew"
            }
            Self::Deleted => "its rows were deleted with its definition; the next read sees it",
            Self::Uncounted => {
                "live state counts this view only from a later offset on, since its definition is new or the run records were lost; `backstitch speed` and then `backstitch batch run` make it whole"
            }
        }
    }
}

impl Seam<'_> {
    /// Checks that the live parts after epoch `base` join rows of that epoch, in every partition
    /// that matters.
    ///
    /// # Errors
    /// [`NotWhole`] names the first partition where they don't.
    pub fn check(&self, base: Epoch) -> Result<(), NotWhole> {
        match self.only {
            Some(partition) => self.check_slot(partition, base),
            None => (0..self.slots.len()).try_for_each(|slot| self.check_slot(slot, base)),
        }
    }

    fn check_slot(&self, partition: usize, base: Epoch) -> Result<(), NotWhole> {
        let not_whole = |gap| NotWhole {
            view: self.view.to_owned(),
            partition,
            base,
            gap,
        };
        let Some(slot) = self.slots.get(partition).and_then(Option::as_ref) else {
            return Err(not_whole(Gap::Missing));
        };
        if seam::whole(slot, partition, base, self.runs, self.live) {
            return Ok(());
        }
        let Some(cut) = self.runs.sealed_cut(base, partition) else {
            return Err(not_whole(Gap::Unrecorded));
        };
        let since = slot.counted_since(self.live);
        let dropped = slot.oldest > base.saturating_add(1);
        // A view without any run is new: what was let go before it came was never counted for it.
        let is_new = dropped && self.newest == 0;
        Err(not_whole(if is_new || since > cut.next_offset {
            Gap::Uncounted
        } else if dropped {
            Gap::Dropped
        } else {
            Gap::Boundary
        }))
    }

    /// Checks that the table with the rows of the view was found, if a run has made them.
    ///
    /// # Errors
    /// [`NotWhole`] if not.
    pub fn check_table(&self, found: bool) -> Result<(), NotWhole> {
        if found || self.newest == 0 {
            return Ok(());
        }
        Err(NotWhole {
            view: self.view.to_owned(),
            partition: self.only.unwrap_or(0),
            base: self.newest,
            gap: Gap::Deleted,
        })
    }
}

/// Merges the rows and live parts of one group: the values of all keys that an event has given, in
/// the keys' order. Rows and parts may come in any order; ascending ones are merged fastest.
///
/// # Errors
/// [`NotWhole`] if any value could be wrong: then read again, from the newest runs on.
pub fn merge<'a>(
    seam: &Seam<'_>,
    rows: impl IntoIterator<Item = BatchRow<'a>>,
    parts: impl IntoIterator<Item = LivePart<'a>>,
) -> Result<Vec<Merged<'a>>, NotWhole> {
    merge_kept(seam, rows, parts, [])
}

/// As [`merge`], with what was kept of earlier live counts.
///
/// # Errors
/// As [`merge`].
pub fn merge_kept<'a>(
    seam: &Seam<'_>,
    rows: impl IntoIterator<Item = BatchRow<'a>>,
    parts: impl IntoIterator<Item = LivePart<'a>>,
    kept: impl IntoIterator<Item = Kept<'a>>,
) -> Result<Vec<Merged<'a>>, NotWhole> {
    seam.check(seam.newest)?;
    let mut checked = vec![seam.newest];
    let mut pieces: Vec<(&'a [u8], Piece)> = Vec::new();
    pieces.extend(rows.into_iter().map(Piece::of_row));
    pieces.extend(parts.into_iter().map(Piece::of_part));
    pieces.extend(kept.into_iter().map(Piece::of_kept));
    pieces.sort_by_key(|(key, _)| *key);

    let mut values = Vec::new();
    for of_key in pieces.chunk_by(|(one, _), (other, _)| one == other) {
        let Some((key, _)) = of_key.first() else {
            continue;
        };
        let row = of_key.iter().filter_map(|(_, piece)| piece.row()).max();
        let base = seam::base(row.map_or(0, |(epoch, _)| epoch), seam.newest);
        if !checked.contains(&base) {
            seam.check(base)?;
            checked.push(base);
        }
        let stored = row.and_then(|(_, count)| count);
        let held = stored.map_or(0, i128::from);
        let mut value = Merged {
            key,
            count: held,
            stored: held,
            kept: 0,
            batch: stored.is_some(),
            live: false,
            is_ahead: base > seam.newest,
            row_epoch: row.map(|(epoch, _)| epoch),
            base,
        };
        for (_, piece) in of_key {
            match piece {
                Piece::Part { epoch, count } if *epoch > base => {
                    value.count += i128::from(*count);
                    value.live = true;
                }
                // What is newer than the row was not found yet.
                Piece::Kept { epoch, count } if *epoch <= base => {
                    value.kept += i128::from(*count);
                }
                Piece::Row { .. } | Piece::Part { .. } | Piece::Kept { .. } => {}
            }
        }
        if value.batch || value.live || value.kept != 0 {
            values.push(value);
        }
    }
    Ok(values)
}

/// A row or a part, without its key.
#[derive(Debug, Clone, Copy)]
enum Piece {
    Row { epoch: Epoch, count: Option<i64> },
    Part { epoch: Epoch, count: i64 },
    Kept { epoch: Epoch, count: i64 },
}

impl Piece {
    fn of_row(row: BatchRow<'_>) -> (&[u8], Self) {
        let BatchRow { key, count, epoch } = row;
        (key, Self::Row { epoch, count })
    }

    fn of_part(part: LivePart<'_>) -> (&[u8], Self) {
        let LivePart { key, epoch, count } = part;
        (key, Self::Part { epoch, count })
    }

    fn of_kept(kept: Kept<'_>) -> (&[u8], Self) {
        let Kept { key, epoch, count } = kept;
        (key, Self::Kept { epoch, count })
    }

    const fn row(&self) -> Option<(Epoch, Option<i64>)> {
        match self {
            Self::Row { epoch, count } => Some((*epoch, *count)),
            Self::Part { .. } | Self::Kept { .. } => None,
        }
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
