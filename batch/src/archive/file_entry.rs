//! One entry of an archive version: an offset range of the log or a part of a backfill, and its
//! file of events.

use std::collections::BTreeMap;
use std::ops::Range;

use schemas::seam::{Cut, Offset};
use serde::{Deserialize, Serialize};

/// The events of one UTC day in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DayRows {
    /// The row groups with these events.
    pub(crate) row_groups: Range<usize>,
    /// The number of events.
    pub(crate) rows: u64,
}

/// The remains of an expired file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExpiredFile {
    /// The file of identities.
    pub(super) identities: String,
    /// By UTC day, the row groups of the identities.
    pub(super) days: BTreeMap<i64, DayRows>,
    /// The size of the event file.
    pub(super) size_bytes: u64,
    /// When it expired, in milliseconds since the Unix epoch.
    pub(super) at_ms: i64,
}

impl ExpiredFile {
    /// Returns the path of the file of identities.
    pub(crate) fn identities(&self) -> &str {
        &self.identities
    }
}

/// An offset range of the log, or a part of a backfill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// By partition: the first offset of the range; empty for a backfill.
    pub(crate) from: Vec<Offset>,
    /// By partition: the end of the range; empty for a backfill.
    pub(crate) to: Vec<Cut>,
    /// The file of events; none if there is no event.
    pub(crate) path: Option<String>,
    /// By UTC day of the event time, in days since 1970-01-01.
    pub(crate) days: BTreeMap<i64, DayRows>,
    /// Records of the range that could not be decoded.
    pub(crate) rejected: u64,
    /// The number of an erasure: the file names no listener of this or an earlier erasure.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) redacted_through: u64,
    /// The data that remains of the file if it expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expired: Option<ExpiredFile>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl FileEntry {
    /// Returns whether it is part of a backfill.
    pub(crate) const fn is_backfill(&self) -> bool {
        self.to.is_empty()
    }

    /// Returns whether the range overlaps `[since, cuts)` in any partition.
    pub(crate) fn overlaps(&self, since: &[Cut], cuts: &[Cut]) -> bool {
        let cut = |cuts: &[Cut], partition: usize| cuts.get(partition).map_or(0, |c| c.next_offset);
        self.to.iter().enumerate().any(|(partition, to)| {
            let from = self.from.get(partition).copied().unwrap_or(0);
            from.max(cut(since, partition)) < to.next_offset.min(cut(cuts, partition))
        })
    }

    /// Returns whether the whole range is below the cuts. A backfill precedes the log.
    pub(crate) fn is_below(&self, cuts: &[Cut]) -> bool {
        let offset = |partition: usize| cuts.get(partition).map_or(0, |cut| cut.next_offset);
        let mut ends = self.to.iter().enumerate();
        ends.all(|(partition, to)| to.next_offset <= offset(partition))
    }

    /// Returns whether it begins where `previous` ends.
    pub(super) fn follows(&self, previous: &Self) -> bool {
        let end = |partition: usize| previous.to.get(partition).map_or(0, |cut| cut.next_offset);
        let mut from = self.from.iter().enumerate();
        self.from.len() >= previous.to.len() && from.all(|(index, from)| *from == end(index))
    }

    /// Returns the number of events.
    pub(crate) fn rows(&self) -> u64 {
        let days = self.days.values();
        days.fold(0, |sum, day| sum.saturating_add(day.rows))
    }

    /// Returns the row groups of all days.
    pub(super) fn row_groups(&self) -> Vec<usize> {
        let days = self.days.values();
        days.flat_map(|day| day.row_groups.clone()).collect()
    }
}

/// Counts the events of selected UTC days in all files. Selects the days of the files that overlap
/// `[since, cuts)`, and `additional_days`; without `since`, all days.
pub(crate) fn count_day_events(
    files: &[FileEntry],
    since: Option<&[Cut]>,
    cuts: &[Cut],
    additional_days: impl IntoIterator<Item = i64>,
) -> BTreeMap<i64, u64> {
    let mut days: BTreeMap<i64, u64> = additional_days.into_iter().map(|day| (day, 0)).collect();
    for file in files {
        // A backfill starts new tables, so everything is computed and `since` is absent.
        if since.is_none_or(|since| file.overlaps(since, cuts)) {
            days.extend(file.days.keys().map(|day| (*day, 0)));
        }
    }
    for (day, day_rows) in files.iter().flat_map(|file| &file.days) {
        if let Some(rows) = days.get_mut(day) {
            *rows += day_rows.rows;
        }
    }
    days
}

/// Divides days into tasks of at most `rows_max` events; a task with more has a single day. Returns
/// the days and the number of events of each task.
pub(crate) fn plan_day_tasks(days: &BTreeMap<i64, u64>, rows_max: u64) -> Vec<(Vec<i64>, u64)> {
    let mut tasks: Vec<(Vec<i64>, u64)> = Vec::new();
    for (day, rows) in days {
        match tasks.last_mut() {
            Some((days, sum)) if *sum + rows <= rows_max => {
                days.push(*day);
                *sum += rows;
            }
            _ => tasks.push((vec![*day], *rows)),
        }
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending_at(to: &[i64]) -> FileEntry {
        let cut = |next_offset| Cut {
            next_offset,
            last: None,
        };
        FileEntry {
            from: vec![0; to.len()],
            to: to.iter().copied().map(cut).collect(),
            ..FileEntry::default()
        }
    }

    #[test]
    fn range_is_below_the_cuts_if_it_is_in_every_partition() {
        let cuts = ending_at(&[5, 7]).to;
        assert!(ending_at(&[5, 7]).is_below(&cuts));
        assert!(ending_at(&[5]).is_below(&cuts));
        assert!(!ending_at(&[5, 8]).is_below(&cuts));
        assert!(!ending_at(&[0, 0, 1]).is_below(&cuts));
        assert!(!ending_at(&[5, 7]).is_below(&[]));
        assert!(ending_at(&[]).is_below(&cuts), "a backfill");
    }
}
