//! The days with expired events.

use std::collections::BTreeMap;

use schemas::seam::Cut;
use serde::{Deserialize, Serialize};

use super::file_entry::{ExpiredFile, FileEntry};

/// The days with expired events, and their files of identities: 16 bytes for each event, to detect
/// repeated events.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ExpiredDays {
    /// By day, the files of identities and their row groups.
    days: BTreeMap<i64, Vec<(String, Vec<usize>)>>,
    /// By day, the number of identities.
    rows: BTreeMap<i64, u64>,
    /// The entries whose files expired.
    entries: Vec<FileEntry>,
}

impl ExpiredDays {
    pub(super) fn add(&mut self, file: &FileEntry, expired: &ExpiredFile) {
        for (day, rows) in &expired.days {
            let groups = rows.row_groups.clone().collect();
            let day_files = self.days.entry(*day).or_default();
            day_files.push((expired.identities.clone(), groups));
            let sum = self.rows.entry(*day).or_default();
            *sum = sum.saturating_add(rows.rows);
        }
        self.entries.push(file.clone());
    }

    /// Returns whether events of a day expired.
    pub(crate) fn contains(&self, day: i64) -> bool {
        self.days.contains_key(&day)
    }

    /// Returns the first and the last day.
    pub(crate) fn bounds(&self) -> Option<(i64, i64)> {
        self.bounds_where(|_| true)
    }

    /// Returns the first and the last day that satisfy a condition.
    pub(crate) fn bounds_where(&self, condition: impl Fn(i64) -> bool) -> Option<(i64, i64)> {
        let mut days = self.days.keys().copied().filter(|day| condition(*day));
        let first = days.next()?;
        Some((first, days.next_back().unwrap_or(first)))
    }

    /// Returns whether an event between the cuts of a result and later cuts expired.
    pub(crate) fn overlaps(&self, since: &[Cut], cuts: &[Cut]) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.overlaps(since, cuts))
    }

    /// Returns the number of identities of these days.
    pub(crate) fn count_identities(&self, days: &[i64]) -> u64 {
        let rows = days.iter().filter_map(|day| self.rows.get(day));
        rows.fold(0, |sum, rows| sum.saturating_add(*rows))
    }

    /// Returns the files of identities of these days, with their row groups.
    pub(crate) fn identity_files(&self, days: &[i64]) -> Vec<(String, Vec<usize>)> {
        let mut files: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (path, groups) in days.iter().filter_map(|day| self.days.get(day)).flatten() {
            files.entry(path).or_default().extend(groups);
        }
        let files = files.into_iter();
        files
            .map(|(path, groups)| (path.to_owned(), groups))
            .collect()
    }
}
