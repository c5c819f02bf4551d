//! The drift: how far what was counted live between two runs differs from what the batch layer
//! found for the same events.

use std::collections::BTreeMap;

use schemas::key::KeyShape;
use schemas::named;
use schemas::seam::{Cut, Epoch, PartitionState, Runs, is_readable};
use serde::Serialize;

use crate::{Error, Result};

/// Keys that are named in the report, of each view.
pub(crate) const KEYS_NAMED: usize = 20;

/// The stretch of the log whose live state is compared: what a run takes in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Between<'a> {
    pub(crate) runs: &'a Runs,
    /// The run before.
    pub(crate) since: Epoch,
    /// The run that compares.
    pub(crate) until: Epoch,
    /// Its cuts.
    pub(crate) cuts: &'a [Cut],
}

impl Between<'_> {
    /// Why a slot does not hold all that was counted of a view within the stretch; nothing, if it does.
    pub(crate) fn unknown(
        &self,
        view: &str,
        partition: usize,
        slot: Option<&PartitionState>,
    ) -> Option<String> {
        let Self { since, until, .. } = *self;
        let Some(slot) = slot else {
            return Some(format!("partition {partition} has no live state"));
        };
        let cut = self.cuts.get(partition).map(|cut| cut.next_offset);
        let bound = slot.bounds.get(&until).map(|cut| cut.next_offset);
        if bound.is_none() || bound != cut {
            return Some(format!(
                "live state of partition {partition} was rebuilt and has not reached the cut of run {until} yet"
            ));
        }
        if is_readable(slot, partition, since, self.runs, view) {
            return None;
        }
        let begin = slot.bounds.get(&since).map(|cut| cut.next_offset);
        Some(match begin {
            Some(begin) if slot.counted_since(view) > begin => {
                format!(
                    "the view {view} is new: live state of partition {partition} counts it only since a later offset"
                )
            }
            _ => format!(
                "live state of partition {partition} does not include all events since run {since}"
            ),
        })
    }
}

named! {
    /// Why live state counted otherwise than the batch layer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Cause {
        /// An event came again after the window in which the speed layer knows it, and was counted again.
        Duplicate = "duplicate",
        /// An event came again in another partition than the first time, where the speed layer does not know it.
        OtherPartition = "other_partition",
        /// Live state held less than there are events: some of it was lost, or changed by somebody else.
        LostLive = "lost_live",
        /// Nothing that is known explains it.
        Unexplained = "unexplained",
    }
}

impl Cause {
    /// Why a change that the batch layer found to be `batch` was counted as `live`, where records that repeat an event add
    /// up to `repeated`, and those of them in another partition to `in_other_partition`.
    pub(crate) fn of(
        (batch, live): (i64, i64),
        (repeated, in_other_partition): (i64, i64),
    ) -> Self {
        let (batch, live) = (i128::from(batch), i128::from(live));
        let excess = live - batch;
        let is_of = |repeats: i64| {
            let repeats = i128::from(repeats);
            excess.signum() == repeats.signum() && excess.abs() <= repeats.abs()
        };
        let is_less = live == 0 || (live.signum() == batch.signum() && live.abs() < batch.abs());
        // Live state counts each copy in another partition, but only those in the same partition after the window.
        if is_of(in_other_partition) {
            Self::OtherPartition
        } else if is_of(repeated) {
            Self::Duplicate
        } else if is_less {
            Self::LostLive
        } else {
            Self::Unexplained
        }
    }
}

/// A key whose batch change is not what was counted live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriftedKey {
    /// The job.
    pub job: String,
    /// The key, as `column=value` pairs.
    pub key: String,
    /// What the batch layer added since the run before.
    pub batch: i64,
    /// What was counted live for the same stretch of the log.
    pub live: i64,
    /// Why.
    pub cause: Cause,
}

/// The drift of one view.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ViewDrift {
    /// The job.
    pub job: String,
    /// The sum of the absolute differences over all keys; nothing if it is not known.
    pub total: Option<u64>,
    /// How many keys differ.
    pub keys: u64,
    /// Whether there are more than could be told apart: `total` and `keys` are the least that they
    /// can be.
    pub is_lower_bound: bool,
    /// By cause, its part of `total`.
    pub causes: BTreeMap<Cause, u64>,
    /// Why it is not known.
    pub unknown: Option<String>,
}

/// The drift of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// The sum of the absolute differences over all keys; nothing if live state began anew within
    /// the run's stretch, so that there is nothing to compare with.
    pub total: Option<u64>,
    /// How many keys differ.
    pub keys: u64,
    /// Whether there are more than could be told apart: `total` and `keys` are the least that they
    /// can be.
    pub is_lower_bound: bool,
    /// Of each view that was compared.
    pub views: Vec<ViewDrift>,
    /// The keys that differ most, of each view.
    pub worst: Vec<DriftedKey>,
    /// Why it is not known.
    pub unknown: Option<String>,
}

impl Drift {
    /// Nothing has been compared yet.
    pub(crate) fn none() -> Self {
        Self {
            total: Some(0),
            ..Self::default()
        }
    }

    /// Adds what was found of a view.
    pub(crate) fn add(&mut self, view: ViewDrift, worst: Vec<DriftedKey>) {
        self.total = self.total.zip(view.total).map(|(a, b)| a.saturating_add(b));
        self.keys = self.keys.saturating_add(view.keys);
        self.is_lower_bound |= view.is_lower_bound;
        self.unknown = self.unknown.take().or_else(|| view.unknown.clone());
        self.worst.extend(worst);
        self.views.push(view);
    }
}

/// A key as `column=value` pairs.
pub(crate) fn show(shape: &KeyShape, key: &[u8]) -> Result<String> {
    let columns = shape
        .decode(std::iter::once(key))
        .map_err(|e| Error::fault("decoding a key", e))?;
    let pairs = shape.0.iter().zip(&columns).map(|(column, array)| {
        let value = arrow::util::display::array_value_to_string(array, 0)
            .unwrap_or_else(|_| "?".to_owned());
        format!("{}={value}", column.name)
    });
    Ok(pairs.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_apart() {
        for (sides, repeats, cause) in [
            ((1, 2), (1, 0), Cause::Duplicate),
            ((1, 2), (5, 0), Cause::Duplicate),
            ((-3, -4), (-1, 0), Cause::Duplicate),
            ((0, 1), (1, 0), Cause::Duplicate),
            ((1, 2), (1, 1), Cause::OtherPartition),
            ((-3, -4), (-5, -1), Cause::OtherPartition),
            // One copy in another partition does not explain two too many.
            ((1, 3), (2, 1), Cause::Duplicate),
            ((3, 1), (0, 0), Cause::LostLive),
            ((3, 0), (0, 0), Cause::LostLive),
            ((-3, -1), (0, 0), Cause::LostLive),
            // More was lost than counted twice.
            ((3, 2), (1, 1), Cause::LostLive),
            ((1, 2), (0, 0), Cause::Unexplained),
            ((1, 9), (3, 3), Cause::Unexplained),
            (
                (i64::MIN, i64::MAX),
                (i64::MAX, i64::MAX),
                Cause::Unexplained,
            ),
        ] {
            let found = Cause::of(sides, repeats);
            assert_eq!(found, cause, "{sides:?} {repeats:?}");
        }
    }
}
