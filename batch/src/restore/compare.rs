//! The comparison: what each side says of a key, added up file by file, and what differs.

use std::path::Path;

use arrow::array::{Array, AsArray, BinaryArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion::error::DataFusionError;
use datafusion::prelude::ParquetReadOptions;
use futures::TryStreamExt;
use jobs::Engine;

use super::cause::Cause;
use super::report::Weighed;
use super::side::Side;
use super::sides::scratch;
use crate::{Error, Result};

/// What the sides say of a key; nothing of those that do not name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Said {
    sums: [Option<i64>; Side::ALL.len()],
}

impl Said {
    pub(crate) fn of(&self, side: Side) -> Option<i64> {
        self.sums.get(side as usize).copied().flatten()
    }

    /// What a row counts that lies where none can lie, and what is wrong with its place.
    fn stray(&self) -> Option<(Cause, i64)> {
        let of = |side, cause| Some((cause, self.of(side)?));
        of(Side::Misplaced, Cause::MisplacedRow)
            .or_else(|| of(Side::Unreadable, Cause::UnreadableRow))
    }

    /// What a side counts.
    pub(crate) fn count(&self, side: Side) -> i64 {
        self.of(side).unwrap_or(0)
    }
}

/// Against what keys are weighed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    /// Whether what somebody else says is expected; else what the events give.
    pub(crate) is_claimed: bool,
    /// Whether keys that they do not name are expected to be 0.
    pub(crate) is_whole: bool,
    /// Whether live parts are compared, too.
    pub(crate) with_live: bool,
    /// Differences up to so much, and up to this part of what is expected, are none.
    pub(crate) tolerance: (u64, f64),
}

impl Measure {
    /// What is said of a key, unless nothing can be said now.
    pub(crate) fn weigh(&self, said: &Said) -> Option<Weighed> {
        if said.of(Side::Ahead).is_some() {
            return None;
        }
        if let Some((cause, count)) = said.stray() {
            return (!self.is_claimed || self.is_whole).then(|| self.stray(cause, count));
        }
        if self.is_claimed && !self.is_whole && said.of(Side::Claimed).is_none() {
            return None;
        }
        let live = self.with_live.then(|| said.count(Side::Live));
        let stored = said.of(Side::Stored);
        let served = stored.unwrap_or(0).saturating_add(live.unwrap_or(0));
        let events_live = live.map_or(0, |_| said.count(Side::EventsLive));
        let events = said.count(Side::EventsBatch).saturating_add(events_live);
        let expected = if self.is_claimed {
            said.count(Side::Claimed)
        } else {
            events
        };
        let is_of_no_run = said.of(Side::OfNoRun).is_some();
        let row_is_wrong = is_of_no_run || said.count(Side::EventsBatch) != stored.unwrap_or(0);
        let live_is_wrong = live.is_some_and(|live| live != events_live);
        let difference = i128::from(expected) - i128::from(served);
        let differs = if self.is_claimed {
            // What is damaged may hide what is claimed.
            let of_events = i128::from(expected) - i128::from(events);
            self.is_beyond(difference, expected) || self.is_beyond(of_events, expected)
        } else {
            // Two wrongs that make a right are still wrong.
            row_is_wrong || live_is_wrong
        };
        Some(Weighed {
            expected,
            stored,
            live,
            served,
            difference: i64::try_from(difference).unwrap_or(if difference < 0 {
                i64::MIN
            } else {
                i64::MAX
            }),
            cause: differs.then(|| self.cause(said, (row_is_wrong, live_is_wrong))),
            events,
            events_batch: said.of(Side::EventsBatch),
            is_to_be_corrected: self.is_claimed
                && self.is_beyond(i128::from(expected) - i128::from(events), expected),
            row_is_wrong,
            live_is_wrong,
        })
    }

