//! The master data set: the log's events as Parquet, never changed once written.

mod backfill;
mod manifest;
mod merge;
mod merged;
mod numbered;
mod read;
mod reduced;
mod scrub;
mod write;

pub(crate) use backfill::backfilled;
pub use backfill::{Backfill, BackfillReport};
pub(crate) use manifest::{Manifest, day_tasks, days_between, read_all as read_manifests};
pub(crate) use merge::{MergeLimits, MergedSize, merge};
pub(crate) use merged::{end_merging, end_what_was_left, merged, remove_merged};
pub(crate) use read::{Base, DayTotals, EventStream, Keep, Repeats};
pub(crate) use reduced::{
    ReducedDays, event_files, event_objects, identities_folder, offsets, reduced_days, shown_day,
    take_reduced, write_identities,
};
pub(crate) use scrub::{listeners, record, remove_replaced, scrub};
pub(crate) use write::{Archiver, FileSize};

use std::ops::AddAssign;

use arrow::array::RecordBatch;
use schemas::plays::without_listeners;
use serde::Serialize;
use stores::erasures::Suppressed;

/// Removes those who are suppressed from rows that may name a listener.
pub(crate) fn without(suppressed: &Suppressed, rows: RecordBatch) -> RecordBatch {
    match suppressed.newest_listener() {
        0 => rows,
        _ => without_listeners(&rows, |id| suppressed.has_listener(id)).unwrap_or(rows),
    }
}

/// What an archiver did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ArchiveReport {
    /// Events that were written.
    pub events: u64,
    /// Records that could not be taken; the speed layer keeps them as dead letters.
    pub rejected: u64,
    /// Files that were written.
    pub files: u64,
}

impl AddAssign for ArchiveReport {
    fn add_assign(&mut self, more: Self) {
        self.events += more.events;
        self.rejected += more.rejected;
        self.files += more.files;
    }
}