    /// What is said of a row that no events and no run give: readers who come upon it count it.
    fn stray(&self, cause: Cause, count: i64) -> Weighed {
        Weighed {
            expected: 0,
            stored: Some(count),
            live: self.with_live.then_some(0),
            served: count,
            difference: count.saturating_neg(),
            cause: Some(cause),
            events: 0,
            events_batch: None,
            is_to_be_corrected: false,
            row_is_wrong: true,
            live_is_wrong: false,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a tolerance")]
    fn is_beyond(&self, difference: i128, expected: i64) -> bool {
        let (absolute, part) = self.tolerance;
        let difference = difference.unsigned_abs();
        difference > u128::from(absolute)
            && difference as f64 > part * expected.unsigned_abs() as f64
    }

    fn cause(&self, said: &Said, (row_is_wrong, live_is_wrong): (bool, bool)) -> Cause {
        let (stored, events) = (said.of(Side::Stored), said.of(Side::EventsBatch));
        if self.is_claimed && !row_is_wrong && !live_is_wrong {
            return Cause::Claimed;
        }
        match (row_is_wrong, stored, events) {
            (true, None, _) => Cause::MissingRow,
            (true, Some(_), None) => Cause::ExtraRow,
            (true, Some(_), Some(_)) => Cause::ChangedRow,
            (false, ..) => {
                let (live, events) = (said.count(Side::Live), said.count(Side::EventsLive));
                let repeated = said.count(Side::Repeated);
                let elsewhere = said.count(Side::RepeatedElsewhere);
                crate::drift::Cause::of((events, live), (repeated, elsewhere)).into()
            }
        }
    }
}

/// Some keys of a file, with what the sides say of each.
pub(crate) struct Sums(RecordBatch);

impl Sums {
    /// How many keys.
    pub(crate) fn keys(&self) -> u64 {
        self.0.num_rows() as u64
    }

    /// Gives each of them.
    pub(crate) fn each(&self, mut of_key: impl FnMut(&[u8], &Said) -> Result<()>) -> Result<()> {
        let (keys, sums) = columns(&self.0)?;
        for (row, key) in keys.iter().enumerate() {
            let mut said = Said::default();
            for (sum, column) in said.sums.iter_mut().zip(&sums) {
                *sum = column.is_valid(row).then(|| column.value(row));
            }
            of_key(key.unwrap_or_default(), &said)?;
        }
        Ok(())
    }
}

/// Adds up what the sides say in a file, and gives all its keys, some at a time and in no order.
pub(crate) async fn each_block(
    engine: &Engine,
    path: &Path,
    mut of_block: impl AsyncFnMut(Sums) -> Result<()>,
) -> Result<()> {
    let failed = |error: DataFusionError| scratch(path, error);
    let context = engine.create_session();
    let name = path.to_str().ok_or_else(|| {
        Error::Request(format!("{}: the path is not valid UTF-8", path.display()))
    })?;
    let options = ParquetReadOptions::default();
    context
        .register_parquet("sides", name, options)
        .await
        .map_err(failed)?;
    let sums = Side::ALL
        .map(|(side, name)| format!("sum(count) FILTER (WHERE side = {}) AS {name}", side as u8));
    let query = format!("SELECT key, {} FROM sides GROUP BY key", sums.join(", "));
    let frame = context.sql(&query).await.map_err(failed)?;
    let mut batches = frame.execute_stream().await.map_err(failed)?;
    while let Some(batch) = batches.try_next().await.map_err(failed)? {
        of_block(Sums(batch)).await?;
    }
    Ok(())
}

fn columns(batch: &RecordBatch) -> Result<(&BinaryArray, Vec<&Int64Array>)> {
    let wrong = || Error::Fault("the sums do not have the requested columns".to_owned());
    let (keys, sums) = batch.columns().split_first().ok_or_else(wrong)?;
    let keys = keys.as_binary_opt::<i32>().ok_or_else(wrong)?;
    let sums = sums.iter().map(|sum| sum.as_primitive_opt::<Int64Type>());
    Ok((keys, sums.collect::<Option<_>>().ok_or_else(wrong)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(sums: &[(Side, i64)]) -> Said {
        let mut said = Said::default();
        for (side, sum) in sums {
            said.sums[*side as usize] = Some(*sum);
        }
        said
    }

    const EVENTS: Measure = Measure {
        is_claimed: false,
        is_whole: false,
        with_live: true,
        tolerance: (0, 0.0),
    };

    fn cause(sums: &[(Side, i64)]) -> Option<Cause> {
        EVENTS.weigh(&said(sums)).and_then(|weighed| weighed.cause)
    }

    #[test]
    fn what_is_wrong_is_named() {
        use Side::{
            Ahead, EventsBatch, EventsLive, Live, OfNoRun, Repeated, RepeatedElsewhere, Stored,
        };
        assert_eq!(cause(&[(EventsBatch, 3), (Stored, 3)]), None);
        assert_eq!(
            cause(&[(EventsBatch, 3), (EventsLive, 2), (Stored, 3), (Live, 2)]),
            None
        );
        // A row of 0 and no row are the same to whoever asks.
        assert_eq!(cause(&[(EventsBatch, 0)]), None);
        assert_eq!(
            cause(&[(EventsBatch, 3), (Stored, 4)]),
            Some(Cause::ChangedRow)
        );
        assert_eq!(cause(&[(EventsBatch, 3)]), Some(Cause::MissingRow));
        assert_eq!(cause(&[(Stored, 4)]), Some(Cause::ExtraRow));
        assert_eq!(cause(&[(EventsLive, 4), (Live, 1)]), Some(Cause::LostLive));
        assert_eq!(
            cause(&[(EventsLive, 1), (Live, 2), (Repeated, 1)]),
            Some(Cause::Duplicate)
        );
        let copied = [
            (EventsLive, 1),
            (Live, 2),
            (Repeated, 1),
            (RepeatedElsewhere, 1),
        ];
        assert_eq!(cause(&copied), Some(Cause::OtherPartition));
        assert_eq!(cause(&[(Live, 2)]), Some(Cause::Unexplained));
        // What is too much here and too little there is twice wrong.
        let both = [(EventsBatch, 3), (Stored, 4), (EventsLive, 2), (Live, 1)];
        assert_eq!(cause(&both), Some(Cause::ChangedRow));
        assert_eq!(cause(&[(EventsBatch, 3), (Stored, 4), (Ahead, 1)]), None);
        assert_eq!(cause(&[(Side::Misplaced, 3)]), Some(Cause::MisplacedRow));
        // One that counts nothing is in the way of readers all the same.
        assert_eq!(cause(&[(Side::Unreadable, 0)]), Some(Cause::UnreadableRow));
        // Readers refuse it, whatever it counts.
        let right = [(EventsBatch, 3), (Stored, 3), (OfNoRun, 1)];
        assert_eq!(cause(&right), Some(Cause::ChangedRow));
    }

    #[test]
    fn a_tolerance_is_beyond_both_of_its_bounds() {
        let measure = |tolerance| Measure {
            is_claimed: true,
            tolerance,
            ..EVENTS
        };
        let of = |measure: Measure, claimed: i64| {
            let sums = [
                (Side::Claimed, claimed),
                (Side::EventsBatch, 100),
                (Side::Stored, 100),
            ];
            measure
                .weigh(&said(&sums))
                .and_then(|weighed| weighed.cause)
        };
        assert_eq!(of(measure((0, 0.0)), 100), None);
        assert_eq!(of(measure((0, 0.0)), 101), Some(Cause::Claimed));
        assert_eq!(of(measure((1, 0.0)), 101), None);
        assert_eq!(of(measure((0, 0.02)), 102), None);
        assert_eq!(of(measure((1, 0.01)), 90), Some(Cause::Claimed));
        let nobody = said(&[(Side::EventsBatch, 3), (Side::Stored, 4)]);
        assert_eq!(measure((0, 0.0)).weigh(&nobody), None);
    }
}
